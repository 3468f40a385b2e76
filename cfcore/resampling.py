"""Metrics on resampled patients, without evaluating them again.

Most metrics are means over patients, so that all replicates of them are a product of two matrices:
how often each patient was drawn (B, P), and what each patient contributes (P, C). Calibration
errors follow from sums by bin, which are such contributions too. Ranks follow from the counts
without sorting again; only Kendall's coefficient is recomputed from nothing.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cfcore import checks
from cfcore.checks import InputError, Numbers, UndefinedMetricWarning
from cfcore.evaluation import Asked, Ids, as_numbers, check_options, check_parts, check_patients
from cfcore.inputs import Aside, gather
from cfcore.intervals import Rule, interval, rule
from cfcore.metrics.calibration import bin_errors, bin_index
from cfcore.metrics.ranking import Groups, kendall_of_samples, tie_groups
from cfcore.metrics.summary import Options, Scores, blocks, ranked, reduce

_Weight = Tensor | None
_Tau = Callable[[Tensor], Tensor]
_CHUNK = 50  # replicates at a time
_GROUPS = 50  # more are no groups, but identifiers or measurements
_HIGHER = ("S_rank", "tau_b", "AUC", "AP")  # metrics that are better when high


@dataclass(frozen=True)
class Resampling:
    """How patients are resampled: options of :func:`cfcore.bootstrap`, the number of ``patients``,
    and as ``code`` which of them each row is of, shape (N,).
    """

    code: Tensor
    patients: int
    replicates: int
    rank_replicates: int
    level: float
    seed: int

    def counts(self) -> Iterator[Tensor]:
        """How often each patient is drawn, with replacement, some replicates at a time, (b, P)."""
        rng = np.random.default_rng(self.seed)
        for start in range(0, self.replicates, _CHUNK):
            size = min(_CHUNK, self.replicates - start)
            drawn = rng.integers(self.patients, size=(size, self.patients))
            drawn += np.arange(size)[:, None] * self.patients
            counts = np.bincount(drawn.ravel(), minlength=size * self.patients)
            yield torch.from_numpy(counts).view(size, self.patients)


class Sampled(Asked, total=False):
    """Options of :func:`cfcore.bootstrap` that say what is computed, and how patients are drawn."""

    replicates: int
    rank_replicates: int
    level: float
    seed: int


def check_resampling(
    rows: int,
    patient: Ids | None,
    replicates: int = 1000,
    rank_replicates: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> Resampling:
    """Check how patients are to be resampled; without identifiers every row is a patient."""
    identifiers = np.arange(rows) if patient is None else check_patients(patient, rows)
    known, code = np.unique(identifiers, return_inverse=True)
    checks.check_fraction(level, "level")
    checks.check_count(replicates, "replicates", least=2)
    few = min(checks.check_count(rank_replicates, "rank_replicates", least=0), replicates)
    if len(known) < 2:
        text = "intervals undefined (NaN): they need two patients or more"
        warnings.warn(text, UndefinedMetricWarning, stacklevel=3)
    return Resampling(torch.from_numpy(code), len(known), replicates, few, level, seed)


def replicate(scores: Scores, options: Options, sampling: Resampling) -> dict[str, np.ndarray]:
    """All metrics on all patients, and on every sample of them, in one pass over checked scores.

    Returns:
        Values by metric, the estimate first, each of shape (1 + replicates,), or
        (1 + rank_replicates,) for rank metrics; replicates are NaN if there is only one patient,
        who is in every sample.
    """
    parts = list(blocks(scores, options))
    estimates = as_numbers(reduce(parts, scores, options))
    means, bins = list(parts[0][0]), options.bins
    p_obs, p_bar = (torch.cat([part[i] for part in parts]).cpu() for i in (1, 2))
    y, weight = (None if given is None else given.cpu() for given in (scores.y, scores.weight))
    # The number of rows, the summands of the means, then for each kind of score its bins.
    rows = [torch.ones_like(p_obs)[:, None]]
    rows += [torch.cat([torch.stack(list(part[0].values()), dim=1) for part in parts]).cpu()]
    if y is not None:
        rows += [_by_bin(p, y, bins) for p in (p_obs, p_bar)]
    rows = torch.cat(rows, dim=1)
    if weight is not None:
        rows *= weight[:, None]
    sums = rows.new_zeros(sampling.patients, rows.shape[1]).index_add_(0, sampling.code, rows)
    del rows  # the largest by far
    groups = tie_groups(p_obs), tie_groups(p_bar)
    tau, chunks = kendall_of_samples(*groups), []
    for i, counts in enumerate(sampling.counts()):
        few = counts[: max(0, sampling.rank_replicates - i * _CHUNK)][:, sampling.code]
        metrics = _averages(means, sums, counts, bins)
        chunks.append(metrics | _orders(estimates, groups, y, few, weight, tau))
    values = {name: torch.cat([chunk[name] for chunk in chunks]).numpy() for name in estimates}
    known = 1 if len(sampling.code.unique()) > 1 else np.nan
    return {name: np.append(value, known * values[name]) for name, value in estimates.items()}


def _by_bin(p: Tensor, y: Tensor, bins: int) -> Tensor:
    """Whether each row is in each calibration bin, and its excess there, shape (N, 2 bins)."""
    member = torch.nn.functional.one_hot(bin_index(p, bins), bins)
    return torch.cat((member, member * (y.double() - p)[:, None]), dim=1)


def _averages(means: list[str], sums: Tensor, counts: Tensor, bins: int) -> dict[str, Tensor]:
    """Metrics that are means or follow from sums by bin, for each replicate, shape (B,)."""
    size, total, by_bin = (counts.double() @ sums).tensor_split((1, 1 + len(means)), dim=1)
    metrics = dict(zip(means, (total / size).unbind(dim=1), strict=True))
    if by_bin.shape[1]:
        sizes = by_bin.split(bins, dim=1)
        metrics["ECE_orig"], metrics["MCE_orig"] = bin_errors(*sizes[:2])
        metrics["ECE_marg"], metrics["MCE_marg"] = bin_errors(*sizes[2:])
    return metrics


def _orders(
    asked: Iterable[str], p: Sequence[Groups], y: _Weight, drawn: Tensor, weight: _Weight, tau: _Tau
) -> dict[str, Tensor]:
    """Rank metrics for each replicate, shape (B,), in which each row is ``drawn`` (B, N) times."""
    found = ranked(asked, *p, y, drawn.double() if weight is None else drawn * weight)
    if "tau_b" in asked:
        unknown = torch.full((len(drawn),), torch.nan, dtype=torch.float64)
        found["tau_b"] = tau(drawn) if weight is None and len(drawn) else unknown
    return found


def _frame(
    values: Mapping[str, np.ndarray], rule: Callable[[str], Rule], sampling: Resampling
) -> pd.DataFrame:
    """A row for each metric: the estimate and its interval."""
    rows = [(n, v[0], *interval(v, rule=rule(n), level=sampling.level)) for n, v in values.items()]
    frame = pd.DataFrame(rows, columns=["metric", "estimate", "low", "high"])
    patients = len(sampling.code.unique())
    frame.attrs["doubtful"] = [n for n in values if patients < rule(n).doubtful]
    return frame


def bootstrap_scores(
    scores: Scores, options: Options, sampling: Resampling, by: Sequence[object] | None = None
) -> pd.DataFrame:
    """Estimates and intervals of checked scores; see :func:`cfcore.bootstrap`."""
    if by is None:
        return _frame(replicate(scores, options, sampling), rule, sampling)
    frames, values = [], {}
    for group, rows in check_groups(by, len(scores.obs)).items():
        every = ((name, getattr(scores, name)) for name in ("obs", "cf", "y", "weight"))
        own = {name: v[rows] for name, v in every if v is not None}
        drawn = replace(sampling, code=sampling.code[rows])
        values[group] = replicate(replace(scores, **own), options, drawn)
        frames.append(_frame(values[group], rule, drawn).assign(group=group, rows=len(rows)))
    return _with_gaps(frames, values, sampling)


def check_groups(by: Sequence[object], rows: int, name: str = "by") -> dict[str, Tensor]:
    """The rows of each group, by its name; in the order of categories, if they have one."""
    if len(by) != rows:
        raise InputError(f"has {len(by)} rows, not {rows}", column=name)
    given = by if isinstance(by, pd.Categorical) else pd.Categorical(list(by))
    checks.refuse_rows(given.isna(), "the group is missing", name)
    given = given.remove_unused_categories()
    found = given.categories
    if len(set(map(str, found))) < len(found):
        raise InputError("two groups look the same, such as 1 and '1'", column=name)
    if not 2 <= len(found) <= _GROUPS:
        advice = "group by something that differs" if len(found) < 2 else "cut it into bands first"
        raise InputError(f"there are {len(found)} groups: {advice}", column=name)
    own = (np.flatnonzero(given.codes == code) for code in range(len(found)))
    return dict(zip(map(str, found), map(torch.from_numpy, own), strict=True))


def _with_gaps(
    frames: Sequence[pd.DataFrame], values: Mapping[str, Mapping], sampling: Resampling
) -> pd.DataFrame:
    """Groups below each other, then the gap of each metric: its worst group minus its best.

    Which groups these are is found on the same patients, so the gap of two groups that do not
    differ is somewhat too large.
    """
    gaps, ends = {}, {}
    for metric in frames[0].metric:
        known = [group for group in values if not np.isnan(values[group][metric][0])]
        order = sorted(known, key=lambda group, m=metric: values[group][m][0])
        order = order[::-1] if metric.startswith(_HIGHER) else order  # the best first
        best, worst = (order[0], order[-1]) if len(order) > 1 else (None, None)
        gap = np.full(2, np.nan) if best is None else values[worst][metric] - values[best][metric]
        gaps[metric], ends[metric] = gap, {"worst": worst, "best": best}
    gap = _frame(gaps, lambda name: rule(name).difference(), sampling).assign(group="gap")
    gap = gap.join(pd.DataFrame(ends).T, on="metric")
    frame = pd.concat([*frames, gap], ignore_index=True)
    frame.attrs["doubtful"] = sorted({n for one in frames for n in one.attrs["doubtful"]})
    return frame[["group", "rows", "metric", "estimate", "low", "high", "worst", "best"]]


def mean_intervals(
    parts: Mapping[object, Tensor], sampling: Resampling, weight: _Weight = None
) -> pd.DataFrame:
    """Means over rows of some numbers, each of shape (N,): ``name, estimate, low, high``.

    The weight of each row has shape (N,), or (N, C) if it differs between the numbers.
    """
    rows = torch.stack([part.double().cpu() for part in parts.values()], dim=1)
    often = torch.ones_like(rows) if weight is None else weight.cpu().view(len(rows), -1)
    rows = torch.cat((often.expand_as(rows), rows * often), dim=1)
    sums = rows.new_zeros(sampling.patients, rows.shape[1]).index_add_(0, sampling.code, rows)
    drawn = torch.cat([counts.double() @ sums for counts in sampling.counts()])
    alone = (sums[:, : len(parts)] > 0).sum(dim=0) < 2  # one patient has no interval
    drawn[:, : len(parts)][:, alone] = torch.nan
    totals = torch.cat((sums.sum(dim=0, keepdim=True), drawn))
    values = dict(zip(parts, torch.div(*totals.chunk(2, dim=1)[::-1]).T.numpy(), strict=True))
    return _frame(values, lambda _: Rule(), sampling).rename(columns={"metric": "name"})


def joined(found: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Frames of several labels as one, with a column ``label``; one without a name as it is."""
    if list(found) == [""]:
        return found[""]
    frame = pd.concat([one.assign(label=name) for name, one in found.items()], ignore_index=True)
    doubtful = {name for one in found.values() for name in one.attrs.get("doubtful", ())}
    frame.attrs["doubtful"] = sorted(doubtful)
    return frame[["label", *frame.columns.drop("label")]]


