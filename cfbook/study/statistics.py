r"""Every statistic of every predictor on one test set, with replicates.

A claim is about several predictors at once: do risks rise along a chain, do two columns correlate?
So the patients are resampled once, the same ones for all predictors, and each statistic is kept for
each replicate; a claim is then computed in every replicate from its columns alone. Trainings are
left out one at a time (:meth:`Study.without`), which says how much they vary
(:mod:`cfbook.study.rules`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cfbook.study.rules import rule, training_reach
from cfbook.study.runs import KEYS, PredictorId
from cfchest.cohorts import AGE_GROUPS, age_group
from cfchest.graph import CHEST
from cfcore.evaluation import check_options
from cfcore.intervals import Rule, interval
from cfcore.interventions import Grid
from cfcore.metrics import cross_entropy_from_logits
from cfcore.metrics.calibration import bin_index
from cfcore.metrics.ranking import auc
from cfcore.metrics.stability import attribute_variance
from cfcore.predictions import Predictions
from cfcore.resampling import Resampling, check_resampling, replicate

_BINS = 10
_SUPPORT = 0.03  # of the patients, near a world that is not left out: 30 of 1,000
_SMALLEST = 10  # members of a subgroup whose mean is estimated
MEAN_AGES = (30, 50, 80)  # years, at which means over everyone are compared with those of patients


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

    @property
    def kinds(self) -> list[tuple[str, float]]:
        """The family and strength of the predictors, whatever their training."""
        return list(dict.fromkeys((member.family, member.strength) for member in self.members))

    def column(self, statistic: str, family: str, strength: float = 0.0) -> np.ndarray:
        """A statistic of one kind of predictor, shape (seeds, 1 + B)."""
        rows = [self.members.index(PredictorId(family, strength, seed)) for seed in self.seeds]
        return self.values[statistic][rows]

    def only(self, seeds: Sequence[int]) -> "Study":
        """The predictors of some trainings."""
        rows = [i for i, member in enumerate(self.members) if member.seed in seeds]
        values = {name: every[rows] for name, every in self.values.items()}
        return replace(self, members=tuple(self.members[i] for i in rows), values=values)

    def without(self, seed: int) -> "Study":
        """The estimates of all other trainings, without replicates, which nobody needs of them."""
        some = self.only([other for other in self.seeds if other != seed])
        return replace(some, values={name: every[:, :1] for name, every in some.values.items()})

    def estimate(
        self, statistic: Callable[["Study"], np.ndarray], *, rule: Rule
    ) -> tuple[float, float, float]:
        """A statistic of several predictors, with its interval over patients and trainings.

        It is computed from the trainings of a study, shape (1 + B,). Returns the estimate, the
        lower and the upper end.
        """
        values, seeds = statistic(self), self.seeds
        left_out = [statistic(self.without(seed))[0] for seed in seeds] if len(seeds) > 1 else []
        return float(values[0]), *interval(values, rule=rule, reach=training_reach(left_out))

    def frame(self) -> pd.DataFrame:
        """The estimates: a row for each predictor, ``family, strength, seed`` and statistics."""
        members = pd.DataFrame([asdict(member) for member in self.members], columns=KEYS)
        return members.assign(**{name: values[:, 0] for name, values in self.values.items()})

    def summary(self, statistics: Sequence[str] | None = None) -> pd.DataFrame:
        """Mean over trainings, their spread, and an interval, for each kind of predictor.

        Returns:
            Columns ``family, strength, metric, mean, spread, low, high, doubtful``: the spread is
            the standard deviation between trainings, unknown (NaN) of one; the interval is that of
            the mean by :mod:`cfbook.study.rules`, of one training over patients alone; it
            is doubtful if it holds the truth too seldom with so few patients.
        """
        rows = []
        for name, kind in product(statistics or self.values, self.kinds):
            values, own = self.column(name, *kind), rule(name)
            trained = values[:, 0]
            spread = trained.std(ddof=1) if len(trained) > 1 else np.nan
            left_out = (trained.sum() - trained) / max(1, len(trained) - 1)  # means of the others
            ends = interval(values.mean(axis=0), rule=own, reach=training_reach(left_out))
            doubtful = self.patients < own.doubtful
            rows.append((*kind, name, trained.mean(), spread, *ends, doubtful))
        names = ("family", "strength", "metric", "mean", "spread", "low", "high", "doubtful")
        return pd.DataFrame(rows, columns=names)


def study_predictions(
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
    scores of women and men, of old and young, are apart within a label; ``R_w_sex`` and
    ``R_w_age``, the observed risk weighted by sex or age group within a label, which needs no
    counterfactual; ``ECE_q``, the calibration error over all patients in all worlds;
    ``variance_ratio``, ``variance_women`` and ``variance_everyone``, of the counterfactual to the
    observed mean of a subgroup; ``mean_80`` and the like, the mean score of everyone at that age,
    and ``mean_80_ill`` and ``mean_80_well`` of those with a label; ``marginal_accuracy``, how much
    more often decisions are right after marginalisation; ``null_flip`` and ``null_abs``, what the
    null intervention alone does. All predictions are of the same patients on the same grid.
    """
    first = next(iter(given.values()))
    often = (replicates, rank_replicates)
    sampling = check_resampling(len(first), first.patient, *often, level=0.95, seed=seed)
    weight = torch.cat(list(sampling.counts()))[:, sampling.code].double()
    weight = torch.cat((torch.ones_like(weight[:1]), weight))  # (1 + B, N)
    few = weight[: 1 + sampling.rank_replicates]
    every = [
        paper_metrics(p, sampling)
        | areas(p.logit_obs, p.y, p.parents, few)
        | _variance_gain(p, few)
        | responses(p, weight)
        for p in given.values()
    ]
    stacked = {name: np.stack([padded(v[name], replicates) for v in every]) for name in every[0]}
    return Study(tuple(given), stacked, len(first), first.logit_cf.shape[1])


