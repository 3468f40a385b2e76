"""How each network of the experiments is made, and where it is found once it has been."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Generic, Literal, TypeVar, get_args

import pandas as pd
import torch
from torch import Tensor, nn

from cfbook.paths import DATA
from cfbook.study.cohorts import cohort_facts, parts
from cfbook.study.presets import Preset, check_known
from cfchest.cohorts import drop_age, drop_sex, match_size
from cfchest.data import Dataset, from_phantom
from cfchest.folders import Folders
from cfchest.graph import CHEST
from cfchest.phantom import HOSPITALS, Phantom
from cfcore.checks import InputError
from cfcore.marks import check_place, marked
from cfscm import networks
from cfscm.detail import DetailedImage
from cfscm.encoding import widths
from cfscm.image import ImageMechanism
from cfscm.inference import InferenceConfig
from cfscm.learning import fit_detailed, fit_flow
from cfscm.model import DeepSCM, load_model, save_model
from cfscm.networks import ImageNetwork, PredictorConfig
from cfscm.training import Images, TrainingConfig, fit, train

_Family = Literal["basic", "sex", "age", "control sex", "control age"]
_Module = TypeVar("_Module", bound=nn.Module)

# What of a preset decides the weights of a predictor, and what else those of a generator.
_DECISIVE = ("name", "size", "train", "validation", "test", "cohort", "network", "training")
_GENERATING = ("image", "fitting", "mechanisms", "objective")
_OWN = 5  # added to the seed of the patients of generators that have their own
_APART = 2  # added to the seed of the patients of probes: those of the experiments are other ones


class Recipe:
    """How something is made, and the name of the file in which it is found once it has been.

    The file is named by a hash of facts alone: nobody is drawn and no image is decoded to find it.
    The code that makes it is not hashed, since a change of a comment would orphan every file.

    Attributes:
        name: What it is called in tables.
        facts: All that decides what is in the file, ready for JSON.
        sized: Whether the name of the preset is part of the file name.
    """

    preset: Preset
    name: str
    facts: object
    sized: ClassVar[bool] = True

    @property
    def digest(self) -> str:
        """The hash of the facts."""
        text = json.dumps(self.facts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def file(self) -> str:
        """The file name."""
        size = f"{self.preset.name}-" if self.sized else ""
        return f"{size}{self.name}-{self.digest}.safetensors".replace(" ", "-")


class _NetworkRecipe(Recipe, Generic[_Module]):
    """How a network is trained, by the method ``_trained``, which also returns notes about it.

    Attributes:
        committed: The folder of those that come with the project.
        cache: The folder of those that were trained here.
        load: Reads one, in evaluation mode, on the CPU.
    """

    committed: ClassVar[Path]
    cache: ClassVar[Path]
    load: ClassVar[Callable[[Path], nn.Module]]
    seed: int

    @property
    def folders(self) -> Folders | None:
        """Where the real patients are; None for the phantom's."""
        return self.preset.folders

    def seen(self, data: Dataset) -> Images:
        """What it learns from: rendered images in memory, real ones left where they are."""
        return data[:] if self.folders is None else data

    def obtain(
        self,
        *,
        committed: Path | None = None,
        cache: Path | None = None,
        **where: object,
    ) -> _Module:
        """The network, on the CPU: from the project's data, from earlier runs, or trained now.

        Args:
            committed: Where to look first, if not in the folder of the project.
            cache: Where to look then, and to keep it, if not in that of earlier runs.
            where: ``device`` and ``progress`` of a training, and ``compiled`` of a generator's.
        """
        kept, path = (committed or self.committed) / self.file, (cache or self.cache) / self.file
        if kept.is_file():
            return self.load(kept)
        try:
            return self.load(path)
        except (FileNotFoundError, InputError):  # never made, or not to its end
            return self.make(path, **where).eval()

    def make(self, path: Path, **where: object) -> _Module:
        """Train the network and keep it at ``path``; checkpoints are beside it until the end."""
        check_place(path, self._sources)
        path.parent.mkdir(parents=True, exist_ok=True)
        module, notes = self._trained(path, **where)
        self._keep(module.cpu(), path, notes)
        for checkpoint in path.parent.glob(f"{path.stem}.*checkpoint.safetensors"):
            checkpoint.unlink()
        return module

    @property
    def _sources(self) -> tuple[str, ...]:
        return () if self.folders is None else self.folders.restricted

    def _keep(self, module: _Module, path: Path, notes: dict[str, object]) -> None:
        save_model(module, path, seed=self.seed, notes=notes | marked(self._sources))


