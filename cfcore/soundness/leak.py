r"""Leak: what the noise still says about the parents from which it should be free."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from cfcore.generator import Noise, Parents
from cfcore.graph import CausalGraph
from cfcore.scm.encoding import encode, widths
from cfcore.soundness.distances import agreement

PENALTIES = tuple(10.0**power for power in range(-4, 3))

SIDE = 16  # pixels to which larger maps are averaged


def noise_features(noise: Noise) -> list[Tensor]:
    """The noise of each patient as vectors, one of shape (B, D) for each leaf.

    Maps of more than 16 pixels a side are averaged down to 16; integers are left out, for they
    are keys of random fields.

    Args:
        noise: A tree of tensors with leading axis B.

    Returns:
        The vectors, float32.
    """
    parts = []
    for leaf in tree_leaves(noise):
        if leaf.is_floating_point():
            large = leaf.ndim == 4 and max(leaf.shape[2:]) > SIDE
            leaf = F.adaptive_avg_pool2d(leaf, SIDE) if large else leaf
            parts.append(leaf.reshape(len(leaf), -1).float())
    return parts


def leak(
    features: Sequence[Tensor], pa: Parents, graph: CausalGraph, *, seed: int = 0
) -> dict[str, Mapping[str, float]]:
    r"""How well a linear probe reads each parent off the noise.

    Noise is independent of the parents by assumption, so that a probe should reach an AUC of 0.5
    and an :math:`R^2` of 0 or less. A probe is ridge regression on half of the patients, its
    penalty chosen by leaving one out, and is judged on the other half. All leaves of the noise
    have the same weight, lest a few latent numbers drown in the pixels of a residual. It is
    linear: it may miss a leak, but not invent one.

    Args:
        features: The leaves of the noise, each of shape (N, D).
        pa: The parents, each of shape (N,).
        graph: The graph.
        seed: The seed of the halves.

    Returns:
        For each parent, what :func:`~cfcore.soundness.distances.agreement` says about the probe.
    """
    order = torch.randperm(len(features[0]), generator=torch.Generator().manual_seed(seed))
    fit, test = order.to(features[0].device).tensor_split(2)
    x = torch.cat([standardised(leaf.double(), fit) for leaf in features], dim=1)
    names = [name for name in graph if name in pa]
    codes = encode(graph, pa, names).double()
    read = ridge(x[fit], codes[fit], x[test])

    found = {}
    for name, out in zip(names, read.split(list(widths(graph, names).values()), 1), strict=True):
        variable = graph[name]
        if variable.kind == "continuous":
            low, high = variable.range
            out = low + (high - low) * out
        elif variable.kind == "binary":
            out = out - 0.5
        out = out if variable.kind == "categorical" else out.squeeze(1)
        found[name] = agreement(variable, out, pa[name][test])
    return found


def standardised(x: Tensor, fit: Tensor) -> Tensor:
    """Features of mean 0 and of variance 1 / D over some rows; constant ones become 0."""
    spread = x[fit].std(dim=0, correction=0)
    return (x - x[fit].mean(dim=0)) / torch.where(
        spread > 1e-8, spread * x.shape[1] ** 0.5, torch.inf
    )


def ridge(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    r"""Ridge regression in its dual form, with the penalty of the least leave-one-out error.

    .. math:: \hat{y}(x') = k(x')^\top (K + \lambda n I)^{-1} y, \qquad K = X X^\top

    The dual form costs n^3, however many features there are.

    Args:
        x: The features, float64, of mean 0, shape (n, D).
        y: The targets, shape (n, M).
        at: The features at which to predict, shape (m, D).

    Returns:
        The predictions, shape (m, M).
    """
    n, mean = len(x), y.mean(dim=0)
    values, basis = torch.linalg.eigh(x @ x.T)
    turned = basis.T @ (y - mean)

    errors, fits = [], []
    for penalty in PENALTIES:
        inverse = 1 / (values.clamp(min=0) + penalty * n)
        dual = basis @ (inverse[:, None] * turned)
        # The residual over one minus the leverage is the dual over the inverse's diagonal.
        left_out = dual / (basis.square() @ inverse)[:, None]
        errors.append(left_out.square().mean(dim=0))
        fits.append(mean + at @ (x.T @ dual))
    best = torch.stack(errors).argmin(dim=0)
    return torch.stack(fits).gather(0, best.expand(1, len(at), -1)).squeeze(0)
