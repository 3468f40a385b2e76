r"""Calibration of the positive class, of observed and of marginalised scores :math:`\bar p_i`."""

import torch
from torch import Tensor

from cfcore.metrics.loss import squared_error
from cfcore.metrics.marginal import averaged


@averaged
def brier_score(p: Tensor, y: Tensor) -> Tensor:
    r"""Brier score :math:`\mathrm{Brier}_{\mathrm{marg}}` (``eq:cf_brier``).

    .. math:: \frac{1}{N} \sum_{i=1}^{N} (\bar p_i - y_i)^2

    A proper score: calibration and discrimination in one number. Compared with the average over
    interventions, marginalising lowers it by exactly the stability variance (:eq:`eq:cf_brier`).

    Args:
        p, y: Probabilities and labels 0 or 1, each of shape (N,).

    Returns:
        The score, shape ().

    Example:
        >>> brier_score(torch.tensor([0.5, 1.0]), torch.tensor([0, 1])).item()
        0.125
    """
    return squared_error(p, y)


def bin_index(p: Tensor, bins: int) -> Tensor:
    r"""The calibration bin of every score: equal in width, with the lower edge; of 1, the last.

    Example:
        >>> bin_index(torch.tensor([0.0, 0.1, 0.95, 1.0], dtype=torch.float64), 10).tolist()
        [0, 1, 9, 9]
    """
    edges = torch.arange(1, bins, dtype=torch.float64, device=p.device) / bins
    return torch.bucketize(p.double().contiguous(), edges, right=True)


def bin_errors(size: Tensor, excess: Tensor) -> tuple[Tensor, Tensor]:
    """Expected and maximum calibration error from the sums of the bins, on the last axis."""
    error = excess.abs()
    return error.sum(dim=-1) / size.sum(dim=-1), (error / size.where(size > 0, 1)).amax(dim=-1)


def calibration_errors(
    p: Tensor, y: Tensor, bins: int, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Both errors, from the size :math:`|I_b|` and excess :math:`\sum_{i \in I_b} (y_i - p_i)`."""
    index, excess = bin_index(p, bins), y.double() - p.double()
    weight, zeros = torch.ones_like(excess) if weight is None else weight, excess.new_zeros(bins)
    size = zeros.scatter_add(0, index, weight)
    return bin_errors(size, zeros.scatter_add(0, index, excess * weight))


def expected_calibration_error(p: Tensor, y: Tensor, bins: int = 10) -> Tensor:
    r"""Expected calibration error :math:`\mathrm{ECE}_{\mathrm{marg}}` (``eq:cf_ece``).

    .. math:: \sum_{b=1}^{B} \frac{|I_b|}{N} \left| \frac{1}{|I_b|} \sum_{i \in I_b} y_i
        - \frac{1}{|I_b|} \sum_{i \in I_b} \bar p_i \right|

    How far the frequency of disease is from the score, bin by bin: of the positive class, not of
    the confidence in the predicted class (:eq:`eq:cf_ece`). In small samples it is too high: the
    deviations of the bins never cancel.

    Args:
        p, y: Probabilities and labels 0 or 1, each of shape (N,).
        bins: The number of bins.

    Returns:
        The error, shape ().

    Example:
        >>> p, y = torch.tensor([0.25, 0.25, 0.75, 0.75]), torch.tensor([0, 1, 1, 1])
        >>> expected_calibration_error(p, y, bins=2).item()
        0.25
    """
    return calibration_errors(p, y, bins)[0]


def maximum_calibration_error(p: Tensor, y: Tensor, bins: int = 10) -> Tensor:
    r"""Maximum calibration error, the worst non-empty bin.

    .. math:: \max_{b :\, I_b \neq \emptyset} \left| \frac{1}{|I_b|} \sum_{i \in I_b} y_i
        - \frac{1}{|I_b|} \sum_{i \in I_b} \bar p_i \right|

    A bin with a single patient can set it.

    Args:
        p, y: Probabilities and labels 0 or 1, each of shape (N,).
        bins: The number of bins.

    Returns:
        The error, shape ().

    Example:
        >>> p, y = torch.tensor([0.25, 0.25, 0.75, 0.75]), torch.tensor([0, 0, 1, 0])
        >>> maximum_calibration_error(p, y, bins=2).item()
        0.25
    """
    return calibration_errors(p, y, bins)[1]
