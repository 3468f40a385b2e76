"""How large the study of real radiographs is: as in the book, or small enough for a test."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from cfcore.checks import InputError
from cfscm.training import TrainingConfig


@dataclass(frozen=True)
class Sizes:
    """What decides how long the study takes; nothing here is chosen by a result.

    Args:
        name: What it is called on the command line.
        side: The side of the images in pixels.
        trainings: Trainings of every predictor that is judged on the test patients.
        strengths: Strengths of each planted bias.
        pair_trainings: Trainings of every predictor in each of the two folds.
        pair_strength: The planted bias by view in the folds.
        budget: How long a generator is trained: minutes, or steps.
        epochs: Epochs of a predictor or reader.
        replicates: Resampled sets of patients.
        fewest: Images with a finding, in training and in test, without which it gets no reader.
    """

    name: str = "book"
    side: int = 64
    trainings: int = 5
    strengths: tuple[float, ...] = (0.5, 0.8, 0.95)
    pair_trainings: int = 3
    pair_strength: float = 0.8
    budget: Mapping[str, float] = field(default_factory=lambda: {"minutes": 22})
    epochs: int = 30
    replicates: int = 200
    fewest: int = 20

    @property
    def training(self) -> TrainingConfig:
        """How predictors and readers are trained: chosen in an earlier trial, on training patients.

        All epochs are run; the weights are those of the best one on patients set apart.
        """
        return TrainingConfig(epochs=self.epochs, batch=32, shift=3, patience=self.epochs)

    @property
    def facts(self) -> dict[str, object]:
        """All of it, ready for JSON."""
        return asdict(self)


_SMOKE = {"side": 32, "trainings": 2, "strengths": (0.8,), "pair_trainings": 1, "epochs": 1}
_KNOWN = {
    "book": Sizes(),
    "smoke": Sizes("smoke", budget={"steps": 8}, replicates=20, fewest=4, **_SMOKE),
}


def sizes_of(name: str) -> Sizes:
    """The sizes of a name."""
    if name not in _KNOWN:
        raise InputError(f"sizes are {', '.join(_KNOWN)}, not {name!r}")
    return _KNOWN[name]
