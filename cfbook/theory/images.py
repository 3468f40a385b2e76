r"""Subgroup means on images: scores of patients moved into a subgroup, and what they are worth.

And the noise of a generator: how much of a score's variance is the generator's own.
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from cfbook.theory import estimators
from cfbook.theory.simulation import break_even_bias, break_even_size
from cfchest.data import Dataset
from cfchest.graph import CHEST
from cfchest.phantom import HOSPITALS, Cohort
from cfchest.phantom.equations import effusion_probability, parent_noise
from cfcore.checks import InputError
from cfcore.generator import Effect, Generator, act
from cfcore.intervals import Rule, interval
from cfcore.metrics import stability_variance
from cfcore.predictor import Predictor


class Intervention(NamedTuple):
    """What is done to patients.

    Attributes:
        do: The values to set: a number for everybody, or one for each patient, shape (N,).
        effect: Whether lung size follows.
    """

    do: Mapping[str, Tensor | float]
    effect: Effect = "total"


_BATCH = 32  # patients, all of whose draws are made before those of the next
_WORLDS = {"null": Intervention({}, "direct")} | {
    f"{name} = {value}": Intervention({name: float(value)}, "direct")
    for name in ("sex", "race")
    for value in CHEST[name].values
}


@torch.inference_mode()
def world_scores(
    generator: Generator,
    predictors: Mapping[str, Predictor],
    data: Dataset,
    worlds: Mapping[str, Intervention],
    *,
    batch: int = 64,
    rng: torch.Generator | None = None,
) -> dict[str, dict[str, Tensor]]:
    """Every predictor's scores of every patient, as observed and in each world.

    Each patient is abducted once, with the means of the noise if there is no ``rng``.

    Returns:
        Probabilities by predictor and world, float64, each of shape (N,); the world ``observed``
        is first.

    Example:
        >>> from cfchest.data import from_phantom
        >>> from cfchest.phantom import Phantom
        >>> cohort = Phantom(16).sample(3, hospital="C", seed=2027)
        >>> brightness = {"brightness": lambda x, pa: x.mean(dim=(1, 2, 3))}
        >>> older = {"older": Intervention({"age": 80.0})}
        >>> found = world_scores(cohort.oracle, brightness, from_phantom(cohort), older)
        >>> {name: scores.shape for name, scores in found["brightness"].items()}
        {'observed': torch.Size([3]), 'older': torch.Size([3])}
    """
    if "observed" in worlds:
        raise InputError("the world 'observed' is there already", column="worlds")
    index, parts = data.index, defaultdict(list)
    for rows, x, pa in data.batches(batch):
        noise, seen = generator.abduct(x, pa, index=index[rows], rng=rng), {"observed": (x, pa)}
        for name, (do, effect) in worlds.items():
            values = {key: _values(value, pa[key], rows) for key, value in do.items()}
            acted = act(generator, pa, values, effect) if do else pa
            seen[name] = generator.predict(noise, acted), acted
        for (world, given), (reader, predictor) in product(seen.items(), predictors.items()):
            parts[reader, world].append(predictor(*given).double().sigmoid())
    every = ("observed", *worlds)
    return {one: {world: torch.cat(parts[one, world]) for world in every} for one in predictors}


def _values(value: Tensor | float, like: Tensor, rows: object) -> Tensor:
    return value[rows].to(like) if isinstance(value, Tensor) else torch.full_like(like, value)


def effusion_at(cohort: Cohort, rows: Tensor, age: float) -> Tensor:
    """The label that patients of the phantom would have at another age, shape (N,).

    Interventions hold the label. This lets it follow age through its own mechanism, with the
    patient's own noise: what a patient drawn at that age would have. The rows are of those in the
    cohort who are asked about, shape (N,).

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


