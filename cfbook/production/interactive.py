"""What the interactive pages of the book are made of: small tables and pictures of the phantom.

The pages are plain HTML and JavaScript (``book/_interactive``, ``book/_static``) and need neither
network nor kernel. ``python -m cfbook.production.interactive FOLDER`` writes their data, so that a
page never shows anything but what the package computes.
"""

import base64
import io
import json
import sys
import zlib
from collections.abc import Mapping
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from cfbook.study.cohorts import held_out, phantom_cohort
from cfbook.study.presets import Preset, preset
from cfbook.study.recipes import DetailedRecipe, PredictorRecipe
from cfbook.study.runs import PredictorId, Run, predictions
from cfchest.cohorts import age_group
from cfchest.data import Dataset
from cfchest.graph import paper_grid
from cfchest.offsets import offset
from cfcore.files import check_writable, write_atomically
from cfcore.generator import Generator, counterfactuals
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise
from cfcore.metrics import cross_entropy_from_logits
from cfcore.metrics.risk import patient_tail_losses
from cfcore.predictions import Predictions

_INCHES, _DPI = (12, 8), 100
_COLOURS = {"woman": "#823d9b", "man": "#007a7a"}
_LADDER = ("R_orig", "R_CM", "R_IE", "R_CVaR_0.50", "R_CVaR_0.25", "R_CVaR_0.10", "R_WC")
_ALPHA = 0.2
_HOSPITAL = "C"
_SEED = 0  # of the learned generator
_PATIENTS = 320  # twenty for each of sixteen worlds
_MEMBERS = {
    "unbiased": PredictorId("basic", 0.0, 0),
    "offset +1": PredictorId("logit", 1.0, 0),
    "sex bias 0.8": PredictorId("sex", 0.8, 0),
    "sex bias 0.95": PredictorId("sex", 0.95, 0),
    "age bias 0.8": PredictorId("age", 0.8, 0),
    "age bias 0.95": PredictorId("age", 0.95, 0),
}
"""The predictors as the pages call them, first the one that the others are compared with."""
_FRONT = {
    "unbiased": "trained on everybody",
    "sex bias 0.95": "trained mostly on ill women, healthy men",
}
"""The predictors on the front page, with what they were trained on in a few words."""
_SUBTITLE = "The same patient in six worlds, and two classifiers: counterfactual marginalisation"
_QUESTION = "Does an image classifier lean on who the patient is?"
_THRESHOLD = 0.5
_MARKS = ("#0173b2", "o", "top"), ("#b35c00", "D", "bottom")


def _matrix(preset: Preset) -> dict[str, Predictions]:
    """The first patients of the balanced test set of hospital C, logits in float32."""
    found = predictions(Run(preset, "C->C", "balanced"))
    return {name: _head(found[member]) for name, member in _MEMBERS.items()}


def _head(given: Predictions) -> Predictions:
    rows, logits = slice(_PATIENTS), ("logit_obs", "logit_null", "logit_cf")
    parts = {name: getattr(given, name)[rows].float() for name in logits}
    parts |= {"y": given.y[rows], "patient": given.patient[rows]}
    return replace(given, **parts, parents={name: v[rows] for name, v in given.parents.items()})


def _encoded(values: Tensor) -> str:
    """Numbers as base64 of little-endian float32.

    Example:
        >>> _encoded(torch.tensor([1.0]))
        'AACAPw=='
    """
    return base64.b64encode(values.to(torch.float32).numpy().astype("<f4").tobytes()).decode()


def _playground(given: Mapping[str, Predictions]) -> dict[str, object]:
    """The data of the metric playground, ready for JSON, of predictions on one grid.

    Returns:
        ``worlds``, each with ``sex`` and ``age``; ``nearest``, how many patients are nearest to
        each world, the empirical q; ``patients`` with ``sex``, ``age`` and ``y``; and
        ``predictors`` with ``label`` and ``logits``: for each patient the observed one, then one
        for each world, base64 of float32.
    """
    first = next(iter(given.values()))
    grid = Grid(first.grid)
    own = {name: first.parents[name] for name in first.grid}
    nearest = torch.bincount(grid.nearest(own), minlength=len(grid))
    patients = {"sex": first.parents["sex"], "age": first.parents["age"].round(), "y": first.y}
    logits = {n: torch.cat((one.logit_obs[:, None], one.logit_cf), 1) for n, one in given.items()}
    return {
        "worlds": {name: values.tolist() for name, values in first.grid.items()},
        "nearest": nearest.tolist(),
        "patients": {name: values.int().tolist() for name, values in patients.items()},
        "predictors": [{"label": name, "logits": _encoded(x)} for name, x in logits.items()],
    }


