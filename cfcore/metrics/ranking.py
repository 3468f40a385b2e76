r"""Ranking: does the order in which patients would be seen survive marginalisation?

Everything here is sorting and counting, O(N log N), and never asks an accelerator for a value.
Scores that were grouped by :func:`tie_groups` may be passed in place of scores: several metrics
then share one sort. Constant scores have no order: their correlations are NaN.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_PAIRS = 2_000  # scores of which all pairs are held in memory


def argsort(x: Tensor) -> Tensor:
    """Indices that sort the last axis, ascending; NumPy is several times faster than torch."""
    if x.device.type != "cpu":
        return x.argsort(dim=-1)
    return torch.from_numpy(x.detach().numpy().argsort(axis=-1))


def sort(x: Tensor) -> Tensor:
    """The last axis, ascending; on the CPU in place, so ``x`` must be needed no more."""
    if x.device.type != "cpu" or x.requires_grad:
        return x.sort(dim=-1).values
    x.numpy().sort(axis=-1)
    return x


class Groups(NamedTuple):
    """Scores grouped by value.

    Attributes:
        index: The number of each score's value among the distinct ones, ascending, shape (N,).
        size: How many scores have each value, padded with zeros, shape (N,).
    """

    index: Tensor
    size: Tensor

    def take(self, rows: Tensor) -> "Groups":
        """The groups of some of the scores, or of some of them repeatedly, without sorting."""
        index = self.index.index_select(0, rows)
        size = torch.zeros_like(self.size).index_add_(0, index, torch.ones_like(index))
        return Groups(index, size)


_Ranks = Tensor | Groups


def _group_sorted(value: Tensor) -> Groups:
    """Group scores that are in ascending order already."""
    index = torch.zeros_like(value, dtype=torch.int64)
    torch.cumsum(value[1:] != value[:-1], dim=0, out=index[1:])
    ones = index.new_ones(()).expand_as(index)
    return Groups(index, torch.zeros_like(index).scatter_add_(0, index, ones))


def tie_groups(x: _Ranks) -> Groups:
    """Group scores, shape (N,), by value: one sort, from which all rank metrics follow.

    Example:
        >>> index, size = tie_groups(torch.tensor([0.3, 0.1, 0.3]))
        >>> index.tolist(), size.tolist()
        ([1, 0, 1], [1, 2, 0])
    """
    if isinstance(x, Groups):
        return x
    x = x.double()
    order = argsort(x)
    index, size = _group_sorted(x.index_select(0, order))
    return Groups(torch.empty_like(index).scatter(0, order, index), size)


def _average_ranks(x: _Ranks, weight: Tensor | None = None) -> Tensor:
    r"""Ranks 1 ... N in ascending order; equal scores share the average of their ranks.

    The weight says how often each score is in a sample, shape (N,), or (B, N) for B samples.

    Example:
        >>> _average_ranks(torch.tensor([0.3, 0.1, 0.3])).tolist()
        [2.5, 1.0, 2.5]
        >>> _average_ranks(torch.tensor([0.3, 0.1]), torch.tensor([[1, 1], [1, 3]])).tolist()
        [[2.0, 1.0], [4.0, 2.0]]
    """
    index, size = tie_groups(x)
    if weight is not None:
        size = torch.zeros_like(weight).index_add(-1, index, weight)
    size = size.double()
    return (size.cumsum(dim=-1) - (size - 1) / 2).index_select(-1, index)


def correlation(x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Pearson correlation on the last axis, perhaps weighted; NaN if either side is constant."""
    x, y = x.double(), y.double()
    weight = x.new_ones(()).expand_as(x) if weight is None else weight.double()
    total = weight.sum(dim=-1, keepdim=True)
    x, y = (v - (weight * v).sum(dim=-1, keepdim=True) / total for v in (x, y))
    xy, xx, yy = ((weight * a * b).sum(dim=-1) for a, b in ((x, y), (x, x), (y, y)))
    return xy / (xx * yy).sqrt()


