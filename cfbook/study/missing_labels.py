"""What missing labels cost: generators from partly labelled images, tried on test patients.

The tables are small and come with the project; what made them does not, for trainings take an hour
in all. Each function writes one of them, from generators that are found or trained.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pandas as pd
import torch
from safetensors.torch import save
from torch import Tensor

from cfbook.study.cohorts import held_out, parts, phantom_cohort
from cfbook.study.learned import LABEL_FREE, RESULTS, trial_terms, write_table
from cfbook.study.partial import PartialRecipe
from cfbook.study.presets import Preset, preset
from cfbook.study.recipes import DetailedRecipe, PredictorRecipe, probes
from cfbook.study.runs import KEYS, PredictorId, Run
from cfbook.study.statistics import study_predictions
from cfchest.data import Dataset
from cfchest.graph import CHEST, paper_grid
from cfchest.phantom.equations import fresh_detector
from cfcore.files import write_atomically
from cfcore.generator import Generator, Parents, counterfactuals
from cfcore.marginalise import marginalise
from cfcore.metrics import attribute_variance
from cfcore.predictions import Predictions
from cfcore.predictor import Predictor
from cfscm.consistency import ConsistencyConfig
from cfscm.model import DeepSCM
from cfscm.soundness import soundness
from cfscm.soundness.baselines import Derived, Identity
from cfscm.soundness.distances import agreement

CURVE, TRUST, IMPUTED = "missing_curve.csv", "missing_trust.csv", "missing_imputed.csv"
HIDDEN, ABLATION = "missing_metrics.csv", "missing_regularised.csv"
EXAMPLES = "missing_examples.safetensors"
_COLUMNS = ["preset", "generator", "labels", "right", "patients", *KEYS]
_RESPONSES = ["S_var_sex", "S_var_age", "score_sex", "score_age"]

_FRACTIONS = (1.0, 0.2, 0.05, 0.5, 0.1)  # of the curve, as they are worth waiting for
_MEASURE = ["axiom", "intervention", "measure", "classifier", "value"]
_MEASURES = ("accuracy", "AUC", "error", "R2", "score difference", "PSNR")

STAGES: dict[str, ConsistencyConfig] = {
    "none": ConsistencyConfig(weight=0.0),
    "light": ConsistencyConfig(),
    "light, with disease": ConsistencyConfig(audited=True),
    "strong": ConsistencyConfig(weight=0.3),
}
"""The ablation of counterfactual regularisation; all train for as many steps."""

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


def _tried(model: Generator, preset: Preset, patients: int) -> pd.DataFrame:
    """Effectiveness and faithfulness of a generator, and what it makes of stability.

    Beside each ``value``, those of doing nothing (``identity``), of the truth (``oracle``) and of
    the truth with fresh noise (``floor``).
    """
    return _measures(model, preset, patients).join(_baselines(preset, patients)).reset_index()


@cache
def _baselines(preset: Preset, patients: int) -> pd.DataFrame:
    truth = phantom_cohort("C", preset).oracle
    made = {"identity": Identity(truth), "oracle": truth, "floor": Derived(truth, fresh_detector)}
    found = {name: _measures(one, preset, patients)["value"] for name, one in made.items()}
    return pd.DataFrame(found)


def _measures(model: Generator, preset: Preset, patients: int) -> pd.DataFrame:
    data, terms = trial_patients(preset, patients), trial_terms(preset)
    terms["classifiers"] = {name: probe.obtain() for name, probe in probes(preset).items()}
    terms |= {"axioms": ("effectiveness", "faithfulness"), "effects": ("direct",), "beside": ()}
    table = soundness(model, data, **terms)
    given = _said(model, {"g": terms["audited"]["basic"]}, data, data)["g"]
    spreads = _attribute_variances(given).items()
    rows = [("stability", name, "S_var", "basic", value) for name, value in spreads]
    kept = table.loc[table.measure.isin(_MEASURES), _MEASURE]
    return pd.concat([kept, pd.DataFrame(rows, columns=_MEASURE)]).set_index(_MEASURE[:-1])


_Readers = Mapping[str, Predictor]


def _said(
    model: Generator, readers: _Readers, rows: Dataset, data: Dataset
) -> dict[str, Predictions]:
    """What predictors say of patients in all worlds of the paper, with what was recorded of them.

    The generator knows of the patients only what is in ``rows``.
    """
    pa, found = data.parents, marginalise(model, readers, rows, paper_grid())
    return {name: replace(p, y=pa["effusion"].long(), parents=pa) for name, p in found.items()}


def _attribute_variances(given: Predictions) -> dict[str, float]:
    """``S_var`` due to each attribute of the grid."""
    p, grid = given.logit_cf.double().sigmoid(), given.grid.items()
    return {name: attribute_variance(p, given.q, values).item() for name, values in grid}


def _about(recipe: PartialRecipe) -> dict[str, object]:
    """The columns by which a generator is known in a table."""
    stage = {c: name for name, c in STAGES.items()}.get(recipe.consistency, "")
    names = ("by", "fraction", "unlabelled", "trust", "seed")
    own = {name: getattr(recipe, name) for name in names}
    return {"generator": recipe.file, "preset": recipe.preset.name, "stage": stage} | own


def curve_recipes(preset: Preset, seeds: Iterable[int]) -> list[PartialRecipe]:
    """The generators of the curve: with images that have no label, and without."""
    ours = [PartialRecipe(preset, seed=seed, fraction=f) for seed in seeds for f in _FRACTIONS]
    return ours + [replace(r, unlabelled=False) for r in ours if r.fraction < 1]


def kept_recipe() -> PartialRecipe:
    """The generator from a fifth of the labels that comes with the project."""
    return PartialRecipe(preset("curve"))


def trust_recipes(preset: Preset, seeds: Iterable[int]) -> list[PartialRecipe]:
    """A fifth of the labels, and imputed ones weighted by the paper's 1 - H."""
    ours = [PartialRecipe(preset, seed=seed, trust="entropy") for seed in seeds]
    return [replace(one, unlabelled=images) for one in ours for images in (True, False)]


