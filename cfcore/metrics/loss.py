r"""Losses :math:`\ell(p, y)` of a probability, and the same from a logit without rounding."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from cfcore.metrics.marginal import marginal_prediction

Loss = Callable[[Tensor, Tensor], Tensor]

_EPSILON = torch.finfo(torch.float64).eps


def cross_entropy(p: Tensor, y: Tensor) -> Tensor:
    r"""Binary cross-entropy in nats.

    .. math:: \ell(p, y) = -y \log p - (1 - y) \log (1 - p)

    Probabilities are kept :math:`2^{-52}` away from 0 and 1, as in scikit-learn's ``log_loss``. It
    hides how wrong a saturated predictor is; of logits, take
    :func:`~cfcore.metrics.loss.cross_entropy_from_logits`.

    Args:
        p, y: Probabilities of disease, any shape, and labels 0 or 1, broadcastable to them.

    Returns:
        The losses, in float64 and the shape of ``p``.

    Example:
        >>> cross_entropy(torch.tensor([0.5, 0.5]), torch.tensor([0, 1]))
        tensor([0.6931, 0.6931], dtype=torch.float64)
    """
    return -_given_to_truth(p, y).clamp(_EPSILON, 1 - _EPSILON).log()


def _given_to_truth(p: Tensor, y: Tensor) -> Tensor:
    """The probability of what turned out to be true: p of the sick, else 1 - p."""
    return (p.double() - (y != 1).double()).abs()


def squared_error(p: Tensor, y: Tensor) -> Tensor:
    r"""Squared error :math:`\ell(p, y) = (p - y)^2`, the summand of the Brier score."""
    return (p.double() - y.double()) ** 2


def cross_entropy_from_logits(logit: Tensor, y: Tensor) -> Tensor:
    r"""Binary cross-entropy in nats, exact however large the logit.

    .. math:: \ell\big(\sigma(l), y\big) = \log\big(1 + e^{-(2y - 1)\, l}\big)

    Args:
        logit, y: Logits :math:`l`, any shape, and labels 0 or 1, broadcastable to them.

    Returns:
        The losses, in float64 and the shape of ``logit``.

    Example:
        >>> cross_entropy_from_logits(torch.tensor([100.0, 100.0]), torch.tensor([0, 1]))
        tensor([1.0000e+02, 3.7201e-44], dtype=torch.float64)
    """
    logit = logit.double()
    return -logsigmoid(torch.where(y == 1, logit, -logit))


def marginal_loss(p: Tensor, q: Tensor, y: Tensor, loss: Loss) -> Tensor:
    r"""The loss of the marginalised prediction of each patient, shape (N,), to the last digit.

    .. math:: \ell(\bar p_i, y_i) = -\log \sum_k q_k \, p_{ik}^{y_i} (1 - p_{ik})^{1 - y_i}

    This is the cross-entropy. Averaging what was given to the truth, rather than p, keeps the
    digits of a healthy patient whose scores are all close to 1. Of logits it is a log-mean-exp,
    since :math:`\bar p` of a patient whose counterfactuals are all saturated rounds to 0 or 1.

    Example:
        >>> logit, q, y = torch.tensor([[-800.0, -800.0]]), torch.tensor([0.5, 0.5]), torch.ones(1)
        >>> marginal_loss(logit, q, y, cross_entropy_from_logits)
        tensor([800.], dtype=torch.float64)
    """
    if loss is cross_entropy:
        average = _given_to_truth(p, y[:, None]) @ q.double()
        return -average.clamp(_EPSILON, 1 - _EPSILON).log()
    if loss is cross_entropy_from_logits:
        log_p = -cross_entropy_from_logits(p, y[:, None])
        return -torch.logsumexp(q.double().log() + log_p, dim=-1)
    return loss(marginal_prediction(p, q), y).double()


LOSSES: dict[str, Loss] = {"bce": cross_entropy, "brier": squared_error}
