"""Lung size from the masks of CheXmask.

Gaggion et al., *CheXmask: a large-scale dataset of anatomical segmentation masks for
multi-center chest x-ray images*, Scientific Data 11, 511 (2024).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from cfchest.data.ledger import EXAMPLES, Ledger
from cfchest.data.sheet import Sheet, read_chunks
from cfcore.checks import InputError

DICE = "Dice RCA (Mean)"
LUNGS = ("Left Lung", "Right Lung")
CHUNK = 2_000


def run_length_area(runs: str) -> int:
    """The number of pixels in a run-length mask, ``"start length start length ..."``.

    Example:
        >>> run_length_area("3 2 10 5")
        7
    """
    return int(np.array(runs.split()[1::2], dtype=np.int64).sum())


def lung_sizes(
    path: str | Path | None,
    images: pd.Series,
    ledger: Ledger,
    *,
    column: str,
    key: Callable[[pd.Series], pd.Series] = lambda names: names,
    dice: float = 0.7,
) -> pd.Series:
    """Lung size: the area of both lungs as a fraction of the image.

    Lungs are segmented by a network; how well is estimated by reverse classification accuracy.
    The authors advise to distrust masks whose mean Dice estimate is below 0.7; those and
    images without a mask are left missing, and counted. The file runs to gigabytes and is read
    in pieces; only the masks that are wanted are decoded.

    Args:
        path: The CSV of the data set, of either resolution, plain or gzipped; without one all
            lung sizes are missing.
        images: The images whose lung size is asked for.
        ledger: Where what is left missing is counted.
        column: The column that names the image.
        key: From the names in that column to those in ``images``.
        dice: The least trusted mean Dice estimate.

    Returns:
        Fractions or NaN, indexed like ``images``.
    """
    if path is None:
        ledger.add("set missing", "lung size", ["no masks were given"], count=len(images))
        return pd.Series(np.nan, index=images.index)
    columns = (column, DICE, *LUNGS, "Height", "Width")
    sizes = []
    chunks = read_chunks(Path(path), columns, records=CHUNK)
    for sheet in tqdm(chunks, desc="reading CheXmask", disable=None):
        names = key(sheet.frame[column])
        sizes.append(_trusted(sheet.filtered(names.isin(images)), dice, ledger).rename(names))
    found = pd.concat(sizes)
    if not found.index.is_unique:
        twice = found.index[found.index.duplicated()][0]
        raise InputError(f"{path} has two masks of {twice!r}. Remove one of the rows.")
    absent = ~images.isin(found.index)
    if absent.any():
        places = [f"{name} is not in {path}" for name in images[absent][:EXAMPLES]]
        ledger.add("set missing", "lung size: no mask", places, count=int(absent.sum()))
    return images.map(found)


def _trusted(sheet: Sheet, dice: float, ledger: Ledger) -> pd.Series:
    doubtful = ~(sheet.numbers(DICE) >= dice)
    empty = sheet.frame[list(LUNGS)].isna().any(axis=1) & ~doubtful
    reason = f"lung size: Dice estimate of the mask below {dice:g}"
    ledger.mark("set missing", reason, sheet, doubtful, DICE)
    ledger.mark("set missing", "lung size: a lung without a mask", sheet, empty)
    return fractions(sheet.filtered(~doubtful & ~empty)).reindex(sheet.frame.index)


def fractions(sheet: Sheet) -> pd.Series:
    """The area of the two masks of each record over the area of its image."""
    area = sheet.numbers("Height") * sheet.numbers("Width")
    lungs = pd.Series(0.0, index=sheet.frame.index)
    for column in LUNGS:
        runs = sheet.frame[column]
        sheet.refuse(~runs.map(_well_formed).astype(bool), column, "pairs 'start length'")
        lungs += runs.map(run_length_area).astype("float64")
        sheet.refuse(~(lungs <= area), column, "masks no larger than Height x Width")
    return lungs / area


def _well_formed(runs: str) -> bool:
    return len(runs.split()) % 2 == 0 and runs.replace(" ", "").isdigit()
