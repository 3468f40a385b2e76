r"""Subgroup means on images: scores of patients moved into a subgroup, and what they are worth."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from cfbook.theory.estimators import counterfactual_mean, observational_mean
from cfbook.theory.simulation import break_even_bias, break_even_size
from cfchest.data import Dataset
from cfchest.phantom import HOSPITALS, Cohort
from cfchest.phantom.equations import effusion_probability, parent_noise
from cfcore.checks import InputError
from cfcore.generator import Effect, Generator, act
from cfcore.predictor import Predictor


class World(NamedTuple):
    """A world that patients are moved into.

    Attributes:
        do: The values to set: a number for everybody, or one for each patient, shape (N,).
        effect: Whether lung size follows.
    """

    do: Mapping[str, Tensor | float]
    effect: Effect = "total"


class Interval(NamedTuple):
    """An estimate with the ends of an interval of the level 95 %."""

    value: float
    low: float
    high: float


@torch.inference_mode()
def world_scores(
    generator: Generator,
    predictors: Mapping[str, Predictor],
    data: Dataset,
    worlds: Mapping[str, World],
    *,
    batch: int = 64,
) -> dict[str, dict[str, Tensor]]:
    """Every predictor's scores of every patient, as observed and in each world.

    Each patient is abducted once.

    Args:
        generator: Abducts, acts and predicts.
        predictors: The predictors by name.
        data: The patients, N of them.
        worlds: The worlds by name.
        batch: Patients at once.

    Returns:
        Probabilities by predictor and world, float64, each of shape (N,); the world ``observed``
        is first.

    Example:
        >>> from cfchest.data import from_phantom
        >>> from cfchest.phantom import Phantom
        >>> cohort = Phantom(16).sample(3, hospital="C", seed=2027)
        >>> brightness = {"brightness": lambda x, pa: x.mean(dim=(1, 2, 3))}
        >>> older = {"older": World({"age": 80.0})}
        >>> found = world_scores(cohort.oracle, brightness, from_phantom(cohort), older)
        >>> {name: scores.shape for name, scores in found["brightness"].items()}
        {'observed': torch.Size([3]), 'older': torch.Size([3])}
    """
    if "observed" in worlds:
        raise InputError("the world 'observed' is there already", column="worlds")
    names = ["observed", *worlds]
    parts: dict[str, dict[str, list[Tensor]]] = {p: {w: [] for w in names} for p in predictors}
    index = data.index
    for rows, x, pa in data.batches(batch):
        noise = generator.abduct(x, pa, index=index[rows])
        for name in names:
            image, acted = x, pa
            if name != "observed":
                do = {key: _values(value, pa[key], rows) for key, value in worlds[name].do.items()}
                acted = act(generator, pa, do, worlds[name].effect)
                image = generator.predict(noise, acted)
            for label, predictor in predictors.items():
                parts[label][name].append(predictor(image, acted).double().sigmoid())
    return {p: {w: torch.cat(some) for w, some in found.items()} for p, found in parts.items()}


def _values(value: Tensor | float, like: Tensor, rows: object) -> Tensor:
    return value[rows].to(like) if isinstance(value, Tensor) else torch.full_like(like, value)


def effusion_at(cohort: Cohort, rows: Tensor, age: float) -> Tensor:
    """The label that patients of the phantom would have at another age, shape (N,).

    Interventions hold the label. This lets it follow age through its own mechanism, with the
    patient's own noise: what a patient drawn at that age would have.

    Args:
        cohort: All patients of a hospital.
        rows: Those who are asked about, shape (N,).
        age: The age in years.

    Returns:
        0 or 1.

    Example:
        >>> from cfchest.phantom import Phantom
        >>> cohort = Phantom(16).sample(1000, hospital="C", seed=2027)
        >>> young, old = (effusion_at(cohort, torch.arange(1000), age).mean() for age in (25, 85))
        >>> bool(young < old)
        True
    """
    u = parent_noise(cohort.rows[rows], hospital=cohort.hospital, seed=cohort.seed)["effusion"]
    p = effusion_probability(torch.full_like(u, age), HOSPITALS[cohort.hospital])
    return (u < p).float()


def paired_bias(counterfactual: Tensor, truth: Tensor) -> Interval:
    """The bias of counterfactual scores, from the same patients' true scores in the subgroup.

    Pairing takes the variance between patients out, which would hide a bias of this size.

    Args:
        counterfactual: Scores in the subgroup by some generator and effect, shape (n,).
        truth: Scores that the same patients would truly have in it, shape (n,).

    Returns:
        The mean difference with its normal interval.

    Example:
        >>> paired_bias(torch.tensor([0.5, 0.75]), torch.tensor([0.25, 0.5])).value
        0.25
    """
    bias = counterfactual_mean(counterfactual.double() - truth.double())
    reach = 1.96 * bias.variance.sqrt().item()
    mean = bias.mean.item()
    return Interval(mean, mean - reach, mean + reach)


def variance_ratio(
    observed: Tensor,
    member: Tensor,
    counterfactual: Tensor,
    *,
    replicates: int = 1000,
    seed: int = 2027,
) -> Interval:
    r"""The variance of the counterfactual over that of the observational estimator.

    About :math:`n_z / n` where the generator is right. The interval comes from resampling patients.

    Args:
        observed: Observed scores, shape (n,).
        member: Who belongs to the subgroup, shape (n,).
        counterfactual: Scores of everybody in the subgroup, shape (n,).
        replicates: How many samples of patients are drawn.
        seed: The seed of the draws.

    Returns:
        The ratio with its percentile interval.

    Example:
        >>> g, member = torch.tensor([0.1, 0.9, 0.1, 0.9]), torch.tensor([True, True, False, False])
        >>> round(variance_ratio(g.repeat(50), member.repeat(50), g.repeat(50)).value, 2)
        0.5
    """
    n = len(observed)
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n, (replicates, n), generator=rng)
    rows = torch.cat((torch.arange(n)[None], drawn))
    obs = torch.vmap(observational_mean)(observed[rows], member[rows]).variance
    ratio = torch.vmap(counterfactual_mean)(counterfactual[rows]).variance / obs
    low, high = ratio[1:].nanquantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(ratio[0].item(), low, high)


def held_label_bias(g: Tensor, label: Tensor, probability: float) -> float:
    r"""The bias that holding the label causes, from the scores with the label held.

    .. math:: \big(P(Y = 1) - P(Y = 1 \mid A = z)\big) \big(m_1(z) - m_0(z)\big), \qquad
        m_y(z) = \mathbb{E}[g(X) \mid A = z, Y = y]

    Patients keep the labels of all patients, where members have their own. That moves the mean by
    as much as the classifier tells the labels apart.

    Args:
        g: Scores in the subgroup with the label held, shape (n,).
        label: The labels that are held, shape (n,).
        probability: :math:`P(Y = 1 \mid A = z)`, how often members have the disease.

    Returns:
        The bias.

    Example:
        >>> held_label_bias(torch.tensor([0.25, 0.75]), torch.tensor([0, 1]), probability=0.75)
        -0.125
    """
    sick = label == 1
    difference = g[sick].double().mean() - g[~sick].double().mean()
    return ((sick.double().mean() - probability) * difference).item()


def gain(
    observed: Tensor,
    member: Tensor,
    counterfactual: Tensor,
    *,
    replicates: int = 1000,
    seed: int = 2027,
) -> dict[str, float]:
    """Both estimates of a subgroup's mean, and what the second one gains.

    Args:
        observed: Observed scores, shape (n,).
        member: Who belongs to the subgroup, shape (n,).
        counterfactual: Scores of everybody in the subgroup, shape (n,).
        replicates: How many samples of patients are drawn.
        seed: The seed of the draws.

    Returns:
        ``n_z``; means and standard errors; the ``share`` of the subgroup; the ``ratio`` of the
        variances with ``low`` and ``high``; and ``z``, the difference of the means in standard
        errors of that difference. The members are in both means: with true counterfactuals its
        variance is :math:`1 - w` times that of the observational mean, w being the share.

    Example:
        >>> g, member = torch.arange(1000.0), torch.arange(1000) % 4 > 0
        >>> found = gain(g, member, g)
        >>> alone = (found["CF"] - found["obs"]) / found["s.e."]
        >>> round(alone / found["z"], 2), round((1 - found["share"]) ** 0.5, 2)
        (0.5, 0.5)
    """
    few, many = observational_mean(observed, member), counterfactual_mean(counterfactual)
    ratio = variance_ratio(observed, member, counterfactual, replicates=replicates, seed=seed)
    share = member.double().mean()
    # What each patient adds to the difference of the means, to first order.
    own = counterfactual - many.mean - member * (observed - few.mean) / share
    error = own.double().std() / len(own) ** 0.5
    return {
        "n_z": int(member.sum()),
        "obs": few.mean.item(),
        "s.e.": few.variance.sqrt().item(),
        "CF": many.mean.item(),
        "CF s.e.": many.variance.sqrt().item(),
        "share": share.item(),
        "ratio": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "z": ((many.mean - few.mean) / error).item(),
    }


def judge(
    counterfactual: Tensor, truth: Tensor, observed: Tensor, member: Tensor
) -> dict[str, float | str]:
    """Whether a counterfactual mean is a better estimate of the subgroup's than its members' own.

    Args:
        counterfactual: Scores in the subgroup by some generator and effect, shape (n,).
        truth: Scores that the same patients would truly have in it, shape (n,).
        observed: Observed scores, shape (n,).
        member: Who belongs to the subgroup, shape (n,).

    Returns:
        The ``verdict``: ``gains`` if all of the interval of the bias is smaller than the break-even
        ``limit``, ``loses`` if all of it is larger, else ``open``. The ``bias`` with ``low`` and
        ``high``; ``rms``, the error of a single score; the ``limit``; and the size of the test set
        ``until`` which the bias is tolerable.
    """
    n, n_z = len(observed), int(member.sum())
    variance = observational_mean(observed, member).variance.item() * n_z
    bias, limit = paired_bias(counterfactual, truth), break_even_bias(variance, n_z, n).item()
    verdict = "open"
    if max(-bias.low, bias.high) < limit:
        verdict = "gains"
    elif bias.low > limit or bias.high < -limit:
        verdict = "loses"
    return {
        "verdict": verdict,
        "bias": bias.value,
        "low": bias.low,
        "high": bias.high,
        "rms": (counterfactual - truth).square().mean().sqrt().item(),
        "limit": limit,
        "until": break_even_size(variance, n_z / n, bias.value).item(),
    }
