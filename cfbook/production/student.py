"""The students' edition: the book without solutions and answers, and notebooks to work in."""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cfbook.production.notebooks import read
from cfcore.checks import InputError
from cfcore.files import write_atomically

if TYPE_CHECKING:
    from nbformat import NotebookNode

_TAG = "solution"
_CHECK = "check"
_OPENED = (
    r"^(?P<fence>:{3,}|`{3,})\{(?:solution\}|admonition\} Answer$|"
    rf"code-cell\}}[^\n]*\n:tags: \[[^\]\n]*\b(?:{_TAG}|{_CHECK})\b)"
)
_SOLUTION = re.compile(rf"{_OPENED}.*?^(?P=fence)$\n?", re.MULTILINE | re.DOTALL)
_SKIPPED = ("_build", ".ipynb_checkpoints", "__pycache__")


def _without_solutions(text: str) -> str:
    """A text in MyST without solutions, boxes called *Answer* and cells tagged ``solution``.

    The option ``hide_solutions`` of sphinx-exercise would leave them in the sources, which a page
    of the book offers for download.

    One that is not closed is refused, since nobody knows where it ends.

    Example:
        >>> print(_without_solutions('''How many?
        ...
        ... :::{solution} exercise-1
        ... Sixteen.
        ... :::
        ... And why?'''))
        How many?
        <BLANKLINE>
        And why?
    """
    left = _SOLUTION.sub("", text)
    opened = re.search(_OPENED, left, re.MULTILINE)
    if opened:
        raise InputError(f"a solution is opened by {opened['fence']} and never closed")
    return left


def _strip(content: bytes, suffix: str) -> bytes:
    """A page or notebook (``.ipynb``) without solutions and checks; any other file as it is."""
    if suffix == ".md":
        return _without_solutions(content.decode()).encode()
    if suffix != ".ipynb":
        return content
    notebook, kept = json.loads(content), []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            source = _without_solutions("".join(cell["source"]))
            cell["source"] = source.splitlines(keepends=True)
        if cell["source"] and not {_TAG, _CHECK} & {*cell["metadata"].get("tags", [])}:
            kept.append(cell)
    return (json.dumps(notebook | {"cells": kept}, indent=1, ensure_ascii=False) + "\n").encode()


def students_edition(source: Path, out: Path) -> list[Path]:
    """Copy the sources of a book, or a folder of notebooks, without solutions.

    Args:
        source: A folder with pages and notebooks, executed or not.
    """
    if not source.is_dir():
        raise FileNotFoundError(f"{source}: there is no such folder")
    written = []
    for path in [path for path in sorted(source.rglob("*")) if path.is_file()]:
        relative = path.relative_to(source)
        skipped = any(part in _SKIPPED for part in relative.parts) or ".failed" in path.suffixes
        if skipped or path.is_relative_to(out):
            continue
        try:
            content = _strip(path.read_bytes(), path.suffix)
        except (InputError, ValueError, KeyError) as error:
            raise InputError(f"{path}: {error}") from None
        (out / relative).parent.mkdir(parents=True, exist_ok=True)
        written.append(write_atomically(out / relative, content))
    return written


def worksheets(notebooks: Sequence[Path], out: Path) -> list[Path]:
    """Write notebooks to work in: no solution, no output, and an empty cell for each answer.

    The cell of an answer is tagged ``answer``. Where a number is asked for, the cell says which
    one, and the cell that checks it follows (:func:`~cfbook.production.answers.check_answer`).
    A worksheet that is there already is left alone, since it may hold answers.

    Args:
        notebooks: Chapters, ``.md`` or ``.ipynb``.

    Returns:
        The worksheets that were not there before.
    """
    written = []
    for path in notebooks:
        sheet = out / f"{path.stem}.ipynb"
        if sheet.exists():
            continue
        try:
            content = _worksheet(read(path))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        out.mkdir(parents=True, exist_ok=True)
        written.append(write_atomically(sheet, content))
    return written


def _worksheet(notebook: "NotebookNode") -> bytes:
    import nbformat

    notebook.metadata.pop("jupytext", None)  # else each is kept in step with a text beside it
    checks = {_asked(cell)[0]: cell for cell in notebook.cells if _CHECK in _tags(cell)}
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cells += _with_answers(cell.source, checks)
        elif not {_TAG, _CHECK} & _tags(cell):
            if "hide-input" in _tags(cell):  # the book folds it, and so does JupyterLab
                cell.metadata["jupyter"] = {"source_hidden": True}
            cells.append(cell)
    if checks:
        raise InputError(f"there is no exercise {', '.join(checks)}, but a cell that checks it")
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    notebook.cells = cells
    return (nbformat.writes(notebook) + "\n").encode()


def _with_answers(text: str, checks: dict[str, "NotebookNode"]) -> Iterator["NotebookNode"]:
    """The cells of a text, with one for the answer where a solution was, and its check."""
    from nbformat.v4 import new_code_cell, new_markdown_cell

    _without_solutions(text)  # refuses a box that is not closed
    start, tags = 0, {"metadata": {"tags": ["answer"]}}
    for box in _SOLUTION.finditer(text):
        yield new_markdown_cell(text[start : box.start()].strip())
        start, check = box.end(), checks.pop(box[0].split(maxsplit=2)[1], None)
        if check is not None:
            _, name, wanted = _asked(check)
            yield new_code_cell(f"{wanted}\n{name} = None", **tags)
            # Without an answer it fails; whoever runs all cells still gets to the end.
            check.metadata["tags"] = [_CHECK, "raises-exception"]
            yield check
        elif any("(" in code or " = " in code for code in re.findall(r"`([^`]+)`", box[0])):
            yield new_code_cell("# Your answer", **tags)
        else:
            yield new_markdown_cell("*Your answer:*", **tags)
    if text[start:].strip():
        yield new_markdown_cell(text[start:].strip())


def _tags(cell: "NotebookNode") -> set[str]:
    return {*cell.metadata.get("tags", [])}


def _asked(check: "NotebookNode") -> tuple[str, str, str]:
    """The exercise that a cell checks, the name of the answer, and the comment saying what it is.

    Example:
        >>> from nbformat.v4 import new_code_cell
        >>> source = "# How many?\\nstudy.check_answer('exercise-1', answer_1, '8fcd5713')"
        >>> _asked(new_code_cell(source))
        ('exercise-1', 'answer_1', '# How many?')
    """
    for node in ast.walk(ast.parse(check.source)):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="check_answer"),
                args=[ast.Constant(value=exercise), ast.Name(id=name), _],
            ):
                lines = [line for line in check.source.splitlines() if line.startswith("#")]
                return exercise, name, "\n".join(lines)
    raise InputError(f"a cell tagged {_CHECK!r} calls study.check_answer(exercise, answer, hash)")
