"""Tables that cannot be right: one line names the file and the cell, and nothing is written."""

import gzip
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import small_audit
from markupsafe import escape

from cfcore.checks import InputError
from cfcore.cli import main
from cfscm.auditing import read_plan

HEADER = "p_obs,y,p_cf_0,p_cf_1,patient,site,often"
ROWS = ["0.9,1,0.8,0.4,a,A,1", "0.2,0,0.1,0.3,b,B,2", "0.6,1,0.7,0.2,c,A,1", "0.3,0,0.1,0.2,d,B,1"]
FRAME = pd.DataFrame({"p_obs": [0.1, 0.2], "p_cf_0": [0.3, 0.4], "y": [0, 1]})


def table(third: str = "", *, header: str = HEADER) -> bytes:
    """A good table, with another third line or another header."""
    rows = [ROWS[0], third or ROWS[1], *ROWS[2:]]
    return "\n".join([header, *rows, ""]).encode()


def parquet(**columns: list) -> bytes:
    FRAME.assign(**columns).to_parquet(file := io.BytesIO())
    return file.getvalue()


def npz(**arrays: list | np.ndarray) -> bytes:
    np.savez(file := io.BytesIO(), **{"p_obs": [0.1, 0.2], "p_cf": [[0.3], [0.4]]} | arrays)
    return file.getvalue()


def workbook() -> bytes:
    FRAME.to_excel(file := io.BytesIO(), index=False)
    return file.getvalue()


def grouped(*sites: str) -> bytes:
    rows = [f"0.{1 + i % 8},1,0.8,0.4,p{i},{site},1" for i, site in enumerate(sites)]
    return "\n".join([HEADER, *rows, ""]).encode()


