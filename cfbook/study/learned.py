"""What the experiments find with learned generators: small tables, written and read back.

The predictions of three generators on every test set would be three times those of the oracle. So
what the chapters need of them is kept: the estimate of every statistic of every predictor, which
suffices for tables and correlations; every claim with its interval; how sound each generator is.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from itertools import product
from pathlib import Path

import pandas as pd
from torch import Tensor

from cfbook.paths import DATA
from cfbook.study.claims import TIED, read_design, verdict, verdicts
from cfbook.study.cohorts import held_out, parts, phantom_cohort
from cfbook.study.presets import Preset
from cfbook.study.recipes import DESIGNS, GeneratorRecipe, PredictorRecipe, probes
from cfbook.study.runs import (
    KEYS,
    SETTINGS,
    PredictorId,
    Run,
    all_runs,
    find_generator,
    offsets,
)
from cfbook.study.statistics import Study, reweighted, study_predictions, study_run
from cfbook.theory.images import generator_noise
from cfchest.graph import CHEST, paper_grid
from cfchest.phantom.equations import fresh_detector
from cfcore.checks import InputError
from cfcore.files import write_atomically
from cfcore.generator import Effect
from cfcore.marginalise import marginalise
from cfcore.predictions import Predictions
from cfscm.model import DeepSCM
from cfscm.soundness import soundness
from cfscm.soundness.baselines import Derived, Identity
from cfscm.soundness.leak import leak_table
from cfscm.soundness.support import support_table

RESULTS = DATA / "results"
_ESTIMATES, _CLAIMS = "learned_estimates.csv", "learned_claims.csv"
SOUNDNESS, NOISE = "soundness.csv", "generator_noise.csv"
_READINGS, LEAK, SUPPORT = "generator_readings.csv", "leak.csv", "support.csv"
_WHERE = ["generator", "setting", "testset", "effect", "q"]

_Key = tuple[str, str, Effect]


def collect(
    runs: Iterable[Run], out: Path, *, folder: Path | None = None, replicates: int = 1000
) -> list[Path]:
    """Study runs of learned generators and write estimates and claims.

    The runs of one generator need not be all: claims about others are left out. Predictions are
    looked for in a folder first.
    """
    studies: dict[str, dict[_Key, Study]] = defaultdict(dict)
    estimates = []
    for run in runs:
        key = (run.setting, run.testset, run.effect)
        found = study_run(run, folder=folder, replicates=replicates)
        studies[run.generator][key] = found
        estimates.append(((run.generator, *key, "uniform"), found))
        if run.is_main:
            other = study_run(run, folder=folder, q="empirical", replicates=2)
            estimates.append(((run.generator, *key, "empirical"), other))
    judged = [_judge_known(found).assign(generator=name) for name, found in studies.items()]
    claims = pd.concat(judged).drop(columns="by_seed")
    tables = {_ESTIMATES: _estimates(estimates), _CLAIMS: claims}
    return [write_table(table, out / name) for name, table in tables.items()]


def collect_kept(preset: Preset, out: Path, *, folder: Path = PredictorRecipe.committed) -> Path:
    """Add the empirical q to a table of estimates, with the weights that come with the project.

    All of :func:`collect` needs every predictor, and a training on another machine gives another
    predictor. This needs none: it takes the first generator and the predictors that are kept in a
    folder, and leaves out settings of which there are none.
    """
    frame, found = pd.read_csv(out / _ESTIMATES), []
    for run in all_runs(preset, "learned-0"):
        if run.is_main and (given := _kept_predictions(run, folder)):
            key = (run.generator, run.setting, run.testset, run.effect, "empirical")
            found.append((key, study_predictions(reweighted(given, "empirical"), replicates=2)))
    both = pd.concat([frame, _estimates(found)])
    return write_table(both.drop_duplicates([*_WHERE, *KEYS], keep="first"), out / _ESTIMATES)


def _kept_predictions(run: Run, folder: Path) -> dict[PredictorId, Predictions]:
    """What the predictors of a run say whose weights are in a folder, with their offsets."""
    made = {m: recipe for m, recipe in run.recipes().items() if (folder / recipe.file).is_file()}
    if not made:
        return {}
    readers = {member.name: recipe.obtain(committed=folder) for member, recipe in made.items()}
    data = held_out(run.where.test, run.preset, run.testset)
    said = marginalise(find_generator(run), readers, data, paper_grid(), progress=True)
    found = {member: said[member.name] for member in made}
    return found | offsets(found)


def trial_terms(preset: Preset) -> dict[str, object]:
    """How generators of a preset are tried: options of :func:`cfscm.soundness.measure.soundness`.

    Counterfactuals are compared with the truth through the eyes of two classifiers of effusion.
    """
    strong = probes(preset)["effusion"].obtain()
    return {
        "graph": CHEST,
        "audited": {"basic": PredictorRecipe(preset).obtain(), "strong": strong},
        "truth": phantom_cohort("C", preset).oracle,
        "interventions": ("sex", "race", "age", "effusion"),
    }


def collect_soundness(
    preset: Preset,
    seeds: Iterable[int],
    out: Path,
    *,
    patients: int = 300,
    noise_patients: int = 500,
    draws: int = 8,
) -> list[Path]:
    """Try the generators of a preset on test patients of hospital C, and keep the tables.

    Args:
        patients: How many test patients, none of whom was seen in training.
        noise_patients: How many of them to abduct several times, for the generators' own noise.
        draws: How often.
    """
    test, terms = parts("C", preset)["test"], trial_terms(preset)
    data, more = test.take(range(patients)), test.take(range(noise_patients))
    terms["classifiers"] = {name: probe.obtain() for name, probe in probes(preset).items()}
    truth, audited, tables = terms["truth"], terms["audited"], {SOUNDNESS: [], NOISE: []}
    for seed in seeds:
        model, name = GeneratorRecipe(preset, seed=seed).obtain(), f"learned-{seed}"
        found = soundness(model, data, floor=Derived(truth, fresh_detector), **terms)
        tables[SOUNDNESS].append(found.assign(generator=name))
        found = generator_noise(model, more, audited, truth=truth, draws=draws)
        tables[NOISE].append(found.assign(generator=name))
    return [write_table(pd.concat(every), out / name) for name, every in tables.items()]


def collect_readings(
    preset: Preset, seeds: Iterable[int], out: Path, *, patients: int = 300
) -> Path:
    """Try what may be held as the noise of an image, on validation patients of hospital C.

    ``exogenous`` holds the code itself, ``regressed`` what the parents do not say of it: the same
    trainings, read in two ways. ``conditional`` has a prior of its own, learned in training.
    """
    data, terms = parts("C", preset)["validation"].take(range(patients)), trial_terms(preset)
    terms |= {"axioms": ["faithfulness"], "effects": ["direct"], "beside": ["identity"]}
    tried = []
    for seed, reading in product(seeds, ("exogenous", "regressed", "conditional")):
        table = soundness(_read_as(reading, preset, seed), data, classifiers={}, **terms)
        tried.append(table.assign(reading=reading, seed=seed, patients=patients))
    return write_table(pd.concat(tried), out / _READINGS)


def collect_leak(preset: Preset, seeds: Iterable[int], out: Path, *, patients: int = 2000) -> Path:
    """Probe the noise of generators, of the oracle, and the image itself, on test patients of C.

    The ``image`` is what a generator that takes it for the noise has; see :func:`.leak_table`. What
    a flow remembers of the parents themselves is not noise, and is not probed.
    """
    truth = phantom_cohort("C", preset).oracle
    made = {
        f"{name}-{seed}": Derived(DESIGNS[name](preset, seed=seed).obtain(), _without_parents)
        for seed, name in product(seeds, ("learned", "detailed"))
    }
    made |= {"oracle": truth, "image": Identity(truth)}
    data = parts("C", preset)["test"].take(range(patients))
    return write_table(leak_table(made, data, graph=CHEST), out / LEAK)


def _without_parents(noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: leaf for name, leaf in noise.items() if name != "own"}


def collect_support(
    preset: Preset, seeds: Iterable[int], out: Path, *, patients: int = 300
) -> Path:
    """How near counterfactuals of balanced patients of C are to real images of each world.

    The real images are those of the test part. Who compares them reads effusion, and was trained on
    patients of its own.
    """
    made = {"oracle": phantom_cohort("C", preset).oracle}
    made |= {f"learned-{seed}": GeneratorRecipe(preset, seed=seed).obtain() for seed in seeds}
    data = held_out("C", preset, "balanced").take(range(patients))
    real, reader = parts("C", preset)["test"], probes(preset)["effusion"].obtain()
    return write_table(support_table(made, data, real, paper_grid(), reader), out / SUPPORT)


def _read_as(reading: str, preset: Preset, seed: int) -> DeepSCM:
    """The generator of a seed with one reading of the noise of an image."""
    prior = "conditional" if reading == "conditional" else "regressed"
    made = replace(preset, image=replace(preset.image, prior=prior))
    model = GeneratorRecipe(made, seed=seed).obtain(progress=True)
    if reading == "exogenous":
        model.image.drift.zero_()
    return model


def _judge_known(studies: Mapping[_Key, Study]) -> pd.DataFrame:
    """Judge the claims about which there are studies, and leave the others out."""
    known = []
    for claim in read_design()["claims"]:
        with suppress(KeyError):
            known.append(verdicts(studies, only=claim["id"]))
    if not known:
        raise InputError("there are no studies about any claim")
    return pd.concat(known)


def write_table(frame: pd.DataFrame, path: Path) -> Path:
    """Write a table as CSV, all or nothing, to six significant digits: 1e-12 stays what it is."""
    text = StringIO()
    frame.to_csv(text, index=False, float_format="%.6g")
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomically(path, text.getvalue().encode())


def _estimates(found: Iterable[tuple[tuple[str, ...], Study]]) -> pd.DataFrame:
    """Studies, with what they are of, as a table of predictors (rows) and statistics (columns)."""
    frames = [one.frame().assign(**dict(zip(_WHERE, of, strict=True))) for of, one in found]
    table, about = pd.concat(frames), [*_WHERE, *KEYS]
    return table[[*about, *table.columns.difference(about, sort=False)]]


def learned_studies(
    setting: str,
    testset: str | None = None,
    *,
    effect: Effect = "direct",
    q: str = "uniform",
    folder: Path = RESULTS,
) -> dict[str, Study]:
    """What each learned generator found on one test set: estimates without replicates.

    The test set is by default that of the setting. There are none if there is no table in the
    folder, or nothing of this in it.

    Example:
        >>> found = learned_studies("C->C")
        >>> list(found), found["learned-0"].column("S_var", "basic").shape
        (['learned-0', 'learned-1', 'learned-2'], (3, 1))
    """
    if not (folder / _ESTIMATES).is_file():
        return {}
    frame = pd.read_csv(folder / _ESTIMATES)
    kept = [setting, testset or SETTINGS[setting].testset, effect, q]
    frame = frame[(frame[_WHERE[1:]] == kept).all(axis=1)]
    return {str(name): _as_study(rows) for name, rows in frame.groupby("generator", sort=False)}


def _as_study(rows: pd.DataFrame) -> Study:
    """Rows of the table of estimates as a study."""
    members = tuple(PredictorId(*each) for each in rows[KEYS].itertuples(index=False))
    names = rows.columns.difference([*_WHERE, *KEYS], sort=False)
    return Study(members, {name: rows[[name]].to_numpy(dtype=float) for name in names})


def learned_claims(*, folder: Path = RESULTS) -> pd.DataFrame:
    """Every claim with learned generators: the mean over generators, and all their intervals.

    What the intervals are compared with is read from the design, not from the table. The intervals
    of the table that comes with the project are of an earlier rule, which resampled trainings: the
    predictions that they rest on were not kept.

    Returns:
        Columns ``claim, setting, item, learned, learned low, learned high, learned verdict``: the
        interval reaches from the lowest lower to the highest upper end of any generator.
    """
    frame = pd.read_csv(folder / _CLAIMS)
    claims = {claim["id"]: claim for claim in read_design()["claims"]}
    keys, ends = ["claim", "setting", "item"], ["learned low", "learned high"]
    found = frame.assign(tied=frame.verdict == TIED).groupby(keys, sort=False)
    found = found.agg({"estimate": "mean", "low": "min", "high": "max", "tied": "all"})
    found = found.set_axis(["learned", *ends, "tied"], axis=1).reset_index()
    found["learned verdict"] = [
        verdict(claims[claim], item, low, high, tied=tied)
        for claim, item, low, high, tied in found[["claim", "item", *ends, "tied"]].to_numpy()
    ]
    return found.drop(columns="tied")


def learned_runs(preset: Preset, seeds: Iterable[int]) -> list[Run]:
    """The runs of learned generators: the first on all test sets, the others on the settings'."""
    runs = [run for seed in seeds for run in all_runs(preset, f"learned-{seed}")]
    first = runs[0].generator
    return [run for run in runs if first == run.generator or run.testset == run.where.testset]