def rank_stability(p_obs: _Ranks, p_bar: _Ranks, weight: Tensor | None = None) -> Tensor:
    r"""Counterfactual rank stability :math:`S_{\mathrm{rank}}` (``eq:cf_rank``).

    .. math:: 1 - \frac{6 \sum_{i=1}^{N} (r_i - \bar r_i)^2}{N (N^2 - 1)}

    Spearman's correlation between observed and marginalised scores (:eq:`eq:cf_rank`). The printed
    formula holds without ties; this is its general form, the Pearson correlation of average ranks.

    Args:
        p_obs, p_bar: Observed and rounded marginalised probabilities, each of shape (N,).
        weight: How often each patient is in a sample, shape (N,) or (B, N); 1 by default.

    Returns:
        The correlation, shape () or (B,); NaN if either side is constant.

    Example:
        >>> p_obs, p_bar = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.2, 0.1, 0.3, 0.4])
        >>> round(rank_stability(p_obs, p_bar).item(), 12)
        0.8
    """
    return correlation(_average_ranks(p_obs, weight), _average_ranks(p_bar, weight), weight)


def mean_absolute_rank_change(p_obs: _Ranks, p_bar: _Ranks, weight: Tensor | None = None) -> Tensor:
    r"""Mean absolute rank change :math:`|\Delta \bar r|`, Spearman's footrule by patient.

    .. math:: \frac{1}{N} \sum_{i=1}^{N} | r_i - \bar r_i |

    How many places a patient moves in the queue; it grows with N.

    Args:
        p_obs, p_bar: Observed and rounded marginalised probabilities, each of shape (N,).
        weight: How often each patient is in a sample, shape (N,) or (B, N); 1 by default.

    Returns:
        The change in places, shape () or (B,).

    Example:
        >>> p_obs, p_bar = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.2, 0.1, 0.3, 0.4])
        >>> mean_absolute_rank_change(p_obs, p_bar).item()
        0.5
    """
    change = (_average_ranks(p_obs, weight) - _average_ranks(p_bar, weight)).abs()
    return change.mean() if weight is None else (weight * change).sum(-1) / weight.sum(-1)


