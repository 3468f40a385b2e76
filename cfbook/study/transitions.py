"""Transitions: does a metric rise at every step towards more bias?"""

from torch import Tensor


def correct_transitions(values: Tensor) -> Tensor:
    r"""Correct transition count (CTC).

    .. math:: \frac{1}{S} \sum_{s=1}^{S} \sum_{c} \sum_{j}
        \mathbb{1}\big[ m_{s,c,j+1} > m_{s,c,j} \big]

    Each chain c starts at the unbiased predictor and goes to ever more biased ones; the paper has
    three chains of three steps, nine transitions. Only strict increases count. The count is taken
    for each seed s and then averaged. For metrics that should fall with bias (``S_rank``,
    ``tau_b``), pass the negative values.

    Worked by hand in :doc:`/notebooks/metrics`.

    Args:
        values: A metric along the chains, shape (..., chains, steps + 1); the leading axes are
            seeds.

    Returns:
        The mean count, shape ().

    Example:
        >>> correct_transitions(torch.tensor([[0.1, 0.2, 0.2, 0.4], [0.1, 0.0, 0.2, 0.3]])).item()
        4.0
    """
    return (values.diff(dim=-1) > 0).double().sum(dim=(-2, -1)).mean()