BAD = {
    # name: (file, content, message, options)
    "a probability": ("s.csv", table("0.2,0,1.2,0.3,b,B,2"), "row 3, column p_cf_0: 1.2 is not"),
    "text": ("s.csv", table("0.2,0,high,0.3,b,B,2"), "row 3, column p_cf_0: 'high' is not"),
    "decimal commas": (
        "s.csv",
        b"p_obs;p_cf_0\n0,2;0,3\n",
        "row 2, column p_obs: '0,2' is not a finite number",
    ),
    "NaN": ("s.csv", table("nan,0,0.1,0.3,b,B,2"), "row 3, column p_obs: 'nan' is not a finite"),
    "infinity": ("s.csv", table("0.2,0,0.1,inf,b,B,2"), "row 3, column p_cf_1: 'inf' is not"),
    "an empty cell": ("s.csv", table("0.2,,0.1,0.3,b,B,2"), "row 3, column y: the cell is empty"),
    "a label": ("s.csv", table("0.2,2,0.1,0.3,b,B,2"), "row 3, column y: 2 is not a label, 0 or 1"),
    "no patient": ("s.csv", table("0.2,0,0.1,0.3, ,B,2"), "row 3, column patient: the cell is"),
    "a ragged row": ("s.csv", table("0.2,0,0.1"), "row 3: 3 cells, but the header has 7"),
    "a name twice": (
        "s.csv",
        table(header=HEADER.replace("site", "y")),
        "row 1: there are 2 columns 'y'",
    ),
    "no p_obs": ("s.csv", table(header=HEADER.replace("p_obs", "p")), "no column p_obs .found: p,"),
    "no worlds": ("s.csv", b"p_obs,y\n0.1,1\n", "there is no column p_cf_0"),
    "a gap": (
        "s.csv",
        table(header=HEADER.replace("cf_1", "cf_2")),
        "column 'p_cf_2' is in the place of p_cf_1",
    ),
    "two kinds": (
        "s.csv",
        b"a:p_obs,a:p_cf_0,b:logit_obs,b:logit_cf_0\n0.1,0.2,1,2\n",
        "there are columns p_obs and logit_obs",
    ),
    "fewer worlds of a label": (
        "s.csv",
        b"a:p_obs,a:p_cf_0,a:p_cf_1,b:p_obs,b:p_cf_0\n0.1,0.2,0.1,0.1,0.2\n",
        "the label b has 1 worlds, the first one 2",
    ),
    "a label without a name": ("s.csv", b":p_obs,:p_cf_0\n0.1,0.2\n", "column :p_obs names no"),
    "nothing": ("s.csv", b"", "the file is empty"),
    "a header": ("s.csv", HEADER.encode() + b"\n", "there are no rows below the header"),
    "a workbook": ("s.csv", workbook(), "this is a zip archive such as npz or xlsx; a table is"),
    "Latin letters": (
        "s.csv",
        table("0.2,0,0.1,0.3,é,B,2").decode().encode("latin-1"),
        "not UTF-8",
    ),
    "two bytes a letter": ("s.csv", table().decode().encode("utf-16"), "not UTF-8 text"),
    "half a gzip": ("s.csv.gz", gzip.compress(table() * 99)[:-9], "Compressed file ended before"),
    "no gzip": ("s.csv.gz", table(), "Not a gzipped file"),
    "half a parquet": ("s.parquet", parquet()[:-50], "Parquet magic bytes not found"),
    "NaN in parquet": ("s.parquet", parquet(p_obs=[0.1, None]), "row 1, column p_obs: nan is not"),
    "no patient in parquet": (
        "s.parquet",
        parquet(patient=[1, None]),
        "row 1, column patient: 'nan' is not a whole number",
    ),
    "pickled objects": (
        "s.npz",
        npz(site=np.array([None, 1], object)),
        "the array site holds objects; nothing is unpickled",
    ),
    "arrays that differ": ("s.npz", npz(y=[0, 1, 1]), "the array y has 3 rows, and others 2"),
    "arrays that meet": ("s.npz", npz(p_cf_0=[0.1, 0.2]), "two arrays give the column p_cf_0"),
    "three axes": ("s.npz", npz(p_cf=np.zeros((2, 1, 2))), "the array p_cf has 3 axes"),
    "no real numbers": ("s.npz", npz(p_obs=[0.1, 1j]), "column p_obs: '.0.1.0j.' is not a finite"),
    "text called npz": ("s.npz", table(), "this is no npz archive, or a damaged one"),
    "no predictions": ("s.safetensors", b"abc", "these are not predictions, or damaged"),
    "no file": ("", b"", "s.csv: No such file or directory"),
    "a negative weight": (
        "s.csv",
        table("0.2,0,0.1,0.3,b,B,-2"),
        "row 3, column often: -2 is not a weight",
        "--weight often",
    ),
    "no weights": (
        "s.csv",
        re.sub(rb",\d\n", b",0\n", table()),
        "column often: all weights are zero",
        "--weight often",
    ),
    "another weight": ("s.csv", table(), "row 1: there is no column w .found", "--weight w"),
    "text for weights": ("s.csv", table(), "row 2, column site: 'A' is not", "--weight site"),
    "another patient": ("s.csv", table(), "row 1: there is no column who", "--patient who"),
    "no labels": (
        "s.csv",
        b"p_obs,p_cf_0\n0.1,0.2\n",
        "metrics: AUC_orig needs labels",
        "--metrics AUC_orig",
    ),
    "a long q": (
        "s.csv",
        table(),
        r"/q.csv, column q: has 3 weights, but there are 2",
        "--q q.csv",
    ),
    "another group": ("s.csv", table(), "there is no column ward .found: p_obs", "--by ward"),
    "one group": ("s.csv", grouped("A", "A"), "column site: there are 1 groups", "--by site"),
    "60 groups": (
        "s.csv",
        grouped(*map(str, range(60))),
        "column site: there are 60 groups: cut it into bands",
        "--by site",
    ),
    "no group": (
        "s.csv",
        table("0.2,0,0.1,0.3,b,,2"),
        "row 3, column site: the group is missing",
        "--by site",
    ),
}
COMMANDS = {
    "evaluate": "evaluate s --replicates 9 --json o.json",
    "compare": "compare s s --replicates 9 --json o.json",
    "report": "report s --replicates 9 --out folder",
}
CASES = [
    (name, command)
    for name, (*_, options) in BAD.items()
    for command in COMMANDS
    if command != "compare" or "--by" not in options
]


