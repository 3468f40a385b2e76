"""The command line: the same numbers, and one helpful line when something is wrong."""

import gzip
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from cfcore import Predictions, bootstrap, evaluate
from cfcore.cli import main, parser
from cfcore.predictions import save_all

HEADER = "p_obs,y,p_cf_0,p_cf_1"
ROWS = ["0.9,1,0.8,0.4", "0.2,0,0.1,0.3", "0.6,1,0.7,0.2"]


def write(folder: Path, text: str | bytes, name: str = "scores.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def table(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, *(rows or ROWS)]) + "\n"


def test_the_command_gives_the_numbers_of_evaluate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.random((50, 4)), columns=["p_obs", "p_cf_0", "p_cf_1", "p_cf_2"])
    frame["y"] = rng.integers(2, size=50)
    frame["name"] = 'a, "quoted"\nname'
    frame.to_csv(tmp_path / "scores.csv", index=False)
    pd.DataFrame({"q": [0.2, 0.3, 0.5]}).to_csv(tmp_path / "q.csv", index=False)
    words = (
        "evaluate {0}/scores.csv --q {0}/q.csv --threshold 0.4 --alphas 0.3 0 --bins 7 --json {0}/o"
    )

    code = main(words.format(tmp_path).split())

    expected = evaluate(
        frame.p_obs,
        frame[["p_cf_0", "p_cf_1", "p_cf_2"]],
        frame.y,
        q=[0.2, 0.3, 0.5],
        threshold=0.4,
        alphas=(0.3, 0),
        bins=7,
    )
    assert code == 0
    assert json.loads((tmp_path / "o").read_text()) == pytest.approx(expected, rel=1e-12)
    shown = capsys.readouterr().out
    assert "N = 50, K = 3" in shown
    for name, value in expected.items():
        assert any(line.split()[:2] == [name, f"{value:.4f}"] for line in shown.splitlines())


def test_columns_may_come_in_any_order_and_labels_may_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        tmp_path, "\ufeffp_cf_1, p_obs ,id,p_cf_0\r\n0.4,0.9,x,0.8\r\n\r\n0.3,0.2,y,0.1\r\n"
    )

    assert main(["evaluate", str(path), "--json", str(tmp_path / "out.json")]) == 0

    expected = evaluate([0.9, 0.2], [[0.8, 0.4], [0.1, 0.3]])
    assert json.loads((tmp_path / "out.json").read_text()) == expected
    assert "R_orig" not in capsys.readouterr().out


def test_ten_columns_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = [f"p_cf_{k}" for k in range(12)]
    values = np.random.default_rng(1).random((5, 12))
    frame = pd.DataFrame(values, columns=names)[sorted(names)].assign(p_obs=0.5)
    frame.to_csv(tmp_path / "scores.csv", index=False)
    q = np.arange(12) / 66
    pd.DataFrame({"q": q}).to_csv(tmp_path / "q.csv", index=False)

    with pytest.warns(UserWarning, match="undefined"):
        expected = evaluate(np.full(5, 0.5), values, q=q)
    words = ["--q", str(tmp_path / "q.csv"), "--json", str(tmp_path / "out.json")]
    assert main(["evaluate", str(tmp_path / "scores.csv"), *words]) == 0

    assert json.loads((tmp_path / "out.json").read_text())["S_var"] == expected["S_var"]


def test_undefined_metrics_are_null_and_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, table("0.5,1,0.5,0.5", "0.5,0,0.5,0.5"))

    assert main(["evaluate", str(path), "--json", str(tmp_path / "out.json")]) == 0

    shown = capsys.readouterr()
    assert shown.err.startswith("cfcore: warning: S_rank, tau_b undefined")
    assert shown.err.count("\n") == 1
    assert "tau_b            undefined" in shown.out
    assert json.loads((tmp_path / "out.json").read_text())["S_rank"] is None


def test_intervals_are_printed_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, table())

    assert main(["evaluate", str(path), "--replicates", "50"]) == 0

    *lines, note = capsys.readouterr().out.splitlines()[1:]
    assert all("[" in line and "]" in line for line in lines)
    assert note.startswith("†") and sum("†" in line for line in lines) == 7


