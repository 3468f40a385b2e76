"""How each predictor of the experiments is made, and where it is found once it has been."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import pandas as pd
import torch
from torch import Tensor

from cfcore.checks import InputError
from cfcore.cohorts import drop_age, drop_sex, match_size, split
from cfcore.datasets import Dataset, from_phantom
from cfcore.phantom import COEFFICIENTS, HOSPITALS, Cohort, Phantom
from cfcore.predictors import PredictorConfig, Reader, build, load, save
from cfcore.sources import Folders, identity, radiographs
from cfcore.training import Images, TrainingConfig, train

Family = Literal["basic", "sex", "age"]

COMMITTED = Path(__file__).parent.parent / "data" / "predictors"
CACHE = Path("runs") / "predictors"
IMAGES = Path("runs") / "cache"


@dataclass(frozen=True)
class Preset:
    """The size of everything, and whose images they are.

    Patients of the phantom are drawn, as many as asked for. Of real patients all are used, and
    ``train``, ``validation`` and ``test`` are in proportion.

    Args:
        name: What it is called.
        size: Side of the images in pixels.
        train: Training images, before any are dropped.
        validation: Images on which training stops.
        test: Images from which test sets are chosen.
        cohort: The seed of the patients.
        network: What a predictor is made of.
        training: How it is trained.
        patients: About how many images a test set has; by default as many as there are.
        trainings: How often each predictor is trained, with the seeds 0, 1, ...
        folders: Where the real patients are; by default there are none, only the phantom's.
    """

    name: str
    size: int
    train: int
    validation: int
    test: int
    cohort: int = 2026
    network: PredictorConfig = field(default_factory=PredictorConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    patients: int | None = None
    trainings: int = 3
    folders: Folders | None = None

    def __post_init__(self) -> None:
        if self.trainings < 1:
            raise InputError(f"each predictor is trained once or more, not {self.trainings} times")


PRESETS: Mapping[str, Preset] = {
    "smoke": Preset(
        "smoke",
        32,
        800,
        200,
        600,
        network=PredictorConfig(width=8),
        training=TrainingConfig(3),
        patients=200,
    ),
    "book": Preset("book", 64, 8_000, 1_000, 4_000, patients=1_000),
    "paper": Preset(
        "paper",
        224,
        70,
        10,
        20,
        network=PredictorConfig(architecture="densenet121", width=64),
        training=TrainingConfig(epochs=20, learning_rate=1e-3, shift=8),
        folders=Folders(),
    ),
}


def preset(name: str, **changes: object) -> Preset:
    """Look a preset up by name, perhaps with some of its sizes changed.

    ``preset("paper", folders=Folders(chexpert=...))`` is the paper's experiment; any other preset
    with folders is that experiment on real patients, smaller.

    Example:
        >>> preset("book", train=500).train
        500
        >>> preset("novel")
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: there is no preset 'novel', only smoke, book, paper
    """
    if name not in PRESETS:
        raise InputError(f"there is no preset {name!r}, only {', '.join(PRESETS)}")
    return replace(PRESETS[name], **changes)


def on(name: str, data: Mapping[str, str], **changes: object) -> Preset:
    """A preset on the folders of real data, or on the phantom if there are none.

    Args:
        name: The name of the preset.
        data: Folders by their names in :class:`~cfcore.sources.Folders`.
        **changes: What else to change.

    Example:
        >>> on("smoke", {}).folders is None, on("smoke", {"chexpert": "DIR"}).folders.chexpert
        (True, 'DIR')
    """
    unknown = set(data) - {each.name for each in fields(Folders)}
    if unknown:
        raise InputError(f"there is no folder {sorted(unknown)[0]!r}", column="data")
    return preset(name, **(changes | ({"folders": Folders(**data)} if data else {})))


@dataclass(frozen=True)
class Recipe:
    """How one predictor is made.

    Args:
        preset: The sizes.
        hospital: Where it is trained, ``"C"`` or ``"M"``.
        family: ``"basic"``, or the attribute that the training set is biased by.
        strength: The strength of that bias; 0 for ``"basic"``.
        seed: The seed of the dropping, of the weights and of the order of images.
        images: For ``"basic"`` only: how many training images to use, by default all.

    Example:
        >>> Recipe(preset("book"), "C", "sex", 0.95).name
        'C-sex-0.95-seed0'
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
        return f"{self.hospital}-{self.family}{bias}{size}-seed{self.seed}"

    @property
    def facts(self) -> dict[str, object]:
        """What decides the weights: all but the size of test sets and where the folders are."""
        facts = asdict(self)
        for name in ("patients", "trainings", "folders"):
            del facts["preset"][name]
        return facts

    @property
    def digest(self) -> str:
        """A hash of the recipe and of the patients, by which its file is named.

        The patients of the phantom are known by its coefficients, since its drawing is frozen, and
        a test keeps it so; real ones by :func:`cfcore.sources.identity`. The training code is not
        hashed, since a change of a comment there would orphan every predictor.
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
    return data[:], data.parents(["effusion"])["effusion"]


def examples(data: Dataset, preset: Preset) -> tuple[Images, Tensor]:
    """What a predictor learns from: rendered images in memory, real ones left where they are."""
    if preset.folders is None:
        return labelled_images(data)
    return data, data.parents(["effusion"])["effusion"]


def make(recipe: Recipe, path: Path, *, device: str = "cpu", progress: bool = False) -> Reader:
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
    data = parts(recipe.hospital, recipe.preset)
    cohort = data["train"].select(training_table(recipe, data["train"].table))
    images, labels = examples(cohort, recipe.preset)
    reader = build(recipe.preset.network, seed=recipe.seed)
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
) -> Reader:
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
    if (committed / recipe.file).is_file():
        return load(committed / recipe.file)
    try:
        return load(cache / recipe.file)
    except (FileNotFoundError, InputError):  # never made, or not to its end
        return make(recipe, cache / recipe.file, device=device, progress=progress).cpu().eval()
