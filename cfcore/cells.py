"""Tables of text, every cell of which can be pointed at as an editor shows it."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from cfcore.checks import InputError

_EXPECTED = "a CSV file is expected: UTF-8 text, a header, commas between the columns"
_NUMBER = r"(?a)\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*"  # as everybody writes it: not 1_000
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_STARTS = {b"PK": "a zip archive such as npz or xlsx", b"\x1f\x8b": "gzip", b"PAR1": "parquet"}
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Cells:
    """Columns of a file as the text that stands there.

    Attributes:
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
        text = self.frame[column]
        numbers = text.where(text.str.fullmatch(_NUMBER, na=False)).astype(np.float64)
        self._check(text.notna() & ~np.isfinite(numbers), column, what)
        return numbers.to_numpy()

    def filled(self, column: str) -> list[str]:
        """A column of names without the blanks around them; an empty one is refused."""
        text = self.frame[column].str.strip()
        self._check(text == "", column)
        return text.tolist()

    def _check(self, bad: pd.Series, column: str, what: str = "filled") -> None:
        if bad.any():
            row = int(bad.to_numpy().argmax())
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
            row = "" if error.row is None else f", row {self.frame.index[error.row]}"
            column = "" if error.column is None else f", column {error.column}"
            raise InputError(f"{self.path}{row}{column}: {error.problem}") from None


def read_cells(path: str | Path) -> Cells:
    """Read a whole CSV file as text; one without rows is refused."""
    parts = list(read_chunks(path))
    if not parts:
        raise InputError(f"{path}: there are no rows below the header")
    return Cells(parts[0].path, parts[0].header, pd.concat([part.frame for part in parts]))


def read_chunks(
    path: str | Path,
    columns: Collection[str] | None = None,
    missing: Sequence[str] = (),
    rows: int = 10_000,
) -> Iterator[Cells]:
    """Read a CSV file, packed with gzip if it is called ``.gz``, as text, some rows at a time.

    Args:
        path: The file: comma-separated, UTF-8, with a header; a pipe will do.
        columns: Those to keep of the columns that are there; all by default.
        missing: Texts that stand for a missing cell.
        rows: How many at a time.

    Raises:
        InputError: If the file is missing, empty, ragged or something else, or has one name twice.
    """
    with _opened(Path(path)) as reader:
        header = _header(path, reader)
        kept = [columns is None or name in columns for name in header]
        records = _records(path, reader, len(header))
        while chunk := list(islice(records, rows)):
            lines, found = zip(*chunk, strict=True)
            frame = pd.DataFrame(found, lines, header, object).loc[:, kept]
            yield Cells(Path(path), header, frame.mask(frame.isin(missing)))


def read_header(path: str | Path) -> list[str]:
    """The names of the columns of a CSV file."""
    with _opened(Path(path)) as reader:
        return _header(path, reader)


@contextmanager
def _opened(path: Path) -> Iterator["csv.reader"]:
    """A reader of a file; whatever is wrong with the file is an error that names it."""
    limit = csv.field_size_limit(2**31 - 1)  # some cells are outlines of an organ
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            start = file.peek(4)
            for known, kind in _STARTS.items():
                if start.startswith(known):
                    raise InputError(f"{path}: this is {kind}; {_EXPECTED}")
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            reader = csv.reader(text, strict=True)
            yield reader
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}); {_EXPECTED}") from None
    except csv.Error as error:
        raise InputError(f"{path}, row {reader.line_num}: {error}") from None
    finally:
        csv.field_size_limit(limit)


def _header(path: str | Path, reader: "csv.reader") -> list[str]:
    """The names in the first line, each of which must stand there once."""
    header = [name.strip() for name in next(filter(None, reader), [])]
    if not header:
        raise InputError(f"{path}: the file is empty; its first line must name the columns")
    for separator, words in _SEPARATORS.items():
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
        yield line, row[:width]


def read_scores(cells: Cells) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The scores in ``p_obs`` and in ``p_cf_0``, ``p_cf_1``, ..., and the labels ``y`` if any.

    Returns:
        ``p_obs``, shape (N,), ``p_cf``, shape (N, K), in the order of the numbers in the names,
        and ``y``, shape (N,), or None.

    Example:
        >>> path = getfixture("tmp_path") / "t.csv"
        >>> _ = path.write_text("p_cf_1,p_obs,p_cf_0\\n0.3,0.1,0.2\\n")
        >>> read_scores(read_cells(path))
        (array([0.1]), array([[0.2, 0.3]]), None)
    """
    cells.require("p_obs", "p_cf_0")
    names = [name for name in cells.header if name.startswith("p_cf")]
    names.sort(key=lambda name: (len(name), name))
    for k, name in enumerate(names):
        if name != f"p_cf_{k}":
            problem = f"in p_cf_0, p_cf_1, ... the column {name!r} is in the place of p_cf_{k}"
            raise InputError(f"{cells.path}, row 1: {problem}")
    p_cf = np.stack([cells.numbers(name) for name in names], axis=1)
    y = cells.numbers("y", "a label, 0 or 1") if "y" in cells.header else None
    return cells.numbers("p_obs"), p_cf, y


def read_patients(
    cells: Cells, column: str | None = None
) -> tuple[str | None, list[int] | list[str] | None]:
    """The column that says which patient a row is of, and its cells: all whole numbers, or text.

    By default the column is ``patient``, or None if there is none.
    """
    if column is None and "patient" not in cells.header:
        return None, None
    column = column or "patient"
    cells.require(column)
    text = cells.filled(column)
    return column, [int(cell) for cell in text] if all(map(_WHOLE.fullmatch, text)) else text
