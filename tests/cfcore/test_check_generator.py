"""The command that asks whether observed patients refute a generator."""

import json
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from threadpoolctl import threadpool_limits

from cfcore import Predictions
from cfcore.cli import main
from cfcore.predictions import load_all, save_all
from cfcore.standardise.check import observed_rows

GRAPH = """
sex: {kind: binary, categories: [male, female]}
lung: {kind: continuous, range: [0, 10], parents: [sex]}
"""


@pytest.fixture(scope="module", autouse=True)
def commands() -> Iterator[None]:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    place = project["entry-points"]["cfcore.commands"]["check-generator"]
    entry = EntryPoint("check-generator", place, "cfcore.commands")
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(1):
        patch.setattr("cfcore.cli.entry_points", lambda group: [entry])
        yield


def made(rows: int = 600, seed: int = 0, *, follows: bool = True) -> Predictions:
    """Sex moves the logit by 1.5; its counterfactuals do so, or else nothing."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=rows)
    sex = (rng.random(rows) < np.where(y == 1, 0.7, 0.3)).astype(float)
    lung = 5 + sex + rng.standard_normal(rows)
    logit = 2 * y - 1 + 1.5 * sex + 0.5 * rng.standard_normal(rows)
    cf = logit[:, None] + 1.5 * follows * (np.array([0.0, 1.0]) - sex[:, None])
    grid, parents = {"sex": torch.tensor([0.0, 1.0])}, {"sex": sex, "lung": lung}
    return Predictions(logit, cf, grid, y=y, parents=parents, patient=list(range(rows)))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A right generator and one that does nothing, for one predictor, and a table."""
    folder = tmp_path_factory.mktemp("check")
    save_all({"right": made(), "idle": made(follows=False)}, folder / "two.safetensors")
    observed_rows(made(600, seed=1)).to_csv(folder / "table.csv", index=False)
    (folder / "graph.yml").write_text(GRAPH)
    return folder


