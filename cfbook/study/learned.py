"""What was found with learned generators, read back from the table that comes with the project.

The predictions of three generators on every test set would be three times those of the oracle. The
estimate of every statistic of every predictor is small, and suffices for tables and correlations;
intervals need the predictions, and are kept of the claims only (:mod:`cfbook.study.results`).
"""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from cfbook.paths import DATA
from cfbook.study.runs import SETTINGS, Member
from cfbook.study.statistics import KEYS, Study
from cfcore.generator import Effect

RESULTS = DATA / "results"
ESTIMATES = "learned_estimates.csv"
WHERE = ["generator", "setting", "testset", "effect", "q"]


def estimates_table(found: Iterable[tuple[tuple[str, ...], Study]]) -> pd.DataFrame:
    """Studies as one table: a row for each predictor, a column for each statistic.

    Args:
        found: Each study with what it is of: generator, setting, test set, effect and q.
    """
    frames = []
    for where, study in found:
        wide = study.frame().set_index([*KEYS, "metric"]).estimate.unstack("metric")
        members = pd.MultiIndex.from_tuples([(m.family, m.strength, m.seed) for m in study.members])
        wide = wide.loc[members, list(study.values)].rename_axis(KEYS).reset_index()
        frames.append(wide.assign(**dict(zip(WHERE, where, strict=True))))
    table = pd.concat(frames)
    return table[[*WHERE, *KEYS, *(name for name in table if name not in {*WHERE, *KEYS})]]


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
    kept = {"setting": setting, "effect": effect, "q": q}
    kept["testset"] = testset or SETTINGS[setting].testset
    for name, value in kept.items():
        frame = frame[frame[name] == value]
    return {str(name): as_study(rows) for name, rows in frame.groupby("generator", sort=False)}


def as_study(rows: pd.DataFrame) -> Study:
    """Rows of the table of estimates as a study."""
    members = tuple(
        Member(str(family), float(strength), int(seed))
        for family, strength, seed in rows[KEYS].itertuples(index=False)
    )
    names = [name for name in rows if name not in {*WHERE, *KEYS}]
    return Study(members, {name: rows[[name]].to_numpy(dtype=float) for name in names})
