"""What missing labels cost: generators from partly labelled images, tried on test patients.

The tables are small and come with the project; what made them does not, for trainings take an hour
in all. Each function writes one of them, from generators that are found or trained.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
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
from cfcore.files import write_atomically
from cfcore.generator import Generator, counterfactuals
from cfcore.marginalise import marginalise
from cfcore.metrics import attribute_variance, auc
from cfcore.predictions import Predictions
from cfcore.predictor import Predictor
from cfscm.consistency import ConsistencyConfig
from cfscm.model import DeepSCM
from cfscm.soundness import soundness
from cfscm.soundness.baselines import Derived, Identity

CURVE, FIFTH, IMPUTED = "missing_curve.csv", "missing_labels.csv", "missing_imputed.csv"
HIDDEN, ABLATION = "missing_metrics.csv", "missing_regularised.csv"
EXAMPLES = "missing_examples.safetensors"

_FRACTIONS = (1.0, 0.2, 0.05, 0.5, 0.1)
"""The shares of the labels on the curve, in the order in which they are worth waiting for."""

STAGES: dict[str, ConsistencyConfig] = {
    "none": ConsistencyConfig(weight=0.0),
    "light": ConsistencyConfig(),
    "light, with disease": ConsistencyConfig(audited=True),
    "strong": ConsistencyConfig(weight=0.3),
}
"""The ablation of counterfactual regularisation; all train for as many steps."""

_MEASURE = ["axiom", "intervention", "measure", "classifier", "value"]

_KEPT = {
    "effectiveness": ("accuracy", "AUC", "error", "R2"),
    "faithfulness": ("score difference", "PSNR"),
}


SHOWN = (
    {"race": 0, "effusion": 1, "age": 52, "sex": 0},
    {"race": 2, "effusion": 0, "age": 77, "sex": 1},
    {"race": 0, "effusion": 1, "age": 52, "sex": 0},
    {"race": 2, "effusion": 0, "age": 68, "sex": 1},
)
"""The patients of the paper's last figure: race, disease, age and sex, as its captions say."""

ACTIONS = (
    {"age": 22, "effusion": 0, "race": 2, "sex": 1},
    {"age": 20, "effusion": 1, "race": 0, "sex": 0},
    {"age": 82, "effusion": 0, "race": 1, "sex": 1},
    {"age": 35, "effusion": 1, "race": 0, "sex": 0},
)
"""What is done to each of them, one after the other, and then all at once."""


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
        Columns ``axiom, intervention, measure, classifier, value, identity, oracle, floor``: the
        last three are those of doing nothing, of the truth and of the truth with fresh noise.
    """
    return _measures(model, preset, patients).join(_baselines(preset, patients)).reset_index()


@cache
def _baselines(preset: Preset, patients: int) -> pd.DataFrame:
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
        model, data, graph=CHEST, classifiers=readers, audited=audited, truth=truth,
        interventions=TRIED, axioms=tuple(_KEPT), effects=("direct",), beside=(),
    )  # fmt: skip
    kept = [m in _KEPT[a] for a, m in zip(table.axiom, table.measure, strict=True)]
    given = marginalise(model, {"g": audited["basic"]}, data, paper_grid())["g"]
    rows = [
        ("stability", name.removeprefix("S_var_"), "S_var", "basic", value)
        for name, value in _attribute_variances(given).items()
    ]
    found = pd.concat([table[kept][_MEASURE], pd.DataFrame(rows, columns=_MEASURE)])
    return found.set_index(_MEASURE[:-1])


def _attribute_variances(given: Predictions) -> dict[str, float]:
    """``S_var`` due to each attribute of the grid."""
    p = given.logit_cf.double().sigmoid()
    return {
        f"S_var_{name}": attribute_variance(p, given.q, values).item()
        for name, values in given.grid.items()
    }


def facts(recipe: PartialRecipe) -> dict[str, object]:
    """The columns by which a generator is known in a table."""
    names = ("by", "fraction", "unlabelled", "trust", "gradient", "seed")
    stage = {c: name for name, c in STAGES.items()}.get(recipe.consistency, "")
    own = {name: getattr(recipe, name) for name in names}
    return {"preset": recipe.preset.name, "stage": stage} | own


def curve_recipes(preset: Preset, seeds: Iterable[int]) -> list[PartialRecipe]:
    """The generators of the curve: with images that have no label, and without."""
    ours = [PartialRecipe(preset, seed=seed, fraction=f) for seed in seeds for f in _FRACTIONS]
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
    kinds = product(seeds, STAGES.values())
    return [
        PartialRecipe(preset, seed=seed, fraction=1.0, consistency=stage) for seed, stage in kinds
    ]


def collect_trials(
    recipes: Iterable[PartialRecipe], path: Path, *, folder: Path, patients: int = 300
) -> Path:
    """Try some generators and write one table, which grows by each of them.

    Generators already in the table are skipped, so a run that was stopped goes on.

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


