r"""The one expensive step: every predictor on every patient in every world.

Each patient is abducted once, each counterfactual is decoded once and shown to all predictors. What
is kept is one logit for each of them, never an image. Finished shards of patients go to disk, so
that a run that was stopped goes on where it was.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from tqdm import tqdm

from cfchest.data import Dataset
from cfcore.checks import InputError, check_count
from cfcore.fingerprint import fingerprint
from cfcore.generator import Effect, Generator, Noise, Parents, act
from cfcore.imputation import LOG, count_imputed, fill_in, tell
from cfcore.interventions import Grid
from cfcore.predictions import Predictions
from cfcore.predictor import (
    Labels,
    Predictor,
    blaming,
    check_device,
    check_generator,
    check_predictors,
    evaluating,
    find_labels,
    score,
)
from cfcore.restricted import marked
from cfcore.shards import Shards, World

SHARD = 256  # patients that a kill can cost at most
FIRST = 3  # logits before those of the worlds: observed, null, decoded without the residual
CHECKED = 3  # patients of a finished shard that are computed again
AGREEMENT = {
    False: 1e-3,
    True: 2e-2,
}  # of 1 + |logit|: for float32, and for half precision on a GPU
Values = Mapping[str, Tensor]

MAX_IMAGES = 144  # in flight; small batches are fastest on a CPU, a GPU wants thousands


@dataclass
class Job:
    """What is to be computed.

    Attributes:
        generator: Abducts, acts and predicts.
        predictors: The predictors by name.
        data: The patients.
        values: What the interventions set: (K,) for all patients, or (N, K), their own.
        effect: Whether descendants of the intervened variables follow.
        device: Where to compute.
        max_images: Images in flight; halved when memory runs out.
    """

    generator: Generator
    predictors: Mapping[str, Predictor]
    data: Dataset
    values: Mapping[str, Tensor]
    effect: Effect
    device: torch.device
    max_images: int

    @property
    def worlds(self) -> int:
        """The number of interventions, K."""
        return next(iter(self.values.values())).shape[-1]

    def shape(self, rows: np.ndarray) -> tuple[int, int, int]:
        """The shape of the logits of some patients: predictors, patients, and 3 + K."""
        return len(self.predictors), len(rows), FIRST + self.worlds

    def images(self, rows: np.ndarray) -> str:
        """A hash of what the images of some patients are made of."""
        return self.data.take(rows).fingerprint()

    def fingerprint(self) -> dict[str, str]:
        """Hashes of all that the result depends on, but for images that tell their own."""
        parts = {
            "generator": self.generator,
            "predictors": dict(self.predictors),
            "data": [
                self.data.table[["image", "patient"]],
                self.data.parents(),
                self.data.drawn_by,
            ],
            "grid": dict(self.values),
            "effect": self.effect,
        }
        return {name: fingerprint(part) for name, part in parts.items()}


def repeat(tree: object, times: int) -> object:
    """Repeat each patient of a tree of tensors, one copy for each world."""
    with blaming("repeating the noise, which must be tensors with a row for each patient,"):
        return tree_map(lambda leaf: leaf.repeat_interleave(times, dim=0), tree)


def decode(
    job: Job, noise: object, pa: Parents, do: Mapping[str, Tensor]
) -> tuple[Tensor, Parents]:
    """The images of b patients in k worlds, patient by patient, and their parents there.

    Args:
        job: The job.
        noise: The noise of b patients.
        pa: Their own parents, each of shape (b,).
        do: What the worlds set, each of shape (b, k).

    Returns:
        Images, shape (b * k, 1, H, W), and parents, each of shape (b * k,).
    """
    times = next(iter(do.values())).shape[1]
    flat = {name: values.reshape(-1) for name, values in do.items()}
    acted = act(job.generator, repeat(pa, times), flat, job.effect)
    return draw(job, repeat(noise, times), acted), acted


def draw(job: Job, noise: Noise, pa: Parents) -> Tensor:
    """The images that the noise gives under the parents, one for each row."""
    rows, name = len(next(iter(pa.values()))), f"{type(job.generator).__name__}.predict()"
    with blaming(name, next(iter(pa.values()))):
        images = job.generator.predict(noise, pa)
    if not isinstance(images, Tensor) or len(images) != rows:
        found = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise InputError(
            f"{name} gives {found} for {rows} rows of noise, not a tensor of as many images"
        )
    return images


def read(job: Job, x: Tensor, pa: Parents) -> Tensor:
    """The logits of all predictors, shape (predictors, images)."""
    x = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
    with torch.autocast("cuda") if x.is_cuda else nullcontext():
        return score(job.predictors, x, pa)


def without_residual(noise: Noise) -> Noise | None:
    """The noise with its ``"residual"`` set to zero; None if it has no part of that name.

    A generator that holds what it cannot explain reproduces every image under the null
    intervention. What it does explain shows without the residual only.

    Example:
        >>> without_residual({"z": torch.ones(1), "residual": torch.ones(1)})
        {'z': tensor([1.]), 'residual': tensor([0.])}
    """
    if not isinstance(noise, Mapping) or not isinstance(noise.get("residual"), Tensor):
        return None
    return {**noise, "residual": torch.zeros_like(noise["residual"])}


def chunk_logits(job: Job, x: Tensor, pa: Parents, index: Tensor, do: Values) -> Tensor:
    """Observed, null, decoded and counterfactual logits of some patients.

    The null world is decoded like any other, with each patient's own values. The observed images,
    and those decoded without their residual, are read along with the first of the worlds: small
    batches are slow.

    Args:
        job: The job.
        x: The images of b patients, shape (b, 1, H, W).
        pa: Their parents, each of shape (b,).
        index: Their rows in the cohort, shape (b,).
        do: What the worlds set, each of shape (b, K).

    Returns:
        Logits, shape (predictors, b, 3 + K); the third is NaN if the noise has no residual.
    """
    with blaming(f"{type(job.generator).__name__}.abduct()", x):
        noise = job.generator.abduct(x, pa, index=index)
    bare = without_residual(noise)
    own = [x] if bare is None else [x, draw(job, bare, pa)]
    do = {name: torch.cat((pa[name][:, None], values), dim=1) for name, values in do.items()}
    parts: list[Tensor] = []
    for some in torch.arange(job.worlds + 1).split(max(1, job.max_images // len(x))):
        images, acted = decode(job, noise, pa, {name: v[:, some] for name, v in do.items()})
        if not parts:
            images = torch.cat((*own, images))
            acted = {n: torch.cat((*[pa[n]] * len(own), values)) for n, values in acted.items()}
        logits = read(job, images, acted)
        if not parts:
            first, logits = logits.tensor_split((len(own) * len(x),), dim=1)
            parts += first.split(len(x), dim=1)
        parts += logits.unflatten(1, (len(x), -1)).unbind(dim=2)
    if bare is None:
        parts.insert(1, torch.full_like(parts[0], torch.nan))
    observed, decoded, null, *worlds = parts
    return torch.stack((observed, null, decoded, *worlds), dim=2)


def patients_at_once(job: Job) -> int:
    """As many whole patients as the images in flight allow, and at least one."""
    return max(1, job.max_images // (job.worlds + 1))


def shard_logits(job: Job, rows: np.ndarray, bar: tqdm, workers: int) -> Tensor:
    """Logits of one shard of patients on the CPU, shape (predictors, len(rows), 3 + K).

    When memory runs out, the images in flight are halved and the shard begins again.
    """
    while True:
        try:
            with torch.inference_mode():
                logits = torch.cat(list(chunks(job, rows, bar, workers)), dim=1).cpu()
            return logits.clone()
        except torch.OutOfMemoryError:
            if job.max_images == 1:
                raise
            job.max_images //= 2
            bar.write(f"out of memory: going on with {job.max_images} images in flight")


def chunks(job: Job, rows: np.ndarray, bar: tqdm, workers: int) -> Iterator[Tensor]:
    """Logits of whole patients, chunk by chunk, where they were computed."""
    data, images = job.data.take(rows), 2 + job.worlds
    index = cohort_rows(data).to(job.device)
    for batch in data.batches(patients_at_once(job), workers=workers):
        pa = {name: values.to(job.device) for name, values in batch.pa.items()}
        own = torch.as_tensor(rows[batch.rows])
        do = {
            name: (values[own] if values.ndim == 2 else values.expand(len(own), -1)).to(job.device)
            for name, values in job.values.items()
        }
        x = batch.x.to(job.device)
        yield chunk_logits(job, x, fill_in(job.generator, x, pa), index[batch.rows], do)
        bar.update(len(own) * images)


def cohort_rows(data: Dataset) -> Tensor:
    """The rows by which an oracle looks noise up: those of the cohort, where images are numbers."""
    image = data.table.image
    rows = image.to_numpy() if image.dtype.kind in "iu" else np.arange(len(image))
    return torch.tensor(rows, dtype=torch.int64)


def check_finite(job: Job, logits: Tensor, rows: np.ndarray) -> None:
    """Refuse a logit that is not a number, by predictor and patient."""
    bad = ~logits.isfinite()
    bad[:, :, 2] = False  # none without a residual
    if bad.any():
        g, row, _ = bad.nonzero()[0].tolist()
        patient = job.data.table.patient.iloc[rows[row]]
        name = list(job.predictors)[g]
        raise InputError(
            f"predictor {name!r} gives {logits[bad][0].item()} for patient {patient!r}"
        )


def pieces(rows: np.ndarray) -> list[np.ndarray]:
    """The rows of each shard."""
    return [rows[start : start + SHARD] for start in range(0, len(rows), SHARD)]


def finished(job: Job, rows: np.ndarray, shards: Shards) -> list[Tensor | None]:
    """The shards of earlier runs, None for those to be computed.

    All are read, and some patients of each are computed again, before anything else is, so that a
    damaged shard, or one of other models, shows at once.
    """
    parts = [
        shards.read(number, job.shape(some), job.images(some)) if shards.has(number) else None
        for number, some in enumerate(pieces(rows))
    ]
    if any(part is None for part in parts):
        shards.check_writable(job.shape(rows[:SHARD]))
    for number, some in enumerate(pieces(rows)):
        if parts[number] is not None:
            check_kept(job, some, parts[number], shards, number)
    return parts


def check_kept(job: Job, rows: np.ndarray, kept: Tensor, shards: Shards, number: int) -> None:
    r"""Refuse a shard whose logits are not what generator and predictors give today.

    The first, the middle and the last patient are computed again. A logit :math:`l` agrees if it is
    within :math:`10^{-3} (1 + |l|)`, or twenty times that if a GPU had a part in it, which
    computes in half precision: another number of threads or another device passes.

    Args:
        job: The job.
        rows: The patients of the shard.
        kept: Its logits, shape (predictors, patients, 3 + K).
        shards: The shards.
        number: Its number.
    """
    some = np.unique(np.linspace(0, len(rows) - 1, CHECKED).astype(int))
    with tqdm(disable=True) as bar:
        now = shard_logits(job, rows[some], bar, workers=0)
    then, near = kept[:, some], AGREEMENT[shards.half]
    wrong = ~torch.isclose(now, then, rtol=near, atol=near, equal_nan=True)
    if wrong.any():
        g, row, column = wrong.nonzero()[0].tolist()
        name, patient = list(job.predictors)[g], job.data.table.patient.iloc[rows[some[row]]]
        raise InputError(
            f"{shards.path(number)}: predictor {name!r} gives {now[g, row, column]:.4g} for "
            f"patient {patient!r}, but gave {then[g, row, column]:.4g} when the shard was made: "
            "generator, predictors or data have changed, or are random; choose another folder, or "
            "remove this one to begin again"
        )


def new_shard(
    job: Job, number: int, rows: np.ndarray, shards: Shards, bar: tqdm, workers: int
) -> Tensor:
    """Compute and keep one shard, if there is room to keep it and every logit is a number.

    What the images are is noted before they are read: should one be replaced meanwhile, the shard
    is refused later, not believed.
    """
    shards.check_writable(job.shape(rows))
    images = job.images(rows) if shards.folder else ""
    part = shard_logits(job, rows, bar, workers)
    check_finite(job, part, rows)
    shards.write(number, part, images)
    return part


def marginalise(
    generator: Generator,
    predictors: Mapping[str, Predictor],
    data: Dataset,
    grid: Grid,
    *,
    labels: Labels | None = None,
    effect: Effect = "direct",
    draws: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    max_images: int = MAX_IMAGES,
    resume_dir: str | Path | None = None,
    workers: int = 0,
    progress: bool = False,
    provenance: Mapping[str, object] | None = None,
) -> dict[str, Predictions]:
    """Run every predictor on every patient: as observed, reproduced, and under every intervention.

    Under ``torchrun`` each process takes every n-th patient, and all return the whole result.

    Parents that are missing are imputed by a generator that can, such as one trained on partly
    labelled images. The provenance then says, under ``"imputed"``, how many values of each; the
    predictions hold the parents as recorded.

    Args:
        generator: Abducts and predicts, and perhaps acts; on ``device`` already.
        predictors: Functions of images and parents, or modules of images, that return logits of
            shape (B,) or (B, 1), by name. Modules are put into evaluation mode for the time being.
        data: The patients, N of them, with their parents.
        grid: The interventions, K of them, and their probabilities.
        labels: What predictors of another finding than ``effusion`` are judged by: for each the
            name of a column, or labels 0 or 1 of shape (N,), or None. The provenance names it.
        effect: ``"direct"`` holds the other parents, ``"total"`` lets descendants follow; the label
            is held under both.
        draws: Instead of the whole grid, this many draws from q for each patient.
        seed: The seed of the draws.
        device: Where to compute.
        max_images: Images in flight: what bounds the memory.
        resume_dir: Where to keep finished shards; with the same inputs, a later call goes on there.
            Other inputs are refused: they are hashed, and some patients of each shard are computed
            again (:func:`check_kept`).
        workers: Processes that load images ahead.
        progress: Whether to show a progress bar.
        provenance: What to remember with the predictions.

    Returns:
        The predictions of each predictor, on the CPU.

    Raises:
        InputError: If an image cannot be read, a predictor returns a value that is not a number, or
            ``resume_dir`` holds something else; the message names the file or the patient. If a
            parent is missing that the generator needs and cannot impute, or a predictor of another
            variable comes without labels.
        OSError: If ``resume_dir`` cannot be written to, which is tried before each shard.

    Example:
        >>> from cfchest.data import from_phantom
        >>> from cfchest.phantom import Phantom
        >>> cohort = Phantom(16).sample(3, hospital="C", seed=2027)
        >>> grid = Grid.product({"sex": [0, 1]})
        >>> brightness = {"brightness": lambda x, pa: x.mean(dim=(1, 2, 3))}
        >>> result = marginalise(cohort.oracle, brightness, from_phantom(cohort), grid)
        >>> result["brightness"].logit_cf.shape
        torch.Size([3, 2])
    """
    check_count(max_images, "max_images")
    check_predictors(predictors)
    check_generator(generator)
    for name, given, kind in (("data", data, Dataset), ("grid", grid, Grid)):
        if not isinstance(given, kind):
            raise InputError(
                f"must be a {kind.__name__}, not a {type(given).__name__}", column=name
            )
    if effect not in get_args(Effect):
        raise InputError(f"is 'direct' or 'total', not {effect!r}", column="effect")
    device, known = check_device(device), find_labels(predictors, data, labels)
    imputed = count_imputed(generator, data)
    if imputed:
        LOG.info("imputed from the image: %s", tell(imputed))
        provenance = {"imputed": imputed, **(provenance or {})}
    values = dict(grid.values) if draws is None else grid.draws(len(data), draws, seed=seed)
    check_recorded(values, data, generator)
    job = Job(generator, predictors, data, values, effect, device, max_images)
    world = World.current(job.device)
    with evaluating(generator, *predictors.values()):
        logits = all_logits(job, world, resume_dir, workers, progress)
    return collect(job, logits, grid.q if draws is None else None, known, provenance)


def check_recorded(values: Mapping[str, Tensor], data: Dataset, generator: Generator) -> None:
    """Refuse interventions on variables that were not recorded, of which the null world is one."""
    recorded = data.parents()
    for name in values:
        missing = recorded[name].isnan() if name in recorded else torch.ones(len(data)).bool()
        if missing.all() and not (name in recorded and getattr(generator, "imputes", False)):
            known = ", ".join(n for n, v in recorded.items() if not v.isnan().all())
            raise InputError(f"the data have no such parent, only {known}", column=f"grid.{name}")
        if missing.any() and not getattr(generator, "imputes", False):
            patient = data.table.patient.iloc[int(missing.nonzero()[0])]
            raise InputError(
                f"not recorded of {int(missing.sum())} rows, the first of patient {patient!r}; "
                "leave such rows out",
                column=f"grid.{name}",
            )


def all_logits(
    job: Job, world: World, folder: str | Path | None, workers: int, progress: bool
) -> Tensor:
    """The logits of everyone, shape (predictors, N, 3 + K), from finished shards or anew."""
    rows = np.arange(world.rank, len(job.data), world.size)
    shards = Shards(folder, job.fingerprint() if folder else {}, world, job.data.restricted)
    parts = finished(job, rows, shards)
    images = 2 + job.worlds
    with tqdm(
        total=len(rows) * images, unit=" images", unit_scale=True, disable=not progress
    ) as bar:
        for number, some in enumerate(pieces(rows)):
            if parts[number] is None:
                parts[number] = new_shard(job, number, some, shards, bar, workers)
            else:
                bar.update(len(some) * images)
    empty = torch.zeros(job.shape(rows[:0]))
    return world.gather(torch.cat([empty, *parts], dim=1), len(job.data))


def collect(
    job: Job,
    logits: Tensor,
    q: Tensor | None,
    labels: Mapping[str, tuple[str | None, Tensor | None]],
    provenance: Mapping[str, object] | None,
) -> dict[str, Predictions]:
    """The predictions of each predictor from all logits, shape (predictors, N, 3 + K)."""
    parents = job.data.parents()
    facts = {**(provenance or {}), **marked(job.data.restricted)}
    return {
        name: Predictions(
            logit_obs=logits[g, :, 0].clone(),
            logit_null=logits[g, :, 1].clone(),
            logit_decoded=logits[g, :, 2].clone() if logits[g, :, 2].isfinite().all() else None,
            logit_cf=logits[g, :, FIRST:].clone(),
            grid=job.values,
            q=q,
            y=labels[name][1],
            parents=parents,
            patient=job.data.table.patient.tolist(),
            provenance={"predictor": name, "label": labels[name][0], "effect": job.effect, **facts},
        )
        for g, name in enumerate(job.predictors)
    }
