"""From a table whose records name files to a data set, with every file accounted for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cfchest.data.dataset import Dataset
from cfchest.data.images import Files, failures
from cfchest.data.ledger import EXAMPLES, Ledger
from cfchest.data.sheet import Sheet, line_number, readable
from cfchest.data.splits import check_published
from cfcore.checks import InputError

OnFailure = Literal["raise", "drop"]
"""What to do about a file that is missing or, with ``verify``, broken."""


@dataclass(frozen=True)
class Places:
    """Where each row of a data set is listed: a file, and a record in it."""

    files: Sequence[str]
    records: Sequence[int]

    def __call__(self, row: int) -> str:
        path = Path(self.files[row])
        return f"{path.name} line {line_number(path, int(self.records[row]))}"


def located(sheet: Sheet, **columns: pd.Series | str) -> pd.DataFrame:
    """A table of the records of a sheet, with columns ``file`` and ``record`` to find them by."""
    table = pd.DataFrame(columns, index=sheet.frame.index)
    return table.assign(file=str(sheet.path), record=sheet.frame.index)


def assemble(
    table: pd.DataFrame,
    ledger: Ledger,
    *,
    size: int | None,
    unreadable: OnFailure,
    verify: bool,
    workers: int,
) -> Dataset:
    """Check that the files exist and make the data set, decoding nothing unless asked to.

    Args:
        table: The columns of the schema, ``file`` and ``record``.
        ledger: The account so far.
        size: The side to which images are resized.
        unreadable: Whether a file that is missing or broken raises or is dropped and counted.
        verify: Whether to decode every file now, to find the broken ones.
        workers: Worker processes for that.

    Raises:
        InputError: If no image is left; the message is the report.
        InputError: If a patient is in two of the publisher's splits.
    """
    check_policy(unreadable)
    check_published(table)

    def source(rows: np.ndarray) -> Files:
        files, records, images = (
            table[name].to_numpy()[rows] for name in ("file", "record", "image")
        )
        return Files(images.astype(str), size, Places(files, records))

    rows = _existing(source(np.arange(len(table))), ledger, unreadable)
    if verify:
        rows = rows[_decodable(source(rows), ledger, unreadable, workers)]
    close(ledger, len(rows))
    kept = table.drop(columns=["file", "record"]).iloc[rows]
    return Dataset(kept, source(rows), name=ledger.name, report=ledger)


def check_policy(unreadable: OnFailure) -> None:
    """Raise unless it is known what to do about a file that cannot be read."""
    if unreadable not in ("raise", "drop"):
        raise InputError(f"unreadable={unreadable!r} is neither 'raise' nor 'drop'")


def close(ledger: Ledger, kept: int) -> None:
    """Note how many images were kept; none is an error, of which the report is the message."""
    ledger.kept = kept
    if not kept:
        raise InputError(f"no image is left.\n{ledger}")


def read_archive(path: Path, sheet: Sheet, column: str) -> Tensor:
    """Read the images of an ``.npz`` whose row i belongs to record i of a table.

    Args:
        path: An archive with ``images``, uint8 or in [0, 1], shape (N, H, W), and perhaps
            ``image``, the names of the rows.
        sheet: The table, with all its records.
        column: The column that names the image, compared with ``image``.

    Returns:
        The images, shape (N, H, W).
    """
    if not path.is_file():
        raise InputError(f"{path} is missing")
    images, names = _arrays(path)
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise InputError(
            f"{path} has images of {images.dtype}; give uint8, or floating point from 0 to 1"
        )
    if images.ndim not in (3, 4):
        raise InputError(f"{path} has images of shape {images.shape}, expected (N, H, W)")
    if len(images) != len(sheet.frame):
        raise InputError(f"{path} has {len(images)} images, {sheet.path} {len(sheet.frame)}")
    if names is not None and (names != sheet.frame[column].to_numpy(str)).any():
        row = int((names != sheet.frame[column].to_numpy(str)).argmax())
        raise InputError(f"{path} row {row} is {str(names[row])!r}, but {sheet.where(row, column)}")
    return torch.as_tensor(images)


def _arrays(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    with readable(path), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise InputError(f"{path} cannot be read: it is one array and no archive of arrays")
        with archive:
            if "images" not in archive:
                raise InputError(f"{path} has no array 'images' but {', '.join(archive.files)}")
            names = archive["image"].astype(str) if "image" in archive else None
            return archive["images"], names


def _existing(files: Files, ledger: Ledger, policy: OnFailure) -> np.ndarray:
    there = np.array([Path(path).is_file() for path in files.paths], dtype=bool)
    absent = np.flatnonzero(~there)
    examples = [f"{files.paths[row]}, listed in {files.place(row)}" for row in absent[:EXAMPLES]]
    if len(absent) and policy == "raise":
        raise InputError(
            f"{len(absent):,} of {len(there):,} images of {ledger.name} are missing: "
            f"{'; '.join(examples)}. Complete the download, or pass unreadable='drop'."
        )
    if len(absent):
        ledger.add("dropped", "file missing", examples, count=len(absent))
    return np.flatnonzero(there)


def _decodable(files: Files, ledger: Ledger, policy: OnFailure, workers: int) -> np.ndarray:
    broken = failures(files, workers=workers, progress=f"verifying {ledger.name}")
    examples = list(broken.values())[:EXAMPLES]
    if broken and policy == "raise":
        raise InputError(f"{len(broken):,} images of {ledger.name} are broken: {examples[0]}")
    if broken:
        ledger.add("dropped", "file broken", examples, count=len(broken))
    return np.setdiff1d(np.arange(len(files.paths)), list(broken))
