"""Generators that learn from partly labelled images, and where they are found."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from cfbook.study.artefacts import found_or_made
from cfbook.study.generators import CACHE, COMMITTED
from cfbook.study.recipes import Preset, Recipe, examples, parts
from cfchest.cohorts import mask_labels
from cfchest.data import Dataset
from cfchest.graph import CHEST
from cfcore.checks import InputError
from cfscm.consistency import ConsistencyConfig, Consistent
from cfscm.image import ImageMechanism
from cfscm.inference import InferenceConfig
from cfscm.model import DeepSCM, load_model, save_model
from cfscm.semisupervised import Labelled, SemiSupervised, classify_only, pack
from cfscm.training import FittingConfig, Images, Progress, fit

Masking = Literal["variable", "row"]
Trust = Literal["full", "entropy"]
Gradient = Literal["whole", "earlier"]
EARLIER = 2  # rows of a batch of which earlier trainings summed over the missing labels

START = FittingConfig(
    steps=500, batch=96, learning_rate=4e-3, warmup=50, average=0.98, clip=5.0, display=0.0
)


@dataclass(frozen=True)
class Schedule:
    """How long a generator learns from partly labelled images.

    Args:
        inference: What the parent predictors are made of.
        start: How they are trained, before anything else, on recorded labels alone.
        fitting: How everything is trained together.
        objective: What that minimises, but for the trust in imputed labels.
        after: How the optional stage of counterfactual regularisation is trained.
        imputations: How often missing labels are drawn to fit the mean of the code given them.
        shrink: How far that mean is shrunk to a linear one; see :meth:`.ImageMechanism.centre`.
    """

    inference: InferenceConfig = field(default_factory=InferenceConfig)
    start: FittingConfig = field(default_factory=lambda: replace(START, steps=800, batch=128))
    fitting: FittingConfig = field(default_factory=lambda: FittingConfig(steps=5000, batch=32))
    objective: SemiSupervised = field(default_factory=lambda: SemiSupervised(Labelled(start=4.0)))
    after: FittingConfig = field(
        default_factory=lambda: FittingConfig(steps=300, batch=32, learning_rate=5e-4, warmup=50)
    )
    imputations: int = 4
    shrink: float = 0.0125


SCHEDULES: Mapping[str, Schedule] = {
    "smoke": Schedule(
        InferenceConfig(width=8),
        FittingConfig(steps=40, batch=32, warmup=10, report=20),
        FittingConfig(steps=30, batch=16, warmup=10, report=10),
        SemiSupervised(),
        FittingConfig(steps=10, batch=16, warmup=5, report=5),
    ),
    "curve": Schedule(
        start=replace(START, steps=300),
        fitting=FittingConfig(steps=600, batch=32, warmup=50, average=0.99, shift=1),
        after=FittingConfig(steps=100, batch=32, learning_rate=5e-4, warmup=20, average=0.98),
    ),
    "book": Schedule(),
    "paper": Schedule(
        InferenceConfig(width=32),
        start=replace(START, steps=10_000, batch=128, shift=7),
        fitting=FittingConfig(steps=60_000, batch=64, shift=7),
        objective=SemiSupervised(Labelled(start=4.0), exact=8),
    ),
}
"""How long generators of each preset learn from partly labelled images."""


@dataclass(frozen=True)
class PartialRecipe:
    """How a generator is made of which a share of the labels is known.

    Args:
        preset: The sizes, the patients and what the image mechanism is made of.
        fraction: The share of the labels that are kept.
        by: Whether labels are hidden one by one (``"variable"``) or a patient at a time
            (``"row"``), see :func:`cfchest.cohorts.mask_labels`.
        unlabelled: Whether images without any label are used as well.
        trust: Whether imputed labels count like recorded ones (``"full"``: the objective is a bound
            of the likelihood) or the less, the more uncertain they are (``"entropy"``: the paper's
            weight 1 - H). On validation patients the former was nearer to the truth.
        gradient: ``"earlier"`` names weights from before the gradient of missing discrete labels
            was counted for every row of a batch; they are found if they are kept, never made.
        consistency: The stage of counterfactual regularisation, if there is one.
        hospital: Where it is trained.
        seed: The seed of the mask, the weights, the order of images and the draws.

    Example:
        >>> from cfbook.study.recipes import preset
        >>> PartialRecipe(preset("book"), fraction=0.2, seed=1).name
        'partial-C-variable-0.2-seed1'
    """

    preset: Preset
    fraction: float = 0.2
    by: Masking = "variable"
    unlabelled: bool = True
    trust: Trust = "full"
    gradient: Gradient = "whole"
    consistency: ConsistencyConfig | None = None
    hospital: str = "C"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.preset.name not in SCHEDULES:
            known = ", ".join(SCHEDULES)
            raise InputError(f"preset {self.preset.name} has no schedule for this, only {known}")
        for name, known in (("by", Masking), ("trust", Trust), ("gradient", Gradient)):
            if (value := getattr(self, name)) not in get_args(known):
                raise InputError(f"{name} is one of {get_args(known)}, not {value!r}")
        if not 0 < self.fraction <= 1:
            raise InputError(f"the share of labels lies in (0, 1], not at {self.fraction}")

    @property
    def schedule(self) -> Schedule:
        """How long it learns."""
        return SCHEDULES[self.preset.name]

    @property
    def objective(self) -> SemiSupervised:
        """What its training minimises."""
        return replace(self.schedule.objective, trusting=self.trust == "full")

    @property
    def name(self) -> str:
        """What it is called in tables and files."""
        only = "" if self.unlabelled else "-labelled-only"
        only += "" if self.trust == "full" else f"-{self.trust}"
        extra = "" if self.consistency is None else f"-cf{self.consistency.weight:g}"
        audited = "-audited" if self.consistency is not None and self.consistency.audited else ""
        share = f"{self.by}-{self.fraction:g}"
        return f"partial-{self.hospital}-{share}{only}{extra}{audited}-seed{self.seed}"

    @property
    def digest(self) -> str:
        """A hash of all that decides the weights, by which its file is named."""
        facts = {
            "patients": Recipe(self.preset, self.hospital).digest,
            "image": asdict(self.preset.image),
            "mechanisms": asdict(self.preset.mechanisms),
            "schedule": asdict(self.schedule),
            "consistency": None if self.consistency is None else asdict(self.consistency),
            "labels": [self.fraction, self.by, self.unlabelled, self.trust, self.seed],
        }
        if self.gradient == "earlier":
            facts["schedule"]["objective"]["exact"] = EARLIER
        else:
            facts["gradient"] = self.gradient
        text = json.dumps(facts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def file(self) -> str:
        """The file name of its weights."""
        return f"{self.preset.name}-{self.name}-{self.digest}.safetensors"


def partly_labelled(recipe: PartialRecipe) -> Dataset:
    """The training patients of a recipe, with labels hidden.

    Without unlabelled images, those that have lost every label are left out.
    """
    data = parts(recipe.hospital, recipe.preset)["train"]
    names = list(_untrained(recipe).names)
    table = mask_labels(data.table, recipe.fraction, seed=recipe.seed, by=recipe.by, columns=names)
    if not recipe.unlabelled:
        table = table[table[names].notna().any(axis=1)]
    return data.select(table)


def _untrained(recipe: PartialRecipe) -> DeepSCM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        image = ImageMechanism(recipe.preset.image)
    return DeepSCM(
        image,
        graph=CHEST,
        target="effusion",
        mechanisms=recipe.preset.mechanisms,
        inference=recipe.schedule.inference,
        seed=recipe.seed,
    )


class Training:
    """The stages of one training, each of which goes on from its own checkpoint.

    Args:
        recipe: The recipe.
        path: The file of the weights, beside which checkpoints are kept until the end.
        device: Where to train.
        progress: Whether to show progress bars.
    """

    def __init__(self, recipe: PartialRecipe, path: Path, device: str, *, progress: bool) -> None:
        self.recipe, self.path, self.device, self.progress = recipe, path, device, progress
        self.schedule = recipe.schedule
        data = partly_labelled(recipe)
        self.model = _untrained(recipe)
        self.pa = {name: data.parents[name] for name in self.model.names}
        self.images: Images = examples(data, recipe.preset)[0]
        self.history: dict[str, list[Progress]] = {}

    def run(self, cache: Path) -> DeepSCM:
        """All stages, in order; regularisation begins with the generator that is trained so far."""
        if self.recipe.consistency is not None:
            base = replace(self.recipe, consistency=None)
            self.model = obtain_partial(
                base, cache=cache, device=self.device, progress=self.progress
            )
            aim = Consistent.reading(self.model, self.recipe.consistency, self.recipe.objective)
            self.stage("regularised", aim, self.schedule.after)
            self.centre()
            return self.model
        self.start()
        filled = impute_all(self.model, self.images, self.pa, seed=self.recipe.seed)
        self.model.fit_parents(filled, seed=self.recipe.seed)
        self.stage("together", self.recipe.objective, self.schedule.fitting)
        self.centre()
        return self.model

    def start(self) -> None:
        """Trains the parent predictors on the labels that are recorded."""
        packed = pack(self.pa, self.model.names)
        some = packed[:, len(self.model.names) :].any(dim=1).nonzero().squeeze(1)
        chosen = Chosen(self.images, some)
        steps = self._fit("start", self.model.inference, chosen, packed[some])
        self.history["start"] = list(steps(classify_only, self.schedule.start))

    def stage(self, name: str, objective: object, config: FittingConfig) -> None:
        """Trains everything together."""
        packed = pack(self.pa, self.model.names)
        steps = self._fit(name, self.model, self.images, packed)
        self.history[name] = list(steps(objective, config))

    def _fit(self, name: str, module: torch.nn.Module, images: Images, packed: Tensor) -> object:
        def steps(objective: object, config: FittingConfig) -> Iterator[Progress]:
            return fit(
                module,
                images,
                packed,
                seed=self.recipe.seed,
                objective=objective,
                config=config,
                checkpoint=self.checkpoint(name),
                device=self.device,
                progress=self.progress,
            )

        return steps

    def centre(self) -> None:
        """Fits the mean of the code given the parents, over draws of the missing ones.

        The likeliest values would not do: they are chosen by the image, so the code differs more
        between them than between patients who have them, and an intervention would be over-drawn.
        """
        complete = all(values.isfinite().all() for values in self.pa.values())
        draws = range(1 if complete else self.schedule.imputations)
        filled = [impute_all(self.model, self.images, self.pa, seed=seed) for seed in draws]
        again = Chosen(self.images, torch.arange(len(self.images)).repeat(len(draws)))
        c = torch.cat([self.model.encode(one) for one in filled])
        self.model.image.centre(again, c, shrink=self.schedule.shrink)

    def checkpoint(self, name: str) -> Path:
        """Where a stage keeps its state."""
        return self.path.with_name(f"{self.path.stem}.{name}.checkpoint.safetensors")


@dataclass(frozen=True)
class Chosen:
    """Some rows of images, shape (N,), without a copy."""

    images: Images
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor) -> Tensor:
        return self.images[self.rows[index]]


@torch.no_grad()
def impute_all(
    model: DeepSCM, images: Images, pa: Mapping[str, Tensor], *, seed: int | None = None
) -> dict[str, Tensor]:
    """Fills in all missing parents, batch by batch: by draws with a seed, else the likeliest."""
    rng = None if seed is None else torch.Generator().manual_seed(seed)
    model = model.cpu()
    filled = [
        model.impute(images[rows], {name: values[rows] for name, values in pa.items()}, rng)
        for rows in torch.arange(len(images)).split(256)
    ]
    return {name: torch.cat([part[name] for part in filled]) for name in pa}


def make_partial(
    recipe: PartialRecipe, path: Path, *, device: str = "cpu", progress: bool = False
) -> DeepSCM:
    """Train the generator of a recipe and keep it; killed, it goes on from its last checkpoint."""
    if recipe.gradient == "earlier":
        raise InputError(f"{recipe.file} is not kept, and earlier gradients are not made again")
    path.parent.mkdir(parents=True, exist_ok=True)
    training = Training(recipe, path, device, progress=progress)
    began = time.process_time()
    model = training.run(path.parent)
    history = {name: [asdict(step) for step in steps] for name, steps in training.history.items()}
    known = {name: int(values.isfinite().sum()) for name, values in training.pa.items()}
    notes = {"recipe": recipe.name, "images": len(training.images), "known": known}
    notes["CPU seconds"] = round(time.process_time() - began)
    save_model(model.cpu(), path, seed=recipe.seed, notes=notes | {"history": history})
    for name in training.history:
        training.checkpoint(name).unlink(missing_ok=True)
    return model


def obtain_partial(
    recipe: PartialRecipe,
    *,
    committed: Path = COMMITTED,
    cache: Path = CACHE,
    device: str = "cpu",
    progress: bool = False,
) -> DeepSCM:
    """The generator of a recipe: from the project's data, from earlier runs, or trained now."""
    return found_or_made(
        recipe.file,
        committed,
        cache,
        load=lambda path: load_model(path, graph=CHEST),
        make=lambda path: make_partial(recipe, path, device=device, progress=progress),
    )
