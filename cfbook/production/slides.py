"""Every figure of the book as a picture for slides, with its caption, in one list."""

import ast
import base64
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from cfbook.production.notebooks import run_notebook
from cfcore.files import write_atomically

_CONFIG = """c.InlineBackend.figure_formats = {"png"}
c.InlineBackend.print_figure_kwargs = {"bbox_inches": "tight", "dpi": 300}
"""


class _Figure(NamedTuple):
    """A figure: titles of chapter and section, its words, the name of its file, and the PNG."""

    chapter: str
    section: str
    caption: str
    alt: str
    file: str
    image: bytes


def figures(path: Path) -> list[_Figure]:
    """The figures of an executed notebook, in order.

    The caption is the one that the cell gives (``mystnb``, ``figure``, ``caption``); without one,
    the last paragraph before it, which in this book says what to see.
    """
    chapter = section = caption = ""
    found, cells = [], json.loads(path.read_text())["cells"]
    values = _glued(cells)
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            titles = re.findall(r"^(#+) (.+)$", source, flags=re.MULTILINE)
            chapter = next((title for level, title in titles if level == "#"), chapter)
            section = next((title for _, title in reversed(titles)), section)
            caption = _last_paragraph(source) or caption
        given = cell["metadata"].get("mystnb", {})
        words = given.get("figure", {}).get("caption", caption)
        alt = given.get("image", {}).get("alt", section)
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                file = f"{path.stem}-{len(found) + 1:02d}.png"
                image = base64.b64decode("".join(output["data"]["image/png"]))
                said = _plain(words, values), _plain(alt, values)
                found.append(_Figure(chapter, section, *said, file, image))
    return found


def _glued(cells: list[dict]) -> dict[str, object]:
    """The numbers and texts that a notebook glued, by name; not its figures."""
    found = {}
    for output in (output for cell in cells for output in cell.get("outputs", [])):
        name = output.get("metadata", {}).get("scrapbook", {}).get("name")
        for kind, value in output.get("data", {}).items() if name else ():
            if kind.endswith("text/plain") and not "".join(value).startswith("<"):
                found[name] = ast.literal_eval("".join(value))
    return found


def _plain(text: str, values: Mapping[str, object] | None = None) -> str:
    """A text in one line, with glued values in it, and references as bare names.

    Example:
        >>> _plain("see {func}`~cfcore.evaluate` and {doc}`the claims <claims>`,\\nthen $q$")
        'see `evaluate` and `the claims`, then $q$'
        >>> _plain("over {glue:text}`p-share:.1f` %", {"p-share": 12.34})
        'over 12.3 %'
    """
    for name, value in (values or {}).items():
        place = rf"\{{glue:text\}}`{re.escape(name)}(?::([^`]*))?`"
        text = re.sub(place, lambda match, v=value: format(v, match[1] or ""), text)
    text = re.sub(r"\{[\w:-]+\}`~?([^`<]*?) *(?:<[^`]*>)?`", r"`\1`", " ".join(text.split()))
    return re.sub(r"`cfcore[\w.]*\.(\w+)`", r"`\1`", text)


def _last_paragraph(source: str) -> str:
    """The last paragraph of a text that is neither heading, table, list nor box.

    Example:
        >>> _last_paragraph("# Title\\n\\nLook at *the left*.\\n\\n- a list")
        'Look at *the left*.'
    """
    boxless = re.sub(r"^(:{3,}|`{3,}).*?^\1$", "", source, flags=re.MULTILINE | re.DOTALL)
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", boxless)]
    prose = [part for part in paragraphs if part and not re.match(r"[#|:\-*$<(]", part)]
    return prose[-1] if prose else ""


def redraw(notebooks: Sequence[Path], folder: Path) -> list[Path]:
    """Execute notebooks once more into a folder, with finer figures and all else as it is."""
    profile = folder / "ipython/profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text(_CONFIG)
    with patch.dict(os.environ, IPYTHONDIR=str(folder / "ipython")):
        return [run_notebook(path, folder / f"{path.stem}.ipynb") for path in notebooks]


def write_slides(notebooks: Sequence[Path], out: Path) -> list[Path]:
    """Write every figure of executed notebooks into a folder, and a list of them last.

    The list is Markdown, one slide for each figure, with rules between them: Marp, pandoc and the
    like make slides of it, and a picture alone can be dropped into any others.
    """
    every = [figure for path in notebooks for figure in figures(path)]
    out.mkdir(parents=True, exist_ok=True)
    written = [write_atomically(out / figure.file, figure.image) for figure in every]
    slides = [
        f"# {f.section}\n\n![{f.alt}]({f.file})\n\n{f.caption}\n\n*{f.chapter}*\n" for f in every
    ]
    text = "---\nmarp: true\n---\n\n" + "\n---\n\n".join(slides)
    return [*written, write_atomically(out / "index.md", text.encode())]
