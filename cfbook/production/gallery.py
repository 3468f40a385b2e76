"""The chapters on the front page of the book: a card for each, with a figure of it.

``python -m cfbook.production.gallery BOOK`` reads the executed notebooks of a book that is about to
be built, and writes the cards and their pictures beside its pages.
"""

import base64
import io
import json
import re
import shutil
import sys
from html import escape, unescape
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import yaml
from PIL import Image

from cfcore.checks import InputError
from cfcore.files import write_atomically

ET.register_namespace("", "http://www.w3.org/2000/svg")
ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")

_CHAPTERS = {
    "phantom": ("fig-phantom-maps", "Draw a patient whose true counterfactuals are known."),
    "method": ("fig-method-overview", "Abduct, act, predict and average, for one radiograph."),
    "metrics": ("fig-metrics-worlds", "Compute each metric by hand, then all in one call."),
    "predictors": ("fig-predictors-training", "Put a bias into a classifier, and see who notices."),
    "setting_1": ("fig-setting-1-shared", "See a shortcut lower one risk and raise another."),
    "setting_2": ("fig-setting-2-repeats", "Ask whether findings repeat in a second hospital."),
    "setting_3": ("fig-setting-3-stability", "Tell a change of hospital from a bias."),
    "stability": ("fig-stability-scores", "Measure bias with formulas that contain no labels."),
    "claims": ("claims-tour-figure", "Look up each claim of the paper and its verdict."),
    "theory": ("fig-theory-verdict", "Know when counterfactual patients help or mislead."),
    "standardisation": ("fig-standardisation-curves", "Ask patients whether a generator is wrong."),
    "training": ("fig-training-outline", "Train a generator, and compare it with the truth."),
    "missing": ("fig-missing-curve", "Train a generator when most labels are missing."),
    "real": (
        "fig-real-associations",
        "See what will be asked of real radiographs, and what is known so far.",
    ),
    "printed_tables": (
        "fig-printed-tables-offsets",
        "Check printed tables by inequalities between cells.",
    ),
}
"""The figure that stands for each chapter, and what one learns there."""
_TOUR = "claims-tour-figure"  # what the front page itself shows of the claims
_INSIDE = re.compile(r"data:(image/[a-z+]+);base64,([^\"]+)")  # a picture in a page
_SIZE = 480, 320  # pixels of a thumbnail, twice those on the page
_SIDE = 56, 56  # of a photograph in a drawing
_COLOURS = 64
_SVG, _HREF = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_PLACES = ("d", "x", "y", "transform", "width", "height", "viewBox")  # attributes with coordinates


class _Picture(NamedTuple):
    """A figure as a file: its bytes, how its name ends, and its description."""

    content: bytes
    suffix: str
    alt: str = ""


def _title(cells: list[dict]) -> str:
    """The title of a chapter: its first heading."""
    words = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return re.search(r"^# (.+)$", words, flags=re.MULTILINE)[1]


def _drawn(outputs: list[dict]) -> _Picture | None:
    """The picture among some outputs, glued or not; as SVG if there is one, else as PNG."""
    found = [(kind, "".join(text)) for o in outputs for kind, text in o.get("data", {}).items()]
    inside = [match for kind, text in found if "html" in kind for match in _INSIDE.findall(text)]
    for kind, suffix in (("image/svg+xml", "svg"), ("image/png", "png")):
        plain = [text for name, text in found if name.endswith(kind)]
        if plain and suffix == "svg":
            return _Picture(plain[0].encode(), suffix)
        for text in (*plain, *(text for name, text in inside if name == kind)):
            return _Picture(base64.b64decode(text), suffix)
    return None


def _figure(cells: list[dict], name: str) -> _Picture:
    """The picture of the cell whose figure has this name, or that was glued under it."""
    for cell in cells:
        given = cell["metadata"].get("mystnb", {})
        named = given.get("figure", {}).get("name") == name
        outputs = [o for o in cell.get("outputs", []) if named or _glued_as(o) == name]
        if found := _drawn(outputs):
            alt = given.get("image", {}).get("alt") or re.findall('alt="([^"]+)"', str(outputs))[0]
            return found._replace(alt=" ".join(alt.split()))
    raise InputError(f"no chapter draws a figure {name!r}")


def _glued_as(output: dict) -> str | None:
    return output.get("metadata", {}).get("scrapbook", {}).get("name")


def _small(picture: _Picture) -> _Picture:
    """A thumbnail, the same bytes every time."""
    if picture.suffix == "svg":
        return picture._replace(content=_light(picture.content))
    return picture._replace(content=_shrunk(picture.content, _SIZE))


def _shrunk(content: bytes, size: tuple[int, int]) -> bytes:
    """A PNG in few pixels and colours."""
    image, file = Image.open(io.BytesIO(content)).convert("RGBA"), io.BytesIO()
    image.thumbnail(size)
    image.quantize(_COLOURS).save(file, "png", optimize=True)
    return file.getvalue()