@pytest.mark.parametrize(("name", "command"), CASES)
def test_a_bad_table_is_refused_in_one_line_and_nothing_is_written(
    name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, content, message, *options = BAD[name]
    given = {path: tmp_path / path for path in ("q.csv", "o.json", "folder")}
    given["s"] = tmp_path / (file or "s.csv")
    given["q.csv"].write_text("q\n1\n1\n1\n")
    if file:
        given["s"].write_bytes(content)
    words = " ".join([COMMANDS[command], *options]).split()
    before = sorted(tmp_path.rglob("*"))

    code = main([str(given.get(word, word)) for word in words])

    shown = capsys.readouterr()
    assert (code, shown.out, shown.err.count("\n")) == (2, "", 1), shown.err
    assert re.search(message, shown.err), shown.err
    assert str(tmp_path) in shown.err or "metrics" in message
    assert sorted(tmp_path.rglob("*")) == before


def test_a_place_where_nothing_can_be_written_is_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("cfcore.report.findings.score_findings")
    (tmp_path / "s.csv").write_bytes(table())

    assert main(["report", str(tmp_path / "s.csv"), "--out", str(tmp_path / "s.csv/out")]) == 2

    assert capsys.readouterr().err == f"cfcore: {tmp_path}/s.csv/out: Not a directory\n"
    (tmp_path / "audit.json").touch()
    assert main(["report", str(tmp_path / "s.csv"), "--out", str(tmp_path)]) == 2
    assert "holds an audit; write the report elsewhere" in capsys.readouterr().err


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "work"
    small_audit.make(folder)
    return folder


def cell(column: str, value: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda rows: rows.assign(**{column: [*rows[column][:7], value, *rows[column][8:]]})


AUDITED = {
    "a category": (cell("view", "LL"), "row 9, column view: 'LL' is not one of AP, PA"),
    "a value outside": (cell("age", "91"), "row 9, column age: '91' is not in the graph's range"),
    "text": (cell("age", "old"), "row 9, column age: 'old' is not a finite number"),
    "an empty cell": (cell("age", ""), "row 9, column age: the cell is empty"),
    "a label": (cell("ill", "2"), "row 9, column ill: '2' is not one of 0, 1"),
    "no patient": (cell("patient", " "), "row 9, column patient: the cell is empty"),
    "no file": (
        cell("file", "../x.png"),
        r"row 9, column file: .*\.\./x.png: there is no such file",
    ),
    "a folder": (cell("file", "."), "row 9, column file: .*is no image that can be read"),
    "a training image": (cell("file", "000.png"), "row 2, column file: the image is in a training"),
    "a shared patient": (cell("patient", "p0"), "rows: 1 patients are in training and in audited"),
    "no column": (
        lambda rows: rows.drop(columns="age"),
        "graph.age: table.csv has no column 'age'",
    ),
    "few rows": (lambda rows: rows[:40], "rows: 20 rows to train, and 60 of 12 patients"),
    "no rows": (lambda rows: rows[:0], "table.csv: there are no rows below the header"),
    "one label": (lambda rows: rows.assign(ill="0"), "labels: 'ill' has one value only"),
}


@pytest.mark.parametrize("name", AUDITED)
def test_a_bad_table_of_an_audit_is_refused_by_its_cell(name: str, original: Path) -> None:
    change, message = AUDITED[name]
    rows = small_audit.table().astype(str)
    change(rows).to_csv(original / "table.csv", index=False)
    before = sorted(original.rglob("*"))

    with pytest.raises(InputError, match=message):
        read_plan(original / "plan.yml")

    assert sorted(original.rglob("*")) == before


HOSTILE = [
    "<script>alert(1)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "../../etc/passwd",
    'a" onload="alert(1)',
    "\\input{x} $y$ 50 % & # ~ ^",
    "x" * 3000,
    "naïve – 患者 \u202e",
    "two\nlines\tand: a colon",
    "</style></title>",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_a_column_or_a_label_is_called_it_is_text(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2034)
    columns = ["p_obs", "p_cf_0", "p_cf_1"]
    frame = pd.DataFrame(rng.random((40, 3)), columns=[f"{name}:{c}" for c in columns])
    frame[f"{name}:y"] = rng.integers(2, size=40)
    frame[name] = [name, f"{name} "[1:]] * 20
    frame.to_csv(tmp_path / "s.csv", index=False)
    words = ["report", str(tmp_path / "s.csv"), "--out", str(tmp_path / "out"), "--by", name]

    assert main([*words, "--title", name, "--replicates", "9"]) == 0

    page = (tmp_path / "out/report.html").read_text()
    assert str(escape(name)) in page
    assert name not in page or escape(name) == name
    found = json.loads((tmp_path / "out/report.json").read_text())
    assert list(found["predictors"]) == [name]
    tex = (tmp_path / "out/tables.tex").read_text()
    assert not re.search(r"\\input|(?<!\\)[$#]|(?<!\\)& #", tex)
    assert {path.name for path in tmp_path.rglob("*")} == {
        "s.csv", "out", "report.html", "report.json", "tables.tex"
    }  # fmt: skip


def test_the_good_tables_that_were_spoilt_are_good(original: Path, tmp_path: Path) -> None:
    shutil.copytree(original / "png", tmp_path / "work/png")
    shutil.copy(original / "mine.pt", tmp_path / "work")
    small_audit.table().to_csv(tmp_path / "work/table.csv", index=False)
    assert len(read_plan(small_audit.write(tmp_path / "work")).audited) == 120
    for name, content in (("s.csv", table()), ("s.parquet", parquet()), ("s.npz", npz(scale=2))):
        (tmp_path / name).write_bytes(content)
        assert main(["evaluate", str(tmp_path / name), "--replicates", "9"]) == 0
