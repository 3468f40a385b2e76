"""The command that evaluates a table of scores."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from cfcore.checks import InputError

LEVEL = 0.95


def add_evaluate(commands: "argparse._SubParsersAction") -> None:
    """``cfcore evaluate``."""
    command = commands.add_parser(
        "evaluate",
        help="every metric of the paper from a table of probabilities",
        description="Every metric of the paper for one predictor, from a CSV file with the columns "
        "p_obs (probability on the observed image), p_cf_0 ... p_cf_{K-1} (on each counterfactual "
        "image) and, if labels are known, y (0 or 1). Intervals resample patients if there is a "
        "column patient. Other columns are ignored.",
    )
    command.add_argument("file", type=Path, metavar="FILE.csv", help="one row for each image")
    command.add_argument(
        "--q",
        type=Path,
        metavar="FILE",
        help="CSV file with a column q: K intervention probabilities in the order of the p_cf "
        "columns, summing to one (default: uniform)",
    )
    command.add_argument(
        "--threshold",
        type=float,
        default=0.5,
        metavar="T",
        help="a decision is positive if p > T (default: %(default)s)",
    )
    command.add_argument(
        "--alphas",
        type=float,
        nargs="+",
        default=[0.5, 0.25, 0.1],
        metavar="A",
        help="tail masses of the tail risks, in [0, 1] (default: 0.5 0.25 0.1)",
    )
    command.add_argument(
        "--bins",
        type=int,
        default=10,
        metavar="B",
        help="calibration bins of equal width (default: %(default)s)",
    )
    add_intervals(command)
    command.set_defaults(command=evaluate)


def add_intervals(command: argparse.ArgumentParser) -> None:
    """The options about intervals, and where they and the metrics are written."""
    command.add_argument(
        "--replicates",
        type=int,
        default=0,
        metavar="R",
        help="also print 95 %% intervals from R bootstrap samples: of patients if a column says "
        "which they are, otherwise of the rows (default: none)",
    )
    command.add_argument(
        "--patient",
        metavar="NAME",
        help="the column of patient identifiers, text or whole numbers (default: patient, if there "
        "is one)",
    )
    command.add_argument(
        "--json",
        type=Path,
        metavar="OUT",
        help='also write a JSON file: {"S_var": 0.02, ...}, null where undefined; with '
        '--replicates also "intervals": {"S_var": [low, high], ...} and "resampling": {level, '
        "replicates, patient (the column, or null), patients}",
    )


def evaluate(arguments: argparse.Namespace) -> None:
    """Print every metric of a table of probabilities."""
    from cfcore.bootstrap import bootstrap
    from cfcore.cells import read_cells
    from cfcore.checks import check_count, check_weights
    from cfcore.evaluate import check_question
    from cfcore.evaluate import evaluate as evaluate_scores
    from cfcore.files import write_atomically
    from cfcore.report import as_frame, as_json, as_text
    from cfcore.scores import patients, read_scores

    refuse_overwriting(arguments.json, arguments.file, arguments.q)
    replicates = arguments.replicates
    if replicates:
        check_count(replicates, "replicates", least=2)
    elif arguments.patient is not None:
        raise InputError("--patient is about intervals only: ask for them with --replicates R")
    if arguments.file.suffix == ".safetensors":
        call = "cfcore.Predictions.load(path).bootstrap()"
        raise InputError(f"{arguments.file}: predictions as cfcore marginalise writes; use {call}")
    cells = read_cells(arguments.file)
    if arguments.patient is not None:
        cells.require(arguments.patient)
    identifier = arguments.patient or ("patient" if "patient" in cells.header else None)
    data = read_scores(cells)
    p_cf = data[1]
    patient = patients(cells, identifier) if replicates and identifier else None
    options = {name: getattr(arguments, name) for name in ("threshold", "alphas", "bins")}
    if arguments.q is not None:
        weights = read_cells(arguments.q)
        weights.require("q")
        with weights.blame():
            options["q"] = check_weights(weights.numbers("q"), p_cf.shape[1])

    check_question(options["threshold"], options["alphas"], options["bins"])
    resampling = None
    with cells.blame():
        if replicates:
            intervals = {"patient": patient, "replicates": replicates, "level": LEVEL}
            frame = bootstrap(*data, **options, **intervals)
            metrics = dict(zip(frame.metric, frame.estimate, strict=True))
            patients = len(p_cf) if patient is None else len(set(patient))
            resampling = intervals | {"patient": identifier, "patients": patients}
        else:
            metrics = evaluate_scores(*data, **options)
            frame = as_frame(metrics)
    if arguments.json is not None:
        write_atomically(arguments.json, as_json(metrics, frame, resampling).encode())
    print(f"{arguments.file}: N = {len(p_cf)}, K = {p_cf.shape[1]}{described(resampling)}")
    print(as_text(frame))


def described(resampling: Mapping[str, object] | None) -> str:
    """What was resampled, as the end of a line.

    Example:
        >>> described({"level": 0.95, "replicates": 200, "patient": None, "patients": 1000})
        '; 95 % intervals from 200 samples of the 1000 rows (no column patient: see --patient)'
    """
    if resampling is None:
        return ""
    what = f"{resampling['patients']} patients (column {resampling['patient']})"
    if resampling["patient"] is None:
        what = f"the {resampling['patients']} rows (no column patient: see --patient)"
    samples = f"{resampling['replicates']} samples of {what}"
    return f"; {100 * resampling['level']:.0f} % intervals from {samples}"


def refuse_overwriting(out: Path | None, *inputs: Path | None) -> None:
    """Refuse an output that would replace an input."""
    if out is None or not out.exists():
        return
    for path in inputs:
        if path is not None and path.exists() and out.samefile(path):
            raise InputError(f"{out}: this is an input; write the output elsewhere")
