"""How each predictor of the experiments is made, and where it is found once it has been."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal, get_args

import pandas as pd
import torch
from torch import Tensor

from cfbook.paths import DATA
from cfbook.study.artefacts import found_or_made
from cfbook.study.presets import DECISIVE
from cfbook.study.presets import PRESETS as PRESETS
from cfbook.study.presets import Preset as Preset
from cfbook.study.presets import on as on
from cfbook.study.presets import preset as preset
from cfchest.cohorts import drop_age, drop_sex, match_size, split
from cfchest.data import Dataset, from_phantom
from cfchest.folders import identity, radiographs
from cfchest.graph import CHEST
from cfchest.phantom import COEFFICIENTS, HOSPITALS, Cohort, Phantom
from cfcore.checks import InputError
from cfcore.marks import check_place, marked
from cfscm.networks import ImageNetwork, build, load, save
from cfscm.training import Images, train

Family = Literal["basic", "sex", "age", "control sex", "control age"]

COMMITTED = DATA / "predictors"
CACHE = Path("runs") / "predictors"
IMAGES = Path("runs") / "cache"


@dataclass(frozen=True)
class Recipe:
    """How one predictor is made.

    Args:
        preset: The sizes.
        hospital: Where it is trained, ``"C"`` or ``"M"``.
        family: ``"basic"``, or the attribute that the training set is biased by, ``"sex"`` or
            ``"age"``; ``"control sex"`` and ``"control age"`` are trained without bias on as many
            images as that bias leaves, so that their names are known before anybody is drawn.
        strength: The strength of that bias; 0 for ``"basic"``.
        seed: The seed of the dropping, of the weights and of the order of images.
        images: For ``"basic"`` only: how many training images to use, by default all.

    Example:
        >>> Recipe(preset("book"), "C", "sex", 0.95).name
        'C-sex-0.95-seed0'
        >>> Recipe(preset("book"), "C", "control sex", 0.95).name
        'C-control-sex-0.95-seed0'
        >>> Recipe(preset("book"), "C", "sex")
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: bias by sex needs a strength in (0, 1], not 0.0
    """

    preset: Preset
    hospital: str = "C"
    family: Family = "basic"
    strength: float = 0.0
    seed: int = 0
    images: int | None = None

    def __post_init__(self) -> None:
        if self.family not in get_args(Family):
            raise InputError(f"family must be one of {get_args(Family)}, not {self.family!r}")
        if self.hospital not in HOSPITALS:
            raise InputError(f"hospital must be one of {list(HOSPITALS)}, not {self.hospital!r}")
        if self.family == "basic" and self.strength:
            raise InputError(f"a basic predictor has no bias, but strength is {self.strength}")
        if self.family != "basic" and not 0 < self.strength <= 1:
            raise InputError(
                f"bias by {self.family} needs a strength in (0, 1], not {self.strength}"
            )
        if self.images is not None and self.images < 1:
            raise InputError(f"{self.images} training images are too few")
        if self.seed < 0:
            raise InputError(f"a seed is 0 or more, not {self.seed}", column="seed")
        if self.family != "basic" and self.images is not None:
            raise InputError("only basic predictors are trained on a given number of images")

    @property
    def name(self) -> str:
        """What it is called in tables and files."""
        bias = "" if self.family == "basic" else f"-{self.strength:g}"
        size = "" if self.images is None else f"-n{self.images}"
        family = self.family.replace(" ", "-")
        return f"{self.hospital}-{family}{bias}{size}-seed{self.seed}"

    @property
    def facts(self) -> dict[str, object]:
        """What decides the weights: nothing about test sets, folders and generators."""
        facts = asdict(self)
        facts["preset"] = {name: facts["preset"][name] for name in DECISIVE}
        return facts

    @property
    def digest(self) -> str:
        """A hash of the recipe and of the patients, by which its file is named.

        No patient is drawn and no image is decoded for it. The patients of the phantom are known by
        its coefficients, since its drawing is frozen, and a test keeps it so; real ones by
        :func:`cfchest.folders.identity`. The training code is not hashed, since a change of a
        comment there would orphan every predictor.
        """
        folders, size = self.preset.folders, self.preset.size
        if folders is None:
            patients = [asdict(COEFFICIENTS), asdict(HOSPITALS[self.hospital])]
        else:
            patients = [identity(self.hospital, folders, size)]
        facts = json.dumps([self.facts, *patients], sort_keys=True)
        return hashlib.sha256(facts.encode()).hexdigest()[:12]

    @property
    def file(self) -> str:
        """The file name of its weights."""
        return f"{self.name}-{self.digest}.safetensors"


@cache
def patients(hospital: str, preset: Preset) -> Cohort:
    """All patients of a hospital of the phantom, with their oracle."""
    if preset.folders is not None:
        raise InputError(f"the patients of preset {preset.name} are real and have no oracle")
    count = preset.train + preset.validation + preset.test
    return Phantom(preset.size).sample(count, hospital=hospital, seed=preset.cohort)


def everyone(hospital: str, preset: Preset) -> Dataset:
    """All images of a hospital: rendered when asked for, or decoded once and read from a file."""
    if preset.folders is None:
        return from_phantom(patients(hospital, preset))
    data = radiographs(hospital, preset.folders, preset.size)
    return data.cached(IMAGES.absolute(), workers=torch.get_num_threads())


@cache
def parts(hospital: str, preset: Preset) -> dict[str, Dataset]:
    """The patients of a hospital, split into ``train``, ``validation`` and ``test``.

    No patient is in two of them. Sex, age and label of each image are known.

    Example:
        >>> {name: len(part) for name, part in parts("C", preset("smoke")).items()}
        {'train': 800, 'validation': 200, 'test': 600}
    """
    data = everyone(hospital, preset)
    sizes = {name: getattr(preset, name) for name in ("train", "validation", "test")}
    shares = {name: size / sum(sizes.values()) for name, size in sizes.items()}
    tables = split(data.table, shares, seed=preset.cohort)
    return {name: data.select(table) for name, table in tables.items()}


def training_table(recipe: Recipe, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a training table that a recipe keeps."""
    if recipe.family.startswith("control "):
        biased = replace(recipe, family=recipe.family.removeprefix("control "))
        return match_size(table, len(training_table(biased, table)), seed=recipe.seed)
    if recipe.family == "sex":
        return drop_sex(table, recipe.strength, seed=recipe.seed)
    if recipe.family == "age":
        return drop_age(table, recipe.strength, seed=recipe.seed)
    if recipe.images is None:
        return table
    if recipe.images > len(table):
        raise InputError(f"{recipe.images} training images asked for, {len(table)} are there")
    return match_size(table, recipe.images, seed=recipe.seed)


