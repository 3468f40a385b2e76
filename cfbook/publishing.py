"""The commands for what leaves the desk: the guard, records, the students' edition, slides."""

import argparse
import sys
from pathlib import Path


def add_publishing(commands: "argparse._SubParsersAction") -> None:
    """All commands of this file."""
    add_guard(commands)
    add_provenance(commands)
    add_student(commands)
    add_slides(commands)


def add_guard(commands: "argparse._SubParsersAction") -> None:
    """``cfcore guard``."""
    command = commands.add_parser(
        "guard",
        help="refuse what holds anything of real patients",
        description="Look for anything of real patients in what git tracks, or in the files that "
        "are named, and refuse it, naming file and cell: marked artefacts, identifiers, notebooks "
        "that read real data, images that no code made, files that are not text.",
    )
    command.add_argument("paths", type=Path, nargs="*", metavar="PATH", help="files or folders")
    command.add_argument(
        "--staged", action="store_true", help="only what the next commit would change"
    )
    command.add_argument("--book", type=Path, metavar="DIR", help="a rendered book, instead")
    command.set_defaults(command=guard)


def guard(arguments: argparse.Namespace) -> None:
    """Refuse what may not be shared."""
    from cfbook.guard import repository
    from cfbook.guard.guard import ALLOWED, inspect, read_allowed, walk
    from cfcore.checks import InputError

    book = arguments.book is not None
    if arguments.paths or book:
        files = walk([arguments.book] if book else arguments.paths)
        allowed = read_allowed(Path(ALLOWED))
    else:
        files = repository.staged() if arguments.staged else repository.tracked()
        allowed = read_allowed(repository.top() / ALLOWED)
    found = inspect(files, allowed, book=book)
    for finding in found:
        print(finding, file=sys.stderr)
    if found:
        count = len({finding.path for finding in found})
        raise InputError(f"{count} {'file' if count == 1 else 'files'} may not be shared")


def add_provenance(commands: "argparse._SubParsersAction") -> None:
    """``cfcore provenance``."""
    command = commands.add_parser(
        "provenance",
        help="show what ran, from the records of executed notebooks",
        description="Print the records that cfcore run --provenance wrote beside the notebooks of "
        "a folder (NAME.provenance.json beside NAME.ipynb), as tables for a page of the book.",
    )
    command.add_argument("folder", type=Path, metavar="FOLDER", help="of executed notebooks")
    command.set_defaults(command=provenance)


def provenance(arguments: argparse.Namespace) -> None:
    """Print the records of a folder."""
    from cfbook.production.records import page

    print(page(arguments.folder))


def add_student(commands: "argparse._SubParsersAction") -> None:
    """``cfcore student``."""
    command = commands.add_parser(
        "student",
        help="copy a book or notebooks without solutions",
        description="Copy the sources of a book, or a folder of notebooks, without the boxes that "
        "are called Solution or Answer.",
    )
    command.add_argument("source", type=Path, metavar="FOLDER", help="pages and notebooks")
    command.add_argument("out", type=Path, metavar="OUT", help="where to write them")
    command.set_defaults(command=student)


def student(arguments: argparse.Namespace) -> None:
    """Copy without solutions."""
    from cfbook.production.student import students_edition

    for path in students_edition(arguments.source, arguments.out):
        print(path)


def add_slides(commands: "argparse._SubParsersAction") -> None:
    """``cfcore slides``."""
    command = commands.add_parser(
        "slides",
        help="draw every figure of notebooks large, for slides",
        description="Execute notebooks once more with figures of 300 dots in an inch, and write "
        "each figure as a picture, with a list in Markdown that has one slide for each.",
    )
    command.add_argument("notebooks", type=Path, nargs="+", metavar="NOTEBOOK", help="in order")
    command.add_argument("out", type=Path, metavar="OUT", help="the folder to write to")
    command.set_defaults(command=slides)


def slides(arguments: argparse.Namespace) -> None:
    """Draw every figure large."""
    from tempfile import TemporaryDirectory

    from cfbook.production.slides import redraw, write_slides

    with TemporaryDirectory() as folder:
        executed = redraw(arguments.notebooks, Path(folder))
        for path in write_slides(executed, arguments.out):
            print(path)
