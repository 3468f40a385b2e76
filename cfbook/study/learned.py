"""What the experiments find with learned generators: small tables, written and read back.

Their predictions on every test set would be twice those of the oracle. So what the chapters need of
them is kept: the estimate of every statistic of every predictor, which suffices for tables,
correlations and claims; and how sound each generator is.
"""

from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path

import pandas as pd
from torch import Tensor

from cfbook.paths import DATA
from cfbook.study.claims import verdicts
from cfbook.study.cohorts import held_out, parts, phantom_cohort
from cfbook.study.observed import read_observed
from cfbook.study.presets import Preset, preset
from cfbook.study.recipes import DetailedRecipe, GeneratorRecipe, PredictorRecipe, probes
from cfbook.study.runs import (
    KEYS,
    SETTINGS,
    PredictorId,
    Run,
    all_runs,
)
from cfbook.study.statistics import Study
from cfbook.study.studies import study_run
from cfbook.theory.images import generator_noise
from cfchest.graph import CHEST, paper_grid
from cfchest.phantom.equations import fresh_detector
from cfcore.files import write_atomically
from cfcore.generator import Effect
from cfscm.soundness import soundness
from cfscm.soundness.baselines import Derived, Identity
from cfscm.soundness.leak import leak_table
from cfscm.soundness.support import support_table

RESULTS = DATA / "results"
_ESTIMATES, LABEL_FREE = "learned_estimates.csv", "label_free.csv"
SOUNDNESS, NOISE = "soundness.csv", "generator_noise.csv"
LEAK, SUPPORT = "leak.csv", "support.csv"
_WHERE = ["generator", "setting", "testset", "effect", "q"]

_Key = tuple[str, str, Effect]


def collect(runs: Iterable[Run], out: Path, *, folder: Path | None = None) -> Path:
    """Study runs of learned generators and write estimates of all statistics.

    Predictions are looked for in a folder first.
    """
    estimates = []
    for run in runs:
        key = (run.generator, run.setting, run.testset, run.effect)
        for q in ("uniform", "empirical") if run.is_main else ("uniform",):
            estimates.append(((*key, q), study_run(run, folder=folder, q=q, replicates=2)))
    return write_table(_estimates(estimates), out / _ESTIMATES)


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
        model, name = DetailedRecipe(preset, seed=seed).obtain(), f"detailed-{seed}"
        found = soundness(model, data, floor=Derived(truth, fresh_detector), **terms)
        tables[SOUNDNESS].append(found.assign(generator=name))
        found = generator_noise(model, more, audited, truth=truth, draws=draws)
        tables[NOISE].append(found.assign(generator=name))
    return [write_table(pd.concat(every), out / name) for name, every in tables.items()]


def collect_leak(preset: Preset, out: Path, *, patients: int = 2000) -> Path:
    """Probe the noise of generators, of the oracle, and the image itself, on test patients of C.

    Of each generator the first training is probed. The ``image`` is what a generator that takes it
    for the noise has; see :func:`.leak_table`. What a flow remembers of the parents themselves is
    not noise, and is not probed.
    """
    truth = phantom_cohort("C", preset).oracle
    models = {"learned-0": GeneratorRecipe(preset), "detailed-0": DetailedRecipe(preset)}
    made = {name: Derived(one.obtain(), _without_parents) for name, one in models.items()}
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
    made |= {f"detailed-{seed}": DetailedRecipe(preset, seed=seed).obtain() for seed in seeds}
    data = held_out("C", preset, "balanced").take(range(patients))
    real, reader = parts("C", preset)["test"], probes(preset)["effusion"].obtain()
    return write_table(support_table(made, data, real, paper_grid(), reader), out / SUPPORT)


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
        >>> list(found), found["detailed-0"].column("S_var", "basic").shape
        (['detailed-0', 'detailed-1'], (5, 1))
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
    """Every claim with learned generators, whose intervals are over trainings alone.

    Returns:
        Columns ``claim, setting, item, learned, learned verdict``: the mean over the generators,
        and the verdict of all of them, or ``"differ"``.
    """
    every = {run.generator for run in learned_runs(preset("book"))}
    judged = [verdicts(_studies_of(name, folder)) for name in sorted(every)]
    keys = ["claim", "setting", "item"]
    found = pd.concat(judged).groupby(keys, sort=False)
    said = found.verdict.agg(lambda some: some.iloc[0] if some.nunique() == 1 else "differ")
    both = {"learned": found.estimate.mean(), "learned verdict": said}
    return pd.DataFrame(both).reset_index()


def _studies_of(generator: str, folder: Path) -> dict[_Key, Study]:
    """What one learned generator found, and beside it what needs no generator."""
    found = {}
    for run in learned_runs(preset("book")):
        if run.generator == generator:
            own = learned_studies(run.setting, run.testset, effect=run.effect, folder=folder)
            found[run.setting, run.testset, run.effect] = own[generator]
    for run in all_runs(preset("book")):
        if run.is_main:
            found[run.setting, run.testset, "observed"] = read_observed(run)
    return found | {("C->C", "balanced", "hidden"): hidden_study()}


def hidden_study(labels: str = "imputed by a classifier") -> Study:
    """The responses of predictors where the generator is told imputed labels, in ``C->C``."""
    frame = pd.read_csv(RESULTS / LABEL_FREE).query("preset == 'book' and labels == @labels")
    return _as_study(frame[[*KEYS, "S_var_sex", "S_var_age"]])


def learned_runs(preset: Preset, seeds: Iterable[int] = range(2)) -> list[Run]:
    """The runs of learned generators: all on the test sets of the settings, the first on others.

    Those are the sets that share a shortcut, and the total effect in the first setting.
    """
    every = [run for seed in seeds for run in all_runs(preset, f"detailed-{seed}")]
    first = every[0].generator
    return [
        run
        for run in every
        if run.is_main
        or (run.generator == first and (run.effect == "direct" or run.setting == "C->C"))
    ]