def test_each_predictor_has_its_answer_in_words_and_numbers(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check-generator", str(work / "two.safetensors"), "--json", str(tmp_path / "o.json")]

    assert main(words) == 0

    shown = capsys.readouterr().out
    assert "right: not refuted: 4 of 4 cells" in shown
    assert "idle: refuted: at sex = " in shown
    assert "; 4 of the 4 cells that could be checked differ" in shown
    assert "disagree with the data" in shown and "never means right" in shown
    found = json.loads((tmp_path / "o.json").read_text())["predictors"]
    assert [one["answer"] for one in found.values()] == ["not refuted", "refuted"]
    for name, one in found.items():
        assert one["text"] in shown and [cell["y"] for cell in one["cells"]] == [0, 0, 1, 1]
        given = load_all(work / "two.safetensors")[name]
        drawn = given.logit_cf[given.y == 0, 0].double().sigmoid().mean().item()
        assert one["cells"][0]["left_out"] == 0  # then every patient counts
        assert one["cells"][0]["drawn"] == pytest.approx(drawn)
        assert [row["metric"] for row in one["bounds"]][:1] == ["S_var"]
    header = next(line for line in shown.splitlines() if line.lstrip().startswith("sex"))
    assert header.split() == ["sex", "y", "n", "drawn", "known", "difference", "low", "high"]


@pytest.mark.parametrize("kind", ["csv", "tsv", "npz", "parquet"])
def test_more_observed_patients_come_from_a_table_of_any_kind(
    kind: str, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, frame = tmp_path / f"table.{kind}", pd.read_csv(work / "table.csv")
    if kind == "tsv":  # as somebody else would have it
        frame["p"] = 1 / (1 + np.exp(-frame.pop("logit")))
        frame["sex"] = frame["sex"].map({0.0: "male", 1.0: "female"})
        frame.to_csv(path, sep="\t", index=False)
    elif kind == "npz":
        np.savez(path, **{name: frame[name].to_numpy() for name in frame})
    else:
        getattr(frame, f"to_{kind}")(path, index=False)
    words = ["check-generator", str(work / "two.safetensors"), "--observed", str(path)]
    words += ["--predictor", "idle", "--graph", str(work / "graph.yml")]

    assert main(words) == 0

    shown = capsys.readouterr().out
    assert f"N = 600, K = 2, against 600 rows of {path}" in shown
    assert "idle: refuted: at sex = " in shown and "\nright:" not in shown


def test_without_overlap_nothing_is_said_but_how_many_patients_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = made()
    parents = one.parents | {"sex": torch.full((600,), 2.0)}
    replace(one, parents=parents, provenance={"predictor": "net", "label": "ill"}).save(
        tmp_path / "p.safetensors"
    )

    assert main(["check-generator", str(tmp_path / "p.safetensors")]) == 0

    shown = capsys.readouterr().out.splitlines()
    assert shown[2].startswith("net:ill: cannot be checked: no cell has 50 observed patients near")
    assert [line.split() for line in shown[3:6]] == [
        ["sex", "y", "n", "effective"], ["0", "0", "0", "0"], ["1", "0", "0", "0"],
    ]  # fmt: skip


def without(name: str) -> object:
    return lambda frame: frame.drop(columns=name)


def cell(name: str, value: object) -> object:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame[name] = frame[name].astype(object)
        frame.loc[3, name] = value
        return frame

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("logit"), "row 1: there is no column logit (found: y, sex, lung, patient)"),
        (without("lung"), "row 1: there is no column lung (found: logit, y, sex, patient)"),
        (without("y"), "row 1: there is no column y (found: logit, sex, lung, patient)"),
        (cell("lung", "large"), "row 5, column lung: 'large' is not a finite number"),
        (cell("sex", "female"), "row 5, column sex: 'female' is not a finite number"),
        (cell("logit", None), "row 5, column logit: the cell is empty"),
        (cell("y", 2), "row 5, column y: 2 is not a label, 0 or 1"),
        (cell("patient", None), "row 5, column patient: the cell is empty"),
        (lambda f: f.rename(columns={"logit": "p"}), "is not a probability in [0, 1]; are these"),
        (lambda f: f.assign(p=1).drop(columns="logit"), "row 2, column p: a probability of 0 or 1"),
        (lambda f: f[:3], "3 patients are too few for 5 folds"),
    ],
)
def test_a_bad_table_ends_with_one_line_that_names_the_place(
    change: object,
    message: str,
    work: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, out = tmp_path / "bad.csv", tmp_path / "out.json"
    change(pd.read_csv(work / "table.csv")).to_csv(path, index=False)
    words = ["check-generator", str(work / "two.safetensors"), "--predictor", "right"]

    assert main([*words, "--observed", str(path), "--json", str(out)]) == 2

    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert message in said.err and str(path) in said.err
    assert not out.exists()


def test_bad_calls_end_with_one_line(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two, table = str(work / "two.safetensors"), str(work / "table.csv")
    one, total, bare, gaps = (str(tmp_path / f"{n}.safetensors") for n in "otbg")
    right = made()
    right.save(one)
    replace(right, provenance={"effect": "total"}).save(total)
    replace(right, parents={"lung": right.parents["lung"]}).save(bare)
    lung = right.parents["lung"].clone()
    lung[7] = torch.nan
    replace(right, parents=right.parents | {"lung": lung}).save(gaps)
    before = Path(table).read_bytes()
    for words, message in (
        ([two, "--observed", table], "two.safetensors: holds 2 predictors (right, idle); say with"),
        ([two, "--predictor", "left"], "there is no predictor left (there are: right, idle)"),
        ([one, "--observed", table, "--json", table], "table.csv: this is an input"),
        ([one, "--json", one], "this is an input"),
        ([total], "t.safetensors: these are total effects: pass the graph, or what follows"),
        ([total, "--follows", "lungs"], "t.safetensors: there is no column lungs"),
        ([bare], "b.safetensors: the recorded parents lack 'sex', which worlds set"),
        ([gaps], "g.safetensors: lung[7]: the value is missing"),
        ([one, "--graph", table], "table.csv: "),
        ([table], "table.csv: these are not predictions, or damaged"),
        ([str(tmp_path / "none")], "none: there is no such file"),
    ):
        assert main(["check-generator", *words]) == 2, message
        said = capsys.readouterr()
        assert message in said.err and said.err.count("\n") == 1
        assert said.out == ""
    assert Path(table).read_bytes() == before
    for more in (["--follows", "lung"], ["--graph", str(work / "graph.yml")]):
        assert main(["check-generator", total, *more]) == 0
        assert "not refuted" in capsys.readouterr().out


def test_without_scikit_learn_the_extra_is_named(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)

    assert main(["check-generator", str(work / "two.safetensors")]) == 2

    assert "pip install 'cfcore[standardise]'" in capsys.readouterr().err