def stage_recipes(preset: Preset, seeds: Iterable[int]) -> list[PartialRecipe]:
    """The generators of the ablation, fully labelled."""
    ours = [PartialRecipe(preset, seed=seed, fraction=1.0) for seed in seeds]
    return [replace(recipe, consistency=stage) for recipe in ours for stage in STAGES.values()]


def collect_trials(
    recipes: Iterable[PartialRecipe], path: Path, *, folder: Path, patients: int = 300
) -> Path:
    """Try some generators and write one table, which grows by each of them.

    Generators already in the table are skipped, so a run that was stopped goes on. They are kept
    in a folder.
    """
    tables = [pd.read_csv(path)] if path.is_file() else []
    done = {file for table in tables for file in table.generator}
    for recipe in recipes:
        if recipe.file not in done:
            found = _tried(recipe.obtain(cache=folder), recipe.preset, patients)
            tables.append(found.assign(**_about(recipe), patients=patients))
            write_table(pd.concat(tables), path)
    return path


def changes(trials: pd.DataFrame, whole: pd.Series, *, by: str) -> pd.DataFrame:
    """By how many per cent each kind of generator differs from another, in the mean over trainings.

    A column tells the kinds apart, and the other reaches ``whole``, by what names a measure.

    Example:
        >>> rows = pd.DataFrame({"measure": "error", "images": ["all", "few"], "value": [3, 1]})
        >>> whole = pd.Series([2.0], pd.Index(["error"], name="measure"))
        >>> changes(rows, whole, by="images").loc["error"].to_dict()
        {'all': 50.0, 'few': -50.0}
    """
    mean = trials.groupby([*whole.index.names, by])["value"].mean().unstack(by)
    return 100 * mean.div(whole, axis=0).sub(1).loc[mean.index]