def clustered(folder: Path, identifiers: list, column: str = "patient") -> pd.DataFrame:
    """A file in which the rows of a patient are all the same; 40 rows."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.random((8, 3)), columns=["p_obs", "p_cf_0", "p_cf_1"])
    frame["y"] = rng.integers(2, size=8)
    frame = frame.loc[np.repeat(np.arange(8), 5)].reset_index(drop=True)
    frame[column] = np.repeat(identifiers, 5)
    frame.to_csv(folder / "scores.csv", index=False)
    return frame


@pytest.mark.parametrize(
    ("identifiers", "column", "options"),
    [
        (list("abcdefgh"), "patient", []),
        ([9, 10, 11, 100, 2, 3, 4, 5], "patient", []),
        (list("abcdefgh"), "who", ["--patient", "who"]),
    ],
)
def test_intervals_resample_the_patients_of_the_file(
    identifiers: list,
    column: str,
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    frame = clustered(tmp_path, identifiers, column)
    path, out = tmp_path / "scores.csv", tmp_path / "out.json"
    words = ["evaluate", str(path), "--replicates", "200", "--json", str(out), *options]

    assert main(words) == 0

    data = (frame.p_obs, frame[["p_cf_0", "p_cf_1"]], frame.y)
    expected = bootstrap(*data, patient=frame[column], replicates=200).set_index("metric")
    rows = bootstrap(*data, replicates=200).set_index("metric")
    written = json.loads(out.read_text())
    first = capsys.readouterr().out.splitlines()[0]
    assert (
        f"N = 40, K = 2; 95 % intervals from 200 samples of 8 patients (column {column})" in first
    )
    assert list(written["intervals"]) == list(expected.index)
    for name, ends in written["intervals"].items():
        assert ends == pytest.approx(expected.loc[name, ["low", "high"]].tolist(), rel=1e-12)
    low, high = written["intervals"]["S_var"]
    assert high - low > 1.5 * (rows.high - rows.low)["S_var"]
    about = {"level": 0.95, "replicates": 200, "patient": column, "patients": 8}
    assert written["resampling"] == about


def test_without_a_column_of_patients_the_rows_are_resampled_and_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write(tmp_path, table()), tmp_path / "out.json"

    assert main(["evaluate", str(path), "--replicates", "50", "--json", str(out)]) == 0

    assert "50 samples of the 3 rows" in capsys.readouterr().out
    about = json.loads(out.read_text())["resampling"]
    assert (about["patient"], about["patients"]) == (None, 3)


def test_an_undefined_interval_is_null(tmp_path: Path) -> None:
    path, out = write(tmp_path, table("0.5,1,0.5,0.5", "0.5,0,0.5,0.5")), tmp_path / "out.json"

    assert main(["evaluate", str(path), "--replicates", "20", "--json", str(out)]) == 0

    intervals = json.loads(out.read_text())["intervals"]
    assert (intervals["S_rank"], intervals["S_var"]) == (None, [0, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--patient", "who"], "--patient is about intervals only"),
        (["--replicates", "9", "--patient", "who"], "row 1: there is no column who (found: p_obs"),
        (["--replicates", "9"], "row 3, column patient: the cell is empty"),
    ],
)
def test_patients_that_cannot_be_told_apart_are_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, table(f"{ROWS[0]},a", f"{ROWS[1]}, ", header=f"{HEADER},patient"))

    assert main(["evaluate", str(path)]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(path), *options]) == 2

    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert message in shown.err


BAD = {
    "NaN": (table(ROWS[0], "nan,0,0.1,0.3"), ["row 3", "column p_obs", "nan"]),
    "above 1": (table(ROWS[0], ROWS[1], "0.5,0,0.1,1.3"), ["row 4", "column p_cf_1", "1.3"]),
    "below 0": (table("-0.1,0,0.1,0.3"), ["row 2", "column p_obs", "-0.1"]),
    "label": (table("0.1,2,0.1,0.3"), ["row 2", "column y", "2 is not a label"]),
    "after a blank line": (table(ROWS[0], "", "0.1,2,0.1,0.3"), ["row 4", "2 is not a label"]),
    "after a long cell": (
        table('0.1,1,0.1,0.3,"two\nlines"', "0.1,1,0.1,7,x", header=HEADER + ",note"),
        ["row 4", "7 is not"],
    ),
    "underscore": (table("0.1,1,0_1,0.3"), ["row 2", "column p_cf_0", "'0_1'"]),
    "other digits": (table("0.1,1,٠.٥,0.3"), ["row 2", "column p_cf_0", "'٠.٥'"]),
    "too large": (table("0.1,1,1e400,0.3"), ["row 2", "column p_cf_0", "'1e400'"]),
    "a hair": (table("1.00000000001,1,0.1,0.3"), ["row 2", "1.00000000001 is not a prob"]),
    "in a long cell": (
        table('0.1,1,7,0.3,"two\nlines"', header=HEADER + ",note"),
        ["row 2", "7 is not"],
    ),
    "row 10,003": (table(*[ROWS[0]] * 10_001, "0.1,5,0.1,0.3"), ["row 10003", "5 is not a label"]),
    "text": (table(ROWS[0], "0.1,1,high,0.3"), ["row 3", "column p_cf_0", "'high'"]),
    "empty cell": (table("0.1,1,,0.3"), ["row 2", "column p_cf_0", "empty"]),
    "short row": (table(ROWS[0], "0.1,1,0.1"), ["row 3", "3 cells", "4"]),
    "long row": (table(ROWS[0], "0.1,1,0.1,0.2,0.3"), ["row 3", "5 cells", "4"]),
    "no p_obs": (table("0.1,1,0.1", header="p,y,p_cf_0"), ["no column p_obs"]),
    "no p_cf": (table("0.1,1", header="p_obs,y"), ["no column p_cf_0"]),
    "gap": (table("0.1,0.1,0.1", header="p_obs,p_cf_0,p_cf_2"), ["p_cf_1", "p_cf_2"]),
    "from 1": (table("0.1,0.1", header="p_obs,p_cf_1"), ["no column p_cf_0"]),
    "odd name": (table("0.1,0.1,1", header="p_obs,p_cf_0,p_cf_x"), ["'p_cf_x'"]),
    "twice": (table("0.1,0.1,1", header="p_obs,p_cf_0,p_cf_0"), ["row 1", "2 columns", "p_cf_0"]),
    "true label": (table("0.1,True,0.1,0.3"), ["row 2", "column y: 'True' is not a label, 0 or 1"]),
    "yes label": (table("0.1,yes,0.1,0.3"), ["row 2", "'yes' is not a label, 0 or 1"]),
    "logits": (table("-1.2,1,0.3,2.2"), ["row 2", "-1.2 is not", "are these logits?"]),
    "per cent": (table("0.7,1,55,80"), ["row 2", "55 is not a prob", "per cent?"]),
    "npz": (b"PK\x03\x04\x14\x00", ["this is a zip archive such as npz", "a table is exp"]),
    "gzip": (gzip.compress(table().encode()), ["this is gzip", "a table is expected"]),
    "parquet": (b"PAR1\x15\x04", ["this is parquet", "a table is expected"]),
    "empty": ("", ["the file is empty"]),
    "header only": (HEADER + "\n", ["no rows"]),
    "not text": (b"\x89PNG\r\n\xff\xfe", ["not UTF-8 text (byte 0)", "a table is expected"]),
    "zero byte": (table("0.1,1,\0,0.3"), ["row 2"]),
    "open quote": (table('0.1,1,"0.1,0.3'), ["row"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_end_with_one_line_that_names_the_place(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, parts = BAD[name]
    path, out = write(tmp_path, text), write(tmp_path, "old", "out.json")

    code = main(["evaluate", str(path), "--json", str(out)])

    shown = capsys.readouterr()
    assert (code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert [part for part in [str(path), *parts] if part not in shown.err] == []
    assert out.read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.json", "scores.csv"]


BAD_WEIGHTS = {
    "sum": ("q\n0.5\n0.6\n", ["sum to 1.1"]),
    "negative": ("q\n1.5\n-0.5\n", ["row 3", "-0.5"]),
    "too many": ("q\n0.5\n0.25\n0.25\n", ["3 weights", "2 interventions"]),
    "text": ("q\n0.5\nhalf\n", ["row 3", "'half'"]),
    "no column": ("weight\n0.5\n0.5\n", ["row 1", "no column q"]),
    "empty": ("", ["empty"]),
}


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_bad_weights_end_with_one_line_that_names_the_place(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, parts = BAD_WEIGHTS[name]
    path, weights = write(tmp_path, table()), write(tmp_path, text, "q.csv")

    assert main(["evaluate", str(path), "--q", str(weights)]) == 2

    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert [part for part in [str(weights), *parts] if part not in message] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "missing.csv"], "missing.csv: No such file"),
        (["evaluate", "."], ".: Is a directory"),
        (["evaluate", "scores.csv", "--q", "missing.csv"], "missing.csv: No such file"),
        (["evaluate", "scores.csv", "--threshold", "2"], "cfcore: threshold: 2 is outside"),
        (["evaluate", "scores.csv", "--threshold", "x"], "--threshold: invalid float value: 'x'"),
        (["evaluate", "scores.csv", "--alphas", "0.1", "0.1"], "both called 0.10"),
        (["evaluate", "scores.csv", "--bins", "0"], "bins: 0 is less than 1"),
        (["evaluate", "scores.csv", "--bins", "1.5"], "--bins: invalid int value: '1.5'"),
        (["evaluate", "scores.csv", "--json", "no/such/folder/o.json"], "no/such/folder"),
        (["evaluate", "scores.csv", "--colour"], "unrecognized arguments: --colour"),
        (["evaluate"], "required: FILE"),
        (["conjure"], "conjure"),
        ([], "COMMAND"),
        (["run", "missing.md", "out.ipynb"], "missing.md: there is no such notebook"),
        (["audit-paper", "--json", "no/such/folder/o.json"], "no/such/folder"),
    ],
)
def test_bad_calls_end_with_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, table())

    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code

    shown = capsys.readouterr()
    assert (code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert message in shown.err
    assert [file.name for file in tmp_path.iterdir()] == ["scores.csv"]


def test_help_names_every_command_and_option() -> None:
    words = {
        "": ["evaluate", "audit-paper", "marginalise", "run", "--version"],
        "marginalise": ["--preset", "--out", "--data", "--generator", "--predictor", "--do", "--q"],
        "evaluate": [
            "FILE",
            "--q",
            "--threshold",
            "--alphas",
            "--bins",
            "--json",
            "--replicates",
            "--patient",
            "p_obs",
            "p_cf",
        ],
        "audit-paper": ["--json"],
        "run": ["NOTEBOOK", "OUT.ipynb", "--parameter"],
    }
    for command, expected in words.items():
        call = [sys.executable, "-m", "cfcore.cli", *command.split(), "--help"]
        shown = subprocess.run(call, capture_output=True, text=True, check=True).stdout
        assert [word for word in expected if word not in shown] == []


def registered() -> dict[str, str]:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    return project["entry-points"]["cfcore.commands"]


@pytest.mark.parametrize("name", registered())
def test_every_command_of_the_packages_explains_itself(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint(name, registered()[name], "cfcore.commands")
    monkeypatch.setattr("cfcore.cli.entry_points", lambda group: [entry])

    (command,) = parser()._subparsers._group_actions[0].choices.values()

    assert command.description
    assert [each.dest for each in command._actions if not (each.help or "").strip(".")] == []


@dataclass(frozen=True)
class Place:
    """Where.

    Args:
        town: The town.
        hot_days (N): Days.
    """

    town: str = "here"
    hot_days: int = 1


OWN = Place(hot_days=5)


def own(
    word: Path,
    others: Sequence[int] = (),
    *,
    must: float,
    kind: Literal["a", "b"] = "a",
    place: Place = OWN,
    pair: Sequence[tuple[str, str]] = (),
    loud: bool = False,
) -> list:
    """Do something. 100 % of it.

    Args:
        word (WORD): A word.
        others: More.
        must (X): Needed.
        kind: Which.
        pair (-p A B): Two.
        loud: Aloud.
    """
    return [word, others, must, kind, place, pair, loud]


def test_a_signature_is_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = EntryPoint("own", f"{__name__}:own", "cfcore.commands")
    monkeypatch.setattr("cfcore.cli.entry_points", lambda group: [entry])

    assert main(["own", "w", "--must", "2"]) == 0
    plain = capsys.readouterr().out.split("\n")
    words = "own w 3 4 --must 1e3 --kind b --town x -p a 1 --pair b 2 --loud"
    assert main(words.split()) == 0
    full = capsys.readouterr().out.split("\n")

    assert plain == ["w", "()", "2.0", "a", str(OWN), "()", "False", ""]
    given = [str(Place("x", 5)), "[['a', '1'], ['b', '2']]", "True", ""]
    assert full == ["w", "[3, 4]", "1000.0", "b", *given]
    for wrong in (["own"], ["own", "w"], ["own", "w", "--must", "1", "--kind", "c"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)
    with pytest.raises(SystemExit):
        main(["own", "--help"])
    shown = capsys.readouterr().out
    parts = ("100 % of", "WORD", "-p A B", "--hot-days N", "default: 5")
    assert [part for part in parts if part not in shown] == []


def test_the_file_of_a_marginalisation_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = torch.Generator().manual_seed(2030)
    logit, y = torch.randn(30, 4, generator=rng), torch.arange(30) % 2
    grid = {"age": torch.arange(3.0)}
    made = {
        name: Predictions(logit[:, 0] + shift, logit[:, 1:], grid, y=y, patient=list(range(30)))
        for name, shift in (("plain", 0), ("shifted", 1))
    }
    path, out = save_all(made, tmp_path / "both.safetensors"), tmp_path / "out.json"

    assert main(["evaluate", str(path), "--replicates", "20", "--json", str(out)]) == 0

    assert "shifted" in capsys.readouterr().out
    rows = {(r["label"], r["metric"]): r["estimate"] for r in json.loads(out.read_text())["rows"]}
    for name, one in made.items():
        expected = {(name, metric): value for metric, value in one.evaluate().items()}
        assert {key: rows[key] for key in expected} == pytest.approx(expected)
    uneven = replace(made["plain"], q=torch.tensor([0.5, 0.3, 0.2]))
    own = uneven.save(tmp_path / "q.safetensors")
    assert main(["evaluate", str(own), "--json", str(out)]) == 0
    assert json.loads(out.read_text()) == pytest.approx(uneven.evaluate())
    drawn = replace(made["plain"], grid={"age": torch.rand(30, 3, generator=rng)})
    own = drawn.save(tmp_path / "draws.safetensors")
    assert main(["evaluate", str(own), "--json", str(out)]) == 0
    assert json.loads(out.read_text()) == pytest.approx(drawn.evaluate())
    assert drawn.evaluate()["S_var"] > made["plain"].evaluate()["S_var"]  # of few draws
    assert main(["report", str(own), "--out", str(tmp_path / "report"), "--replicates", "2"]) == 0


def test_a_table_may_come_through_a_pipe(tmp_path: Path) -> None:
    path = write(tmp_path, table())
    call = f"{sys.executable} -m cfcore.cli evaluate <(cat {path})"

    shown = subprocess.run(["bash", "-c", call], capture_output=True, text=True, check=True)

    assert "N = 3, K = 2" in shown.stdout


@pytest.mark.parametrize("words", ["--help", "--version", "evaluate --help", "train --help"])
def test_help_does_not_wait_for_torch(words: str) -> None:
    script = (
        "import sys; from cfcore.cli import main\n"
        f"try: main({words.split()!r})\n"
        "except SystemExit: print('loaded:', *sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    loaded = shown.stdout.partition("loaded:")[2].split()
    assert "cfcore.cli" in loaded
    assert {"torch", "pandas", "scipy", "zuko", "jupytext"} & set(loaded) == set()


def test_the_audit_prints_and_writes_what_it_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit-paper", "--json", str(tmp_path / "audit.json")]) == 0

    findings = json.loads((tmp_path / "audit.json").read_text())
    shown = capsys.readouterr().out
    keys = {"setting", "family", "strength", "identity", "where", "metric", "values", "excess"}
    assert f"{len(findings)} findings" in shown
    assert all(keys <= set(finding) and finding["excess"] > 0 for finding in findings)
    assert {finding["setting"] for finding in findings} <= {"C->C", "M->M", "C->M"}
    assert any("convex" in finding["identity"] for finding in findings)


@pytest.mark.parametrize("name", ["scores.csv", "q.csv", "link.csv"])
def test_an_input_is_never_overwritten(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, weights = write(tmp_path, table()), write(tmp_path, "q\n0.5\n0.5\n", "q.csv")
    (tmp_path / "link.csv").symlink_to(path)

    words = ["evaluate", str(path), "--q", str(weights), "--json", str(tmp_path / name)]
    assert main(words) == 2

    assert "this is an input" in capsys.readouterr().err
    assert path.read_text() == table()


def test_links_are_written_through_and_odd_files_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, real = write(tmp_path, table()), write(tmp_path, "old", "real.json")
    real.chmod(0o600)
    (tmp_path / "link.json").symlink_to(real)
    os.mkfifo(tmp_path / "pipe")

    assert main(["evaluate", str(path), "--json", str(tmp_path / "link.json")]) == 0
    assert (tmp_path / "link.json").is_symlink()
    assert "R_orig" in json.loads(real.read_text())
    assert real.stat().st_mode & 0o777 == 0o600
    capsys.readouterr()
    for odd, message in (("pipe", "Invalid argument"), (".", "Is a directory"), ("", "directory")):
        assert main(["evaluate", str(path), "--json", str(tmp_path / odd)]) == 2
        assert message in capsys.readouterr().err


def test_options_reach_the_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, table())
    options = ["--threshold", "0.25", "--alphas", "0.3", "--bins", "3", "--json"]

    codes = [
        main(["evaluate", str(path), *options, str(tmp_path / name), *extra])
        for name, extra in (("plain", []), ("intervals", ["--replicates", "20"]))
    ]

    assert codes == [0, 0]
    plain, intervals = (
        json.loads((tmp_path / name).read_text()) for name in ("plain", "intervals")
    )
    assert list(intervals) == [*plain, "intervals", "resampling"]
    assert plain == {name: intervals[name] for name in plain}
    assert "R_CVaR_0.30" in capsys.readouterr().out


def test_a_reader_who_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    path = write(tmp_path, table())
    call = f"{sys.executable} -m cfcore.cli evaluate {path} | true"

    shown = subprocess.run(["bash", "-c", call], capture_output=True, text=True, check=True)

    assert shown.stderr == ""


NOTEBOOK = "---\nkernelspec: {name: python3, display_name: P, language: python}\n---\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["n.md", "n.md"], "ends in .ipynb"),
        (["n.md", "o.ipynb", "-p", "a", "[1"], "'[1' is not a value in YAML"),
        (["n.md", "o.ipynb", "-p", "a", "2020-01-01"], "is a date"),
        (["n.md", "o.ipynb", "-p", "a", "1"], "there is no parameter 'a'"),
        (["scores.csv", "o.ipynb"], "notebooks end in .md or .ipynb"),
        (["bad.ipynb", "o.ipynb"], "this is not a notebook"),
    ],
)
def test_notebooks_that_cannot_run_end_with_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, table())
    write(tmp_path, "{", "bad.ipynb")
    write(
        tmp_path,
        NOTEBOOK + "```{code-cell}\n:tags: [parameters]\nimport os\nb, c = 1, 2\n```\n",
        "n.md",
    )

    assert main(["run", *words]) == 2

    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert message in shown.err
    assert not (tmp_path / "o.ipynb").exists()


def test_marginalising_needs_no_data_and_goes_on_when_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["marginalise", "--preset", "smoke", "--out", "found", "--do", "sex=0,1"]

    assert main(words) == 0
    listed = capsys.readouterr().out.split()
    before = {name: Path(name).read_bytes() for name in listed}
    assert main(words) == 0

    assert before == {name: Path(name).read_bytes() for name in listed}
    assert [Path(name).name for name in listed] == [
        "basic.safetensors",
        "logit-0.5.safetensors",
        "logit-1.safetensors",
        "logit-2.safetensors",
        "manifest.json",
    ]
    basic, offset = (Predictions.load(f"found/{name}.safetensors") for name in ("basic", "logit-2"))
    assert basic.logit_cf.shape[1] == 2
    assert (offset.logit_cf - basic.logit_cf).mean(dim=0).tolist() == pytest.approx(
        [0, 2], abs=1e-5
    )
    assert offset.evaluate()["S_flip"] > basic.evaluate()["S_flip"]


PLUGIN = """
import torch

