"""Tables on disk whose every cell can be pointed at, as an editor would show it."""

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO
from zipfile import BadZipFile

import pandas as pd

from cfcore.checks import InputError
from cfcore.extras import needs

UNREADABLE = (
    OSError,  # BadGzipFile
    EOFError,
    ValueError,  # UnicodeDecodeError, and the errors of the parser of pandas
    KeyError,
    SyntaxError,  # the XML of a workbook
    BadZipFile,
    zlib.error,
    csv.Error,
)
"""What the readers of tables and archives raise at files that are not what they should be."""


@dataclass(frozen=True)
class Sheet:
    """A table of text together with the file it came from.

    Cells are kept as text until a loader says what they mean, so that a message can quote them
    as they stand. The index of ``frame`` is the record number in the file and survives every
    filter: it is how a row is traced back to its line.

    Args:
        path: The file.
        frame: Its cells, as text or missing, indexed by record number from 0.
        titles: What the file calls the columns of ``frame`` that were renamed.
    """

    path: Path
    frame: pd.DataFrame
    titles: Mapping[str, str] = field(default_factory=dict)

    def where(self, row: int, column: str | None = None) -> str:
        """The place of a record, such as ``train.csv line 7: Age = '0'``."""
        place = f"{self.path.name} line {line_number(self.path, row)}"
        if column is None:
            return place
        value = self.frame.at[row, column]
        title = self.titles.get(column, column)
        return f"{place}: {title} = {'blank' if pd.isna(value) else repr(str(value))}"

    def numbers(self, column: str) -> pd.Series:
        """A column as float64, blank cells as NaN; anything else that is no number raises."""
        text = self.frame[column]
        values = pd.to_numeric(text, errors="coerce").astype("float64")
        wrong = values.isna() & text.notna()
        self.refuse(wrong, column, "a number")
        return values

    def refuse(self, wrong: pd.Series, column: str, expected: str) -> None:
        """Raise :class:`InputError` at the first record marked ``wrong``."""
        if wrong.any():
            row = wrong.index[wrong.to_numpy().argmax()]
            others = f" ({wrong.sum() - 1} more like it)" if wrong.sum() > 1 else ""
            raise InputError(
                f"{self.where(row, column)}, expected {expected}{others}. "
                f"Correct {self.path} or remove the row."
            )

    def filled(self, column: str, expected: str) -> pd.Series:
        """A column of names without the blanks around them; one that is all blank raises."""
        text = self.frame[column].str.strip()
        self.refuse(text.isna() | (text == ""), column, expected)
        return text

    def unique(self, columns: Sequence[str]) -> None:
        """Raise :class:`InputError` if two records share their values in ``columns``."""
        twice = self.frame.duplicated(list(columns))
        self.refuse(twice, columns[-1], f"one record for each {', '.join(columns)}")

    def filtered(self, keep: pd.Series) -> "Sheet":
        """The records marked ``keep``; they remember their record numbers."""
        return replace(self, frame=self.frame[keep])


def read_sheet(path: Path, columns: Sequence[str], *, optional: Sequence[str] = ()) -> Sheet:
    """Read some columns of a ``.csv``, ``.csv.gz`` or ``.xlsx`` as text.

    Args:
        path: The file.
        columns: Columns that must be there.
        optional: Columns that are filled with missing values if they are not.

    Returns:
        The sheet, with ``columns`` and then ``optional``.

    Raises:
        InputError: If there is no such file.
        InputError: If one of ``columns`` is not in the header; the message quotes the header.
        InputError: If the file cannot be read, or a record has more fields than the header.
    """
    header = read_header(path)
    require(path, header, columns)
    if path.suffix != ".xlsx":
        _check_width(path)
    present = [*columns, *(name for name in optional if name in header)]
    frame = _read(path, usecols=present)
    return Sheet(path, frame.reindex(columns=[*columns, *optional]).astype("str"))


def read_header(path: Path) -> list[str]:
    """The names of the columns of a table."""
    return list(_read(path, rows=0).columns)


def read_chunks(path: Path, columns: Sequence[str], *, records: int) -> Iterator[Sheet]:
    """Read some columns of a large CSV as text, ``records`` records at a time."""
    require(path, read_header(path), columns)
    options = {"dtype": str, "usecols": list(columns), "index_col": False}
    with readable(path), pd.read_csv(path, chunksize=records, **options) as chunks:
        for frame in chunks:
            yield Sheet(path, frame[list(columns)])


def require(path: Path, header: Sequence[str], columns: Iterable[str]) -> None:
    """Raise :class:`InputError` unless all ``columns`` are in ``header``."""
    missing = [name for name in columns if name not in header]
    if missing:
        raise InputError(
            f"{path} line 1 lacks the column{'s' * (len(missing) > 1)} "
            f"{', '.join(map(repr, missing))}; it has {', '.join(map(repr, header))}."
        )


def find_file(folder: Path, *names: str) -> Path:
    """The first of ``names`` that exists in ``folder``, or :class:`InputError` naming them."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise InputError(
        f"{folder} holds none of {', '.join(map(repr, names))}; is it the folder as published?"
    )


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Whatever a reader raises about a broken file becomes a :class:`InputError` that names it."""
    try:
        yield
    except InputError:
        raise
    except UNREADABLE as error:
        problem = " ".join(str(error).split()) or type(error).__name__
        if "pickle" in problem:
            problem = "it holds something else than plain arrays"
        raise InputError(f"{path} cannot be read: {problem}") from error


def line_number(path: Path, row: int) -> int:
    """The line on which a record starts, counted from 1 as an editor does.

    A record may span several lines (quoted line breaks) and blank lines hold none, so the line
    is found by reading, not by adding 2 to the record number.

    Args:
        path: A CSV file, plain or gzipped, or a workbook.
        row: The record number, the header not counted.
    """
    if path.suffix == ".xlsx":
        return row + 2

    record, quoted = -2, False
    with _text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not quoted and line.strip():
                record += 1
                if record == row:
                    return number
            quoted ^= line.count('"') % 2 == 1
    raise IndexError(f"{path} has no record {row}")


@contextmanager
def _any_length() -> Iterator[None]:
    """The module csv refuses long cells, such as masks; pandas does not, and nor do we."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


@contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", errors="replace") as lines:
        yield lines


def _read(
    path: Path, *, usecols: Sequence[str] | None = None, rows: int | None = None
) -> pd.DataFrame:
    if not path.is_file():
        raise InputError(f"{path} is missing; is it the folder as published?")
    with readable(path):
        if path.suffix == ".xlsx":
            needs("openpyxl")
            return pd.read_excel(path, dtype=str, usecols=usecols, nrows=rows)
        return pd.read_csv(path, dtype=str, usecols=usecols, nrows=rows, index_col=False)


def _check_width(path: Path) -> None:
    """Refuse a record with more fields than the header; empty ones at its end are no matter."""
    with readable(path), _any_length(), _text(path) as lines:
        reader = csv.reader(lines)
        width, end = 0, 0
        for fields in reader:
            start, end = end + 1, reader.line_num
            width = width or len(fields)
            if len(fields) > width and any(fields[width:]):
                raise InputError(
                    f"{path} line {start} has {len(fields)} fields, the header {width}: the first "
                    f"too many is {next(filter(None, fields[width:]))!r}. Quote cells with commas."
                )
