r"""Leak: what the noise still says about the parents from which it should be free."""

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from cfcore.generator import Generator, Noise, Parents
from cfcore.graph import CausalGraph
from cfcore.patients import Patients
from cfscm.encoding import encode, widths
from cfscm.networks import in_units
from cfscm.soundness.distances import agreement

_PENALTIES = tuple(10.0**power for power in range(-5, 3))
_SIDE = 16  # pixels to which larger maps are averaged
_MOST = 32  # principal components of a leaf
_KERNELS = ("linear", "quadratic", "radial")


def noise_features(noise: Noise) -> list[Tensor]:
    """The noise of each patient as float32 vectors, one of shape (B, D) for each leaf.

    Maps of more than 16 pixels a side are averaged down to 16; integers are left out, for they
    are keys of random fields.
    """
    parts = []
    for leaf in tree_leaves(noise):
        if leaf.is_floating_point():
            large = leaf.ndim == 4 and max(leaf.shape[2:]) > _SIDE
            leaf = F.adaptive_avg_pool2d(leaf, _SIDE) if large else leaf
            parts.append(leaf.reshape(len(leaf), -1).float())
    return parts


def leak(
    features: Sequence[Tensor],
    pa: Parents,
    graph: CausalGraph,
    *,
    kernels: Sequence[str] = _KERNELS,
    permutations: int = 100,
    seed: int = 0,
) -> dict[str, Mapping[str, float]]:
    r"""How well a probe reads each parent off the noise, and how well it would by chance.

    Noise is independent of the parents by assumption. A probe is kernel ridge regression on half
    of the patients, kernel and penalty chosen by leaving one out, and is judged on the other half.
    A linear kernel sees only that means differ, which is nothing where a regression on the parents
    was taken off the noise; a quadratic one sees spreads and correlations as well, and a radial one
    any difference within the first components of each leaf, given enough patients. Leaves are
    whitened, so that each counts by its dimensions and not by its scale.

    What chance gives is known by doing the same, choices and all, with the parents of patients
    exchanged: if noise is independent of the parents, that changes nothing. The probe may miss a
    leak, but invents one at the rate of its level only.

    Args:
        features: The leaves of the noise, each of shape (N, D).
        kernels: Some of linear, quadratic and radial.
        permutations: How often the patients are exchanged.

    Returns:
        For each parent, what :func:`~cfscm.soundness.distances.agreement` says about the probe;
        ``by chance``, the 95th percentile of AUC or R2 over the exchanges; and ``p``, the share of
        exchanges, the true order among them, that reach what was found.
    """
    rng, count = torch.Generator().manual_seed(seed), len(features[0])
    device = features[0].device
    fit, test = torch.randperm(count, generator=rng).to(device).tensor_split(2)
    x = torch.cat([_whitened(leaf.double(), fit) for leaf in features], dim=1)
    exchanges = [torch.randperm(count, generator=rng) for _ in range(permutations)]
    orders = torch.stack([torch.arange(count), *exchanges], dim=1).to(device)  # (N, 1 + R)
    names = [name for name in graph if name in pa]
    codes = encode(graph, pa, names).double()[orders]  # (N, 1 + R, M)
    grams = [gram(kernel, x, fit) for kernel in kernels]
    read = _ridge(grams, codes[fit].flatten(1), fit, test).unflatten(1, codes.shape[1:])

    found = {}
    for name, out in zip(names, read.split(list(widths(graph, names).values()), 2), strict=True):
        variable, y = graph[name], pa[name][orders[test]]
        middle = 0.5 if variable.kind == "binary" else 0  # a code of 0 or 1 is read as a logit
        units = [in_units(variable, out[:, r]) - middle for r in range(1 + permutations)]
        said = [agreement(variable, each, y[:, r]) for r, each in enumerate(units)]
        area = "R2" if graph[name].kind == "continuous" else "AUC"
        scores = torch.tensor([one[area] for one in said])
        found[name] = said[0] | {
            "by chance": scores[1:].quantile(0.95).item() if permutations else torch.nan,
            "p": (scores >= scores[0]).double().mean().item(),
        }
    return found


