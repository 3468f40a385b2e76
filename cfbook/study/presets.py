"""How large everything is: ``smoke`` for tests, ``book`` for this book, ``paper`` for the paper.

``curve`` is for experiments that need many generators: small images, short trainings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from cfchest.folders import Folders
from cfcore.checks import InputError
from cfscm.image import ImageConfig
from cfscm.mechanisms import MechanismConfig
from cfscm.networks import PredictorConfig
from cfscm.semisupervised import Labelled
from cfscm.training import FittingConfig, TrainingConfig


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
        image: What the image mechanism of the generator is made of.
        mechanisms: What the mechanisms of its parents are made of.
        fitting: How it is trained.
        objective: What its training minimises.
        folders: Where the real patients are; by default there are none, only the phantom's.
    """

    name: str
    size: int
    train: int
    validation: int
    test: int
    cohort: int = 2026
    network: PredictorConfig = field(default_factory=lambda: PredictorConfig("effusion"))
    training: TrainingConfig = field(default_factory=TrainingConfig)
    patients: int | None = None
    trainings: int = 3
    image: ImageConfig = field(default_factory=ImageConfig)
    mechanisms: MechanismConfig = field(default_factory=MechanismConfig)
    fitting: FittingConfig = field(default_factory=FittingConfig)
    objective: Labelled = field(default_factory=Labelled)
    folders: Folders | None = None

    def __post_init__(self) -> None:
        if self.trainings < 1:
            raise InputError(f"each predictor is trained once or more, not {self.trainings} times")


_IMAGE = ImageConfig(latents=(0, 0, 0), code=32, headroom=0.03, prior="regressed")

PRESETS: Mapping[str, Preset] = {
    "smoke": Preset(
        "smoke",
        32,
        800,
        200,
        600,
        network=PredictorConfig("effusion", width=8),
        training=TrainingConfig(3),
        patients=200,
        image=ImageConfig(
            size=32, widths=(16, 24), latents=(0, 0), code=8, embedding=16, prior="regressed"
        ),
        fitting=FittingConfig(steps=150, report=50),
    ),
    "curve": Preset(
        "curve",
        32,
        8_000,
        1_000,
        2_000,
        image=replace(_IMAGE, size=32, widths=(32, 48), latents=(0, 0), code=24, embedding=32),
        fitting=FittingConfig(steps=1_200, batch=32),
        objective=Labelled(start=4.0),
    ),
    "book": Preset(
        "book",
        64,
        8_000,
        1_000,
        4_000,
        patients=1_000,
        image=_IMAGE,
        fitting=FittingConfig(steps=5_000, batch=32),
        objective=Labelled(start=4.0),
    ),
    "paper": Preset(
        "paper",
        224,
        70,
        10,
        20,
        network=PredictorConfig("effusion", "densenet121", width=64),
        training=TrainingConfig(epochs=20, learning_rate=1e-3, shift=8),
        image=replace(_IMAGE, size=224, widths=(64, 96, 128, 128), latents=(0, 0, 0, 0), code=64),
        fitting=FittingConfig(steps=60_000, batch=64, shift=7),
        objective=Labelled(start=4.0),
        folders=Folders(),
    ),
}


def preset(name: str) -> Preset:
    """Look a preset up by name.

    With ``dataclasses.replace(preset("paper"), folders=Folders(chexpert=...))`` it is the paper's
    experiment; any other preset with folders is that experiment on real patients, smaller.

    Example:
        >>> preset("book").train
        8000
        >>> preset("novel")
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: there is no preset 'novel', only smoke, curve, book, paper
    """
    if name not in PRESETS:
        raise InputError(f"there is no preset {name!r}, only {', '.join(PRESETS)}")
    return PRESETS[name]


def on(name: str, data: Mapping[str, str], *, trainings: int = 3) -> Preset:
    """A preset on the folders of real data, or on the phantom if there are none.

    Args:
        name: The name of the preset.
        data: Folders by their names in :class:`~cfchest.folders.Folders`.
        trainings: How often each predictor is trained.

    Example:
        >>> on("smoke", {}).folders is None, on("smoke", {"chexpert": "DIR"}).folders.chexpert
        (True, 'DIR')
    """
    unknown = set(data) - {each.name for each in fields(Folders)}
    if unknown:
        raise InputError(f"there is no folder {sorted(unknown)[0]!r}", column="data")
    found = replace(preset(name), trainings=trainings)
    return replace(found, folders=Folders(**data)) if data else found
