"""Can a generator be trusted? Readers that never saw it say what its images show.

A reader is a small network that reads one variable off an image. It is trained on the spot, with
another seed than the generator and, where there are enough, on other patients. Every number comes
with an interval by resampling the audited patients.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from cfcore.checks import InputError
from cfcore.generator import Effect, Generator, act
from cfcore.graph import Variable
from cfcore.patients import Patients
from cfscm.learning import Kept
from cfscm.networks import ImageNetwork, PredictorConfig, convolutions
from cfscm.soundness.distances import agreement, signal_to_noise
from cfscm.training import TrainingConfig, outputs, train
from cfscm.weights import read_manifest, read_weights, write_weights

_STEPS, _BATCH = 800, 32  # of a reader's training, at least
_Readings = dict[str, np.ndarray]
"""What each reader says, by its variable: logits or standardised values, shape (N, D)."""


def _network(variable: Variable, channels: int, seed: int) -> ImageNetwork:
    count = len(variable.values) if variable.kind == "categorical" else 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Sequential(*convolutions(16, channels), nn.Linear(64, count))
    network = ImageNetwork(layers, variable, PredictorConfig(variable.name))
    return network.to(memory_format=torch.channels_last)


def train_readers(
    variables: Mapping[str, Variable],
    data: Patients,
    folder: Path,
    *,
    seed: int,
    made_of: str,
    say: Callable[[str], None],
    progress: bool = False,
) -> dict[str, ImageNetwork]:
    """A reader of each variable, trained on these patients, or found trained in the folder.

    Every sixth patient is not learnt from: on those training stops.
    """
    known, who, parts, made = {**data.labels, **data.parents}, np.array(data.patient), [], {}
    kept = np.isin(who, np.unique(who)[::6])
    rows, channels = [np.flatnonzero(~kept), np.flatnonzero(kept)], data[[0]].shape[1]
    epochs = _epochs(len(rows[0]))
    config = TrainingConfig(epochs, batch=_BATCH, patience=max(4, epochs // 4))
    for number, (name, variable) in enumerate(variables.items()):
        path, own = folder / f"reader-{number}.safetensors", seed + 1000 + number
        if path.with_suffix(".json").exists():
            if read_manifest(path)["notes"].get("made_of") != made_of:
                raise InputError(f"{path}: was trained on other rows, images or graph; remove it")
            make = partial(_network, variable, channels, 0)
            made[name] = read_weights(path, lambda _, make=make: make()).eval()
            continue
        say(f"reader {number + 1} of {len(variables)}: {name}, on {len(rows[0])} rows")
        parts = parts or [Kept(data.take(some)) for some in rows]
        made[name], (y, other) = _network(variable, channels, own), (known[name][r] for r in rows)
        how = {"validation": (parts[1], other), "seed": own, "config": config}
        history = list(train(made[name], parts[0], y, progress=progress, **how))
        notes = {"made_of": made_of, "epochs": len(history), "rows": len(y)}
        write_weights(path, made[name], {"channels": channels}, seed=own, notes=notes)
    if not parts:
        say("readers: found trained")
    return made


def _epochs(rows: int) -> int:
    return int(np.clip(np.ceil(_STEPS * _BATCH / rows), 6, 60))


def seconds_to_train(variables: Mapping[str, Variable], rows: int, x: Tensor) -> float:
    """How long training a reader of each variable takes, by one step on images like these."""
    network, times = _network(next(iter(variables.values())), x.shape[1], 0), []
    x = x[torch.arange(_BATCH) % len(x)]
    for _ in range(2):  # the first warms up
        begin = time.perf_counter()
        network(x).sum().backward()
        times.append(time.perf_counter() - begin)
    return times[-1] * len(variables) * _epochs(rows) * np.ceil(rows / _BATCH)


class Resampled:
    """How often each row is in each sample of the patients, shape (B, N)."""

    def __init__(self, patient: Sequence[str], replicates: int, seed: int) -> None:
        code = np.unique(patient, return_inverse=True)[1]
        rng, count = np.random.default_rng(seed), code.max() + 1
        drawn = rng.multinomial(count, np.full(count, 1 / count), size=replicates)
        self.times = drawn.astype(np.float32)[:, code]

    def mean(self, values: np.ndarray, rows: np.ndarray | None = None) -> tuple[float, ...]:
        """The mean of some rows' values (N,), and the ends of its 95 % interval."""
        rows = np.ones(len(values), bool) if rows is None else rows
        if not rows.any():
            return (np.nan,) * 3
        total, times = self.times[:, rows] @ values[rows], self.times[:, rows].sum(axis=1)
        return values[rows].mean(), *_ends(total[times > 0] / times[times > 0])

    def auc(self, score: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The area under the ROC curve in each sample, shape (B,); ties count a half."""
        found = []
        for first in (y, ~y):  # ties: those of one class before, then behind the other
            order = np.lexsort((first, score))
            times, positive = self.times[:, order], y[order]
            below = np.cumsum(times * ~positive, axis=1)
            pairs = (times * positive).sum(axis=1) * below[:, -1]
            found.append((times * positive * below).sum(axis=1) / np.where(pairs, pairs, np.nan))
        return np.mean(found, axis=0)


def _ends(values: np.ndarray) -> tuple[float, float]:
    values = values[np.isfinite(values)]
    return tuple(np.quantile(values, [0.025, 0.975])) if len(values) else (np.nan, np.nan)


def skills(
    readers: Mapping[str, ImageNetwork], data: Patients, replicates: int, seed: int
) -> list[dict[str, object]]:
    """How well each reader reads real images of patients whom it has not seen."""
    sampling, found, images = Resampled(data.patient, replicates, seed), [], Kept(data)
    known = {**data.labels, **data.parents}
    for name, network in readers.items():
        kind, out, y = network.variable.kind, outputs(network, images).double(), known[name]
        if kind == "continuous":
            metric, own = "R2", y.double().numpy()
            error, spread = (out.numpy() - own) ** 2, (own - own.mean()) ** 2
            times = sampling.times
            replicas = 1 - (times @ error) / np.maximum(times @ spread, 1e-12)
        else:
            metric, out = "AUC", out[:, None] if out.ndim == 1 else out
            classes = (
                [1] if kind == "binary" else [k for k in network.variable.values if (y == k).any()]
            )
            areas = [
                sampling.auc(out[:, k % out.shape[1]].numpy(), (y == k).numpy()) for k in classes
            ]
            replicas = np.mean(areas, axis=0)
            out = out[:, 0] if kind == "binary" else out
        low, high = _ends(replicas)
        skill = {"metric": metric, "estimate": agreement(network.variable, out, y)[metric]}
        skill |= {"low": low, "high": high}
        found.append({"variable": name, "kind": kind, "skill": skill, "rows": len(data)})
    return found


@dataclass(frozen=True, eq=False)
class _Judged:
    """What readers say of real images and of their counterfactuals, one row for each patient.

    Attributes:
        real: The readings of the observed images.
        drawn: Those of the images after one intervention, by variable and value.
        errors: Absolute and squared differences of the images that are reproduced (``null``) and,
            if the generator holds a residual, decoded without it (``decoded``), shape (N,).
    """

    real: _Readings
    drawn: Mapping[tuple[str, float], _Readings]
    errors: Mapping[str, np.ndarray]


@torch.inference_mode()
def judge_images(
    generator: Generator,
    data: Patients,
    nuisances: Mapping[str, Sequence[float]],
    readers: Mapping[str, ImageNetwork],
    effect: Effect,
) -> _Judged:
    """Set one variable at a time, all others as the effect has it, and let the readers read."""
    read, errors = {}, {}
    for rows, x, pa in data.batches(32):
        noise = generator.abduct(x, pa, index=data.index[rows])
        own = {"null": generator.predict(noise, pa)}
        if isinstance(noise, Mapping) and "residual" in noise:
            bare = {**noise, "residual": torch.zeros_like(noise["residual"])}
            own["decoded"] = generator.predict(bare, pa)
        for key, drawn in own.items():
            gap = (drawn - x).double().flatten(1)
            errors.setdefault(f"mae_{key}", []).append(gap.abs().mean(dim=1))
            errors.setdefault(f"mse_{key}", []).append(gap.square().mean(dim=1))
        held = {n: pa[n] for n in data.labels if n in pa} if effect == "total" else {}
        images = {None: x}
        for name, value in ((n, v) for n, values in nuisances.items() for v in values):
            do = held | {name: torch.full_like(pa[name], value)}
            images[name, value] = generator.predict(noise, act(generator, pa, do, effect))
        for world, drawn in images.items():
            for of, network in readers.items():
                out = network(drawn).double().reshape(len(x), -1)
                read.setdefault(world, {}).setdefault(of, []).append(out)
    joined = {world: _joined(parts) for world, parts in read.items()}
    return _Judged(joined.pop(None), joined, _joined(errors))


def _joined(parts: Mapping[str, list[Tensor]]) -> dict[str, np.ndarray]:
    return {name: torch.cat(values).numpy() for name, values in parts.items()}


def effectiveness(
    judged: _Judged, data: Patients, variables: Mapping[str, Variable], sampling: Resampled
) -> list[dict[str, object]]:
    """Does an image show the value that was asked for?

    Of a discrete variable, in the images that had another value: the share that the reader says
    have it, ``before`` and ``after``, and of real images that have it (``real``). Of a continuous
    one, in all images, how far the reading is from the value asked for, and in real images from
    their own.
    """
    found = []
    for (name, value), drawn in judged.drawn.items():
        own, variable = data.parents[name].double().numpy(), variables[name]
        before, after = (_fit_to(variable, r[name], value) for r in (judged.real, drawn))
        discrete = variable.kind != "continuous"
        rows = own != value if discrete else np.ones(len(own), bool)
        real = before[own == value] if discrete else np.abs(judged.real[name][:, 0] - own)
        if rows.any():
            mean, low, high = sampling.mean(after, rows)
            entry = {"variable": name, "value": value, "before": before[rows].mean()}
            entry |= {"after": mean, "low": low, "high": high, "rows": int(rows.sum())}
            entry |= {"wanted": 1.0 if discrete else None}
            found.append(entry | {"real": real.mean() if len(real) else None})
    return found


def _fit_to(variable: Variable, reading: np.ndarray, value: float) -> np.ndarray:
    if variable.kind == "continuous":
        return np.abs(reading[:, 0] - value)
    said = reading[:, 0] > 0 if variable.kind == "binary" else reading.argmax(axis=1)
    return (said == value).astype(float)


def amplification(
    judged: _Judged, data: Patients, variables: Mapping[str, Variable], sampling: Resampled
) -> list[dict[str, object]]:
    """How far an intervention moves every reader, its own and those of what should stay.

    The mean distance of the reading before and after, of images that had another value, in units
    of the distance between the mean readings of real images with different values (of a continuous
    variable: above and below its median).
    """
    found, known = [], {**data.labels, **data.parents}
    for name in dict.fromkeys(name for name, _ in judged.drawn):
        own = data.parents[name].double().numpy()
        worlds = [(value, r) for (of, value), r in judged.drawn.items() if of == name]
        for of, variable in variables.items():
            apart = _apart(variable, judged.real[of], known[of].double().numpy())
            moved, times = np.zeros(len(own)), np.zeros(len(own))
            for value, reading in worlds:
                rows = own != value
                gap = _centred(reading[of]) - _centred(judged.real[of])
                moved, times = moved + rows * np.linalg.norm(gap, axis=1), times + rows
            mean = (
                moved / np.maximum(times, 1) / apart if apart > 1e-6 else np.full(len(own), np.nan)
            )
            shift, low, high = sampling.mean(mean, times > 0)
            entry = {"do": name, "reader": of, "shift": shift, "low": low, "high": high}
            found.append(entry | {"own": of == name})
    return found


def _centred(reading: np.ndarray) -> np.ndarray:
    """Logits of several classes say nothing by their common part."""
    return reading - reading.mean(axis=1, keepdims=True) if reading.shape[1] > 1 else reading


def _apart(variable: Variable, reading: np.ndarray, own: np.ndarray) -> float:
    """How far the mean readings of real groups are from each other, on average over pairs."""
    group = own > np.median(own) if variable.kind == "continuous" else own
    means = [_centred(reading)[group == value].mean(axis=0) for value in np.unique(group)]
    pairs = [np.linalg.norm(a - b) for i, a in enumerate(means) for b in means[:i]]
    return float(np.mean(pairs)) if pairs else 0.0


def composition(judged: _Judged) -> dict[str, float | None]:
    """How well images are reproduced by the null intervention, and without the residual."""
    found = {}
    for key in ("null", "decoded"):
        known = f"mse_{key}" in judged.errors
        found[f"mae_{key}"] = float(judged.errors[f"mae_{key}"].mean()) if known else None
        error = torch.from_numpy(judged.errors[f"mse_{key}"]) if known else None
        found[f"psnr_{key}"] = signal_to_noise(error).item() if known else None
    return found
