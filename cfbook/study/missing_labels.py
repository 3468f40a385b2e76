"""What missing labels cost: generators from partly labelled images, tried on test patients.

The tables are small and come with the project; what made them does not, for trainings take an hour
in all. Each function writes one of them, from generators that are found or trained.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from cfbook.study.cohorts import parts, phantom_cohort
from cfbook.study.learned import TRIED, write_table
from cfbook.study.partial import PartialRecipe
from cfbook.study.presets import Preset
from cfbook.study.recipes import PredictorRecipe, probes
from cfchest.data import Dataset
from cfchest.graph import CHEST, paper_grid
from cfchest.phantom.equations import fresh_detector
from cfcore.generator import Generator
from cfcore.marginalise import marginalise
from cfcore.metrics import attribute_variance, auc
from cfcore.predictions import Predictions
from cfcore.predictor import Predictor
from cfscm.consistency import ConsistencyConfig
from cfscm.model import DeepSCM
from cfscm.soundness import soundness
from cfscm.soundness.baselines import Derived, Identity

CURVE, LABELS, IMPUTED = "missing_curve.csv", "missing_labels.csv", "missing_imputed.csv"
METRICS, ABLATION = "missing_metrics.csv", "missing_regularised.csv"

FRACTIONS = (1.0, 0.2, 0.05, 0.5, 0.1)
"""The shares of the labels on the curve, in the order in which they are worth waiting for."""

STAGES: dict[str, ConsistencyConfig] = {
    "none": ConsistencyConfig(weight=0.0),
    "light": ConsistencyConfig(),
    "light, with disease": ConsistencyConfig(audited=True),
    "strong": ConsistencyConfig(weight=0.3),
}
"""The ablation of counterfactual regularisation; all train for as many steps."""

COLUMNS = ["axiom", "intervention", "measure", "classifier", "value"]

KEPT = {
    "effectiveness": ("accuracy", "AUC", "error", "R2"),
    "faithfulness": ("score difference", "PSNR"),
}


def trial_patients(preset: Preset, patients: int = 300) -> Dataset:
    """The test patients of hospital C on whom generators are tried."""
    return parts("C", preset)["test"].take(range(patients))


def tried(model: Generator, preset: Preset, patients: int = 300) -> pd.DataFrame:
    """Effectiveness and faithfulness of a generator, and what it makes of stability.

    Args:
        model: The generator.
        preset: The sizes, by which probes and the audited predictor are found.
        patients: How many test patients.

    Returns:
        Columns ``axiom, intervention, measure, classifier, value, identity, oracle, floor``.
    """
    return _measures(model, preset, patients).join(beside(preset, patients)).reset_index()


@cache
def beside(preset: Preset, patients: int) -> pd.DataFrame:
    """The same measures of doing nothing, of the truth and of the truth with fresh noise."""
    truth = phantom_cohort("C", preset).oracle
    derived = {
        "identity": Identity(truth),
        "oracle": truth,
        "floor": Derived(truth, fresh_detector),
    }
    found = {name: _measures(one, preset, patients)["value"] for name, one in derived.items()}
    return pd.DataFrame(found)


def _measures(model: Generator, preset: Preset, patients: int) -> pd.DataFrame:
    data, truth = trial_patients(preset, patients), phantom_cohort("C", preset).oracle
    readers = {name: probe.obtain() for name, probe in probes(preset).items()}
    audited = {"basic": PredictorRecipe(preset).obtain(), "strong": readers["effusion"]}
    table = soundness(
        model,
        data,
        graph=CHEST,
        classifiers=readers,
        audited=audited,
        truth=truth,
        interventions=TRIED,
        axioms=tuple(KEPT),
        effects=("direct",),
        beside=(),
    )
    kept = [m in KEPT[a] for a, m in zip(table.axiom, table.measure, strict=True)]
    given = marginalise(model, {"g": audited["basic"]}, data, paper_grid())["g"]
    rows = [
        ("stability", name.removeprefix("S_var_"), "S_var", "basic", value)
        for name, value in attribute_variances(given).items()
    ]
    found = pd.concat([table[kept][COLUMNS], pd.DataFrame(rows, columns=COLUMNS)])
    return found.set_index(COLUMNS[:-1])


def attribute_variances(given: Predictions) -> dict[str, float]:
    """``S_var`` due to each attribute of the grid."""
    p = given.logit_cf.double().sigmoid()
    return {
        f"S_var_{name}": attribute_variance(p, given.q, values).item()
        for name, values in given.grid.items()
    }


def facts(recipe: PartialRecipe) -> dict[str, object]:
    """The columns by which a generator is known in a table."""
    return {
        "preset": recipe.preset.name,
        "by": recipe.by,
        "fraction": recipe.fraction,
        "unlabelled": recipe.unlabelled,
        "trust": recipe.trust,
        "gradient": recipe.gradient,
        "stage": {c: name for name, c in STAGES.items()}.get(recipe.consistency, ""),
        "seed": recipe.seed,
    }


def curve_recipes(preset: Preset, seeds: Iterable[int]) -> list[PartialRecipe]:
    """The generators of the curve: with images that have no label, and without."""
    ours = [PartialRecipe(preset, seed=seed, fraction=f) for seed in seeds for f in FRACTIONS]
    return ours + [replace(r, unlabelled=False) for r in ours if r.fraction < 1]


def label_recipes(preset: Preset, seeds: Iterable[int]) -> list[PartialRecipe]:
    """A fifth of the labels, with images that have none and without, and beside them all labels."""
    kinds = ({}, {"unlabelled": False}, {"fraction": 1.0})
    return [PartialRecipe(preset, seed=seed, **kind) for seed in seeds for kind in kinds]


def trust_recipes(preset: Preset, seeds: Iterable[int]) -> list[PartialRecipe]:
    """A fifth of the labels, and imputed ones weighted by the paper's 1 - H."""
    ours = label_recipes(preset, seeds)
    return [replace(recipe, trust="entropy") for recipe in ours if recipe.fraction < 1]


