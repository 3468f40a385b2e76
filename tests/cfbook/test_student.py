"""The students' edition: nothing of a solution is left, anywhere, and its notebooks run."""

import ast
import html
import json
import re
import subprocess
import sys
from pathlib import Path
from shutil import copy, copytree

import nbformat
import numpy as np
import pytest
import torch
from machine import all_paths
from tiny import notebook

from cfbook import study
from cfbook.production.answers import digest
from cfbook.production.notebooks import read, run_notebook
from cfbook.production.student import _strip, _without_solutions, students_edition, worksheets
from cfcore.checks import InputError
from cfcore.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "notebooks").glob("*.md")), ROOT / "book/selfcheck.md"]
QUICK = ("printed_tables", "metrics")
BOX = re.compile(
    r"^:::\{(?:solution\} exercise-[\w-]+|admonition\} Answer)\n:class: dropdown\n(.*?)^:::$",
    re.MULTILINE | re.DOTALL,
)
ASKED = re.compile(r"^:::\{(?:exercise\}|admonition\} Question)", re.MULTILINE)
WORDS = 6


def texts(page: str) -> list[str]:
    """What stands in the solutions of a page, found by another route than the one under test."""
    return BOX.findall(page)


def phrases(solution: str) -> set[str]:
    """Runs of plain words, which no rendering changes."""
    runs = re.findall(rf"(?:[A-Za-z]+ ){{{WORDS - 1}}}[A-Za-z]+", re.sub(r"\s+", " ", solution))
    return set(runs)


def readable(path: Path) -> str:
    """All words of a file: of a page without its tags, of a notebook without its quotes."""
    text = path.read_text(errors="replace")
    if path.suffix == ".ipynb":
        text = " ".join("".join(cell["source"]) for cell in json.loads(text)["cells"]) + text
    if path.suffix == ".html":
        text = html.unescape(re.sub(r"<[^>]+>", "", text)) + text
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_exercise_has_a_solution_that_is_taken_out(path: Path) -> None:
    page = path.read_text()
    asked = ASKED.findall(page)

    assert len(texts(page)) == len(asked) >= 2
    hidden = re.findall(r"^:::\{(.+)\n:class: dropdown$", page, re.MULTILINE)
    assert len(hidden) == page.count(":class: dropdown"), "a hidden box of another form"
    named = [box for box in hidden if re.search("solution|answer", box, re.IGNORECASE)]
    assert len(named) == len(asked), "a hidden box of another name"
    left = _without_solutions(page)
    assert all(solution not in left for solution in texts(page))
    assert ASKED.findall(left) == asked
    assert [line for line in left.splitlines() if line not in page.splitlines()] == []
    boxes = re.sub(r"^```\{code-cell\}.*?^```\n", "", page, flags=re.MULTILINE | re.DOTALL)
    open_text = re.sub(r"^```\{code-cell\}.*?^```\n", "", left, flags=re.MULTILINE | re.DOTALL)
    taken = len(boxes) - len(open_text)
    assert sum(map(len, texts(page))) > 0.8 * taken - 60 * len(asked)
    assert "solution]" not in left and not re.search(r"# .*\bsolution", left)
    labels = re.findall(r"^:label: (exercise-.+)$", page, re.MULTILINE)
    assert re.findall(r"^:::\{solution\} (.+)$", page, re.MULTILINE) == labels


def test_cells_that_check_a_solution_go_with_it() -> None:
    page = "a\n```{code-cell} ipython3\n:tags: [solution]\n\nassert secret\n```\nb\n"
    page += "```{code-cell} ipython3\n:tags: [check, remove-cell]\n\ncheck(1)\n```\n"
    assert _without_solutions(page) == "a\nb\n"
    cells = [
        {"cell_type": "code", "source": ["assert secret"], "metadata": {"tags": ["solution"]}},
        {"cell_type": "code", "source": ["check(1)"], "metadata": {"tags": ["check"]}},
        {"cell_type": "code", "source": ["shown"], "metadata": {}},
    ]
    left = _strip(json.dumps({"cells": cells}).encode(), ".ipynb")
    assert [cell["source"] for cell in json.loads(left)["cells"]] == [["shown"]]


@pytest.mark.parametrize("name", [path.stem for path in PAGES[:-1]])
def test_every_chapter_has_questions_to_check_oneself_with(name: str) -> None:
    page = (ROOT / "book/selfcheck.md").read_text()
    sections = [part for part in page.split("\n## ") if f"(../notebooks/{name})" in part]

    assert len(sections) == 1
    assert len(texts(sections[0])) in (2, 3)
    title = re.search(r"^# (.+)$", (ROOT / f"notebooks/{name}.md").read_text(), re.MULTILINE)[1]
    assert sections[0].startswith(title)


