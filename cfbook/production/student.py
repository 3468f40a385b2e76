"""The students' edition: the same book and notebooks, without solutions and answers."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from cfcore.checks import InputError
from cfcore.files import write_atomically

FENCE = re.compile(
    r"^[ >]*(?P<fence>:{3,}|`{3,})\{(?:admonition|dropdown)\} +(?:Solution|Answer)\b", re.IGNORECASE
)
DIRECTIVE = re.compile(r"^[ >]*(?P<fence>:{3,}|`{3,})\{solution\}")
TAG = "solution"
CELL = re.compile(
    rf"^```\{{code-cell\}}[^\n]*\n:tags: \[[^\]\n]*\b{TAG}\b[^\n]*\n.*?^```\n",
    re.MULTILINE | re.DOTALL,
)
SKIPPED = ("_build", ".ipynb_checkpoints", "__pycache__")


def without_solutions(text: str) -> str:
    """A text in MyST without boxes called *Solution* or *Answer* and cells tagged ``solution``.

    Args:
        text: The text of a page or of a cell.

    Returns:
        The text without them; everything else as it was.

    Raises:
        InputError: If such a box is not closed, so that nobody knows where it ends.

    Example:
        >>> print(without_solutions('''How many?
        ...
        ... :::{admonition} Solution
        ... :class: dropdown
        ... Sixteen.
        ... :::
        ... And why?'''))
        How many?
        <BLANKLINE>
        And why?
    """
    return "".join(_kept(CELL.sub("", text)))


def _kept(text: str) -> Iterator[str]:
    """The lines outside of solutions; a box ends where its fence stands alone on a line."""
    fence = None
    for line in text.splitlines(keepends=True):
        opened = FENCE.match(line) or DIRECTIVE.match(line)
        if fence is None and opened:
            fence = opened["fence"]
        elif fence is None:
            yield line
        elif line.strip(" >\r\n") == fence:
            fence = None
    if fence is not None:
        raise InputError(f"a solution is opened by {fence} and never closed")


def strip(content: bytes, suffix: str) -> bytes:
    """A page (``.md``) or notebook (``.ipynb``) without solutions; any other file as it is."""
    if suffix == ".md":
        return without_solutions(content.decode()).encode()
    if suffix != ".ipynb":
        return content
    notebook = json.loads(content)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            source = without_solutions("".join(cell["source"]))
            cell["source"] = source.splitlines(keepends=True)
    notebook["cells"] = [
        cell
        for cell in notebook["cells"]
        if cell["source"] and TAG not in cell["metadata"].get("tags", [])
    ]
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def students_edition(source: Path, out: Path) -> list[Path]:
    """Copy the sources of a book, or a folder of notebooks, without solutions.

    Args:
        source: A folder with pages and notebooks, executed or not.
        out: The folder to write to, made if need be.

    Returns:
        The files that were written.

    Raises:
        FileNotFoundError: If there is no such folder.
        InputError: If a solution is not closed; the message names the file.
    """
    if not source.is_dir():
        raise FileNotFoundError(f"{source}: there is no such folder")
    paths = [path for path in sorted(source.rglob("*")) if path.is_file()]
    paths = [path for path in paths if not path.is_relative_to(out)]
    written = []
    for path in paths:
        relative = path.relative_to(source)
        if any(part in SKIPPED for part in relative.parts) or ".failed" in path.suffixes:
            continue
        try:
            content = strip(path.read_bytes(), path.suffix)
        except (InputError, ValueError, KeyError) as error:
            raise InputError(f"{path}: {error}") from None
        (out / relative).parent.mkdir(parents=True, exist_ok=True)
        written.append(write_atomically(out / relative, content))
    return written