def padded(values: np.ndarray, replicates: int) -> np.ndarray:
    """An estimate and some of its replicates, with NaN for the others, shape (1 + replicates,)."""
    return np.pad(values, (0, 1 + replicates - len(values)), constant_values=np.nan)


def reweighted(found: Mapping[PredictorId, Predictions], q: str) -> dict[PredictorId, Predictions]:
    """The same predictions under an ``"empirical"`` or ``"supported"`` q."""
    first = next(iter(found.values()))
    grid, least = Grid(first.grid), math.ceil(_SUPPORT * len(first))
    grid = grid.empirical(first) if q == "empirical" else grid.supported(first, least=least)
    return {member: given.reweight(grid.q) for member, given in found.items()}


def worst_worlds(given: Predictions) -> Tensor:
    """The share of patients whose loss is largest in each world, shape (K,).

    Example:
        >>> p = Predictions([0.0, 0], [[9.0, 1, 2], [1, 2, 9]], {"sex": [0, 1, 2]}, y=[0, 1])
        >>> worst_worlds(p).tolist()
        [1.0, 0.0, 0.0]
    """
    loss = cross_entropy_from_logits(given.logit_cf.double(), given.y[:, None])
    return torch.bincount(loss.argmax(dim=1), minlength=loss.shape[1]).double() / len(loss)


def paper_metrics(given: Predictions, sampling: Resampling) -> dict[str, np.ndarray]:
    """The metrics of the paper, estimate and replicates, each of shape (1 + B,)."""
    return replicate(given.scores, check_options({}), sampling)