def auc(score: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    r"""Area under the ROC curve: the share of pairs in which the diseased patient scores higher.

    .. math:: \frac{\sum_{i,j} w_i w_j \, y_i (1 - y_j) \big( \mathbb{1}[s_i > s_j]
        + \tfrac12 \mathbb{1}[s_i = s_j] \big)}{\sum_{i,j} w_i w_j \, y_i (1 - y_j)}

    A weight of 0 leaves a patient out, which is how strata are made without moving data.

    Args:
        score, y: Scores and labels 0 or 1, each of shape (N,).
        weight: Weights, shape (N,), or (B, N) for B areas at once; 1 by default.

    Returns:
        The area, shape () or (B,); NaN if a class is absent.

    Example:
        >>> auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1])).item()
        0.875
    """
    weight = torch.ones_like(y, dtype=torch.float64) if weight is None else weight.double()
    sick, healthy = weight * (y == 1), weight * (y == 0)
    below = _average_ranks(score, healthy) - 0.5  # healthy patients who score less; ties count half
    return (sick * below).sum(dim=-1) / (sick.sum(dim=-1) * healthy.sum(dim=-1))


def average_precision(score: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    r"""Average precision: the precision at each distinct score, weighted by the recall it adds.

    .. math:: \sum_t (R_t - R_{t-1}) \, P_t

    with precision :math:`P_t` and recall :math:`R_t` among the patients who score at least the t-th
    highest value. Unlike the AUC it depends on how rare the disease is.

    Args:
        score, y: Scores and labels 0 or 1, each of shape (N,).
        weight: Weights, shape (N,), or (B, N) for B values at once; 1 by default.

    Returns:
        The average, shape () or (B,); NaN if nobody is ill.

    Example:
        >>> average_precision(torch.tensor([0.1, 0.4, 0.3, 0.8]), torch.tensor([0, 0, 1, 1])).item()
        0.8333333333333333
    """
    index, size = tie_groups(score)
    weight = torch.ones_like(y, dtype=torch.float64) if weight is None else weight.double()
    empty = weight.new_zeros(*weight.shape[:-1], len(size))
    sick, all_ = (empty.index_add(-1, index, w).flip(-1) for w in (weight * (y == 1), weight))
    precision = sick.cumsum(dim=-1) / all_.cumsum(dim=-1)
    return (sick * precision.nan_to_num(0.0)).sum(dim=-1) / sick.sum(dim=-1)


def _inversions(v: Tensor) -> Tensor:
    r"""Count the pairs :math:`i < j` with :math:`v_i > v_j` in a permutation of 0 ... N - 1.

    Two numbers are ordered by the highest bit in which they differ. So the numbers are sorted
    from the highest bit down, one stable partition for each bit, and at each bit a zero is
    inverted with every one that stands before it among the numbers which agree in the higher
    bits. Such numbers stand together, half of them with a zero: N log N steps, all vectorised.
    """
    n, bits = v.shape[0], max(v.shape[0] - 1, 0).bit_length()
    v = torch.cat((v.int(), torch.arange(n, 2**bits, dtype=torch.int32, device=v.device)))
    count = v.new_zeros((), dtype=torch.int64)
    for half in (2**bit for bit in reversed(range(bits))):
        order = _zeros_first(v & half != 0)
        place = order[: len(v) // 2] & (2 * half - 1)  # of each zero among those it is compared to
        count = count + place.sum() - len(v) * (half - 1) // 4
        v = v.index_select(0, order).view(2, -1, half).transpose(0, 1).flatten()
    return count


def _zeros_first(one: Tensor) -> Tensor:
    """The places of what is false, then of what is true, each ascending."""
    if one.device.type != "cpu":
        return one.int().argsort(stable=True)
    one = one.numpy()
    return torch.from_numpy(np.concatenate((np.flatnonzero(~one), np.flatnonzero(one))))


def kendall(x: _Ranks, y: _Ranks) -> Tensor:
    r"""Kendall's :math:`\tau_b`, the column of the paper's stability table.

    .. math:: \tau_b = \frac{C - D}{\sqrt{(T - T_x)(T - T_y)}}

    with C concordant and D discordant pairs among all T, of which :math:`T_x` and :math:`T_y` are
    tied on either side. Unlike Spearman's, it does not weigh pairs by their distance.

    Args:
        x, y: Scores, each of shape (N,).

    Returns:
        The coefficient, shape (); NaN if either side is constant.

    Example:
        >>> x, y = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.1, 0.3, 0.2])
        >>> round(kendall(x, y).item(), 6)
        0.333333
    """
    x, y = tie_groups(x), tie_groups(y)
    n, values = len(x.index), len(y.size)
    both = sort((x.index * values).add_(y.index))  # by x, where x is tied by y
    total, joint = n * (n - 1) // 2, _tied_pairs(_group_sorted(both).size)
    x_tied, y_tied = _tied_pairs(x.size), _tied_pairs(y.size)
    by_y = both.remainder_(values).mul_(n).add_(torch.arange(n, device=both.device))
    by_y = sort(by_y).remainder_(n)  # places in the order of both, by y
    net = total - x_tied - y_tied + joint - 2 * _inversions(by_y)
    return net.double() / ((total - x_tied).double() * (total - y_tied).double()).sqrt()


def kendall_of_samples(x: Groups, y: Groups) -> Callable[[Tensor], Tensor]:
    """:func:`kendall` of scores drawn (B, N) times, as a function; few are paired only once."""
    if len(x.index) > _PAIRS:
        return lambda drawn: torch.stack(
            [kendall(x.take(rows), y.take(rows)) for rows in map(torch.repeat_interleave, drawn)]
        )
    first, second = ((one.index[:, None] - one.index).sign().float() for one in (x, y))
    pairs = first * second, first.abs(), second.abs()

    def tau(drawn: Tensor) -> Tensor:
        often = drawn.float()
        net, own, other = (((often @ one).double() * often).sum(dim=-1) for one in pairs)
        return net / (own * other).sqrt()

    return tau


def _tied_pairs(size: Tensor) -> Tensor:
    """The number of pairs within groups of these sizes."""
    return (size * (size - 1)).sum() // 2