class _ReaderRecipe(_NetworkRecipe[ImageNetwork]):
    """How a classifier of images is trained, on its ``data()``.

    Attributes:
        network: What it is made of.
        training: How it is trained.
    """

    sized: ClassVar[bool] = False
    load = staticmethod(partial(networks.load, graph=CHEST))
    network: PredictorConfig
    training: TrainingConfig

    def _keep(self, module: ImageNetwork, path: Path, notes: dict[str, object]) -> None:
        how = {
            "notes": notes | marked(self._sources),
            "eight": self.network.architecture == "small",
        }
        networks.save(module, path, seed=self.seed, **how)

    def _trained(self, path: Path, **where: object) -> tuple[ImageNetwork, dict]:
        """Train it; if that fails, keep the best weights until then as ``*.failed.safetensors``."""
        name, both = self.network.variable, self.data()
        examples, validation = ((self.seen(d), d.parents[name]) for d in both)
        reader = networks.build(self.network, seed=self.seed, graph=CHEST)
        how = {"seed": self.seed, "config": self.training, **where}
        epochs = train(reader, *examples, validation=validation, **how)
        history: list[dict[str, object]] = []
        notes = {"recipe": self.facts[0], "images": len(both[0]), "history": history}
        try:
            history.extend(asdict(epoch) for epoch in epochs)
        except Exception as error:
            failed = path.with_name(f"{path.stem}.failed.safetensors")
            self._keep(reader, failed, notes | {"error": str(error)})
            error.add_note(f"the best weights until then are in {failed}")
            raise
        return reader, notes


