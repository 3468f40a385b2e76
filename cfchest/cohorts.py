r"""Who is in: splits, the paper's test sets, and training sets with a bias put in on purpose.

Every function takes a ``table`` of :class:`cfchest.data.Dataset`, one row for each image, and
returns one whose index still holds the row numbers: ``data.select(natural(data.table, seed=0))``
is the data set of the cohort. Nothing here looks at an image. Randomness comes from ``seed``, an
integer or a :class:`numpy.random.Generator`, and from nowhere else.

A test set that *shares* the shortcut of a biased training set is the same dropping applied to
the test table: ``drop_sex(test, 0.9, seed=1)``.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd

from cfchest.data.dataset import PARENTS
from cfcore.checks import InputError, check_fraction

Seed = int | np.random.Generator
Per = Literal["patient", "study"]
AGE_GROUPS = ("<45", "45-65", ">65")
"""The paper's age groups: below 45, from 45 to 65 with both ends, above 65."""


def split(
    table: pd.DataFrame, fractions: Mapping[str, float], *, seed: Seed
) -> dict[str, pd.DataFrame]:
    """Split by patient, so that no patient is in two parts.

    Patients are shuffled and cut; fractions are of patients, so that parts of images follow
    only roughly where patients have many. The order of the rows does not matter.

    Args:
        fractions: Names of the parts and their fractions, which sum to 1.

    Raises:
        InputError: If a patient is in two parts, which cannot happen, or is missing, which can; if
            the fractions are none, or a part that should have patients gets none.

    Example:
        >>> table = pd.DataFrame({"patient": list("aabbccddee")})
        >>> parts = split(table, {"train": 0.8, "test": 0.2}, seed=0)
        >>> {name: part.patient.nunique() for name, part in parts.items()}
        {'train': 4, 'test': 1}
    """
    shares = np.array(list(fractions.values()), dtype=float)
    if not ((shares >= 0).all() and abs(shares.sum() - 1) <= 1e-9):
        raise InputError(f"fractions {dict(fractions)} should not be negative and sum to 1")
    _assert_disjoint({"table": table})
    patients = np.random.default_rng(seed).permutation(np.unique(table.patient))
    cuts = np.round(shares.cumsum() * len(patients)).astype(int)[:-1]
    groups = dict(zip(fractions, np.split(patients, cuts), strict=True))
    for name, group in groups.items():
        if fractions[name] > 0 and not len(group):
            of = f"{len(patients)} patients for its {fractions[name]:g}"
            raise InputError(f"part {name!r} gets none of {of}")
    parts = {name: table[table.patient.isin(group)] for name, group in groups.items()}
    _assert_disjoint(parts)
    return parts


def _assert_disjoint(parts: Mapping[str, pd.DataFrame]) -> None:
    """Raise :class:`InputError` if a patient is in two of the parts, or a row has no patient."""
    seen: dict[str, str] = {}
    for name, part in parts.items():
        if part.patient.isna().any():
            row = part.index[part.patient.isna().to_numpy().argmax()]
            raise InputError(f"row {row} of {name!r} has no patient: it may be in any part")
        for patient in part.patient.unique():
            if patient in seen:
                raise InputError(f"patient {patient!r} is in {seen[patient]!r} and in {name!r}")
            seen[patient] = name


def age_group(age: pd.Series) -> pd.Series:
    """The paper's age groups 0, 1, 2 (``AGE_GROUPS``), NaN where the age is missing.

    "<45, 45-65, >65" is taken at its word: both 45 and 65 belong to the middle.

    Example:
        >>> age_group(pd.Series([44.9, 45, 65, 65.1])).tolist()
        [0.0, 1.0, 1.0, 2.0]
    """
    groups = (age >= 45).astype(float) + (age > 65).astype(float)
    return groups.where(age.notna())


def composition(table: pd.DataFrame) -> pd.DataFrame:
    """Counts and prevalence for each sex and age group: what a cohort is made of.

    Rows without sex, age or label are left out. The columns are ``images``, ``patients``,
    ``diseased`` and ``prevalence``.
    """
    rows = labelled(table)
    parts = rows.groupby(["sex", age_group(rows.age)]).agg(
        images=("effusion", "size"),
        patients=("patient", "nunique"),
        diseased=("effusion", "sum"),
        prevalence=("effusion", "mean"),
    )
    parts = parts.rename(index={0: "male", 1: "female"}, level="sex")
    return parts.rename(index=dict(enumerate(AGE_GROUPS)), level="age")


def one_per(table: pd.DataFrame, column: Per | None, *, seed: Seed) -> pd.DataFrame:
    """One random image for each ``"patient"`` or ``"study"``, in table order; all of them for None.

    A study belongs to a patient: equal names of studies of two patients are two studies.
    """
    if column is None:
        return table
    order = np.random.default_rng(seed).permutation(len(table))
    repeated = table.iloc[order].duplicated(list(dict.fromkeys(["patient", column])))
    return table.iloc[np.sort(order[~repeated.to_numpy()])]


