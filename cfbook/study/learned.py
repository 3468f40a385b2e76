"""What the experiments find with learned generators: small tables, written and read back.

The predictions of three generators on every test set would be three times those of the oracle. So
what the chapters need of them is kept: the estimate of every statistic of every predictor, which
suffices for tables and correlations; every claim with its interval; how sound each generator is.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from itertools import product
from pathlib import Path

import pandas as pd

from cfbook.paths import DATA
from cfbook.study.claims import TIED, read_design, verdict, verdicts
from cfbook.study.cohorts import held_out, parts, phantom_cohort
from cfbook.study.presets import Preset
from cfbook.study.recipes import GeneratorRecipe, PredictorRecipe, probes
from cfbook.study.runs import SETTINGS, PredictorId, Run, all_runs, find_generator, offsets
from cfbook.study.statistics import KEYS, Study, empirical, study_predictions, study_run
from cfbook.theory.images import generator_noise
from cfchest.graph import CHEST, paper_grid
from cfchest.phantom.equations import fresh_detector
from cfcore.checks import InputError
from cfcore.files import write_atomically
from cfcore.generator import Effect
from cfcore.marginalise import marginalise
from cfcore.predictions import Predictions
from cfscm.model import DeepSCM
from cfscm.networks import ImageNetwork
from cfscm.soundness import soundness
from cfscm.soundness.baselines import Derived

TRIED = ("sex", "race", "age", "effusion")  # on which generators are made to intervene
RESULTS = DATA / "results"
ESTIMATES, CLAIMS = "learned_estimates.csv", "learned_claims.csv"
SOUNDNESS, NOISE = "soundness.csv", "generator_noise.csv"
READINGS = "generator_readings.csv"
WHERE = ["generator", "setting", "testset", "effect", "q"]

Key = tuple[str, str, Effect]


def collect(
    runs: Iterable[Run], out: Path, *, folder: Path | None = None, replicates: int = 1000
) -> list[Path]:
    """Study runs of learned generators and write estimates and claims.

    Args:
        runs: The runs; those of one generator need not be all, claims about others are left out.
        out: The folder to write to.
        folder: Where predictions are looked for first.
        replicates: How often to resample the patients.
    """
    studies: dict[str, dict[Key, Study]] = {}
    estimates = []
    for run in runs:
        key = (run.setting, run.testset, run.effect)
        found = study_run(run, folder=folder, replicates=replicates)
        studies.setdefault(run.generator, {})[key] = found
        estimates.append(((run.generator, *key, "uniform"), found))
        if run.is_main:
            other = study_run(run, folder=folder, q="empirical", replicates=2)
            estimates.append(((run.generator, *key, "empirical"), other))
    judged = [judge_known(found).assign(generator=name) for name, found in studies.items()]
    return [
        write_table(_estimates(estimates), out / ESTIMATES),
        write_table(pd.concat(judged).drop(columns="by_seed"), out / CLAIMS),
    ]


def collect_kept(preset: Preset, out: Path, *, folder: Path = PredictorRecipe.committed) -> Path:
    """Add the empirical q to a table of estimates, with the weights that come with the project.

    All of :func:`collect` needs every predictor, and a training on another machine gives another
    predictor. This needs none: it takes the first generator and the predictors that are kept, and
    leaves out settings of which there are none.

    Args:
        preset: The sizes.
        out: The folder of the table, which is written anew.
        folder: Where predictors are kept.
    """
    frame, found = pd.read_csv(out / ESTIMATES), []
    for run in all_runs(preset, "learned-0"):
        if run.is_main and (given := _kept_predictions(run, folder)):
            key = (run.generator, run.setting, run.testset, run.effect, "empirical")
            found.append((key, study_predictions(empirical(given), replicates=2)))
    both = pd.concat([frame, _estimates(found)])
    return write_table(both.drop_duplicates([*WHERE, *KEYS], keep="first"), out / ESTIMATES)


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


def audited_readers(preset: Preset) -> dict[str, ImageNetwork]:
    """The classifiers of effusion through which counterfactuals are compared with the truth."""
    return {
        "basic": PredictorRecipe(preset).obtain(),
        "strong": probes(preset)["effusion"].obtain(),
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
        preset: The sizes.
        seeds: The seeds of the generators.
        out: The folder to write to.
        patients: How many test patients, none of whom was seen in training.
        noise_patients: How many of them to abduct several times.
        draws: Draws of each patient's noise, for the generators' own noise.
    """
    test, truth = parts("C", preset)["test"], phantom_cohort("C", preset).oracle
    data, noise_data = test.take(range(patients)), test.take(range(noise_patients))
    readers = {name: probe.obtain() for name, probe in probes(preset).items()}
    audited, tried, noisy = audited_readers(preset), [], []
    for seed in seeds:
        model = GeneratorRecipe(preset, seed=seed).obtain()
        table = soundness(
            model,
            data,
            graph=CHEST,
            classifiers=readers,
            audited=audited,
            truth=truth,
            floor=Derived(truth, fresh_detector),
            interventions=TRIED,
        )
        tried.append(table.assign(generator=f"learned-{seed}"))
        noise = generator_noise(model, noise_data, audited, truth=truth, draws=draws)
        noisy.append(noise.assign(generator=f"learned-{seed}"))
    return [
        write_table(pd.concat(tried), out / SOUNDNESS),
        write_table(pd.concat(noisy), out / NOISE),
    ]


