"""Lung size from the masks of CheXmask.

Gaggion et al., *CheXmask: a large-scale dataset of anatomical segmentation masks for
multi-center chest x-ray images*, Scientific Data 11, 511 (2024).
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from cfchest.data.ledger import Ledger
from cfchest.data.sheet import Sheet, read_sheets
from cfcore.checks import InputError

DICE = "Dice RCA (Mean)"
LUNGS = ["Left Lung", "Right Lung"]
TRUSTED = 0.7
"""The least mean Dice estimate of a mask that is trusted, as its authors advise."""


def _run_length_area(runs: str) -> float:
    """The pixels in a run-length mask, ``"start length start length ..."``; NaN if it is none.

    Example:
        >>> _run_length_area("3 2 10 5"), _run_length_area("3 2 10")
        (7.0, nan)
    """
    numbers = runs.split()
    if len(numbers) % 2 or not all(number.isdigit() for number in numbers):
        return float("nan")
    return float(sum(map(int, numbers[1::2])))


def mask_sheets(path: Path, column: str) -> Iterator[Sheet]:
    """The masks of a file that runs to gigabytes, some at a time; ``column`` names the image."""
    return read_sheets(path, (column, DICE, *LUNGS, "Height", "Width"), records=2_000)


def lung_sizes(
    path: str | Path | None,
    images: pd.Series,
    ledger: Ledger,
    *,
    column: str,
    key: Callable[[pd.Series], pd.Series] = lambda names: names,
) -> pd.Series:
    """Lung size: the area of both lungs as a fraction of the image.

    Lungs are segmented by a network; how well is estimated by reverse classification accuracy.
    Masks that are not to be trusted (:data:`TRUSTED`) and images without a mask are left missing,
    and counted. Only the masks that are wanted are decoded.

    Args:
        path: The CSV of the data set, of either resolution, plain or gzipped; without one all
            lung sizes are missing.
        images: The images whose lung size is asked for.
        ledger: Where what is left missing is counted.
        column: The column that names the image.
        key: From the names in that column to those in ``images``.

    Returns:
        Fractions or NaN, indexed like ``images``.
    """
    if path is None:
        ledger.add("set missing", "lung size", ["no masks were given"], len(images))
        return pd.Series(np.nan, index=images.index)
    sizes = [pd.Series(dtype="float64")]
    for sheet in tqdm(mask_sheets(Path(path), column), desc="reading CheXmask", disable=None):
        names = key(sheet.frame[column])
        sizes.append(_trusted(sheet.filtered(names.isin(images)), ledger).rename(names))
    found = pd.concat(sizes)
    if not found.index.is_unique:
        twice = found.index[found.index.duplicated()][0]
        raise InputError(f"{path} has two masks of {twice!r}. Remove one of the rows.")
    absent = [f"{name} is not in {path}" for name in images[~images.isin(found.index)]]
    ledger.add("set missing", "lung size: no mask", absent)
    return images.map(found)


def _trusted(sheet: Sheet, ledger: Ledger) -> pd.Series:
    doubtful = ~(sheet.numbers(DICE) >= TRUSTED)
    empty = sheet.frame[LUNGS].isna().any(axis=1) & ~doubtful
    reason = f"lung size: Dice estimate of the mask below {TRUSTED:g}"
    ledger.mark("set missing", reason, sheet, doubtful, DICE)
    ledger.mark("set missing", "lung size: a lung without a mask", sheet, empty)
    return lung_fractions(sheet.filtered(~doubtful & ~empty)).reindex(sheet.frame.index)


def lung_fractions(sheet: Sheet) -> pd.Series:
    """The area of the two masks of each record over the area of its image."""
    area = sheet.numbers("Height") * sheet.numbers("Width")
    lungs = pd.Series(0.0, index=sheet.frame.index)
    for column in LUNGS:
        lungs += sheet.frame[column].map(_run_length_area).astype("float64")
        sheet.refuse(lungs.isna(), column, "pairs 'start length'")
        sheet.refuse(~(lungs <= area), column, "masks no larger than Height x Width")
    return lungs / area
