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
from cfcore.generator import Effect, Generator, Noise, Parents, act, blaming, check_protocol
from cfcore.interventions import Grid
from cfcore.marks import marked
from cfcore.patients import Patients
from cfcore.predictions import Predictions
from cfcore.predictor import Labels, Output, Predictor, check_device, evaluating, logits, outputs_of
from cfcore.shards import Processes, Shards

_LOG = logging.getLogger(__name__)
_SHARD = 256  # patients that a kill can cost at most
_FIRST = 3  # logits before those of the worlds: observed, null, decoded without the residual
_CHECKED = 3  # patients of a finished shard that are computed again
_AGREEMENT = {False: 1e-3, True: 2e-2}  # of 1 + |logit|: in float32, in half precision on a GPU
MAX_IMAGES = 144  # in flight; small batches are fastest on a CPU, a GPU wants thousands
Values = Mapping[str, Tensor]


@dataclass
class _Job:
    """What is to be computed; the images in flight are halved when memory runs out.

    The interventions set values of shape (K,) for all patients, or (N, K), their own.
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
        return len(self.outputs), len(rows), _FIRST + self.worlds

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


def _repeat(tree: object, times: int) -> object:
    """Repeat each patient of a tree of tensors, one copy for each world."""
    with blaming("repeating the noise, which must be tensors with a row for each patient,"):
        return tree_map(lambda leaf: leaf.repeat_interleave(times, dim=0), tree)


def _decode(job: _Job, noise: Noise, pa: Parents, do: Values) -> tuple[Tensor, Parents]:
    """The images of b patients in k worlds, by ``do`` of shape (b, k), and their parents there.

    Both are in one axis, patient by patient: (b * k, C, ...) and (b * k,).
    """
    times = next(iter(do.values())).shape[1]
    pa = _repeat(pa, times)
    flat = {name: values.reshape(-1) for name, values in do.items()}
    if job.effect == "total":
        flat = {name: pa[name] for name in job.held} | flat
    acted = act(job.generator, pa, flat, job.effect)
    return _draw(job, _repeat(noise, times), acted), acted


def _draw(job: _Job, noise: Noise, pa: Parents) -> Tensor:
    """The images that the noise gives under the parents, one for each row."""
    like, name = next(iter(pa.values())), f"{type(job.generator).__name__}.predict()"
    with blaming(name, like):
        images = job.generator.predict(noise, pa)
    found = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
    if found[:1] != (len(like),):
        wanted = f"{len(like)} rows of noise, not a tensor of as many images"
        raise InputError(f"{name} gives {found} for {wanted}")
    return images


def _read(job: _Job, x: Tensor, pa: Parents) -> Tensor:
    """The logits of all outputs of all predictors, shape (outputs, images)."""
    x = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
    counts = Counter(output.predictor for output in job.outputs)
    with torch.autocast("cuda") if x.is_cuda else nullcontext():
        return torch.cat([logits(n, g, counts[n], x, pa) for n, g in job.predictors.items()])


def _chunk_logits(job: _Job, x: Tensor, pa: Parents, index: Tensor, do: Values) -> Tensor:
    """Observed, null, decoded and counterfactual logits of some patients.

    The null world is decoded like any other, with each patient's own values. A generator that holds
    what it cannot explain, the ``"residual"`` of its noise, reproduces every image there; what it
    does explain shows in images decoded without. These, and the observed ones, are read along with
    the first of the worlds: small batches are slow. The decoded ones are NaN without a residual.

    Of images (b, C, ...), parents and rows in the cohort, each (b,), and what the worlds set, each
    (b, K), the result has shape (outputs, b, 3 + K).
    """
    with blaming(f"{type(job.generator).__name__}.abduct()", x):
        noise = job.generator.abduct(x, pa, index=index)
    own, residual = [x], noise.get("residual") if isinstance(noise, Mapping) else None
    if isinstance(residual, Tensor):
        own.append(_draw(job, {**noise, "residual": torch.zeros_like(residual)}, pa))
    do = {name: torch.cat((pa[name][:, None], values), dim=1) for name, values in do.items()}
    parts: list[Tensor] = []
    for some in torch.arange(job.worlds + 1).split(max(1, job.max_images // len(x))):
        images, acted = _decode(job, noise, pa, {name: v[:, some] for name, v in do.items()})
        if not parts:
            if images.shape[1:] != x.shape[1:]:
                pair = f"{tuple(images.shape[1:])} for images of {tuple(x.shape[1:])}"
                raise InputError(f"{type(job.generator).__name__}.predict() draws {pair}")
            images = torch.cat((*own, images))
            acted = {n: torch.cat((*[pa[n]] * len(own), values)) for n, values in acted.items()}
        found = _read(job, images, acted)
        if not parts:
            first, found = found.tensor_split((len(own) * len(x),), dim=1)
            parts += first.split(len(x), dim=1)
        parts += found.unflatten(1, (len(x), -1)).unbind(dim=2)
    if len(own) == 1:
        parts.insert(1, torch.full_like(parts[0], torch.nan))
    observed, decoded, null, *worlds = parts
    return torch.stack((observed, null, decoded, *worlds), dim=2)


def _shard_logits(job: _Job, rows: np.ndarray, bar: tqdm) -> Tensor:
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


def _chunks(job: _Job, rows: np.ndarray, bar: tqdm) -> Iterator[Tensor]:
    """Logits of as many whole patients as memory allows, chunk by chunk, where they were made."""
    data, to = job.data.take(rows), job.device
    index = data.index.to(to)
    for batch in data.batches(max(1, job.max_images // (job.worlds + 1)), workers=job.workers):
        own, x = torch.as_tensor(rows[batch.rows]), batch.x.to(to)
        each = {n: v[own] if v.ndim == 2 else v.expand(len(own), -1) for n, v in job.values.items()}
        pa, do = ({n: v.to(to) for n, v in values.items()} for values in (batch.pa, each))
        known = {name: pa[name] for name in getattr(job.generator, "names", ()) if name in pa}
        if getattr(job.generator, "imputes", False) and any(
            v.isnan().any() for v in known.values()
        ):
            pa |= job.generator.impute(x, known)
        yield _chunk_logits(job, x, pa, index[batch.rows], do)
        bar.update(len(own) * (2 + job.worlds))


def _first(bad: Tensor, job: _Job, rows: np.ndarray) -> tuple[tuple[int, ...], str, str]:
    """The place of the first bad logit, its predictor and its patient, of some rows."""
    place = tuple(bad.nonzero()[0].tolist())
    return place, job.outputs[place[0]].key, job.data.patient[rows[place[1]]]


def _check_kept(job: _Job, rows: np.ndarray, kept: Tensor, shards: Shards, number: int) -> None:
    r"""Refuse a shard whose logits are not what generator and predictors give today.

    The first, the middle and the last patient are computed again. A logit :math:`l` agrees if it is
    within :math:`10^{-3} (1 + |l|)`, or twenty times that if a GPU had a part in it, which
    computes in half precision: another number of threads or another device passes.
    """
    some = np.unique(np.linspace(0, len(rows) - 1, _CHECKED).astype(int))
    with tqdm(disable=True) as bar:
        now = _shard_logits(replace(job, workers=0), rows[some], bar)
    then, near = kept[:, some], _AGREEMENT[shards.half]
    wrong = ~torch.isclose(now, then, rtol=near, atol=near, equal_nan=True)
    if wrong.any():
        at, name, patient = _first(wrong, job, rows[some])
        raise InputError(
            f"{shards.path(number)}: predictor {name!r} gives {now[at]:.4g} for patient "
            f"{patient!r}, but gave {then[at]:.4g} when the shard was made: generator, predictors "
            "or data have changed, or are random; choose another folder, or remove this one to "
            "begin again"
        )


def _new_shard(job: _Job, number: int, rows: np.ndarray, shards: Shards, bar: tqdm) -> Tensor:
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
        at, name, patient = _first(bad, job, rows)
        raise InputError(f"predictor {name!r} gives {part[at].item()} for patient {patient!r}")
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

    Missing parents are imputed by a generator that can; ``provenance["imputed"]`` then counts them,
    and the predictions hold the parents as recorded.

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
        draws: Instead of the whole grid, this many draws from q for each patient, by ``seed``.
        max_images: Images in flight: what bounds the memory.
        resume_dir: Where to keep finished shards; with the same inputs, a later call goes on there.
            Other inputs are refused: they are hashed, and three patients of each shard are computed
            again.
        workers: Processes that load images ahead.
        provenance: What to remember with the predictions.

    Returns:
        The predictions of each predictor, on the CPU; of one with several outputs by
        ``"predictor:label"``.

    Raises:
        InputError: If anything given cannot be right, an image cannot be read, a predictor gives no
            number, or ``resume_dir`` holds something else; the message names file or patient.
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
    check_protocol(generator)
    for name, given, kind in (("data", data, Patients), ("grid", grid, Grid)):
        if not isinstance(given, kind):
            problem = f"must be a {kind.__name__}, not a {type(given).__name__}"
            raise InputError(problem, column=name)
    if effect not in get_args(Effect):
        raise InputError(f"is 'direct' or 'total', not {effect!r}", column="effect")
    outputs, device = outputs_of(predictors, data, labels), check_device(device)
    facts = dict(provenance or {}) | marked(data.restricted)
    imputed = _count_imputed(generator, data, grid.values)
    if imputed:
        _LOG.info("imputed from the image: %s", _tell(imputed))
        facts = {"imputed": imputed} | facts
    values = dict(grid.values) if draws is None else grid.draws(len(data), draws, seed=seed)
    job = _Job(generator, predictors, outputs, data, values, effect, device, max_images, workers)
    with evaluating(generator, *predictors.values()):
        found = _all_logits(job, Path(resume_dir) if resume_dir else None, progress)
    return _collect(job, found, grid.q if draws is None else None, facts)


def _count_imputed(generator: Generator, data: Patients, grid: Values) -> dict[str, int]:
    """How many values of each parent are missing and will be filled in; refused if they cannot be.

    A generator says by ``names`` which parents it needs and by ``imputes`` whether it can fill them
    in from the image. One that says nothing is given what is recorded, NaN and all: an oracle, or a
    generator that reads no parents. Variables of the grid are needed too: the null world sets them.
    """
    names = getattr(generator, "names", ())
    filled = names if getattr(generator, "imputes", False) else ()
    missing = {n: data.parents[n].isnan() for n in (*names, *grid) if n in data.parents}
    for name in grid:
        if name not in missing or (missing[name].all() and name not in filled):
            known = ", ".join(n for n, v in data.parents.items() if not v.isnan().all())
            raise InputError(f"the data have no such parent, only {known}", column=f"grid.{name}")
    counts = {name: int(rows.sum()) for name, rows in missing.items() if rows.any()}
    absent = [name for name in counts if name not in filled]
    if absent:
        row = min(int(missing[name].nonzero()[0]) for name in absent)
        problem = (
            f"parents are missing ({_tell(counts)}; the first for patient {data.patient[row]!r}), "
            f"and {type(generator).__name__} cannot impute them: leave such rows out, or use a "
            "generator trained on partly labelled images"
        )
        raise InputError(problem, column=absent[0], row=row)
    return counts


def _tell(counts: Mapping[str, int]) -> str:
    """Counts in words: sex of 3 rows, age of 1 row."""
    return ", ".join(f"{name} of {n:,} row{'s' * (n != 1)}" for name, n in counts.items())


def _all_logits(job: _Job, folder: Path | None, progress: bool) -> Tensor:
    """The logits of everyone, shape (outputs, N, 3 + K), from finished shards or anew.

    Finished shards are all read, and some patients of each computed again, before anything else is,
    so that a damaged one, or one of other models, shows at once.
    """
    processes = Processes.current(job.device)
    rows = np.arange(processes.rank, len(job.data), processes.size)
    shards = Shards(folder, job.fingerprint() if folder else {}, processes, job.data.restricted)
    pieces = dict(enumerate(rows[start : start + _SHARD] for start in range(0, len(rows), _SHARD)))
    done = {number: some for number, some in pieces.items() if shards.has(number)}
    parts = {n: shards.read(n, job.shape(some), job.images(some)) for n, some in done.items()}
    if len(done) < len(pieces):
        shards.check_writable(job.shape(rows[:_SHARD]))
    for number, some in done.items():
        _check_kept(job, some, parts[number], shards, number)
    images = 2 + job.worlds
    whole = {"total": len(rows) * images, "unit": " images", "unit_scale": True}
    with tqdm(**whole, disable=not progress) as bar:
        bar.update(images * sum(map(len, done.values())))
        for number in sorted(pieces.keys() - done.keys()):
            parts[number] = _new_shard(job, number, pieces[number], shards, bar)
    found = [torch.zeros(job.shape(rows[:0])), *(parts[number] for number in pieces)]
    return processes.gather(torch.cat(found, dim=1), len(job.data))


def _collect(
    job: _Job, found: Tensor, q: Tensor | None, facts: Mapping[str, object]
) -> dict[str, Predictions]:
    """The predictions of each output from all logits, shape (outputs, N, 3 + K)."""
    made, parents, patient = {}, job.data.parents, job.data.patient
    for output, own in zip(job.outputs, found, strict=True):
        observed, null, decoded = own[:, :_FIRST].T.contiguous().unbind()
        decoded = decoded if decoded.isfinite().all() else None
        known = {"predictor": output.predictor, "label": output.label, "effect": job.effect}
        known |= ({"outputs": output.among} if output.among else {}) | facts
        rest = (job.values, q, output.y, parents, patient, known, null, decoded, job.data.weight)
        made[output.key] = Predictions(observed, own[:, _FIRST:].clone(), *rest)
    return made
