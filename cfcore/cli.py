"""The command line."""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import cfcore
from cfbook.commands import (
    add_check_data,
    add_predictor,
    add_setting,
    add_source,
    folders,
    renamed,
)
from cfbook.generating import add_generating
from cfbook.publishing import add_publishing
from cfcore.checks import InputError, ScoreWarning, UndefinedMetricWarning
from cfcore.extras import EXTRAS, advice
from cfcore.files import write_atomically
from cfcore.scoring import add_evaluate

EXPECTED = (InputError, OSError, FloatingPointError)


class Parser(argparse.ArgumentParser):
    """A parser that complains in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after ``cfcore``; those of this process by default.

    Returns:
        The exit code: 0, or 2 if the input cannot be used, which one line on stderr explains.
    """
    arguments = parser().parse_args(argv)
    try:
        with warnings.catch_warnings(record=True) as caught:
            for kind in (UndefinedMetricWarning, ScoreWarning):
                warnings.simplefilter("always", kind)
            arguments.command(arguments)
            sys.stdout.flush()
        for warning in caught:
            print(f"cfcore: warning: {warning.message}", file=sys.stderr)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except EXPECTED as error:
        print(f"cfcore: {describe(error)}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        print(f"cfcore: {advice(error.name)}", file=sys.stderr)
        return 2
    return 0


def describe(error: Exception) -> str:
    """One line about an error that the user can mend."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    words = [str(error), *getattr(error, "__notes__", [])]
    return " ".join("; ".join(words).split())


def parser() -> Parser:
    """All commands and their options."""
    root = Parser(
        prog="cfcore",
        description="Counterfactual marginalisation: robustness of classifiers to nuisances.",
    )
    root.add_argument("--version", action="version", version=f"cfcore {cfcore.__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_evaluate(commands)
    add_audit(commands)
    add_marginalise(commands)
    add_predictor(commands)
    add_setting(commands)
    add_generating(commands)
    add_check_data(commands)
    add_run(commands)
    add_publishing(commands)
    return root


def add_audit(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "audit-paper",
        help="check the published tables against identities that must hold",
        description="Check every row of the published tables against identities that hold for any "
        "data, with rounding allowed for; list repeated rows, and cells in which main text and "
        "appendix differ.",
    )
    command.add_argument(
        "--json", type=Path, metavar="OUT", help="also write the findings to a JSON file"
    )
    command.set_defaults(command=audit_paper)


def audit_paper(arguments: argparse.Namespace) -> None:
    """Print what is impossible or suspicious in the published tables."""
    from cfbook.printed_tables import audit, read_tables, summary

    findings = audit(read_tables())
    if arguments.json is not None:
        text = json.dumps([finding.as_dict() for finding in findings], indent=2)
        write_atomically(arguments.json, f"{text}\n".encode())
    for finding in findings:
        place = f"{finding.setting} {finding.family} {finding.strength:g} ({finding.where})"
        print(f"{place}: {finding.statement} [{finding.identity}]")
    print(f"\n{len(findings)} findings\n{summary(findings).to_string()}")


def add_marginalise(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "marginalise",
        help="run predictors on every patient under every intervention",
        description="Run predictors on every patient as observed, reproduced and under every "
        "intervention, and write one file for each predictor and a manifest. Without --data the "
        "patients and their true counterfactuals are those of the phantom. A run that was stopped "
        "goes on where it was when it is started again.",
    )
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    command.add_argument(
        "--hospital", default="C", metavar="H", help="the hospital, C or M (default: C)"
    )
    add_source(command, preset="smoke")
    add_own_table(command)
    command.add_argument(
        "--generator",
        metavar="MODULE:NAME",
        help="your own generator: an object, or a function that makes one, with abduct and predict",
    )
    command.add_argument(
        "--predictor",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="weights written by cfscm.networks.save, or NAME=MODULE:NAME (repeatable; default: "
        "the basic predictor of the preset and its three logit offsets)",
    )
    add_interventions(command)
    command.add_argument(
        "--max-images", type=int, default=144, metavar="B", help="images in flight (default: 144)"
    )
    command.set_defaults(command=marginalise)


def add_own_table(command: Parser) -> None:
    """The options that name images of the user's own."""
    command.add_argument(
        "--data", metavar="FILE.csv", type=Path, help="your own table of images instead (CSV)"
    )
    command.add_argument(
        "--images",
        metavar="FOLDER",
        type=Path,
        help="where the images of --data are, or an .npz (default: beside it)",
    )
    command.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="NAME=COLUMN",
        help="what --data calls a column: effusion=ill patient=id",
    )
    command.add_argument(
        "--size",
        type=int,
        metavar="PIXELS",
        help="the side to which the images of --data are resized (default: they keep their size)",
    )


def add_interventions(command: Parser) -> None:
    """The options that say which worlds there are and how much each counts."""
    command.add_argument(
        "--do",
        action="append",
        default=[],
        metavar="VARIABLE=VALUES",
        help="values to set, sex=0,1 or age=20:90:8 (repeatable; default: the paper's sixteen)",
    )
    command.add_argument(
        "--q",
        default="uniform",
        metavar="Q",
        help="uniform, empirical, or a CSV file with a column for each variable and a column count",
    )
    command.add_argument(
        "--effect", choices=["direct", "total"], default="direct", help="(default: direct)"
    )
    command.add_argument(
        "--draws", type=int, metavar="M", help="Monte Carlo draws for each patient, not the grid"
    )


def marginalise(arguments: argparse.Namespace) -> None:
    """Run predictors in every world."""
    from cfbook.job import marginalise_to_folder

    paths = marginalise_to_folder(
        arguments.out,
        preset=arguments.preset,
        hospital=arguments.hospital,
        folders=folders(arguments),
        data=arguments.data,
        images=arguments.images,
        columns=renamed(arguments.columns),
        size=arguments.size,
        generator=arguments.generator,
        predictors=arguments.predictor,
        do=arguments.do,
        q=arguments.q,
        effect=arguments.effect,
        draws=arguments.draws,
        device=arguments.device,
        max_images=arguments.max_images,
    )
    for path in paths:
        print(path)


def add_run(commands: "argparse._SubParsersAction[Parser]") -> None:
    command = commands.add_parser(
        "run",
        help="execute a notebook of the book, with other parameters if you like",
        description="Execute a notebook from top to bottom and write it with its outputs. A "
        "parameter that the notebook does not have is refused.",
    )
    command.add_argument("source", type=Path, metavar="NOTEBOOK", help="a .md or .ipynb notebook")
    command.add_argument("out", type=Path, metavar="OUT.ipynb", help="where to write it")
    command.add_argument(
        "-p",
        "--parameter",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="change a parameter; the value is read as YAML (repeatable)",
    )
    command.add_argument(
        "--provenance",
        type=Path,
        metavar="FILE.json",
        help="also write what ran: parameters, commit, hashes, versions, minutes, memory",
    )
    command.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> None:
    """Execute a notebook."""
    from cfbook.production.notebooks import read_value
    from cfbook.production.notebooks import run as run_notebook

    given = {name: read_value(name, value) for name, value in arguments.parameter}
    run_notebook(arguments.source, arguments.out, given, provenance=arguments.provenance)


if __name__ == "__main__":
    sys.exit(main())
