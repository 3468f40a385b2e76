"""The teaching page suggests what works: names, types, and the cheap values executed."""

import re
from pathlib import Path
from shutil import copy

import nbformat
import pytest

from cfbook.production.notebooks import check_given, read, read_value, run_notebook
from cfcore.checks import InputError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book/teaching.md").read_text()


def suggested() -> list[tuple[str, dict[str, object]]]:
    """Chapter and parameters of every value in the table of parameters."""
    table = PAGE.split("## Parameters worth handing out")[1].split("\n## ")[0]
    found = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`(\w+)`", cells[1]) if len(cells) == 4 else []
        for value in cells[2].split(", ") if names else []:
            parts = zip(names, value.split(" and "), strict=True)
            given = {name: read_value(name, text) for name, text in parts}
            found += [(chapter, given) for chapter in chapters(cells[0])]
    return found


def chapters(cell: str) -> list[str]:
    """The notebooks that a cell of the first column names."""
    cell = re.sub(
        r"setting (\d) to (\d)",
        lambda m: ", ".join(f"setting_{k}" for k in range(int(m[1]), int(m[2]) + 1)),
        cell,
    )
    return cell.split(", ")


SUGGESTED = suggested()
# The values of the quickest chapter, those that stand at the same place of a line in one run.
QUICKEST = [given for chapter, given in SUGGESTED if chapter == "metrics"]
CHEAP = [dict(pair for one in QUICKEST[k::3] for pair in one.items()) for k in range(3)]


def words(case: object) -> str:
    return " ".join(f"{k}={v}" for k, v in case.items()) if isinstance(case, dict) else str(case)


def test_every_line_of_the_table_is_understood() -> None:
    assert len(SUGGESTED) > 40
    assert {chapter for chapter, _ in SUGGESTED} == {
        "metrics", "theory", "phantom", "predictors", "method", "stability", "claims",
        "setting_1", "setting_2", "setting_3",
    }  # fmt: skip


@pytest.mark.parametrize(("chapter", "given"), SUGGESTED, ids=words)
def test_every_suggested_parameter_exists_and_takes_the_value(
    chapter: str, given: dict[str, object]
) -> None:
    path = ROOT / f"notebooks/{chapter}.md"

    check_given(path, read(path), given)


@pytest.mark.parametrize("given", CHEAP, ids=words)
def test_suggested_values_work(given: dict[str, object], tmp_path: Path) -> None:
    assert len(given) == 3
    run_notebook(ROOT / "notebooks/metrics.md", tmp_path / "out.ipynb", given, progress=False)


def test_one_training_is_taken_from_those_that_are_kept(tmp_path: Path) -> None:
    copy(ROOT / "notebooks/setting_1.md", tmp_path)
    given = {"trainings": 1, "replicates": 20}

    out = run_notebook(tmp_path / "setting_1.md", tmp_path / "out.ipynb", given, progress=False)

    assert not (tmp_path / "runs").exists(), "something was trained or marginalised"
    cells = [cell for cell in nbformat.read(out, as_version=4).cells if cell.cell_type == "code"]
    streams = {part.get("name") for cell in cells for part in cell.outputs}
    assert "stderr" not in streams, "one training has no spread, and that needs no warning"


def test_a_patient_who_is_not_there_is_named_with_those_who_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"patients are numbered from 0 to 299"):
        run_notebook(
            ROOT / "notebooks/method.md", tmp_path / "out.ipynb", {"patient": 9999}, progress=False
        )


def test_commands_in_the_text_name_parameters_that_chapters_have() -> None:
    pages = [*(ROOT / "notebooks").glob("*.md"), *(ROOT / "book").glob("*.md")]
    command = re.compile(r"cfcore run notebooks/(\w+)\.md \S+((?: -p \w+ [^\s`]+)+)")
    found = [pair for page in pages for pair in command.findall(page.read_text())]
    found = [(chapter, options) for chapter, options in found if chapter != "NAME"]

    assert found
    for chapter, options in found:
        path = ROOT / f"notebooks/{chapter}.md"
        given = {name: read_value(name, v) for name, v in re.findall(r"-p (\w+) (\S+)", options)}
        check_given(path, read(path), given)
