r"""The mean prediction in a subgroup: observed on its members, or counterfactual on everyone.

The estimators of the paper's section on theory, with their variances and the bound of its
Proposition 1.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from cfcore.checks import InputError


class Estimate(NamedTuple):
    """An estimated mean and the estimated variance of that estimate, both of shape ()."""

    mean: Tensor
    variance: Tensor


class Interval(NamedTuple):
    """An estimate with the ends of an interval of the level 95 %."""

    value: float
    low: float
    high: float


class VarianceTerms(NamedTuple):
    """The two terms of the variance of the counterfactual estimator, both of shape ()."""

    signal: Tensor
    noise: Tensor


def observational_mean(g: Tensor, member: Tensor) -> Estimate:
    r"""Observational estimator :math:`\hat\mu_z^{\mathrm{obs}}` (``eq:obs_estimator``).

    .. math:: \hat\mu_z^{\mathrm{obs}} = \frac{1}{n_z} \sum_{i : a_i = z} g(x_i), \qquad
        \mathrm{Var}\big[\hat\mu_z^{\mathrm{obs}}\big]
        = \frac{\mathrm{Var}[g(X) \mid A = z]}{n_z}

    Only the members of the subgroup speak; a rare subgroup is heard badly.

    Simulated at :eq:`eq:obs_estimator` in :doc:`/notebooks/theory`; see :doc:`/book/proofs`.

    Args:
        g: Observed predictions, shape (n,).
        member: Whether :math:`a_i = z`, shape (n,). The mean is NaN without members, and its
            variance (from the unbiased sample variance) with fewer than two.

    Example:
        >>> g, member = torch.tensor([0.25, 0.75, 0.1]), torch.tensor([True, True, False])
        >>> mean, variance = observational_mean(g, member)
        >>> mean.item(), variance.item()
        (0.5, 0.0625)
    """
    g, w = g.double(), member.double()
    size = w.sum()
    mean = (w * g).sum() / size
    variance = (w * (g - mean) ** 2).sum() / (size - 1)
    return Estimate(mean, variance / size)


def counterfactual_mean(g: Tensor) -> Estimate:
    r"""Counterfactual estimator :math:`\hat\mu_z^{\mathrm{CF}}` and its estimated variance.

    .. math:: \hat\mu_z^{\mathrm{CF}} = \frac{1}{n} \sum_{i=1}^{n} g\big(\tilde{x}_i(z)\big)

    Every patient speaks, as they would have looked in the subgroup. Unbiased for
    :math:`\mathbb{E}[g(X) \mid A = z]` only if the generator is right, the effect is the total
    one, and A is independent of everything that is held fixed.

    Simulated at :eq:`eq-cf-estimator` in :doc:`/notebooks/theory`; see :doc:`/book/proofs`.

    Args:
        g: Predictions on the counterfactual images, one for each patient, shape (n,).

    Example:
        >>> mean, variance = counterfactual_mean(torch.tensor([0.25, 0.75]))
        >>> mean.item(), variance.item()
        (0.5, 0.0625)
    """
    g = g.double()
    return Estimate(g.mean(), g.var() / g.shape[0])


def mean_interval(values: Tensor) -> Interval:
    """The mean of many independent values with its normal interval.

    Of differences between the scores of the same patients it is a bias: pairing takes out the
    variance between patients, which would hide a bias of this size.

    Example:
        >>> [round(end, 2) for end in mean_interval(torch.tensor([1.0, 1.0, 4.0, 4.0]))]
        [2.5, 0.8, 4.2]
    """
    mean, variance = counterfactual_mean(values)
    reach = 1.96 * variance.sqrt().item()
    return Interval(mean.item(), mean.item() - reach, mean.item() + reach)


def counterfactual_variance(g: Tensor) -> VarianceTerms:
    r"""Signal and noise in the counterfactual estimator (``eq:cf_variance``).

    .. math:: \mathrm{Var}\big[\hat\mu_z^{\mathrm{CF}}\big]
        = \frac{\mathrm{Var}\big[\mathbb{E}[g(\tilde X(z)) \mid U]\big]}{n}
        + \frac{\mathbb{E}\big[\mathrm{Var}[g(\tilde X(z)) \mid U]\big]}{n}

    Estimated from R counterfactuals of each patient, drawn anew from the generator: the spread
    within a patient is the generator's noise :math:`\sigma^2_{\mathrm{gen}}`, and the spread
    between the patients' averages is the signal plus a 1/R share of that noise, which is taken
    off. Both terms are unbiased, so the signal may come out slightly negative. They sum to the
    variance of an estimator that uses one draw for each patient.

    Simulated at :eq:`eq:cf_variance` in :doc:`/notebooks/theory`; see :doc:`/book/proofs`.

    Args:
        g: Predictions on R counterfactual images of each patient, shape (n, R), R >= 2.

    Example:
        >>> signal, noise = counterfactual_variance(torch.tensor([[0.0, 0.5], [0.5, 1.0]]))
        >>> signal.item(), noise.item()
        (0.03125, 0.0625)
    """
    n, draws = g.shape
    if draws < 2:
        raise InputError(f"generator noise needs at least 2 draws for each patient, not {draws}")
    noise = g.double().var(dim=1).mean()
    signal = g.double().mean(dim=1).var() - noise / draws
    return VarianceTerms(signal / n, noise / n)


def variance_bound(variance: Tensor | float, generator_noise: Tensor | float, n: int) -> Tensor:
    r"""Upper bound of the counterfactual estimator's variance (``eq:cf_variance_bound``).

    .. math:: \mathrm{Var}\big[\hat\mu_z^{\mathrm{CF}}\big] \leq
        \frac{\mathrm{Var}[g(X) \mid A = z]}{n} + \frac{\sigma^2_{\mathrm{gen}}}{n}

    Safe in every case, but not tight under a correct model, where the generator's noise is part
    of the first term already.

    Simulated at :eq:`eq:cf_variance_bound` in :doc:`/notebooks/theory`; see :doc:`/book/proofs`.

    Args:
        variance: :math:`\mathrm{Var}[g(X) \mid A = z]`, shape ().
        generator_noise: :math:`\sigma^2_{\mathrm{gen}}`, shape ().
        n: The number of patients.

    Example:
        >>> variance_bound(0.04, 0.01, n=100).item()
        0.0005
    """
    return torch.as_tensor(variance + generator_noise, dtype=torch.float64) / n


def tolerable_generator_noise(variance: Tensor | float, n_z: int, n: int) -> Tensor:
    r"""The generator noise up to which Proposition 1 promises a smaller variance
    (``prop:variance``).

    .. math:: \sigma^2_{\mathrm{gen}} \leq \sigma^2 \Big( 1 - \frac{n_z}{n} \Big)

    Sufficient, not necessary: from :func:`variance_bound` alone follows the weaker condition
    :math:`\sigma^2_{\mathrm{gen}} \leq \sigma^2 (n / n_z - 1)`.

    Simulated at :prf:ref:`prop:variance` in :doc:`/notebooks/theory`; see :doc:`/book/proofs`.

    Args:
        variance: :math:`\sigma^2 = \mathrm{Var}[g(X) \mid A = z]`, shape ().
        n_z: The number of patients in the subgroup.
        n: The number of patients.

    Example:
        >>> tolerable_generator_noise(0.04, n_z=25, n=100).item()
        0.03
    """
    return torch.as_tensor(variance, dtype=torch.float64) * (1 - n_z / n)
