"""How near counterfactuals come to the true ones: between doing nothing and the limits.

Designs of generators are chosen without the truth (:mod:`cfbook.study.designs`). Here it is looked
at: on test patients of the experiments, and once on patients whom nobody looked at before, drawn by
a seed that was chosen last.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from cfbook.study.cohorts import parts
from cfbook.study.learned import LIMITS, PANEL, trial_terms, write_table
from cfbook.study.presets import Preset
from cfbook.study.recipes import (
    DetailedRecipe,
    GeneratorRecipe,
    OwnRecipe,
    PredictorRecipe,
    probes,
)
from cfbook.study.runs import STRENGTHS
from cfchest.data import Dataset, from_phantom
from cfchest.graph import CHEST, paper_grid
from cfchest.phantom import Oracle, Phantom
from cfchest.phantom.limits import PosteriorMean, PosteriorSampler
from cfcore.generator import Generator
from cfcore.marginalise import marginalise
from cfcore.predictions import Predictions
from cfcore.predictor import Predictor
from cfcore.standardise.estimate import Pool
from cfcore.standardise.laws import law_of_scores
from cfscm.soundness import soundness
from cfscm.soundness.baselines import Identity, MeanShift, Sampled
from cfscm.soundness.panel import panel

_FRESH = "panel_fresh.csv"
_IDEAL = ("posterior sampler", "posterior-mean image")
_Members = Mapping[str, Sequence[Generator]]
"""Generators by name; one that draws its noise has a member for each draw."""


def collect_panel(preset: Preset, out: Path, *, patients: int = 300, draws: int = 12) -> list[Path]:
    """Try the limits of abduction, and put the first generator between them and the truth.

    The patients, interventions and classifiers are those of
    :func:`~cfbook.study.learned.collect_soundness`, with the strongest bias of either family among
    those whose scores are compared. All that is said of the posterior sampler is a mean over its
    draws, or of the law of all of them.
    """
    test, terms = parts("C", preset)["test"], trial_terms(preset)
    members = {"learned": [GeneratorRecipe(preset).obtain()]}
    data, limits = test.take(range(patients)), {"learned": _IDEAL[1]}
    table, sound = _panelled(members, limits, preset, data, test, terms, draws)
    found = [sound[name].assign(generator=name) for name in _IDEAL]
    return [
        write_table(pd.concat(found).drop(columns=["identity", "oracle", "floor"]), out / LIMITS),
        write_table(table.assign(patients=patients), out / PANEL),
    ]


def collect_fresh(
    preset: Preset,
    out: Path,
    *,
    cohort: int,
    seeds: Iterable[int] = range(3),
    patients: int = 600,
    draws: int = 4,
) -> Path:
    """The panel of all designs on patients drawn anew, of whom the truth is looked at once.

    Args:
        cohort: The seed of the patients.
        seeds: Of the trainings of the generator with a flow.
        draws: How often generators that draw their noise do.
    """
    drawn = Phantom(preset.size).sample(patients, hospital="C", seed=cohort)
    terms = trial_terms(preset) | {"truth": drawn.oracle, "effects": ["direct"]}
    members = {
        "mean shift": [MeanShift.fit(CHEST, CHEST.parents("image"), OwnRecipe(preset).data())],
        "autoencoder": [GeneratorRecipe(preset).obtain()],
    }
    for seed in seeds:
        model = DetailedRecipe(preset, seed=seed).obtain(progress=True)
        members[f"flow {seed}"] = [model]
        members[f"flow {seed}, drawn"] = [Sampled(model, draw=draw) for draw in range(draws)]
    limits = {name: _IDEAL[0 if name.endswith("drawn") else 1] for name in members}
    observed = parts("C", preset)["test"]
    table, _ = _panelled(members, limits, preset, from_phantom(drawn), observed, terms, draws)
    return write_table(table.assign(patients=patients, cohort=cohort), out / _FRESH)


def _panelled(
    members: _Members,
    limits: Mapping[str, str],
    preset: Preset,
    data: Dataset,
    observed: Dataset,
    terms: dict[str, object],
    draws: int,
) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """The panel of generators beside doing nothing, the limits and the truth; and soundness."""
    terms = terms | {
        "classifiers": {name: probe.obtain() for name, probe in probes(preset).items()}
    }
    biased = {
        f"{family} {max(STRENGTHS):g}": PredictorRecipe(
            preset, "C", family, max(STRENGTHS)
        ).obtain()
        for family in ("sex", "age")
    }
    truth: Oracle = terms["truth"]
    audited = terms["audited"] = {**terms["audited"], **biased}
    asked = {"axioms": ["effectiveness", "faithfulness"], "beside": ()}
    known, found, sound = (truth.size, truth.noise), {}, {}
    for name, every in {
        "doing nothing": [Identity(truth)],
        **members,
        _IDEAL[0]: [PosteriorSampler(*known, seed) for seed in range(draws)],
        _IDEAL[1]: [PosteriorMean(*known, draws=draws)],
        "oracle": [truth],
    }.items():
        tables = [soundness(one, data, **terms, **asked) for one in every]
        sound[name] = tables[0].assign(value=sum(table["value"] for table in tables) / len(tables))
        found[name] = _pooled([marginalise(one, audited, data, paper_grid()) for one in every])
    laws = _standardised(audited, observed, data)
    return panel(found, sound, limits=limits, observed=laws), sound


def _pooled(draws: Sequence[Mapping[str, Predictions]]) -> dict[str, Predictions]:
    """What predictors say of several draws of the same patients, one below the other."""
    found = {}
    for name, first in draws[0].items():
        every = [one[name] for one in draws]
        logits = (torch.cat([getattr(p, n) for p in every]) for n in ("logit_obs", "logit_cf"))
        found[name] = Predictions(*logits, first.grid, first.q)
    return found


def _standardised(
    audited: Mapping[str, Predictor], observed: Dataset, population: Dataset
) -> dict[str, np.ndarray]:
    """The law of the logit of each predictor in each world, without a counterfactual."""
    pools = []
    for data in (observed, population):
        pa = {name: values.numpy() for name, values in data.parents.items()}
        worlds = {name: pa.pop(name) for name in ("sex", "age")}
        pools.append(Pool(worlds, {**pa, "y": pa.pop("effusion")}, data.table.patient.to_numpy()))
    with torch.inference_mode():
        said = [[g(x, pa) for g in audited.values()] for _, x, pa in observed.batches(128)]
    grid = {name: values.numpy() for name, values in paper_grid().values.items()}
    return {
        name: law_of_scores(torch.cat(logit).numpy(), pools[0], grid, target=pools[1])
        for name, logit in zip(audited, zip(*said, strict=True), strict=True)
    }