def labelled_images(data: Dataset) -> tuple[Tensor, Tensor]:
    """All images of a data set, rendered, and their labels."""
    return data[:], data.parents["effusion"]


def examples(data: Dataset, preset: Preset) -> tuple[Images, Tensor]:
    """What a predictor learns from: rendered images in memory, real ones left where they are."""
    if preset.folders is None:
        return labelled_images(data)
    return data, data.parents["effusion"]


def make(
    recipe: Recipe, path: Path, *, device: str = "cpu", progress: bool = False
) -> ImageNetwork:
    """Train the predictor of a recipe and keep it.

    Training stops on the unbiased validation part, whatever the bias of the training set. If it
    fails, the best weights until then are kept beside ``path`` as ``*.failed.safetensors``.

    Args:
        recipe: The recipe.
        path: Where to keep its weights.
        device: Where to train.
        progress: Whether to show progress bars.

    Returns:
        The predictor.
    """
    check_place(path, recipe.preset.restricted)
    data = parts(recipe.hospital, recipe.preset)
    cohort = data["train"].select(training_table(recipe, data["train"].table))
    images, labels = examples(cohort, recipe.preset)
    reader = build(recipe.preset.network, graph=CHEST, seed=recipe.seed)
    epochs = train(
        reader,
        images,
        labels,
        validation=examples(data["validation"], recipe.preset),
        seed=recipe.seed,
        config=recipe.preset.training,
        device=device,
        progress=progress,
    )
    history: list[dict[str, object]] = []
    notes = {"recipe": recipe.facts, "images": len(images), "history": history}
    notes |= marked(recipe.preset.restricted)
    try:
        history.extend(asdict(epoch) for epoch in epochs)
    except Exception as error:
        failed = path.with_name(f"{path.stem}.failed.safetensors")
        save(reader, failed, seed=recipe.seed, notes=notes | {"error": str(error)})
        error.add_note(f"the best weights until then are in {failed}")
        raise
    save(reader, path, seed=recipe.seed, notes=notes)
    return reader


def obtain(
    recipe: Recipe,
    *,
    committed: Path = COMMITTED,
    cache: Path = CACHE,
    device: str = "cpu",
    progress: bool = False,
) -> ImageNetwork:
    """The predictor of a recipe: from the project's data, from earlier runs, or trained now.

    Args:
        recipe: The recipe.
        committed: The folder of predictors that come with the project.
        cache: The folder of those that were trained here.
        device: Where to train.
        progress: Whether to show progress bars while training.

    Returns:
        The predictor, on the CPU and in evaluation mode.
    """
    return found_or_made(
        recipe.file,
        committed,
        cache,
        load=partial(load, graph=CHEST),
        make=lambda path: make(recipe, path, device=device, progress=progress),
    )
