"""The patients of the experiments: all of a hospital, its parts, and the test sets."""

from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from cfbook.study.presets import Preset, check_known
from cfchest.balance import balanced
from cfchest.cohorts import drop_age, drop_sex, natural, split
from cfchest.data import Dataset, from_phantom
from cfchest.folders import identity, radiographs
from cfchest.phantom import COEFFICIENTS, HOSPITALS, Cohort, Phantom
from cfcore.checks import InputError

Kind = Literal["balanced", "natural", "shares-sex", "shares-age"]

_IMAGES = Path("runs") / "cache"
SHARED = 0.9  # the strength of a bias that a test set shares with training
_FURTHER = 20  # added to the seed of further patients
_POOL = 3  # how many are drawn for each who is chosen
_TOLERANCE = 0.01  # how far the prevalence of a balanced set may be from that of training


def cohort_facts(hospital: str, preset: Preset | None = None) -> list[object]:
    """What tells the patients of a hospital from all others, ready for JSON.

    No patient is drawn and no image is decoded for it. The patients of the phantom are known by
    its coefficients, since its drawing is frozen, and a test keeps it so; real ones by
    :func:`cfchest.folders.identity`. Without a preset they are the phantom's.
    """
    if preset is None or preset.folders is None:
        return [asdict(COEFFICIENTS), asdict(HOSPITALS[hospital])]
    return [identity(hospital, preset.folders, preset.size)]


@cache
def phantom_cohort(hospital: str, preset: Preset) -> Cohort:
    """All patients of a hospital of the phantom, with their oracle."""
    if preset.folders is not None:
        raise InputError(f"the patients of preset {preset.name} are real and have no oracle")
    count = preset.train + preset.validation + preset.test
    return Phantom(preset.size).sample(count, hospital=hospital, seed=preset.cohort)


@cache
def parts(hospital: str, preset: Preset) -> dict[str, Dataset]:
    """The patients of a hospital, split into ``train``, ``validation`` and ``test``.

    No patient is in two of them. Sex, age and label of each image are known. The phantom's images
    are rendered when asked for, real ones decoded once and then read from a file.

    Example:
        >>> from cfbook.study.presets import preset
        >>> {name: len(part) for name, part in parts("C", preset("smoke")).items()}
        {'train': 800, 'validation': 200, 'test': 600}
    """
    if preset.folders is None:
        data = from_phantom(phantom_cohort(hospital, preset))
    else:
        data = radiographs(hospital, preset.folders, preset.size)
        data = data.cached(_IMAGES.absolute(), workers=torch.get_num_threads())
    sizes = {name: getattr(preset, name) for name in ("train", "validation", "test")}
    shares = {name: size / sum(sizes.values()) for name, size in sizes.items()}
    tables = split(data.table, shares, seed=preset.cohort)
    return {name: data.select(table) for name, table in tables.items()}


def held_out(hospital: str, preset: Preset, kind: Kind) -> Dataset:
    """A test set, drawn from the test part of a hospital.

    ================ ==========================================================================
    kind             images
    ================ ==========================================================================
    ``"balanced"``   as many women as men, and the training prevalence in each sex and age group
    ``"natural"``    the hospital as it is, as in the paper's setting 3
    ``"shares-sex"`` biased by sex, as the training sets of the family ``"sex"`` are
    ``"shares-age"`` biased by age, as those of the family ``"age"`` are
    ================ ==========================================================================

    All have as many images as the balanced one, where there are so many. Of the several images of
    a study one is used, as the paper counts studies. The balanced set has at most
    ``preset.patients`` images.

    Example:
        >>> from cfbook.study.presets import preset
        >>> data = held_out("C", preset("smoke"), "balanced")
        >>> len(data), data.table.groupby("sex").effusion.mean().round(3).tolist()
        (200, [0.32, 0.32])
    """
    return _chosen(parts(hospital, preset)["test"], hospital, preset, kind, preset.patients)


def further(hospital: str, preset: Preset, kind: Kind) -> Dataset:
    """Other patients than those of a test set, chosen like them, of whom no world is computed.

    They are for what needs observed images only: ``preset.observed`` of them. Nobody else can be
    drawn of real patients, so that these are those of the test set.
    """
    if preset.folders is not None:
        return held_out(hospital, preset, kind)
    drawn = {"hospital": hospital, "seed": preset.cohort + _FURTHER}
    pool = from_phantom(Phantom(preset.size).sample(_POOL * preset.observed, **drawn))
    return _chosen(pool, hospital, preset, kind, preset.observed)


def _chosen(test: Dataset, hospital: str, preset: Preset, kind: Kind, count: int | None) -> Dataset:
    check_known("kind", kind, get_args(Kind))
    per = None if preset.folders is None else "study"  # the phantom has one image of each study
    prevalence = parts(hospital, preset)["train"].table.effusion.mean()
    like = {"prevalence": prevalence, "tolerance": _TOLERANCE}
    table = balanced(test.table, seed=preset.cohort, per=per, n=count, **like)
    if kind == "balanced":
        return test.select(table)
    rng, pool = np.random.default_rng(preset.cohort), test.table
    if drop := {"shares-sex": drop_sex, "shares-age": drop_age}.get(kind):
        pool = drop(pool, SHARED, seed=rng)
    pool = natural(pool, seed=rng, per=per)
    return test.select(natural(pool, seed=rng, n=min(len(table), len(pool))))
