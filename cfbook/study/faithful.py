"""How near counterfactuals come to the true ones: between doing nothing and the limits.

Designs of generators are chosen without the truth (:mod:`cfbook.study.designs`). Here it is looked
at, once, on patients whom nobody looked at before, drawn by a seed that was chosen last.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cfbook.study.cohorts import parts
from cfbook.study.learned import trial_terms, write_table
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
from cfcore.graph import Variable
from cfcore.marginalise import marginalise
from cfcore.metrics.loss import cross_entropy_from_logits
from cfcore.metrics.stability import attribute_variance, flip_rate
from cfcore.predictions import Predictions
from cfcore.predictor import Predictor
from cfcore.standardise.estimate import Pool
from cfcore.standardise.laws import law_of_scores
from cfcore.standardise.transport import transport
from cfscm.soundness import interventions_of, soundness
from cfscm.soundness.baselines import Identity, MeanShift, Sampled
from cfscm.soundness.measure import batches_of, observe
from cfscm.soundness.panel import panel
from cfscm.soundness.worlds import Plan

PANEL, TARGETS = "panel_fresh.csv", "targets_fresh.csv"
_MOVED = "transport of scores"  # the bar to pass: it needs no image
_IDEAL = ("posterior sampler", "posterior-mean image")
_Members = Mapping[str, Sequence[Generator]]
"""Generators by name; one that draws its noise has a member for each draw."""
_Summands = Mapping[tuple[str, str, str], np.ndarray]
"""By measure, what it is about and classifier: what each patient contributes, shape (N,)."""


def collect_fresh(
    preset: Preset,
    out: Path,
    *,
    cohort: int,
    seeds: Sequence[int] = range(3),
    patients: int = 600,
    draws: int = 4,
    replicates: int = 1000,
) -> list[Path]:
    """The panel of all designs on patients drawn anew, of whom the truth is looked at once.

    What there are targets for is told again with intervals, which are over patients.

    Args:
        cohort: The seed of the patients.
        seeds: Of the trainings of the generator with a flow.
        draws: How often the first of them draws its noise, and the ideal sampler.
        replicates: Resamples of the patients.
    """
    drawn = Phantom(preset.size).sample(patients, hospital="C", seed=cohort)
    terms = _terms(preset) | {"truth": drawn.oracle, "effects": ["direct"]}
    members = {
        "mean shift": [MeanShift.fit(CHEST, CHEST.parents("image"), OwnRecipe(preset).data())],
        "autoencoder": [GeneratorRecipe(preset).obtain()],
    }
    for seed in seeds:
        model = DetailedRecipe(preset, seed=seed).obtain(progress=True)
        members[f"flow {seed}"] = [model]
        if "flow, drawn" not in members:
            members["flow, drawn"] = [Sampled(model, draw=draw) for draw in range(draws)]
    limits = {name: _IDEAL[0 if name.endswith("drawn") else 1] for name in members}
    observed, data = parts("C", preset)["test"], from_phantom(drawn)
    everyone = _beside(members, drawn.oracle, draws)
    table, found = _panelled(everyone, limits, data, observed, terms)
    summands = {
        name: _summands(every, found[name], data, terms) for name, every in everyone.items()
    }
    summands[_MOVED] = _of_scores(found[_MOVED])
    flows = [summands[f"flow {seed}"] for seed in seeds]
    summands["flow"] = {key: np.mean([one[key] for one in flows], axis=0) for key in flows[0]}
    limits["flow"] = _IDEAL[1]
    who = {"patients": patients, "cohort": cohort}
    targets = _targets(summands, limits, replicates=replicates, seed=cohort)
    return [
        write_table(table.assign(**who), out / PANEL),
        write_table(targets.assign(**who), out / TARGETS),
    ]


def _terms(preset: Preset) -> dict[str, object]:
    """How generators are tried, with the strongest biases among those whose scores matter."""
    terms = trial_terms(preset)
    terms["classifiers"] = {name: probe.obtain() for name, probe in probes(preset).items()}
    biased = {
        f"{family} {max(STRENGTHS):g}": PredictorRecipe(
            preset, "C", family, max(STRENGTHS)
        ).obtain()
        for family in ("sex", "age")
    }
    return terms | {"audited": {**terms["audited"], **biased}}


def _beside(members: _Members, truth: Oracle, draws: int) -> dict[str, Sequence[Generator]]:
    """Generators between doing nothing and the limits, and the truth."""
    known = truth.size, truth.noise
    return {
        "doing nothing": [Identity(truth)],
        **members,
        _IDEAL[0]: [PosteriorSampler(*known, seed) for seed in range(draws)],
        _IDEAL[1]: [PosteriorMean(*known)],
        "oracle": [truth],
    }


def _panelled(
    everyone: _Members,
    limits: Mapping[str, str],
    data: Dataset,
    observed: Dataset,
    terms: dict[str, object],
) -> tuple[pd.DataFrame, dict[str, dict[str, Predictions]]]:
    """The panel of generators, with transport of scores, and the predictions."""
    audited, found, sound = terms["audited"], {}, {}
    asked = {"axioms": ["effectiveness", "faithfulness"], "beside": ()}
    for name, every in everyone.items():
        tables = [soundness(one, data, **terms, **asked) for one in every]
        sound[name] = tables[0].assign(value=sum(table["value"] for table in tables) / len(tables))
        found[name] = _pooled([marginalise(one, audited, data, paper_grid()) for one in every])
    rows, others = (_frames(audited, some) for some in (data, observed))
    found[_MOVED] = {
        name: transport(rows[name], paper_grid(), observed=others[name]) for name in audited
    }
    laws = _standardised(rows, others)
    return panel(found, sound, limits=limits, observed=laws), found


def _pooled(draws: Sequence[Mapping[str, Predictions]]) -> dict[str, Predictions]:
    """What predictors say of several draws of the same patients, one below the other."""
    found = {}
    for name, first in draws[0].items():
        every = [one[name] for one in draws]
        parts = (torch.cat([getattr(p, n) for p in every]) for n in ("logit_obs", "logit_cf", "y"))
        obs, cf, y = parts
        found[name] = Predictions(obs, cf, first.grid, first.q, y)
    return found


def _frames(audited: Mapping[str, Predictor], data: Dataset) -> dict[str, pd.DataFrame]:
    """The logits of each predictor on observed images, with the parents, label and patient."""
    with torch.inference_mode():
        said = [[g(x, pa) for g in audited.values()] for _, x, pa in data.batches(128)]
    known = {name: values.numpy() for name, values in data.parents.items()}
    known |= {"y": known.pop("effusion"), "patient": data.table.patient.to_numpy()}
    logits = (torch.cat(logit).numpy() for logit in zip(*said, strict=True))
    return {
        name: pd.DataFrame({"logit": logit, **known})
        for name, logit in zip(audited, logits, strict=True)
    }


def _standardised(
    rows: Mapping[str, pd.DataFrame], observed: Mapping[str, pd.DataFrame]
) -> dict[str, np.ndarray]:
    """The law of the logit of each predictor in each world, without a counterfactual."""
    grid = {name: values.numpy() for name, values in paper_grid().values.items()}
    found = {}
    for name, frame in observed.items():
        pools = [Pool.from_frame(one, list(grid)) for one in (frame, rows[name])]
        logit = frame["logit"].to_numpy()
        found[name] = law_of_scores(logit, pools[0], grid, target=pools[1])
    return found


def _summands(
    every: Sequence[Generator],
    found: Mapping[str, Predictions],
    data: Dataset,
    terms: Mapping[str, object],
) -> _Summands:
    """What each patient contributes to the targets, as a mean over draws."""
    asked = interventions_of(data.parents, terms["interventions"], graph=terms["graph"], seed=0)
    plan = Plan(("effectiveness", "faithfulness"), ("direct",), asked)
    drawn = []
    for one in every:
        batches = batches_of(data, asked, 32, "cpu")
        who = terms["classifiers"], terms["audited"]
        gaps, (outputs, values), _ = observe(one, terms["truth"], batches, plan, *who)
        own = {}
        for (axiom, about, _, measure, name), value in gaps.items():
            if axiom == "faithfulness" and measure in ("MSE", "score difference"):
                own[measure, about, name] = value.double().numpy()
        for what in asked:
            key = (what, "direct"), what
            own["read", what, ""] = _met(
                terms["classifiers"][what].variable, outputs[key], values[key]
            )
        drawn.append(own)
    mean = {key: np.mean([own[key] for own in drawn], axis=0) for key in drawn[0]}
    return mean | _of_scores(found, draws=len(every))


def _met(variable: Variable, out: Tensor, value: Tensor) -> np.ndarray:
    """How well a value is read: right or wrong, or the distance in its units, shape (N,)."""
    if variable.kind == "continuous":
        return (out - value).abs().double().numpy()
    said = (out > 0).to(value) if variable.kind == "binary" else out.argmax(dim=1).to(value)
    return (said == value).double().numpy()


def _of_scores(found: Mapping[str, Predictions], *, draws: int = 1) -> _Summands:
    """What each patient contributes to metrics of the scores in all worlds."""
    own = {}
    for name, given in found.items():
        p_obs, p = (x.double().sigmoid() for x in (given.logit_obs, given.logit_cf))
        own["S_flip", "all worlds", name] = flip_rate.by_patient(p_obs, p, given.q)
        loss = cross_entropy_from_logits(given.logit_cf, given.y[:, None])
        own["R_IE", "all worlds", name] = loss @ given.q.double()
        for attribute, values in given.grid.items():
            own["S_var", attribute, name] = attribute_variance.by_patient(p, given.q, values)
    return {key: value.numpy().reshape(draws, -1).mean(axis=0) for key, value in own.items()}


def _targets(
    summands: Mapping[str, _Summands],
    limits: Mapping[str, str],
    *,
    replicates: int,
    seed: int,
) -> pd.DataFrame:
    """Whatever has a target, with an interval over patients, who are resampled together.

    ``share`` is the score error over that of doing nothing, ``gain`` the PSNR less that of doing
    nothing; metrics of scores are over the truth's; ``read`` is less what is read of the truth.
    """
    count = len(next(iter(summands["oracle"].values())))
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(count, np.full(count, 1 / count), size=replicates) / count
    weights = np.concatenate([np.full((1, count), 1 / count), weights])  # the estimate first
    means = {who: {k: weights @ v for k, v in own.items()} for who, own in summands.items()}
    truth, nothing = means["oracle"], means["doing nothing"]
    rows = []
    for who, own in means.items():
        for key, value in own.items():
            measure, about, name = key
            if measure == "score difference":
                found = {"share": _over(value, nothing[key])}
                if who in limits:
                    limit = means[limits[who]][key]
                    found["regret"] = _over(value - limit, nothing[key] - limit)
            elif measure == "MSE":
                found = {"gain": 10 * np.log10(nothing[key] / np.maximum(value, 1e-12))}
            elif measure == "read":
                found = {"read": value, "read less truth": value - truth[key]}
            else:
                found = {measure: _over(value, truth[key])}
            for what, drawn in found.items():
                low, high = np.quantile(drawn[1:], [0.025, 0.975])
                rows.append((who, name, what, about, drawn[0], low, high))
    columns = ["generator", "classifier", "measure", "about", "estimate", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def _over(value: np.ndarray, other: np.ndarray) -> np.ndarray:
    """One over the other, NaN where that is not positive."""
    return np.divide(value, other, out=np.full_like(value, np.nan), where=other > 0)
