r"""Ranking: does the order in which patients would be seen survive marginalisation?

Everything here is sorting and counting, O(N log N), and never asks an accelerator for a value.
Constant scores have no order: their correlations are NaN.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from cfcore.metrics.sorting import argsort, sort


class Groups(NamedTuple):
    """Scores grouped by value.

    Attributes:
        index: The number of each score's value among the distinct ones, ascending, shape (N,).
        size: How many scores have each value, padded with zeros, shape (N,).
    """

    index: Tensor
    size: Tensor


def group_sorted(value: Tensor) -> Groups:
    """Group scores that are in ascending order already.

    Example:
        >>> index, size = group_sorted(torch.tensor([1, 3, 3]))
        >>> index.tolist(), size.tolist()
        ([0, 1, 1], [1, 2, 0])
    """
    index = torch.zeros_like(value, dtype=torch.int64)
    torch.cumsum(value[1:] != value[:-1], dim=0, out=index[1:])
    return Groups(index, torch.zeros_like(index).scatter_add(0, index, torch.ones_like(index)))


def tie_groups(x: Tensor) -> Groups:
    r"""Group scores by value: one sort, from which all rank metrics follow.

    Args:
        x: Scores, shape (N,).

    Returns:
        The groups.

    Example:
        >>> index, size = tie_groups(torch.tensor([0.3, 0.1, 0.3]))
        >>> index.tolist(), size.tolist()
        ([1, 0, 1], [1, 2, 0])
    """
    x = x.double()
    order = argsort(x)
    index, size = group_sorted(x[order])
    return Groups(torch.empty_like(index).scatter(0, order, index), size)


def group_ranks(groups: Groups) -> Tensor:
    """Ranks 1 ... N of grouped scores; a group shares the average of its ranks."""
    last = groups.size.cumsum(dim=0)
    return (last - (groups.size - 1) / 2.0).double()[groups.index]


def average_ranks(x: Tensor) -> Tensor:
    r"""Ranks 1 ... N in ascending order; equal scores share the average of their ranks.

    Args:
        x: Scores, shape (N,).

    Returns:
        The ranks, shape (N,), in float64.

    Example:
        >>> average_ranks(torch.tensor([0.3, 0.1, 0.3])).tolist()
        [2.5, 1.0, 2.5]
    """
    return group_ranks(tie_groups(x))


def correlation(x: Tensor, y: Tensor) -> Tensor:
    r"""Pearson correlation; NaN if either side is constant.

    Args:
        x: Values, shape (N,).
        y: Values, shape (N,).

    Returns:
        The correlation, shape ().

    Example:
        >>> correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 2.0, 1.0])).item()
        -1.0
    """
    x, y = x.double() - x.double().mean(), y.double() - y.double().mean()
    return (x @ y) / ((x @ x) * (y @ y)).sqrt()


def rank_stability(p_obs: Tensor, p_bar: Tensor) -> Tensor:
    r"""Counterfactual rank stability :math:`\mathcal{S}_{\mathrm{rank}}` (``eq:cf_rank``).

    .. math:: 1 - \frac{6 \sum_{i=1}^{N} (r_i - \bar r_i)^2}{N (N^2 - 1)}

    Spearman's correlation between the ranks of the observed scores and those of the marginalised
    ones. The printed formula holds without ties; this is its general form, the Pearson
    correlation of average ranks, which equals it then.

    Worked by hand at :eq:`eq:cf_rank` in :doc:`/notebooks/metrics`.

    Args:
        p_obs: Observed probabilities, shape (N,).
        p_bar: Marginalised predictions, :func:`~cfcore.metrics.marginal.rounded`, shape (N,).

    Returns:
        The correlation, shape (); NaN if either side is constant.

    Example:
        >>> p_obs, p_bar = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.2, 0.1, 0.3, 0.4])
        >>> round(rank_stability(p_obs, p_bar).item(), 12)
        0.8
    """
    return correlation(average_ranks(p_obs.double()), average_ranks(p_bar.double()))


def mean_absolute_rank_change(p_obs: Tensor, p_bar: Tensor) -> Tensor:
    r"""Mean absolute rank change :math:`|\Delta \bar r|`, Spearman's footrule by patient.

    .. math:: \frac{1}{N} \sum_{i=1}^{N} | r_i - \bar r_i |

    How many places a patient moves in the queue; it grows with N.

    Worked by hand in :doc:`/notebooks/metrics`.

    Args:
        p_obs: Observed probabilities, shape (N,).
        p_bar: Marginalised predictions, :func:`~cfcore.metrics.marginal.rounded`, shape (N,).

    Returns:
        The change in places, shape ().

    Example:
        >>> p_obs, p_bar = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.2, 0.1, 0.3, 0.4])
        >>> mean_absolute_rank_change(p_obs, p_bar).item()
        0.5
    """
    return (average_ranks(p_obs.double()) - average_ranks(p_bar.double())).abs().mean()


def inversions(v: Tensor) -> Tensor:
    r"""Count the pairs :math:`i < j` with :math:`v_i > v_j`.

    Two numbers are ordered by the highest bit in which they differ. So the numbers are sorted
    from the highest bit down, one stable partition for each bit, and at each bit a zero is
    inverted with every one that stands before it among the numbers which agree in the higher
    bits: N log N steps, all of them vectorised.

    Args:
        v: Integers in 0 ... N - 1, shape (N,).

    Returns:
        The count, shape ().

    Example:
        >>> inversions(torch.tensor([2, 0, 1, 0])).item()
        4
    """
    bits = max(v.shape[0] - 1, 0).bit_length()
    below = v.new_zeros(2**bits + 1).scatter_add(0, v + 1, torch.ones_like(v)).cumsum(dim=0)
    v, below = v.int(), below.int()  # half the memory, and twice the speed
    position = torch.arange(v.shape[0], dtype=torch.int32, device=v.device)
    count = v.new_zeros((), dtype=torch.int64)

    for bit in reversed(range(bits)):
        prefix = v >> (bit + 1) << (bit + 1)
        one = v >> bit & 1
        ones = one.cumsum(dim=0, dtype=torch.int32) - one
        ones -= ones[below[prefix]]  # ones before this place, same prefix
        one = one.bool()
        count = count + ones.masked_fill(one, 0).sum()
        place = torch.where(one, below[prefix + (1 << bit)] + ones, position - ones)
        v = torch.empty_like(v).scatter(0, place.long(), v)

    return count


def kendall(x: Tensor, y: Tensor) -> Tensor:
    r"""Kendall's :math:`\tau_b`, the column of the paper's stability table.

    .. math:: \tau_b = \frac{C - D}{\sqrt{(T - T_x)(T - T_y)}}

    with C concordant and D discordant pairs among all T, of which :math:`T_x` and :math:`T_y` are
    tied on either side. It counts pairs of patients seen in the wrong order and, unlike Spearman's
    correlation, does not weigh them by their distance. On the CPU SciPy counts them; elsewhere
    :func:`inversions` does, without leaving the device.

    Worked by hand in :doc:`/notebooks/metrics`.

    Args:
        x: Scores, shape (N,).
        y: Scores, shape (N,).

    Returns:
        The coefficient, shape (); NaN if either side is constant.

    Example:
        >>> x, y = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.1, 0.3, 0.2])
        >>> round(kendall(x, y).item(), 6)
        0.333333
    """
    if x.device.type != "cpu" or x.shape[0] < 3:
        return group_kendall(tie_groups(x), tie_groups(y))

    from scipy.stats import kendalltau

    x, y = x.detach().double(), y.detach().double()
    tau = kendalltau(x.numpy(), y.numpy(), method="asymptotic").statistic
    return torch.tensor(float(tau), dtype=torch.float64)


def group_kendall(x: Groups, y: Groups) -> Tensor:
    """Kendall's coefficient of grouped scores, wherever they are; see :func:`kendall`."""
    n = x.index.shape[0]
    both = sort(x.index * n + y.index)
    total, joint = n * (n - 1) // 2, tied_pairs(group_sorted(both).size)
    x_tied, y_tied = tied_pairs(x.size), tied_pairs(y.size)

    net = total - x_tied - y_tied + joint - 2 * inversions(both % max(n, 1))
    return net.double() / ((total - x_tied).double() * (total - y_tied).double()).sqrt()


def tied_pairs(size: Tensor) -> Tensor:
    """The number of pairs within groups of these sizes.

    Example:
        >>> tied_pairs(torch.tensor([3, 1, 2])).item()
        4
    """
    return (size * (size - 1)).sum() // 2
