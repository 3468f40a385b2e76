"""The paper's balanced test set: as many women as men, one prevalence for all."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from cfchest.cohorts import AGE_GROUPS, Per, Seed, age_group, labelled, one_per
from cfcore.checks import InputError


class _Balance(NamedTuple):
    """Parts of the balanced set: ``diseased`` and ``healthy`` images in a unit of each group."""

    diseased: int
    healthy: int
    units: np.ndarray
    """How many units each sex (rows) and age group (columns) contributes, shape (2, 3)."""


def balanced(
    table: pd.DataFrame,
    *,
    seed: Seed,
    prevalence: float | None = None,
    tolerance: float = 0.005,
    per: Per | None = None,
    n: int | None = None,
) -> pd.DataFrame:
    r"""The paper's balanced test set: as many women as men, one prevalence for all.

    The prevalence is exactly the same, as a fraction of whole numbers, in each of the six
    groups of sex and age (<45, 45-65, >65); hence it is the same for each sex and for each age
    group, too. In a group with :math:`n_1` diseased and :math:`n_0` healthy images a prevalence
    of :math:`a / (a + b)` admits :math:`k = \min(\lfloor n_1 / a \rfloor, \lfloor n_0 / b
    \rfloor)` units of :math:`a + b` images. Every pair :math:`(a, b)` that leaves no group
    empty is tried and the one that keeps most images is used, so no larger balanced subset
    exists. Where one sex could contribute more, its age groups shrink in proportion. Which
    images stay is random.

    The largest subset may have a prevalence far from that of training, and a change of
    prevalence alone rewards or punishes predictors: a logit offset looks better on a test set
    with more disease. Ask for the training prevalence to avoid that.

    Args:
        table: One row for each image; rows without sex, age or label are left out.
        prevalence: The prevalence to come near to; by default whichever keeps most images.
        tolerance: How near, at most; within it the largest subset is used.
        per: Keep only one random image for each patient or study, before balancing.
        n: The most images to choose; by default as many as can be balanced.

    Raises:
        InputError: If a group is empty, no common prevalence within ``tolerance`` exists, or two
            rows share their index, which then does not tell them apart.
    """
    if not table.index.is_unique:
        twice = table.index[table.index.duplicated()][0]
        raise InputError(f"two rows of the table have the index {twice}: reset the index")
    rng = np.random.default_rng(seed)
    rows = one_per(labelled(table), per, seed=rng)
    group = age_group(rows.age)
    places = [
        np.flatnonzero((rows.sex == s) & (group == g) & (rows.effusion == y))
        for s, g, y in np.ndindex(2, 3, 2)
    ]
    counts = np.array([len(cell) for cell in places]).reshape(2, 3, 2)
    parts = _largest_balance(counts, prevalence=prevalence, tolerance=tolerance, n=n)
    taken = parts.units[..., None] * np.array([parts.healthy, parts.diseased])  # (2, 3, 2)
    chosen = [rng.permutation(cell)[:k] for cell, k in zip(places, taken.flat, strict=True)]
    return rows.iloc[np.sort(np.concatenate(chosen))]


def _largest_balance(
    counts: np.ndarray,
    *,
    prevalence: float | None = None,
    tolerance: float = 0.005,
    n: int | None = None,
) -> _Balance:
    """The largest balanced subset that the counts of the groups admit.

    ``counts`` are images by sex, age group and label, shape (2, 3, 2). Of equally large subsets it
    is the one with the smallest unit.

    Example:
        >>> counts = np.array([[[9, 3], [8, 4], [8, 5]], [[9, 4], [9, 3], [6, 9]]])
        >>> _largest_balance(counts)
        _Balance(diseased=1, healthy=2, units=array([[3, 4, 3],
               [4, 3, 3]]))
        >>> _largest_balance(counts, prevalence=1 / 3, n=40)
        _Balance(diseased=1, healthy=2, units=array([[2, 2, 2],
               [2, 2, 2]]))
    """
    healthy, diseased = counts[..., 0], counts[..., 1]
    if counts.min() == 0:
        s, g, y = np.argwhere(counts == 0)[0]
        who = f"{('healthy', 'diseased')[y]} {('male', 'female')[s]}"
        raise InputError(f"no {who} image of age {AGE_GROUPS[g]}: no balanced set exists")
    most = counts.sum() // 2 if n is None else n // 2  # of each sex
    best, size = None, 0
    b = np.arange(1, healthy.min() + 1)
    for a in range(1, diseased.min() + 1):
        units = np.minimum(diseased[..., None] // a, healthy[..., None] // b)  # (2, 3, B)
        totals = np.minimum(units.sum(axis=1).min(axis=0), most // (a + b))
        sizes = (a + b) * np.where(totals < units.shape[1], 0, totals)
        if prevalence is not None:
            sizes = np.where(abs(a / (a + b) - prevalence) <= tolerance, sizes, 0)
        if sizes.max() > size:
            size, i = sizes.max(), sizes.argmax()
            shrunk = [_shrunk(row, totals[i]) for row in units[..., i]]
            best = _Balance(a, int(b[i]), np.stack(shrunk))
    if best is None:
        near = "" if prevalence is None else f" within {tolerance} of {prevalence}"
        few = "" if n is None else f" with {n} images or fewer"
        raise InputError(f"no prevalence{near} leaves all groups filled{few}")
    return best


def _shrunk(units: np.ndarray, total: int) -> np.ndarray:
    """Positive whole numbers shrunk to a sum in proportion, none to 0 (largest remainders).

    Example:
        >>> _shrunk(np.array([1, 40, 60]), 50)
        array([ 1, 20, 29])
    """
    spare = units - 1
    exact = spare * ((total - len(units)) / max(spare.sum(), 1))
    floor = np.floor(exact).astype(int)
    short = total - len(units) - floor.sum()
    floor[np.argsort(floor - exact, kind="stable")[:short]] += 1
    return 1 + floor