def _hidden_metrics(model: DeepSCM, predictor: Predictor, data: Dataset) -> pd.DataFrame:
    """Every metric with recorded parents, and with some hidden and imputed.

    Labels are hidden from the generator only: risks are computed with the recorded ones.

    Args:
        model: The generator.
        predictor: The audited predictor.
        data: The patients, of whom everything is recorded.

    Returns:
        One row for each metric; columns ``recorded``, one for each hidden parent, and ``all``.
    """
    names, label = model.names, data.parents["effusion"].long()
    found = {}
    for title, some in {"recorded": (), **{n: (n,) for n in names}, "all": names}.items():
        rows = data.select(data.table.assign(**dict.fromkeys(some, torch.nan)))
        given = marginalise(model, {"g": predictor}, rows, paper_grid())["g"]
        given = replace(given, y=label, parents=data.parents)
        found[title] = given.evaluate() | _attribute_variances(given)
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
    changes = _hidden_metrics(model, PredictorRecipe(recipe.preset).obtain(), data)
    return [
        write_table(imputation(model, data).assign(patients=len(data)), out / IMPUTED),
        write_table(changes, out / HIDDEN),
    ]


def in_words(values: Mapping[str, float]) -> str:
    """Values in the words of the paper's captions.

    Example:
        >>> in_words({"race": 0, "effusion": 1, "age": 52, "sex": 0})
        'white, diseased, 52-year-old, male'
        >>> in_words({"age": 22})
        'age=22'
    """
    if set(values) == {"age"}:
        return f"age={values['age']:g}"
    words = {name: CHEST[name].categories for name in ("race", "sex")}
    words["effusion"] = ("healthy", "diseased")
    return ", ".join(
        f"{value:g}-year-old" if name == "age" else words[name][int(value)]
        for name, value in values.items()
    )


def alike(data: Dataset, patient: dict[str, float], *, besides: Iterable[int] = ()) -> int:
    """The row of the test patient nearest in age, of the same race, sex and label."""
    table, same = data.table, ["race", "effusion", "sex"]
    rows = table[(table[same] == [patient[name] for name in same]).all(axis=1)]
    rows = rows.drop(index=list(besides), errors="ignore")
    return int((rows.age - patient["age"]).abs().idxmin())


@torch.no_grad()
def collect_examples(recipe: PartialRecipe, path: Path, *, folder: Path) -> Path:
    """Draw the paper's last figure by one generator, and keep its panels.

    Args:
        recipe: The generator.
        path: The file, ``*.safetensors``, with ``learned`` and ``true`` panels, each of shape
            (4, 6, H, W), uint8, the observed image first, and the ``rows`` of the patients.
        folder: Where generators are kept.
    """
    from safetensors.torch import save

    data, rows = parts("C", recipe.preset)["test"], []
    for patient in SHOWN:
        rows.append(alike(data, patient, besides=rows))
    chosen = data.take(rows)
    x, pa, index = chosen[:], chosen.parents, chosen.index
    do = {n: torch.tensor([float(a[n]) for a in ACTIONS]) for n in ACTIONS[0]}
    actions = [*({name: value} for name, value in do.items()), do]
    learned, truth = recipe.obtain(cache=folder), phantom_cohort("C", recipe.preset).oracle
    drawn = {"rows": torch.tensor(rows)}
    for name, model in {"learned": learned, "true": truth}.items():
        panels = [x, *(counterfactuals(model, x, pa, some, index=index) for some in actions)]
        drawn[name] = (torch.cat(panels, dim=1) * 255).round().to(torch.uint8)
    return write_atomically(path, save(drawn))
