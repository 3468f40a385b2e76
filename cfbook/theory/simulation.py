r"""Two estimators of a subgroup's mean score, where they break even, and their simulation.

The observational one averages over the subgroup's :math:`n_z` members, the counterfactual one over
all :math:`n` patients (:mod:`cfbook.theory.estimators`). What the second costs depends on where the
generator's noise comes from, hence two ways to simulate it. In one the generator draws anew what it
could not abduct, and its images are distributed as those of the subgroup. In the other it scatters
around the true counterfactual, and its images vary more than those of the subgroup.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import pandas as pd
import torch
from scipy import stats
from torch import Tensor

from cfbook.theory import estimators
from cfcore.checks import InputError

_Number = Tensor | float


class _Scores(NamedTuple):
    """Scores of true and of generated images in the world of the subgroup, (runs, n) each."""

    true: Tensor
    generated: Tensor


def break_even_noise(variance: _Number, n_z: _Number, n: _Number) -> Tensor:
    r"""The noise on top of the truth at which both estimators vary alike.

    .. math:: \sigma^2_{\mathrm{gen}} = \sigma^2 \Big( \frac{n}{n_z} - 1 \Big)

    Below it the counterfactual estimator has the smaller variance, above it the larger one. The
    promise of :func:`~cfbook.theory.estimators.tolerable_generator_noise`, which has the same
    arguments, ends at :math:`n_z/n` of it.

    Example:
        >>> break_even_noise(0.04, n_z=25, n=100).item()
        0.12
    """
    return torch.as_tensor(variance * (n / n_z - 1), dtype=torch.float64)


def break_even_bias(
    variance: _Number, n_z: _Number, n: _Number, *, generator_noise: _Number = 0.0
) -> Tensor:
    r"""The bias of a generator at which both estimators have the same mean squared error.

    .. math:: b^2 = \frac{\sigma^2}{n_z} - \frac{\sigma^2 + \sigma^2_{\mathrm{gen}}}{n}

    It is absolute, and 0 where the noise alone, on top of the truth, already loses.

    Example:
        >>> round(break_even_bias(0.75, n_z=25, n=100).item(), 6)
        0.15
    """
    rest = variance / n_z - estimators.variance_bound(variance, generator_noise, n)
    return torch.as_tensor(rest, dtype=torch.float64).clamp(min=0).sqrt()


def break_even_size(
    variance: _Number, share: _Number, bias: _Number, *, generator_noise: _Number = 0.0
) -> Tensor:
    r"""The size of a test set from which a biased generator is worse than the few members.

    .. math:: n = \frac{\sigma^2 (1 / w - 1) - \sigma^2_{\mathrm{gen}}}{b^2}, \qquad
        w = \frac{n_z}{n}

    Variances fall with n and a bias does not, so that every bias loses in the end. Infinitely many
    patients are needed if the bias is 0; none where the noise alone already loses.

    Example:
        >>> round(break_even_size(0.04, share=0.25, bias=0.02).item(), 6)
        300.0
    """
    gain = torch.as_tensor(variance * (1 / share - 1) - generator_noise, dtype=torch.float64)
    return gain.clamp(min=0) / torch.as_tensor(bias, dtype=torch.float64).square()


def redrawn_scores(
    runs: int, n: int, *, variance: float, generator_noise: float, rng: torch.Generator
) -> _Scores:
    r"""Scores under a correct model that draws a part of each patient anew.

    .. math:: g(x_i) = s_i + t_i, \qquad g(\tilde{x}_i) = s_i + t'_i

    The generator abducts :math:`s_i` and redraws :math:`t_i`, of variance
    :math:`\sigma^2_{\mathrm{gen}}`, from its own distribution. All parts are normal with mean 0, so
    that the means of test sets are normal too and their intervals exact.

    Args:
        runs: How many test sets.
        n: The patients of each.
        variance: :math:`\sigma^2`, the variance of the score.
        generator_noise: The part of it that is drawn anew, at most :math:`\sigma^2`.

    Example:
        >>> rng = torch.Generator().manual_seed(7)
        >>> true, made = redrawn_scores(1, 3, variance=1.0, generator_noise=0.0, rng=rng)
        >>> torch.equal(true, made)
        True
    """
    if generator_noise > variance:
        text = f"a correct model redraws a part of the variance {variance:g}"
        raise InputError(f"{text}, not {generator_noise:g}", column="generator_noise")
    kept, own, new = torch.randn(3, runs, n, generator=rng, dtype=torch.float64)
    kept, drawn = kept * math.sqrt(variance - generator_noise), math.sqrt(generator_noise)
    return _Scores(kept + drawn * own, kept + drawn * new)


def scattered_scores(
    runs: int, n: int, *, variance: float, generator_noise: float, rng: torch.Generator
) -> _Scores:
    r"""Scores of a generator that scatters around the true counterfactual.

    .. math:: g(\tilde{x}_i) = g(x_i) + \varepsilon_i, \qquad
        \mathrm{Var}[\varepsilon_i] = \sigma^2_{\mathrm{gen}}

    The arguments are those of :func:`redrawn_scores`; the noise is on top of the variance.

    Example:
        >>> rng = torch.Generator().manual_seed(7)
        >>> true, made = scattered_scores(4000, 1, variance=1.0, generator_noise=3.0, rng=rng)
        >>> round((made.var() / true.var()).item())
        4
    """
    true, error = torch.randn(2, runs, n, generator=rng, dtype=torch.float64)
    true = math.sqrt(variance) * true
    return _Scores(true, true + math.sqrt(generator_noise) * error)


REGIMES = {"correct model": redrawn_scores, "noise on top": scattered_scores}
"""Where the generator's noise comes from, and how scores are drawn accordingly."""


