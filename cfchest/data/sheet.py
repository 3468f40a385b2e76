"""Tables on disk whose every cell can be pointed at, as an editor would show it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from zipfile import BadZipFile

import pandas as pd

from cfcore.cells import read_chunks, read_header
from cfcore.checks import InputError
from cfcore.extras import needs

_MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None")


@dataclass(frozen=True)
class Sheet:
    """A table of text together with the file it came from.

    Cells are kept as text until a loader says what they mean, so that a message can quote them
    as they stand. The index of ``frame`` is the line on which a record starts, counted from 1 as
    an editor does, and survives every filter.

    Args:
        frame: Its cells, as text or missing, indexed by line.
        titles: What the file calls the columns of ``frame`` that were renamed.
    """

    path: Path
    frame: pd.DataFrame
    titles: Mapping[str, str] = field(default_factory=dict)

    def where(self, line: int, column: str | None = None) -> str:
        """The place of a record, such as ``train.csv line 7: Age = '0'``."""
        place = f"{self.path.name} line {line}"
        if column is None:
            return place
        value = self.frame.at[line, column]
        title = self.titles.get(column, column)
        return f"{place}: {title} = {'blank' if pd.isna(value) else repr(str(value))}"

    def numbers(self, column: str) -> pd.Series:
        """A column as float64, blank cells as NaN; anything else that is no number raises."""
        text = self.frame[column]
        values = pd.to_numeric(text, errors="coerce").astype("float64")
        self.refuse(values.isna() & text.notna(), column, "a number")
        return values

    def refuse(self, wrong: pd.Series, column: str, expected: str) -> None:
        """Raise :class:`InputError` at the first record marked ``wrong``."""
        if wrong.any():
            others = f" ({wrong.sum() - 1} more like it)" if wrong.sum() > 1 else ""
            found = f"{self.where(wrong.idxmax(), column)}, expected {expected}{others}"
            raise InputError(f"{found}. Correct {self.path} or remove the row.")

    def filled(self, column: str, expected: str) -> pd.Series:
        """A column of names without the blanks around them; one that is all blank raises."""
        text = self.frame[column].str.strip()
        self.refuse(text.isna() | (text == ""), column, expected)
        return text

    def unique(self, *columns: str) -> None:
        """Raise :class:`InputError` if two records share their values in ``columns``."""
        twice = self.frame.duplicated(list(columns))
        self.refuse(twice, columns[-1], f"one record for each {', '.join(columns)}")

    def filtered(self, keep: pd.Series) -> "Sheet":
        """The records marked ``keep``; they remember their lines."""
        return replace(self, frame=self.frame[keep])

    def renamed(self, titles: Mapping[str, str]) -> "Sheet":
        """The columns that ``titles`` names, under its names; messages quote those of the file."""
        frame = pd.DataFrame({name: self.frame[title] for name, title in titles.items()})
        return Sheet(self.path, frame, titles)


def read_sheet(path: Path, columns: Sequence[str], *, optional: Sequence[str] = ()) -> Sheet:
    """Read some columns of a ``.csv``, ``.csv.gz`` or ``.xlsx`` as text.

    Args:
        columns: Columns that must be there.
        optional: Columns that are filled with missing values if they are not.

    Returns:
        The sheet, with ``columns`` and then ``optional``.

    Raises:
        InputError: If there is no such file, or it cannot be read; if one of ``columns`` is not in
            the header, which is quoted; if a record has more fields than the header.
    """
    wanted = [*columns, *optional]
    parts = [sheet.frame for sheet in read_sheets(path, columns, optional=optional)]
    frame = pd.concat(parts) if parts else pd.DataFrame(columns=wanted)
    return Sheet(path, frame.reindex(columns=wanted).astype("str"))


def read_sheets(
    path: Path, columns: Sequence[str], *, optional: Sequence[str] = (), records: int = 10_000
) -> Iterator[Sheet]:
    """Read a table as :func:`read_sheet` does, ``records`` records at a time."""
    header = sheet_header(path)
    missing = [name for name in columns if name not in header]
    if missing:
        lacks, has = (", ".join(map(repr, names)) for names in (missing, header))
        plural = "s" * (len(missing) > 1)
        raise InputError(f"{path} line 1 lacks the column{plural} {lacks}; it has {has}.")
    if path.suffix == ".xlsx":
        yield Sheet(path, _workbook(path))
        return
    for cells in read_chunks(path, [*columns, *optional], _MISSING, records):
        yield Sheet(path, cells.frame.astype("str"))


def sheet_header(path: Path) -> list[str]:
    """The names of the columns of a table."""
    if not path.is_file():
        raise InputError(f"{path} is missing; is it the folder as published?")
    return list(_workbook(path)) if path.suffix == ".xlsx" else read_header(path)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Whatever a reader raises about a broken file becomes an :class:`InputError` that names it."""
    try:
        yield
    except InputError:
        raise
    except (OSError, EOFError, ValueError, KeyError, SyntaxError, BadZipFile) as error:
        problem = " ".join(str(error).split()) or type(error).__name__
        if "pickle" in problem:
            problem = "it holds something else than plain arrays"
        raise InputError(f"{path} cannot be read: {problem}") from error


def _workbook(path: Path) -> pd.DataFrame:
    needs("openpyxl")
    with readable(path):
        frame = pd.read_excel(path, dtype=str)
    return frame.set_axis(frame.index + 2)
