"""Metrics on resampled patients, without evaluating them again.

Most metrics are means over patients, so that all replicates of them are a product of two matrices:
how often each patient was drawn (B, P), and what each patient contributes (P, C). Calibration
errors follow from sums by bin, which are such contributions too. Ranks follow from the counts
without sorting again; only Kendall's coefficient is recomputed from nothing.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cfcore.checks import InputError, Numbers, UndefinedMetricWarning, check_count, check_fraction
from cfcore.evaluation import as_numbers, check_options, check_scores
from cfcore.intervals import Rule, interval, rule
from cfcore.metrics import ranking
from cfcore.metrics.calibration import bin_errors, bin_index
from cfcore.metrics.loss import Loss
from cfcore.metrics.summary import Options, Scores, blocks, reduce

if TYPE_CHECKING:
    import pandas as pd

_Ids = Sequence[int] | Sequence[str]
_CHUNK = 50  # replicates at a time


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


def check_patients(patient: _Ids, rows: int) -> _Ids:
    """Identifiers as a list: all whole numbers or all text, one for each row.

    Example:
        >>> check_patients(np.array([3, 3, 5]), rows=3)
        [3, 3, 5]
        >>> check_patients(["a", None], rows=2)
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: patient[1]: None is neither text nor a whole number
    """
    if len(patient) != rows:
        raise InputError(f"has {len(patient)} rows, not {rows}", column="patient")
    values = patient.tolist() if hasattr(patient, "tolist") else list(patient)
    kind = str if values and isinstance(values[0], str) else int
    for row, value in enumerate(values):
        usable = isinstance(value, str | int) and not isinstance(value, bool)
        if not usable or not isinstance(value, kind):
            other = f"of another type than {values[0]!r}"
            problem = f"{value!r} is {other if usable else 'neither text nor a whole number'}"
            raise InputError(problem, column="patient", row=row)
    return values


def check_resampling(
    rows: int, patient: _Ids | None, replicates: int, rank_replicates: int, level: float, seed: int
) -> Resampling:
    """Check how patients are to be resampled; without identifiers every row is a patient."""
    identifiers = np.arange(rows) if patient is None else check_patients(patient, rows)
    known, code = np.unique(identifiers, return_inverse=True)
    check_fraction(level, "level")
    check_count(replicates, "replicates", least=2)
    few = min(check_count(rank_replicates, "rank_replicates", least=0), replicates)
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
    # The number of rows, the summands of the means, then for each kind of score its bins.
    rows = [torch.ones_like(p_obs)[:, None]]
    rows += [torch.cat([torch.stack(list(part[0].values()), dim=1) for part in parts]).cpu()]
    if scores.y is not None:
        rows += [_by_bin(p, scores.y.cpu(), bins) for p in (p_obs, p_bar)]
    rows = torch.cat(rows, dim=1)
    sums = rows.new_zeros(sampling.patients, rows.shape[1]).index_add_(0, sampling.code, rows)
    del rows  # the largest by far
    groups = ranking.tie_groups(p_obs), ranking.tie_groups(p_bar)
    chunks = []
    for i, counts in enumerate(sampling.counts()):
        ranked = counts[: max(0, sampling.rank_replicates - i * _CHUNK)][:, sampling.code]
        metrics = _averages(means, sums, counts, bins)
        chunks.append(metrics | _ranks(*groups, ranked))
    values = {name: torch.cat([chunk[name] for chunk in chunks]).numpy() for name in estimates}
    known = 1 if sampling.patients > 1 else np.nan
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


def _ranks(p_obs: ranking.Groups, p_bar: ranking.Groups, weight: Tensor) -> dict[str, Tensor]:
    """Rank metrics for each replicate, shape (B,), in which each row is ``weight`` (B, N) times."""
    samples = [torch.repeat_interleave(times) for times in weight]
    tau = [ranking.kendall(p_obs.take(rows), p_bar.take(rows)).item() for rows in samples]
    weight = weight.double()
    return {
        "S_rank": ranking.rank_stability(p_obs, p_bar, weight),
        "tau_b": torch.tensor(tau, dtype=torch.float64),
        "abs_rank_change": ranking.mean_absolute_rank_change(p_obs, p_bar, weight),
    }


def _frame(
    values: Mapping[str, np.ndarray], rule: Callable[[str], Rule], sampling: Resampling
) -> "pd.DataFrame":
    """A row for each metric: the estimate and its interval."""
    import pandas as pd

    ends = {n: interval(v, rule=rule(n), level=sampling.level) for n, v in values.items()}
    rows = [(name, values[name][0], *pair) for name, pair in ends.items()]
    frame = pd.DataFrame(rows, columns=["metric", "estimate", "low", "high"])
    frame.attrs["doubtful"] = [n for n in values if sampling.patients < rule(n).doubtful]
    return frame


def bootstrap_scores(scores: Scores, options: Options, sampling: Resampling) -> "pd.DataFrame":
    """Estimates and intervals of checked scores; see :func:`cfcore.bootstrap`."""
    return _frame(replicate(scores, options, sampling), rule, sampling)


def compare_scores(
    first: Scores, second: Scores, options: Options, sampling: Resampling
) -> "pd.DataFrame":
    """Differences of the checked scores of two predictors; see :func:`cfcore.compare`."""
    ours, theirs = (replicate(scores, options, sampling) for scores in (first, second))
    change = {name: theirs[name] - values for name, values in ours.items()}
    frame = _frame(change, lambda name: rule(name).difference(), sampling)
    frame.insert(1, "first", [values[0] for values in ours.values()])
    frame.insert(2, "second", [values[0] for values in theirs.values()])
    return frame


def bootstrap(
    p_obs: Numbers,
    p_cf: Numbers,
    y: Numbers | None = None,
    *,
    q: Numbers | None = None,
    threshold: float = 0.5,
    alphas: Sequence[float] = (0.5, 0.25, 0.1),
    bins: int = 10,
    loss: str | Loss = "bce",
    patient: _Ids | None = None,
    replicates: int = 1000,
    rank_replicates: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> "pd.DataFrame":
    """Every metric with an interval, by resampling patients.

    The intervals say how much the numbers would change with other patients from the same
    population; not with another training run, and not with another generator. How often they hold
    the truth was simulated: ``frame.attrs["doubtful"]`` names the metrics of which fewer than 90 %
    of intervals did for some predictor with so few patients (calibration errors, and decisions that
    seldom change). Of one patient there are no intervals: they are NaN, with a warning.

    Args:
        p_obs, p_cf, y, q, threshold, alphas, bins, loss: As for :func:`cfcore.evaluate`.
        patient: A patient identifier for each row, if a patient can have several rows; all rows
            of a patient are drawn together.
        replicates: How many samples to draw.
        rank_replicates: How many of them to use for rank metrics, which cost more.
        level: The coverage aimed at.

    Returns:
        A frame with the columns ``metric, estimate, low, high``.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p_cf = rng.random((200, 4))
        >>> frame = bootstrap(p_cf[:, 0], p_cf, replicates=100, rank_replicates=20)
        >>> list(frame.columns), len(frame)
        (['metric', 'estimate', 'low', 'high'], 7)
    """
    scores, options = check_scores(p_obs, p_cf, y, q), check_options(threshold, alphas, bins, loss)
    sampling = check_resampling(len(scores.obs), patient, replicates, rank_replicates, level, seed)
    return bootstrap_scores(scores, options, sampling)


def compare(
    first: tuple[Numbers, Numbers],
    second: tuple[Numbers, Numbers],
    y: Numbers | None = None,
    *,
    q: Numbers | None = None,
    threshold: float = 0.5,
    alphas: Sequence[float] = (0.5, 0.25, 0.1),
    bins: int = 10,
    loss: str | Loss = "bce",
    patient: _Ids | None = None,
    replicates: int = 1000,
    rank_replicates: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> "pd.DataFrame":
    """Two predictors on the same patients: how much larger is each metric of the second?

    Both are evaluated on the same resampled patients, so that what makes a patient difficult for
    both cancels, and the interval is of the difference itself.

    Args:
        first, second: ``(p_obs, p_cf)`` of each predictor, the same patients in the same order.
        y, q, threshold, alphas, bins, loss: As for :func:`cfcore.evaluate`.
        patient, replicates, rank_replicates, level, seed: As for :func:`cfcore.bootstrap`.

    Returns:
        A frame with the columns ``metric, first, second, estimate, low, high``, where the last
        three are about second minus first; ``attrs["doubtful"]`` as for :func:`cfcore.bootstrap`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p = rng.random((50, 3))
        >>> frame = compare((p[:, 0], p), (p[:, 0], p), replicates=10, rank_replicates=2)
        >>> frame[["estimate", "low", "high"]].abs().to_numpy().max().item()
        0.0
    """
    for name, pair in (("first", first), ("second", second)):
        if not isinstance(pair, tuple | list) or len(pair) != 2 or np.isscalar(pair[0]):
            usage = "compare((p_obs, p_cf), (other_obs, other_cf), y)"
            raise InputError(f"is not a pair of arrays; pass {usage}", column=name)
    both = [check_scores(*pair, y, q) for pair in (first, second)]
    options = check_options(threshold, alphas, bins, loss)
    rows, others = (len(scores.obs) for scores in both)
    if others != rows:
        raise InputError(f"has {others} rows, but first has {rows}", column="second")
    sampling = check_resampling(rows, patient, replicates, rank_replicates, level, seed)
    return compare_scores(*both, options, sampling)