def areas(
    score: Tensor, y: Tensor, pa: Mapping[str, Tensor], weight: Tensor
) -> dict[str, np.ndarray]:
    """The AUC, and its worst gap between the groups of each attribute, each of shape (1 + B,).

    ``gap_coin`` is the gap between two halves of the patients that mean nothing.
    """
    strata = {name: (pa[name], len(CHEST[name].values)) for name in ("sex", "race")}
    strata["age"] = (_age_groups(pa["age"]), len(AGE_GROUPS))
    strata["coin"] = (torch.from_numpy(np.random.default_rng(0).integers(2, size=len(y))), 2)
    every = {name: stratified_auc(score, y, *own, weight) for name, own in strata.items()}
    found = {"AUC": auc(score, y, weight)}
    found |= {f"gap_{name}": worst_gap(by_group) for name, by_group in every.items()}
    found["AUC_men"], found["AUC_women"] = every["sex"]
    return {name: values.numpy() for name, values in found.items()}


def _age_groups(age: Tensor) -> Tensor:
    """The age group of each patient, shape (N,)."""
    return torch.tensor(age_group(pd.Series(age.numpy())).to_numpy())


def stratified_auc(
    score: Tensor, y: Tensor, group: Tensor, groups: int, weight: Tensor | None = None
) -> Tensor:
    r"""AUC within each stratum of an attribute, such as sex, race or age group.

    Args:
        score, y: Scores and labels 0 or 1, each of shape (N,).
        group: The stratum of each patient, in 0 ... groups - 1, shape (N,).
        groups: The number of strata.
        weight: Weights, shape (N,), or (B, N) for B areas of each stratum at once; 1 by default.

    Returns:
        The areas, shape (groups,) or (groups, B); NaN for a stratum that lacks a class.

    Example:
        >>> score, y = torch.tensor([0.1, 0.9, 0.8, 0.2]), torch.tensor([0, 1, 0, 1])
        >>> stratified_auc(score, y, torch.tensor([0, 0, 1, 1]), groups=2).tolist()
        [1.0, 0.0]
    """
    weight = torch.ones_like(score) if weight is None else weight
    return torch.stack([auc(score, y, weight * (group == k)) for k in range(groups)])


def worst_gap(area: Tensor) -> Tensor:
    r"""Worst-case gap :math:`\Delta\mathrm{AUC} = \max_s \mathrm{AUC}_s - \min_s \mathrm{AUC}_s`.

    The paper's label-based estimate of bias, of strata (S,) or (S, B). A stratum that lacks a class
    makes it NaN: a gap to something unknown is unknown.

    Example:
        >>> worst_gap(torch.tensor([0.75, 1.0, 0.875])).item()
        0.25
    """
    return area.amax(dim=0) - area.amin(dim=0)


def responses(given: Predictions, weight: Tensor) -> dict[str, np.ndarray]:
    """How the score answers to attributes, counterfactually and between groups, (1 + B,) each."""
    logits = (given.logit_cf, given.logit_obs, given.logit_null)
    p, observed, null = (logit.double().sigmoid() for logit in logits)
    by_patient, grid = attribute_variance.by_patient, given.grid
    rows = {f"S_var_{name}": by_patient(p, given.q, values) for name, values in grid.items()}
    rows["null_flip"] = ((observed > 0.5) != (null > 0.5)).double()
    rows["null_abs"] = (observed - null).abs()
    share = weight / weight.sum(dim=1, keepdim=True)
    found = {name: share @ values for name, values in rows.items()}
    found["ECE_q"] = pooled_calibration(p, given.y, given.q, share)
    right = [(score > 0.5) == given.y for score in (p @ given.q.double(), observed)]
    found["marginal_accuracy"] = share @ (right[0].double() - right[1].double())
    if "age" in given.grid and not given.draws:
        found |= _age_means(given, p, share)
    found = {name: values.numpy() for name, values in found.items()}
    return found | without_worlds(given.logit_obs, given.y, given.parents, weight)


