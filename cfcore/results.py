"""What the experiments find with learned generators, as small tables that come with the project.

The predictions of three generators on every test set would be three times those of the oracle. What
the chapters need of them is kept instead: the estimate of every statistic of every predictor, and
every claim with its interval.
"""

from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path

import pandas as pd

from cfcore.checks import InputError
from cfcore.claims import DESIGN, judge, read_design, verdict
from cfcore.files import write_atomically
from cfcore.generator import Effect
from cfcore.presets import Preset
from cfcore.settings import SETTINGS, Run
from cfcore.study import Study, study_run
from cfcore.tables import ROWS, labelled_rows

COMMITTED = Path(__file__).parent.parent / "data" / "results"
ESTIMATES, CLAIMS = "learned_estimates.csv", "learned_claims.csv"
DIGITS = 6

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
    for run in runs:
        key = (run.setting, run.testset, run.effect)
        studies.setdefault(run.generator, {})[key] = study_run(
            run, folder=folder, replicates=replicates
        )
    estimates = [
        study.frame().assign(generator=name, setting=key[0], testset=key[1], effect=key[2])
        for name, found in studies.items()
        for key, study in found.items()
    ]
    judged = [judge_known(found).assign(generator=name) for name, found in studies.items()]
    out.mkdir(parents=True, exist_ok=True)
    return [
        write_table(pd.concat(estimates), out / ESTIMATES),
        write_table(pd.concat(judged).drop(columns="by_seed"), out / CLAIMS),
    ]


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
    """Write a table as CSV, rounded, all or nothing."""
    text = StringIO()
    frame.round(DIGITS).to_csv(text, index=False)
    return write_atomically(path, text.getvalue().encode())


def learned_means(
    setting: str, testset: str, columns: Iterable[str], *, folder: Path = COMMITTED
) -> pd.DataFrame:
    """Statistics with learned generators: means over trainings and generators.

    Args:
        setting: The name of the setting.
        testset: The test set.
        columns: The statistics.
        folder: Where the tables are.

    Returns:
        A row for each predictor, in the order of the paper; no rows if nothing was found.
    """
    path = folder / ESTIMATES
    if not path.is_file():
        return pd.DataFrame(columns=list(columns))
    frame = pd.read_csv(path)
    frame = frame[(frame.setting == setting) & (frame.testset == testset)]
    means = (
        frame[frame.effect == "direct"].groupby(["family", "strength", "metric"]).estimate.mean()
    )
    wide = means.unstack("metric")
    rows = [kind for kind in ROWS if kind in wide.index]
    return labelled_rows([wide.loc[kind, list(columns)].tolist() for kind in rows], rows, columns)


def learned_claims(*, folder: Path = COMMITTED) -> pd.DataFrame:
    """Every claim with learned generators: the mean over generators, and all their intervals.

    Args:
        folder: Where the tables are.

    Returns:
        Columns ``claim, setting, item, learned, learned low, learned high, learned verdict``: the
        interval reaches from the lowest lower to the highest upper end of any generator.
    """
    frame = pd.read_csv(folder / CLAIMS, keep_default_na=True)
    keys = ["claim", "setting", "item"]
    found = frame.groupby(keys, sort=False).agg(
        learned=("estimate", "mean"),
        low=("low", "min"),
        high=("high", "max"),
        threshold=("threshold", "first"),
        direction=("direction", "first"),
    )
    found["learned verdict"] = [
        verdict(row.low, row.high, row.threshold, above=row.direction == "above")
        for row in found.itertuples()
    ]
    names = {"low": "learned low", "high": "learned high"}
    return found.drop(columns=["threshold", "direction"]).rename(columns=names).reset_index()


def main_runs(preset: Preset, generators: Iterable[str]) -> list[Run]:
    """The runs of several generators on the test sets of the settings."""
    return [
        Run(preset, name, setting.testset, generator=generator)
        for generator in generators
        for name, setting in SETTINGS.items()
    ]