def _subgroup_means(scores: _Scores, n_z: int) -> dict[str, Tensor]:
    """Both estimates of the subgroup's mean in every test set, each of shape (runs,).

    The first ``n_z`` patients are the members; as membership says nothing of the scores, it does
    not matter which ones are.
    """
    n = scores.true.shape[1]
    if not 2 <= n_z <= n:
        raise InputError(f"between 2 and all {n} patients are members, not {n_z}", column="n_z")
    member = torch.arange(n) < n_z
    observed = torch.vmap(estimators.observational_mean, in_dims=(0, None))(scores.true, member)
    counterfactual = torch.vmap(estimators.counterfactual_mean)(scores.generated)
    return {"observational": observed.mean, "counterfactual": counterfactual.mean}


def _variance_interval(values: Tensor) -> estimators.Interval:
    """The unbiased variance of independent normal values, with its exact chi-squared interval.

    Example:
        >>> values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
        >>> [round(value, 2) for value in _variance_interval(values)]
        [2.5, 0.9, 20.64]
    """
    variance, df = values.double().var().item(), len(values) - 1
    low, high = (float(df * variance / stats.chi2.ppf(p, df)) for p in (0.975, 0.025))
    return estimators.Interval(variance, low, high)


def simulate(
    sizes: Sequence[int],
    shares: Sequence[float],
    noises: Mapping[str, Sequence[float]],
    *,
    variance: float = 1.0,
    runs: int = 2000,
    seed: int = 2027,
) -> pd.DataFrame:
    r"""Simulated variances of both estimators beside what the formulas say.

    Args:
        sizes: The sizes n of the test sets.
        shares: The shares :math:`n_z / n`.
        noises: The generator's noise as multiples of the variance, by regime.
        variance: :math:`\sigma^2`, the variance of the score within the subgroup.
        runs: How many test sets for each combination.

    Returns:
        One row for each combination and estimator: ``regime, n, n_z, noise, estimator, variance,
        low, high, formula``; ``noise`` is the multiple, the interval has the level 95 %.

    Example:
        >>> frame = simulate([20], [0.5], {"noise on top": [2.0]}, runs=500)
        >>> (frame.n * frame.formula).tolist()
        [2.0, 3.0]
    """
    rng = torch.Generator().manual_seed(seed)
    rows = []
    for regime, multiples in noises.items():
        if regime not in REGIMES:
            raise InputError(f"there is no regime {regime!r}, only {', '.join(REGIMES)}")
        for n, share, noise in product(sizes, shares, multiples):
            n_z, extra = round(share * n), noise * variance
            scores = REGIMES[regime](runs, n, variance=variance, generator_noise=extra, rng=rng)
            added = extra if regime == "noise on top" else 0.0
            bound = estimators.variance_bound(variance, added, n).item()
            formulas = {"observational": variance / n_z, "counterfactual": bound}
            for name, means in _subgroup_means(scores, n_z).items():
                found = _variance_interval(means)
                rows.append((regime, n, n_z, noise, name, *found, formulas[name]))
    columns = ["regime", "n", "n_z", "noise", "estimator", "variance", "low", "high", "formula"]
    return pd.DataFrame(rows, columns=columns)


def biased_errors(
    sizes: Sequence[int],
    shares: Sequence[float],
    bias: float,
    *,
    variance: float = 1.0,
    runs: int = 2000,
    seed: int = 2027,
) -> pd.DataFrame:
    r"""Simulated mean squared errors of both estimators, the generator being biased but not noisy.

    The arguments are those of :func:`simulate`, and the bias that the generator adds to every
    score.

    Returns:
        One row for each combination and estimator: ``n, share, estimator, error, low, high,
        formula``; the interval has the level 95 %.

    Example:
        >>> frame = biased_errors([20], [0.5], 0.2, variance=0.8, runs=500)
        >>> frame.formula.round(6).tolist()
        [0.08, 0.08]
    """
    rng = torch.Generator().manual_seed(seed)
    rows = []
    for n, share in product(sizes, shares):
        n_z = round(share * n)
        scores = scattered_scores(runs, n, variance=variance, generator_noise=0.0, rng=rng)
        means = _subgroup_means(scores._replace(generated=scores.generated + bias), n_z)
        formulas = {"observational": variance / n_z, "counterfactual": variance / n + bias**2}
        for name, found in means.items():
            rows.append((n, share, name, *estimators.mean_interval(found.square()), formulas[name]))
    columns = ["n", "share", "estimator", "error", "low", "high", "formula"]
    return pd.DataFrame(rows, columns=columns)
