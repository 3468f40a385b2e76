r"""Every statistic of every predictor on one test set, with replicates.

A claim is about several predictors at once: do risks rise along a chain, do two columns correlate?
So the patients are resampled once, the same ones for all predictors, and each statistic is kept for
each replicate; a claim is then computed in every replicate from its columns alone. Trainings are
left out one at a time (:meth:`Study.without`), which says how much they vary
(:mod:`cfcore.intervals`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cfbook.study.runs import PredictorId, Run, predictions
from cfchest.cohorts import AGE_GROUPS, age_group
from cfchest.data import RACES
from cfcore.checks import InputError
from cfcore.evaluation import check_options
from cfcore.intervals import Rule, interval, means_without_each, rule
from cfcore.interventions import Grid
from cfcore.metrics.calibration import bin_index
from cfcore.metrics.discrimination import auc
from cfcore.metrics.stability import attribute_variance
from cfcore.predictions import Predictions
from cfcore.resampling import Resampling, check_resampling, replicate

BINS = 10
SMALLEST = 10  # members of a subgroup whose mean is estimated
KEYS = ["family", "strength", "seed"]


@dataclass(frozen=True)
class Study:
    """Statistics of several predictors on the same patients.

    Attributes:
        members: The predictors, in order.
        values: By statistic, shape (predictors, 1 + B): the estimate, then its B replicates (NaN
            beyond those that were computed, since ranks cost more).
        patients: How many patients, N; 0 if that is not known.
        worlds: How many interventions, K; 0 if that is not known.
    """

    members: tuple[PredictorId, ...]
    values: Mapping[str, np.ndarray]
    patients: int = 0
    worlds: int = 0

    @property
    def seeds(self) -> list[int]:
        """The seeds of the trainings."""
        return sorted({member.seed for member in self.members})

    def column(self, statistic: str, family: str, strength: float = 0.0) -> np.ndarray:
        """A statistic of one kind of predictor, shape (seeds, 1 + B)."""
        rows = [self.members.index(PredictorId(family, strength, seed)) for seed in self.seeds]
        return self.values[statistic][rows]

    def without(self, seed: int) -> "Study":
        """The estimates of all other trainings, without replicates, which nobody needs of them."""
        rows = [i for i, member in enumerate(self.members) if member.seed != seed]
        values = {name: every[rows, :1] for name, every in self.values.items()}
        return replace(self, members=tuple(self.members[i] for i in rows), values=values)

    def estimate(
        self, statistic: Callable[["Study"], np.ndarray], *, rule: Rule, level: float = 0.95
    ) -> tuple[float, float, float]:
        """A statistic of several predictors, with its interval over patients and trainings.

        Args:
            statistic: Computes it from the trainings of a study, shape (1 + B,).
            rule: How its interval is made.
            level: The coverage aimed at.

        Returns:
            The estimate, the lower and the upper end.
        """
        values, seeds = statistic(self), self.seeds
        left_out = [statistic(self.without(seed))[0] for seed in seeds] if len(seeds) > 1 else []
        return float(values[0]), *interval(values, left_out, rule=rule, level=level)

    def frame(self) -> pd.DataFrame:
        """The estimates, tidy: ``family, strength, seed, metric, estimate``."""
        rows = [
            (member.family, member.strength, member.seed, name, values[i, 0])
            for name, values in self.values.items()
            for i, member in enumerate(self.members)
        ]
        return pd.DataFrame(rows, columns=[*KEYS, "metric", "estimate"])

    def summary(self, *, level: float = 0.95) -> pd.DataFrame:
        """Mean over trainings, their spread, and an interval, for each kind of predictor.

        Returns:
            Columns ``family, strength, metric, mean, spread, low, high, doubtful``: the spread is
            the standard deviation between trainings, unknown (NaN) of one; the interval is that of
            the mean by :func:`cfcore.intervals.interval`, of one training over patients alone; it
            is doubtful if it holds the truth too seldom with so few patients.
        """
        kinds = dict.fromkeys((member.family, member.strength) for member in self.members)
        rows = []
        for name in self.values:
            for family, strength in kinds:
                values = self.column(name, family, strength)
                spread = values[:, 0].std(ddof=1) if len(values) > 1 else np.nan
                left_out = means_without_each(values[:, 0])
                ends = interval(values.mean(axis=0), left_out, rule=rule(name), level=level)
                doubtful = self.patients < rule(name).doubtful
                mean = values[:, 0].mean()
                rows.append((family, strength, name, mean, spread, *ends, doubtful))
        names = ("family", "strength", "metric", "mean", "spread", "low", "high", "doubtful")
        return pd.DataFrame(rows, columns=names)


def study(
    given: Mapping[PredictorId, Predictions],
    *,
    replicates: int = 1000,
    rank_replicates: int = 200,
    seed: int = 0,
) -> Study:
    """Evaluate several predictors on the same resampled patients.

    Beside the metrics of :func:`cfcore.evaluate`: ``S_var_sex`` and ``S_var_age``, due to one
    attribute alone; ``AUC``, overall, ``AUC_men`` and ``AUC_women``, and ``gap_sex``, ``gap_race``
    and ``gap_age``, its worst gap between groups; ``score_sex`` and ``score_age``, how far the mean
    scores of women and men, of old and young, are apart within a label; ``ECE_q``, the calibration
    error over all patients in all worlds; ``variance_ratio``, of the counterfactual to the observed
    mean of a subgroup; ``null_flip`` and ``null_abs``, what the null intervention alone does.

    Args:
        given: What each predictor says, of the same patients on the same grid.
        replicates: How often to resample the patients.
        rank_replicates: How many of these to use for the rank metrics.
        seed: The seed of the resampling.

    Returns:
        The study.
    """
    members = tuple(given)
    first = given[members[0]]
    sampling = check_resampling(
        len(first), first.patient, replicates, rank_replicates, level=0.95, seed=seed
    )
    weight = torch.cat(list(sampling.counts()))[:, sampling.code].double()
    weight = torch.cat((torch.ones_like(weight[:1]), weight))  # (1 + B, N)
    few, groups = weight[: 1 + sampling.rank_replicates], strata(first.parents)
    every = [
        report(p, sampling)
        | discrimination(p, few, groups)
        | subgroups(p, few)
        | responses(p, weight)
        for p in given.values()
    ]
    stacked = {
        name: np.stack([padded(values[name], replicates) for values in every]) for name in every[0]
    }
    return Study(members, stacked, len(first), first.logit_cf.shape[1])


def padded(values: np.ndarray, replicates: int) -> np.ndarray:
    """An estimate and some of its replicates, with NaN for the others, shape (1 + replicates,)."""
    return np.pad(values, (0, 1 + replicates - len(values)), constant_values=np.nan)


def study_run(
    run: Run, *, folder: str | Path | None = None, q: str = "uniform", replicates: int = 1000
) -> Study:
    """Study the predictions of a run, which are read if they are there and computed if not.

    Args:
        run: The run.
        folder: Where predictions are looked for first, by default in the data of the project.
        q: ``"uniform"``, or ``"empirical"``: each world counts as many patients are nearest to it.
        replicates: How often to resample the patients.

    Returns:
        The study.
    """
    found = predictions(run, folder=Path(folder) if folder else None)
    if q not in ("uniform", "empirical"):
        raise InputError(f"q is uniform or empirical, not {q!r}")
    return study(found if q == "uniform" else empirical(found), replicates=replicates)


def empirical(found: Mapping[PredictorId, Predictions]) -> dict[PredictorId, Predictions]:
    """The same predictions, each world weighted by how many patients are nearest to it."""
    first = next(iter(found.values()))
    grid = Grid(first.grid).empirical({name: first.parents[name] for name in first.grid})
    return {member: given.reweight(grid.q) for member, given in found.items()}


def report(given: Predictions, sampling: Resampling) -> dict[str, np.ndarray]:
    """The metrics of the paper, estimate and replicates, each of shape (1 + B,)."""
    return replicate(given.scores, check_options(correction=int(given.draws)), sampling)


def strata(parents: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
    """Who is in each group of each attribute.

    Args:
        parents: The recorded parents, each of shape (N,).

    Returns:
        By attribute, for each group the rows of its members.
    """
    age = torch.tensor(age_group(pd.Series(parents["age"].numpy())).to_numpy())
    codes = {"sex": (parents["sex"], 2), "race": (parents["race"], len(RACES))}
    codes["age"] = (age, len(AGE_GROUPS))
    return {
        name: [(code == group).nonzero()[:, 0] for group in range(count)]
        for name, (code, count) in codes.items()
    }


def discrimination(
    given: Predictions, weight: Tensor, groups: Mapping[str, Sequence[Tensor]]
) -> dict[str, np.ndarray]:
    """The AUC, and its worst gap between the groups of each attribute, each of shape (1 + B,)."""
    score, y = given.logit_obs, given.y
    found = {"AUC": auc(score, y, weight).numpy()}
    for name, members in groups.items():
        areas = torch.stack([auc(score[own], y[own], weight[:, own]) for own in members])
        found[f"gap_{name}"] = (areas.amax(dim=0) - areas.amin(dim=0)).numpy()
        if name == "sex":
            found["AUC_men"], found["AUC_women"] = areas.numpy()
    return found


def responses(given: Predictions, weight: Tensor) -> dict[str, np.ndarray]:
    """How the score answers to attributes, counterfactually and between groups, (1 + B,) each."""
    p = given.logit_cf.double().sigmoid()
    observed, null = given.logit_obs.double().sigmoid(), given.logit_null.double().sigmoid()
    share = weight / weight.sum(dim=1, keepdim=True)
    rows = {
        f"S_var_{name}": attribute_variance.by_patient(p, given.q, values)
        for name, values in given.grid.items()
    }
    rows["null_flip"] = ((observed > 0.5) != (null > 0.5)).double()
    rows["null_abs"] = (observed - null).abs()
    found = {name: (share @ values).numpy() for name, values in rows.items()}
    found["ECE_q"] = pooled_calibration(p, given.y, given.q, share).numpy()
    age = given.parents["age"]
    found["score_sex"] = score_gap(observed, given, given.parents["sex"] == 1, weight)
    found["score_age"] = score_gap(observed, given, age > 65, weight, against=age < 45)
    return found


def pooled_calibration(p: Tensor, y: Tensor, q: Tensor, share: Tensor) -> Tensor:
    r"""Calibration error in the population that q describes: all patients, in all worlds.

    .. math:: \sum_b \Big| \sum_i w_i \sum_k q_k \, \mathbb{1}[p_{ik} \in b] \, (y_i - p_{ik}) \Big|

    Args:
        p: Counterfactual probabilities, shape (N, K).
        y: Labels, shape (N,).
        q: Intervention probabilities, shape (K,).
        share: Shares :math:`w` of the patients in each sample, shape (B, N).

    Returns:
        The error in each sample, shape (B,).
    """
    excess = (y[:, None].double() - p) * q.double()
    sums = torch.zeros(len(p), BINS, dtype=torch.float64)
    sums.scatter_add_(1, bin_index(p, BINS), excess)
    return (share @ sums).abs().sum(dim=1)


def subgroups(given: Predictions, weight: Tensor) -> dict[str, np.ndarray]:
    r"""The estimated variance of counterfactual over that of observed subgroup means.

    A subgroup is the patients nearest to one intervention of the grid. Its mean score is estimated
    from its members as observed, or from everyone in that world
    (:func:`~cfbook.theory.estimators.observational_mean`,
    :func:`~cfbook.theory.estimators.counterfactual_mean`).

    Args:
        given: The predictions.
        weight: How often each patient is in each sample, shape (B, N).

    Returns:
        ``variance_ratio``, the largest over the subgroups of ten members or more in each sample,
        shape (B,): where the gain is least.
    """
    if given.draws:
        return {"variance_ratio": np.full(len(weight), np.nan)}
    nearest = Grid(given.grid).nearest({name: given.parents[name] for name in given.grid})
    observed, p = given.logit_obs.double().sigmoid(), given.logit_cf.double().sigmoid()
    largest = np.full(len(weight), np.nan)
    for k in range(p.shape[1]):
        own = (nearest == k).nonzero()[:, 0]
        if len(own) >= SMALLEST:
            everyone, members = (
                mean_variance(weight, p[:, k]),
                mean_variance(weight[:, own], observed[own]),
            )
            largest = np.fmax(largest, (everyone / members).numpy())
    return {"variance_ratio": largest}


def mean_variance(weight: Tensor, score: Tensor) -> Tensor:
    """The estimated variance of each weighted mean, NaN of fewer than two, shape (B,)."""
    mean, size = mean_score(weight, score), weight.sum(dim=1)
    variance = (mean_score(weight, score**2) - mean**2) / (size - 1)
    return variance.where(size > 1, torch.nan)


def score_gap(
    observed: Tensor,
    given: Predictions,
    member: Tensor,
    weight: Tensor,
    against: Tensor | None = None,
) -> np.ndarray:
    """How far apart the mean scores of two groups are within a label, averaged over the labels.

    Args:
        observed: Observed scores, shape (N,).
        given: The predictions, for their labels.
        member: Who is in the first group, shape (N,).
        weight: How often each patient is in each sample, shape (B, N).
        against: Who is in the second group; by default everyone else.

    Returns:
        The gap in each sample, shape (B,).
    """
    against = ~member if against is None else against
    gaps = []
    for label in (0, 1):
        both = [((given.y == label) & group).nonzero()[:, 0] for group in (member, against)]
        first, second = (mean_score(weight[:, rows], observed[rows]) for rows in both)
        gaps.append(first - second)
    return (sum(gaps) / 2).abs().numpy()


def mean_score(weight: Tensor, score: Tensor) -> Tensor:
    """Weighted means, shape (B,)."""
    return weight @ score / weight.sum(dim=1)
