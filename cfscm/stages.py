r"""The stages in which a generator learns from partly labelled images."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from cfscm.consistency import ConsistencyConfig, Consistent
from cfscm.inference import InferenceConfig
from cfscm.model import DeepSCM
from cfscm.semisupervised import Labelled, SemiSupervised, classify_only, pack
from cfscm.training import FittingConfig, Images, Objective, Progress, fit

START = FittingConfig(
    steps=500, batch=96, learning_rate=4e-3, warmup=50, average=0.98, clip=5.0, display=0.0
)


@dataclass(frozen=True)
class Schedule:
    """How long a generator learns from partly labelled images.

    Args:
        inference: What the parent predictors are made of.
        start: How they are trained, before anything else, on recorded labels alone.
        fitting: How everything is trained together.
        objective: What that minimises.
        after: How the optional stage of counterfactual regularisation is trained.
        imputations: How often missing labels are drawn to fit the mean of the code given them.
        shrink: How far that mean is shrunk to a linear one; see :meth:`.ImageMechanism.centre`.
    """

    inference: InferenceConfig = field(default_factory=InferenceConfig)
    start: FittingConfig = field(default_factory=lambda: replace(START, steps=800, batch=128))
    fitting: FittingConfig = field(default_factory=lambda: FittingConfig(steps=5000, batch=32))
    objective: SemiSupervised = field(default_factory=lambda: SemiSupervised(Labelled(start=4.0)))
    after: FittingConfig = field(
        default_factory=lambda: FittingConfig(steps=300, batch=32, learning_rate=5e-4, warmup=50)
    )
    imputations: int = 4
    shrink: float = 0.0125


@dataclass
class Stages:
    """The stages of one training, each of which goes on from its own checkpoint.

    Args:
        model: The generator with its parent predictors, trained in place.
        pa: Their parents, each of shape (N,), NaN where one is missing.
        schedule: How long it learns, and what it minimises.
        path: The file of the weights, beside which checkpoints are kept.

    Attributes:
        history: The statistics of each stage that was run.
    """

    model: DeepSCM
    images: Images
    pa: Mapping[str, Tensor]
    schedule: Schedule
    path: Path
    seed: int
    device: str = "cpu"
    progress: bool = False
    history: dict[str, list[Progress]] = field(default_factory=dict)

    def learn(self) -> None:
        """Trains from nothing: the parent predictors, the parents, then everything together."""
        self.start()
        rows = torch.arange(len(self.images))
        self.model.fit_parents(self._filled(self.seed), seed=self.seed)
        self._fit("together", self.model, self.schedule.objective, self.schedule.fitting, rows)
        self.centre()

    def regularise(self, consistency: ConsistencyConfig) -> None:
        """Goes on with a generator that has learned, by what its counterfactuals are read as."""
        aim = Consistent.reading(self.model, consistency, self.schedule.objective)
        rows = torch.arange(len(self.images))
        self._fit("regularised", self.model, aim, self.schedule.after, rows)
        self.centre()

    def start(self) -> None:
        """Trains the parent predictors, on the images of which a label is recorded."""
        known = torch.stack([values.isfinite() for values in self.pa.values()]).any(dim=0)
        rows = known.nonzero().squeeze(1)
        self._fit("start", self.model.inference, classify_only, self.schedule.start, rows)

    def _fit(
        self, name: str, module: nn.Module, aim: Objective, config: FittingConfig, rows: Tensor
    ) -> None:
        path = self.path.with_name(f"{self.path.stem}.{name}.checkpoint.safetensors")
        run = {"seed": self.seed, "device": self.device, "progress": self.progress}
        run |= {"objective": aim, "config": config, "checkpoint": path}
        packed = pack(self.pa, self.model.names)[rows]
        self.history[name] = list(fit(module, _Chosen(self.images, rows), packed, **run))

    def centre(self) -> None:
        """Fits the mean of the code given the parents, over draws of the missing ones.

        The likeliest values would not do: they are chosen by the image, so the code differs more
        between them than between patients who have them, and an intervention would be over-drawn.
        """
        complete = all(values.isfinite().all() for values in self.pa.values())
        draws = range(1 if complete else self.schedule.imputations)
        c = torch.cat([self.model.encode(self._filled(seed)) for seed in draws])
        again = _Chosen(self.images, torch.arange(len(self.images)).repeat(len(draws)))
        self.model.image.centre(again, c, shrink=self.schedule.shrink)

    @torch.no_grad()
    def _filled(self, seed: int) -> dict[str, Tensor]:
        """The parents, with the missing ones drawn, batch by batch."""
        rng, model = torch.Generator().manual_seed(seed), self.model.cpu()
        filled = []
        for rows in torch.arange(len(self.images)).split(256):
            some = {name: values[rows] for name, values in self.pa.items()}
            filled.append(model.impute(self.images[rows], some, rng))
        return {name: torch.cat([part[name] for part in filled]) for name in self.pa}


@dataclass(frozen=True)
class _Chosen:
    """Some rows of images, shape (N,), without a copy."""

    images: Images
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor) -> Tensor:
        return self.images[self.rows[index]]
