"""Can a generator be trusted? Readers that never saw it say what its images show.

A reader is a small network that reads one variable off an image. It is trained on the spot, with
another seed than the generator and, where there are enough, on other patients. Every number comes
with an interval by resampling the audited patients.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cfcore.generator import Effect, Generator
from cfcore.graph import CausalGraph, Variable
from cfcore.intervals import SHARE, interval
from cfcore.marks import marked
from cfcore.metrics.summary import Options, Scores
from cfcore.patients import Patients
from cfcore.resampling import Resampling, mean_intervals, replicate
from cfscm.learning import in_memory, trained_before
from cfscm.networks import ImageNetwork, PredictorConfig, build
from cfscm.soundness.measure import batches_of, observe, soundness
from cfscm.soundness.worlds import Plan
from cfscm.training import TrainingConfig, outputs, train
from cfscm.weights import read_weights, write_weights

_STEPS, _BATCH = 800, 32  # of a reader's training, at least
_Variables = Mapping[str, Variable]
_Readings = dict[str, Tensor]
"""What each reader says, by its variable: logits, without their mean, or values, shape (N, D)."""
_Drawn = Mapping[tuple[str, float], _Readings]
"""Readings of the images in which a variable has been set to a value."""


def train_readers(
    variables: _Variables,
    data: Patients,
    folder: Path,
    *,
    seed: int,
    made_of: str,
    say: Callable[[str], None],
    device: str = "cpu",
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
        make = partial(_untrained, variable, channels)
        if trained_before(path, made_of):
            made[name] = read_weights(path, lambda _, make=make: make(0)).eval().to(device)
            continue
        say(f"reader {number + 1} of {len(variables)}: {name}, on {len(rows[0])} rows")
        parts = parts or [in_memory(data.take(some)) for some in rows]
        made[name], (y, other) = make(own), (known[name][some] for some in rows)
        how = {"seed": own, "config": config, "device": device, "progress": progress}
        history = list(train(made[name], parts[0], y, validation=(parts[1], other), **how))
        notes = {"made_of": made_of, "epochs": len(history), "rows": len(y)}
        notes |= marked(data.restricted)
        write_weights(path, made[name], {"channels": channels}, seed=own, notes=notes)
    if not parts:
        say("readers: found trained")
    return made


def _untrained(variable: Variable, channels: int, seed: int) -> ImageNetwork:
    config, graph = PredictorConfig(variable.name), CausalGraph([variable])
    return build(config, graph=graph, seed=seed, channels=channels)


def _epochs(rows: int) -> int:
    return int(np.clip(np.ceil(_STEPS * _BATCH / rows), 6, 60))


def seconds_to_train(variables: Iterable[Variable], rows: int, x: Tensor) -> float:
    """How long training a reader of each variable takes, by one step on images like these."""
    networks = [_untrained(variable, x.shape[1], 0).to(x.device) for variable in variables]
    x = x[torch.arange(_BATCH) % len(x)]
    step = seconds_of(lambda: networks[0](x).sum().backward())
    return step * len(networks) * _epochs(rows) * np.ceil(rows / _BATCH)


def seconds_of(call: Callable[[], object]) -> float:
    """How long a call takes, the second time."""
    for _ in range(2):
        begin = time.perf_counter()
        call()
    return time.perf_counter() - begin


def skills(
    readers: Mapping[str, ImageNetwork], data: Patients, sampling: Resampling
) -> list[dict[str, object]]:
    """How well each reader reads real images of patients whom it has not seen."""
    found, images, known = [], in_memory(data), {**data.labels, **data.parents}
    for name, network in readers.items():
        out, y = outputs(network, images).double().cpu(), known[name].double()
        skill = _skill(network.variable, out, y, sampling)
        entry = {"variable": name, "kind": network.variable.kind, "skill": skill}
        found.append(entry | {"rows": len(data)})
    return found


def _skill(
    variable: Variable, out: Tensor, y: Tensor, sampling: Resampling
) -> dict[str, str | float]:
    """R2 of a number; the area under the ROC curve of classes, each against the others."""
    if variable.kind == "continuous":
        spread = (y - y.mean()).square().clamp(min=1e-12)
        return {"metric": "R2"} | _mean(1 - (out - y).square() / spread, sampling, spread)
    scores = {1: out} if variable.kind == "binary" else dict(enumerate(out.T))
    areas, how = [], (Options(metrics=["AUC_orig"]), sampling)
    for code, score in scores.items():
        if (y == code).unique().numel() > 1:
            one = Scores(score, score[:, None], torch.ones(1), (y == code).long(), logits=True)
            areas.append(replicate(one, *how)["AUC_orig"])
    drawn = np.mean(areas, axis=0) if areas else np.full(1, np.nan)  # of one class
    low, high = interval(drawn, rule=SHARE)
    return {"metric": "AUC", "estimate": drawn[0], "low": low, "high": high}


def _mean(values: Tensor, sampling: Resampling, weight: Tensor) -> dict[str, float]:
    """A mean over rows, (N,), as ``estimate``, and the ends of its interval, ``low``, ``high``."""
    frame = mean_intervals({"": values}, sampling, weight.double())
    return frame.drop(columns="name").iloc[0].to_dict()


def judge_images(
    generator: Generator,
    data: Patients,
    nuisances: Mapping[str, Sequence[float]],
    readers: Mapping[str, ImageNetwork],
    effect: Effect,
    device: str = "cpu",
) -> tuple[_Readings, _Drawn]:
    """What readers say of real images, and of those in which one variable at a time is set."""
    pa = data.parents
    held = {name: pa[name] for name in data.labels if name in pa and effect == "total"}
    asked = {f"{n}={v}": (n, v) for n, values in nuisances.items() for v in values}
    do = {key: held | {n: torch.full_like(pa[n], v)} for key, (n, v) in asked.items()}
    batches, plan = batches_of(data, do, 32, device), Plan(("effectiveness",), (effect,), do)
    read = {}
    outs, _ = observe(generator, None, batches, plan, readers, {})[1]
    for ((world, _), reader), out in outs.items():
        out = out.double().reshape(len(data), -1)
        # Logits of several classes say nothing by their common part.
        out = out - out.mean(dim=1, keepdim=True) if out.shape[1] > 1 else out
        read.setdefault(asked.get(world), {})[reader] = out
    return read.pop(None), read


def effectiveness(
    real: _Readings, drawn: _Drawn, data: Patients, variables: _Variables, sampling: Resampling
) -> list[dict[str, object]]:
    """Does an image show the value that was asked for?

    Of a discrete variable, in the images that had another value: the share that the reader says
    have it, ``before`` and ``after``, and of real images that have it (``real``). Of a continuous
    one, in all images, how far the reading is from the value asked for, and in real images from
    their own.
    """
    found = []
    for (name, value), reading in drawn.items():
        own, variable = data.parents[name].double(), variables[name]
        before, after = (_fit_to(variable, said[name], value) for said in (real, reading))
        discrete = variable.kind != "continuous"
        rows = own != value if discrete else torch.ones_like(own, dtype=torch.bool)
        fits = before[own == value] if discrete else (real[name][:, 0] - own).abs()
        if rows.any():
            entry = {"variable": name, "value": value, "before": before[rows].mean().item()}
            mean = _mean(after, sampling, rows)
            entry |= {"after": mean.pop("estimate")} | mean | {"rows": int(rows.sum())}
            entry |= {"wanted": 1.0 if discrete else None}
            found.append(entry | {"real": fits.mean().item() if len(fits) else None})
    return found


def _fit_to(variable: Variable, reading: Tensor, value: float) -> Tensor:
    if variable.kind == "continuous":
        return (reading[:, 0] - value).abs()
    said = reading[:, 0] > 0 if variable.kind == "binary" else reading.argmax(dim=1)
    return (said == value).double()


def amplification(
    real: _Readings, drawn: _Drawn, data: Patients, variables: _Variables, sampling: Resampling
) -> list[dict[str, object]]:
    """How far an intervention moves every reader, its own and those of what should stay.

    The mean distance of the reading before and after, of images that had another value, in units
    of the distance between the mean readings of real images with different values (of a continuous
    variable: above and below its median).
    """
    found, known = [], {**data.labels, **data.parents}
    for name in dict.fromkeys(name for name, _ in drawn):
        own, worlds = data.parents[name], {v: r for (of, v), r in drawn.items() if of == name}
        other = {value: (own != value).double() for value in worlds}
        times = torch.stack(list(other.values())).sum(dim=0)
        for of, variable in variables.items():
            moves = [other[v] * (r[of] - real[of]).norm(dim=1) for v, r in worlds.items()]
            moved = torch.stack(moves).sum(dim=0) / times.clamp(min=1)
            mean = _mean(moved / _apart(variable, real[of], known[of]), sampling, times > 0)
            entry = {"do": name, "reader": of, "shift": mean.pop("estimate")} | mean
            found.append(entry | {"own": of == name})
    return found


def _apart(variable: Variable, reading: Tensor, own: Tensor) -> Tensor:
    """How far the mean readings of real groups are from each other, on average over pairs."""
    group, middle = own, own.median()
    if variable.kind == "continuous":
        group = own > middle if own.max() > middle else own == middle  # the largest, if it is both
    means = torch.stack([reading[group == value].mean(dim=0) for value in group.unique()])
    apart = torch.pdist(means).mean()
    return torch.where(apart > 1e-6, apart, torch.nan)


def composition(
    generator: Generator, data: Patients, graph: CausalGraph, device: str = "cpu"
) -> dict[str, float | None]:
    """How well images are reproduced by the null intervention, and without the residual."""
    how = {"classifiers": {}, "audited": {}, "interventions": {}, "beside": (), "device": device}
    table = soundness(generator, data, graph=graph, axioms=["composition"], **how)
    table = table[table.intervention == "null x 1"].set_index(["axiom", "measure"]).value
    kinds = {"null": "composition", "decoded": "composition without residual"}
    return {
        f"{measure.lower()}_{key}": table.get((axiom, measure))
        for key, axiom in kinds.items()
        for measure in ("MAE", "PSNR")
    }