def _one_of_each_kind(table: pd.DataFrame) -> list[int]:
    """The first woman and man, young and old, healthy and ill, of a table: eight rows.

    Nobody is chosen for the picture. Young is below 45, old above 65.

    Example:
        >>> table = {"sex": [1, 1, 0], "age": [30.0, 40.0, 70.0], "effusion": [0, 0, 1]}
        >>> _one_of_each_kind(pd.DataFrame(table))
        [0, 2]
    """
    known = table.assign(group=age_group(table.age), row=range(len(table)))
    ends = known[known.group != 1]
    return ends.groupby(["sex", "group", "effusion"]).row.first().sort_values().tolist()


@torch.inference_mode()
def _worlds(generator: Generator, data: Dataset, grid: Grid) -> Tensor:
    """Every patient in every world, direct effect, shape (N, K, H, W), in [0, 1]."""
    given, pairs = (generator, data[:], data.parents), grid.values.items()
    each = [{name: values[k] for name, values in pairs} for k in range(len(grid))]
    return torch.cat([counterfactuals(*given, do, index=data.index) for do in each], dim=1)


def _grey(images: Tensor) -> np.ndarray:
    """Images in [0, 1] as 8-bit grey levels."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8).numpy()


def _packed(images: np.ndarray) -> str:
    """A series of 8-bit images, shape (n, H, W), as text, without loss.

    Worlds share their noise, so that each image is kept as its difference from the one before,
    modulo 256, which deflate makes small; noise itself it cannot.

    Example:
        >>> images = np.array([[[7, 250]], [[5, 255]]], dtype=np.uint8)
        >>> list(zlib.decompress(base64.b64decode(_packed(images))))
        [7, 250, 254, 5]
    """
    steps = np.diff(images, axis=0, prepend=np.zeros_like(images[:1]))  # uint8 wraps around
    return base64.b64encode(zlib.compress(steps.tobytes(), 9)).decode()


def _scores(generator: Generator, data: Dataset, preset: Preset) -> dict[str, Predictions]:
    """What each predictor of the pages says of some patients in every world."""
    trained = {name: astuple(m) for name, m in _MEMBERS.items() if m.family != "logit"}
    recipes = {name: PredictorRecipe(preset, _HOSPITAL, *m) for name, m in trained.items()}
    readers = {name: recipe.obtain() for name, recipe in recipes.items()}
    found = marginalise(generator, readers, data, paper_grid())
    found["offset +1"] = offset(found["unbiased"], 1.0)
    return {name: found[name] for name in _MEMBERS}


def _rounded(logit: Tensor) -> list:
    """Logits as probabilities, with as many digits as a picture can show."""
    return np.round(logit.double().sigmoid().numpy(), 4).tolist()


def _explorer(preset: Preset) -> dict[str, object]:
    """The data of the counterfactual explorer, ready for JSON.

    Generator and predictors are read if they are there, else trained.

    Returns:
        ``ages``, ``size``, ``predictors`` and ``patients``. A patient has ``sex``, ``age`` and
        ``effusion``; for each predictor a probability ``observed``, and one for each world by
        ``truth`` and ``learned``; and ``pictures``, packed: as observed, then each world
        of the truth, then each world as learned. Men come first, ages from low to high.
    """
    data, grid = held_out(_HOSPITAL, preset, "balanced"), paper_grid()
    data = data.take(_one_of_each_kind(data.table))
    makers = {
        "truth": phantom_cohort(_HOSPITAL, preset).oracle,
        "learned": DetailedRecipe(preset, _HOSPITAL, _SEED).obtain(),
    }
    drawn = [data[:], *(_worlds(generator, data, grid) for generator in makers.values())]
    series = _grey(torch.cat(drawn, dim=1))  # (N, 1 + 2 K, H, W)
    said = {name: _scores(generator, data, preset) for name, generator in makers.items()}
    return {
        "ages": sorted(set(grid.values["age"].tolist())),
        "size": series.shape[-1],
        "predictors": list(_MEMBERS),
        "patients": [
            {name: float(row[name]) for name in ("sex", "age", "effusion")}
            | {"observed": [_rounded(one.logit_obs[i]) for one in said["truth"].values()]}
            | {by: [_rounded(one.logit_cf[i]) for one in said[by].values()] for by in said}
            | {"pictures": _packed(series[i])}
            for i, row in data.table.iterrows()
        ],
    }


def _front(seen: Mapping[str, object]) -> dict[str, object]:
    """The data of the front page, ready for JSON: the first patient of the explorer, true worlds.

    Returns:
        ``ages``, ``size`` and ``threshold``; ``predictors`` with ``name``, ``note`` and their
        scores, ``observed`` and in all ``worlds``; and the ``patient``, whose ``pictures`` are
        packed: as observed, then each world. Men come first, ages from low to high.
    """
    one, last = seen["patients"][0], 2 * len(seen["ages"])
    images = _unpacked(one["pictures"], seen["size"])[: 1 + last]
    places = {name: seen["predictors"].index(name) for name in _FRONT}
    return {
        "ages": seen["ages"],
        "size": seen["size"],
        "threshold": _THRESHOLD,
        "predictors": [
            {"name": name, "note": _FRONT[name]}
            | {"observed": one["observed"][g], "worlds": one["truth"][g]}
            for name, g in places.items()
        ],
        "patient": {name: one[name] for name in ("sex", "age", "effusion")}
        | {"pictures": _packed(images)},
    }


def _png(drawn: Figure) -> bytes:
    """A picture as a file, the same bytes every time."""
    file = io.BytesIO()
    drawn.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _unpacked(pictures: str, size: int) -> np.ndarray:
    """The series of images behind ``pictures``."""
    steps = np.frombuffer(zlib.decompress(base64.b64decode(pictures)), dtype=np.uint8)
    return steps.reshape(-1, size, size).cumsum(axis=0, dtype=np.uint8)


def _explorer_still(data: Mapping[str, object]) -> bytes:
    """The first patient of the explorer at every age and the response of each predictor, a PNG."""
    one, ages = data["patients"][0], data["ages"]
    images = _unpacked(one["pictures"], data["size"])
    first = int(one["sex"]) * len(ages)
    drawn = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    above, below = drawn.subfigures(2, 1, height_ratios=(1, 1.4))
    grid = above.subplots(2, len(ages))
    for row, (name, start) in enumerate({"truth": 1, "learned": 1 + 2 * len(ages)}.items()):
        for ax, age, image in zip(grid[row], ages, images[start + first :], strict=False):
            ax.imshow(image, cmap="gray", vmin=0, vmax=255)
            ax.set(xticks=[], yticks=[])
            ax.set_title(f"{age:.0f} years" if row == 0 else "")
        grid[row, 0].set_ylabel(name)
    for g, ax in enumerate(below.subplots(2, 3, sharex=True, sharey=True).flat):
        _responses(ax, one, g, ages)
        ax.set_title(data["predictors"][g])
    below.supxlabel("age in the world, years")
    below.supylabel("probability of effusion")
    return _png(drawn)


def _responses(ax: Axes, one: Mapping[str, object], g: int, ages: list[float]) -> None:
    """What one predictor says of one patient at every age, for both sexes, true and learned."""
    for name, style in {"truth": "-", "learned": "--"}.items():
        for sex, word in enumerate(("man", "woman")):
            scores = one[name][g][sex * len(ages) : (sex + 1) * len(ages)]
            ax.plot(ages, scores, style, color=_COLOURS[word], label=f"as a {word}, {name}")
    ax.plot(one["age"], one["observed"][g], "x", color="black", label="observed")
    ax.set(ylim=(-0.03, 1.03))
    if g == 0:
        ax.legend(fontsize="small", frameon=False)


def _few_worlds(data: Mapping[str, object], *words: str) -> bytes:
    """The patient of the front page as a woman and as a man, with two scores in each world, a PNG.

    With words above it is what other sites show of a link to the book.
    """
    high = 6.3 if words else 5.3  # inches
    drawn = Figure(figsize=(12, high), dpi=_DPI)
    for word, (y, size) in zip(words, ((0.48, 27), (0.95, 14)), strict=False):
        drawn.text(0.5, 1 - y / high, word, ha="center", va="center", size=size, weight="bold")
    images = _unpacked(data["patient"]["pictures"], data["size"])[1:]
    ages = [*data["ages"], *data["ages"]]
    shown = [k for sex in (1, 0) for k in _few(ages, sex)]
    for column, k in enumerate(shown):
        word = ("man", "woman")[k >= len(ages) // 2]
        ax = drawn.add_axes((0.0725 + column * 0.135, 2.95 / high, 0.13, 1.9 / high), anchor="S")
        ax.imshow(images[k], cmap="gray", vmin=0, vmax=255)
        ax.set(xticks=[], yticks=[])
        ax.set_title(f"{word} of {ages[k]:.0f}", size=15, color=_COLOURS[word])
    _two_scores(drawn.add_axes((0.07, 0.2 / high, 0.81, 2.65 / high)), data, shown)
    return _png(drawn)


def _few(ages: list[float], sex: int) -> list[int]:
    """The worlds of 30, 50 and 70 years, in which the picture is drawn."""
    half = len(ages) // 2
    return [sex * half + i for i in range(half) if ages[i] in (30, 50, 70)]


def _two_scores(ax: Axes, data: Mapping[str, object], shown: list[int]) -> None:
    """What both predictors say in some worlds, women first, and on average over all of them."""
    half = len(shown) // 2
    for one, (colour, mark, side) in zip(data["predictors"], _MARKS, strict=True):
        mean, scores = np.mean(one["worlds"]), [one["worlds"][k] for k in shown]
        ax.axhline(mean, color=colour, lw=1.2)
        for part in (range(half), range(half, 2 * half)):
            style = {"color": colour, "ls": ":", "marker": mark, "ms": 13, "lw": 1.2}
            ax.plot(part, [scores[i] for i in part], **style)
        label = f"{one['name']}\nmean {mean:.2f}"
        style = {"color": colour, "size": 12.5, "va": side, "weight": "bold"}
        ax.annotate(label, (len(shown) - 0.45, mean), annotation_clip=False, **style)
    ax.axhline(data["threshold"], color="0.4", ls="--", lw=1)
    ax.text(len(shown) - 0.55, data["threshold"] + 0.03, "threshold", color="0.4", ha="right")
    ax.set(xlim=(-0.5, len(shown) - 0.5), ylim=(-0.06, 1.06), xticks=[], yticks=[0, 0.5, 1])
    ax.set_ylabel("probability of effusion", size=12)
    ax.spines[["top", "right"]].set_visible(False)


def _playground_still(given: Mapping[str, Predictions]) -> bytes:
    """The ladder of risks of every predictor of the playground, and the tail of one patient."""
    drawn = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    left, right = drawn.subplots(1, 2)
    for name, one in given.items():
        metrics = one.evaluate()
        left.plot([metrics[rung] for rung in _LADDER], "o-", label=name)
    left.set_xticks(range(len(_LADDER)), _LADDER, rotation=45)
    left.set(ylabel="risk, nats", ylim=(0, None))
    left.legend(frameon=False)
    _tail(right, given["sex bias 0.8"], "sex bias 0.8")
    return _png(drawn)


def _tail(ax: Axes, one: Predictions, name: str) -> None:
    """The worlds of the patient with the largest tail loss, the worst first."""
    losses = cross_entropy_from_logits(one.logit_cf, one.y[:, None])
    worst = patient_tail_losses(losses, one.q, (_ALPHA,))[:, 0].argmax()
    loss, order = losses[worst].sort(descending=True)
    width, loss = one.q[order].numpy(), loss.numpy()
    start = width.cumsum() - width
    inside = np.clip(_ALPHA - start, 0, width)
    ax.bar(start, loss, width, align="edge", color="0.88", edgecolor="0.5")
    ax.bar(start, loss, inside, align="edge", color="#b22252")
    ax.axvline(_ALPHA, color="black", ls="--", lw=1)
    ax.set(xlabel="mass of worlds, the worst first", ylabel="loss, nats")
    ax.set_title(f"one patient, {name}: the tail of mass {_ALPHA:g}")


def _script(name: str, data: object) -> bytes:
    """Data as a script that sets a global: a browser that reads from a disk fetches nothing else.

    Example:
        >>> _script("EXPLORER", {"ages": [20]})
        b'window.EXPLORER = {"ages":[20]};\\n'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return f"window.{name} = {text};\n".encode()


def write(folder: Path, sizes: Preset) -> list[Path]:
    """Make everything that the pages load, in the ``_static`` folder of the rendered book."""
    check_writable(folder)
    seen, table = _explorer(sizes), _matrix(sizes)
    first = _front(seen)
    files = {
        "front-data.js": _script("FRONT", first),
        "front.png": _few_worlds(first),
        "preview.png": _few_worlds(first, _QUESTION, _SUBTITLE),
        "explorer-data.js": _script("EXPLORER", seen),
        "explorer.png": _explorer_still(seen),
        "playground-data.js": _script("PLAYGROUND", _playground(table)),
        "playground.png": _playground_still(table),
    }
    return [write_atomically(folder / name, content) for name, content in files.items()]


if __name__ == "__main__":
    for path in write(Path(sys.argv[1]), preset("book")):
        print(path)
