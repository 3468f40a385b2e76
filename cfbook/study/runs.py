"""The paper's three settings: who is trained where, tested where, and on which patients."""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple, get_args

import torch

from cfbook.paths import DATA, data_file
from cfbook.study.cohorts import Kind, held_out, phantom_cohort
from cfbook.study.presets import Preset, check_known
from cfbook.study.recipes import DESIGNS, GeneratorRecipe, PredictorRecipe, Recipe
from cfchest.graph import paper_grid
from cfchest.offsets import offset
from cfcore import __version__
from cfcore.checks import InputError
from cfcore.generator import Effect, Generator
from cfcore.marginalise import MAX_IMAGES, marginalise
from cfcore.predictions import Predictions, load_all, save_all
from cfcore.shards import fingerprint
from cfscm.weights import commit

BETAS = (0.5, 1.0, 2.0)
STRENGTHS = (0.8, 0.9, 0.95)
KEYS = ["family", "strength", "seed"]
"""The columns of a table that tell predictors apart."""
_COMMITTED = DATA / "predictions"
_FILLED = Path("runs") / "predictions"
_MOST = 20  # trainings that a kept table is looked for with


class _Setting(NamedTuple):
    """One of the paper's settings.

    Attributes:
        train: The hospital in which predictors are trained.
        test: The hospital whose patients they are tested on.
        testset: Which of its patients.
        shared: The further test sets, which share a shortcut of training.
    """

    train: str
    test: str
    testset: Kind
    shared: tuple[Kind, ...] = ()


SETTINGS: Mapping[str, _Setting] = {
    "C->C": _Setting("C", "C", "balanced", ("shares-sex", "shares-age")),
    "M->M": _Setting("M", "M", "balanced", ("shares-sex", "shares-age")),
    "C->M": _Setting("C", "M", "natural"),
}


def find_setting(name: str) -> _Setting:
    """A setting by its name.

    Example:
        >>> find_setting("C->M").testset
        'natural'
        >>> find_setting("M->C")
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: there is no setting 'M->C', only C->C, M->M, C->M
    """
    if name not in SETTINGS:
        raise InputError(f"there is no setting {name!r}, only {', '.join(SETTINGS)}")
    return SETTINGS[name]


@dataclass(frozen=True)
class PredictorId:
    """One predictor of the experiments, as it is called in every table.

    Attributes:
        family: ``"basic"``, ``"logit"``, ``"sex"`` or ``"age"``; ``"control sex"`` and
            ``"control age"`` are trained without bias on as many images as that bias leaves.
        strength: Of the bias, or of the bias that it is the control of; 0 for ``"basic"``.
    """

    family: str
    strength: float
    seed: int

    @property
    def name(self) -> str:
        """Its name in bundles."""
        return f"{self.family} {self.strength:g} seed {self.seed}"


@dataclass(frozen=True)
class Run(Recipe):
    """One marginalisation: predictors of one hospital on one test set.

    Args:
        setting: The name of the setting.
        testset: Which test set; that of the setting, or one that shares a shortcut.
        effect: ``"direct"`` or ``"total"``.
        generator: Who makes the counterfactuals: ``"oracle"``, ``"detailed-0"`` or
            ``"learned-0"`` with the seed of its training, or a name for another.

    Example:
        >>> from cfbook.study.presets import preset
        >>> Run(preset("book"), "C->M", "natural").name
        'C-M natural direct'
    """

    preset: Preset
    setting: str
    testset: Kind
    effect: Effect = "direct"
    generator: str = "oracle"

    def __post_init__(self) -> None:
        if self.testset not in (known := (self.where.testset, *self.where.shared)):
            tested = f"setting {self.setting} is tested on {', '.join(known)}"
            raise InputError(f"{tested}, not {self.testset!r}")
        check_known("effect", self.effect, get_args(Effect))

    @property
    def name(self) -> str:
        """What it is called."""
        by = "" if self.generator == "oracle" else f" {self.generator}"
        return f"{self.setting.replace('->', '-')} {self.testset} {self.effect}{by}"

    @property
    def where(self) -> _Setting:
        """The setting itself."""
        return find_setting(self.setting)

    @property
    def is_main(self) -> bool:
        """Whether it is of the direct effect on the test set of its setting."""
        return self.testset == self.where.testset and self.effect == "direct"

    @property
    def families(self) -> tuple[str, ...]:
        """The kinds of bias that are judged on this test set."""
        shared = {"shares-sex": ("sex",), "shares-age": ("age",)}
        return shared.get(self.testset, ("sex", "age"))

    def recipes(self) -> dict[PredictorId, PredictorRecipe]:
        """How each predictor is made that has to be run; logit offsets are derived from ``basic``.

        Weak biases and controls are for the direct effect; on a test set that shares a shortcut
        there is a control of the strongest bias only.
        """
        controlled = () if self.effect == "total" else STRENGTHS if self.is_main else STRENGTHS[-1:]
        weak = self.preset.weak if self.effect == "direct" else ()
        ladders = {"sex": (*weak, *STRENGTHS), "age": STRENGTHS}
        kinds = [("basic", 0.0)]
        for family, strength in ((one, s) for one in self.families for s in ladders[one]):
            kinds.append((family, strength))
            kinds += [(f"control {family}", strength)] if strength in controlled else []
        return {
            PredictorId(*kind, seed): PredictorRecipe(self.preset, self.where.train, *kind, seed)
            for seed, kind in product(range(self.preset.trainings), kinds)
        }

    def learned(self) -> GeneratorRecipe | None:
        """How its generator is made, if it is one of ours; always from hospital C."""
        found = re.fullmatch(rf"({'|'.join(DESIGNS)})-([0-9]+)", self.generator)
        return None if found is None else DESIGNS[found[1]](self.preset, "C", int(found[2]))

    @property
    def facts(self) -> list[object]:
        """All that its predictions depend on."""
        grid = {name: values.tolist() for name, values in paper_grid().values.items()}
        made = {member.name: recipe.digest for member, recipe in self.recipes().items()}
        tested, learned = PredictorRecipe(self.preset, self.where.test).digest, self.learned()
        by = [] if self.generator == "oracle" else [self.generator]
        by += [] if learned is None else [learned.digest]
        where = [self.preset.patients, self.setting, self.testset, self.effect]
        return [tested, *where, grid, made, *by]


