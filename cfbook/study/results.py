"""What the experiments find with learned generators, written as small tables.

What the chapters need of them is kept: the estimate of every statistic of every predictor
(:mod:`cfbook.study.learned` reads it), every claim with its interval, and how sound each
generator is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pandas as pd

from cfbook.study.claims import judge
from cfbook.study.cohorts import test_set
from cfbook.study.design import DESIGN, TIED, read_design, reported
from cfbook.study.generators import GeneratorRecipe, obtain_generator
from cfbook.study.learned import ESTIMATES, WHERE, estimates_table
from cfbook.study.learned import RESULTS as COMMITTED
from cfbook.study.presets import Preset
from cfbook.study.probes import judges, obtain_judge
from cfbook.study.recipes import COMMITTED as WEIGHTS
from cfbook.study.recipes import Recipe, obtain, parts
from cfbook.study.recipes import patients as everyone
from cfbook.study.runs import SETTINGS, Member, Run, all_runs, find_generator, offsets
from cfbook.study.statistics import KEYS, Study, empirical, study, study_run
from cfbook.theory.noise import generator_noise
from cfchest.graph import CHEST, paper_grid
from cfchest.phantom.equations import fresh_detector
from cfcore.checks import InputError
from cfcore.files import write_atomically
from cfcore.generator import Effect
from cfcore.marginalise import marginalise
from cfcore.predictions import Predictions
from cfscm.model import DeepSCM
from cfscm.soundness import soundness
from cfscm.soundness.baselines import Derived

TRIED = ("sex", "race", "age", "effusion")  # on which generators are made to intervene
CLAIMS, SOUNDNESS, NOISE = "learned_claims.csv", "soundness.csv", "generator_noise.csv"
READINGS = "generator_readings.csv"
DIGITS = 6  # significant

Key = tuple[str, str, Effect]


def collect(
    runs: Iterable[Run], out: Path, *, folder: Path | None = None, replicates: int = 1000
) -> list[Path]:
    """Study runs of learned generators and keep what the chapters need.

    Args:
        runs: The runs; those of one generator need not be all, claims about others are left out.
        out: The folder to write to.
        folder: Where predictions are looked for first.
        replicates: How often to resample the patients.

    Returns:
        The two files that were written.
    """
    studies: dict[str, dict[Key, Study]] = {}
    estimates = []
    for run in runs:
        key = (run.setting, run.testset, run.effect)
        found = study_run(run, folder=folder, replicates=replicates)
        studies.setdefault(run.generator, {})[key] = found
        estimates.append(((run.generator, *key, "uniform"), found))
        if is_main(run):
            other = study_run(run, folder=folder, q="empirical", replicates=2)
            estimates.append(((run.generator, *key, "empirical"), other))
    judged = [judge_known(found).assign(generator=name) for name, found in studies.items()]
    out.mkdir(parents=True, exist_ok=True)
    return [
        write_table(estimates_table(estimates), out / ESTIMATES),
        write_table(pd.concat(judged).drop(columns="by_seed"), out / CLAIMS),
    ]


def collect_kept(preset: Preset, out: Path, *, folder: Path = WEIGHTS) -> Path:
    """Add the empirical q to a table of estimates, with the weights that come with the project.

    All of :func:`collect` needs every predictor, and a training on another machine gives another
    predictor. This needs none: it takes the first generator and the predictors that are kept, and
    leaves out settings of which there are none.

    Args:
        preset: The sizes.
        out: The folder of the table.
        folder: Where predictors are kept.

    Returns:
        The table, which was written anew.
    """
    frame, found = pd.read_csv(out / ESTIMATES), []
    for run in filter(is_main, all_runs(preset, "learned-0")):
        if given := kept_predictions(run, folder):
            key = (run.generator, run.setting, run.testset, run.effect, "empirical")
            found.append((key, study(empirical(given), replicates=2)))
    rows = estimates_table(found)
    both = pd.concat([frame, rows]).drop_duplicates([*WHERE, *KEYS], keep="first")
    return write_table(both, out / ESTIMATES)


def kept_predictions(run: Run, folder: Path) -> dict[Member, Predictions]:
    """What the predictors of a run say whose weights are in a folder, with their offsets."""
    made = {m: recipe for m, recipe in run.recipes().items() if (folder / recipe.file).is_file()}
    if not made:
        return {}
    readers = {member.name: obtain(recipe, committed=folder) for member, recipe in made.items()}
    data = test_set(SETTINGS[run.setting].test, run.preset, run.testset)
    said = marginalise(find_generator(run), readers, data, paper_grid(), progress=True)
    found = {member: said[member.name] for member in made}
    return found | offsets(found)


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

    Returns:
        The two files that were written.
    """
    test = parts("C", preset)["test"]
    data, noise_data = test.take(range(patients)), test.take(range(noise_patients))
    truth = everyone("C", preset).oracle
    readers = {name: obtain_judge(judge) for name, judge in judges(preset).items()}
    audited = {"basic": obtain(Recipe(preset)), "strong": readers["effusion"]}
    tried, noisy = [], []
    for seed in seeds:
        model = obtain_generator(GeneratorRecipe(preset, seed=seed))
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
    out.mkdir(parents=True, exist_ok=True)
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

    Returns:
        The file that was written.
    """
    data = parts("C", preset)["validation"].take(range(patients))
    strong = obtain_judge(judges(preset)["effusion"])
    audited = {"basic": obtain(Recipe(preset)), "strong": strong}
    tried = []
    for seed in seeds:
        for reading in ("exogenous", "regressed", "conditional"):
            table = soundness(
                read_as(reading, preset, seed),
                data,
                graph=CHEST,
                classifiers={},
                audited=audited,
                truth=everyone("C", preset).oracle,
                interventions=TRIED,
                axioms=["faithfulness"],
                effects=["direct"],
                beside=["identity"],
            )
            tried.append(table.assign(reading=reading, seed=seed, patients=patients))
    out.mkdir(parents=True, exist_ok=True)
    return write_table(pd.concat(tried), out / READINGS)


def read_as(reading: str, preset: Preset, seed: int) -> DeepSCM:
    """The generator of a seed with one reading of the noise of an image."""
    prior = "conditional" if reading == "conditional" else "regressed"
    made = replace(preset, image=replace(preset.image, prior=prior))
    model = obtain_generator(GeneratorRecipe(made, seed=seed), progress=True)
    if reading == "exogenous":
        model.image.drift.zero_()
    return model


def judge_known(studies: Mapping[Key, Study], design: Path = DESIGN) -> pd.DataFrame:
    """Judge the claims about which there are studies, and leave the others out."""
    known = []
    for claim in read_design(design)["claims"]:
        try:
            known.append(judge(studies, design=design, only=claim["id"]))
        except KeyError:
            continue
    if not known:
        raise InputError("there are no studies about any claim")
    return pd.concat(known)


def write_table(frame: pd.DataFrame, path: Path) -> Path:
    """Write a table as CSV, all or nothing, to six significant digits: 1e-12 stays what it is."""
    text = StringIO()
    frame.to_csv(text, index=False, float_format=f"%.{DIGITS}g")
    return write_atomically(path, text.getvalue().encode())


def learned_claims(*, folder: Path = COMMITTED, design: Path = DESIGN) -> pd.DataFrame:
    """Every claim with learned generators: the mean over generators, and all their intervals.

    What the intervals are compared with is read from the design, not from the table. The intervals
    of the table that comes with the project are of an earlier rule, which resampled trainings: the
    predictions that they rest on were not kept.

    Args:
        folder: Where the tables are.
        design: The file of the design.

    Returns:
        Columns ``claim, setting, item, learned, learned low, learned high, learned verdict``: the
        interval reaches from the lowest lower to the highest upper end of any generator.
    """
    frame = pd.read_csv(folder / CLAIMS, keep_default_na=True)
    claims = {claim["id"]: claim for claim in read_design(design)["claims"]}
    keys, ends = ["claim", "setting", "item"], ["learned low", "learned high"]
    found = frame.assign(tied=frame.verdict == TIED).groupby(keys, sort=False)
    found = found.agg({"estimate": "mean", "low": "min", "high": "max", "tied": "all"})
    found = found.set_axis(["learned", *ends, "tied"], axis=1).reset_index()
    found["learned verdict"] = [
        reported(claims[claim], item, low, high, tied=tied)
        for claim, item, low, high, tied in found[["claim", "item", *ends, "tied"]].to_numpy()
    ]
    return found.drop(columns="tied")


def learned_runs(preset: Preset, seeds: Iterable[int]) -> list[Run]:
    """The runs of learned generators: the first on all test sets, the others on the settings'."""
    runs = []
    for number, seed in enumerate(seeds):
        every = list(all_runs(preset, f"learned-{seed}"))
        own = [run for run in every if run.testset == SETTINGS[run.setting].testset]
        runs += own if number else every
    return runs


def is_main(run: Run) -> bool:
    """Whether a run is of the direct effect on the test set of its setting."""
    return run.testset == SETTINGS[run.setting].testset and run.effect == "direct"
