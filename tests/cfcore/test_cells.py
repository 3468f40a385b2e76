"""A table as text: what stands in it, and on which line."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cfcore.cells import read_cells, read_chunks, read_header, read_patients
from cfcore.checks import InputError

TEXT = 'id, age ,note,\r\na,61,"two\r\nlines",\r\n  \r\nb,NA,,,,\r\nc, 7 ,x,\r\n'


@pytest.mark.parametrize("packed", [False, True])
def test_rows_are_known_by_the_line_on_which_they_start(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(TEXT.encode()) if packed else TEXT.encode())

    (cells,) = read_chunks(path, ["age", "id", "height"], ["NA"])

    assert read_header(path) == cells.header == ["id", "age", "note", ""]
    assert cells.frame.columns.tolist() == ["id", "age"]
    assert cells.frame.index.tolist() == [2, 5, 6]
    assert cells.frame.id.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(cells.numbers("age"), [61, np.nan, 7])


def test_a_large_file_is_read_in_chunks_that_know_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x\n" + "".join(f"{i}\n" for i in range(7)))

    chunks = list(read_chunks(path, rows=3))

    assert [chunk.frame.index.tolist() for chunk in chunks] == [[2, 3, 4], [5, 6, 7], [8]]
    assert np.concatenate([chunk.numbers("x") for chunk in chunks]).tolist() == list(range(7))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a,b\n1,2\n3,4,x\n", r"t\.csv, row 3: 3 cells, but the header has 2 \(.* 'x'\)"),
        (b"a,b\n1\n", r"row 2: 1 cells, but the header has 2"),
        (b"a,a\n1,2\n", "row 1: there are 2 columns 'a'"),
        (b"a\n", "no rows below the header"),
        (b'a\n1\n"2\n', "row 3: unexpected end of data"),
        (b"a\n\xff\n", "not UTF-8 text"),
        (b"a\n1\nfoo\n", "row 3, column a: 'foo' is not a finite number"),
        (b'a\n1\n" "\n', "no column b"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(
    text: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text)

    with pytest.raises(InputError, match=message):
        cells = read_cells(path)
        cells.numbers("a")
        cells.require("b")


@pytest.mark.parametrize(("cells", "kind"), [(["a", None, "b"], "object"), ([1, None, 2], "Int64")])
def test_what_is_missing_in_a_parquet_is_refused_by_its_row(
    cells: list, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({"patient": cells}, [5, 5, 5]).astype(kind).to_parquet(path)

    with pytest.raises(InputError, match=r"t\.parquet, row 1, column patient: (the cell|'nan' is)"):
        read_patients(read_cells(path))


def test_a_packed_file_that_ends_early_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a\n" + b"1\n2\n" * 999)[:-9])

    with pytest.raises(InputError, match=r"t\.csv\.gz: Compressed file ended"):
        read_cells(path)