def bootstrap_all(scores: Mapping[str, Scores], asked: Sampled, by: Aside = None) -> pd.DataFrame:
    """Estimates and intervals of the checked scores of each label; see :func:`cfcore.bootstrap`."""
    options, sampling = prepare(scores, asked)
    return joined({n: bootstrap_scores(one, options, sampling, by) for n, one in scores.items()})


def compare_all(
    first: Mapping[str, Scores], second: Mapping[str, Scores], asked: Sampled
) -> pd.DataFrame:
    """Differences of two predictors, label by label; see :func:`cfcore.compare`."""
    if first.keys() != second.keys():
        names = ", ".join(first), ", ".join(second)
        raise InputError("first has the labels {}, second {}".format(*names))
    for name, one in first.items():
        check_same(one, second[name])
    known = any(one.patient is not None for one in first.values())
    how = prepare(first if known else second, asked)
    frames = {}
    for name, one in first.items():
        ours, theirs = (replicate(scores, *how) for scores in (one, second[name]))
        change = {metric: theirs[metric] - values for metric, values in ours.items()}
        frame = _frame(change, lambda metric: rule(metric).difference(), how[1])
        frame.insert(1, "first", [values[0] for values in ours.values()])
        frame.insert(2, "second", [values[0] for values in theirs.values()])
        frames[name] = frame
    return joined(frames)