def _whitened(x: Tensor, fit: Tensor) -> Tensor:
    """The first principal components over the rows ``fit`` of x (N, D), each of variance 1 there.

    They have shape (N, C); those without variance are left out.
    """
    x = x - x[fit].mean(dim=0)
    _, spread, axes = torch.linalg.svd(x[fit], full_matrices=False)
    kept = (spread > 1e-8 * max(1.0, spread[0].item())).nonzero().squeeze(1)[:_MOST]
    return x @ axes[kept].T / spread[kept] * len(fit) ** 0.5


def gram(kernel: str, x: Tensor, fit: Tensor) -> Tensor:
    r"""A kernel between all rows, centred over some of them, shape (N, N).

    .. math:: \frac{x^\top x'}{C}, \qquad \Big(1 + \frac{x^\top x'}{\sqrt{C}}\Big)^2, \qquad
        \exp\Big(-\frac{\lVert x - x' \rVert^2}{m}\Big)

    with the median :math:`m` of the squared distances; ``x`` is white, shape (N, C).
    """
    width = max(1, x.shape[1])
    inner = x @ x.T
    if kernel == "linear":
        k = inner / width
    elif kernel == "quadratic":
        k = (1 + inner / width**0.5) ** 2
    else:
        length = inner.diagonal()
        distance = (length[:, None] + length - 2 * inner).clamp(min=0)
        middle = distance[fit][:, fit].median()
        k = torch.exp(-distance / torch.where(middle > 0, middle, 1))
    mean = k[:, fit].mean(dim=1)
    return k - mean[:, None] - mean + mean[fit].mean()


def _ridge(grams: Sequence[Tensor], y: Tensor, fit: Tensor, test: Tensor) -> Tensor:
    r"""Kernel ridge regression, with the kernel and penalty of the least leave-one-out error.

    .. math:: \hat{y}(x') = \bar{y} + k(x')^\top (K + \lambda n s I)^{-1} (y - \bar{y})

    with the mean :math:`s` of the eigenvalues. The decomposition of :math:`K` costs n^3 and is
    shared by all targets, so that thousands of them cost little more than one.

    Args:
        grams: The kernels between all rows, float64, each of shape (N, N).
        y: The targets of the rows to fit, shape (n, M).
        fit: These rows.
        test: The rows at which to predict, m of them.
    """
    mean, least = y.mean(dim=0), torch.full_like(y[0], torch.inf)
    best = mean.expand(len(test), -1)
    for k in grams:
        values, basis = torch.linalg.eigh(k[fit][:, fit])
        values, turned = values.clamp(min=0), basis.T @ (y - mean)
        unit = len(fit) * values.mean().clamp(min=1e-12)
        for penalty in _PENALTIES:
            inverse = 1 / (values + penalty * unit)
            dual = basis @ (inverse[:, None] * turned)
            # The residual over one minus the leverage is the dual over the inverse's diagonal.
            error = (dual / (basis.square() @ inverse)[:, None]).square().mean(dim=0)
            better = error < least
            least = torch.where(better, error, least)
            best = torch.where(better, mean + k[test][:, fit] @ dual, best)
    return best


@torch.inference_mode()
def leak_table(
    generators: Mapping[str, Generator],
    data: Patients,
    *,
    graph: CausalGraph,
    permutations: int = 200,
) -> pd.DataFrame:
    """Probes the noise of several generators on the same patients.

    Returns:
        One row for each generator, leaf of its noise if they are named and few, probe (``linear``,
        or ``kernel`` for the best of all) and parent: ``generator, noise, probe, parent, measure,
        value, by_chance, p, patients, permutations``.
    """
    index, pa, rows = data.index, data.parents, []
    for title, generator in generators.items():
        parts = [generator.abduct(x, own, index=index[at]) for at, x, own in data.batches(128)]
        whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        some = {name: [name] for name in whole} if 1 < len(whole) <= 4 else {}
        for part, names in {"all": list(whole), **some}.items():
            features = noise_features([whole[name] for name in names])
            for probe, kernels in {"linear": _KERNELS[:1], "kernel": _KERNELS}.items():
                found = leak(features, pa, graph, kernels=kernels, permutations=permutations)
                for name, said in found.items():
                    measure = "R2" if "R2" in said else "AUC"
                    row = (title, part, probe, name, measure, said[measure])
                    rows.append((*row, said["by chance"], said["p"]))
    columns = ["generator", "noise", "probe", "parent", "measure", "value", "by_chance", "p"]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(patients=len(data), permutations=permutations)
