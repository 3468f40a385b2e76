"""Commands for people who have scores: evaluate, compare, report."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cfcore.checks import InputError, check_count, check_weights
from cfcore.files import check_writable, write_atomically

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from cfcore.cells import Cells
    from cfcore.metrics.summary import Scores
    from cfcore.resampling import Sampled


@dataclass(frozen=True)
class _Wanted:
    """What is computed from scores.

    Args:
        q (FILE): Table with a column q: K intervention probabilities in the order of the p_cf
            columns, summing to one, or counts (default: uniform).
        threshold (T): A decision is positive if p > T.
        alphas (A): Tail masses of the tail risks, in [0, 1].
        bins (B): Calibration bins of equal width.
        metrics (NAME): Only these; AUC_orig, AUC_marg, AP_orig and AP_marg are computed only if
            they are named.
        weight (COLUMN): How much each row counts.
        patient (COLUMN): Patient identifiers, text or whole numbers (default: patient, if there is
            such a column).
        replicates (R): Bootstrap samples for 95 % intervals: of patients if a column says which
            they are, otherwise of the rows.
    """

    q: Path | None = None
    threshold: float = 0.5
    alphas: Sequence[float] = (0.5, 0.25, 0.1)
    bins: int = 10
    metrics: Sequence[str] = ()
    weight: str | None = None
    patient: str | None = None
    replicates: int = 0

    def options(self, *more: str) -> "Sampled":
        """The options of :func:`cfcore.evaluate`, and more of :func:`cfcore.bootstrap`."""
        names = ("threshold", "alphas", "bins", "metrics", *more)
        return {name: getattr(self, name) for name in names}

    def weights(self, worlds: int) -> object:
        """The target distribution, from its file."""
        from cfcore.cells import read_cells

        if self.q is None:
            return None
        table = read_cells(self.q)
        q = table.numbers("q")
        with table.blame():
            return check_weights(q, worlds)


_WANTED, _RESAMPLED = _Wanted(), _Wanted(replicates=1000)


@dataclass(frozen=True)
class _Given:
    """Scores from a file, by label or predictor; its other columns; whose rows they are.

    The worlds and the provenance are known of predictions.
    """

    scores: Mapping[str, "Scores"]
    columns: "pd.DataFrame"
    patient: str | None
    cells: "Cells | None" = None
    grid: Mapping[str, "Tensor"] = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)

    @property
    def size(self) -> str:
        """The numbers of rows and of worlds."""
        rows, worlds = next(iter(self.scores.values())).cf.shape
        return f"N = {rows}, K = {worlds}"

    def group(self, name: str) -> list:
        """The group of each row, by a column."""
        from cfcore.inputs import column
        from cfcore.resampling import check_groups

        groups = [None if each == "" else each for each in column(self.columns, name).tolist()]
        check_groups(groups, len(groups), name)
        return groups

    def blame(self) -> AbstractContextManager:
        """Name the file and the line of what is wrong with a row."""
        return nullcontext() if self.cells is None else self.cells.blame(patient=self.patient)

    def about(self, asked: _Wanted) -> dict[str, object]:
        """What intervals come from."""
        count = len(self.columns) if self.patient is None else self.columns[self.patient].nunique()
        found = {"replicates": asked.replicates, "level": 0.95}
        return found | {"patient": self.patient, "patients": count}


def _read(file: Path, asked: _Wanted, *, intervals: bool = True) -> _Given:
    """A table of scores, or predictions, which know more, all of them checked."""
    from cfcore import cells
    from cfcore.evaluation import check_options, check_parts
    from cfcore.inputs import gather
    from cfcore.predictions import load_all

    check_options(asked.options())
    if intervals:
        check_count(asked.replicates, "replicates", least=2)
    if file.suffix == ".safetensors":
        if asked.weight or asked.patient:
            raise InputError(f"{file}: the file itself says what counts and whose the rows are")
        found = load_all(file)
        first = next(iter(found.values()))
        if (q := asked.weights(first.logit_cf.shape[1])) is not None:
            found = {name: one.reweight(q) for name, one in found.items()}
        patient = None if first.patient is None else "patient"
        scores = {name: one.scores for name, one in found.items()}
        grid = {} if first.draws else first.grid
        return _Given(scores, first.to_frame(), patient, None, grid, first.provenance)
    table = cells.read_scores(file)
    frame = table.frame.reset_index(drop=True)
    column, who = cells.read_patients(table, asked.patient) if intervals else (None, None)
    if who is not None:
        frame[column] = who
    if asked.weight is not None:
        frame[asked.weight] = table.numbers(asked.weight)
    with table.blame():
        given = gather(frame, None, None, weight=asked.weight)._replace(patient=who)
    q = asked.weights(next(iter(given.parts.values()))[1].shape[1])
    with table.blame(weight=asked.weight):
        return _Given(check_parts(given, q), frame, column, table)


def refuse_input(out: Path | None, *given: Path | None) -> None:
    """Refuse to write over what is read."""
    read = [path for path in given if path is not None and path.exists()]
    if out is not None and out.exists() and any(map(out.samefile, read)):
        raise InputError(f"{out}: this is an input; write the output elsewhere")


def evaluate(
    file: Path,
    *,
    asked: _Wanted = _WANTED,
    by: str | None = None,
    json: Path | None = None,
) -> list[str]:
    """Every metric of the paper from a table of scores.

    The table (CSV with any separator, parquet, npz) has the columns p_obs (probability on the
    observed image), p_cf_0 ... p_cf_{K-1} (on each counterfactual image) and, if labels are known,
    y (0 or 1); of several labels NAME:p_obs and so on. Intervals resample patients if there is a
    column patient. Other columns are ignored. Or a file of predictions (safetensors).

    Args:
        file (FILE): One row for each image.
        by (COLUMN): Every metric in each group of this column, with intervals, and its gap between
            the worst group and the best.
        json (OUT): Also write a JSON file: {"S_var": 0.02, ...}, null where undefined; with
            --replicates also "intervals": {"S_var": [low, high], ...} and "resampling": {level,
            replicates, patient (the column, or null), patients}. Of several labels or groups it
            holds a list "rows" in their place.
    """
    import pandas as pd

    from cfcore.evaluation import evaluate_all
    from cfcore.resampling import bootstrap_all, joined

    refuse_input(json, file, asked.q)
    intervals, resampling = asked.replicates != 0, None
    if not intervals and (asked.patient is not None or by is not None):
        option = "--patient" if by is None else "--by"
        raise InputError(f"{option} is about intervals only: ask for them with --replicates R")
    given = _read(file, asked, intervals=intervals)
    with given.blame():
        if intervals:
            groups, resampling = None if by is None else given.group(by), given.about(asked)
            frame = bootstrap_all(given.scores, asked.options("replicates"), groups)
        else:
            found = evaluate_all(given.scores, asked.options())
            columns = ["metric", "estimate"]
            frame = joined({n: pd.DataFrame(v.items(), columns=columns) for n, v in found.items()})
    return _told(f"{file}: {given.size}", frame, resampling, json)


def _told(
    title: str, frame: "pd.DataFrame", resampling: Mapping[str, object] | None, json: Path | None
) -> list[str]:
    """Metrics as text, and in a JSON file if there is to be one."""
    from cfcore.report.text import as_json, as_text, resampled

    if json is not None:
        write_atomically(json, as_json(frame, resampling).encode())
    how = f"; {resampled(**resampling)}" if resampling else ""
    return [title + how, as_text(frame)]


def compare(
    first: Path,
    second: Path,
    *,
    asked: _Wanted = _RESAMPLED,
    json: Path | None = None,
) -> list[str]:
    """Two predictors on the same patients: how much larger is each metric of the second?

    Both files are as for evaluate, with the same rows in the same order.

    Args:
        first (FILE): The scores of one predictor.
        second (FILE): Those of the other.
        json (OUT): Also write a JSON file, as evaluate does with --replicates.
    """
    from cfcore.resampling import compare_all

    refuse_input(json, first, second, asked.q)
    one, other = (_read(file, asked) for file in (first, second))
    with other.blame():
        frame = compare_all(one.scores, other.scores, asked.options("replicates"))
    resampling = (other if one.patient is None else one).about(asked)
    return _told(f"{second} minus {first}: {one.size}", frame, resampling, json)


def report(
    file: Path,
    *,
    out: Path,
    asked: _Wanted = _RESAMPLED,
    by: Sequence[str] = (),
    title: str = "",
    fail_if: Sequence[str] = (),
) -> Iterator[str]:
    """A report to hand on, from scores as for evaluate.

    It is one HTML file that needs nothing else, with JSON and LaTeX tables beside it.

    Args:
        file (FILE): One row for each image.
        out (FOLDER): Where report.html, report.json and tables.tex are written.
        by (COLUMN): Columns of which subgroups are shown.
        title (TEXT): What stands above it (default: the name of the file).
        fail_if (CONDITION): End with exit code 3 if this holds of a predictor, such as
            'S_flip > 0.1'; the report is written all the same.
    """
    from cfcore.evaluation import check_options
    from cfcore.metrics.summary import names
    from cfcore.report.conclusions import check_gate, gate
    from cfcore.report.findings import Question, Subject, judge
    from cfcore.report.page import write_report

    if (out / "audit.json").exists():
        raise InputError(f"{out}: holds an audit; write the report elsewhere")
    given, subjects = _read(file, asked), {}
    known = [given.provenance.get(key) for key in ("predictor", "label")]
    with given.blame():
        groups = {column: given.group(column) for column in by}
        for name, one in given.scores.items():
            metrics = names(check_options(asked.options(), one), labelled=one.y is not None)
            check_gate(fail_if, [*metrics, "S_var", "S_flip"])
            called = name or ":".join(str(part) for part in known if part) or "the score"
            own = {"predictor": called, "label": called}  # none is compared with another
            subjects[called] = Subject(one, given.grid, own)
        check_writable(out)
        findings = {"asked": _question(given, asked, title or file.name), "generator": None}
        findings["asked"] |= {"labels": list(subjects), "replicates": asked.replicates}
        # What may not be shared stays marked.
        marks = {name: v for name, v in given.provenance.items() if name == "restricted"}
        question = Question(groups, asked=asked.options("replicates"))
        findings = judge(findings | {"provenance": marks}, subjects, question)
    reasons = gate(findings, fail_if)
    yield from map(str, write_report(findings, out))
    yield from reasons
    if reasons:
        raise SystemExit(3)


def _question(given: _Given, asked: _Wanted, title: str) -> dict[str, object]:
    """What a report says it was asked."""
    one, nuisances = next(iter(given.scores.values())), {}
    for name, values in given.grid.items():
        levels = values.double().unique().tolist()
        nuisances[name] = {"values": levels, "words": [f"{v:g}" for v in levels], "unit": ""}
    set_to = [values.double().tolist() for values in given.grid.values()]
    found = {"title": title, "rows": len(one.obs), "patients": given.about(asked)["patients"]}
    found |= {"nuisances": nuisances, "threshold": asked.threshold, "weight": asked.weight}
    found["q"] = "uniform" if len(one.q.unique()) == 1 else one.q.tolist()
    found["worlds"] = [[own[k] for own in set_to] for k in range(len(one.q))]
    return found | {"predictors": ["as given"], "generator": "unknown", "effect": "unknown"}