def without_worlds(
    logit: Tensor, y: Tensor, pa: Mapping[str, Tensor], weight: Tensor
) -> dict[str, np.ndarray]:
    """How the scores of observed images differ between groups, and their weighted risks."""
    observed, sex, age = logit.double().sigmoid(), pa["sex"], pa["age"]
    found = {
        "score_sex": _score_gap(observed, y, (sex == 1, sex != 1), weight),
        "score_age": _score_gap(observed, y, (age > 65, age < 45), weight),
    }
    loss = cross_entropy_from_logits(logit.double(), y)
    for name, group, groups in (("sex", sex, 2), ("age", _age_groups(age), len(AGE_GROUPS))):
        found[f"R_w_{name}"] = _weighted_risk(loss, y, group, groups, weight)
    return {name: values.numpy() for name, values in found.items()}


def _weighted_risk(loss: Tensor, y: Tensor, group: Tensor, groups: int, weight: Tensor) -> Tensor:
    """The mean loss under :func:`inverse_weights` in samples (B, N), from means of cells, (B,)."""
    member = torch.nn.functional.one_hot(groups * y.long() + group.long(), 2 * groups).double()
    counts, sums = (
        (weight @ each).view(-1, 2, groups) for each in (member, member * loss[:, None])
    )
    ill = counts.sum(dim=2)  # and healthy: patients of each label
    return ((sums / counts).mean(dim=2) * ill).sum(dim=1) / ill.sum(dim=1)


def inverse_weights(
    group: Tensor, y: Tensor, groups: int = 2, weight: Tensor | None = None
) -> Tensor:
    r"""Weights under which every group is as frequent as any other among patients of one label.

    .. math:: w_i = \frac{1}{G \, \hat{P}(\mathrm{group}_i \mid y_i)}

    Without a generator the mean of a loss under these weights is the risk that is expected when the
    group is set at random, if nothing but the label joins group and image.

    Args:
        group: The group of each patient, in 0 ... groups - 1, shape (N,).
        y: Labels 0 or 1, shape (N,).
        groups: The number of groups, G.
        weight: How often each patient was drawn in each of B samples, shape (B, N); 1 by default.

    Returns:
        The weights, shape (N,) or (B, N); NaN in a sample in which a group lacks a label: then no
        weight helps.

    Example:
        >>> inverse_weights(torch.tensor([0, 0, 0, 1, 0, 1]), torch.tensor([0, 0, 0, 0, 1, 1]))
        tensor([0.6667, 0.6667, 0.6667, 2.0000, 1.0000, 1.0000], dtype=torch.float64)
    """
    given = torch.ones(1, len(y), dtype=torch.float64) if weight is None else weight
    cell = groups * y.long() + group.long()
    member = torch.nn.functional.one_hot(cell, 2 * groups).double()
    counts = (given @ member).view(-1, 2, groups)
    inverse = counts.sum(dim=2, keepdim=True) / (groups * counts)
    inverse = inverse.masked_fill((counts == 0).any(dim=2).any(dim=1)[:, None, None], torch.nan)
    found = given * inverse.flatten(1)[:, cell]
    return found[0] if weight is None else found


def effective_number(weight: Tensor) -> float:
    r"""How many patients of equal weight are worth as much: :math:`(\sum w)^2 / \sum w^2`.

    Example:
        >>> effective_number(torch.tensor([1.0, 1.0, 2.0]))
        2.6666667461395264
    """
    return (weight.sum() ** 2 / weight.square().sum()).item()


def pooled_calibration(p: Tensor, y: Tensor, q: Tensor, share: Tensor) -> Tensor:
    r"""Calibration error in the population that q describes: all patients, in all worlds.

    .. math:: \sum_b \Big| \sum_i w_i \sum_k q_k \, \mathbb{1}[p_{ik} \in b] \, (y_i - p_{ik}) \Big|

    Args:
        p: Counterfactual probabilities, shape (N, K).
        y: Labels, shape (N,).
        q: Intervention probabilities, shape (K,).
        share: Shares :math:`w` of the patients in each sample, shape (B, N); the errors are (B,).
    """
    excess = (y[:, None].double() - p) * q.double()
    sums = torch.zeros(len(p), _BINS, dtype=torch.float64)
    sums.scatter_add_(1, bin_index(p, _BINS), excess)
    return (share @ sums).abs().sum(dim=1)


