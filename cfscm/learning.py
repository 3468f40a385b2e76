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
from torch import Tensor

from cfcore.checks import InputError
from cfcore.files import write_atomically
from cfcore.graph import CausalGraph
from cfcore.marks import marked
from cfcore.patients import Patients
from cfscm.detail import Denoising, DetailedImage
from cfscm.encoding import widths
from cfscm.image import ImageConfig, ImageMechanism
from cfscm.model import DeepSCM, load_model, save_model
from cfscm.semisupervised import Labelled
from cfscm.training import FittingConfig, Images, Objective, Progress, fit
from cfscm.weights import read_manifest

_MOST = 8_000  # steps, after which little changes
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
    if channels != 1 or height != width or height % step:
        shape = f"{height} x {width} pixels in {channels} channel{'s' * (channels > 1)}"
        how = f"square grey ones, a multiple of {step} pixels a side; say size: 64, or grey: true"
        raise InputError(f"the images have {shape}; a generator can be trained on {how}")
    small = {"widths": (32, 48), "latents": (0, 0), "code": 24, "embedding": 32, "patch": 4}
    large = {"latents": (0, 0, 0), "code": 32, "patch": height // 16}
    parents = sum(widths(graph, names).values())
    sizes = {"size": height, "parents": parents, "headroom": 0.03, "prior": "regressed"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        image = ImageMechanism(ImageConfig(**sizes, **(large if height >= 64 else small)))
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
        where: ``device`` and ``progress`` of :func:`.fit`.

    Yields:
        The part, ``"autoencoder"`` or ``"flow"``, and its statistics.
    """

    def beside(part: str) -> Path | None:
        if checkpoint is None:
            return None
        stem = checkpoint.stem.removesuffix(".checkpoint")
        return checkpoint.with_name(f"{stem}.{part}.checkpoint.safetensors")

    if image.config.tone:
        image.tone.fit(images, c)
    hidden = image.tone.hidden(c)
    plain = image.plain(images, c)
    how = {"objective": objective, "config": config, "seed": seed, **where}
    for step in fit(image.first, plain, hidden, checkpoint=beside("autoencoder"), **how):
        yield "autoencoder", step
    image.first.centre(plain, hidden)
    left = image.left(images, c)
    how |= {"objective": Denoising(), "config": detail}
    for step in fit(image.flow, left, hidden, checkpoint=beside("flow"), **how):
        yield "flow", step


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
        steps = budget.get("steps", _MOST)
        if "minutes" in budget:
            steps = min(steps, _steps_in(60 * budget["minutes"], model, images, c, how))
        write_atomically(pace, json.dumps({"steps": int(steps), "made_of": made_of}).encode())
    known = json.loads(pace.read_bytes())
    if known["made_of"] != made_of:
        raise InputError(
            f"{pace}: is of other rows, images or graph, or image files were "
            "changed or touched since; choose another folder, or remove it"
        )
    done = steps = known["steps"]
    say(f"generator: {steps} steps on {len(data)} rows")
    model.fit_parents(pa, seed=seed)
    warmup, report = min(200, steps // 10), max(1, min(500, steps // 20))
    config = FittingConfig(steps, batch=32, warmup=warmup, report=report)
    checkpoint = path.with_name(f"{path.stem}.checkpoint.safetensors")
    how |= {"objective": Labelled(start=4.0), "checkpoint": checkpoint, "progress": progress}
    with closing(fit(model.image, images, c, config=config, **how)) as parts:
        for part in parts:
            loss, spent = math.fsum(part.terms.values()), (time.monotonic() - begin) / 60
            say(f"generator: step {part.step} of {steps}, loss {loss:.3f} nats a pixel")
            if spent > _LATE * budget.get("minutes", math.inf):
                say(f"generator: stopped after {spent:.1f} minutes; the machine became slower")
                done = part.step
                break
    model.image.centre(images, c)
    minutes = (time.monotonic() - begin) / 60
    trained = {"minutes": round(minutes, 2), "steps": done, "rows": len(data)}
    notes = {"made_of": made_of, "trained": trained} | marked(data.restricted)
    save_model(model, path, seed=seed, notes=notes)
    for file in (checkpoint, pace):
        file.unlink(missing_ok=True)
    return load_model(path, graph=model.graph).to(device), trained  # as a later call will find it


def _steps_in(
    seconds: float, model: DeepSCM, images: Patients, c: Tensor, how: Mapping[str, Any]
) -> int:
    """How many steps fit into a time, from the time of a few on a copy of the network."""
    tried, config = deepcopy(model.image), FittingConfig(24, batch=32, report=4)
    parts = fit(tried, images, c, objective=Labelled(), config=config, **how)
    times = [time.monotonic() for _ in parts]
    return max(20, int(0.9 * seconds / max(1e-4, (times[-1] - times[0]) / 20)))
