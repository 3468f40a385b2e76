r"""Discrimination by stratum: the label-hungry bias estimate that stability is compared with."""

import torch
from torch import Tensor

from cfcore.metrics.ranking import tie_groups


def auc(score: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    r"""Area under the ROC curve.

    .. math:: \frac{\sum_{i,j} w_i w_j \, y_i (1 - y_j) \big( \mathbb{1}[s_i > s_j]
        + \tfrac12 \mathbb{1}[s_i = s_j] \big)}{\sum_{i,j} w_i w_j \, y_i (1 - y_j)}

    The probability that a diseased patient scores higher than a healthy one; ties count half. A
    weight of 0 leaves a patient out, which is how strata are made without moving data.

    Args:
        score: Scores, shape (N,).
        y: Labels 0 or 1, shape (N,).
        weight: Weights, shape (N,), or (B, N) for B areas at once; 1 by default.

    Returns:
        The area, shape () or (B,); NaN if a class is absent.

    Example:
        >>> auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1])).item()
        0.875
    """
    weight = torch.ones_like(y, dtype=torch.float64) if weight is None else weight.double()
    sick, healthy = weight * (y == 1), weight * (y == 0)
    group, _ = tie_groups(score)

    tied = torch.zeros_like(healthy).scatter_add(-1, group.expand_as(healthy), healthy)
    below = tied.cumsum(dim=-1) - tied
    wins = (sick * (below + tied / 2)[..., group]).sum(dim=-1)
    return wins / (sick.sum(dim=-1) * healthy.sum(dim=-1))


def stratified_auc(
    score: Tensor, y: Tensor, group: Tensor, groups: int, weight: Tensor | None = None
) -> Tensor:
    r"""AUC within each stratum of an attribute, such as sex, race or age group.

    Worked by hand in :doc:`/notebooks/metrics`.

    Args:
        score: Scores, shape (N,).
        y: Labels 0 or 1, shape (N,).
        group: The stratum of each patient, in 0 ... groups - 1, shape (N,).
        groups: The number of strata.
        weight: Weights, shape (N,), or (B, N) for B areas of each stratum at once; 1 by default.

    Returns:
        The areas, shape (groups,) or (groups, B); NaN for a stratum that lacks a class.

    Example:
        >>> score, y = torch.tensor([0.1, 0.9, 0.8, 0.2]), torch.tensor([0, 1, 0, 1])
        >>> stratified_auc(score, y, torch.tensor([0, 0, 1, 1]), groups=2).tolist()
        [1.0, 0.0]
    """
    weight = torch.ones_like(score) if weight is None else weight
    return torch.stack([auc(score, y, weight * (group == k)) for k in range(groups)])


def worst_gap(area: Tensor) -> Tensor:
    r"""Worst-case gap :math:`\Delta\mathrm{AUC}` between strata.

    .. math:: \max_s \mathrm{AUC}_s - \min_s \mathrm{AUC}_s

    The paper's label-based estimate of bias. A stratum that lacks a class makes it NaN: a gap to
    something unknown is unknown.

    Worked by hand in :doc:`/notebooks/metrics`.

    Args:
        area: The area of each stratum, shape (S,) or (S, B).

    Returns:
        The gap, shape () or (B,).

    Example:
        >>> worst_gap(torch.tensor([0.75, 1.0, 0.875])).item()
        0.25
    """
    return area.amax(dim=0) - area.amin(dim=0)
