"""Sorting, by whoever sorts faster."""

import torch
from torch import Tensor


def argsort(x: Tensor) -> Tensor:
    """Indices that sort the last axis in ascending order; ties come in any order.

    On the CPU NumPy does it, on the same memory: its vectorised sorts are several times faster
    than torch's. Elsewhere torch does it where the tensor is.

    Example:
        >>> argsort(torch.tensor([0.3, 0.1, 0.2])).tolist()
        [1, 2, 0]
    """
    if x.device.type != "cpu":
        return x.argsort(dim=-1)
    return torch.from_numpy(x.detach().numpy().argsort(axis=-1))


def sort(x: Tensor) -> Tensor:
    """The last axis in ascending order.

    Example:
        >>> sort(torch.tensor([3, 1, 2])).tolist()
        [1, 2, 3]
    """
    if x.device.type != "cpu" or x.requires_grad:
        return x.sort(dim=-1).values
    numbers = x.numpy().copy()
    numbers.sort(axis=-1)
    return torch.from_numpy(numbers)
