"""A generator for any graph, trained within a budget of minutes, which a kill cannot take away."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cfcore.checks import InputError
from cfcore.files import write_atomically
from cfcore.graph import CausalGraph
from cfcore.marks import marked
from cfcore.patients import Patients
from cfscm.detail import Denoising, DetailConfig, DetailedImage
from cfscm.encoding import widths
from cfscm.image import ImageConfig, ImageMechanism
from cfscm.model import DeepSCM, load_model, save_model
from cfscm.semisupervised import Labelled
from cfscm.training import FittingConfig, Images, Objective, Progress, SwiftConfig, fit
from cfscm.weights import read_manifest

_MOST = {"autoencoder": 5_000, "flow": 16_000}  # steps, after which little changes
_SHARES = {"autoencoder": 0.25, "flow": 0.75}  # of the minutes
_LATE = 1.2  # of the budget, after which training stops although steps are left
_KEPT = 2**30  # bytes of images that are held in memory


def in_memory(data: Patients) -> Patients:
    """The same patients, whose images are read once and held as bytes if they fit."""
    if len(data) * data[[0]].numel() > _KEPT:
        return data
    images = torch.cat([(batch.x * 255).round().byte() for batch in data.batches(256)])
    return Patients(images, data.parents, data.labels, data.patient)


def untrained(
    graph: CausalGraph, outcome: str, x: Tensor, target: str | None, seed: int
) -> DeepSCM:
    """A generator for images like these, shape (1, C, H, W), before its first step.

    Raises:
        InputError: If there is none for such images or such a graph.
    """
    _, channels, height, width = x.shape
    names = [name for name in graph if name in graph.parents(outcome)]
    for name in names:
        if "." in name or hasattr(torch.nn.ModuleDict(), name):
            raise InputError(f"{name!r} cannot name a variable of a network: rename the column")
    step = 16 if height >= 64 else 8
    if channels > 3 or height != width or height % step:
        shape = f"{height} x {width} pixels in {channels} channel{'s' * (channels > 1)}"
        how = f"square ones of up to 3 channels, a multiple of {step} pixels a side; say size: 64"
        raise InputError(f"the images have {shape}; a generator can be trained on {how}")
    small = {"widths": (32, 48), "latents": (0, 0), "code": 24, "embedding": 32, "patch": 4}
    large = {"latents": (0, 0, 0), "code": 32, "patch": height // 16}
    entries = widths(graph, names)
    sizes = {"size": height, "channels": channels, "parents": sum(entries.values())}
    sizes |= {"headroom": 0.03, "prior": "regressed", **(large if height >= 64 else small)}
    flow = DetailConfig(side=32 if height < 128 else 64)
    if height < 64:
        flow = DetailConfig(side=16, width=32, embedding=48, glance=32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        image = DetailedImage(ImageMechanism(ImageConfig(**sizes)), flow, entries)
    return DeepSCM(image, graph=graph, target=target, outcome=outcome, seed=seed)


def fit_detailed(
    image: DetailedImage,
    images: Images,
    c: Tensor,
    *,
    objective: Objective,
    config: FittingConfig,
    detail: FittingConfig,
    seed: int,
    checkpoint: Path | None = None,
    **where: Any,  # noqa: ANN401
) -> Iterator[tuple[str, Progress]]:
    """Trains an image mechanism part by part: tone, autoencoder, flow.

    Args:
        image: The mechanism, trained in place.
        images: The training images, N of them.
        c: Their parents as vectors, shape (N, D).
        objective, config: What the autoencoder minimises, and how it is trained.
        detail: How the flow is trained.
        checkpoint: Where to keep the state, ``*.safetensors``; each part has its own beside it.
        where: ``device``, ``progress`` and ``compiled`` of :func:`.fit`.

    Yields:
        The part, ``"autoencoder"`` or ``"flow"``, and its statistics.
    """

    image.to(where.get("device", "cpu"))
    if image.config.tone:
        image.tone.fit(images, c)
    hidden, plain = image.tone.hidden(c.to(image.tone.typical)).cpu(), image.plain(images, c)
    image.average(plain, hidden)
    how = {"objective": objective, "config": config, "seed": seed, **where}
    how["checkpoint"] = _beside(checkpoint, "autoencoder")
    try:
        for step in fit(image.first, plain, hidden, **how):
            yield "autoencoder", step
    finally:  # also if nobody asks for more: without its flow the generator can be used as well
        image.first.centre(plain, hidden)
    how = {"config": detail, "seed": seed, "checkpoint": checkpoint, **where}
    for step in fit_flow(image, images, c, **how):
        yield "flow", step


def fit_flow(
    image: DetailedImage,
    images: Images,
    c: Tensor,
    *,
    checkpoint: Path | None = None,
    **how: Any,  # noqa: ANN401
) -> Iterator[Progress]:
    """Trains the flow of an image mechanism, whose autoencoder is trained; see :func:`.fit`."""
    left, hidden = image.left(images, c), image.tone.hidden(c.to(image.tone.typical)).cpu()
    place = _beside(checkpoint, "flow")
    yield from fit(image.flow, left, hidden, objective=Denoising(), checkpoint=place, **how)


def _beside(checkpoint: Path | None, part: str) -> Path | None:
    """Where the state of one part is kept."""
    if checkpoint is None:
        return None
    stem = checkpoint.stem.removesuffix(".checkpoint")
    return checkpoint.with_name(f"{stem}.{part}.checkpoint.safetensors")


def trained_before(path: Path, made_of: str) -> dict[str, Any] | None:
    """The notes of weights that are there already; those made of anything else are refused."""
    if not path.with_suffix(".json").exists():
        return None
    notes = read_manifest(path)["notes"]
    if notes.get("made_of") != made_of:
        raise InputError(
            f"{path}: was trained on other rows, images or graph, or image "
            "files were changed or touched since; choose another folder, or remove it"
        )
    return notes


def learn(
    model: DeepSCM,
    data: Patients,
    path: Path,
    *,
    budget: Mapping[str, float],
    seed: int,
    made_of: str,
    say: Callable[[str], None],
    device: str = "cpu",
    progress: bool = False,
) -> tuple[DeepSCM, dict[str, float]]:
    """Train a generator, or go on with its training, or find it trained.

    Args:
        path: The file of the weights, beside which checkpoints are kept.
        budget: ``minutes``, into which as many steps are put as the first ones say, and which may
            be exceeded by a fifth; or ``steps``.
        made_of: The fingerprint of what it learns from; weights of anything else are refused.

    Returns:
        The generator, and its ``minutes``, ``steps`` and ``rows``.
    """
    if notes := trained_before(path, made_of):
        say(f"generator: found trained, {notes['trained']['steps']} steps")
        return load_model(path, graph=model.graph).to(device), notes["trained"]
    begin, pa = time.monotonic(), {name: data.parents[name] for name in model.names}
    images, c = in_memory(data), model.encode(pa)
    how = {"seed": seed, "device": device}
    pace = path.with_name("generator.pace.json")
    if not pace.exists():
        steps = _shares(budget, model.image, images, c, how)
        write_atomically(pace, json.dumps({"steps": steps, "made_of": made_of}).encode())
    known = json.loads(pace.read_bytes())
    if known["made_of"] != made_of:
        raise InputError(
            f"{pace}: is of other rows, images or graph, or image files were "
            "changed or touched since; choose another folder, or remove it"
        )
    steps, done = known["steps"], dict.fromkeys(known["steps"], 0)
    say(f"generator: {sum(steps.values())} steps on {len(data)} rows")
    model.fit_parents(pa, seed=seed)
    first, flow = ({"steps": n, "warmup": min(200, n // 10)} for n in steps.values())
    looks = (max(1, min(500, n // 20)) for n in steps.values())
    how |= {
        "objective": Labelled(start=4.0),
        "config": FittingConfig(**first, batch=32, report=next(looks)),
        "detail": SwiftConfig(**flow, average=_memory(flow["steps"]), report=next(looks)),
        "checkpoint": path.with_name(f"{path.stem}.checkpoint.safetensors"),
        "progress": progress,
    }
    with closing(fit_detailed(model.image, images, c, **how)) as parts:
        for part, seen in parts:
            done[part], spent = seen.step, (time.monotonic() - begin) / 60
            loss = math.fsum(seen.terms.values())
            say(f"generator: {part}, step {seen.step} of {steps[part]}, loss {loss:.3f}")
            if spent > _LATE * budget.get("minutes", math.inf):
                say(f"generator: stopped after {spent:.1f} minutes; the machine became slower")
                break
        else:
            done = steps
    minutes = (time.monotonic() - begin) / 60
    trained = {"minutes": round(minutes, 2), "steps": sum(done.values()), "rows": len(data)}
    notes = {"made_of": made_of, "trained": trained} | marked(data.restricted)
    save_model(model, path, seed=seed, notes=notes)
    for file in (pace, *path.parent.glob(f"{path.stem}.*checkpoint.safetensors")):
        file.unlink(missing_ok=True)
    return load_model(path, graph=model.graph).to(device), trained  # as a later call will find it


def _shares(
    budget: Mapping[str, float],
    image: DetailedImage,
    images: Patients,
    c: Tensor,
    how: Mapping[str, Any],
) -> dict[str, int]:
    """How many steps each part gets: half of the steps, or its share of the minutes."""
    most = dict(_MOST)
    if "steps" in budget:
        first = max(1, int(budget["steps"]) // 2)
        most = {"autoencoder": first, "flow": max(1, int(budget["steps"]) - first)}
    if "minutes" not in budget:
        return most
    _, channels, *side = image.flow.spread.shape
    left, few = torch.randn(64, 2 * channels, *side), c[:1].expand(64, -1)
    tried = {
        "autoencoder": (image.first, images, c, Labelled(), FittingConfig(24, batch=32, report=4)),
        "flow": (image.flow, left, few, Denoising(), SwiftConfig(24, report=4)),
    }
    for part, what in tried.items():
        seconds = 0.9 * 60 * budget["minutes"] * _SHARES[part]
        most[part] = min(most[part], max(10, int(seconds / _seconds_of_a_step(*what, how))))
    return most


def _memory(steps: int) -> float:
    """The decay of an average of weights that forgets the first of so many steps."""
    return min(0.999, max(0.0, 1 - 5 / steps))


def _seconds_of_a_step(
    module: nn.Module,
    images: Images,
    c: Tensor,
    objective: Objective,
    config: FittingConfig,
    how: Mapping[str, Any],
) -> float:
    """How long a step takes, from a few on a copy of the network."""
    parts = fit(deepcopy(module), images, c, objective=objective, config=config, **how)
    times = [time.monotonic() for _ in parts]
    return max(1e-4, (times[-1] - times[0]) / 20)
