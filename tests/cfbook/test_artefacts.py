"""The manifest of what comes with the project."""

import re
from pathlib import Path

import pandas as pd
import pytest

from cfbook.paths import DATA
from cfbook.production import artefacts
from cfcore.checks import InputError

ROOT = Path(__file__).parents[2]


def test_every_file_is_in_the_manifest_with_its_rule_and_its_hash() -> None:
    assert artefacts._compare() == []
    kept = pd.read_csv(DATA / "manifest.csv", dtype=str).fillna("")
    made = kept[kept.part != ""]
    assert len(made) > 300 and (made.seed != "").all()
    assert set(kept[kept.part == ""].rule) == {"input", "exploratory"}


def test_every_rule_of_the_manifest_is_in_the_workflow_and_in_its_part() -> None:
    text = (ROOT / "Snakefile").read_text()
    rules = set(re.findall(r"^\s*rule (\w+):", text, flags=re.MULTILINE))
    named = {kind.rule for kind in artefacts._KINDS if kind.part}
    assert named <= rules
    assert {f"part_{kind.part}" for kind in artefacts._KINDS if kind.part} <= rules


def test_a_file_that_no_rule_wrote_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "stray.csv").write_text("a\n1\n")
    with pytest.raises(InputError, match=r"stray\.csv is written by 0 rules"):
        artefacts.manifest(tmp_path)


def test_whatever_changed_is_told(tmp_path: Path) -> None:
    (tmp_path / "paper").mkdir()
    for name in ("one.csv", "two.csv"):
        (tmp_path / "paper" / name).write_text(name)
    artefacts.manifest(tmp_path).to_csv(tmp_path / "manifest.csv", index=False)
    assert artefacts._compare(tmp_path) == []
    (tmp_path / "paper" / "one.csv").write_text("other")
    (tmp_path / "paper" / "two.csv").rename(tmp_path / "paper" / "three.csv")
    assert artefacts._compare(tmp_path) == [
        "paper/one.csv has changed", "paper/three.csv is not in the manifest",
        "paper/two.csv is missing",
    ]  # fmt: skip


def test_a_part_removes_its_own_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefacts, "DATA", tmp_path)
    for name in ("results/leak.csv", "paper/one.csv", "results/label_free.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a")
    monkeypatch.setattr(artefacts, "_files", lambda: ["results/leak.csv", "paper/one.csv"])
    artefacts._clear("5")
    left = sorted(path.name for path in tmp_path.rglob("*.csv"))
    assert left == ["label_free.csv", "one.csv"]


def test_times_are_the_sum_over_the_jobs_of_a_rule(tmp_path: Path) -> None:
    for name, seconds in {"predictor-a": 60, "predictor-b": 90, "leak": 30}.items():
        (tmp_path / f"{name}.tsv").write_text(f"s\tcpu_time\n1.0\t{seconds}\n")
    found = artefacts._times(tmp_path).set_index("rule")
    assert found.minutes.to_dict() == {"leak": 0.5, "predictor": 2.5}
    assert found.jobs.to_dict() == {"leak": 1, "predictor": 2}


def test_the_page_lists_every_rule_with_its_files_and_says_what_moves() -> None:
    page = artefacts._page()
    kept = pd.read_csv(DATA / "manifest.csv")
    assert all(f"<td>{rule}</td>" in page for rule in kept.rule.unique())
    moved = pd.read_csv(DATA / "benchmarks/another_processor.csv")
    assert f"Of {len(moved)} published means over 5 trainings" in page