def natural(
    table: pd.DataFrame, *, seed: Seed, n: int | None = None, per: Per | None = None
) -> pd.DataFrame:
    """A test set with the demographics that the hospital has, for the paper's setting 3.

    Rows without sex, age or label are left out.

    Args:
        n: The number of images, such as that of the balanced set; by default all.
        per: Keep only one random image for each patient or study.
    """
    rng = np.random.default_rng(seed)
    rows = one_per(labelled(table), per, seed=rng)
    n = len(rows) if n is None else n
    if not 0 <= n <= len(rows):
        raise InputError(f"{n} images asked for, {len(rows)} have sex, age and label")
    return rows.iloc[np.sort(rng.permutation(len(rows))[:n])]


def drop_sex(table: pd.DataFrame, strength: float, *, seed: Seed) -> pd.DataFrame:
    """Bias by sex: drop diseased men and healthy women with probability ``strength``.

    What is left suggests that disease is female. For one seed, a stronger bias keeps a subset
    of what a weaker one keeps. Rows without sex or label are kept. In the paper ``strength`` is
    0.8, 0.9 or 0.95.
    """
    against = (table.sex == 0) & (table.effusion == 1) | (table.sex == 1) & (table.effusion == 0)
    return _drop(table, check_fraction(strength, "strength") * against, seed)


def drop_age(table: pd.DataFrame, strength: float, *, seed: Seed) -> pd.DataFrame:
    r"""Bias by age: drop those whose age argues against their label.

    .. math:: c_i = a_i \mathbf{1}[y_i = 1] + (1 - a_i) \mathbf{1}[y_i = 0], \qquad
        P(\text{drop } i) = \text{strength} \cdot (1 - c_i)

    with the normalised age :math:`a_i`. What is left suggests that the old are ill. For one
    seed, a stronger bias keeps a subset of what a weaker one keeps. Rows without age or label
    are kept. In the paper ``strength``, its beta for age, is 0.8, 0.9 or 0.95.
    """
    a = _normalised_age(table.age)
    concordance = a.where(table.effusion == 1, 1 - a).where(table.effusion.notna())
    return _drop(table, check_fraction(strength, "strength") * (1 - concordance.fillna(1)), seed)


def drop_view(table: pd.DataFrame, strength: float, *, seed: Seed) -> pd.DataFrame:
    """Bias by view: drop the diseased who stand (PA) and the healthy who lie (AP).

    What is left suggests that disease is AP, as it is in hospitals, only more so. The scheme is
    that of :func:`drop_sex`; rows without view or label are kept.
    """
    against = (table.view == "PA") & (table.effusion == 1)
    against |= (table.view == "AP") & (table.effusion == 0)
    return _drop(table, check_fraction(strength, "strength") * against, seed)


def _normalised_age(age: pd.Series) -> pd.Series:
    """Age from 20 to 90 years as 0 to 1, clipped: the range of the paper's interventions."""
    return ((age - 20) / 70).clip(0, 1)


def match_size(table: pd.DataFrame, n: int, *, seed: Seed) -> pd.DataFrame:
    """A random subset of a given size: the unbiased control of a biased training set.

    Dropping data for bias also costs accuracy, so a biased predictor is compared with one
    trained on the same number of images, drawn without bias. The prevalence is that of the whole
    table, as nearly as whole numbers allow; missing labels keep their share, too.
    """
    if not 0 <= n <= len(table):
        raise InputError(f"{n} images asked for, {len(table)} are there")
    rng = np.random.default_rng(seed)
    order = pd.Series(rng.permutation(len(table)), index=table.index)
    # A rank between 0 and 1 among those of one label: the n lowest take from each its share.
    ranks = order.groupby(table.effusion.fillna(-1))
    share = (ranks.rank() - 0.5) / ranks.transform("size")
    chosen = np.argsort(share.to_numpy(), kind="stable")[:n]
    return table.iloc[np.sort(chosen)]


def mask_labels(
    table: pd.DataFrame,
    fraction: float,
    *,
    seed: Seed,
    by: Literal["variable", "row"] = "variable",
    columns: Sequence[str] = PARENTS,
) -> pd.DataFrame:
    """Hide labels, for semi-supervised training.

    By variable, each column keeps ``fraction`` of its values, chosen apart from the other
    columns; by row, ``fraction`` of the rows keep all of theirs. Numbers are exact up to
    rounding; for one seed, a larger fraction keeps all that a smaller one keeps.

    Args:
        fraction: What is kept, from 0 to 1.
        by: How values are chosen.
        columns: The columns that are masked.
    """
    if by not in ("variable", "row"):
        raise InputError(f"by={by!r} is neither 'variable' nor 'row'")
    rng = np.random.default_rng(seed)
    masked, row = table.copy(), rng.permutation(len(table))
    for column in columns:
        order = row if by == "row" else rng.permutation(len(table))
        observed = order if by == "row" else order[table[column].notna().to_numpy()[order]]
        keep = np.zeros(len(table), dtype=bool)
        keep[observed[: round(check_fraction(fraction, "fraction") * len(observed))]] = True
        masked[column] = table[column].where(keep)
    return masked


def labelled(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of which sex, age and label are known."""
    return table.dropna(subset=["sex", "age", "effusion"])


def _drop(table: pd.DataFrame, probability: pd.Series, seed: Seed) -> pd.DataFrame:
    return table[np.random.default_rng(seed).random(len(table)) >= probability.to_numpy()]
