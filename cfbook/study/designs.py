"""Designs of generators: what each ingredient is worth, by what can be known on real data.

Every design is judged by the laws of readings alone (:mod:`cfscm.soundness.laws`), on validation
patients and on patients drawn anew. No true counterfactual is looked at.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from cfbook.study.cohorts import parts, phantom_cohort
from cfbook.study.learned import write_table
from cfbook.study.presets import Preset, check_known
from cfbook.study.recipes import (
    DetailedRecipe,
    FlowRecipe,
    GeneratorRecipe,
    OwnRecipe,
    PredictorRecipe,
    probes,
)
from cfchest.data import Dataset, from_phantom
from cfchest.graph import CHEST
from cfchest.phantom import Phantom
from cfcore.generator import Generator
from cfscm.soundness import interventions_of
from cfscm.soundness.baselines import Identity, MeanShift
from cfscm.soundness.laws import laws_table
from cfscm.training import FittingConfig
from cfscm.weights import read_manifest

INGREDIENTS = "generator_designs.csv"
_ASKED = ("sex", "race", "age", "effusion")
_FRESH = 6  # added to the seed of the observed patients with whom readings are compared
_POOL = 12_000
_BASELINES = ("doing nothing", "mean shift")
_SHARE = 0.28  # of the steps of a flow, in trials
_LATENTS = (0, 4, 8)  # channels at the resolutions of a hierarchical autoencoder


@dataclass(frozen=True)
class _Design:
    """A design: how it is trained, and what is changed afterwards.

    Args:
        recipe: How it is trained.
        change: What is done to its image mechanism when it is trained.
    """

    recipe: GeneratorRecipe
    change: Callable[[nn.Module], None] = lambda image: None


def _variants(preset: Preset, seed: int = 0) -> dict[str, _Design]:
    """The designs that are tried, by name: one ingredient is changed at a time.

    Flows are trained for less than a third of the preset's steps, on the autoencoder of the whole
    training.

    Example:
        >>> from cfbook.study.presets import preset
        >>> len(_variants(preset("book")))
        16
    """
    image, detail, swift = preset.image, preset.detail, preset.swift

    def brief(share: float = _SHARE, **changes: object) -> Preset:
        return replace(preset, **{"swift": _shortened(swift, share), **changes})

    def flow(given: Preset) -> _Design:
        return _Design(FlowRecipe(given, seed=seed, whole=preset))

    def coder(**changes: object) -> _Design:
        return _Design(OwnRecipe(replace(preset, **changes), seed=seed))

    short = flow(brief())
    slow = {"batch": swift.batch, "shift": 0, "display": 0.0, "report": swift.report}
    plain = brief(detail=replace(detail, tone=False))
    longer = replace(preset.fitting, steps=2 * preset.fitting.steps)
    deep = replace(image, latents=_LATENTS[-len(image.widths) :], prior="exogenous")
    return {
        "autoencoder, training patients": _Design(GeneratorRecipe(preset, seed=seed)),
        "autoencoder": coder(),
        "autoencoder, code four times as long": coder(image=replace(image, code=4 * image.code)),
        "autoencoder, code held": replace(coder(), change=lambda image: image.drift.zero_()),
        "autoencoder, twice as long": coder(fitting=longer),
        "hierarchical latents, as in the paper": coder(image=deep),
        "flow": short,
        "flow, a third of the steps": flow(brief(_SHARE / 3)),
        "flow, a fifth of the patients": flow(brief(own=max(1, preset.own // 5))),
        "flow without tone": _Design(DetailedRecipe(plain, seed=seed)),
        "flow, all pixels alike": flow(brief(detail=replace(detail, relevance=0.0))),
        "flow, AdamW": flow(brief(swift=FittingConfig(_shortened(swift, _SHARE).steps, **slow))),
        "flow, noise levels up to 3": replace(short, change=_up_to_three),
        "flow, sex at all levels": replace(short, change=lambda image: image.limit()),
        "flow, sex at no level": replace(short, change=lambda image: image.limit(sex=0.0)),
        "flow, whole training": _Design(DetailedRecipe(preset, seed=seed)),
    }


def _shortened(config: FittingConfig, share: float) -> FittingConfig:
    return replace(config, steps=max(1, round(share * config.steps)))


def _up_to_three(image: nn.Module) -> None:
    image.flow.levels.copy_(replace(image.config, high=3.0).levels)


def collect_designs(
    preset: Preset, out: Path, *, only: Iterable[str] = (), patients: int = 700, seed: int = 0
) -> Path:
    """Try designs, trained if need be, and write or extend their table.

    Args:
        only: Some of the names; by default all that the table does not have.
        patients: How many validation patients; the first 300 were used to choose before.
    """
    path, made = out / INGREDIENTS, _variants(preset, seed)
    known = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["design"])
    for name in only:
        check_known("design", name, (*_BASELINES, *made))
    asked = list(only) or [name for name in (*_BASELINES, *made) if name not in set(known.design)]
    for name in asked:
        generator, cost = _obtained(name, preset, made)
        table = _judged(name, generator, preset, patients).assign(**cost, seed=seed)
        known = pd.concat([known[known.design != name], table]) if len(known) else table
        write_table(known, path)
    return path


def _obtained(
    name: str, preset: Preset, made: Mapping[str, _Design]
) -> tuple[Generator, dict[str, float]]:
    """A generator, and what it cost."""
    if name == "doing nothing":
        return Identity(phantom_cohort("C", preset).oracle), {}
    if name == "mean shift":
        data, began = OwnRecipe(preset).data(), time.process_time()
        names = CHEST.parents("image")
        shift = MeanShift.fit(CHEST, names, data)
        return shift, {"cpu_minutes": (time.process_time() - began) / 60}
    recipe = made[name].recipe
    model = recipe.obtain(progress=True)
    made[name].change(model.image)
    files = (place / recipe.file for place in (recipe.committed, recipe.cache))
    file = next(file for file in files if file.is_file())
    size = sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*"))
    return model, {
        "cpu_minutes": read_manifest(file)["notes"].get("CPU minutes"),
        "megabytes": size / 1e6,
        "images_per_second": _pace(model, parts("C", preset)["validation"].take(range(32))),
    }


@torch.inference_mode()
def _pace(model: Generator, data: Dataset) -> float:
    """How many counterfactuals it draws in a second of a processor, noise once abducted."""
    noise, begun = model.abduct(data[:], data.parents), 0.0
    for warm in (True, False):
        begun = time.process_time()
        for _ in range(1 if warm else 5):
            model.predict(noise, data.parents)
    return 5 * len(data) / (time.process_time() - begun)


def _judged(name: str, generator: Generator, preset: Preset, patients: int) -> pd.DataFrame:
    """The laws of readings of one design."""
    validation = parts("C", preset)["validation"]
    data = validation.take(range(len(validation))[-patients:])
    who = {"hospital": "C", "seed": preset.cohort + _FRESH}
    observed = from_phantom(Phantom(preset.size).sample(_POOL, **who))
    readers = {each: probe.obtain() for each, probe in probes(preset).items()}
    readers["basic"] = PredictorRecipe(preset).obtain()
    terms = {"interventions": interventions_of(data.parents, _ASKED, graph=CHEST)}
    terms |= {"graph": CHEST, "label": "effusion"}
    table = laws_table({name: generator}, data, observed, readers, **terms)
    return table.rename(columns={"generator": "design"}).assign(patients=len(data))