class Brighter:
    def abduct(self, x, pa, *, index=None, rng=None):
        return x
    def predict(self, noise, pa):
        return (noise + 0.1 * pa["sex"][:, None, None, None]).clamp(0, 1)

def brightness(x, pa):
    return x.mean(dim=(1, 2, 3))
"""


def test_marginalising_takes_your_own_images_generator_and_predictor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, PLUGIN, "plugin_of_mine.py")
    for i in range(3):
        pixels = np.full((20, 20), 60 * i, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    rows = [f"{i}.png,p{i},{i % 2},{40 + i},0,0.3,{i % 2}" for i in range(3)]
    head = "image,patient,sex,age,race,lung_size,effusion"
    write(tmp_path, "\n".join([head, *rows]) + "\n", "table.csv")
    write(tmp_path, "sex,count\n0,3\n1,1\n", "population.csv")
    words = "marginalise --out found --data table.csv --generator plugin_of_mine:Brighter"
    words += " --predictor mine=plugin_of_mine:brightness --do sex=0,1 --q population.csv"

    assert main(words.split()) == 0

    given = Predictions.load("found/mine.safetensors")
    assert given.q.tolist() == [0.75, 0.25]
    step = given.logit_cf[:, 1] - given.logit_cf[:, 0]
    assert step.tolist() == pytest.approx([0.1, 0.1, 0.1], abs=1e-5)
    assert given.patient == ["p0", "p1", "p2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--preset novel", "there is no preset 'novel'"),
        ("--hospital X", "X"),
        ("--preset paper", "hospital C need --chexpert FOLDER"),
        ("--preset paper --hospital M", "need --mimic FOLDER and --mimic-iv FOLDER"),
        ("--preset paper --hospital X", "X"),
        ("--chexpert nowhere", "name a generator"),
        ("--chexpert nowhere --generator plugin:Mine", "nowhere"),
        ("--data scores.csv", "name a generator"),
        ("--data missing.csv --generator os:path", "missing.csv"),
        ("--generator nothing:here", "'nothing:here' cannot be imported"),
        ("--predictor weights", "NAME=FILE"),
        ("--predictor a=missing.safetensors", "missing.safetensors"),
        ("--do height=1", "unknown variable 'height'"),
        ("--do sex=0:1", "not an intervention"),
        ("--do sex=7", "sex"),
        ("--q weights.csv", "'weights.csv' is neither"),
        ("--do sex=0,1 --q scores.csv", "scores.csv, row 1: there is no column sex"),
        ("--device warp", "'warp' cannot be used here"),
        ("--max-images 0", "max_images: 0 is less than 1"),
    ],
)
def test_a_marginalisation_that_cannot_be_done_ends_with_one_line(
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, table())
    quick = "--predictor g=operator:add" if "--predictor" not in words else ""

    assert main(f"marginalise --out found {quick} {words}".split()) == 2

    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert message in shown.err
