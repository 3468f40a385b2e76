"""From a table whose records name files to a data set, with every file accounted for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from cfchest.data.dataset import Dataset, Radiographs
from cfchest.data.ledger import EXAMPLES, Ledger
from cfchest.data.sheet import Sheet, readable
from cfcore.checks import InputError
from cfcore.patients import Stored

_CHUNK = 4096  # images in memory that are looked at together
_NOTHING = "shows nothing: nearly black, or of one grey"
Policy = Literal["zero", "one", "missing", "drop"]
"""What to do with a label that is uncertain, or blank."""


@dataclass(frozen=True)
class LoadOptions:
    """What the loaders leave to their user.

    Args:
        size: The side to which images are resized; by default they keep their own, which must
            then be the same for all.
        masks: The CSV of CheXmask for the data set, without which lung sizes are missing.
        uncertain: What a label of -1 becomes: ``"zero"``, ``"one"``, ``"missing"``, ``"drop"``. By
            default it is read as absent, but as missing in a table of your own. Projects differ
            in this, so state your choice.
        blank: What an empty label becomes, by default the same.
        unreadable: Whether a missing file, or with ``verify`` a broken one, raises (``"raise"``)
            or is dropped and counted (``"drop"``).
        verify: Whether to decode every file now, and to count those that show nothing. Otherwise
            a broken file raises when it is first decoded; either way the message names it and the
            line that lists it.
    """

    size: int | None = None
    masks: str | Path | None = None
    uncertain: Policy | None = None
    blank: Policy | None = None
    unreadable: Literal["raise", "drop"] = "raise"
    verify: bool = False

    def __post_init__(self) -> None:
        policies = (None, *get_args(Policy))
        known = {"uncertain": policies, "blank": policies, "unreadable": ("raise", "drop")}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise InputError(f"{name} is one of {values}, not {getattr(self, name)!r}")


DEFAULTS = LoadOptions()
_BLACK, _EVEN = 0.15, 0.02
"""An image shows nothing if its brightest pixel is darker, or its standard deviation smaller."""


def shows_nothing(x: Tensor) -> Tensor:
    """Which of some images (B, 1, H, W) in [0, 1] are nearly black, or of nearly one grey.

    Such files open without complaint; a range of 12 bits that is stored in 16 makes them.

    Example:
        >>> shows_nothing(torch.stack([torch.full((1, 2, 2), 0.5), torch.eye(2)[None]]))
        tensor([ True, False])
    """
    x = x.flatten(1)
    return (x.amax(dim=1) < _BLACK) | (x.std(dim=1, correction=0) < _EVEN)


def located(sheet: Sheet, **columns: pd.Series | str) -> pd.DataFrame:
    """A table of the records of a sheet, with a column ``place`` that says where each is."""
    table = pd.DataFrame(columns, index=sheet.frame.index)
    return table.assign(place=[sheet.where(line) for line in table.index])


def assemble(table: pd.DataFrame, ledger: Ledger, options: LoadOptions) -> Dataset:
    """Check that the files exist and make the data set, decoding nothing unless asked to.

    The table has the columns of the schema, of which ``image`` holds paths, and ``place``.

    Raises:
        InputError: If a patient is in two of the publisher's splits; if a file is missing or broken
            and the options say so; if no image is left, and then the message is the report.
    """
    _check_published(table)
    there = np.array([Path(image).is_file() for image in table.image], dtype=bool)
    absent = [f"{row.image}, listed in {row.place}" for row in table[~there].itertuples()]
    _leave_out(absent, len(table), "missing", ledger, options)
    table = table[there]
    source = _files(table, options.size)
    if options.verify:
        rows, title = range(len(table)), f"verifying {ledger.name}"
        broken, dark = failures(source, rows, progress=title)
        _leave_out(list(broken.values()), len(table), "broken", ledger, options)
        ledger.add(
            "kept",
            _NOTHING,
            [
                f"{path}, listed in {place}"
                for path, place in table[["image", "place"]].iloc[dark].itertuples(index=False)
            ],
        )
        table = table[~np.isin(rows, list(broken))]
        source = _files(table, options.size)
    _close(ledger, len(table))
    return Dataset(table.drop(columns="place"), source, name=ledger.name, report=ledger)


def assemble_stored(
    table: pd.DataFrame, ledger: Ledger, options: LoadOptions, path: Path, sheet: Sheet
) -> Dataset:
    """Make the data set of an archive whose row i belongs to record i of a sheet.

    The archive is an ``.npz`` with ``images``, uint8 or in [0, 1], shape (N, H, W), and perhaps
    ``image``, the names of the rows, to be compared with those of the sheet. The table has some of
    the N records, under the columns of the schema, and ``place``.
    """
    _check_published(table)
    _close(ledger, len(table))
    rows = sheet.frame.index.get_indexer(table.index)
    images = _read_archive(path, sheet)
    images = images if len(rows) == len(images) else images[rows]
    source = Stored(images, options.size)
    for some in np.split(np.arange(len(rows)), range(_CHUNK, len(rows), _CHUNK)):
        dark = table.place.iloc[some[shows_nothing(source(some)).numpy()]]
        ledger.add("kept", _NOTHING, dark.tolist())
    table = table.drop(columns="place").assign(image=rows)
    return Dataset(table, source, name=ledger.name, report=ledger)


def _files(table: pd.DataFrame, size: int | None) -> Radiographs:
    return Radiographs(table.image.to_numpy(str), size, table.place.tolist().__getitem__)


def failures(
    read: Callable[[np.ndarray], Tensor], rows: Sequence[int], *, progress: str | None = None
) -> tuple[dict[int, str], list[int]]:
    """Read rows one by one: for each that fails, the message; and the rows that show nothing."""
    broken, dark = {}, []
    for row in tqdm(rows, desc=progress, disable=None if progress else True):
        try:
            dark += [row] if shows_nothing(read(np.array([row]))).any() else []
        except InputError as error:
            broken[row] = str(error)
    return broken, dark


def _leave_out(
    files: list[str], total: int, what: str, ledger: Ledger, options: LoadOptions
) -> None:
    """Count the files that cannot be read, or raise if the options say so."""
    if files and options.unreadable == "raise":
        found = f"{len(files):,} of {total:,} images of {ledger.name} are {what}"
        advice = "Complete the download, or pass unreadable='drop'."
        raise InputError(f"{found}: {'; '.join(files[:EXAMPLES])}. {advice}")
    ledger.add("dropped", f"file {what}", files)


def _close(ledger: Ledger, kept: int) -> None:
    """Note how many images were kept; none is an error, of which the report is the message."""
    ledger.kept = kept
    if not kept:
        raise InputError(f"no image is left.\n{ledger}")


def _check_published(table: pd.DataFrame) -> None:
    """Refuse a publisher's split, where there is one, that shares a patient."""
    rows = table[table.split.notna()] if "split" in table else table[:0].assign(split="")
    rows = rows.drop_duplicates(["patient", "split"])
    shared = rows.patient[rows.patient.duplicated()]
    if len(shared):
        one, two = list(rows[rows.patient == shared.iloc[0]].itertuples())[:2]
        pair = " and in ".join(f"{each.split!r} ({each.place})" for each in (one, two))
        raise InputError(f"patient {one.patient!r} is in {pair}. Correct the split or drop it.")


def _read_archive(path: Path, sheet: Sheet) -> Tensor:
    with readable(path), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise InputError(f"{path} cannot be read: it is one array and no archive of arrays")
        if "images" not in archive:
            raise InputError(f"{path} has no array 'images' but {', '.join(archive.files)}")
        images, names = archive["images"], archive.get("image")
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        give = "give uint8, or floating point from 0 to 1"
        raise InputError(f"{path} has images of {images.dtype}; {give}")
    if images.ndim not in (3, 4):
        raise InputError(f"{path} has images of shape {images.shape}, expected (N, H, W)")
    if len(images) != len(sheet.frame):
        raise InputError(f"{path} has {len(images)} images, {sheet.path} {len(sheet.frame)}")
    own = sheet.frame.image.to_numpy(str)
    if names is not None and (names.astype(str) != own).any():
        row = int((names.astype(str) != own).argmax())
        place = sheet.where(sheet.frame.index[row], "image")
        raise InputError(f"{path} row {row} is {str(names[row])!r}, but {place}")
    return torch.as_tensor(images)
