"""A plain table: one CSV with a column of images, in a folder or in one array."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from cfchest.data.codes import ages, labels
from cfchest.data.dataset import COLUMNS, RACES, Dataset
from cfchest.data.ledger import Ledger
from cfchest.data.loading import DEFAULTS, LoadOptions, assemble, assemble_stored, located
from cfchest.data.sheet import Sheet, read_sheet
from cfcore.checks import InputError

_SEXES = {"0": 0, "m": 0, "male": 0, "1": 1, "f": 1, "female": 1}
_RACES = {name: code for code, name in enumerate(RACES)} | {"0": 0, "1": 1, "2": 2}
_RACES |= {"other": -1, "unknown": -1}


def load_table(
    path: str | Path,
    options: LoadOptions = DEFAULTS,
    *,
    images: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
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
        options: What is left to you; lung sizes are a column, not masks.
        images: The folder to which the column ``image`` is relative, by default that of the
            CSV; or an ``.npz`` with ``images`` (N, H, W), whose row i is row i of the CSV, and
            perhaps ``image``, their names, to check that.
        columns: From the names of the schema to those of the file.

    Returns:
        The data set; ``print(dataset.report)`` tells what was dropped or set missing.
    """
    if options.masks is not None:
        raise InputError(f"masks={str(options.masks)!r}: a table has its lung sizes in a column")
    path, ledger = Path(path), Ledger(Path(path).stem, source="table")
    sheet = _own_names(path, columns or {})
    table = _checked(sheet, ledger, options)
    if images is not None and Path(images).suffix == ".npz":
        return assemble_stored(table, ledger, options, Path(images), sheet)
    folder = path.parent if images is None else Path(images)
    table["image"] = [str(folder / image) for image in table.image]
    return assemble(table, ledger, options)


def _own_names(path: Path, columns: Mapping[str, str]) -> Sheet:
    """The file under the names of the schema; messages quote the file's own."""
    known = (*COLUMNS, "split")
    unknown = set(columns) - set(known)
    if unknown:
        raise InputError(f"columns renames {sorted(unknown)}, not among {', '.join(known)}")
    titles = {name: columns.get(name, name) for name in known}
    required = {titles["image"], titles["patient"], *columns.values()}
    optional = set(titles.values()) - required
    return read_sheet(path, sorted(required), optional=sorted(optional)).renamed(titles)


def _checked(sheet: Sheet, ledger: Ledger, options: LoadOptions) -> pd.DataFrame:
    ledger.read = len(sheet.frame)
    sheet.filled("image", "a file name")
    sheet.filled("patient", "an identifier")
    sheet.unique("image")
    sheet, effusion = labels(sheet, "effusion", ledger, options, default="missing")
    size, view = sheet.numbers("lung_size"), sheet.frame.view
    sheet.refuse((size < 0) | (size > 1), "lung_size", "a fraction from 0 to 1")
    sheet.refuse(view.notna() & ~view.isin(("AP", "PA")), "view", "AP or PA")
    race = _coded(sheet, "race", _RACES, ", ".join(_RACES))
    ledger.mark("set missing", "race of another group", sheet, race == -1, "race")
    named = sheet.frame[["patient", "study", "split"]].apply(lambda text: text.str.strip())
    named = named.replace("", np.nan)
    known = {"lung_size": size, "effusion": effusion, "patient": named.patient, "view": view}
    if named.split.notna().any():
        known["split"] = named.split
    return located(
        sheet,
        image=sheet.frame.image,
        sex=_coded(sheet, "sex", _SEXES, "0, M, male, 1, F or female"),
        age=ages(sheet, "age", ledger),
        race=race.where(race >= 0),
        study=named.study.fillna(sheet.frame.image),
        **known,
    )


def _coded(sheet: Sheet, column: str, codes: Mapping[str, int], expected: str) -> pd.Series:
    text = sheet.frame[column].str.strip().str.lower().str.removesuffix(".0")
    values = text.map(codes).astype("float64")
    sheet.refuse(values.isna() & text.notna(), column, expected)
    return values
