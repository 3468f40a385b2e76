"""The gallery of chapters: a card and a picture for each, or a word on what is missing."""

import base64
import io
import json
from pathlib import Path

import pytest
from PIL import Image

from cfbook.production import gallery
from cfcore.checks import InputError

ROOT = Path(__file__).parents[2]
DRAWING = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 3 2">
  <metadata>today</metadata>
  <g id="text_1"><!-- $R_{\\mathrm{IE}}$ &gt; 1 -->
    <g style="fill: red" transform="translate(1.234 5) scale(0.085 -0.085)">
      <defs><path id="DejaVuSans-58" d="M 1 2"/></defs></g></g>
  <path d="M 123.456 0.012\nL 1 1"/></svg>"""
HTML = "application/papermill.record/text/html"


def png(width: int, height: int) -> str:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


def cell(name: str, **data: str) -> dict:
    """A cell that draws a figure."""
    given = {"figure": {"name": name}, "image": {"alt": 'A "line"\n that rises.'}}
    outputs = [{"data": data, "metadata": {}}]
    return {"cell_type": "code", "source": "", "metadata": {"mystnb": given}, "outputs": outputs}


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three chapters: one with a photograph, one with a drawing, one that glues a picture."""
    table = {"one": ("fig-one", "1st."), "two": ("fig-two", "2nd."), "three": ("tour", "3rd.")}
    monkeypatch.setattr(gallery, "_CHAPTERS", table)
    monkeypatch.setattr(gallery, "_TOUR", "tour")
    image = f'<img alt="tour" src="data:image/png;base64,{png(30, 10)}">'
    glued = {"data": {HTML: image}, "metadata": {"scrapbook": {"name": "tour"}}}
    photograph = [cell("fig-other", **{"image/png": png(9, 9)})]
    photograph.append(cell("fig-one", **{"image/png": png(1200, 400)}))
    drawing = [cell("fig-two", **{"image/png": png(9, 9), "image/svg+xml": DRAWING})]
    tour = [{"cell_type": "code", "source": "", "metadata": {}, "outputs": [glued]}]
    (tmp_path / "notebooks").mkdir()
    for name, own in {"one": photograph, "two": drawing, "three": tour}.items():
        title = {
            "cell_type": "markdown",
            "metadata": {},
            "source": [f"# {name} & all\n", "\n", "## x"],
        }
        text = json.dumps({"cells": [title, *own]})
        (tmp_path / f"notebooks/{name}.ipynb").write_text(text)
    files = ("notebooks/two", "notebooks/one", "notebooks/three", "book/api")
    chapters = ", ".join(f"{{file: {name}}}" for name in files)
    (tmp_path / "_toc.yml").write_text(f"root: book/index\nparts:\n  - chapters: [{chapters}]\n")
    return tmp_path


def test_cards_stand_in_the_order_of_the_contents_with_the_titles_of_the_notebooks(
    book: Path,
) -> None:
    gallery._write_gallery(book)
    page = (book / "book/_interactive/gallery.html").read_text()

    assert page.index("<b>1</b> two &amp; all<") < page.index("<b>2</b> one &amp; all<")
    assert page.count('alt="A &quot;line&quot; that rises."') == 2
    assert page.count('alt="tour"') == 1
    assert 'src="../_static/gallery/one.png"' in page
    assert 'src="../_static/gallery/two.svg"' in page


def test_thumbnails_are_light_and_the_same_every_time(book: Path) -> None:
    written = {path.name: path.read_bytes() for path in gallery._write_gallery(book)}

    assert Image.open(io.BytesIO(written["one.png"])).size == (480, 160)
    assert b'<path d="M 123.46 0.01 L 1 1" /></svg>' in written["two.svg"]
    assert b'font-size="8.5" transform="translate(1.23 5)">RIE &gt; 1</text>' in written["two.svg"]
    assert not any(word in written["two.svg"] for word in (b"DejaVu", b"today"))
    assert Image.open(io.BytesIO(written["three.png"])).size == (30, 10)
    assert Image.open(io.BytesIO(written["tour.png"])).size == (30, 10)
    assert written == {path.name: path.read_bytes() for path in gallery._write_gallery(book)}


def test_pictures_of_an_earlier_build_are_gone(book: Path) -> None:
    old = book / "book/_static/gallery/two.png"
    old.parent.mkdir(parents=True)
    old.touch()
    gallery._write_gallery(book)

    assert not old.exists()


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (
            dict.fromkeys(("one", "two", "three"), ("fig-1", "")),
            "no chapter draws a figure 'fig-1'",
        ),
        ({"one": ("fig-one", ""), "two": ("fig-two", "")}, "differ in their chapters: three"),
    ],
)
def test_what_is_missing_is_named(
    book: Path, table: dict, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "_CHAPTERS", table)

    with pytest.raises(InputError, match=complaint):
        gallery._write_gallery(book)


@pytest.mark.parametrize("chapter", gallery._CHAPTERS)
def test_the_figure_of_every_chapter_is_there(chapter: str) -> None:
    name = gallery._CHAPTERS[chapter][0]
    text = (ROOT / f"notebooks/{chapter}.md").read_text()

    assert f"name: {name}\n" in text or f'glue("{name}"' in text
