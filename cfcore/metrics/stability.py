"""Stability: how far the output moves when only a nuisance variable does. No label enters."""

from torch import Tensor

from cfcore.metrics.marginal import averaged


@averaged
def stability_variance(p: Tensor, q: Tensor, *, correction: int = 0) -> Tensor:
    r"""Counterfactual stability :math:`S_{\mathrm{var}}` (``eq:stability_var``).

    .. math:: \frac{1}{N} \sum_{i=1}^{N} \mathrm{Var}_{\tilde{a} \sim q}
        \big[ g\big(\tilde{x}_i(\tilde{a})\big) \big]

    The mean over patients of the variance within a patient (:eq:`eq:stability_var`); low is stable.
    Scores are taken relative to the first intervention, so that a constant has a variance of
    exactly zero. With M Monte Carlo draws it is multiplied by M / (M - 1), and so unbiased.

    Args:
        p, q: Counterfactual probabilities, (N, K), and intervention probabilities, (K,).
        correction: 0 if the columns are all of q; 1 if they are K draws from it.

    Returns:
        The variance, shape ().

    Example:
        >>> p, q = torch.tensor([[0.25, 0.75], [0.5, 0.5]]), torch.tensor([0.5, 0.5])
        >>> stability_variance(p, q).item(), stability_variance(p, q, correction=1).item()
        (0.03125, 0.0625)
    """
    p, q, draws = p.double(), q.double(), p.shape[-1]
    shift = p - p[:, :1]
    variance = (shift - (shift @ q)[:, None]) ** 2 @ q
    return variance * (draws / (draws - correction))


@averaged
def attribute_variance(p: Tensor, q: Tensor, values: Tensor) -> Tensor:
    r"""The share of :math:`S_{\mathrm{var}}` that is due to one attribute alone.

    .. math:: \frac{1}{N} \sum_{i=1}^{N} \mathrm{Var}_{\tilde{a} \sim q}
        \Big[ \mathbb{E}_q\big[ p_i \mid \tilde{a} \big] \Big]

    The other attributes are averaged out first, so this is a main effect of an analysis of
    variance: on a grid with independent attributes, main effects and interaction add up to the
    variance of all. A predictor may have a right to respond to one attribute and not to another.

    Args:
        p, q: Counterfactual probabilities, (N, K), and intervention probabilities, (K,).
        values: What each intervention sets the attribute to, shape (K,).

    Returns:
        The variance, shape ().

    Example:
        >>> p = torch.tensor([[0.1, 0.2, 0.5, 0.6]], dtype=torch.float64)
        >>> q, sex = torch.full((4,), 0.25), torch.tensor([0.0, 0.0, 1.0, 1.0])
        >>> round(attribute_variance(p, q, sex).item(), 9)
        0.04
    """
    same = (values[:, None] == values).double() * q.double()  # (K, K)
    mean = p.double() @ (same / same.sum(dim=1, keepdim=True).clamp(min=1e-300)).T
    return stability_variance.by_patient(mean, q)


@averaged
def flip_rate(p_obs: Tensor, p: Tensor, q: Tensor, threshold: float = 0.5) -> Tensor:
    r"""Counterfactual flip rate :math:`S_{\mathrm{flip}}` (``eq:flip_rate``).

    .. math:: \frac{1}{N} \sum_{i=1}^{N} \mathbb{E}_{\tilde{a} \sim q} \Big[ \mathbb{1}\big\{
        \mathbb{1}[g(x_i) > \tau] \neq
        \mathbb{1}[g(\tilde{x}_i(\tilde{a})) > \tau] \big\} \Big]

    How often a decision changes only because a nuisance variable does (:eq:`eq:flip_rate`). The
    observed image is the reference: a generator that does not reproduce it flips decisions itself.

    Args:
        p_obs: Observed probabilities, shape (N,).
        p, q: Counterfactual probabilities, (N, K), and intervention probabilities, (K,).
        threshold: The decision threshold :math:`\tau`; decisions are ``p > threshold``.

    Returns:
        The rate, shape ().

    Example:
        >>> p_obs, p = torch.tensor([0.9, 0.1]), torch.tensor([[0.8, 0.2], [0.3, 0.5]])
        >>> flip_rate(p_obs, p, torch.tensor([0.5, 0.5])).item()
        0.25
    """
    flips = (p.double() > threshold) != (p_obs.double() > threshold)[:, None]
    return flips.double() @ q.double()


@averaged
def disagreement_rate(p_obs: Tensor, p_bar: Tensor, threshold: float = 0.5) -> Tensor:
    r"""Observed-marginalised disagreement :math:`D_{\mathrm{obs}}`
    (``eq:obs_marg_disagreement``).

    .. math:: \frac{1}{N} \sum_{i=1}^{N} \mathbb{1} \big\{
        \mathbb{1}[g(x_i) > \tau] \neq \mathbb{1}[\bar p_i > \tau] \big\}

    How often marginalising would have led to another decision (:eq:`eq:obs_marg_disagreement`). The
    caption of the appendix table gives :func:`mean_absolute_difference` this name.

    Args:
        p_obs, p_bar: Observed and rounded marginalised probabilities, each of shape (N,).
        threshold: The decision threshold :math:`\tau`; decisions are ``p > threshold``.

    Returns:
        The rate, shape ().

    Example:
        >>> disagreement_rate(torch.tensor([0.9, 0.4]), torch.tensor([0.5, 0.3])).item()
        0.5
    """
    return ((p_obs.double() > threshold) != (p_bar.double() > threshold)).double()


@averaged
def mean_absolute_difference(p_obs: Tensor, p_bar: Tensor) -> Tensor:
    r"""Mean absolute difference between observed and marginalised scores, ``D_abs``.

    .. math:: \frac{1}{N} \sum_{i=1}^{N} \big| g(x_i) - \bar p_i \big|

    Args:
        p_obs, p_bar: Observed and marginalised probabilities, each of shape (N,).

    Returns:
        The difference, shape ().

    Example:
        >>> mean_absolute_difference(torch.tensor([0.75, 0.5]), torch.tensor([0.5, 0.5])).item()
        0.125
    """
    return (p_obs.double() - p_bar.double()).abs()