@dataclass(frozen=True)
class PredictorRecipe(_ReaderRecipe):
    """How one predictor is made.

    Training stops on the unbiased validation part, whatever the bias of the training set.

    Args:
        hospital: Where it is trained, ``"C"`` or ``"M"``.
        family: ``"basic"``, or the attribute that the training set is biased by, ``"sex"`` or
            ``"age"``; ``"control sex"`` and ``"control age"`` are trained without bias on as many
            images as that bias leaves, so that their names are known before anybody is drawn.
        strength: The strength of that bias; 0 for ``"basic"``.
        images: For ``"basic"`` only: how many training images to use, by default all.

    Example:
        >>> from cfbook.study.presets import preset
        >>> PredictorRecipe(preset("book"), "C", "control sex", 0.95).name
        'C-control-sex-0.95-seed0'
        >>> PredictorRecipe(preset("book"), "C", "sex")
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: bias by sex needs a strength in (0, 1], not 0.0
    """

    preset: Preset
    hospital: str = "C"
    family: _Family = "basic"
    strength: float = 0.0
    seed: int = 0
    images: int | None = None

    committed: ClassVar[Path] = DATA / "predictors"
    cache: ClassVar[Path] = Path("runs") / "predictors"
    network = property(lambda self: self.preset.network)
    training = property(lambda self: self.preset.training)

    def __post_init__(self) -> None:
        family, strength, images = self.family, self.strength, self.images
        check_known("family", family, get_args(_Family))
        check_known("hospital", self.hospital, HOSPITALS)
        if self.seed < 0:
            raise InputError(f"a seed is 0 or more, not {self.seed}", column="seed")
        if images is not None and images < 1:
            raise InputError(f"{images} training images are too few")
        if family == "basic" and strength:
            raise InputError(f"a basic predictor has no bias, but strength is {strength}")
        if family != "basic" and not 0 < strength <= 1:
            raise InputError(f"bias by {family} needs a strength in (0, 1], not {strength}")
        if family != "basic" and images is not None:
            raise InputError("only basic predictors are trained on a given number of images")

    @property
    def name(self) -> str:
        """What it is called in tables and files."""
        bias = f"-{self.strength:g}" if self.strength else ""
        size = "" if self.images is None else f"-n{self.images}"
        return f"{self.hospital}-{self.family}{bias}{size}-seed{self.seed}".replace(" ", "-")

    @property
    def facts(self) -> list[object]:
        """The recipe and the patients: nothing about test sets, folders and generators."""
        facts = asdict(self)
        facts["preset"] = {name: facts["preset"][name] for name in _DECISIVE}
        return [facts, *cohort_facts(self.hospital, self.preset)]

    def data(self) -> tuple[Dataset, Dataset]:
        """The patients it learns from, and those on whom training stops."""
        found = parts(self.hospital, self.preset)
        kept = self.training_table(found["train"].table)
        return found["train"].select(kept), found["validation"]

    def training_table(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a training table that it keeps."""
        count, family = self.images, self.family
        if drop := {"sex": drop_sex, "age": drop_age}.get(family):
            return drop(table, self.strength, seed=self.seed)
        if family != "basic":
            biased = replace(self, family=family.removeprefix("control "))
            count = len(biased.training_table(table))
        if count is None:
            return table
        if count > len(table):
            raise InputError(f"{count} training images asked for, {len(table)} are there")
        return match_size(table, count, seed=self.seed)


@dataclass(frozen=True)
class _Probe(_ReaderRecipe):
    """How a classifier of one parent is made, which no generator or audited predictor saw.

    Its patients are the phantom's, and others than those of the experiments.

    Args:
        variable: What it reads from an image.
        images: How many images it learns from; training stops on a tenth as many others.
        cohort: The seed of its patients.
        network: What it is made of.
        training: How it is trained.
        hospital: Where its patients are.
    """

    variable: str
    images: int
    size: int
    cohort: int
    network: PredictorConfig
    training: TrainingConfig = field(default_factory=TrainingConfig)
    hospital: str = "C"
    seed: int = 100

    committed: ClassVar[Path] = DATA / "judges"
    cache: ClassVar[Path] = Path("runs") / "judges"
    folders: ClassVar[None] = None

    @property
    def name(self) -> str:
        """What it is called in files."""
        return f"{self.hospital}-{self.variable}"

    @property
    def facts(self) -> list[object]:
        """All that decides the weights."""
        return [asdict(self), *cohort_facts(self.hospital)]

    def data(self) -> tuple[Dataset, Dataset]:
        """The patients it learns from, and those on whom training stops."""
        count = self.images + self.images // 10
        cohort = Phantom(self.size).sample(count, hospital=self.hospital, seed=self.cohort)
        data = from_phantom(cohort)
        return data.take(range(self.images)), data.take(range(self.images, count))


def probes(preset: Preset) -> Mapping[str, _Probe]:
    """The probes of a preset, by what they read: sex, age, race and effusion.

    That of effusion is wider than the audited predictors and learns from three times as many
    images: the stronger of the two through whose eyes a counterfactual is compared with the truth.
    """
    where, width = (preset.size, preset.cohort + _APART), preset.network.width
    made = {
        name: _Probe(name, preset.train, *where, PredictorConfig(name, width=width))
        for name in ("sex", "age", "race")
    }
    strong = PredictorConfig("effusion", width=2 * width)
    training = TrainingConfig(preset.training.epochs)
    return made | {"effusion": _Probe("effusion", 3 * preset.train, *where, strong, training)}


def config_facts(config: object) -> dict[str, object]:
    """What a config says, without the number of channels where nobody could choose it."""
    facts = asdict(config)
    return {name: value for name, value in facts.items() if (name, value) != ("channels", 1)}


@dataclass(frozen=True)
class GeneratorRecipe(_NetworkRecipe[DeepSCM]):
    """How one generator is made; a training that was killed goes on from its last checkpoint.

    Args:
        preset: The sizes, and what the generator is made of.
        hospital: Where it is trained; in the paper always ``"C"``.

    Example:
        >>> from cfbook.study.presets import preset
        >>> GeneratorRecipe(preset("book"), seed=1).name
        'learned-C-seed1'
    """

    preset: Preset
    hospital: str = "C"
    seed: int = 0

    committed: ClassVar[Path] = DATA / "generators"
    cache: ClassVar[Path] = Path("runs") / "generators"
    load = staticmethod(partial(load_model, graph=CHEST))
    inference: ClassVar[InferenceConfig | None] = None
    design: ClassVar[str] = "learned"

    @property
    def name(self) -> str:
        """What it is called in tables and files."""
        return f"{self.design}-{self.hospital}-seed{self.seed}"

    @property
    def facts(self) -> object:
        """All that decides the weights."""
        configs = [config_facts(getattr(self.preset, name)) for name in _GENERATING]
        return [PredictorRecipe(self.preset, self.hospital).digest, self.seed, *configs]

    def data(self) -> Dataset:
        """The patients it learns from."""
        return parts(self.hospital, self.preset)["train"]

    def untrained(self) -> DeepSCM:
        """The generator before its first step."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            image = ImageMechanism(self.preset.image)
        made = {"mechanisms": self.preset.mechanisms, "inference": self.inference}
        return DeepSCM(image, graph=CHEST, target="effusion", seed=self.seed, **made)

    def _trained(self, path: Path, **where: object) -> tuple[DeepSCM, dict]:
        """Train the parents on all that is recorded of them, the image where all are recorded."""
        began, model, data = time.process_time(), self.untrained(), self.data()
        whole = data.select(data.table[data.table[list(model.names)].notna().all(axis=1)])
        if not len(whole):
            raise InputError("no training image has all parents: lung sizes come from masks")
        likelihood = model.fit_parents({n: data.parents[n] for n in model.names}, seed=self.seed)
        images, c = self.seen(whole), model.encode({n: whole.parents[n] for n in model.names})
        where["checkpoint"] = path.with_name(f"{path.stem}.checkpoint.safetensors")
        how = {"objective": self.preset.objective, "config": self.preset.fitting, **where}
        history = self._fitted(model, images, c, seed=self.seed, **how)
        before = {step.get("part"): step["earlier"] for step in history}
        minutes = (time.process_time() - began + sum(before.values())) / 60
        notes = {"recipe": self.name, "negative log-likelihood": likelihood, "history": history}
        notes["CPU minutes"] = round(minutes, 1)
        return model, notes

    def _fitted(self, model: DeepSCM, images: Images, c: Tensor, **how: object) -> list[dict]:
        """Train the image mechanism; what it returns are the statistics of the steps."""
        history = [asdict(step) for step in fit(model.image, images, c, **how)]
        model.image.centre(images, c)
        return history


@dataclass(frozen=True)
class OwnRecipe(GeneratorRecipe):
    """How a generator is made from patients of its own, as many as the preset says.

    Example:
        >>> from cfbook.study.presets import preset
        >>> OwnRecipe(preset("book"), seed=1).name
        'own-C-seed1'
    """

    design: ClassVar[str] = "own"

    @property
    def facts(self) -> object:
        """All that decides the weights."""
        who = [self.preset.own, self.preset.cohort + _OWN]
        return [super().facts, *who, *cohort_facts(self.hospital, self.preset)]

    def data(self) -> Dataset:
        """The patients it learns from: the phantom's are drawn, real ones are the training part."""
        if self.folders is not None:
            return super().data()
        who = {"hospital": self.hospital, "seed": self.preset.cohort + _OWN}
        return from_phantom(Phantom(self.preset.size).sample(self.preset.own, **who))


@dataclass(frozen=True)
class DetailedRecipe(OwnRecipe):
    """How a generator with tone, autoencoder and flow is made.

    Args:
        reach: The noise levels up to which the flow follows some parents; see
            :meth:`.DetailedImage.limit`. That of sex was chosen on patients drawn anew, without the
            truth: the laws of scores are as good as at any level, the law of the sex that is read
            is better than without the flow, and scores move hardly more.
    """

    reach: tuple[tuple[str, float], ...] = (("sex", 1.0),)

    design: ClassVar[str] = "detailed"

    @property
    def facts(self) -> object:
        """All that decides the weights."""
        flow = [asdict(self.preset.detail), asdict(self.preset.swift), list(self.reach)]
        return [super().facts, *flow]

    def untrained(self) -> DeepSCM:
        """The generator before its first step."""
        model = super().untrained()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            entries = widths(CHEST, model.names)
            model.image = DetailedImage(model.image, self.preset.detail, entries)
        model.image.limit(**dict(self.reach))
        return model

    def _fitted(self, model: DeepSCM, images: Images, c: Tensor, **how: object) -> list[dict]:
        steps = fit_detailed(model.image, images, c, detail=self.preset.swift, **how)
        return [{"part": part, **asdict(step)} for part, step in steps]


@dataclass(frozen=True)
class FlowRecipe(DetailedRecipe):
    """How another flow is trained on the tone and the autoencoder of a generator that has one.

    Args:
        whole: The preset of that generator, of the same seed.
    """

    whole: Preset | None = None

    design: ClassVar[str] = "flow"

    @property
    def facts(self) -> object:
        """All that decides the weights."""
        return [super().facts, DetailedRecipe(self.whole, seed=self.seed).digest]

    def _fitted(
        self,
        model: DeepSCM,
        images: Images,
        c: Tensor,
        *,
        objective: object,
        config: object,
        **how: object,
    ) -> list[dict]:
        image, other = model.image, DetailedRecipe(self.whole, seed=self.seed).obtain().image
        image.tone, image.first, image.means = other.tone, other.first, other.means
        steps = fit_flow(image, images, c, config=self.preset.swift, **how)
        return [{"part": "flow", **asdict(step)} for step in steps]


DESIGNS: Mapping[str, type[GeneratorRecipe]] = {
    recipe.design: recipe for recipe in (DetailedRecipe, GeneratorRecipe, OwnRecipe)
}
"""The designs of learned generators, by the word with which runs and commands name them."""