def find_generator(run: Run) -> Generator:
    """The generator that a run names: the oracle, or a learned one, trained if need be."""
    if run.generator == "oracle":
        return phantom_cohort(run.where.test, run.preset).oracle
    recipe = run.learned()
    if recipe is None:
        raise InputError(f"{run.generator!r} is neither oracle nor detailed-0, learned-0, ...")
    return recipe.obtain(progress=True)


def all_runs(preset: Preset, generator: str = "oracle") -> Iterator[Run]:
    """Every marginalisation of the experiments: settings, shared shortcuts, total effects."""
    for name, setting in SETTINGS.items():
        for testset in (setting.testset, *setting.shared):
            yield Run(preset, name, testset, generator=generator)
        yield Run(preset, name, setting.testset, "total", generator)


def all_recipes(preset: Preset) -> dict[str, PredictorRecipe]:
    """Every predictor that is trained for the experiments, by the name of its file."""
    return {recipe.file: recipe for run in all_runs(preset) for recipe in run.recipes().values()}


def fill(
    run: Run,
    out: Path,
    *,
    generator: Generator | None = None,
    predictors: Path | None = None,
    device: str = "cpu",
    max_images: int = MAX_IMAGES,
    progress: bool = False,
) -> Path:
    """Marginalise the predictors of a run over its test set, and keep how and what in a file.

    Args:
        generator: Makes the counterfactuals; by default the one that the run names.
        predictors: Where trained predictors are kept, by default those of the project and of
            earlier runs; what is missing is trained.
    """
    generator = find_generator(run) if generator is None else generator
    made, shards = run.recipes(), out.with_suffix(".shards")
    readers = {
        member.name: recipe.obtain(committed=predictors, cache=predictors).to(device)
        for member, recipe in made.items()
    }
    data = held_out(run.where.test, run.preset, run.testset)
    source = {"run": run.name, "preset": run.preset.name, "generator": type(generator).__name__}
    source |= {"table": fingerprint(data.table)[:12], "commit": commit()}
    source["versions"] = {"cfcore": __version__, "torch": torch.__version__}
    how = {"effect": run.effect, "device": device, "max_images": max_images, "progress": progress}
    how |= {"resume_dir": shards, "provenance": source}
    found = marginalise(generator, readers, data, paper_grid(), **how)
    for member, recipe in made.items():
        given = found[member.name]
        facts = given.provenance | asdict(member) | {"recipe": recipe.digest}
        found[member.name] = replace(given, provenance=facts)
    save_all(found, out, half=True)
    shutil.rmtree(shards)
    return out


def predictions(run: Run, *, folder: Path | None = None) -> dict[PredictorId, Predictions]:
    """The predictions of a run, with the logit offsets: read if they are there, else computed.

    Where the same run is kept with more trainings, its first ones are taken. A folder is looked
    into first, by default that in the data of the project.
    """
    path = kept_file(run, (folder or _COMMITTED, _FILLED))
    if path is None and folder is None and run.preset.folders is None and run.preset.name == "book":
        data_file("predictions")
    bundle = load_all(path or fill(run, _FILLED / run.file)).values()
    who = [PredictorId(*(each.provenance[key] for key in KEYS)) for each in bundle]
    every = zip(who, bundle, strict=True)
    found = {member: given for member, given in every if member.seed < run.preset.trainings}
    return found | offsets(found) if "sex" in run.families else found


def kept_file(
    run: Run, places: Sequence[Path], name: Callable[[Run], str] = lambda run: run.file
) -> Path | None:
    """The file of a run, or of the same run with more trainings; None if no place has one."""
    for trainings in range(run.preset.trainings, max(run.preset.trainings, _MOST) + 1):
        file = name(replace(run, preset=replace(run.preset, trainings=trainings)))
        if found := [place / file for place in places if (place / file).is_file()]:
            return found[0]
    return None


def offsets(found: Mapping[PredictorId, Predictions]) -> dict[PredictorId, Predictions]:
    """The predictors with logit offsets, derived from the unbiased ones among some."""
    basic = [(member.seed, given) for member, given in found.items() if member.family == "basic"]
    both = product(basic, BETAS)
    return {PredictorId("logit", beta, seed): offset(given, beta) for (seed, given), beta in both}
