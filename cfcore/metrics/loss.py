r"""Losses :math:`\ell(p, y)` of a probability, and the same from a logit without rounding."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

Loss = Callable[[Tensor, Tensor], Tensor]

EPSILON = torch.finfo(torch.float64).eps


def cross_entropy(p: Tensor, y: Tensor) -> Tensor:
    r"""Binary cross-entropy in nats.

    .. math:: \ell(p, y) = -y \log p - (1 - y) \log (1 - p)

    Probabilities are kept :math:`2^{-52}` away from 0 and 1, as in scikit-learn's ``log_loss``
    on float64. That bound hides how wrong a saturated predictor is; where logits are at hand,
    use :func:`cross_entropy_from_logits`.

    Args:
        p: Probabilities of disease, any shape.
        y: Labels 0 or 1, broadcastable to ``p``.

    Returns:
        The losses, in float64 and the shape of ``p``.

    Example:
        >>> cross_entropy(torch.tensor([0.5, 0.5]), torch.tensor([0, 1]))
        tensor([0.6931, 0.6931], dtype=torch.float64)
    """
    return -probability_of_truth(p, y).clamp(EPSILON, 1 - EPSILON).log()


def probability_of_truth(p: Tensor, y: Tensor) -> Tensor:
    """The probability that was given to what turned out to be true: p of the sick, else 1 - p."""
    return (p.double() - (y != 1).double()).abs()


def marginal_cross_entropy(p: Tensor, q: Tensor, y: Tensor) -> Tensor:
    r"""Cross-entropy of the marginalised prediction, to the last digit.

    .. math:: \ell(\bar p_i, y_i) = -\log \sum_k q_k \, p_{ik}^{y_i} (1 - p_{ik})^{1 - y_i}

    Averaging what was given to the truth, rather than p, keeps the digits of a healthy patient
    whose scores are all close to 1.

    Args:
        p: Counterfactual probabilities, shape (N, K).
        q: Intervention probabilities, shape (K,).
        y: Labels, shape (N,).

    Returns:
        One loss for each patient, shape (N,).

    Example:
        >>> p, q = torch.tensor([[[1 - 1e-12] * 4], [[0.25] * 4]], dtype=torch.float64)
        >>> loss = marginal_cross_entropy(p, q[0], torch.tensor([0]))
        >>> round((loss - cross_entropy(p[:, 0], torch.tensor([0]))).item(), 9)
        0.0
    """
    average = probability_of_truth(p, y[:, None]) @ q.double()
    return -average.clamp(EPSILON, 1 - EPSILON).log()


def squared_error(p: Tensor, y: Tensor) -> Tensor:
    r"""Squared error, the summand of the Brier score.

    .. math:: \ell(p, y) = (p - y)^2

    Args:
        p: Probabilities of disease, any shape.
        y: Labels 0 or 1, broadcastable to ``p``.

    Returns:
        The losses, in float64 and the shape of ``p``.

    Example:
        >>> squared_error(torch.tensor([0.5, 1.0]), torch.tensor([0, 1]))
        tensor([0.2500, 0.0000], dtype=torch.float64)
    """
    return (p.double() - y.double()) ** 2


def cross_entropy_from_logits(logit: Tensor, y: Tensor) -> Tensor:
    r"""Binary cross-entropy in nats, exact however large the logit.

    .. math:: \ell\big(\sigma(l), y\big) = \log\big(1 + e^{-(2y - 1)\, l}\big)

    Args:
        logit: Logits :math:`l`, any shape.
        y: Labels 0 or 1, broadcastable to ``logit``.

    Returns:
        The losses, in float64 and the shape of ``logit``.

    Example:
        >>> cross_entropy_from_logits(torch.tensor([100.0, 100.0]), torch.tensor([0, 1]))
        tensor([1.0000e+02, 3.7201e-44], dtype=torch.float64)
    """
    logit = logit.double()
    return -logsigmoid(torch.where(y == 1, logit, -logit))


def marginal_cross_entropy_from_logits(logit: Tensor, q: Tensor, y: Tensor) -> Tensor:
    r"""Cross-entropy of the marginalised prediction, exact from logits.

    .. math:: \ell(\bar p_i, y_i)
        = -\log \sum_k \exp\big( \log q_k + \log \sigma\big((2y_i - 1)\, l_{ik}\big) \big)

    Averaging probabilities first would lose a patient whose counterfactuals are all saturated:
    :math:`\bar p` rounds to 0 or 1. The log-mean-exp does not.

    Args:
        logit: Counterfactual logits :math:`l_{ik}`, shape (N, K).
        q: Intervention probabilities, shape (K,).
        y: Labels, shape (N,).

    Returns:
        One loss for each patient, shape (N,).

    Example:
        >>> logit = torch.tensor([[-800.0, -800.0]])
        >>> marginal_cross_entropy_from_logits(logit, torch.tensor([0.5, 0.5]), torch.tensor([1]))
        tensor([800.], dtype=torch.float64)
    """
    log_p = -cross_entropy_from_logits(logit, y[:, None])
    return -torch.logsumexp(q.double().log() + log_p, dim=-1)


LOSSES: dict[str, Loss] = {"bce": cross_entropy, "brier": squared_error}


def resolve_loss(loss: str | Loss) -> Loss:
    """Look a loss up by name; a callable ``(p, y) -> losses`` is returned as it is.

    Example:
        >>> resolve_loss("brier") is squared_error
        True
    """
    if callable(loss):
        return loss
    if not isinstance(loss, str) or loss not in LOSSES:
        raise ValueError(f"loss must be a callable or one of {sorted(LOSSES)}, not {loss!r}")
    return LOSSES[loss]
