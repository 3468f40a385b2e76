"""Reading scores from CSV files, and saying exactly which cell cannot be used."""

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cfcore.checks import InputError

CHUNK = 10_000  # rows at a time
COUNTERFACTUAL = re.compile(r"p_cf_(0|[1-9][0-9]{0,8})")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
EXPECTED = "a CSV file is expected: UTF-8 text, a header, commas between the columns"
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
STARTS = {b"PK": "a zip archive such as npz or xlsx", b"\x1f\x8b": "gzip", b"PAR1": "parquet"}


@dataclass(frozen=True)
class Columns:
    """Some columns of a CSV file, and the line in which each row stands.

    Attributes:
        path: The file.
        names: The columns that were read.
        values: Their numbers, shape (N, C).
        lines: The line of each row, counted from 1 with the header, as an editor shows them.
        identifier: The column that says which patient a row is of, if one was read.
        patient: What stands there: all whole numbers, or all text.
    """

    path: Path
    names: list[str]
    values: np.ndarray
    lines: np.ndarray
    identifier: str | None = None
    patient: list[int] | list[str] | None = None

    def __getitem__(self, name: str) -> np.ndarray:
        return self.values[:, self.names.index(name)]

    @contextmanager
    def blame(self) -> Iterator[None]:
        """Name the file and the line in every :class:`~cfcore.checks.InputError` raised inside."""
        try:
            yield
        except InputError as error:
            place = [str(self.path)]
            if error.row is not None:
                place.append(f"row {self.lines[error.row]}")
            if error.column is not None:
                place.append(f"column {error.column}")
            raise InputError(f"{', '.join(place)}: {error.problem}") from None


def read_header(path: Path, reader: "csv.reader") -> list[str]:
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


