"""Generators that learn from partly labelled images, and where they are found."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from cfbook.study.cohorts import parts
from cfbook.study.presets import check_known
from cfbook.study.recipes import GeneratorRecipe, PredictorRecipe, config_facts
from cfchest.cohorts import mask_labels
from cfchest.data import Dataset
from cfcore.checks import InputError
from cfscm.consistency import ConsistencyConfig
from cfscm.inference import InferenceConfig
from cfscm.model import DeepSCM
from cfscm.semisupervised import Labelled, SemiSupervised
from cfscm.stages import START, Schedule, Stages
from cfscm.training import FittingConfig

_Masking = Literal["variable", "row"]
_Trust = Literal["full", "entropy"]

_SCHEDULES: Mapping[str, Schedule] = {
    "smoke": Schedule(
        InferenceConfig(width=8),
        FittingConfig(steps=40, batch=32, warmup=10, report=20),
        FittingConfig(steps=30, batch=16, warmup=10, report=10),
        SemiSupervised(),
        FittingConfig(steps=10, batch=16, warmup=5, report=5),
    ),
    "curve": Schedule(
        start=replace(START, steps=300),
        fitting=FittingConfig(steps=600, batch=32, warmup=50, average=0.99, shift=1),
        after=FittingConfig(steps=100, batch=32, learning_rate=5e-4, warmup=20, average=0.98),
    ),
    "book": Schedule(),
    "paper": Schedule(
        InferenceConfig(width=32),
        start=replace(START, steps=10_000, batch=128, shift=7),
        fitting=FittingConfig(steps=60_000, batch=64, shift=7),
        objective=SemiSupervised(Labelled(start=4.0), exact=8),
    ),
}
"""How long generators of each preset learn from partly labelled images."""


@dataclass(frozen=True)
class PartialRecipe(GeneratorRecipe):
    """How a generator is made of which a share of the labels is known.

    Args:
        preset: The sizes, the patients and what the image mechanism is made of.
        fraction: The share of the labels that are kept.
        by: Whether labels are hidden one by one (``"variable"``) or a patient at a time
            (``"row"``), see :func:`cfchest.cohorts.mask_labels`.
        unlabelled: Whether images without any label are used as well.
        trust: Whether imputed labels count like recorded ones (``"full"``: the objective is a bound
            of the likelihood) or the less, the more uncertain they are (``"entropy"``: the paper's
            weight 1 - H). On validation patients the former was nearer to the truth.
        consistency: The stage of counterfactual regularisation, if there is one.

    Example:
        >>> from cfbook.study.presets import preset
        >>> PartialRecipe(preset("book"), fraction=0.2, seed=1).name
        'partial-C-variable-0.2-seed1'
    """

    fraction: float = 0.2
    by: _Masking = "variable"
    unlabelled: bool = True
    trust: _Trust = "full"
    consistency: ConsistencyConfig | None = None

    def __post_init__(self) -> None:
        if self.preset.name not in _SCHEDULES:
            known = ", ".join(_SCHEDULES)
            raise InputError(f"preset {self.preset.name} has no schedule for this, only {known}")
        for name, known in (("by", _Masking), ("trust", _Trust)):
            check_known(name, getattr(self, name), get_args(known))
        if not 0 < self.fraction <= 1:
            raise InputError(f"the share of labels lies in (0, 1], not at {self.fraction}")

    @property
    def schedule(self) -> Schedule:
        """How long it learns, and what it minimises."""
        known = _SCHEDULES[self.preset.name]
        return replace(known, objective=replace(known.objective, trusting=self.trust == "full"))

    @property
    def inference(self) -> InferenceConfig:
        """What its parent predictors are made of."""
        return self.schedule.inference

    @property
    def name(self) -> str:
        """What it is called in tables and files."""
        words = ["partial", self.hospital, self.by, f"{self.fraction:g}"]
        words += [] if self.unlabelled else ["labelled-only"]
        words += [] if self.trust == "full" else [self.trust]
        if self.consistency is not None:
            words.append(f"cf{self.consistency.weight:g}")
            words += ["audited"] if self.consistency.audited else []
        return "-".join([*words, f"seed{self.seed}"])

    @property
    def facts(self) -> dict[str, object]:
        """All that decides the weights."""
        return {
            "gradient": "whole",  # of missing labels, for every row of a batch
            "patients": PredictorRecipe(self.preset, self.hospital).digest,
            "image": config_facts(self.preset.image),
            "mechanisms": asdict(self.preset.mechanisms),
            "schedule": asdict(_SCHEDULES[self.preset.name]),
            "consistency": None if self.consistency is None else asdict(self.consistency),
            "labels": [self.fraction, self.by, self.unlabelled, self.trust, self.seed],
        }

    def data(self) -> Dataset:
        """The training patients, labels hidden; without unlabelled ones if they are not used."""
        data, names = parts(self.hospital, self.preset)["train"], list(self.untrained().names)
        table = mask_labels(data.table, self.fraction, seed=self.seed, by=self.by, columns=names)
        if not self.unlabelled:
            table = table[table[names].notna().any(axis=1)]
        return data.select(table)

    def stages(self, path: Path, *, device: str = "cpu", progress: bool = False) -> Stages:
        """Its training before the first stage; regularisation begins with a trained generator."""
        data, model = self.data(), self.untrained()
        if self.consistency is not None:
            base = replace(self, consistency=None)
            model = base.obtain(cache=path.parent, device=device, progress=progress)
        pa, images = {n: data.parents[n] for n in model.names}, self.seen(data)
        return Stages(model, images, pa, self.schedule, path, self.seed, device, progress)

    def _trained(self, path: Path, **where: object) -> tuple[DeepSCM, dict]:
        stages = self.stages(path, **where)
        began = time.process_time()
        if self.consistency is None:
            stages.learn()
        else:
            stages.regularise(self.consistency)
        notes = {
            "recipe": self.name,
            "images": len(stages.images),
            "known": {name: int(v.isfinite().sum()) for name, v in stages.pa.items()},
            "CPU seconds": round(time.process_time() - began),
            "history": {n: [asdict(step) for step in h] for n, h in stages.history.items()},
        }
        return stages.model, notes
