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

    from cfcore.cells import Cells
    from cfcore.metrics.summary import Options, Scores
    from cfcore.predictions import Predictions


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
    """

    q: Path | None = None
    threshold: float = 0.5
    alphas: Sequence[float] = (0.5, 0.25, 0.1)
    bins: int = 10
    metrics: Sequence[str] = ()
    weight: str | None = None
    patient: str | None = None

    def options(self, scores: "Scores") -> "Options":
        """What is computed of some scores, checked."""
        from cfcore.evaluation import check_options, labelled

        return labelled(check_options(**self.asked()), scores)

    def asked(self) -> dict[str, object]:
        """The options of :func:`cfcore.evaluate`."""
        return {name: getattr(self, name) for name in ("threshold", "alphas", "bins", "metrics")}

    def weights(self, worlds: int) -> object:
        """The target distribution, from its file."""
        from cfcore.cells import read_cells

        if self.q is None:
            return None
        table = read_cells(self.q)
        table.require("q")
        q = table.numbers("q")
        with table.blame():
            return check_weights(q, worlds)


_WANTED = _Wanted()


@dataclass(frozen=True)
class _Given:
    """Scores from a file, by label or predictor; its other columns; whose rows they are."""

    scores: Mapping[str, "Scores"]
    columns: "pd.DataFrame"
    patient: str | None
    cells: "Cells | None" = None
    predictions: Mapping[str, "Predictions"] = field(default_factory=dict)

    @property
    def size(self) -> str:
        """The numbers of rows and of worlds."""
        rows, worlds = next(iter(self.scores.values())).cf.shape
        return f"N = {rows}, K = {worlds}"

    @property
    def who(self) -> list | None:
        """The patient of each row."""
        return None if self.patient is None else self.columns[self.patient].tolist()

    def group(self, name: str) -> list:
        """The group of each row, by a column."""
        from cfcore.resampling import check_groups

        if name not in self.columns:
            found = ", ".join(map(str, self.columns.columns[:8]))
            raise InputError(f"there is no column {name} (found: {found})")
        groups = self.columns[name].replace("", None).tolist()
        check_groups(groups, len(groups), name)
        return groups

    def blame(self) -> AbstractContextManager:
        """Name the file and the line of what is wrong with a row."""
        return nullcontext() if self.cells is None else self.cells.blame(patient=self.patient)

    def about(self, replicates: int) -> dict[str, object]:
        """What intervals come from."""
        count = len(self.columns) if self.patient is None else self.columns[self.patient].nunique()
        return {"replicates": replicates, "level": 0.95, "patient": self.patient, "patients": count}


def _read(file: Path, asked: _Wanted, *, intervals: bool = True) -> _Given:
    """A table of scores, or predictions, all of them checked."""
    from cfcore import cells
    from cfcore.evaluation import check_options, check_parts
    from cfcore.inputs import gather

    check_options(**asked.asked())
    if file.suffix == ".safetensors":
        return _read_predictions(file, asked)
    table = cells.read_scores(file)
    frame = table.frame.reset_index(drop=True)
    column, who = cells.read_patients(table, asked.patient) if intervals else (None, None)
    if who is not None:
        frame[column] = who
    if asked.weight is not None:
        table.require(asked.weight)
        frame[asked.weight] = table.numbers(asked.weight)
    with table.blame():
        given = gather(frame, None, None, weight=asked.weight)
    q = asked.weights(next(iter(given.parts.values()))[1].shape[1])
    with table.blame(weight=asked.weight):
        return _Given(check_parts(given, q), frame, column, table)


def _read_predictions(file: Path, asked: _Wanted) -> _Given:
    """Predictions, which know patients and weights, and q unless another is asked for."""
    from cfcore.predictions import load_all

    if asked.weight or asked.patient:
        raise InputError(f"{file}: the file itself says what counts and whose the rows are")
    found = load_all(file)
    first = next(iter(found.values()))
    if first.draws:
        advice = "use cfcore.Predictions.load(path).bootstrap()"
        raise InputError(f"{file}: these are Monte Carlo draws; {advice}")
    if (q := asked.weights(first.logit_cf.shape[1])) is not None:
        found = {name: one.reweight(q) for name, one in found.items()}
    patient = None if first.patient is None else "patient"
    scores = {name: one.scores for name, one in found.items()}
    return _Given(scores, first.to_frame(), patient, None, found)


def _called(given: "Predictions") -> str:
    """The name of a predictor and its label, as far as they are known."""
    known = [given.provenance.get(key) for key in ("predictor", "label")]
    return ":".join(str(name) for name in known if name)


def _refuse_input(out: Path | None, *given: Path | None) -> None:
    """Refuse to write over what is read."""
    read = [path for path in given if path is not None and path.exists()]
    if out is not None and out.exists() and any(map(out.samefile, read)):
        raise InputError(f"{out}: this is an input; write the output elsewhere")


def evaluate(
    file: Path,
    *,
    asked: _Wanted = _WANTED,
    by: str | None = None,
    replicates: int = 0,
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
        replicates (R): Also print 95 % intervals from R bootstrap samples: of patients if a column
            says which they are, otherwise of the rows.
        json (OUT): Also write a JSON file: {"S_var": 0.02, ...}, null where undefined; with
            --replicates also "intervals": {"S_var": [low, high], ...} and "resampling": {level,
            replicates, patient (the column, or null), patients}. Of several labels or groups it
            holds a list "rows" in their place.
    """
    from cfcore.evaluation import as_numbers
    from cfcore.inputs import joined
    from cfcore.metrics.summary import summarise
    from cfcore.report.text import as_json, as_text, resampled
    from cfcore.resampling import bootstrap_scores, check_resampling

    _refuse_input(json, file, asked.q)
    if replicates:
        check_count(replicates, "replicates", least=2)
    elif asked.patient is not None or by is not None:
        option = "--patient" if by is None else "--by"
        raise InputError(f"{option} is about intervals only: ask for them with --replicates R")
    given, resampling = _read(file, asked, intervals=replicates > 0), None
    each, title = (
        {n: (s, asked.options(s)) for n, s in given.scores.items()},
        f"{file}: {given.size}",
    )
    with given.blame():
        if replicates:
            sampling = check_resampling(len(given.columns), given.who, replicates)
            groups = None if by is None else given.group(by)
            found = {n: bootstrap_scores(*own, sampling, groups) for n, own in each.items()}
            frame, resampling = joined(found), given.about(replicates)
            title += f"; {resampled(**resampling)}"
        else:
            frame = _estimates({n: as_numbers(summarise(*own)) for n, own in each.items()})
    if json is not None:
        write_atomically(json, as_json(frame, resampling).encode())
    return [title, as_text(frame)]


