"""The commands for what leaves the desk: the guard, the records of what ran."""

import argparse
import sys
from pathlib import Path


def add_publishing(commands: "argparse._SubParsersAction") -> None:
    """All commands of this file."""
    add_guard(commands)
    add_provenance(commands)


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
    from cfcore import repository
    from cfcore.checks import InputError
    from cfcore.guard import ALLOWED, inspect, read_allowed, walk

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
    from cfcore.provenance import page

    print(page(arguments.folder))