def imputation(model: DeepSCM, data: Dataset) -> pd.DataFrame:
    """How well parents are read off the image when none is known, of patients with all recorded.

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
            variable, out = CHEST[name], filled[name]
            plain = {"error": (y - y.mean()).abs().double().mean().item(), "R2": 0.0}
            if variable.kind != "continuous":
                logits = model.inference.predict(name, features, filled).logits
                out = logits.diff(dim=1)[:, 0] if variable.kind == "binary" else logits
                plain = {"accuracy": y.long().bincount().max().item() / len(y), "AUC": 0.5}
            found = agreement(variable, out, y)
            rows += [(name, measure, value, plain[measure]) for measure, value in found.items()]
    return pd.DataFrame(rows, columns=["variable", "measure", "value", "baseline"])


def collect_model(recipe: PartialRecipe, out: Path, data: Dataset, *, folder: Path) -> list[Path]:
    """What one generator imputes, and every metric with recorded and with imputed parents.

    Parents are hidden from the generator one by one, and all at once. Labels are hidden from the
    generator only: risks are computed with the recorded ones.
    """
    model, reader = recipe.obtain(cache=folder), PredictorRecipe(recipe.preset).obtain()
    names, found = model.names, {}
    for title, some in {"recorded": (), **{n: (n,) for n in names}, "all": names}.items():
        rows = data.select(data.table.assign(**dict.fromkeys(some, torch.nan)))
        given = _said(model, {"g": reader}, rows, data)["g"]
        spreads = {f"S_var_{name}": value for name, value in _attribute_variances(given).items()}
        found[title] = given.evaluate() | spreads
    changes = pd.DataFrame(found).rename_axis("metric").reset_index()
    imputed = imputation(model, data).assign(patients=len(data))
    return [write_table(imputed, out / IMPUTED), write_table(changes, out / HIDDEN)]


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
    words = {"race": CHEST["race"].categories, "sex": CHEST["sex"].categories}
    words["effusion"] = ("healthy", "diseased")
    return ", ".join(
        f"{value:g}-year-old" if name == "age" else words[name][int(value)]
        for name, value in values.items()
    )


def _alike(data: Dataset, patient: dict[str, float], *, besides: Iterable[int] = ()) -> int:
    """The row of the test patient nearest in age, of the same race, sex and label."""
    table, same = data.table, ["race", "effusion", "sex"]
    rows = table[(table[same] == [patient[name] for name in same]).all(axis=1)]
    rows = rows.drop(index=list(besides), errors="ignore")
    return int((rows.age - patient["age"]).abs().idxmin())


@torch.no_grad()
def collect_examples(recipe: PartialRecipe, path: Path, *, folder: Path) -> Path:
    """Draw the paper's last figure by one generator, and keep its panels.

    The file has ``learned`` and ``true`` panels, each of shape (4, 6, H, W), uint8, the observed
    image first, and the ``rows`` of the patients.
    """
    data, rows = parts("C", recipe.preset)["test"], []
    for patient in SHOWN:
        rows.append(_alike(data, patient, besides=rows))
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


@dataclass(frozen=True)
class _Guessing(Derived):
    """A generator that is not told the effusion: it takes a guess from the image for it."""

    guess: Callable[[Tensor], Tensor] = field(kw_only=True)
    imputes = True
    names = property(lambda self: self.generator.names)

    def impute(self, x: Tensor, pa: Parents) -> dict[str, Tensor]:
        """The parents, with the guess where effusion is missing."""
        known = pa["effusion"]
        return {**pa, "effusion": torch.where(known.isnan(), self.guess(x).to(known), known)}


def _guessers(preset: Preset) -> tuple[str, dict[str, Generator]]:
    """A generator by its name, in the ways in which it may do without the label.

    With the preset ``curve`` it is the one that learned from partly labelled images, and fills the
    label in by its own parent predictors. Otherwise it is that of the experiments, which has none:
    it takes the label from the probe of effusion, which learned from other patients, or takes
    everybody for healthy.
    """
    if preset.name == "curve":
        recipe = PartialRecipe(preset)
        return recipe.name, {"imputed by the generator": recipe.obtain()}
    recipe, reader = DetailedRecipe(preset), probes(preset)["effusion"].obtain()
    model = recipe.obtain()
    return recipe.name, {
        "imputed by a classifier": _Guessing(model, guess=lambda x: (reader(x, {}) > 0).float()),
        "everybody taken for healthy": _Guessing(model, guess=lambda x: torch.zeros(len(x))),
    }


def collect_label_free(preset: Preset, path: Path) -> Path:
    """Stability of the trained predictors with the label recorded, and hidden from the generator.

    Effusion is a parent of the image, so abduction is told the label, and a metric that needs no
    label still used it. Here the label is hidden from the generator and imputed for everyone. In
    setting ``C->C``, on its balanced test set. The gaps of mean scores within a label need recorded
    labels, and do not depend on the generator.

    The table, in which rows of other presets stay, has one row for each predictor and source of
    the label, with ``right``, the share of the labels that are as recorded.
    """
    data = held_out("C", preset, "balanced")
    hidden = data.select(data.table.assign(effusion=torch.nan))
    readers = {
        member: recipe.obtain()
        for member, recipe in Run(preset, "C->C", "balanced").recipes().items()
        if not member.family.startswith("control")
    }
    name, ways = _guessers(preset)
    recorded = _answers(next(iter(ways.values())), readers, data, data)
    tables = [recorded.assign(labels="recorded", right=1.0)]
    for labels, model in ways.items():
        found = _answers(model, readers, hidden, data)
        tables.append(found.assign(labels=labels, right=_share_right(model, hidden, data)))
    found = pd.concat(tables).assign(preset=preset.name, generator=name, patients=len(data))
    kept = pd.read_csv(path).query("preset != @preset.name") if path.is_file() else None
    return write_table(pd.concat([kept, found[[*_COLUMNS, *_RESPONSES]]]), path)


@torch.inference_mode()
def _share_right(model: Generator, hidden: Dataset, data: Dataset) -> float:
    """The share of hidden labels that a generator imputes as they were recorded."""
    guess = []
    for rows, x, _ in hidden.batches(128):
        known = {name: hidden.parents[name][rows] for name in model.names}
        guess.append(model.impute(x, known)["effusion"])
    return (torch.cat(guess) == data.parents["effusion"]).double().mean().item()


def _answers(
    model: Generator, readers: Mapping[PredictorId, Predictor], rows: Dataset, data: Dataset
) -> pd.DataFrame:
    """How each predictor answers to sex and age, with the patients as the generator knows them."""
    said = _said(model, {member.name: one for member, one in readers.items()}, rows, data)
    given = {member: said[member.name] for member in readers}
    return study_predictions(given, replicates=2).frame()[[*KEYS, *_RESPONSES]]


def label_free_table() -> pd.DataFrame:
    """The claim ``label-free`` with recorded and with imputed labels, from the committed table.

    Returns:
        One row for each preset and source of the label: ``right``, ``patients``, ``predictors``,
        and for each attribute the correlation ``r_sex, r_age`` of the root of its ``S_var`` with
        the gap of scores over the predictors, and ``moved_sex, moved_age``, the largest change of
        that ``S_var`` against recorded labels, in per cent.

    Example:
        >>> label_free_table()["labels"].tolist()[:2]
        ['recorded', 'imputed by a classifier']
    """
    frame, rows = pd.read_csv(RESULTS / LABEL_FREE), []
    for (size, labels), own in frame.groupby(["preset", "labels"], sort=False):
        first = frame[(frame.preset == size) & (frame.labels == "recorded")].set_index(KEYS)
        about = own.iloc[0][["generator", "right", "patients"]].to_dict()
        row = {"preset": size, "labels": labels} | about | {"predictors": len(own)}
        own = own.set_index(KEYS)
        for name in ("sex", "age"):
            spread, score = own[f"S_var_{name}"], own[f"score_{name}"]
            moved = 100 * (spread / first[f"S_var_{name}"] - 1)
            row |= {f"r_{name}": (spread**0.5).corr(score)}
            row |= {f"moved_{name}": moved[moved.abs().idxmax()]}
        rows.append(row)
    return pd.DataFrame(rows)
