"""Where real patients come from: the published data sets, in folders of this machine."""

import hashlib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from cfchest.cohorts import labelled
from cfchest.data import COLUMNS, Dataset, LoadOptions, load_chexpert, load_mimic
from cfcore.checks import InputError

_NEEDED = {"C": ("chexpert",), "M": ("mimic", "mimic_iv")}
"""The folders without which a hospital has no patients; the images lie in the first."""


@dataclass(frozen=True)
class Folders:
    """Where the published data sets are on this machine.

    Those of a hospital that is not asked for may be left out. Without masks lung sizes are
    missing, which predictors do not mind and generators do.

    Args:
        chexpert: The folder of CheXpert, with ``train.csv``; hospital ``"C"``.
        mimic: The folder of MIMIC-CXR-JPG, with ``files``; hospital ``"M"``.
        mimic_iv: The folder of MIMIC-IV, with ``hosp``, for the sexes and ages of ``mimic``.
        chexpert_masks: The CSV of CheXmask for CheXpert.
        mimic_masks: The CSV of CheXmask for MIMIC-CXR-JPG.
    """

    chexpert: str | Path | None = None
    mimic: str | Path | None = None
    mimic_iv: str | Path | None = None
    chexpert_masks: str | Path | None = None
    mimic_masks: str | Path | None = None

    @property
    def restricted(self) -> tuple[str, ...]:
        """Whose real patients they are, among ``cfchest.data.SOURCES``.

        Example:
            >>> Folders(mimic_iv="DIR", mimic_masks="FILE").restricted
            ('mimic',)
        """
        given = [each.name.split("_")[0] for each in fields(self) if getattr(self, each.name)]
        return tuple(dict.fromkeys(given))


def check_given(hospital: str, folders: Folders) -> None:
    """Raise unless the folders of a hospital are given.

    Example:
        >>> check_given("C", Folders())  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: real patients of hospital C need --chexpert FOLDER, ...
    """
    if hospital not in _NEEDED:
        raise InputError(f"hospital must be one of {list(_NEEDED)}, not {hospital!r}")
    absent = [name for name in _NEEDED[hospital] if getattr(folders, name) is None]
    if absent:
        options = " and ".join(f"--{name.replace('_', '-')} FOLDER" for name in absent)
        given = ", ".join(f"{name}=FOLDER" for name in absent)
        need = f"{options}, in Python a preset with folders=Folders({given})"
        raise InputError(f"real patients of hospital {hospital} need {need}")


@cache
def radiographs(hospital: str, folders: Folders, size: int) -> Dataset:
    """All radiographs of a hospital of which sex, age and label are known; none is decoded yet.

    The hospital is ``"C"``, CheXpert, or ``"M"``, MIMIC-CXR; images are resized to ``size``. The
    tables are read once in a process.
    """
    check_given(hospital, folders)
    if hospital == "C":
        data = load_chexpert(folders.chexpert, LoadOptions(size, folders.chexpert_masks))
    else:
        options = LoadOptions(size, folders.mimic_masks)
        data = load_mimic(folders.mimic, folders.mimic_iv, options)
    return data.select(labelled(data.table))


@cache
def identity(hospital: str, folders: Folders, size: int) -> str:
    """A hash of the table of a hospital, by which what was made of it is found.

    It knows every label, which images there are and how many bytes each has, since CheXpert is
    published in two resolutions under one table. It does not know where the folders are, what
    was made on one machine being found on another, nor the ``size`` to which images are resized.
    """
    table = radiographs(hospital, folders, size).table[list(COLUMNS)]
    root = Path(getattr(folders, _NEEDED[hospital][0]))
    table = table.assign(
        image=table.image.str.removeprefix(f"{root}/"),
        bytes=[Path(image).stat().st_size for image in table.image],
    )
    return hashlib.sha256(table.to_csv(index=False).encode()).hexdigest()
