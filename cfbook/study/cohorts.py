"""The test sets of the experiments, all drawn from the test part of a hospital."""

from typing import Literal, get_args

import numpy as np
import pandas as pd

from cfbook.study.recipes import Preset, parts
from cfchest.balance import balanced
from cfchest.cohorts import Seed, drop_age, drop_sex, natural
from cfchest.data import Dataset
from cfcore.checks import InputError

Kind = Literal["balanced", "natural", "shares-sex", "shares-age"]

SHARED = 0.9  # the strength of a bias that a test set shares with training
TOLERANCE = 0.01  # how far the prevalence of a balanced set may be from that of training


def test_set(hospital: str, preset: Preset, kind: Kind) -> Dataset:
    """A test set of a hospital.

    ================ ==========================================================================
    kind             images
    ================ ==========================================================================
    ``"balanced"``   as many women as men, and the training prevalence in each sex and age group
    ``"natural"``    the hospital as it is, as in the paper's setting 3
    ``"shares-sex"`` biased by sex, as the training sets of the family ``"sex"`` are
    ``"shares-age"`` biased by age, as those of the family ``"age"`` are
    ================ ==========================================================================

    All have as many images as the balanced one, where there are so many. Of the several images of
    a study one is used, as the paper counts studies.

    Args:
        hospital: Where the patients are, ``"C"`` or ``"M"``.
        preset: The sizes: the balanced set has at most ``preset.patients`` images.
        kind: Which test set.

    Example:
        >>> from cfbook.study.recipes import preset
        >>> data = test_set("C", preset("smoke"), "balanced")
        >>> len(data), data.table.groupby("sex").effusion.mean().round(3).tolist()
        (200, [0.32, 0.32])
    """
    if kind not in get_args(Kind):
        raise InputError(f"kind must be one of {', '.join(get_args(Kind))}, not {kind!r}")
    train, _, test = parts(hospital, preset).values()
    # The phantom has one image of each study.
    per = None if preset.folders is None else "study"
    table = balanced(
        test.table,
        seed=preset.cohort,
        prevalence=train.table.effusion.mean(),
        tolerance=TOLERANCE,
        per=per,
        n=preset.patients,
    )
    if kind == "balanced":
        return test.select(table)
    rng = np.random.default_rng(preset.cohort)
    pool = natural(population(test.table, kind, seed=rng), seed=rng, per=per)
    return test.select(natural(pool, seed=rng, n=min(len(table), len(pool))))


test_set.__test__ = False  # pytest goes by the name


def population(table: pd.DataFrame, kind: Kind, *, seed: Seed) -> pd.DataFrame:
    """Those of a test part from whom a test set is drawn: all, or those whom a bias leaves."""
    if kind == "shares-sex":
        return drop_sex(table, SHARED, seed=seed)
    if kind == "shares-age":
        return drop_age(table, SHARED, seed=seed)
    return table
