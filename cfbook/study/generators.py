"""How the learned generator is made, and where it is found once it has been."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from cfbook.paths import DATA
from cfbook.study.artefacts import found_or_made
from cfbook.study.recipes import Preset, Recipe, examples, parts
from cfchest.graph import CHEST
from cfcore.checks import InputError
from cfcore.marks import check_place, marked
from cfscm.image import ImageMechanism
from cfscm.model import DeepSCM, load_model, save_model
from cfscm.training import Images, Progress, fit

COMMITTED = DATA / "generators"
CACHE = Path("runs") / "generators"


@dataclass(frozen=True)
class GeneratorRecipe:
    """How one generator is made.

    Args:
        preset: The sizes, and what the generator is made of.
        hospital: Where it is trained; in the paper always ``"C"``.
        seed: The seed of the weights, of the order of images and of the draws.

    Example:
        >>> from cfbook.study.recipes import preset
        >>> GeneratorRecipe(preset("book"), seed=1).name
        'learned-C-seed1'
    """

    preset: Preset
    hospital: str = "C"
    seed: int = 0

    @property
    def name(self) -> str:
        """What it is called in tables and files."""
        return f"learned-{self.hospital}-seed{self.seed}"

    @property
    def digest(self) -> str:
        """A hash of all that decides the weights, by which its file is named."""
        patients = Recipe(self.preset, self.hospital).digest
        facts = [asdict(self.preset.image), asdict(self.preset.fitting)]
        facts += [asdict(self.preset.mechanisms), asdict(self.preset.objective)]
        text = json.dumps([patients, self.seed, *facts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def file(self) -> str:
        """The file name of its weights."""
        return f"{self.preset.name}-{self.name}-{self.digest}.safetensors"


def untrained(recipe: GeneratorRecipe) -> DeepSCM:
    """The generator of a recipe before its first step."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        image = ImageMechanism(recipe.preset.image)
    return DeepSCM(
        image,
        graph=CHEST,
        target="effusion",
        mechanisms=recipe.preset.mechanisms,
        seed=recipe.seed,
    )


def training(
    model: DeepSCM,
    recipe: GeneratorRecipe,
    *,
    checkpoint: Path | None = None,
    device: str = "cpu",
    progress: bool = False,
) -> Iterator[Progress]:
    """Train the image mechanism of a generator, some steps for each item that is asked for.

    Args:
        model: The generator, trained in place.
        recipe: How.
        checkpoint: Where to keep the state; if it is there, training goes on from it.
        device: Where to train.
        progress: Whether to show a progress bar with the expected time.

    Yields:
        Statistics, see :func:`cfscm.training.fit`.
    """
    images, c = labelled_pairs(model, recipe)
    yield from fit(
        model.image,
        images,
        c,
        seed=recipe.seed,
        objective=recipe.preset.objective,
        config=recipe.preset.fitting,
        checkpoint=checkpoint,
        device=device,
        progress=progress,
    )


def labelled_pairs(model: DeepSCM, recipe: GeneratorRecipe) -> tuple[Images, Tensor]:
    """The training images of which all parents are known, and these as vectors."""
    data = parts(recipe.hospital, recipe.preset)["train"]
    whole = data.table[list(model.names)].notna().all(axis=1)
    data = data.select(data.table[whole])
    if not len(data):
        raise InputError("no training image has all parents: lung sizes come from masks")
    images, _ = examples(data, recipe.preset)
    return images, model.encode(data.parents)


def make(
    recipe: GeneratorRecipe, path: Path, *, device: str = "cpu", progress: bool = False
) -> DeepSCM:
    """Train the generator of a recipe and keep it; killed, it goes on from its last checkpoint.

    Args:
        recipe: The recipe.
        path: Where to keep its weights; the checkpoint is beside it until the end.
        device: Where to train.
        progress: Whether to show a progress bar.

    Returns:
        The generator.
    """
    check_place(path, recipe.preset.restricted)
    model = untrained(recipe)
    data = parts(recipe.hospital, recipe.preset)["train"]
    parents = {name: data.parents[name] for name in model.names}
    likelihood = model.fit_parents(parents, seed=recipe.seed)
    checkpoint = path.with_name(f"{path.stem}.checkpoint.safetensors")
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = training(model, recipe, checkpoint=checkpoint, device=device, progress=progress)
    history = [asdict(step) for step in steps]
    model.image.centre(*labelled_pairs(model, recipe))
    notes = {"recipe": recipe.name, "negative log-likelihood": likelihood, "history": history}
    notes |= marked(recipe.preset.restricted)
    save_model(model.cpu(), path, seed=recipe.seed, notes=notes)
    checkpoint.unlink(missing_ok=True)
    return model


def obtain_generator(
    recipe: GeneratorRecipe,
    *,
    committed: Path = COMMITTED,
    cache: Path = CACHE,
    device: str = "cpu",
    progress: bool = False,
) -> DeepSCM:
    """The generator of a recipe: from the project's data, from earlier runs, or trained now.

    Args:
        recipe: The recipe.
        committed: The folder of generators that come with the project.
        cache: The folder of those that were trained here.
        device: Where to train.
        progress: Whether to show a progress bar while training.

    Returns:
        The generator, on the CPU and in evaluation mode.
    """
    return found_or_made(
        recipe.file,
        committed,
        cache,
        load=partial(load_model, graph=CHEST),
        make=lambda path: make(recipe, path, device=device, progress=progress),
    )