def _estimates(found: Mapping[str, Mapping[str, float]]) -> "pd.DataFrame":
    """Numbers by label and metric as a frame."""
    import pandas as pd

    rows = [(label, *one) for label, own in found.items() for one in own.items()]
    frame = pd.DataFrame(rows, columns=["label", "metric", "estimate"])
    return frame.drop(columns="label") if list(found) == [""] else frame


def compare(
    first: Path,
    second: Path,
    *,
    asked: _Wanted = _WANTED,
    replicates: int = 1000,
    json: Path | None = None,
) -> list[str]:
    """Two predictors on the same patients: how much larger is each metric of the second?

    Both files are as for evaluate, with the same rows in the same order.

    Args:
        first (FILE): The scores of one predictor.
        second (FILE): Those of the other.
        replicates (R): Bootstrap samples of patients, or of rows, for the intervals.
        json (OUT): Also write a JSON file, as evaluate does with --replicates.
    """
    from cfcore.inputs import joined
    from cfcore.report.text import as_json, as_text, resampled
    from cfcore.resampling import check_resampling, check_same_order, compare_pairs

    _refuse_input(json, first, second, asked.q)
    check_count(replicates, "replicates", least=2)
    one, other = (_read(file, asked) for file in (first, second))
    with other.blame():
        who = check_same_order(one.who, other.who)
        sampling = check_resampling(len(one.columns), who, replicates)
        frame = joined(compare_pairs(one.scores, other.scores, asked.options, sampling))
    resampling = (other if one.who is None else one).about(replicates)
    if json is not None:
        write_atomically(json, as_json(frame, resampling).encode())
    title = f"{second} minus {first}: {one.size}; {resampled(**resampling)}"
    return [title, as_text(frame)]


def report(
    file: Path,
    *,
    out: Path,
    asked: _Wanted = _WANTED,
    by: Sequence[str] = (),
    title: str = "",
    replicates: int = 1000,
    fail_if: Sequence[str] = (),
) -> Iterator[str]:
    """A report to hand on, from scores as for evaluate.

    It is one HTML file that needs nothing else, with JSON and LaTeX tables beside it.

    Args:
        file (FILE): One row for each image.
        out (FOLDER): Where report.html, report.json and tables.tex are written.
        by (COLUMN): Columns of which subgroups are shown.
        title (TEXT): What stands above it (default: the name of the file).
        replicates (R): Bootstrap samples for the intervals.
        fail_if (CONDITION): End with exit code 3 if this holds of a predictor, such as
            'S_flip > 0.1'; the report is written all the same.
    """
    from cfcore.metrics.summary import names
    from cfcore.report.conclusions import check_gate, gate
    from cfcore.report.findings import Question, judge_scores
    from cfcore.report.page import write_report

    if (out / "audit.json").exists():
        raise InputError(f"{out}: holds an audit; write the report elsewhere")
    given, count = _read(file, asked), check_count(replicates, "replicates", 2)
    with given.blame():
        groups = {column: given.group(column) for column in by}
        question = Question(groups, asked=asked.asked(), replicates=count)
        called = {name: name or _called(one) for name, one in given.predictions.items()}
        grids = {called[name]: one.grid for name, one in given.predictions.items()}
        scores = {called.get(name, name): one for name, one in given.scores.items()}
        for one in given.scores.values():
            options, labels = asked.options(one), one.y is not None
            check_gate(fail_if, [*names(options, labelled=labels), "S_var", "S_flip"])
        check_writable(out)
        findings = judge_scores(title or file.name, scores, given.who, question, grids)
    for one in given.predictions.values():  # what may not be shared stays marked
        marks = {name: v for name, v in one.provenance.items() if name == "restricted"}
        findings["provenance"] |= marks
    findings["asked"] |= {"weight": asked.weight, "replicates": count}
    reasons = gate(findings, fail_if)
    yield from map(str, write_report(findings, out))
    yield from reasons
    if reasons:
        raise SystemExit(3)
