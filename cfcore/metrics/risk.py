r"""Risks: what the losses are on average, after marginalisation, and in the worst tail.

All but the first take the losses :math:`L_i(\tilde{a}_k)`, shape (N, K), so that any loss will do.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from cfcore.metrics.loss import Loss, cross_entropy, marginal_loss
from cfcore.metrics.marginal import averaged
from cfcore.metrics.ranking import argsort, sort


@averaged
def original_risk(p: Tensor, y: Tensor, loss: Loss = cross_entropy) -> Tensor:
    r"""Conventional risk :math:`R_{\mathrm{orig}}` on the observed images.

    .. math:: \frac{1}{N} \sum_{i=1}^{N} \ell\big(g(x_i), y_i\big)

    Args:
        p, y: Observed probabilities, or logits, and labels 0 or 1, each of shape (N,).
        loss: A function of both.

    Returns:
        The risk, shape ().

    Example:
        >>> round(original_risk(torch.tensor([0.5, 0.5]), torch.tensor([0, 1])).item(), 4)
        0.6931
    """
    return loss(p.double(), y).double()


@averaged
def marginal_risk(p: Tensor, q: Tensor, y: Tensor, loss: Loss = cross_entropy) -> Tensor:
    r"""Counterfactual marginal risk :math:`R_{\mathrm{CM}}` (``eq:cmr``).

    .. math:: \frac{1}{N} \sum_{i=1}^{N} \ell(\bar p_i, y_i)

    The loss of the average (:eq:`eq:cmr`). By Jensen's inequality it never exceeds the average of
    the loss, :func:`expected_risk`; for the cross-entropy the gap is at least half of
    :func:`~cfcore.metrics.stability.stability_variance`.

    Args:
        p: Counterfactual probabilities, shape (N, K); logits of the loss from logits.
        q, y: Intervention probabilities, shape (K,), and labels 0 or 1, shape (N,).
        loss: A function of probabilities and labels, or of logits and labels, exactly.

    Returns:
        The risk, shape ().

    Example:
        >>> p, q = torch.tensor([[0.1, 0.9]]), torch.tensor([0.5, 0.5])
        >>> round(marginal_risk(p, q, torch.tensor([1])).item(), 4)
        0.6931
    """
    return marginal_loss(p, q, y, loss)


@averaged
def expected_risk(loss: Tensor, q: Tensor) -> Tensor:
    r"""Interventional expected risk :math:`R_{\mathrm{IE}}` (``eq:ier``).

    .. math:: \frac{1}{N} \sum_{i=1}^{N}
        \mathbb{E}_{\tilde{a} \sim q} \big[ L_i(\tilde{a}) \big]

    The average of the loss: what to expect if nuisance values are drawn from q (:eq:`eq:ier`).

    Args:
        loss, q: Losses :math:`L_i(\tilde{a}_k)`, (N, K), and intervention probabilities, (K,).

    Returns:
        The risk, shape ().

    Example:
        >>> expected_risk(torch.tensor([[4.0, 0.0]]), torch.tensor([0.25, 0.75])).item()
        1.0
    """
    return loss.double() @ q.double()


def patient_tail_losses(loss: Tensor, q: Tensor, alphas: Sequence[float]) -> Tensor:
    r"""The tail of every patient's losses, for several tail masses at the cost of one sort.

    .. math:: \mathrm{CVaR}_\alpha(L_i) = \frac{1}{\alpha} \sum_k
        \min\big(q_k,\, (\alpha - Q_{ik})_+\big)\, L_i(\tilde{a}_k)

    where :math:`Q_{ik}` is the mass of the interventions that are worse than k. Of losses (N, K)
    and A tail masses in [0, 1] the result has shape (N, A).

    Example:
        >>> loss, q = torch.tensor([[4.0, 1.0], [0.0, 2.0]]), torch.tensor([0.5, 0.5])
        >>> patient_tail_losses(loss, q, (1.0, 0.75)).tolist()
        [[2.5, 3.0], [1.0, 1.3333333333333333]]
    """
    loss, q = loss.double(), q.double()
    if q.device.type == "cpu" and (q == q[0]).all():  # the order of q need not be known
        loss = -sort(-loss)
    else:
        worst_first = argsort(-loss)
        loss, q = loss.gather(-1, worst_first), q.take(worst_first)  # both (N, K)
    used = pad(q[..., :-1].cumsum(dim=-1), (1, 0))  # mass already taken by worse interventions

    def tail(alpha: float) -> Tensor:
        if alpha == 0:
            return loss[:, 0] if q.ndim == 1 else loss.masked_fill(q == 0, -torch.inf).amax(dim=-1)
        # The tail rarely ends on a whole intervention: K=16, alpha=0.1 holds 1.6 of them.
        share = (alpha - used).clamp_(min=0).minimum(q)
        return (loss @ share if q.ndim == 1 else (share * loss).sum(dim=-1)) / alpha

    return torch.stack([tail(alpha) for alpha in alphas], dim=-1)


def tail_risk(loss: Tensor, q: Tensor, alpha: float) -> Tensor:
    r"""Counterfactual tail risk :math:`R_{\mathrm{CVaR},\alpha}` (``eq:cf_cvar``).

    .. math:: \frac{1}{N} \sum_{i=1}^{N} \mathrm{CVaR}_{\alpha}\big(L_i(\tilde{a})\big),
        \qquad \tilde{a} \sim q

    The whole distribution (``alpha = 1``) gives the interventional expected risk and the single
    worst intervention (``alpha = 0``) the worst case (:eq:`eq:cf_cvar`). An intervention on the
    edge of the tail counts with the share of its mass that lies inside, so that splitting an
    intervention into two equal ones changes nothing.

    Args:
        loss, q: Losses :math:`L_i(\tilde{a}_k)`, (N, K), and intervention probabilities, (K,).
        alpha: The tail mass, in [0, 1].

    Returns:
        The risk, shape ().

    Example:
        >>> loss, q = torch.tensor([[4.0, 1.0, 3.0, 2.0]]), torch.full((4,), 1 / 4)
        >>> [tail_risk(loss, q, alpha).item() for alpha in (1.0, 0.5, 0.375, 0.0)]
        [2.5, 3.5, 3.6666666666666665, 4.0]
    """
    return patient_tail_losses(loss, q, (alpha,)).mean()


def worst_case_risk(loss: Tensor, q: Tensor) -> Tensor:
    r"""Worst-case risk :math:`R_{\mathrm{WC}} = R_{\mathrm{CVaR},0}`.

    .. math:: \frac{1}{N} \sum_{i=1}^{N} \max_{k :\, q_k > 0} L_i(\tilde{a}_k)

    Args:
        loss, q: Losses :math:`L_i(\tilde{a}_k)`, (N, K), and intervention probabilities, (K,).

    Returns:
        The risk, shape ().

    Example:
        >>> worst_case_risk(torch.tensor([[4.0, 1.0, 9.0]]), torch.tensor([0.5, 0.5, 0.0])).item()
        4.0
    """
    return tail_risk(loss, q, alpha=0)
