"""A plain table: one CSV with a column of images, in a folder or in one array."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from cfchest.data.assembly import (
    OnFailure,
    assemble,
    check_policy,
    close,
    located,
    read_archive,
)
from cfchest.data.cells import Policy, ages, labels
from cfchest.data.dataset import COLUMNS, RACES, Dataset
from cfchest.data.images import Stored
from cfchest.data.ledger import Ledger
from cfchest.data.sheet import Sheet, read_sheet
from cfchest.data.splits import check_published
from cfcore.checks import InputError

SEXES = {"0": 0, "m": 0, "male": 0, "1": 1, "f": 1, "female": 1}
RACE_CODES = {name: code for code, name in enumerate(RACES)} | {"0": 0, "1": 1, "2": 2}
NO_RACE = ("other", "unknown")


def load_table(
    path: str | Path,
    *,
    images: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    size: int | None = None,
    uncertain: Policy = "missing",
    blank: Policy = "missing",
    unreadable: OnFailure = "raise",
    verify: bool = False,
    workers: int = 0,
) -> Dataset:
    """Load your own data: a CSV with one row for each image.

    The columns are those of the schema (:class:`cfchest.data.Dataset`) or are renamed by
    ``columns``. Required are ``image`` and ``patient``: without patients no split is safe. If
    every image is of another patient, say so: ``columns={"patient": "image"}``. Of the others,
    those that the file lacks are missing.

    ============= =======================================================================
    ``sex``       0, M, male; 1, F, female; in any case
    ``age``       years
    ``race``      0, white; 1, asian; 2, black; other, unknown (missing); in any case
    ``lung_size`` a fraction of the image
    ``effusion``  0, 1; -1 for uncertain
    ``view``      AP, PA
    ============= =======================================================================

    A cell may be blank. Set missing and counted: ages of 0 or above 120, races of other
    groups, labels by policy. Any other value raises, naming its line and column.

    Args:
        path: The CSV, plain or gzipped.
        images: The folder to which the column ``image`` is relative, by default that of the
            CSV; or an ``.npz`` with ``images`` (N, H, W), whose row i is row i of the CSV, and
            perhaps ``image``, their names, to check that.
        columns: From the names of the schema to those of the file.
        size: The side to which images are resized; by default they keep their own, which then
            must be the same for all.
        uncertain: What a label of -1 becomes: ``"zero"``, ``"one"``, ``"missing"``, ``"drop"``.
        blank: What an empty label becomes.
        unreadable: Whether a missing file, or with ``verify`` a broken one, raises or is dropped
            and counted.
        verify: Whether to decode every file now. Otherwise a broken file raises when it is
            first decoded; either way the message names it and the line that lists it.
        workers: Worker processes for ``verify``.

    Returns:
        The data set; ``print(dataset.report)`` tells what was dropped or set missing.
    """
    check_policy(unreadable)
    path, ledger = Path(path), Ledger(Path(path).stem, source="table")
    sheet = _read(path, columns or {})
    ledger.read = len(sheet.frame)
    table = _table(sheet, ledger, uncertain=uncertain, blank=blank)
    if images is not None and Path(images).suffix == ".npz":
        check_published(table)
        close(ledger, len(table))
        stored = Stored(read_archive(Path(images), sheet, "image"), size)
        data = Dataset(_numbered(sheet, table), stored, name=ledger.name, report=ledger)
        return data.take(table.record.to_numpy())

    folder = path.parent if images is None else Path(images)
    table["image"] = [str(folder / image) for image in table.image]
    return assemble(table, ledger, size=size, unreadable=unreadable, verify=verify, workers=workers)


def _read(path: Path, columns: Mapping[str, str]) -> Sheet:
    """The file under the names of the schema; messages quote the file's own."""
    known = (*COLUMNS, "split")
    unknown = set(columns) - set(known)
    if unknown:
        raise InputError(f"columns renames {sorted(unknown)}, not among {', '.join(known)}")
    source = {name: columns.get(name, name) for name in known}
    required = {source["image"], source["patient"], *columns.values()}
    optional = set(source.values()) - required
    sheet = read_sheet(path, sorted(required), optional=sorted(optional))
    frame = pd.DataFrame({name: sheet.frame[column] for name, column in source.items()})
    for name in ("patient", "study", "split"):
        frame[name] = frame[name].str.strip().replace("", np.nan)
    return Sheet(path, frame, source)


def _table(sheet: Sheet, ledger: Ledger, *, uncertain: Policy, blank: Policy) -> pd.DataFrame:
    sheet.filled("image", "a file name")
    sheet.filled("patient", "an identifier")
    sheet.unique(["image"])
    effusion = labels(sheet, "effusion", ledger, uncertain=uncertain, blank=blank)
    sheet = sheet.filtered(sheet.frame.index.isin(effusion.index))
    size, frame = sheet.numbers("lung_size"), sheet.frame
    sheet.refuse((size < 0) | (size > 1), "lung_size", "a fraction from 0 to 1")
    return located(
        sheet,
        image=frame.image,
        sex=_codes(sheet, "sex", SEXES, "0, M, male, 1, F or female"),
        age=ages(sheet, "age", ledger),
        race=_races(sheet, ledger),
        lung_size=size,
        effusion=effusion,
        patient=frame.patient,
        study=frame.study.fillna(frame.image),
        view=_views(sheet),
        **({"split": frame.split} if frame.split.notna().any() else {}),
    )


def _codes(sheet: Sheet, column: str, codes: Mapping[str, int], expected: str) -> pd.Series:
    text = sheet.frame[column].str.strip().str.lower().str.removesuffix(".0")
    values = text.map(codes).astype("float64")
    sheet.refuse(values.isna() & text.notna(), column, expected)
    return values


def _races(sheet: Sheet, ledger: Ledger) -> pd.Series:
    codes = RACE_CODES | dict.fromkeys(NO_RACE, -1)
    values = _codes(sheet, "race", codes, ", ".join(codes))
    ledger.mark("set missing", "race of another group", sheet, values == -1, "race")
    return values.where(values >= 0)


def _views(sheet: Sheet) -> pd.Series:
    view = sheet.frame["view"]
    sheet.refuse(view.notna() & ~view.isin(("AP", "PA")), "view", "AP or PA")
    return view


def _numbered(sheet: Sheet, table: pd.DataFrame) -> pd.DataFrame:
    """A table for every row of the array, those not in ``table`` as placeholders."""
    rows = table.drop(columns=["file", "record"]).reindex(sheet.frame.index)
    return rows.assign(image=np.arange(len(rows)), patient=sheet.frame.patient)