def stage_recipes(preset: Preset, seeds: Iterable[int]) -> list[PartialRecipe]:
    """The generators of the ablation, fully labelled."""
    return [
        PartialRecipe(preset, seed=seed, fraction=1.0, consistency=stage)
        for seed in seeds
        for stage in STAGES.values()
    ]


def collect_trials(
    recipes: Iterable[PartialRecipe],
    path: Path,
    *,
    folder: Path,
    patients: int = 300,
) -> Path:
    """Try some generators and write one table, which grows by each of them.

    Who is in the table already is not tried again, so a run that was stopped goes on, and what it
    leaves is a table of what was tried.

    Args:
        recipes: The generators.
        path: The table.
        folder: Where generators are kept.
        patients: How many test patients.
    """
    tables = [read_trials(path)] if path.is_file() else []
    done = {file for table in tables for file in table.generator}
    for recipe in recipes:
        if recipe.file not in done:
            found = tried(recipe.obtain(cache=folder), recipe.preset, patients)
            about = facts(recipe) | {"patients": patients}
            tables.append(found.assign(generator=recipe.file, **about))
            write_table(pd.concat(tables), path)
    return path


def read_trials(path: Path) -> pd.DataFrame:
    """A table of :func:`collect_trials`; rows that name no gradient are of earlier trainings."""
    table = pd.read_csv(path)
    return table if "gradient" in table else table.assign(gradient="earlier")