def test_solutions_with_code_and_other_fences_are_taken_out_whole() -> None:
    text = "\n".join(
        [
            "before",
            "::::{solution} exercise-1",
            ":::{note}",
            "inner",
            ":::",
            "```python",
            "secret()",
            "```",
            "::::",
            "```{solution} exercise-2",
            "secret",
            "```",
            ":::{admonition} Answers of other people",
            "kept",
            ":::",
        ]
    )

    assert _without_solutions(text).splitlines() == ["before", *text.splitlines()[-3:]]


def test_a_box_that_is_not_closed_is_refused_by_file(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.md").write_text("one\n:::{solution} exercise-1\ntwo\n")

    with pytest.raises(InputError, match=r"a\.md: a solution is opened by ::: and never"):
        students_edition(tmp_path / "in", tmp_path / "out")
    assert main(["student", str(tmp_path / "none"), str(tmp_path / "out")]) == 2
    assert "none: there is no such folder" in capsys.readouterr().err


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of a small book with its own configuration: two chapters and the questions."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "notebooks").mkdir()
    for name in QUICK:
        nbformat.write(read(ROOT / f"notebooks/{name}.md"), folder / f"notebooks/{name}.ipynb")
    copytree(ROOT / "book", folder / "book")
    copy(ROOT / "_config.yml", folder)
    page = (ROOT / "book/selfcheck.md").read_text()
    (folder / "book/selfcheck.md").write_text(re.sub(r"For \[\]\(.*", "", page))
    chapters = [f"  - file: notebooks/{name}" for name in QUICK]
    toc = ["format: jb-book", "root: book/selfcheck", "chapters:", *chapters]
    (folder / "_toc.yml").write_text("\n".join(toc) + "\n")
    return folder


def render(folder: Path) -> Path:
    call = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build"]
    shown = subprocess.run([*call, str(folder)], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    return folder / "_build/html"


def test_no_word_of_a_solution_is_in_the_rendered_edition_and_all_are_in_the_book(
    sources: Path, tmp_path: Path
) -> None:
    pages = [*(ROOT / f"notebooks/{name}.md" for name in QUICK), ROOT / "book/selfcheck.md"]
    solutions = [text for page in pages for text in texts(page.read_text())]
    # What the text of the chapter says as well is no solution.
    open_text = " ".join(re.sub(r"\s+", " ", _without_solutions(p.read_text())) for p in pages)
    secrets = {p for text in solutions for p in phrases(text) if p not in open_text}
    assert len(secrets) > 2 * len(solutions)

    students_edition(sources, tmp_path / "student")
    books = {"whole": render(sources), "student": render(tmp_path / "student")}

    found = {}
    for name, book in books.items():
        files = [path for path in book.parent.parent.rglob("*") if path.is_file()]
        kinds = {".html", ".ipynb", ".md", ".js", ".txt", ".json"}
        words = [readable(path) for path in files if path.suffix in kinds]
        found[name] = {phrase for phrase in secrets if any(phrase in text for text in words)}
        index = (book / "searchindex.js").read_text()
        assert ('"solut"' in index) is (name == "whole")
        assert (book / "_sources/notebooks/metrics.ipynb").is_file()
    assert found == {"whole": secrets, "student": set()}


@pytest.fixture(scope="module")
def edition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The notebooks of the students' edition as they are now, far from the checkout."""
    whole, folder = tmp_path_factory.mktemp("all"), tmp_path_factory.mktemp("students")
    for path in PAGES[:-1]:
        nbformat.write(read(path), whole / f"{path.stem}.ipynb")
    students_edition(whole, folder)
    return folder


@pytest.mark.parametrize("name", [path.stem for path in PAGES[:-1]])
def test_no_chapter_of_the_edition_reads_a_file_beside_itself(name: str, edition: Path) -> None:
    cells = nbformat.read(edition / f"{name}.ipynb", as_version=4).cells
    words = [
        node.value
        for cell in cells
        if cell.cell_type == "code"
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    source = "\n".join(cell.source for cell in cells if cell.cell_type == "code")

    # The project's data are asked for through the package, whatever folder this is.
    words = [word for word in words if f'data_file("{word}")' not in source]
    assert words
    place = re.compile(r"\.{0,2}/\w|(data|runs|book|notebooks)/")
    assert [word for word in words if place.match(word)] == []
    assert not re.search(r"\b(read_\w+|open|Path)\(f?[\"']", source)


@pytest.mark.parametrize("name", ["printed_tables", "method", "metrics", "phantom"])
def test_notebooks_of_the_edition_run_in_a_folder_of_their_own(name: str, edition: Path) -> None:
    path = edition / f"{name}.ipynb"
    before = nbformat.read(path, as_version=4)
    nbformat.validate(before)

    executed = nbformat.read(
        run_notebook(path, edition / "out/again.ipynb", progress=False), as_version=4
    )

    text = "\n".join(cell.source for cell in executed.cells)
    assert ASKED.search(text) and "{solution}" not in text
    kinds = [cell.cell_type for cell in executed.cells]
    assert kinds.count("code") == [cell.cell_type for cell in before.cells].count("code") > 5
    assert all_paths((edition / "out/again.ipynb").read_text()) == []


@pytest.fixture(scope="module")
def sheets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sheets")
    assert len(worksheets(PAGES[:-1], folder)) == len(PAGES) - 1
    return folder


def cells_tagged(tag: str, path: Path) -> list[nbformat.NotebookNode]:
    cells = nbformat.read(path, as_version=4).cells
    return [cell for cell in cells if tag in cell.metadata.get("tags", [])]


def fill_in(path: Path, answers: dict[str, object]) -> None:
    """Write answers into the cells of a worksheet, as a student does."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        for name, value in answers.items():
            cell.source = cell.source.replace(f"{name} = None", f"{name} = {value}")
    nbformat.write(notebook, path)


@pytest.mark.parametrize("path", PAGES[:-1], ids=lambda path: path.stem)
def test_a_worksheet_has_a_cell_for_each_answer_and_nothing_of_a_solution(
    path: Path, sheets: Path
) -> None:
    sheet = nbformat.read(sheets / f"{path.stem}.ipynb", as_version=4)
    nbformat.validate(sheet)
    page = path.read_text()
    text = "\n".join(cell.source for cell in sheet.cells)

    assert ASKED.findall(text) == ASKED.findall(page)
    assert all(solution not in text for solution in texts(page))
    assert [
        cell for cell in sheet.cells if cell.get("outputs") or cell.get("execution_count")
    ] == []
    for before, cell in zip(sheet.cells, sheet.cells[1:], strict=False):
        asked, answer = ASKED.search(before.source), "answer" in cell.metadata.get("tags", [])
        assert bool(asked) is answer, f"{before.source}: no cell for the answer follows"
    # Every number that a solution computes is asked for, and checked.
    solved = [c.source for c in read(path).cells if "solution" in c.metadata.get("tags", [])]
    numbers = re.findall(r"^ *(answer_\d) = ", "\n".join(solved), re.MULTILINE)
    cells = sheets / f"{path.stem}.ipynb"
    assert [
        c.source.splitlines()[-1] for c in cells_tagged("answer", cells) if "None" in c.source
    ] == [f"{name} = None" for name in numbers]
    assert len(cells_tagged("check", cells)) == len(numbers) >= bool(solved)


def test_worksheets_say_what_is_wrong_and_accept_what_is_right(
    sheets: Path, tmp_path: Path
) -> None:
    path = Path(copy(sheets / "metrics.ipynb", tmp_path))
    label = "exercise-metrics"
    with pytest.raises(InputError, match=rf"{label}-3: there is no answer yet; put your number"):
        run_notebook(path, tmp_path / "out.ipynb", progress=False)
    stopped = nbformat.read(tmp_path / "out.failed.ipynb", as_version=4)
    said = [
        out.evalue for cell in stopped.cells for out in cell.get("outputs", ()) if "evalue" in out
    ]
    assert [one.partition(";")[0] for one in said] == [
        f"{label}-{k}: there is no answer yet" for k in (1, 3)
    ]
    assert "all checks hold" in str(stopped.cells[-1].outputs), "the cells below did not run"

    fill_in(path, {"answer_1": 3 / 4, "answer_3": 0.81})
    done = nbformat.read(run_notebook(path, tmp_path / "out.ipynb", progress=False), as_version=4)
    said = [
        out.text for c in done.cells if "check" in c.metadata.get("tags", []) for out in c.outputs
    ]
    assert said == [f"{label}-1: right\n", f"{label}-3: right\n"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "x-1: there is no answer yet"),
        (..., "x-1: there is no answer yet"),
        ("many", "x-1: the answer is a number, not 'many'"),
        (0.76, "x-1: 0.76 is not the answer"),
        (float("nan"), "x-1: nan is not the answer"),
    ],
)
def test_an_answer_that_is_not_right_is_told_so(answer: object, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        study.check_answer("x-1", answer, digest("x-1", 0.75))


def test_an_answer_counts_to_two_decimals(capsys: pytest.CaptureFixture[str]) -> None:
    for answer in (0.754, np.float32(0.75), torch.tensor(0.7461)):
        study.check_answer("x-1", answer, digest("x-1", 0.75))
    study.check_answer("x-2", -0.001, digest("x-2", 0))

    assert capsys.readouterr().out == "x-1: right\n" * 3 + "x-2: right\n"


def test_a_worksheet_with_answers_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "sheets"
    assert main(["worksheets", str(PAGES[0]), str(out)]) == 0
    (sheet,) = out.iterdir()
    sheet.write_text("my answers")

    assert worksheets(PAGES[:2], out) == [out / f"{PAGES[1].stem}.ipynb"]
    assert sheet.read_text() == "my answers"


def test_a_check_without_its_exercise_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    for source, message in (
        ("study.check_answer('exercise-a', b, 'c')", "a.md: there is no exercise exercise-a"),
        ("assert b == 3", "a.md: a cell tagged 'check' calls study.check_answer"),
    ):
        path.write_text(notebook("n: int = 1", f":tags: [check]\n{source}"))
        with pytest.raises(InputError, match=message):
            worksheets([path], tmp_path)
