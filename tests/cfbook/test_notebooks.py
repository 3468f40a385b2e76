"""Committed notebooks are what they claim: executed, in step with their text, and checkable."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import jupytext
import nbformat
import pytest
from machine import all_paths
from tiny import notebook

from cfbook.production.notebooks import parameters, read, run_notebook
from cfbook.production.records import page
from cfcore.checks import InputError
from cfcore.cli import main

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.md"))
IGNORED = {"nbval-ignore-output", "nbval-skip", "skip-execution"}


def committed(name: str) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def code_cells(name: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in committed(name).cells if cell.cell_type == "code"]


def printed(cell: nbformat.NotebookNode) -> str:
    """What a cell printed, and the words of the tables that it showed."""
    shown = [out.get("data", {}) for out in cell.outputs]
    tables = [data["text/plain"] + "\n" for data in shown if "text/html" in data]
    return "".join(out.text for out in cell.outputs if out.output_type == "stream") + "".join(
        tables
    )


def test_there_are_notebooks_and_each_has_both_files() -> None:
    assert {"metrics", "printed_tables"} <= set(NAMES)
    executed = [path.stem for path in NOTEBOOKS.glob("*.ipynb") if ".failed" not in path.stem]
    assert sorted(executed) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_code_cell_was_executed_in_order_and_without_an_error(name: str) -> None:
    cells = code_cells(name)

    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(out.output_type != "error" for cell in cells for out in cell.outputs)
    streams = [out.name for cell in cells for out in cell.outputs if out.output_type == "stream"]
    assert "stderr" not in streams


@pytest.mark.parametrize("name", NAMES)
def test_text_and_notebook_agree(name: str) -> None:
    text = jupytext.read(NOTEBOOKS / f"{name}.md")

    def cells(notebook: nbformat.NotebookNode) -> list[tuple]:
        kinds = [
            (c.cell_type, c.source, c.metadata.get("tags", []), c.metadata.get("mystnb", {}))
            for c in notebook.cells
        ]
        return [kind for kind in kinds if kind[1]]

    assert cells(committed(name)) == cells(text)


@pytest.mark.parametrize("name", NAMES)
def test_a_rounded_table_of_numbers_is_compared(name: str) -> None:
    row = re.compile(r"^\S.*?(\s+-?\d+(\.\d{1,6})?)+\s*$")
    tables = [
        cell
        for cell in code_cells(name)
        if not IGNORED & set(cell.metadata.get("tags", []))
        and sum(bool(row.match(line)) for line in printed(cell).splitlines()) >= 3
    ]
    assert tables


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_rendered_and_short_and_nothing_long_is_printed(name: str) -> None:
    numbers = re.compile(r"^\s*\S.*?(\s+-?\d+(\.\d+)?){2,}\s*$")
    for cell in code_cells(name):
        streams = "".join(out.text for out in cell.outputs if out.output_type == "stream")
        lines = streams.splitlines()
        assert len(lines) <= 30, cell.source
        assert sum(bool(numbers.match(line)) for line in lines) < 3, (
            f"a printed table: {cell.source}"
        )
        for html in (out.get("data", {}).get("text/html", "") for out in cell.outputs):
            assert 'class="dataframe"' not in html or 'class="show"' in html, cell.source
            if html.startswith('<figure class="show"'):
                body = html[html.index("<tbody>") :]
                rows, columns = body.count("<tr>"), body.split("</tr>")[0].count("<t")
                assert rows <= 14 and columns <= 10, f"fold this table: {cell.source}"


@pytest.mark.parametrize("name", NAMES)
def test_code_that_imports_draws_keeps_or_asserts_is_folded(name: str) -> None:
    aside = re.compile(r"^(import|from) |^\s*assert |\bplt\.|study\.keep\(", flags=re.MULTILINE)
    for cell in code_cells(name):
        tags = set(cell.metadata.get("tags", []))
        shown = not tags & {"hide-input", "hide-cell", "remove-cell", "parameters"}
        assert not (shown and aside.search(cell.source)), cell.source


@pytest.mark.parametrize("name", NAMES)
def test_at_most_a_quarter_of_the_cells_ignore_their_output(name: str) -> None:
    cells = code_cells(name)
    ignoring = [cell for cell in cells if IGNORED & set(cell.metadata.get("tags", []))]

    assert len(ignoring) <= len(cells) / 4


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_keep_to_the_form_of_a_chapter(name: str) -> None:
    notebook = committed(name)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)

    parts = ["Question", "Assumption", "Reading", "Caveat", "Checks of this page"]
    assert [heading for heading in headings if heading in parts] == parts
    assert len(headings) >= len(parts) + 1, "what is computed needs headings of its own"
    assert text.count(":class: dropdown") >= 2, "exercises need solutions"
    assert parameters(notebook)
    for cell in code_cells(name):
        assert not re.search(r"^\s*(def|class) ", cell.source, flags=re.MULTILINE)
    assert "assert" in code_cells(name)[-1].source


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_typed_and_explained(name: str) -> None:
    tagged = [c for c in code_cells(name) if "parameters" in c.metadata.get("tags", [])]
    lines = [line for cell in tagged for line in cell.source.splitlines() if line]

    assert len(tagged) == 1
    assert all(re.fullmatch(r"\w+: [\w\[\], |]+ = .+  # .+", line) for line in lines)


def drawing_cells(name: str) -> list[nbformat.NotebookNode]:
    return [
        cell
        for cell in code_cells(name)
        if any("image/svg+xml" in out.get("data", {}) for out in cell.outputs)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_name_a_caption_and_a_text_for_those_who_cannot_see_it(
    name: str,
) -> None:
    for cell in drawing_cells(name):
        shown = cell.metadata.get("mystnb", {})
        figure, alt = shown.get("figure", {}), shown.get("image", {}).get("alt", "")
        assert figure.get("name", "").startswith(f"fig-{name.replace('_', '-')}-"), cell.source
        assert len(figure["caption"].split()) >= 8 and len(alt.split()) >= 8, cell.source
        assert sum("image/svg+xml" in out.get("data", {}) for out in cell.outputs) == 1
        assert not any("image/png" in out.get("data", {}) for out in cell.outputs)
        text = "\n".join(c.source for c in committed(name).cells if c.cell_type == "markdown")
        assert f"{{numref}}`{figure['name']}`" in text, f"no text speaks of {figure['name']}"


def test_no_two_figures_and_no_two_numbers_of_the_book_share_a_name() -> None:
    cells = [cell for name in NAMES for cell in code_cells(name)]
    figures = [c.metadata.mystnb.figure.name for name in NAMES for c in drawing_cells(name)]
    outputs = [out for cell in cells for out in cell.outputs if "metadata" in out]
    kept = [out.metadata.scrapbook.name for out in outputs if "scrapbook" in out.metadata]

    assert len(set(figures)) == len(figures)
    assert len(set(kept)) == len(kept)


def test_every_number_that_is_kept_for_the_text_stands_in_it() -> None:
    pages = [*NOTEBOOKS.glob("*.md"), *NOTEBOOKS.parent.glob("book/*.md")]
    text = "\n".join(path.read_text() for path in pages)
    gallery = (NOTEBOOKS.parent / "cfbook/production/gallery.py").read_text()
    outputs = [out for name in NAMES for cell in code_cells(name) for out in cell.outputs]
    kept = [
        out.metadata.scrapbook.name for out in outputs if "scrapbook" in out.get("metadata", {})
    ]

    assert kept
    unread = [name for name in kept if not re.search(rf"[`: ]{re.escape(name)}[:`\n]", text)]
    assert [name for name in unread if f'"{name}"' not in gallery] == []


@pytest.mark.parametrize("name", NAMES)
def test_cells_use_the_one_style_and_fit_the_page(name: str) -> None:
    sources = [cell.source for cell in code_cells(name)]

    assert not any("set_theme" in source for source in sources)
    assert not drawing_cells(name) or any("study.style()" in source for source in sources)
    assert [line for source in sources for line in source.splitlines() if len(line) > 110] == []


@pytest.mark.parametrize("name", NAMES)
def test_executed_notebooks_stay_small(name: str) -> None:
    assert (NOTEBOOKS / f"{name}.ipynb").stat().st_size < 1_500_000


@pytest.mark.parametrize("name", NAMES)
def test_committed_notebooks_name_no_folder_of_a_machine(name: str) -> None:
    assert all_paths((NOTEBOOKS / f"{name}.ipynb").read_text()) == []


def test_neither_an_executed_notebook_nor_its_record_name_a_folder_of_this_machine(
    tmp_path: Path,
) -> None:
    path, record = tmp_path / "small.md", tmp_path / "small.provenance.json"
    path.write_text(notebook("folder: str = ''  # where", "print(1)"))

    out = run_notebook(path, tmp_path / "small.ipynb", progress=False, provenance=record)

    assert all_paths(out.read_text()) == all_paths(record.read_text()) == []
    run_notebook(path, out, {"folder": str(tmp_path)}, progress=False, provenance=record)
    assert str(tmp_path) in record.read_text()
    assert all_paths(page(tmp_path)) == [] and f".../{tmp_path.name}" in unescape(page(tmp_path))


SMALL = notebook(
    "size: int = 3  # how many",
    "print(10 // size)",
)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.md"
    path.write_text(SMALL)
    return path


def test_parameters_change_the_result_and_the_same_run_the_same_bytes(small: Path) -> None:
    outs = [small.with_name(f"{name}.ipynb") for name in "abc"]
    for out, size in zip(outs, (3, 5, 5), strict=True):
        run_notebook(small, out, {"size": size}, progress=False)

    texts = [printed(nbformat.read(out, as_version=4).cells[-1]) for out in outs]
    assert texts == ["3\n", "2\n", "2\n"]
    assert outs[1].read_bytes() == outs[2].read_bytes()


def test_an_unknown_parameter_is_refused_before_anything_runs(small: Path) -> None:
    with pytest.raises(InputError, match=r"small.md: there is no parameter 'sise'; it has size"):
        run_notebook(small, small.with_suffix(".ipynb"), {"sise": 5})
    assert [path.name for path in small.parent.iterdir()] == ["small.md"]


def test_a_failed_notebook_is_kept_for_inspection_and_the_old_one_too(small: Path) -> None:
    out = run_notebook(small, small.with_suffix(".ipynb"), progress=False)
    before = out.read_bytes()

    with pytest.raises(InputError, match=r"cell 3 fails with ZeroDivisionError.*small\.failed"):
        run_notebook(small, out, {"size": 0}, progress=False)

    assert out.read_bytes() == before
    kept = nbformat.read(small.with_name("small.failed.ipynb"), as_version=4)
    assert any(o.output_type == "error" for c in kept.cells for o in c.get("outputs", []))


def test_reading_forgets_outputs() -> None:
    notebook = read(NOTEBOOKS / "metrics.ipynb")

    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")


TYPED = notebook(
    "\n".join(
        [
            "size: int = 3  # how many",
            "share: float = 0.5  # of all",
            "ages: list[float] = [30.0]  # in years",
            "limit: int | None = None  # at most",
            "name: str = 'basic'  # of whom",
            "loud: bool = False  # whether",
        ]
    ),
    "print(size, share, ages, limit, name, loud)",
)


@pytest.mark.parametrize(
    ("name", "text", "value", "kind"),
    [
        ("size", "0.5", "0.5 (float)", "int"),
        ("size", "true", "True (bool)", "int"),
        ("share", "high", "'high' (str)", "float"),
        ("ages", "30", "30 (int)", "list[float]"),
        ("ages", "[30, old]", "[30, 'old'] (list)", "list[float]"),
        ("limit", "many", "'many' (str)", "int | None"),
        ("name", "7", "7 (int)", "str"),
        ("loud", "1", "1 (int)", "bool"),
    ],
)
def test_a_value_of_another_type_is_refused_in_one_line_before_anything_runs(
    name: str, text: str, value: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "typed.md"
    path.write_text(TYPED)

    assert main(["run", str(path), str(tmp_path / "out.ipynb"), "-p", name, text]) == 2

    told = f"cfcore: {path}: the parameter '{name}' is of type {kind}, not {value}\n"
    assert capsys.readouterr().err == told
    assert list(tmp_path.iterdir()) == [path]


def test_values_of_the_right_type_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "typed.md"
    path.write_text(TYPED)
    given = {"size": 2, "share": 1, "ages": [20, 30.5], "limit": 4, "name": "a", "loud": True}

    out = run_notebook(path, tmp_path / "out.ipynb", given, progress=False)

    assert printed(nbformat.read(out, as_version=4).cells[-1]) == "2 1 [20, 30.5] 4 a True\n"


@pytest.mark.parametrize(
    ("claim", "told"),
    [
        ("assert size > 5", "assert size > 5;"),
        ("assert size > 5, f'only {size}'", "assert size > 5 (only 3);"),
        ("for k in (1, 9):\n    assert (size\n            > k)", "assert size > k;"),
        ("import numpy as np\nnp.testing.assert_allclose(size, 4)", "np.testing.assert_allclose("),
    ],
)
def test_a_claim_that_does_not_hold_is_quoted(claim: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "claims.md"
    path.write_text(notebook("size: int = 3  # how many", f"assert size == 3\n{claim}\nprint(1)"))

    with pytest.raises(InputError) as caught:
        run_notebook(path, tmp_path / "out.ipynb", progress=False)

    assert f"{path}: cell 2 fails with AssertionError: {told}" in str(caught.value)
    assert "assert size == 3" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_run_says_nothing_of_its_own_on_the_screen(small: Path) -> None:
    out = small.with_suffix(".ipynb")
    call = f"run_notebook({str(small)!r}, {str(out)!r}, progress=False)"
    script = f"from cfbook.production.notebooks import run_notebook; {call}"

    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "", "")


BUSY = """import time
handlers = get_ipython().kernel.shell_handlers
answer = handlers["kernel_info_request"]
async def slowly(*message):
    await answer(*message)
    time.sleep(5)
handlers["kernel_info_request"] = slowly"""


def test_a_kernel_that_is_still_busy_at_its_end_says_nothing_on_the_screen(
    small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # On a busy machine the interrupt before the end finds the kernel in its last answer.
    small.write_text(notebook("n: int = 1", BUSY))

    run_notebook(small, small.with_suffix(".ipynb"), progress=False)

    assert capfd.readouterr() == ("", "")