def _variance_gain(given: Predictions, weight: Tensor) -> dict[str, np.ndarray]:
    r"""The estimated variance of counterfactual over that of observed subgroup means.

    A subgroup is the patients nearest to one intervention of the grid. Its mean score is estimated
    from its members as observed, or from everyone in that world
    (:func:`~cfbook.theory.estimators.observational_mean`, of which everyone is a member). The
    ``variance_ratio`` is the largest over the subgroups of ten members or more in each sample,
    shape (B,): where the gain is least. For women everyone is made a woman at the age of the grid
    that is nearest to their own; for everyone, who is compared as a check, only the age is set.
    """
    names = ("variance_ratio", "variance_women", "variance_everyone")
    if given.draws:
        return dict.fromkeys(names, np.full(len(weight), np.nan))
    grid, own = Grid(given.grid), {name: given.parents[name] for name in given.grid}
    nearest, everyone = grid.nearest(own), torch.ones(len(given), 1, dtype=torch.float64)
    observed, p = (logit.double().sigmoid() for logit in (given.logit_obs, given.logit_cf))
    rows, observed = torch.arange(len(p)), observed[:, None]

    member = torch.nn.functional.one_hot(nearest, p.shape[1]).double()
    ratio = _mean_variances(p, everyone, weight) / _mean_variances(observed, member, weight)
    ratio[:, member.sum(dim=0) < _SMALLEST] = -torch.inf
    as_women = grid.nearest(own | {"sex": torch.ones_like(own["sex"])})
    women = (own["sex"] == 1).double()[:, None]
    moved = torch.stack([p[rows, as_women], p[rows, nearest]], dim=1)
    whole = _mean_variances(moved, everyone, weight)
    whole = whole / _mean_variances(observed, torch.cat([women, everyone], dim=1), weight)
    largest = ratio.nan_to_num(-torch.inf).amax(dim=1, keepdim=True)
    found = torch.cat([largest.masked_fill(largest == -torch.inf, torch.nan), whole], dim=1)
    return dict(zip(names, found.T.numpy(), strict=True))


def _mean_variances(values: Tensor, member: Tensor, weight: Tensor) -> Tensor:
    """Estimated variances of means over members, (N, K), in samples (B, N), shape (B, K).

    As :func:`~cfbook.theory.estimators.observational_mean` has them, all at once.
    """
    size = weight @ member
    mean = weight @ (member * values) / size
    return (weight @ (member * values**2) - size * mean**2) / (size - 1) / size


def _age_means(given: Predictions, p: Tensor, share: Tensor) -> dict[str, Tensor]:
    """The mean score of everyone in the worlds of an age, of all and of those with a label."""
    y = given.y.double()[:, None]
    score = torch.stack([p[:, given.grid["age"] == age].mean(dim=1) for age in MEAN_AGES], dim=1)
    every, ill, sick = (share @ each for each in (score, score * y, y))
    found = {}
    for number, age in enumerate(MEAN_AGES):
        found[f"mean_{age}"] = every[:, number]
        found[f"mean_{age}_ill"] = ill[:, number] / sick[:, 0]
        found[f"mean_{age}_well"] = (every - ill)[:, number] / (1 - sick[:, 0])
    return found


def _score_gap(score: Tensor, y: Tensor, groups: tuple[Tensor, Tensor], weight: Tensor) -> Tensor:
    """How far apart the mean scores of two groups are within a label, averaged over the labels."""
    gaps = []
    for label in (0, 1):
        both = [((y == label) & group).nonzero()[:, 0] for group in groups]
        first, second = (mean_score(weight[:, rows], score[rows]) for rows in both)
        gaps.append(first - second)
    return (sum(gaps) / 2).abs()


def mean_score(weight: Tensor, score: Tensor) -> Tensor:
    """Weighted means, shape (B,)."""
    return weight @ score / weight.sum(dim=1)
