"""Tables of text, every cell of which can be pointed at as an editor shows it."""

import csv
import gzip
import io
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from cfcore.checks import InputError

CHUNK = 10_000  # rows at a time
EXPECTED = "a CSV file is expected: UTF-8 text, a header, commas between the columns"
PLAIN = frozenset("0123456789+-.eE \t\r\n")  # of numbers as everybody writes them: not 1_000, nan
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
STARTS = {b"PK": "a zip archive such as npz or xlsx", b"\x1f\x8b": "gzip", b"PAR1": "parquet"}


@dataclass(frozen=True)
class Cells:
    """Columns of a file as the text that stands there.

    Attributes:
        path: The file.
        header: The names of all its columns.
        frame: The cells that were read, each as text, or NaN where text was said to mean that it
            is missing. The index is the line on which a row starts, counted from 1 with the
            header, and survives every filter.
    """

    path: Path
    header: list[str]
    frame: pd.DataFrame

    def require(self, *names: str) -> None:
        """Refuse a file that lacks a column."""
        for name in names:
            if name not in self.header:
                found = ", ".join(self.header[:8]) + (", ..." if len(self.header) > 8 else "")
                raise InputError(f"{self.path}, row 1: there is no column {name} (found: {found})")

    def numbers(self, column: str, what: str = "a finite number") -> np.ndarray:
        """A column as float64; the first cell that is neither missing nor a number is named."""
        text = self.frame[column].to_numpy(dtype=object)
        try:
            numbers = np.array(text.tolist(), dtype=np.float64)
        except ValueError:
            numbers = np.full(len(text), np.nan)
        if not np.isfinite(numbers).all() or not PLAIN.issuperset("".join(text)):
            numbers = np.array([_number(cell) for cell in text], dtype=np.float64)
            self._check(~np.isfinite(numbers) & ~pd.isna(text), column, what)
        return numbers

    def filled(self, column: str) -> list[str]:
        """A column of names without the blanks around them; an empty one is refused."""
        text = [cell.strip() for cell in self.frame[column]]
        self._check(np.array([not cell for cell in text]), column)
        return text

    def _check(self, bad: np.ndarray, column: str, what: str = "filled") -> None:
        if bad.any():
            row = int(bad.argmax())
            cell = self.frame[column].iloc[row]
            problem = f"{cell!r} is not {what}" if cell.strip() else "the cell is empty"
            with self.blame():
                raise InputError(problem, column=column, row=row)

    @contextmanager
    def blame(self) -> Iterator[None]:
        """Name the file and the line in every :class:`~cfcore.checks.InputError` raised inside."""
        try:
            yield
        except InputError as error:
            place = [str(self.path)]
            if error.row is not None:
                place.append(f"row {self.frame.index[error.row]}")
            if error.column is not None:
                place.append(f"column {error.column}")
            raise InputError(f"{', '.join(place)}: {error.problem}") from None


def _number(cell: str | float) -> float:
    """A cell as a number as everybody writes them; NaN if it is none."""
    try:
        return float(cell) if isinstance(cell, str) and PLAIN.issuperset(cell) else np.nan
    except ValueError:
        return np.nan


def read_cells(
    path: str | Path, columns: Sequence[str] | None = None, missing: Collection[str] = ()
) -> Cells:
    """Read a CSV file, packed with gzip if it is called ``.gz``, as text.

    Args:
        path: The file: comma-separated, UTF-8, with a header; a pipe will do.
        columns: Those to keep of the columns that are there; all by default.
        missing: Texts that stand for a missing cell.

    Returns:
        The cells.

    Raises:
        InputError: If the file is missing, empty, ragged or something else, or has one name twice.
    """
    parts = list(read_chunks(path, columns, missing))
    if not parts:
        raise InputError(f"{path}: there are no rows below the header")
    return Cells(parts[0].path, parts[0].header, pd.concat([part.frame for part in parts]))


def read_chunks(
    path: str | Path,
    columns: Sequence[str] | None = None,
    missing: Collection[str] = (),
    rows: int = CHUNK,
) -> Iterator[Cells]:
    """Read a CSV file as :func:`read_cells` does, some rows at a time; none if there are none."""
    with _opened(Path(path)) as reader:
        header = _header(path, reader)
        kept = [i for i, name in enumerate(header) if columns is None or name in columns]
        names, records = [header[i] for i in kept], _records(path, reader, len(header))
        while chunk := list(islice(records, rows)):
            lines, found = zip(*chunk, strict=True)
            frame = pd.DataFrame([[row[i] for i in kept] for row in found], lines, names, object)
            frame = frame.mask(frame.isin(list(missing))) if missing else frame
            yield Cells(Path(path), header, frame)


def read_header(path: str | Path) -> list[str]:
    """The names of the columns of a CSV file."""
    with _opened(Path(path)) as reader:
        return _header(path, reader)


@contextmanager
def _opened(path: Path) -> Iterator["csv.reader"]:
    """A reader of a file; whatever is wrong with the file is an error that names it."""
    limit = csv.field_size_limit(2**31 - 1)  # some cells are outlines of a lung
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            start = file.peek(4)
            for known, kind in STARTS.items():
                if start.startswith(known):
                    raise InputError(f"{path}: this is {kind}; {EXPECTED}")
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            reader = csv.reader(text, strict=True)
            yield reader
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}); {EXPECTED}") from None
    except csv.Error as error:
        raise InputError(f"{path}, row {reader.line_num}: {error}") from None
    finally:
        csv.field_size_limit(limit)


def _header(path: str | Path, reader: "csv.reader") -> list[str]:
    """The names in the first line, each of which must stand there once."""
    header = [name.strip() for name in next((row for row in reader if row), [])]
    if not header:
        raise InputError(f"{path}: the file is empty; its first line must name the columns")
    for separator, words in SEPARATORS.items():
        if len(header) == 1 and separator in header[0]:
            problem = f"the columns seem to be separated by {words}, not commas ({header[0]!r})"
            raise InputError(f"{path}, row 1: {problem}")
    for name in header:
        if name and header.count(name) > 1:
            raise InputError(f"{path}, row 1: there are {header.count(name)} columns {name!r}")
    return header


def _records(path: str | Path, reader: "csv.reader", width: int) -> Iterator[tuple[int, list[str]]]:
    """The rows below the header, each with the line on which it starts."""
    end = reader.line_num
    for row in reader:
        line, end = end + 1, reader.line_num  # a quoted cell may span several lines
        if len(row) < 2 and not "".join(row).strip():
            continue
        if len(row) < width or any(row[width:]):  # empty cells at the end of a line do no harm
            quoted = f" (the first too many is {row[width]!r})" if row[width:] else ""
            counts = f"{len(row)} cells, but the header has {width}{quoted}"
            raise InputError(f"{path}, row {line}: {counts}")
        yield line, row
