"""Eight patients in sixteen worlds, as the truth and as a learned generator draw them."""

import base64
import zlib

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cfbook.production.interactive.playground import MEMBERS, TRAINED, label, with_offset
from cfbook.study.cohorts import held_out, phantom_cohort
from cfbook.study.presets import Preset
from cfbook.study.recipes import GeneratorRecipe, PredictorRecipe
from cfbook.study.runs import PredictorId
from cfchest.cohorts import age_group
from cfchest.data import Dataset
from cfchest.graph import paper_grid
from cfcore.generator import Generator, counterfactuals
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise
from cfcore.predictions import Predictions

HOSPITAL = "C"
_SEED = 0  # of the learned generator


def one_of_each_kind(table: pd.DataFrame) -> list[int]:
    """The first woman and man, young and old, healthy and ill, of a table: eight rows.

    Nobody is chosen for the picture. Young is below 45, old above 65.

    Example:
        >>> table = pd.DataFrame(
        ...     {"sex": [1, 1, 0], "age": [30, 40, 70], "effusion": [0, 0, 1]}, dtype=float
        ... )
        >>> one_of_each_kind(table)
        [0, 2]
    """
    known = table.assign(group=age_group(table.age), row=range(len(table)))
    ends = known[known.group != 1]
    return ends.groupby(["sex", "group", "effusion"]).row.first().sort_values().tolist()


@torch.inference_mode()
def worlds(generator: Generator, data: Dataset, grid: Grid) -> Tensor:
    """Every patient in every world, direct effect, shape (N, K, H, W), in [0, 1]."""
    given = generator, data[:], data.parents
    each = [{name: values[k] for name, values in grid.values.items()} for k in range(len(grid))]
    drawn = [counterfactuals(*given, do, index=data.index) for do in each]
    return torch.cat(drawn, dim=1)


def grey(images: Tensor) -> np.ndarray:
    """Images in [0, 1] as 8-bit grey levels."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8).numpy()


def _packed(images: np.ndarray) -> str:
    """A series of 8-bit images as text, without loss.

    Worlds share their noise, so that each image is kept as its difference from the one before,
    modulo 256, which deflate makes small; noise itself it cannot.

    Args:
        images: Shape (n, H, W), uint8.

    Returns:
        Base64 of the deflated differences.

    Example:
        >>> images = np.array([[[7, 250]], [[5, 255]]], dtype=np.uint8)
        >>> list(zlib.decompress(base64.b64decode(_packed(images))))
        [7, 250, 254, 5]
    """
    steps = np.diff(images, axis=0, prepend=np.zeros_like(images[:1]))  # uint8 wraps around
    return base64.b64encode(zlib.compress(steps.tobytes(), 9)).decode()


def _scores(generator: Generator, data: Dataset, preset: Preset) -> dict[PredictorId, Predictions]:
    """What each predictor of the pages says of some patients in every world."""
    readers = {
        m: PredictorRecipe(preset, HOSPITAL, m.family, m.strength, m.seed).obtain() for m in TRAINED
    }
    named = {m.name: reader for m, reader in readers.items()}
    found = marginalise(generator, named, data, paper_grid())
    return with_offset({m: found[m.name] for m in TRAINED})


def _rounded(logit: Tensor) -> list:
    """Logits as probabilities, with as many digits as a picture can show."""
    return np.round(logit.double().sigmoid().numpy(), 4).tolist()


def explorer(preset: Preset) -> dict[str, object]:
    """The data of the counterfactual explorer, ready for JSON.

    Args:
        preset: The sizes; generator and predictors are read if they are there, else trained.

    Returns:
        ``ages``, ``size``, ``predictors`` and ``patients``. A patient has ``sex``, ``age`` and
        ``effusion``; for each predictor a probability ``observed``, and one for each world by
        ``truth`` and ``learned``; and ``pictures``, packed: as observed, then each world
        of the truth, then each world as learned. Men come first, ages from low to high.
    """
    data = held_out(HOSPITAL, preset, "balanced")
    data = data.take(one_of_each_kind(data.table))
    grid = paper_grid()
    makers = {
        "truth": phantom_cohort(HOSPITAL, preset).oracle,
        "learned": GeneratorRecipe(preset, HOSPITAL, _SEED).obtain(),
    }
    drawn = [data[:], *(worlds(generator, data, grid) for generator in makers.values())]
    series = grey(torch.cat(drawn, dim=1))  # (N, 1 + 2 K, H, W)
    said = {name: _scores(generator, data, preset) for name, generator in makers.items()}
    return {
        "ages": sorted(set(grid.values["age"].tolist())),
        "size": series.shape[-1],
        "predictors": [label(member) for member in MEMBERS],
        "patients": [
            {name: float(row[name]) for name in ("sex", "age", "effusion")}
            | {"observed": [_rounded(said["truth"][m].logit_obs[i]) for m in MEMBERS]}
            | {by: [_rounded(said[by][m].logit_cf[i]) for m in MEMBERS] for by in said}
            | {"pictures": _packed(series[i])}
            for i, row in data.table.iterrows()
        ],
    }
