r"""Support: how many patients are near each world, and how near counterfactuals are to them."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from cfcore.checks import InputError
from cfcore.generator import Effect, Generator, act
from cfcore.interventions import Grid
from cfcore.patients import Patients
from cfscm.soundness.measure import batches_of

_NEIGHBOURS = 5
_IMAGES = 32  # read at once


@torch.inference_mode()
def support_table(
    generators: Mapping[str, Generator],
    data: Patients,
    real: Patients,
    grid: Grid,
    reader: nn.Module,
    *,
    effect: Effect = "direct",
    device: torch.device | str = "cpu",
) -> pd.DataFrame:
    r"""How near counterfactuals are to real images of patients near their world.

    .. math:: \frac{\frac{1}{N} \sum_{i} d\big(\tilde{x}_i(\tilde{a}_k), R_k\big)}
        {\frac{1}{|R_k|} \sum_{r \in R_k} d(x_r, R_k)}

    Here :math:`R_k` are the real images near world :math:`k` (:meth:`cfcore.Grid.near`), and
    :math:`d` is the mean distance to the five nearest of other patients, in the features of a
    reader that is not audited. One means: as near as these real images are to one another. True
    counterfactuals need not have one, because they hold what is otherwise in that world, such as a
    label that is rare there.

    Args:
        generators: The generators, by name.
        data: The patients whose counterfactuals are drawn.
        real: The patients whose images they are compared with.
        grid: The worlds.
        reader: A network that was trained apart; its features are what its last linear layer gets,
            each in units of its spread over the real images.
        effect: ``"direct"`` or ``"total"``.

    Returns:
        A row for each world: what it sets, ``patients``, how many of the real ones are near it,
        and the distance of each generator; NaN where no more than five are near it.
    """
    near, patients = grid.near(real.parents), grid.support(real)
    if not patients.any():
        raise InputError("no real patient is near any world", column="real")
    code = {name: number for number, name in enumerate(dict.fromkeys(real.patient))}
    theirs, own = (torch.tensor([code.get(n, -1) for n in d.patient]) for d in (real, data))
    there = _observed(reader, real, device)
    spread = there.std(dim=0).clamp(min=1e-6)
    drawn = {
        name: _counterfactual(reader, generator, data, grid, effect, device)
        for name, generator in generators.items()
    }
    rows = []
    for k, count in enumerate(patients.tolist()):
        row = {name: values[k].item() for name, values in grid.values.items()}
        found = dict.fromkeys(generators, np.nan)
        if count > _NEIGHBOURS:
            some, who = there[near == k] / spread, theirs[near == k]
            unit = _distance(some, some, who, who)
            for name, x in drawn.items():
                found[name] = _distance(x[:, k] / spread, some, own, who) / unit
        rows.append(row | {"patients": count} | found)
    return pd.DataFrame(rows)


def _distance(x: Tensor, real: Tensor, own: Tensor, theirs: Tensor) -> float:
    """The mean distance to the nearest images of other patients."""
    gaps = torch.cdist(x, real).masked_fill(own[:, None] == theirs, torch.inf)
    return gaps.topk(_NEIGHBOURS, dim=1, largest=False).values.mean().item()


def _observed(reader: nn.Module, data: Patients, device: torch.device | str) -> Tensor:
    """The features of the images of some patients, shape (N, D)."""
    return torch.cat([_features(reader, x.to(device)) for _, x, _ in data.batches(_IMAGES)])


def _counterfactual(
    reader: nn.Module,
    generator: Generator,
    data: Patients,
    grid: Grid,
    effect: Effect,
    device: torch.device | str,
) -> Tensor:
    """The features of all patients in all worlds, shape (N, K, D)."""
    worlds = {
        str(k): {name: values[k].expand(len(data)) for name, values in grid.values.items()}
        for k in range(len(grid))
    }
    parts = []
    for batch in batches_of(data, worlds, _IMAGES, device):
        noise = generator.abduct(batch.x, batch.pa, index=batch.index)
        acted = [act(generator, batch.pa, do, effect) for do in batch.interventions.values()]
        found = [_features(reader, generator.predict(noise, pa)) for pa in acted]
        parts.append(torch.stack(found, dim=1))
    return torch.cat(parts)


def _features(reader: nn.Module, x: Tensor) -> Tensor:
    """What the last linear layer of a network gets of some images, shape (B, D)."""
    seen = []
    last = [layer for layer in reader.modules() if isinstance(layer, nn.Linear)][-1]
    hook = last.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        reader(x)
    finally:
        hook.remove()
    return seen[0].double().cpu()
