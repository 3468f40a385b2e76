"""How large everything is: ``smoke`` for tests, ``book`` for this book, ``paper`` for the paper.

``curve`` is for experiments that need many generators: small images, short trainings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace

from cfchest.folders import Folders
from cfcore.checks import InputError
from cfscm.detail import DetailConfig
from cfscm.image import ImageConfig
from cfscm.mechanisms import MechanismConfig
from cfscm.networks import PredictorConfig
from cfscm.semisupervised import Labelled
from cfscm.training import FittingConfig, SwiftConfig, TrainingConfig


@dataclass(frozen=True)
class Preset:
    """The size of everything, and whose images they are.

    Patients of the phantom are drawn, as many as asked for. Of real patients all are used, and
    ``train``, ``validation`` and ``test`` are in proportion.

    Args:
        name, size: What it is called, and the side of the images in pixels.
        train: Training images, before any are dropped.
        validation: Images on which training stops.
        test: Images from which test sets are chosen.
        cohort: The seed of the patients.
        network, training: What a predictor is made of, and how it is trained.
        patients: About how many images a test set has; by default as many as there are.
        trainings: How often each predictor is trained, with the seeds 0, 1, ...
        weak: Strengths of the bias by sex below those of the paper.
        observed: On how many further patients everything is computed that needs no counterfactual.
        image, mechanisms: What the mechanisms of a generator are made of, for the image and for
            its parents.
        fitting, objective: How it is trained, and what its training minimises.
        detail, swift: What the flow of a generator is made of, and how it is trained.
        own: How many patients of their own such generators learn from; those of the phantom are
            drawn for them, of real ones the training part is used.
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
    weak: tuple[float, ...] = ()
    observed: int = 12_000
    image: ImageConfig = field(default_factory=ImageConfig)
    mechanisms: MechanismConfig = field(default_factory=MechanismConfig)
    fitting: FittingConfig = field(default_factory=FittingConfig)
    objective: Labelled = field(default_factory=Labelled)
    detail: DetailConfig = field(default_factory=DetailConfig)
    swift: FittingConfig = field(default_factory=SwiftConfig)
    own: int = 40_000
    folders: Folders | None = None

    def __post_init__(self) -> None:
        if self.trainings < 1:
            raise InputError(f"each predictor is trained once or more, not {self.trainings} times")


_IMAGE = ImageConfig(latents=(0, 0, 0), code=32, headroom=0.03, prior="regressed")
_SMALL = {"size": 32, "latents": (0, 0)}
_LATE = Labelled(start=4.0)

_ALL = (
    Preset(
        "smoke", 32, train=800, validation=200, test=600, patients=200, observed=400,
        network=PredictorConfig("effusion", width=8),
        training=TrainingConfig(3),
        image=ImageConfig(widths=(16, 24), code=8, embedding=16, prior="regressed", **_SMALL),
        fitting=FittingConfig(steps=150, report=50),
        detail=DetailConfig(side=16, width=16, embedding=16, glance=8),
        swift=SwiftConfig(steps=100, report=50), own=800,
    ),
    Preset(
        "curve", 32, train=8_000, validation=1_000, test=2_000, objective=_LATE,
        image=replace(_IMAGE, widths=(32, 48), code=24, embedding=32, **_SMALL),
        fitting=FittingConfig(steps=1_200, batch=32),
    ),
    Preset(
        "book", 64, train=8_000, validation=1_000, test=4_000, patients=1_000, objective=_LATE,
        trainings=5, weak=(0.1, 0.2, 0.4, 0.6),
        image=_IMAGE,
        fitting=FittingConfig(steps=5_000, batch=32), swift=SwiftConfig(steps=16_000, report=500),
    ),
    Preset(
        "paper", 224, train=70, validation=10, test=20, folders=Folders(), objective=_LATE,
        network=PredictorConfig("effusion", "densenet121", width=64),
        training=TrainingConfig(epochs=20, learning_rate=1e-3, shift=8),
        image=replace(_IMAGE, size=224, widths=(64, 96, 128, 128), latents=(0, 0, 0, 0), code=64),
        fitting=FittingConfig(steps=60_000, batch=64, shift=7),
        detail=DetailConfig(side=112, width=96), swift=SwiftConfig(steps=200_000, batch=64),
    ),
)  # fmt: skip
PRESETS: Mapping[str, Preset] = {one.name: one for one in _ALL}


def check_known(name: str, value: object, known: Iterable[str]) -> None:
    """Refuse a value of something named that is none of the known ones."""
    if value not in (known := tuple(known)):
        raise InputError(f"{name} must be one of {', '.join(known)}, not {value!r}")


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


def on(name: str, data: Mapping[str, str], *, trainings: int | None = None) -> Preset:
    """A preset on folders of real data by their names in :class:`~cfchest.folders.Folders`.

    Without folders it is on the phantom. Predictors are trained as often as the preset says, or as
    is asked for.

    Example:
        >>> on("smoke", {}).folders is None, on("smoke", {"chexpert": "DIR"}).folders.chexpert
        (True, 'DIR')
    """
    if unknown := set(data) - {each.name for each in fields(Folders)}:
        raise InputError(f"there is no folder {sorted(unknown)[0]!r}", column="data")
    found = preset(name)
    found = found if trainings is None else replace(found, trainings=trainings)
    return replace(found, folders=Folders(**data)) if data else found
