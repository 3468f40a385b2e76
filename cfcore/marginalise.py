r"""The one expensive step: every predictor on every patient in every world.

Each patient is abducted once, each counterfactual is decoded once and shown to all predictors. What
is kept is one logit for each of them, never an image. Finished shards of patients go to disk, so
that a run that was stopped goes on where it was.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from tqdm import tqdm

from cfcore.checks import InputError, check_count
from cfcore.fingerprint import fingerprint
from cfcore.generator import Effect, Generator, Noise, Parents, act
from cfcore.interventions import Grid
from cfcore.marks import marked
from cfcore.patients import Patients
from cfcore.predictions import Predictions
from cfcore.predictor import (
    Labels,
    Output,
    Predictor,
    blaming,
    check_device,
    check_generator,
    check_predictors,
    evaluating,
    find_outputs,
    logits,
)
from cfcore.shards import Processes, Shards

LOG = logging.getLogger(__name__)
SHARD = 256  # patients that a kill can cost at most
FIRST = 3  # logits before those of the worlds: observed, null, decoded without the residual
CHECKED = 3  # patients of a finished shard that are computed again
AGREEMENT = {False: 1e-3, True: 2e-2}  # of 1 + |logit|: in float32, in half precision on a GPU
MAX_IMAGES = 144  # in flight; small batches are fastest on a CPU, a GPU wants thousands
Values = Mapping[str, Tensor]


@dataclass
class Job:
    """What is to be computed.

    Attributes:
        generator: Abducts, acts and predicts.
        predictors: The predictors by name.
        outputs: The outputs of all predictors, in their order.
        data: The patients.
        values: What the interventions set: (K,) for all patients, or (N, K), their own.
        effect: Whether descendants of the intervened variables follow.
        device: Where to compute.
        max_images: Images in flight; halved when memory runs out.
        workers: Processes that load images ahead.
    """

    generator: Generator
    predictors: Mapping[str, Predictor]
    outputs: Sequence[Output]
    data: Patients
    values: Values
    effect: Effect
    device: torch.device
    max_images: int
    workers: int = 0

    @property
    def worlds(self) -> int:
        """The number of interventions, K."""
        return next(iter(self.values.values())).shape[-1]

    @property
    def held(self) -> list[str]:
        """The parents that are labels, of those that the generator acts on."""
        acted = getattr(self.generator, "names", self.data.parents)
        return [name for name in self.data.labels if name in self.data.parents and name in acted]

    def shape(self, rows: np.ndarray) -> tuple[int, int, int]:
        """The shape of the logits of some patients: outputs, patients, and 3 + K."""
        return len(self.outputs), len(rows), FIRST + self.worlds

    def images(self, rows: np.ndarray) -> str:
        """A hash of what the images of some patients are made of."""
        return self.data.take(rows).fingerprint()

    def fingerprint(self) -> dict[str, str]:
        """Hashes of all that the result depends on, but for images that tell their own."""
        data = self.data
        parts = {
            "generator": self.generator,
            "predictors": [dict(self.predictors), [output.key for output in self.outputs]],
            "data": [data.patient, data.index, data.parents, self.held, data.drawn_by],
            "grid": dict(self.values),
            "effect": self.effect,
        }
        return {name: fingerprint(part) for name, part in parts.items()}


def repeat(tree: object, times: int) -> object:
    """Repeat each patient of a tree of tensors, one copy for each world."""
    with blaming("repeating the noise, which must be tensors with a row for each patient,"):
        return tree_map(lambda leaf: leaf.repeat_interleave(times, dim=0), tree)


def _decode(job: Job, noise: Noise, pa: Parents, do: Values) -> tuple[Tensor, Parents]:
    """The images of b patients in k worlds, patient by patient, and their parents there.

    Args:
        job: The job.
        noise: The noise of b patients.
        pa: Their own parents, each of shape (b,).
        do: What the worlds set, each of shape (b, k).

    Returns:
        Images, shape (b * k, C, ...), and parents, each of shape (b * k,).
    """
    times = next(iter(do.values())).shape[1]
    pa = repeat(pa, times)
    flat = {name: values.reshape(-1) for name, values in do.items()}
    if job.effect == "total":
        flat = {name: pa[name] for name in job.held} | flat
    acted = act(job.generator, pa, flat, job.effect)
    return _draw(job, repeat(noise, times), acted), acted


def _draw(job: Job, noise: Noise, pa: Parents) -> Tensor:
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


def _read(job: Job, x: Tensor, pa: Parents) -> Tensor:
    """The logits of all outputs of all predictors, shape (outputs, images)."""
    x = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
    counts = Counter(output.predictor for output in job.outputs)
    with torch.autocast("cuda") if x.is_cuda else nullcontext():
        parts = [logits(name, g, counts[name], x, pa) for name, g in job.predictors.items()]
    return torch.cat(parts)


def _without_residual(noise: Noise) -> Noise | None:
    """The noise with its ``"residual"`` set to zero; None if it has no part of that name.

    A generator that holds what it cannot explain reproduces every image under the null
    intervention. What it does explain shows without the residual only.

    Example:
        >>> _without_residual({"z": torch.ones(1), "residual": torch.ones(1)})
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
        x: The images of b patients, shape (b, C, ...).
        pa: Their parents, each of shape (b,).
        index: Their rows in the cohort, shape (b,).
        do: What the worlds set, each of shape (b, K).

    Returns:
        Logits, shape (outputs, b, 3 + K); the third is NaN if the noise has no residual.
    """
    with blaming(f"{type(job.generator).__name__}.abduct()", x):
        noise = job.generator.abduct(x, pa, index=index)
    bare = _without_residual(noise)
    own = [x] if bare is None else [x, _draw(job, bare, pa)]
    do = {name: torch.cat((pa[name][:, None], values), dim=1) for name, values in do.items()}
    parts: list[Tensor] = []
    for some in torch.arange(job.worlds + 1).split(max(1, job.max_images // len(x))):
        images, acted = _decode(job, noise, pa, {name: v[:, some] for name, v in do.items()})
        if not parts:
            images = torch.cat((*own, images))
            acted = {n: torch.cat((*[pa[n]] * len(own), values)) for n, values in acted.items()}
        found = _read(job, images, acted)
        if not parts:
            first, found = found.tensor_split((len(own) * len(x),), dim=1)
            parts += first.split(len(x), dim=1)
        parts += found.unflatten(1, (len(x), -1)).unbind(dim=2)
    if bare is None:
        parts.insert(1, torch.full_like(parts[0], torch.nan))
    observed, decoded, null, *worlds = parts
    return torch.stack((observed, null, decoded, *worlds), dim=2)


def _shard_logits(job: Job, rows: np.ndarray, bar: tqdm) -> Tensor:
    """Logits of one shard of patients on the CPU, shape (outputs, len(rows), 3 + K).

    When memory runs out, the images in flight are halved and the shard begins again.
    """
    while True:
        try:
            with torch.inference_mode():
                found = torch.cat(list(_chunks(job, rows, bar)), dim=1).cpu()
            return found.clone()
        except torch.OutOfMemoryError:
            if job.max_images == 1:
                raise
            job.max_images //= 2
            bar.write(f"out of memory: going on with {job.max_images} images in flight")


def _chunks(job: Job, rows: np.ndarray, bar: tqdm) -> Iterator[Tensor]:
    """Logits of as many whole patients as memory allows, chunk by chunk, where they were made."""
    data = job.data.take(rows)
    index = data.index.to(job.device)
    for batch in data.batches(max(1, job.max_images // (job.worlds + 1)), workers=job.workers):
        pa = {name: values.to(job.device) for name, values in batch.pa.items()}
        own = torch.as_tensor(rows[batch.rows])
        do = {
            name: (values[own] if values.ndim == 2 else values.expand(len(own), -1)).to(job.device)
            for name, values in job.values.items()
        }
        x = batch.x.to(job.device)
        yield chunk_logits(job, x, _fill_in(job.generator, x, pa), index[batch.rows], do)
        bar.update(len(own) * (2 + job.worlds))


def shard_rows(rows: np.ndarray) -> list[np.ndarray]:
    """The rows of each shard."""
    return [rows[start : start + SHARD] for start in range(0, len(rows), SHARD)]


def _finished(job: Job, rows: np.ndarray, shards: Shards) -> list[Tensor | None]:
    """The shards of earlier runs, None for those to be computed.

    All are read, and some patients of each are computed again, before anything else is, so that a
    damaged shard, or one of other models, shows at once.
    """
    pieces = shard_rows(rows)
    parts = [
        shards.read(number, job.shape(some), job.images(some)) if shards.has(number) else None
        for number, some in enumerate(pieces)
    ]
    if any(part is None for part in parts):
        shards.check_writable(job.shape(rows[:SHARD]))
    for number, (some, part) in enumerate(zip(pieces, parts, strict=True)):
        if part is not None:
            check_kept(job, some, part, shards, number)
    return parts


def check_kept(job: Job, rows: np.ndarray, kept: Tensor, shards: Shards, number: int) -> None:
    r"""Refuse a shard whose logits are not what generator and predictors give today.

    The first, the middle and the last patient are computed again. A logit :math:`l` agrees if it is
    within :math:`10^{-3} (1 + |l|)`, or twenty times that if a GPU had a part in it, which
    computes in half precision: another number of threads or another device passes.

    Args:
        job: The job.
        rows: The patients of the shard.
        kept: Its logits, shape (outputs, patients, 3 + K).
        shards: The shards.
        number: Its number.
    """
    some = np.unique(np.linspace(0, len(rows) - 1, CHECKED).astype(int))
    with tqdm(disable=True) as bar:
        now = _shard_logits(replace(job, workers=0), rows[some], bar)
    then, near = kept[:, some], AGREEMENT[shards.half]
    wrong = ~torch.isclose(now, then, rtol=near, atol=near, equal_nan=True)
    if wrong.any():
        g, row, column = wrong.nonzero()[0].tolist()
        name, patient = job.outputs[g].key, job.data.patient[rows[some[row]]]
        raise InputError(
            f"{shards.path(number)}: predictor {name!r} gives {now[g, row, column]:.4g} for "
            f"patient {patient!r}, but gave {then[g, row, column]:.4g} when the shard was made: "
            "generator, predictors or data have changed, or are random; choose another folder, or "
            "remove this one to begin again"
        )


def _new_shard(job: Job, number: int, rows: np.ndarray, shards: Shards, bar: tqdm) -> Tensor:
    """Compute and keep one shard, if there is room to keep it and every logit is a number.

    What the images are is noted before they are read: should one be replaced meanwhile, the shard
    is refused later, not believed.
    """
    shards.check_writable(job.shape(rows))
    images = job.images(rows) if shards.folder else ""
    part = _shard_logits(job, rows, bar)
    bad = ~part.isfinite()
    bad[:, :, 2] = False  # none without a residual
    if bad.any():
        g, row, column = bad.nonzero()[0].tolist()
        raise InputError(
            f"predictor {job.outputs[g].key!r} gives {part[g, row, column].item()} for patient "
            f"{job.data.patient[rows[row]]!r}"
        )
    shards.write(number, part, images)
    return part


def marginalise(
    generator: Generator,
    predictors: Mapping[str, Predictor],
    data: Patients,
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
        predictors: Functions of images and parents, or modules of images, by name, that return
            logits of shape (B,), (B, 1), or (B, L) of L labels. Modules are put into evaluation
            mode for the time being.
        data: The patients, N of them, with their parents and labels.
        grid: The interventions, K of them, and their probabilities.
        labels: What a predictor is judged by, by its name: the name of a label, or of a parent or
            column of 0 and 1; a list of such names, one for each output; labels of shape (N,); or
            None. Every other predictor must have an output for each label of the data, in their
            order. The provenance names the label, and of several outputs all.
        effect: ``"direct"`` holds the other parents, ``"total"`` lets descendants follow; a parent
            that is a label too is held under both, unless it is intervened on.
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
        The predictions of each predictor, on the CPU; of one with several outputs by
        ``"predictor:label"``.

    Raises:
        InputError: If an image cannot be read, a predictor returns a value that is not a number, or
            ``resume_dir`` holds something else; the message names the file or the patient. If a
            parent is missing that the generator needs and cannot impute, or a predictor of another
            variable comes without labels.
        OSError: If ``resume_dir`` cannot be written to, which is tried before each shard.

    Example:
        >>> class Shade:
        ...     def abduct(self, x, pa, *, index=None, rng=None):
        ...         return x - pa["site"][:, None, None, None] / 2
        ...     def predict(self, noise, pa):
        ...         return noise + pa["site"][:, None, None, None] / 2
        >>> data = Patients(torch.rand(3, 1, 4, 4) / 2, {"site": [0, 1, 0]}, {"ill": [0, 1, 1]})
        >>> brightness = {"brightness": lambda x, pa: x.mean(dim=(1, 2, 3))}
        >>> found = marginalise(Shade(), brightness, data, Grid.product({"site": [0, 1]}))
        >>> found["brightness"].logit_cf.diff().squeeze(1)
        tensor([0.5000, 0.5000, 0.5000])
    """
    check_count(max_images, "max_images")
    check_predictors(predictors)
    check_generator(generator)
    for name, given, kind in (("data", data, Patients), ("grid", grid, Grid)):
        if not isinstance(given, kind):
            problem = f"must be a {kind.__name__}, not a {type(given).__name__}"
            raise InputError(problem, column=name)
    if effect not in get_args(Effect):
        raise InputError(f"is 'direct' or 'total', not {effect!r}", column="effect")
    outputs, device = find_outputs(predictors, data, labels), check_device(device)
    facts = dict(provenance or {}) | marked(data.restricted)
    imputed = _count_imputed(generator, data)
    if imputed:
        LOG.info("imputed from the image: %s", _tell(imputed))
        facts = {"imputed": imputed} | facts
    values = dict(grid.values) if draws is None else grid.draws(len(data), draws, seed=seed)
    _check_recorded(values, data, generator)
    job = Job(generator, predictors, outputs, data, values, effect, device, max_images, workers)
    with evaluating(generator, *predictors.values()):
        found = _all_logits(job, resume_dir, progress)
    return _collect(job, found, grid.q if draws is None else None, facts)


