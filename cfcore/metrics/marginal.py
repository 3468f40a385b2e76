r"""The marginalised prediction :math:`\bar p_i`, and means over patients."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from torch import Tensor

P = ParamSpec("P")


def averaged(summands: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Make a metric, the mean over patients, of its summands, which stay ``metric.by_patient``.

    Tables and the bootstrap average these, so that each equation is written down once.
    """

    @wraps(summands)
    def metric(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        return summands(*args, **kwargs).mean()

    metric.by_patient = summands
    return metric


def marginal_prediction(p: Tensor, q: Tensor) -> Tensor:
    r"""Counterfactually marginalised prediction :math:`\bar p_i` (``eq:marginal_pred``).

    .. math:: \bar p_i = \mathbb{E}_{\tilde{a} \sim q}
        \big[ g\big(\tilde{x}_i(\tilde{a})\big) \big] = \sum_{k=1}^{K} q_k \, p_{ik}

    What the classifier would say of this patient, once it no longer matters which nuisance values
    the patient happens to have (:eq:`eq:marginal_pred`). On a grid the expectation is exact.

    Args:
        p, q: Counterfactual probabilities, (N, K), and intervention probabilities, (K,).

    Returns:
        The marginalised predictions, shape (N,).

    Example:
        >>> p = torch.tensor([[0.2, 0.6], [0.9, 0.7]], dtype=torch.float64)
        >>> marginal_prediction(p, torch.tensor([0.75, 0.25]))
        tensor([0.3000, 0.8500], dtype=torch.float64)
    """
    return p.double() @ q.double()


def monte_carlo_prediction(p: Tensor) -> Tensor:
    r"""Monte Carlo estimate of the marginalised prediction (``eq:marginal_pred_mc``).

    .. math:: \hat{\bar p}_i = \frac{1}{M} \sum_{m=1}^{M}
        g\big(\tilde{x}_i(\tilde{a}_i^{(m)})\big), \qquad \tilde{a}_i^{(m)} \sim q

    Unbiased for :math:`\bar p_i` (:eq:`eq:marginal_pred_mc`), but what is computed from it need not
    be: since the loss is convex, :math:`R_{\mathrm{CM}}` comes out too high, by an error
    of order 1/M; and since a sample rarely holds the worst interventions in full, the tail risk
    comes out too low, by one of order up to :math:`1/\sqrt{M}`. A grid has neither error.

    Args:
        p: Probabilities under each patient's own draws, shape (N, M).

    Returns:
        The estimates, shape (N,).

    Example:
        >>> monte_carlo_prediction(torch.tensor([[0.25, 0.75, 0.50]]))
        tensor([0.5000], dtype=torch.float64)
    """
    return p.double().mean(dim=-1)


def rounded(p_bar: Tensor) -> Tensor:
    r"""Round :math:`\bar p` to 12 decimals, ready for decisions, ranks and bins.

    Averaging sixteen copies of 0.3 gives 0.30000000000000004, but must change nothing.

    Args:
        p_bar: Marginalised predictions, shape (N,).

    Returns:
        The same, rounded, shape (N,).

    Example:
        >>> p_bar = torch.tensor(0.1 + 0.2, dtype=torch.float64)
        >>> (p_bar > 0.3).item(), (rounded(p_bar) > 0.3).item()
        (True, False)
    """
    return p_bar.double().round(decimals=12)
