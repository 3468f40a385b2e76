"""Metrics on resampled patients, without evaluating them again.

Most metrics are means over patients of something that does not change when patients are
resampled. So that something is computed once, and all replicates of all metrics are a product of
two matrices: how often each patient was drawn (B, P), and what each patient contributes (P, C).
Calibration errors follow from sums by bin, which are such contributions too. Ranks do change with
the sample, but their order does not: they are recomputed from the counts without sorting again.
Only Kendall's coefficient is recomputed from nothing.
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
from cfcore.metrics.calibration import bin_errors, bin_index
from cfcore.metrics.loss import Loss
from cfcore.metrics.ranking import (
    Groups,
    kendall,
    mean_absolute_rank_change,
    rank_stability,
    tie_groups,
)
from cfcore.metrics.summary import Block, Options, Scores, blocks, reduce

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 50  # replicates at a time
USAGE = "compare((p_obs, p_cf), (other_obs, other_cf), y)"


@dataclass(frozen=True)
class Resampling:
    """How patients are resampled.

    Attributes:
        code: The number of the patient of each row, shape (N,).
        patients: How many patients there are.
        replicates: How many samples of patients are drawn.
        rank_replicates: How many of them are used for rank metrics.
        level: The coverage that the intervals aim at.
        seed: The seed of the draws.
    """

    code: Tensor
    patients: int
    replicates: int
    rank_replicates: int
    level: float
    seed: int

    def counts(self) -> Iterator[Tensor]:
        """Draw as many patients as there are, with replacement, again and again.

        Yields:
            How often each patient was drawn, shape (up to 50, P).
        """
        rng = np.random.default_rng(self.seed)
        for start in range(0, self.replicates, CHUNK):
            size = min(CHUNK, self.replicates - start)
            drawn = rng.integers(self.patients, size=(size, self.patients))
            drawn += np.arange(size)[:, None] * self.patients
            counts = np.bincount(drawn.ravel(), minlength=size * self.patients)
            yield torch.from_numpy(counts).view(size, self.patients)


def check_patients(patient: Sequence[int] | Sequence[str], rows: int) -> list[int] | list[str]:
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
        if isinstance(value, bool) or not isinstance(value, str | int):
            problem = f"{value!r} is neither text nor a whole number"
            raise InputError(problem, column="patient", row=row)
        if not isinstance(value, kind):
            problem = f"{value!r} is of another type than {values[0]!r}"
            raise InputError(problem, column="patient", row=row)
    return values


def check_resampling(
    rows: int,
    patient: Sequence[int] | Sequence[str] | None,
    replicates: int,
    rank_replicates: int,
    level: float,
    seed: int,
) -> Resampling:
    """Check how patients are to be resampled; without identifiers every row is a patient."""
    if patient is None:
        code, patients = torch.arange(rows), rows
    else:
        _, inverse = np.unique(check_patients(patient, rows), return_inverse=True)
        code, patients = torch.from_numpy(inverse), int(inverse.max()) + 1
    check_fraction(level, "level")
    check_count(replicates, "replicates", least=2)
    check_count(rank_replicates, "rank_replicates", least=0)
    if patients < 2:
        warnings.warn(
            "intervals undefined (NaN): they need two patients or more",
            UndefinedMetricWarning,
            stacklevel=3,
        )
    return Resampling(code, patients, replicates, min(rank_replicates, replicates), level, seed)


def replicate(scores: Scores, options: Options, sampling: Resampling) -> dict[str, np.ndarray]:
    """All metrics on all patients, and on every sample of them, in one pass over checked scores.

    Returns:
        Values by metric, the estimate first, each of shape (1 + replicates,), or
        (1 + rank_replicates,) for rank metrics; replicates are NaN if there is only one patient,
        who is in every sample.
    """
    parts = list(blocks(scores, options))
    estimates = as_numbers(reduce(parts, scores.y, options))
    p_obs, p_bar = (torch.cat([part[i] for part in parts]).cpu() for i in (1, 2))
    sums = _sums(parts, p_obs, p_bar, scores.y, options.bins, sampling)
    groups = tie_groups(p_obs), tie_groups(p_bar)
    chunks = []
    for i, counts in enumerate(sampling.counts()):
        ranked = max(0, min(len(counts), sampling.rank_replicates - i * CHUNK))
        metrics = _mean_replicates(list(parts[0][0]), sums, counts, options.bins)
        chunks.append(metrics | _rank_replicates(*groups, counts[:ranked][:, sampling.code]))
    values = {name: torch.cat([chunk[name] for chunk in chunks]).numpy() for name in estimates}
    known = 1 if sampling.patients > 1 else np.nan
    return {name: np.append(value, known * values[name]) for name, value in estimates.items()}


def _sums(
    parts: Sequence[Block],
    p_obs: Tensor,
    p_bar: Tensor,
    y: Tensor | None,
    bins: int,
    sampling: Resampling,
) -> Tensor:
    """Sums over the rows of each patient, shape (P, C).

    The columns are the number of rows, the summands of the metrics that are means, then for each
    kind of score the size and the excess of each calibration bin.
    """
    rows = torch.cat([torch.stack(list(part[0].values()), dim=1) for part in parts]).cpu()
    columns = [torch.ones(len(rows), 1, dtype=torch.float64), rows]
    for p in (p_obs, p_bar) if y is not None else ():
        member = torch.nn.functional.one_hot(bin_index(p, bins), bins)
        columns += [member, member * (y.cpu().double() - p)[:, None]]
    rows = torch.cat(columns, dim=1)
    return rows.new_zeros(sampling.patients, rows.shape[1]).index_add_(0, sampling.code, rows)


def _mean_replicates(
    means: Sequence[str], sums: Tensor, counts: Tensor, bins: int
) -> dict[str, Tensor]:
    """Metrics that are means or follow from sums by bin, for each replicate, shape (B,)."""
    size, total, by_bin = (counts.double() @ sums).tensor_split((1, 1 + len(means)), dim=1)
    metrics = dict(zip(means, (total / size).unbind(dim=1), strict=True))
    if by_bin.shape[1]:
        sizes = by_bin.split(bins, dim=1)
        metrics["ECE_orig"], metrics["MCE_orig"] = bin_errors(*sizes[:2])
        metrics["ECE_marg"], metrics["MCE_marg"] = bin_errors(*sizes[2:])
    return metrics


def _rank_replicates(p_obs: Groups, p_bar: Groups, weight: Tensor) -> dict[str, Tensor]:
    """Rank metrics for each replicate, shape (B,), in which each row is ``weight`` (B, N) times."""
    samples = [torch.repeat_interleave(times) for times in weight]
    tau = [kendall(p_obs.take(rows), p_bar.take(rows)).item() for rows in samples]
    weight = weight.double()
    return {
        "S_rank": rank_stability(p_obs, p_bar, weight),
        "tau_b": torch.tensor(tau, dtype=torch.float64),
        "abs_rank_change": mean_absolute_rank_change(p_obs, p_bar, weight),
    }


def _frame(
    columns: Mapping[str, np.ndarray],
    values: Mapping[str, np.ndarray],
    rule: Callable[[str], Rule],
    sampling: Resampling,
) -> "pd.DataFrame":
    """A row for each metric: further columns, the estimate and its interval."""
    import pandas as pd

    ends = [interval(v, rule=rule(name), level=sampling.level) for name, v in values.items()]
    estimates = [v[0] for v in values.values()]
    low, high = zip(*ends, strict=True)
    rest = {"estimate": estimates, "low": low, "high": high}
    frame = pd.DataFrame({"metric": list(values), **columns, **rest})
    frame.attrs["doubtful"] = [n for n in values if sampling.patients < rule(n).doubtful]
    return frame


def bootstrap_scores(scores: Scores, options: Options, sampling: Resampling) -> "pd.DataFrame":
    """Estimates and intervals of checked scores; see :func:`bootstrap`."""
    return _frame({}, replicate(scores, options, sampling), rule, sampling)


def compare_scores(
    first: Scores, second: Scores, options: Options, sampling: Resampling
) -> "pd.DataFrame":
    """Differences of the checked scores of two predictors of the same rows; see :func:`compare`."""
    both = [replicate(scores, options, sampling) for scores in (first, second)]
    change = {name: both[1][name] - values for name, values in both[0].items()}
    columns = {
        of: [values[0] for values in found.values()]
        for of, found in zip(("first", "second"), both, strict=True)
    }
    return _frame(columns, change, lambda name: rule(name).difference(), sampling)


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
    patient: Sequence[int] | Sequence[str] | None = None,
    replicates: int = 1000,
    rank_replicates: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> "pd.DataFrame":
    """Every metric with an interval, by resampling patients.

    The intervals say how much the numbers would change with other patients from the same
    population; not with another training run, and not with another generator. How often they hold
    the truth was simulated (``data/results/coverage.csv``). ``frame.attrs["doubtful"]`` names the
    metrics of which fewer than 90 % of intervals did for some predictor with so few patients:
    calibration errors, and decisions that seldom change; reports mark them. Of one patient there
    are no intervals: they are NaN, with a warning.

    Args:
        p_obs, p_cf, y, q, threshold, alphas, bins, loss: As for :func:`cfcore.evaluate`.
        patient: A patient identifier for each row, if a patient can have several rows; all rows
            of a patient are drawn together.
        replicates: How many samples to draw.
        rank_replicates: How many of them to use for rank metrics, which cost more.
        level: The coverage aimed at.
        seed: The seed of the draws.

    Returns:
        A frame with the columns ``metric, estimate, low, high``.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p_cf = rng.random((200, 4))
        >>> frame = bootstrap(p_cf[:, 0], p_cf, replicates=100, rank_replicates=20)
        >>> list(frame.columns), len(frame)
        (['metric', 'estimate', 'low', 'high'], 7)
        >>> bool((frame.low <= frame.high).all())
        True
    """
    scores = check_scores(p_obs, p_cf, y, q)
    options = check_options(threshold, alphas, bins, loss)
    rows = scores.obs.shape[0]
    sampling = check_resampling(rows, patient, replicates, rank_replicates, level, seed)
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
    patient: Sequence[int] | Sequence[str] | None = None,
    replicates: int = 1000,
    rank_replicates: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> "pd.DataFrame":
    """Two predictors on the same patients: how much larger is each metric of the second?

    Both are evaluated on the same resampled patients, so that what makes a patient difficult for
    both cancels, and the interval is of the difference itself.

    Args:
        first: ``(p_obs, p_cf)`` of the first predictor.
        second: ``(p_obs, p_cf)`` of the second predictor, the same patients in the same order.
        y, q, threshold, alphas, bins, loss: As for :func:`cfcore.evaluate`.
        patient, replicates, rank_replicates, level, seed: As for :func:`bootstrap`.

    Returns:
        A frame with the columns ``metric, first, second, estimate, low, high``, where the last
        three are about second minus first; ``attrs["doubtful"]`` as for :func:`bootstrap`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p = rng.random((50, 3))
        >>> frame = compare((p[:, 0], p), (p[:, 0], p), replicates=10, rank_replicates=2)
        >>> frame[["estimate", "low", "high"]].abs().to_numpy().max().item()
        0.0
    """
    for name, pair in (("first", first), ("second", second)):
        if not isinstance(pair, tuple | list) or len(pair) != 2 or np.isscalar(pair[0]):
            raise InputError(f"is not a pair of arrays; pass {USAGE}", column=name)
    both = [check_scores(*pair, y, q) for pair in (first, second)]
    options = check_options(threshold, alphas, bins, loss)
    rows, others = (scores.obs.shape[0] for scores in both)
    if others != rows:
        raise InputError(f"has {others} rows, but first has {rows}", column="second")
    sampling = check_resampling(rows, patient, replicates, rank_replicates, level, seed)
    return compare_scores(*both, options, sampling)
