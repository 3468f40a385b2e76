"""Metrics on resampled patients, without evaluating them again.

Most metrics are means over patients of something that does not change when patients are
resampled. So that something is computed once, and all replicates of all metrics are a product of
two matrices: how often each patient was drawn (B, P), and what each patient contributes (P, C).
Calibration errors follow from sums by bin, which are such contributions too. Ranks do change with
the sample, but their order does not: they are recomputed from the counts without sorting again.
Only Kendall's coefficient is recomputed from nothing.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cfcore.checks import InputError, check_count, check_fraction
from cfcore.evaluate import Table, UndefinedMetricWarning
from cfcore.metrics.calibration import bin_index
from cfcore.metrics.ranking import Groups, kendall, tie_groups
from cfcore.metrics.summary import Question, blocks

CHUNK = 50  # replicates at a time


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


@dataclass(frozen=True)
class Contributions:
    """What each patient contributes to each metric.

    Attributes:
        means: Names of the metrics that are means over rows.
        sums: Sums over the rows of a patient: the number of rows, the summands of ``means``, then
            for each kind of score the size and the excess of each bin, shape (P, C).
        observed: Observed scores, shape (N,).
        marginal: Marginalised scores, shape (N,).
    """

    means: list[str]
    sums: Tensor
    observed: Tensor
    marginal: Tensor


def contributions(table: Table, question: Question, sampling: Resampling) -> Contributions:
    """Compute every patient's contributions, in one pass over the scores."""
    parts = list(blocks(table.obs, table.cf, table.q, table.y, question, table.read))
    means = list(parts[0][0])
    rows = torch.cat([torch.stack(list(part.values()), dim=1) for part, *_ in parts]).cpu()
    p_obs, p_bar = (torch.cat(scores).cpu() for scores in list(zip(*parts, strict=True))[1:])

    columns = [torch.ones(len(rows), 1, dtype=torch.float64), rows]
    if table.y is not None:
        for p in (p_obs, p_bar):
            member = torch.nn.functional.one_hot(bin_index(p, question.bins), question.bins)
            columns += [member, member * (table.y.cpu().double() - p)[:, None]]
    rows = torch.cat(columns, dim=1)
    sums = rows.new_zeros(sampling.patients, rows.shape[1]).index_add_(0, sampling.code, rows)
    return Contributions(means, sums, p_obs, p_bar)


def mean_replicates(given: Contributions, counts: Tensor, bins: int) -> dict[str, Tensor]:
    """Metrics that are means or follow from sums by bin, for each replicate, shape (B,)."""
    size, means, by_bin = (counts.double() @ given.sums).tensor_split((1, 1 + len(given.means)), 1)
    metrics = dict(zip(given.means, (means / size).unbind(dim=1), strict=True))
    if by_bin.shape[1]:
        sizes = by_bin.split(bins, dim=1)
        for which, members, excess in (("orig", *sizes[:2]), ("marg", *sizes[2:])):
            metrics[f"ECE_{which}"] = excess.abs().sum(dim=1) / size[:, 0]
            metrics[f"MCE_{which}"] = (excess.abs() / members.clamp(min=1)).amax(dim=1)
    return metrics


def weighted_ranks(groups: Groups, weight: Tensor) -> Tensor:
    """Average ranks in samples that hold each row ``weight`` times, shape (B, N).

    Example:
        >>> groups = tie_groups(torch.tensor([0.3, 0.1]))
        >>> weighted_ranks(groups, torch.tensor([[1.0, 1.0], [1.0, 3.0]])).tolist()
        [[2.0, 1.0], [4.0, 2.0]]
    """
    index = groups.index.expand_as(weight)
    size = torch.zeros_like(weight).scatter_add_(1, index, weight)
    return (size.cumsum(dim=1) - (size - 1) / 2).gather(1, index)


def weighted_correlation(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Pearson correlation in samples that hold each row ``weight`` times, shape (B,)."""
    total = weight.sum(dim=1, keepdim=True)
    x = x - (weight * x).sum(dim=1, keepdim=True) / total
    y = y - (weight * y).sum(dim=1, keepdim=True) / total
    xy, xx, yy = ((weight * a * b).sum(dim=1) for a, b in ((x, y), (x, x), (y, y)))
    return xy / (xx * yy).sqrt()


def rank_replicates(given: Contributions, counts: Tensor, code: Tensor) -> dict[str, Tensor]:
    """Rank metrics for each replicate, shape (B,)."""
    weight = counts[:, code]
    samples = [torch.repeat_interleave(times) for times in weight]
    tau = [kendall(given.observed[rows], given.marginal[rows]).item() for rows in samples]

    weight = weight.double()
    ranks = [weighted_ranks(tie_groups(p), weight) for p in (given.observed, given.marginal)]
    change = (weight * (ranks[0] - ranks[1]).abs()).sum(dim=1) / weight.sum(dim=1)
    return {
        "S_rank": weighted_correlation(*ranks, weight),
        "tau_b": torch.tensor(tau, dtype=torch.float64),
        "abs_rank_change": change,
    }


def replicate(table: Table, question: Question, sampling: Resampling) -> dict[str, np.ndarray]:
    """All metrics for all replicates.

    Args:
        table: Checked scores.
        question: What is to be computed.
        sampling: How patients are resampled.

    Returns:
        Values by metric, each of shape (replicates,), or (rank_replicates,) for rank metrics; NaN
        if there is only one patient, who is in every sample.
    """
    given = contributions(table, question, sampling)
    chunks = []
    for i, counts in enumerate(sampling.counts()):
        metrics = mean_replicates(given, counts, question.bins)
        ranked = max(0, min(len(counts), sampling.rank_replicates - i * CHUNK))
        chunks.append(metrics | rank_replicates(given, counts[:ranked], sampling.code))
    values = {name: torch.cat([chunk[name] for chunk in chunks]).numpy() for name in chunks[0]}
    return values if sampling.patients > 1 else {name: v * np.nan for name, v in values.items()}