def _light(drawing: bytes) -> bytes:
    """A drawing by matplotlib with letters instead of their outlines, a third of its size.

    Coordinates are rounded, and photographs in it made small.
    """
    tree = ET.fromstring(drawing, ET.XMLParser(target=ET.TreeBuilder(insert_comments=True)))
    for part in list(tree.iter()):
        _write_words(part)
        part.text = part.text if (part.text or "").strip() else None
        part.tail = None
        for name in set(part.keys()) & set(_PLACES):
            part.set(name, _rounded(part.get(name)))
        if part.get(_HREF, "").startswith("data:"):
            image = _shrunk(base64.b64decode(part.get(_HREF).partition(",")[2]), _SIDE)
            part.set(_HREF, f"data:image/png;base64,{base64.b64encode(image).decode()}")
    tree.set("font-family", "sans-serif")
    return ET.tostring(tree)


def _rounded(places: str) -> str:
    """Coordinates with two decimals at most.

    Example:
        >>> _rounded("M 1.25 100.456 \\nz")
        'M 1.25 100.46 z'
    """
    return re.sub(r"\d+\.\d+", lambda n: f"{round(float(n[0]), 2):g}", " ".join(places.split()))


def _write_words(group: ET.Element) -> None:
    """Put letters in place of outlines of letters, whose words matplotlib leaves as a comment."""
    words = None
    for place, part in enumerate(list(group)):
        scaled = re.fullmatch(r"(.*)scale\((\S+) -\S+\)", part.get("transform", ""))
        if part.tag is ET.Comment:
            words = re.sub(r"\\[a-z]+|[${}_^]", "", unescape(part.text)).strip()
        elif words is not None and scaled:
            style = {"style": part.get("style", ""), "font-size": f"{100 * float(scaled[2]):.1f}"}
            group[place] = ET.Element(f"{_SVG}text", style, transform=_rounded(scaled[1]))
            group[place].text, words = words, None
    for part in list(group):
        if part.tag is ET.Comment or part.tag == f"{_SVG}metadata":
            group.remove(part)


def _chapters(book: Path) -> list[str]:
    """The chapters in the order of the contents; each must have a figure here, and no other."""
    parts = yaml.safe_load((book / "_toc.yml").read_text())["parts"]
    files = [Path(chapter["file"]) for part in parts for chapter in part["chapters"]]
    found = [file.name for file in files if file.parts[0] == "notebooks"]
    if set(found) != set(_CHAPTERS):
        differ = ", ".join(sorted(set(found) ^ set(_CHAPTERS)))
        raise InputError(f"contents and gallery differ in their chapters: {differ}")
    return found


def _card(number: int, name: str, title: str, picture: _Picture) -> str:
    """The card of a chapter.

    Example:
        >>> print(_card(6, "metrics", "Every metric", _Picture(b"", "png", "Four rows.")))
        <li><a href="../notebooks/metrics.html" aria-labelledby="gallery-metrics">
        <img loading="lazy" src="../_static/gallery/metrics.png" alt="Four rows.">
        <span id="gallery-metrics"><b>6</b> Every metric</span>
        <p>Compute each metric by hand, then all in one call.</p></a></li>
    """
    label, image = f"gallery-{name}", f"../_static/gallery/{name}.{picture.suffix}"
    return (
        f'<li><a href="../notebooks/{name}.html" aria-labelledby="{label}">\n'
        f'<img loading="lazy" src="{image}" alt="{escape(picture.alt)}">\n'
        f'<span id="{label}"><b>{number}</b> {escape(title)}</span>\n'
        f"<p>{escape(_CHAPTERS[name][1])}</p></a></li>"
    )


def _write_gallery(book: Path) -> list[Path]:
    """Write the cards, their pictures and the figure of the front page into a book."""
    cards, files, tours = [], {}, []
    for number, name in enumerate(_chapters(book), start=1):
        cells = json.loads((book / f"notebooks/{name}.ipynb").read_text())["cells"]
        picture = _small(_figure(cells, _CHAPTERS[name][0]))
        files[f"{name}.{picture.suffix}"] = picture.content
        cards.append(_card(number, name, _title(cells), picture))
        if _CHAPTERS[name][0] == _TOUR:
            tours.append(_figure(cells, _TOUR))
    files |= {f"tour.{tour.suffix}": tour.content for tour in tours}
    pictures, pages = book / "book/_static/gallery", book / "book/_interactive"
    shutil.rmtree(pictures, ignore_errors=True)  # those of another time may end differently
    for folder in (pictures, pages):
        folder.mkdir(parents=True, exist_ok=True)
    page = "\n".join(['<ul class="gallery">', *cards, "</ul>\n"]).encode()
    written = [write_atomically(pictures / name, content) for name, content in files.items()]
    return [*written, write_atomically(pages / "gallery.html", page)]


if __name__ == "__main__":
    _write_gallery(Path(sys.argv[1]))
