r"""Variables as vectors: how networks see the parents."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from cfcore.checks import InputError
from cfcore.generator import Parents
from cfcore.graph import CausalGraph, Variable


def widths(graph: CausalGraph, names: Iterable[str]) -> dict[str, int]:
    """How many numbers each variable takes in :func:`encode`.

    Example:
        >>> age = Variable("age", "continuous", range=(20.0, 90.0))
        >>> site = Variable("site", "categorical", categories=("a", "b", "c"))
        >>> widths(CausalGraph([age, site]), ("site", "age"))
        {'site': 3, 'age': 1}
    """
    chosen = {name: graph[name] for name in names}
    return {name: len(v.values) if v.kind == "categorical" else 1 for name, v in chosen.items()}


def encode(graph: CausalGraph, pa: Parents, names: Sequence[str]) -> Tensor:
    r"""Variables as one vector, on the scale on which networks see them.

    Continuous variables become :math:`(v - lo) / (hi - lo)`, which leaves [0, 1] where the value
    leaves its range; binary ones stay 0 or 1; categorical ones are coded one-hot.

    Args:
        graph: The graph, which knows kinds and ranges.
        pa: The values, each of shape (...).
        names: Which variables to encode, and in which order.

    Returns:
        The vectors, shape (..., D).

    Example:
        >>> age = Variable("age", "continuous", range=(20.0, 90.0))
        >>> site = Variable("site", "categorical", categories=("a", "b", "c"))
        >>> graph = CausalGraph([site, age])
        >>> pa = {"age": torch.tensor([55.0]), "site": torch.tensor([2.0])}
        >>> encode(graph, pa, ["site", "age"])
        tensor([[0.0000, 0.0000, 1.0000, 0.5000]])
    """
    missing = [name for name in names if name not in pa]
    if missing:
        raise InputError(f"the patients have no {missing[0]!r}, only {', '.join(pa)}")
    return torch.cat([_code(graph[name], pa[name]) for name in names], dim=-1)


def expanded(c: Tensor) -> Tensor:
    """The parents with a constant and all their products, shape (B, 1 + D + D (D + 1) / 2).

    Example:
        >>> expanded(torch.tensor([[2.0, 3.0]]))
        tensor([[1., 2., 3., 4., 6., 9.]])
    """
    first, second = torch.triu_indices(c.shape[1], c.shape[1], device=c.device)
    return torch.cat((torch.ones_like(c[:, :1]), c, c[:, first] * c[:, second]), dim=1)


def _code(variable: Variable, value: Tensor) -> Tensor:
    value = value if value.is_floating_point() else value.float()
    if variable.kind == "continuous":
        low, high = variable.range
        value = (value - low) / (high - low)
    if variable.kind == "categorical":
        codes = torch.arange(len(variable.values), device=value.device)
        return (value[..., None] == codes).to(value.dtype)
    return value[..., None]
