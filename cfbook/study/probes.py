"""Classifiers that judge generators, trained on patients whom no generator or predictor saw."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from cfbook.paths import DATA
from cfbook.study.artefacts import found_or_made
from cfbook.study.presets import Preset
from cfchest.data import Dataset, from_phantom
from cfchest.graph import CHEST
from cfchest.phantom import COEFFICIENTS, HOSPITALS, Phantom
from cfscm.networks import ImageNetwork, PredictorConfig, build, load, save
from cfscm.training import TrainingConfig, train

COMMITTED = DATA / "judges"
CACHE = Path("runs") / "judges"
APART = 2  # added to the seed of the patients: those of the experiments are other ones


@dataclass(frozen=True)
class Judge:
    """How a classifier of one parent is made.

    Args:
        variable: What it reads from an image.
        images: How many images it learns from.
        size: Their side in pixels.
        cohort: The seed of its patients.
        network: What it is made of.
        training: How it is trained.
        hospital: Where its patients are.
        seed: The seed of its weights.
    """

    variable: str
    images: int
    size: int
    cohort: int
    network: PredictorConfig = field(default_factory=PredictorConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    hospital: str = "C"
    seed: int = 100

    @property
    def file(self) -> str:
        """The file name of its weights, with a hash of all that decides them."""
        facts = [asdict(self), asdict(COEFFICIENTS), asdict(HOSPITALS[self.hospital])]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
        return f"{self.hospital}-{self.variable}-{digest}.safetensors"

    def data(self) -> tuple[Dataset, Dataset]:
        """The patients it learns from, and those on whom training stops: a tenth as many."""
        cohort = Phantom(self.size).sample(
            self.images + self.images // 10, hospital=self.hospital, seed=self.cohort
        )
        data = from_phantom(cohort)
        return data.take(range(self.images)), data.take(range(self.images, len(data)))


def judges(preset: Preset) -> Mapping[str, Judge]:
    """The judges of a preset, by what they read.

    That of effusion is wider than the audited predictors and learns from three times as many
    images: the stronger of the two through whose eyes a counterfactual is compared with the truth.

    Args:
        preset: The sizes.

    Returns:
        The judges of sex, age, race and effusion.
    """
    common = {"size": preset.size, "cohort": preset.cohort + APART}
    width, epochs = preset.network.width, preset.training.epochs
    made = {
        name: Judge(name, preset.train, network=PredictorConfig(name, width=width), **common)
        for name in ("sex", "age", "race")
    }
    strong = PredictorConfig("effusion", width=2 * width)
    made["effusion"] = Judge(
        "effusion", 3 * preset.train, network=strong, training=TrainingConfig(epochs), **common
    )
    return made


def obtain_judge(
    judge: Judge, *, committed: Path = COMMITTED, cache: Path = CACHE, progress: bool = False
) -> ImageNetwork:
    """A judge: from the project's data, from earlier runs, or trained now."""
    return found_or_made(
        judge.file,
        committed,
        cache,
        load=partial(load, graph=CHEST),
        make=lambda path: make_judge(judge, path, progress=progress),
    )


def make_judge(judge: Judge, path: Path, *, progress: bool = False) -> ImageNetwork:
    """Train a judge and keep it."""
    train_data, stop = judge.data()
    name = judge.variable
    reader = build(judge.network, graph=CHEST, seed=judge.seed)
    epochs = train(
        reader,
        train_data[:],
        train_data.parents[name],
        validation=(stop[:], stop.parents[name]),
        seed=judge.seed,
        config=judge.training,
        progress=progress,
    )
    history = [asdict(epoch) for epoch in epochs]
    save(reader, path, seed=judge.seed, notes={"judge": asdict(judge), "history": history})
    return reader
