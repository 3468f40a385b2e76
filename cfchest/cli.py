"""The command that looks at data before they are used."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from cfcore.checks import InputError, check_count


def check_data(
    kind: Literal["chexpert", "mimic", "nih", "table", "chexmask"],
    path: Path,
    *,
    mimic_iv: Path | None = None,
    masks: Path | None = None,
    images: Path | None = None,
    columns: Sequence[str] = (),
    open: int = 100,
    open_all: bool = False,
    table: Path | None = None,
) -> None:
    """Check a folder of real radiographs, and say what is missing.

    Every file of a published data set is looked for, its tables are read, patients, images and
    labels counted, and some of the images opened. Exits with 0 if it can be used as it is, and with
    2 and a list of what to mend if it cannot.

    Args:
        kind: What the path should hold: a published data set, a table of your own images (CSV), or
            the masks of CheXmask (CSV).
        path (PATH): The folder, or the CSV file.
        mimic_iv (FOLDER): Of mimic: the folder of MIMIC-IV.
        masks (FILE.csv): The lungs of the data set, by CheXmask.
        images (FOLDER): Of table: where its images are, or an .npz.
        columns (NAME=COLUMN): Of table: what it calls a column, such as effusion=ill.
        open (N): Images to open.
        open_all: Open every image; takes long.
        table (OUT.csv): Of a folder: where to write its table for an audit, where git does not
            look: one row for each image of which sex, age, view and label are known.
    """
    from cfchest.data.check import inspect_data
    from cfchest.data.plain import archive_of, write_plain_table

    check_count(open, "open")
    given = {"mimic_iv": mimic_iv, "masks": masks, "images": images, "columns": renamed(columns)}
    found = inspect_data(kind, path, **given, opened=None if open_all else open)
    print(found)
    if table is not None and found.data is not None:
        print(write_plain_table(found.data, archive_of(path) or path, table))
    if not found.ready:
        raise InputError(f"{path} cannot be used yet; to be mended: {len(found.problems)}")


def renamed(words: Sequence[str]) -> dict[str, str]:
    """Columns as named on the command line.

    Example:
        >>> renamed(["effusion=ill"])
        {'effusion': 'ill'}
    """
    pairs = [word.partition("=") for word in words]
    for name, _, column in pairs:
        if not name or not column:
            raise InputError(f"{name!r} is not of the form NAME=COLUMN", column="columns")
    return {name: column for name, _, column in pairs}
