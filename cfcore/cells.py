"""Tables of text, every cell of which can be pointed at as an editor shows it."""

import csv
import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from cfcore.checks import InputError
from cfcore.extras import needs

_EXPECTED = "a table is expected: UTF-8 text with a header, parquet, or npz"
_NUMBER = r"(?a)\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*"  # as everybody writes it: not 1_000
_STRANGE = re.compile(r"[^0-9.eE+ -]")  # Python reads more as a number
_SEPARATORS = ",;\t|"
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
        self.require(column)
        text = self.frame[column]
        if text.dtype.kind in "biuf":  # of a file that knows numbers
            return text.to_numpy(np.float64)
        with suppress(TypeError, ValueError):  # of a missing cell, or one that is no number
            if not _STRANGE.search("".join(text)) and np.isfinite(found := np.float64(text)).all():
                return found
        numbers = text.where(text.str.fullmatch(_NUMBER, na=False)).astype(np.float64)
        self._check(text.notna() & ~np.isfinite(numbers), column, what)
        return numbers.to_numpy()

    def filled(self, column: str) -> list[str]:
        """A column of names without the blanks around them; an empty one is refused."""
        text = self.frame[column].fillna("").str.strip()
        self._check(text == "", column)
        return text.tolist()

    def _check(self, bad: pd.Series, column: str, what: str = "filled") -> None:
        if bad.any():
            row = int(bad.to_numpy().argmax())
            cell = self.frame[column].iloc[row]
            text = "" if cell is None or (what == "filled" and cell != cell) else str(cell)
            problem = f"{text!r} is not {what}" if text.strip() else "the cell is empty"
            with self.blame():
                raise InputError(problem, column=column, row=row)

    @contextmanager
    def blame(self, **columns: str | None) -> Iterator[None]:
        """Name the file and the line in every :class:`~cfcore.checks.InputError` raised inside.

        ``columns`` says what the file calls the column of an argument.
        """
        try:
            yield
        except InputError as error:
            row = "" if error.row is None else f", row {self.frame.index[error.row]}"
            name = columns.get(str(error.column).split(":")[-1]) or error.column
            column = "" if name is None else f", column {name}"
            raise InputError(f"{self.path}{row}{column}: {error.problem}") from None


def read_cells(path: str | Path, prepare: Callable[[Cells], Cells] | None = None) -> Cells:
    """Read a whole table: text as it stands there, parquet, npz; without rows it is refused.

    Each part is prepared before all are held.
    """
    path = Path(path)
    found = [_read_binary(path)] if path.suffix in (".parquet", ".npz") else read_chunks(path)
    parts = list(map(prepare, found) if prepare else found)
    if not parts:
        raise InputError(f"{path}: there are no rows below the header")
    return Cells(path, parts[0].header, pd.concat([part.frame for part in parts]))


def _read_binary(path: Path) -> Cells:
    """A table of numbers and text; a row is counted from 0, an array (N, K) becomes K columns."""
    try:
        if path.suffix == ".parquet":
            needs("pyarrow")
            frame = pd.read_parquet(path).reset_index(drop=True)
        else:
            with path.open("rb") as file:
                if not zipfile.is_zipfile(file):
                    raise InputError("this is no npz archive, or a damaged one")
            with np.load(path, allow_pickle=False) as arrays:
                frame = pd.DataFrame(_columns(arrays))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    frame.columns = [str(name) for name in frame.columns]
    if not len(frame):
        raise InputError(f"{path}: there are no rows")
    text = frame.select_dtypes(exclude=["integer", "floating"]).columns
    lacking = [name for name in frame.columns.difference(text) if frame[name].isna().any()]
    kinds = dict.fromkeys(text, str) | dict.fromkeys(lacking, np.float64)  # which know NaN, not NA
    return Cells(path, list(frame.columns), frame.astype(kinds))


def _columns(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns of some arrays, by name; those of (N, K) are numbered."""
    found: dict[str, np.ndarray] = {}
    for name in arrays:
        try:
            values = arrays[name]
        except ValueError:
            raise InputError(f"the array {name} holds objects; nothing is unpickled") from None
        if values.ndim > 2:
            raise InputError(f"the array {name} has {values.ndim} axes; one or two are expected")
        own = [(f"{name}_{k}", values[:, k]) for k in range(sum(values.shape[1:]))]
        for column, cells in [(name, values)] if values.ndim == 1 else own:
            if column in found:
                raise InputError(f"two arrays give the column {column}")
            found[column] = cells
            if len(cells) != (rows := len(next(iter(found.values())))):
                raise InputError(f"the array {name} has {len(cells)} rows, and others {rows}")
    return found


def read_chunks(
    path: str | Path,
    columns: Collection[str] | None = None,
    missing: Sequence[str] = (),
    rows: int = 10_000,
) -> Iterator[Cells]:
    """Read a CSV file, packed with gzip if it is called ``.gz``, as text, some rows at a time.

    Args:
        path: The file: UTF-8, with a header, columns separated by commas, semicolons, tabs or bars;
            a pipe will do.
        columns: Those to keep of the columns that are there; all by default.
        missing: Texts that stand for a missing cell.
        rows: How many at a time.
    """
    with _opened(Path(path)) as reader:
        header = _header(path, reader)
        kept = [columns is None or name in columns for name in header]
        records = _records(path, reader, len(header))
        while chunk := list(islice(records, rows)):
            lines, found = zip(*chunk, strict=True)
            frame = pd.DataFrame(found, lines, header, object).loc[:, kept]
            yield Cells(Path(path), header, frame.mask(frame.isin(missing)) if missing else frame)


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
            start = file.peek(4096)
            for known, kind in _STARTS.items():
                if start.startswith(known):
                    raise InputError(f"{path}: this is {kind}; {_EXPECTED}")
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            line = start.partition(b"\n")[0].decode("utf-8-sig", "ignore")
            reader = csv.reader(text, strict=True, delimiter=max(_SEPARATORS, key=line.count))
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


def read_scores(path: str | Path) -> Cells:
    """A table with its scores (``p_obs``, ``p_cf_0`` ...) and labels (``y``) as numbers.

    Example:
        >>> path = getfixture("tmp_path") / "t.csv"
        >>> _ = path.write_text("p_cf_1;p_obs;p_cf_0;sex\\n0.3;0.1;0.2;F\\n")
        >>> read_scores(path).frame.to_dict("records")
        [{'p_cf_1': 0.3, 'p_obs': 0.1, 'p_cf_0': 0.2, 'sex': 'F'}]
    """
    return read_cells(path, _scored)


def _scored(cells: Cells) -> Cells:
    columns = {}
    for name in cells.header:
        last = name.split(":")[-1]
        if last in ("p_obs", "logit_obs", "y") or last.startswith(("p_cf", "logit_cf")):
            what = "a label, 0 or 1" if last == "y" else "a finite number"
            columns[name] = cells.numbers(name, what)
        else:
            columns[name] = cells.frame[name].to_numpy(copy=True)  # a view would hold all cells
    return replace(cells, frame=pd.DataFrame(columns, cells.frame.index))


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
    if (numbers := cells.frame[column]).dtype.kind in "iuf":
        cells._check(numbers % 1 != 0, column, "a whole number")  # a missing one is none
        return column, numbers.astype(np.int64).tolist()
    text = cells.filled(column)
    return column, [int(cell) for cell in text] if all(map(_WHOLE.fullmatch, text)) else text