def collect_readings(
    preset: Preset, seeds: Iterable[int], out: Path, *, patients: int = 300
) -> Path:
    """Try what may be held as the noise of an image, on validation patients of hospital C.

    ``exogenous`` holds the code itself, ``regressed`` what the parents do not say of it: the same
    trainings, read in two ways. ``conditional`` has a prior of its own, learned in training.

    Args:
        preset: The sizes.
        seeds: The seeds of the generators.
        out: The folder to write to.
        patients: How many validation patients.
    """
    data, audited = parts("C", preset)["validation"].take(range(patients)), audited_readers(preset)
    tried = []
    for seed, reading in product(seeds, ("exogenous", "regressed", "conditional")):
        table = soundness(
            _read_as(reading, preset, seed),
            data,
            graph=CHEST,
            classifiers={},
            audited=audited,
            truth=phantom_cohort("C", preset).oracle,
            interventions=TRIED,
            axioms=["faithfulness"],
            effects=["direct"],
            beside=["identity"],
        )
        tried.append(table.assign(reading=reading, seed=seed, patients=patients))
    return write_table(pd.concat(tried), out / READINGS)


def _read_as(reading: str, preset: Preset, seed: int) -> DeepSCM:
    """The generator of a seed with one reading of the noise of an image."""
    prior = "conditional" if reading == "conditional" else "regressed"
    made = replace(preset, image=replace(preset.image, prior=prior))
    model = GeneratorRecipe(made, seed=seed).obtain(progress=True)
    if reading == "exogenous":
        model.image.drift.zero_()
    return model


def judge_known(studies: Mapping[Key, Study]) -> pd.DataFrame:
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
    """Studies as one table: a row for each predictor, a column for each statistic.

    Args:
        found: Each study with what it is of: generator, setting, test set, effect and q.
    """
    frames = []
    for where, one in found:
        frames.append(one.frame().assign(**dict(zip(WHERE, where, strict=True))))
    table = pd.concat(frames)
    return table[[*WHERE, *KEYS, *table.columns.difference([*WHERE, *KEYS], sort=False)]]


def learned_studies(
    setting: str,
    testset: str | None = None,
    *,
    effect: Effect = "direct",
    q: str = "uniform",
    folder: Path = RESULTS,
) -> dict[str, Study]:
    """What each learned generator found on one test set: estimates without replicates.

    Args:
        setting: The name of the setting.
        testset: The test set; by default that of the setting.
        effect: ``"direct"`` or ``"total"``.
        q: ``"uniform"`` or ``"empirical"``.
        folder: Where the table is.

    Returns:
        By the name of the generator; none if there is no table, or nothing of this in it.

    Example:
        >>> found = learned_studies("C->C")
        >>> list(found), found["learned-0"].column("S_var", "basic").shape
        (['learned-0', 'learned-1', 'learned-2'], (3, 1))
    """
    path = folder / ESTIMATES
    if not path.is_file():
        return {}
    frame = pd.read_csv(path)
    kept = [setting, testset or SETTINGS[setting].testset, effect, q]
    frame = frame[(frame[WHERE[1:]] == kept).all(axis=1)]
    return {str(name): _as_study(rows) for name, rows in frame.groupby("generator", sort=False)}


def _as_study(rows: pd.DataFrame) -> Study:
    """Rows of the table of estimates as a study."""
    members = tuple(
        PredictorId(str(family), float(strength), int(seed))
        for family, strength, seed in rows[KEYS].itertuples(index=False)
    )
    names = rows.columns.difference([*WHERE, *KEYS], sort=False)
    return Study(members, {name: rows[[name]].to_numpy(dtype=float) for name in names})


def learned_claims(*, folder: Path = RESULTS) -> pd.DataFrame:
    """Every claim with learned generators: the mean over generators, and all their intervals.

    What the intervals are compared with is read from the design, not from the table. The intervals
    of the table that comes with the project are of an earlier rule, which resampled trainings: the
    predictions that they rest on were not kept.

    Args:
        folder: Where the tables are.

    Returns:
        Columns ``claim, setting, item, learned, learned low, learned high, learned verdict``: the
        interval reaches from the lowest lower to the highest upper end of any generator.
    """
    frame = pd.read_csv(folder / CLAIMS)
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
    runs = []
    for number, seed in enumerate(seeds):
        every = list(all_runs(preset, f"learned-{seed}"))
        runs += [run for run in every if run.testset == run.where.testset] if number else every
    return runs