def prepare(scores: Mapping[str, Scores], asked: Sampled) -> tuple[Options, Resampling]:
    """What is computed of scores, and how their patients are drawn, checked."""
    what = {name: value for name, value in asked.items() if name in Asked.__annotations__}
    how = {name: value for name, value in asked.items() if name not in what}
    options, one = check_options(what, *scores.values()), next(iter(scores.values()))
    return options, check_resampling(len(one.obs), one.patient, **how)


def bootstrap(
    p_obs: Numbers | pd.DataFrame,
    p_cf: Numbers | None = None,
    y: Numbers | None = None,
    *,
    q: Numbers | None = None,
    weight: Aside = None,
    labels: Sequence[str] | None = None,
    by: Aside = None,
    patient: Ids | str | None = None,
    **asked: Unpack[Sampled],
) -> pd.DataFrame:
    """Every metric with an interval, by resampling patients.

    The intervals say how much the numbers would change with other patients from the same
    population; not with another training run, and not with another generator. How often they hold
    the truth was simulated: ``frame.attrs["doubtful"]`` names the metrics of which fewer than 90 %
    of intervals did for some predictor with so few patients (calibration errors, and decisions that
    seldom change). Of one patient there are no intervals: they are NaN, with a warning.

    Args:
        p_obs, p_cf, y, q, weight, labels: As for :func:`cfcore.evaluate`.
        by: A group for each row, such as sex or site, or the column that holds it: every metric in
            each group, and its gap between the worst and the best.
        patient: A patient identifier for each row, if a patient can have several rows; all rows
            of a patient are drawn together. Of a frame the column, ``patient`` by default.
        **asked: ``threshold, alphas, bins, loss, metrics``, as for :func:`cfcore.evaluate`; how
            many samples to draw, ``replicates=1000``, and how many of them to use for rank metrics,
            which cost more, ``rank_replicates=200``; the coverage aimed at, ``level=0.95``; and
            the ``seed=0``.

    Returns:
        A frame with the columns ``metric, estimate, low, high``; before them ``label`` if there
        are several, and with ``by`` the ``group`` and the number of its ``rows``. The group ``gap``
        is the difference, and ``worst`` and ``best`` are the groups that it is between.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p_cf = rng.random((200, 4))
        >>> frame = bootstrap(p_cf[:, 0], p_cf, replicates=100, rank_replicates=20)
        >>> list(frame.columns), len(frame)
        (['metric', 'estimate', 'low', 'high'], 7)
    """
    given = gather(p_obs, p_cf, y, labels=labels, weight=weight, patient=patient, by=by)
    return bootstrap_all(check_parts(given, q), asked, given.by)