def ratio_of_variances(
    observed: Tensor, member: Tensor, counterfactual: Tensor, *, replicates: int, seed: int
) -> estimators.Interval:
    r"""The variance of the counterfactual over that of the observational estimator.

    About :math:`n_z / n` where the generator is right. The percentile interval comes from
    resampling patients.

    Args:
        observed: Observed scores, shape (n,); and who is a ``member`` of the subgroup.
        counterfactual: Scores of everybody in the subgroup, shape (n,).

    Example:
        >>> g, member = torch.tensor([0.1, 0.9, 0.1, 0.9]), torch.tensor([True, True, False, False])
        >>> scores = g.repeat(50), member.repeat(50), g.repeat(50)
        >>> round(ratio_of_variances(*scores, replicates=100, seed=0).value, 2)
        0.5
    """
    n = len(observed)
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n, (replicates, n), generator=rng)
    rows = torch.cat((torch.arange(n)[None], drawn))
    few = torch.vmap(estimators.observational_mean)(observed[rows], member[rows])
    many = torch.vmap(estimators.counterfactual_mean)(counterfactual[rows])
    ratio = (many.variance / few.variance).numpy()
    return estimators.Interval(ratio[0].item(), *interval(ratio, rule=Rule(0)))


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

    Example:
        >>> held_label_bias(torch.tensor([0.25, 0.75]), torch.tensor([0, 1]), probability=0.75)
        -0.125
    """
    sick = label == 1
    difference = g[sick].double().mean() - g[~sick].double().mean()
    return ((sick.double().mean() - probability) * difference).item()


def gain(
    observed: Tensor, member: Tensor, counterfactual: Tensor, *, replicates: int, seed: int
) -> dict[str, float]:
    """Both estimates of a subgroup's mean, and what the second one gains.

    The arguments are those of :func:`ratio_of_variances`.

    Returns:
        ``n_z``; means and standard errors; the ``share`` of the subgroup; the ``ratio`` of the
        variances with ``low`` and ``high``; and ``z``, the difference of the means in standard
        errors of that difference. The members are in both means: with true counterfactuals its
        variance is :math:`1 - w` times that of the observational mean, w being the share.

    Example:
        >>> g, member = torch.arange(1000.0), torch.arange(1000) % 4 > 0
        >>> found = gain(g, member, g, replicates=10, seed=0)
        >>> alone = (found["CF"] - found["obs"]) / found["s.e."]
        >>> round(alone / found["z"], 2), round((1 - found["share"]) ** 0.5, 2)
        (0.5, 0.5)
    """
    scores = (observed, member, counterfactual)
    ratio, low, high = ratio_of_variances(*scores, replicates=replicates, seed=seed)
    few = estimators.observational_mean(observed, member)
    many = estimators.counterfactual_mean(counterfactual)
    share = member.double().mean()
    # What each patient adds to the difference of the means, to first order.
    own = counterfactual - many.mean - member * (observed - few.mean) / share
    error = own.double().std() / len(own) ** 0.5
    found = {"n_z": int(member.sum()), "obs": few.mean.item(), "s.e.": few.variance.sqrt().item()}
    found |= {"CF": many.mean.item(), "CF s.e.": many.variance.sqrt().item(), "share": share.item()}
    found |= {"ratio": ratio, "low": low, "high": high}
    return found | {"z": ((many.mean - few.mean) / error).item()}


def bias_verdict(
    counterfactual: Tensor, truth: Tensor, observed: Tensor, member: Tensor
) -> dict[str, float | str]:
    """Whether a counterfactual mean is a better estimate of the subgroup's than its members' own.

    Args:
        counterfactual: Scores in the subgroup by some generator and effect, shape (n,).
        truth: Scores that the same patients would truly have in it, shape (n,).
        observed: Observed scores, shape (n,); and who is a ``member`` of the subgroup.

    Returns:
        The ``verdict``: ``gains`` if all of the interval of the bias is smaller than the break-even
        ``limit``, ``loses`` if all of it is larger, else ``open``. The ``bias`` with ``low`` and
        ``high``; ``rms``, the error of a single score; the ``limit``; and the size of the test set
        ``until`` which the bias is tolerable.
    """
    n, n_z, variance = _subgroup(observed, member)
    bias, low, high = estimators.mean_interval(counterfactual.double() - truth.double())
    limit = break_even_bias(variance, n_z, n).item()
    loses = low > limit or high < -limit
    verdict = "gains" if max(-low, high) < limit else "loses" if loses else "open"
    found = {"verdict": verdict, "bias": bias, "low": low, "high": high}
    found |= {"rms": (counterfactual - truth).square().mean().sqrt().item(), "limit": limit}
    return found | {"until": break_even_size(variance, n_z / n, bias).item()}


def _subgroup(observed: Tensor, member: Tensor) -> tuple[int, int, float]:
    """How many patients there are, how many of them members, and the variance of their scores."""
    n_z = int(member.sum())
    return len(member), n_z, estimators.observational_mean(observed, member).variance.item() * n_z


def generator_noise(
    generator: Generator,
    data: Dataset,
    audited: Mapping[str, Predictor],
    *,
    truth: Generator | None = None,
    draws: int = 8,
) -> pd.DataFrame:
    r"""Abducts every patient several times and asks what the draws do to the score.

    In each world :math:`z` (nothing changed, or one attribute set to one value for everybody)
    patient i has R scores :math:`g_{ir}` from R draws of the posterior of the noise. The
    generator's noise, its error against the true score :math:`g_i^*`, and the squared bias are

    .. math:: \sigma^2_{\mathrm{gen}} = \frac{1}{n} \sum_i \mathrm{Var}_r[g_{ir}], \qquad
        \mathrm{MSE} = \frac{1}{nR} \sum_{i,r} (g_{ir} - g_i^*)^2, \qquad
        \mathrm{bias}^2 = \mathrm{MSE} - \sigma^2_{\mathrm{gen}}

    Proposition 1 promises a gain where :math:`\sigma^2_{\mathrm{gen}} \leq \sigma^2 (1 - n_z/n)`;
    it knows of no bias, which is why the error stands beside it, where the truth is known.

    Returns:
        One row for each world and predictor: ``intervention, effect, classifier, patients, draws,
        sigma2_gen, S_var, mse, squared_bias, mean_error, sigma2, n_z, tolerable, holds``. The
        stability ``S_var`` is what the noise causes by itself, in a world in which nothing else
        varies; in the null world an additive residual makes it 0, whatever is drawn. NaN where
        a column does not apply; ``holds`` is then ``None``.
    """
    rng, drawn = torch.Generator().manual_seed(0), []
    for rows in torch.arange(len(data)).split(_BATCH):
        told = (generator, audited, data.take(rows), _WORLDS)
        drawn.append([world_scores(*told, rng=rng) for _ in range(draws)])
    true = world_scores(truth, audited, data, _WORLDS) if truth else None
    pa, made = data.parents, []
    for (world, (do, effect)), name in product(_WORLDS.items(), audited):
        every = [torch.stack([one[name][world] for one in part], dim=1) for part in drawn]
        observed = torch.cat([part[0][name]["observed"] for part in drawn])
        row = {"intervention": world, "effect": effect, "classifier": name}
        row |= _noise(torch.cat(every), None if true is None else true[name][world])
        for attribute, value in do.items():
            row |= _premise(row["sigma2_gen"], observed, pa[attribute] == value)
        made.append(row)
    return pd.DataFrame(made)


def _noise(g: Tensor, true: Tensor | None) -> dict[str, object]:
    """What the draws (n, R) do to the score, with what the other columns hold if nothing else."""
    n, draws = g.shape
    noise = estimators.counterfactual_variance(g).noise.item() * n
    q = torch.full((draws,), 1 / draws, dtype=torch.float64)
    row = {"patients": n, "draws": draws, "sigma2_gen": noise}
    row["S_var"] = stability_variance(g, q, correction=1).item()
    others = ("mse", "squared_bias", "mean_error", "sigma2", "n_z", "tolerable")
    row |= dict.fromkeys(others, torch.nan) | {"holds": None}
    if true is not None:
        error = g - true[:, None]
        mse = error.square().mean().item()
        row |= {"mse": mse, "squared_bias": mse - noise, "mean_error": error.mean().item()}
    return row


def _premise(noise: float, observed: Tensor, member: Tensor) -> dict[str, object]:
    """What Proposition 1 asks of the noise in a subgroup."""
    n, n_z, sigma2 = _subgroup(observed, member)
    limit = estimators.tolerable_generator_noise(sigma2, n_z, n).item()
    holds = noise <= limit if n_z > 1 else None
    return {"sigma2": sigma2, "n_z": n_z, "tolerable": limit, "holds": holds}