def _check_recorded(values: Values, data: Patients, generator: Generator) -> None:
    """Refuse interventions on variables that were not recorded, of which the null world is one."""
    imputes = getattr(generator, "imputes", False)
    for name in values:
        found = data.parents.get(name)
        missing = torch.ones(len(data)).bool() if found is None else found.isnan()
        if missing.all() and not (imputes and found is not None):
            known = ", ".join(n for n, v in data.parents.items() if not v.isnan().all())
            raise InputError(f"the data have no such parent, only {known}", column=f"grid.{name}")
        if missing.any() and not imputes:
            raise InputError(
                f"not recorded of {int(missing.sum())} rows, the first of patient "
                f"{data.patient[int(missing.nonzero()[0])]!r}; leave such rows out",
                column=f"grid.{name}",
            )


def _count_imputed(generator: Generator, data: Patients) -> dict[str, int]:
    """How many values of each parent a generator has to fill in, of those that miss some.

    A generator says by ``names`` which parents it needs and by ``imputes`` whether it can fill
    them in from the image. One that says nothing is given what is recorded, NaN and all: an oracle,
    or a generator that reads no parents.

    Raises:
        InputError: If a parent that is needed is missing and cannot be filled in.
    """
    needed = [name for name in getattr(generator, "names", ()) if name in data.parents]
    missing = {name: data.parents[name].isnan() for name in needed}
    counts = {name: int(rows.sum()) for name, rows in missing.items() if rows.any()}
    if counts and not getattr(generator, "imputes", False):
        row = min(int(missing[name].nonzero()[0]) for name in counts)
        raise InputError(
            f"parents are missing ({_tell(counts)}; the first for patient {data.patient[row]!r}), "
            f"and {type(generator).__name__} cannot impute them: leave such rows out, or use a "
            "generator trained on partly labelled images",
            column=next(iter(counts)),
            row=row,
        )
    return counts