def compare(
    first: tuple[Numbers, Numbers] | pd.DataFrame,
    second: tuple[Numbers, Numbers] | pd.DataFrame,
    y: Numbers | None = None,
    *,
    q: Numbers | None = None,
    weight: Aside = None,
    patient: Ids | str | None = None,
    **asked: Unpack[Sampled],
) -> pd.DataFrame:
    """Two predictors on the same patients: how much larger is each metric of the second?

    Both are evaluated on the same resampled patients, so that what makes a patient difficult for
    both cancels, and the interval is of the difference itself.

    Args:
        first, second: ``(p_obs, p_cf)`` of each predictor, the same patients in the same order; or
            a frame of each, as for :func:`cfcore.evaluate`, whose labels must agree.
        y, q, weight: As for :func:`cfcore.evaluate`.
        patient: As for :func:`cfcore.bootstrap`.
        **asked: As for :func:`cfcore.bootstrap`.

    Returns:
        A frame with the columns ``metric, first, second, estimate, low, high``, where the last
        three are about second minus first; before them ``label`` if there are several;
        ``attrs["doubtful"]`` as for :func:`cfcore.bootstrap`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p = rng.random((50, 3))
        >>> frame = compare((p[:, 0], p), (p[:, 0], p), replicates=10, rank_replicates=2)
        >>> frame[["estimate", "low", "high"]].abs().to_numpy().max().item()
        0.0
    """
    parts = []
    for name, given in (("first", first), ("second", second)):
        pair = (given, None) if hasattr(given, "columns") else given
        if not isinstance(pair, tuple | list) or len(pair) != 2 or np.isscalar(pair[0]):
            usage = "compare((p_obs, p_cf), (other_obs, other_cf), y)"
            raise InputError(f"is not a pair of arrays; pass {usage}", column=name)
        parts.append(check_parts(gather(*pair, y, weight=weight, patient=patient), q))
    return compare_all(*parts, asked)


def check_same(first: Scores, second: Scores) -> None:
    """Refuse two predictors that were not asked about the same rows in the same worlds."""
    if first.draws != second.draws:
        raise InputError("only one of the predictions is on Monte Carlo draws")
    if len(first.obs) != len(second.obs):
        raise InputError(f"the two are about {len(first.obs)} and {len(second.obs)} rows")
    for row, (a, b) in enumerate(zip(first.patient or (), second.patient or (), strict=False)):
        if a != b:
            raise InputError(f"the two are about {a!r} and {b!r}", column="patient", row=row)
    for name, what in (("y", "labels"), ("weight", "weights"), ("q", "probabilities of worlds")):
        a, b = getattr(first, name), getattr(second, name)
        if name == "q" and len(a) != len(b):
            raise InputError(f"the two have {len(a)} and {len(b)} worlds", column=name)
        if (a is None) != (b is None):
            raise InputError(f"the two differ: not both have these {what}", column=name)
        if a is not None and bool((differ := (a - b).abs() > 1e-9).any()):
            row = None if name == "q" else int(differ.int().argmax())
            raise InputError(f"the two disagree about the {what}", column=name, row=row)