def read_columns(
    path: str | Path,
    choose: Callable[[Path, list[str]], list[str]],
    identify: Callable[[Path, list[str]], str | None] | None = None,
) -> Columns:
    """Read the columns that ``choose`` picks from the header of a CSV file.

    Args:
        path: The file: comma-separated, UTF-8, with a header.
        choose: Given the path and the names in the header, those to read.
        identify: Given the same, the column that says which patient a row is of, if any.

    Returns:
        The columns.

    Raises:
        InputError: If the file is missing, empty or ragged, or a cell is not a number.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            check_start(path, file.peek(4))
            text = io.TextIOWrapper(file, newline="", encoding="utf-8-sig")
            reader = csv.reader(text, strict=True)
            header = read_header(path, reader)
            names = choose(path, header)
            identifier = identify(path, header) if identify else None
            parts = list(read_parts(path, reader, header, names, identifier))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}); {EXPECTED}") from None
    except csv.Error as error:
        raise InputError(f"{path}, row {reader.line_num}: {error}") from None
    if not parts:
        raise InputError(f"{path}: there are no rows below the header")
    values, lines, patients = zip(*parts, strict=True)
    patient = as_identifiers([cell for part in patients for cell in part]) if identifier else None
    return Columns(path, names, np.concatenate(values), np.concatenate(lines), identifier, patient)


def check_start(path: Path, start: bytes) -> None:
    """Refuse what its first bytes, or its name, show to be no text."""
    if path.suffix == ".safetensors":
        call = "cfcore.Predictions.load(path).bootstrap()"
        raise InputError(f"{path}: predictions as cfcore marginalise writes them; use {call}")
    for known, kind in STARTS.items():
        if start.startswith(known):
            raise InputError(f"{path}: this is {kind}; {EXPECTED}")


def as_identifiers(cells: list[str]) -> list[int] | list[str]:
    """Identifiers as whole numbers if all are, otherwise as text.

    Example:
        >>> as_identifiers(["7", "12"]), as_identifiers(["7", "012"])
        ([7, 12], ['7', '012'])
    """
    return [int(cell) for cell in cells] if all(map(WHOLE.fullmatch, cells)) else cells


def read_parts(
    path: Path,
    reader: "csv.reader",
    header: list[str],
    names: list[str],
    identifier: str | None,
) -> Iterator[tuple[np.ndarray, np.ndarray, list[str]]]:
    """Numbers, lines and identifiers of the rows, ten thousand at a time."""
    rows: list[list[str]] = []
    lines: list[int] = []
    patients: list[str] = []
    wanted = [header.index(name) for name in names]
    end = reader.line_num
    for row in reader:
        line, end = end + 1, reader.line_num  # a quoted cell may span several lines
        if not row:
            continue
        if len(row) != len(header):
            counts = f"{len(row)} cells, but the header has {len(header)}"
            raise InputError(f"{path}, row {line}: {counts}")
        rows.append([row[i] for i in wanted])
        lines.append(line)
        if identifier is not None:
            patients.append(row[header.index(identifier)].strip())
            if not patients[-1]:
                raise InputError(f"{path}, row {line}, column {identifier}: the cell is empty")
        if len(rows) == CHUNK:
            yield as_numbers(path, rows, lines, names), np.array(lines), patients
            rows, lines, patients = [], [], []
    if rows:
        yield as_numbers(path, rows, lines, names), np.array(lines), patients


def as_numbers(path: Path, rows: list[list[str]], lines: list[int], names: list[str]) -> np.ndarray:
    """Cells as numbers, shape (rows, columns); the first that is not one is named."""
    text = ",".join(map(",".join, rows))
    try:
        numbers = np.array(rows, dtype=np.float64)
    except ValueError:
        numbers = np.array(np.nan)
    if "_" in text or not text.isascii() or not np.isfinite(numbers).all():
        for row, line in zip(rows, lines, strict=True):
            for cell, name in zip(row, names, strict=True):
                what = "a label, 0 or 1" if name == "y" else "a finite number"
                check_number(cell, f"{path}, row {line}, column {name}", what)
    return numbers


def check_number(cell: str, place: str, what: str) -> None:
    """Refuse a cell that is not a number as everybody writes them, or too large for one."""
    if not cell.strip():
        raise InputError(f"{place}: the cell is empty")
    if not NUMBER.fullmatch(cell.strip()) or not np.isfinite(float(cell)):
        raise InputError(f"{place}: {cell!r} is not {what}")


def listed(header: list[str]) -> str:
    """The first names of a header, for a message."""
    return ", ".join(header[:8]) + (", ..." if len(header) > 8 else "")


def score_columns(path: Path, header: list[str]) -> list[str]:
    """The columns of a table of scores: ``p_obs``, ``y`` if there is one, ``p_cf_0``, ...

    Example:
        >>> score_columns(Path("t.csv"), ["id", "p_cf_1", "p_obs", "p_cf_0"])
        ['p_obs', 'p_cf_0', 'p_cf_1']
        >>> score_columns(Path("t.csv"), ["p_obs", "p_cf_0", "p_cf_2"])
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: t.csv, row 1: there is no column p_cf_1, but a column p_cf_2
    """
    if "p_obs" not in header:
        raise InputError(f"{path}, row 1: there is no column p_obs (found: {listed(header)})")
    for name in header:
        if name.startswith("p_cf") and not COUNTERFACTUAL.fullmatch(name):
            raise InputError(
                f"{path}, row 1: column {name!r} is not of the form p_cf_0, p_cf_1, ..."
            )
    numbers = sorted(int(name[5:]) for name in header if COUNTERFACTUAL.fullmatch(name))
    if not numbers:
        raise InputError(f"{path}, row 1: there is no column p_cf_0")
    for expected, number in enumerate(numbers):
        if number != expected:
            gap = f"there is no column p_cf_{expected}, but a column p_cf_{number}"
            raise InputError(f"{path}, row 1: {gap}")
    return ["p_obs", *(["y"] if "y" in header else []), *(f"p_cf_{k}" for k in numbers)]


def patient_column(path: Path, header: list[str], *, asked: str | None = None) -> str | None:
    """The column that says which patient a row is of: the one asked for, or ``patient`` if any."""
    if asked is not None and asked not in header:
        raise InputError(f"{path}, row 1: there is no column {asked} (found: {listed(header)})")
    return asked or ("patient" if "patient" in header else None)


def weight_column(path: Path, header: list[str]) -> list[str]:
    """The column of a file of weights: ``q``."""
    if "q" not in header:
        raise InputError(f"{path}, row 1: there is no column q (found: {listed(header)})")
    return ["q"]
