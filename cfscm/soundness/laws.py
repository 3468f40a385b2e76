r"""Laws of readings: what can be known of counterfactuals without knowing a single true one.

If the graph is right, the counterfactuals of patients under do(a) have the law of observed images
of other patients with the parents that the counterfactuals have. So whatever a network reads of
them must be distributed as it is among observed patients with these parents, and must move, on
average, as it does between observed patients. Designs of generators are chosen by this.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor, nn

from cfcore.checks import InputError
from cfcore.generator import Generator, Parents, act
from cfcore.graph import CausalGraph
from cfcore.patients import Patients
from cfscm.encoding import encode, expanded
from cfscm.soundness.measure import Interventions, batches_of, interventions_of

_NEAR = 3  # observed patients that stand for one counterfactual
_GROUPS = 3  # into which the values of a continuous variable are divided
_LEAST = 20  # patients of a group


@torch.inference_mode()
def laws_table(
    generators: Mapping[str, Generator],
    data: Patients,
    observed: Patients,
    readers: Mapping[str, nn.Module],
    *,
    graph: CausalGraph,
    interventions: Interventions | None = None,
    label: str | None = None,
    batch: int = 32,
    seed: int = 0,
) -> pd.DataFrame:
    r"""Compares readings of counterfactuals with readings of observed images, by direct effect.

    =========== ==================================================================================
    measure     what it is
    =========== ==================================================================================
    law         the distance :math:`W_1` between the readings of counterfactuals and those of
                observed patients with nearly the same parents, in groups by the value set and by
                the label, averaged
    slope       :math:`\sum_i \Delta_i \delta_i / \sum_i \delta_i^2`, with the change
                :math:`\Delta_i` of a patient's reading and the change :math:`\delta_i` of its mean
                given the parents, by regression on observed patients: 1 for true
                counterfactuals, 0 for doing nothing
    moved       the mean absolute change of a reading; of two generators with the same laws the
                one that moves less is to be preferred
    =========== ==================================================================================

    Readings are probabilities of discrete variables, and continuous ones over their range.

    Args:
        data: The patients whose counterfactuals are drawn.
        observed: Other patients, many: those with whom they are compared.
        readers: Networks with a ``variable`` that no generator was trained with.
        interventions: What to set; by default another value of each parent.
        label: The variable by which laws are told apart as well.

    Returns:
        One row for each generator, intervention, reader and measure: ``value``, and for laws the
        ``floor``, the same distance of other observed patients with these parents.
    """
    names = [name for name in graph if name in data.parents]
    if label is not None and label not in names:
        raise InputError(f"the patients have no {label!r}, only {', '.join(names)}")
    pa, there = data.parents, {name: observed.parents[name] for name in names}
    interventions = interventions or interventions_of(pa, graph=graph, seed=seed)
    known = _readings(readers, observed, batch)
    curves = {name: _Curve(graph, names, there, values) for name, values in known.items()}
    own = _readings(readers, data, batch)
    rows = []
    for generator, one in generators.items():
        drawn = _drawn(one, data, interventions, readers, batch)
        for what, do in interventions.items():
            moved = {**pa, **do}
            near = _matched(graph, names, moved, there, 2 * _NEAR)
            groups = _groups(graph, moved, do, label)
            for name, values in drawn[what].items():
                like, other = (known[name][part] for part in near.chunk(2, dim=1))
                change = values - own[name]
                due = curves[name](moved) - curves[name](pa)
                found = {
                    "law": (_law(values, like, groups), _law(other[:, 0], like, groups)),
                    "slope": (float((change * due).sum() / (due * due).sum()), np.nan),
                    "moved": (float(change.abs().mean()), np.nan),
                }
                rows += [(generator, what, name, key, *pair) for key, pair in found.items()]
    columns = ["generator", "intervention", "reader", "measure", "value", "floor"]
    return pd.DataFrame(rows, columns=columns)


def _readings(readers: Mapping[str, nn.Module], data: Patients, batch: int) -> dict[str, Tensor]:
    """What each reader reads of images, shape (N, C)."""
    parts = [
        {name: _read(reader, x) for name, reader in readers.items()}
        for _, x, _ in data.batches(batch)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in readers}


def _read(reader: nn.Module, x: Tensor) -> Tensor:
    """Probabilities, or a value over its range, float64, shape (B, C)."""
    out, variable = reader(x).double(), reader.variable
    if variable.kind == "categorical":
        return out.softmax(dim=1)
    if variable.kind == "binary":
        return out.sigmoid()[:, None]
    low, high = variable.range
    return ((out - low) / (high - low))[:, None]


def _drawn(
    generator: Generator,
    data: Patients,
    interventions: Interventions,
    readers: Mapping[str, nn.Module],
    batch: int,
) -> dict[str, dict[str, Tensor]]:
    """What each reader reads of the counterfactuals of each intervention."""
    found = {what: {name: [] for name in readers} for what in interventions}
    for some in batches_of(data, interventions, batch, "cpu"):
        noise = generator.abduct(some.x, some.pa, index=some.index)
        for what, do in some.interventions.items():
            x = generator.predict(noise, act(generator, some.pa, do))
            for name, reader in readers.items():
                found[what][name].append(_read(reader, x))
    return {what: {n: torch.cat(v) for n, v in every.items()} for what, every in found.items()}


class _Curve:
    """The mean of a reading given the parents, by least squares on observed patients."""

    def __init__(self, graph: CausalGraph, names: list[str], pa: Parents, read: Tensor) -> None:
        self.graph, self.names = graph, names
        terms = self._terms(pa)
        gram = terms.T @ terms + 1e-6 * len(terms) * torch.eye(terms.shape[1])
        self.weights = torch.linalg.solve(gram, terms.T @ read)

    def __call__(self, pa: Parents) -> Tensor:
        return self._terms(pa) @ self.weights

    def _terms(self, pa: Parents) -> Tensor:
        """The parents, their products, and products of three of which two are the same."""
        c = encode(self.graph, pa, self.names).double() - 0.5
        triples = (c.square()[:, :, None] * c[:, None]).flatten(1)
        return torch.cat((expanded(c), triples), dim=1)


def _matched(
    graph: CausalGraph, names: list[str], pa: Parents, observed: Parents, count: int
) -> Tensor:
    """The observed patients with the same discrete parents and the nearest others, (N, count)."""
    discrete = [name for name in names if graph[name].kind != "continuous"]
    smooth = [name for name in names if name not in discrete]
    same = torch.ones(len(pa[names[0]]), len(observed[names[0]]), dtype=torch.bool)
    for name in discrete:
        same &= pa[name][:, None] == observed[name]
    spread = {name: observed[name].std().clamp(min=1e-9) for name in smooth}
    at, other = (
        torch.stack([p[name] / spread[name] for name in smooth], dim=1)
        if smooth
        else torch.zeros(len(p[names[0]]), 1)
        for p in (pa, observed)
    )
    gaps = torch.cdist(at, other).masked_fill(~same, torch.inf)
    found = gaps.topk(count, largest=False)
    if found.values.isinf().any():
        row = int(found.values.isinf().any(dim=1).nonzero()[0])
        value = {name: float(pa[name][row]) for name in discrete}
        raise InputError(f"fewer than {count} observed patients have {value}: take more of them")
    # Alternately, so that both halves are equally near.
    return torch.cat((found.indices[:, ::2], found.indices[:, 1::2]), dim=1)


def _groups(graph: CausalGraph, pa: Parents, do: Parents, label: str | None) -> list[Tensor]:
    """Groups of patients by the values that were set, and by the label; small ones are left out."""
    number = torch.zeros(len(next(iter(pa.values()))), dtype=torch.long)
    for name in {**do, **({} if label is None else {label: None})}:
        values = pa[name]
        if graph[name].kind == "continuous":
            edges = values.quantile(torch.linspace(0, 1, _GROUPS + 1)[1:-1].to(values))
            values = torch.bucketize(values, edges)
        number = number * (1 + int(values.max())) + values.long()
    groups = [(number == k).nonzero().squeeze(1) for k in number.unique()]
    return [group for group in groups if len(group) >= _LEAST] or [torch.arange(len(number))]


def _law(values: Tensor, like: Tensor, groups: list[Tensor]) -> float:
    """The distance of readings (N, C) from those of matched patients (N, M, C), over groups."""
    total = sum(
        len(rows) * wasserstein_distance(values[rows, k].numpy(), like[rows, :, k].flatten())
        for rows in groups
        for k in range(values.shape[1])
    )
    return float(total / sum(map(len, groups)) / values.shape[1])
