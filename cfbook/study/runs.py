"""The paper's three settings: who is trained where, tested where, and on which patients."""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import get_args

import torch

from cfbook.paths import DATA, data_file
from cfbook.study.cohorts import Kind, held_out, phantom_cohort
from cfbook.study.presets import Preset
from cfbook.study.recipes import GeneratorRecipe, PredictorRecipe, Recipe
from cfchest.data import Dataset
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

COMMITTED = DATA / "predictions"
FILLED = Path("runs") / "predictions"
MOST = 20  # trainings that a kept table is looked for with


@dataclass(frozen=True)
class Setting:
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

    @property
    def testsets(self) -> tuple[Kind, ...]:
        """All its test sets, its own first."""
        return self.testset, *self.shared


SETTINGS: Mapping[str, Setting] = {
    "C->C": Setting("C", "C", "balanced", ("shares-sex", "shares-age")),
    "M->M": Setting("M", "M", "balanced", ("shares-sex", "shares-age")),
    "C->M": Setting("C", "M", "natural"),
}


def find_setting(name: str) -> Setting:
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
        seed: The seed of its training.
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
        preset: The sizes.
        setting: The name of the setting.
        testset: Which test set; that of the setting, or one that shares a shortcut.
        effect: ``"direct"`` or ``"total"``.
        generator: Who makes the counterfactuals: ``"oracle"``, ``"learned-0"`` with the seed of its
            training, or a name for another.

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
        if self.testset not in (known := self.where.testsets):
            tested = f"setting {self.setting} is tested on {', '.join(known)}"
            raise InputError(f"{tested}, not {self.testset!r}")
        if self.effect not in get_args(Effect):
            raise InputError(f"effect must be one of {get_args(Effect)}, not {self.effect!r}")

    @property
    def name(self) -> str:
        """What it is called."""
        by = "" if self.generator == "oracle" else f" {self.generator}"
        return f"{self.setting.replace('->', '-')} {self.testset} {self.effect}{by}"

    @property
    def where(self) -> Setting:
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

        Controls are for the direct effect; on a test set that shares a shortcut, for the strongest
        bias only.
        """
        controlled = () if self.effect == "total" else STRENGTHS if self.is_main else STRENGTHS[-1:]
        made = {}
        for seed in range(self.preset.trainings):
            chain = [("basic", 0.0)]
            for family, strength in product(self.families, STRENGTHS):
                chain.append((family, strength))
                chain += [(f"control {family}", strength)] if strength in controlled else []
            for kind, strength in chain:
                recipe = PredictorRecipe(self.preset, self.where.train, kind, strength, seed)
                made[PredictorId(kind, strength, seed)] = recipe
        return made

    def learned(self) -> GeneratorRecipe | None:
        """How its generator is made, if it is one of ours; always from hospital C."""
        found = re.fullmatch(r"learned-([0-9]+)", self.generator)
        return None if found is None else GeneratorRecipe(self.preset, "C", int(found[1]))

    @property
    def facts(self) -> list[object]:
        """All that its predictions depend on."""
        grid = {name: values.tolist() for name, values in paper_grid().values.items()}
        made = {member.name: recipe.digest for member, recipe in self.recipes().items()}
        tested, learned = PredictorRecipe(self.preset, self.where.test).digest, self.learned()
        facts = [tested, self.preset.patients, self.setting, self.testset, self.effect, grid, made]
        facts += [] if self.generator == "oracle" else [self.generator]
        return facts + ([] if learned is None else [learned.digest])


def find_generator(run: Run) -> Generator:
    """The generator that a run names: the oracle, or a learned one, trained if need be."""
    if run.generator == "oracle":
        return phantom_cohort(run.where.test, run.preset).oracle
    recipe = run.learned()
    if recipe is None:
        raise InputError(f"{run.generator!r} is neither oracle nor learned-0, learned-1, ...")
    return recipe.obtain(progress=True)


def all_runs(preset: Preset, generator: str = "oracle") -> Iterator[Run]:
    """Every marginalisation of the experiments: settings, shared shortcuts, total effects."""
    for name, setting in SETTINGS.items():
        for testset in setting.testsets:
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
    """Marginalise the predictors of a run over its test set, and keep the result.

    Args:
        run: The run.
        out: The file to write.
        generator: Makes the counterfactuals; by default the one that the run names.
        predictors: Where trained predictors are kept, by default those of the project and of
            earlier runs; what is missing is trained.
        device: Where to compute.
        max_images: Images in flight.
        progress: Whether to show a progress bar.

    Returns:
        The file.
    """
    generator = find_generator(run) if generator is None else generator
    made, shards = run.recipes(), out.with_suffix(".shards")
    readers = {
        member.name: recipe.obtain(committed=predictors, cache=predictors).to(device)
        for member, recipe in made.items()
    }
    data = held_out(run.where.test, run.preset, run.testset)
    found = marginalise(
        generator,
        readers,
        data,
        paper_grid(),
        effect=run.effect,
        device=device,
        max_images=max_images,
        resume_dir=shards,
        progress=progress,
        provenance=_provenance(run, generator, data),
    )
    for member, recipe in made.items():
        given = found[member.name]
        facts = given.provenance | asdict(member) | {"recipe": recipe.digest}
        found[member.name] = replace(given, provenance=facts)
    save_all(found, out)
    shutil.rmtree(shards)
    return out


def _provenance(run: Run, generator: Generator, data: Dataset) -> dict[str, object]:
    """What is needed to make the predictions of a run again, but for the predictors."""
    return {
        "run": run.name,
        "preset": run.preset.name,
        "generator": type(generator).__name__,
        "table": fingerprint(data.table)[:12],
        "commit": commit(),
        "versions": {"cfcore": __version__, "torch": torch.__version__},
    }


def predictions(run: Run, *, folder: Path | None = None) -> dict[PredictorId, Predictions]:
    """The predictions of a run, with the logit offsets: read if they are there, else computed.

    Where the same run is kept with more trainings, its first ones are taken.

    Args:
        run: The run.
        folder: Where to look first, by default in the data of the project.

    Returns:
        The predictions by predictor.

    Raises:
        InputError: If the run is one of the book, and the installed package came without its data.
    """
    path = kept_file(run, (folder or COMMITTED, FILLED))
    if path is None and folder is None and run.preset.folders is None and run.preset.name == "book":
        data_file("predictions")
    bundle = load_all(path or fill(run, FILLED / run.file))
    found = {}
    for given in bundle.values():
        facts = given.provenance
        if facts["seed"] < run.preset.trainings:
            found[PredictorId(facts["family"], facts["strength"], facts["seed"])] = given
    return found | offsets(found) if "sex" in run.families else found


def kept_file(run: Run, places: Sequence[Path]) -> Path | None:
    """The file of a run, or of the same run with more trainings; None if no place has one."""
    for trainings in range(run.preset.trainings, max(run.preset.trainings, MOST) + 1):
        file = replace(run, preset=replace(run.preset, trainings=trainings)).file
        for place in places:
            if (place / file).is_file():
                return place / file
    return None


def offsets(found: Mapping[PredictorId, Predictions]) -> dict[PredictorId, Predictions]:
    """The predictors with logit offsets, derived from the unbiased ones among some."""
    return {
        PredictorId("logit", beta, member.seed): offset(given, beta)
        for member, given in found.items()
        if member.family == "basic"
        for beta in BETAS
    }