def _tell(counts: Mapping[str, int]) -> str:
    """Counts in words.

    Example:
        >>> _tell({"sex": 3, "age": 1})
        'sex of 3 rows, age of 1 row'
    """
    return ", ".join(f"{name} of {n:,} row{'s' * (n != 1)}" for name, n in counts.items())


def _fill_in(generator: Generator, x: Tensor, pa: Parents) -> Parents:
    """The parents of some images, with missing ones filled in by a generator that imputes."""
    names = [name for name in getattr(generator, "names", ()) if name in pa]
    if not getattr(generator, "imputes", False) or not any(pa[n].isnan().any() for n in names):
        return pa
    return {**pa, **generator.impute(x, {name: pa[name] for name in names})}


def _all_logits(job: Job, folder: str | Path | None, progress: bool) -> Tensor:
    """The logits of everyone, shape (outputs, N, 3 + K), from finished shards or anew."""
    processes = Processes.current(job.device)
    rows = np.arange(processes.rank, len(job.data), processes.size)
    shards = Shards(folder, job.fingerprint() if folder else {}, processes, job.data.restricted)
    parts, images = _finished(job, rows, shards), 2 + job.worlds
    whole = {"total": len(rows) * images, "unit": " images", "unit_scale": True}
    with tqdm(**whole, disable=not progress) as bar:
        for number, some in enumerate(shard_rows(rows)):
            if parts[number] is None:
                parts[number] = _new_shard(job, number, some, shards, bar)
            else:
                bar.update(len(some) * images)
    empty = torch.zeros(job.shape(rows[:0]))
    return processes.gather(torch.cat([empty, *parts], dim=1), len(job.data))


def _collect(
    job: Job, found: Tensor, q: Tensor | None, facts: Mapping[str, object]
) -> dict[str, Predictions]:
    """The predictions of each output from all logits, shape (outputs, N, 3 + K)."""
    made = {}
    for output, own in zip(job.outputs, found, strict=True):
        observed, null, decoded = own[:, :FIRST].T.contiguous().unbind()
        known = {"predictor": output.predictor, "label": output.label, "effect": job.effect}
        known |= {"outputs": output.among} if output.among else {}
        made[output.key] = Predictions(
            logit_obs=observed,
            logit_null=null,
            logit_decoded=decoded if decoded.isfinite().all() else None,
            logit_cf=own[:, FIRST:].clone(),
            grid=job.values,
            q=q,
            y=output.y,
            parents=job.data.parents,
            patient=job.data.patient,
            provenance=known | facts,
        )
    return made
