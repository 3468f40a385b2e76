"""The students' edition: the same book and notebooks, without solutions and answers."""

import json
import re
from pathlib import Path

from cfcore.checks import InputError
from cfcore.files import write_atomically

_TAG = "solution"
_OPENED = (
    r"^(?P<fence>:{3,}|`{3,})\{(?:solution\}|admonition\} Answer$|"
    rf"code-cell\}}[^\n]*\n:tags: \[[^\]\n]*\b{_TAG}\b)"
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
    """A page (``.md``) or notebook (``.ipynb``) without solutions; any other file as it is."""
    if suffix == ".md":
        return _without_solutions(content.decode()).encode()
    if suffix != ".ipynb":
        return content
    notebook, kept = json.loads(content), []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            source = _without_solutions("".join(cell["source"]))
            cell["source"] = source.splitlines(keepends=True)
        if cell["source"] and _TAG not in cell["metadata"].get("tags", []):
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