def changes(trials: pd.DataFrame, whole: pd.Series, *, by: str) -> pd.DataFrame:
    """By how many per cent each kind of generator differs from another, in the mean over trainings.

    Args:
        trials: Rows of a table of :func:`collect_trials`.
        whole: What the other reaches, by the columns that name a measure.
        by: The column that tells the kinds apart.

    Example:
        >>> rows = pd.DataFrame({"measure": "error", "images": ["all", "few"], "value": [3, 1]})
        >>> whole = pd.Series([2.0], pd.Index(["error"], name="measure"))
        >>> changes(rows, whole, by="images").loc["error"].to_dict()
        {'all': 50.0, 'few': -50.0}
    """
    mean = trials.groupby([*whole.index.names, by])["value"].mean().unstack(by)
    return 100 * mean.div(whole, axis=0).sub(1).loc[mean.index]


def imputation(model: DeepSCM, data: Dataset) -> pd.DataFrame:
    """How well parents are read off the image when none is known.

    Args:
        model: The generator, with its predictors.
        data: The patients, of whom everything is recorded.

    Returns:
        Columns ``variable, measure, value, baseline``: accuracy and AUC of discrete variables, mean
        error and R2 of continuous ones. The baseline always says the commonest value, or the mean.
    """
    pa, x = {name: data.parents[name] for name in model.names}, data[:]
    hidden = {name: torch.full_like(values, torch.nan) for name, values in pa.items()}
    filled, rows = model.impute(x, hidden), []
    with torch.no_grad():
        features = model.inference.features(x)
        for name, y in pa.items():
            q, guess = model.inference.predict(name, features, filled), filled[name]
            if CHEST[name].kind == "continuous":
                rows.append((name, "error", _error(guess, y), _error(y.mean(), y)))
                rows.append((name, "R2", 1 - _error(guess, y, 2) / _error(y.mean(), y, 2), 0.0))
                continue
            most = torch.stack([(y == v).double().mean() for v in CHEST[name].values]).max()
            rows.append((name, "accuracy", (guess == y).double().mean().item(), most.item()))
            areas = [auc(q.logits[:, v], y == v) for v in CHEST[name].values]
            rows.append((name, "AUC", torch.stack(areas).mean().item(), 0.5))
    return pd.DataFrame(rows, columns=["variable", "measure", "value", "baseline"])


def _error(guess: Tensor, y: Tensor, power: int = 1) -> float:
    return ((guess - y).abs().double() ** power).mean().item()


def hidden_metrics(
    model: DeepSCM, predictor: Predictor, data: Dataset, *, names: Sequence[str] | None = None
) -> pd.DataFrame:
    """Every metric with recorded parents, and with some hidden and imputed.

    Labels are hidden from the generator only: risks are computed with the recorded ones.

    Args:
        model: The generator.
        predictor: The audited predictor.
        data: The patients, of whom everything is recorded.
        names: The parents to hide, one by one and all together; by default all of them.

    Returns:
        One row for each metric; columns ``recorded``, one for each parent, and ``all``.
    """
    names, label = tuple(names or model.names), data.parents["effusion"].long()
    found = {}
    for title, some in {"recorded": (), **{n: (n,) for n in names}, "all": names}.items():
        rows = data.select(data.table.assign(**dict.fromkeys(some, torch.nan)))
        given = marginalise(model, {"g": predictor}, rows, paper_grid())["g"]
        given = replace(given, y=label, parents=data.parents)
        found[title] = given.evaluate() | attribute_variances(given)
    return pd.DataFrame(found).rename_axis("metric").reset_index()


def collect_model(recipe: PartialRecipe, out: Path, data: Dataset, *, folder: Path) -> list[Path]:
    """What one generator imputes, and what that does to the metrics.

    Args:
        recipe: The generator.
        out: The folder to write to.
        data: The test patients.
        folder: Where generators are kept.

    Returns:
        The two files that were written.
    """
    model = recipe.obtain(cache=folder)
    changes = hidden_metrics(model, PredictorRecipe(recipe.preset).obtain(), data)
    return [
        write_table(imputation(model, data).assign(patients=len(data)), out / IMPUTED),
        write_table(changes, out / METRICS),
    ]
