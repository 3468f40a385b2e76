"""The rendered book: every page is there, whole, linked, described, and needs no network."""

import os
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

import pytest
import yaml
from machine import own_paths

ROOT = Path(__file__).parents[2]
BOOK = Path(os.environ.get("CFCORE_BOOK", ROOT / "_build/html"))
pytestmark = pytest.mark.skipif(not BOOK.is_dir(), reason="no book: run `make book` first")


def pages() -> list[str]:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    files = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    return [toc["root"], *files]


class Anatomy(HTMLParser):
    """What a page loads by itself, links to, can be linked at, shows, and says in scripts."""

    LOADS: ClassVar = {"script": "src", "img": "src", "iframe": "src", "source": "src"}

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.images: list[dict[str, str | None]] = []
        self.scripts = self.title = ""
        self.about: dict[str, str] = {}
        self.tag = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tag = tag
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag in self.LOADS and given.get(self.LOADS[tag]):
            self.loads.append(given[self.LOADS[tag]])
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon"):
            self.loads.append(given["href"])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "img":
            self.images.append(given)
        if tag == "meta":
            self.about[given.get("name") or given.get("property") or ""] = (
                given.get("content") or ""
            )

    def handle_data(self, data: str) -> None:
        if self.tag == "script":
            self.scripts += data
        if self.tag == "title":
            self.title += data.strip()


@cache
def anatomy(path: Path) -> Anatomy:
    return Anatomy(path)


@pytest.mark.parametrize("page", pages())
def test_every_page_of_the_contents_exists(page: str) -> None:
    assert (BOOK / f"{page}.html").stat().st_size > 5_000


@pytest.mark.parametrize("page", pages())
def test_pages_load_nothing_from_outside_and_nothing_that_is_missing(page: str) -> None:
    path = BOOK / f"{page}.html"
    loads = anatomy(path).loads

    assert [name for name in loads if re.match(r"(https?:)?//", name)] == []
    local = [name.split("?")[0] for name in loads if not name.startswith("data:")]
    assert local
    assert [name for name in local if not (path.parent / name).is_file()] == []


@pytest.mark.parametrize("page", pages())
def test_scripts_in_pages_name_no_place_outside(page: str) -> None:
    named = re.findall(r"(?:https?:)?//\w[\w.-]+\.\w+", anatomy(BOOK / f"{page}.html").scripts)

    assert [name for name in named if not name.endswith("//www.w3.org")] == []


def leads_somewhere(link: str, start: Path) -> bool:
    """Whether a link inside the book finds its page and its place there."""
    target, _, anchor = link.partition("#")
    page = (start.parent / target.split("?")[0]).resolve() if target else start
    return page.is_file() and (not anchor or unquote(anchor) in anatomy(page).anchors)


@pytest.mark.parametrize("page", pages())
def test_links_inside_the_book_lead_somewhere(page: str) -> None:
    path = BOOK / f"{page}.html"
    inside = [link for link in anatomy(path).links if not re.match(r"[a-z]+:", link)]

    assert inside
    assert [link for link in inside if not leads_somewhere(link, path)] == []


@pytest.mark.parametrize("page", pages())
def test_images_are_described_for_those_who_do_not_see_them(page: str) -> None:
    images = anatomy(BOOK / f"{page}.html").images

    # Without a description Sphinx repeats the name of the file.
    bare = [i["src"] for i in images if (i.get("alt") or "").strip() in ("", i["src"])]
    assert bare == []


@pytest.mark.parametrize("page", [page for page in pages() if page.startswith("notebooks/")])
def test_notebooks_are_rendered_with_their_outputs(page: str) -> None:
    text = (BOOK / f"{page}.html").read_text()

    assert text.count('class="cell_output') >= 3
    assert "<img" in text
    assert "Traceback" not in text
    assert (BOOK / f"_sources/{page}.ipynb").stat().st_size > 5_000


CHAPTERS = [page for page in pages() if page.startswith("notebooks/")]
TITLE = yaml.safe_load((ROOT / "_config.yml").read_text())["title"]


def headline(page: str) -> str:
    """The first heading of a page, as text."""
    text = (BOOK / f"{page}.html").read_text()
    return re.sub(r"<[^>]+>", "", re.search(r'<h1>(.*)<a class="headerlink"', text)[1])


def test_chapters_are_numbered_through_the_book_and_nothing_else_is() -> None:
    api = [f"book/api/{path.stem}" for path in (BOOK / "book/api").glob("*.html")]
    others = [page for page in [*pages(), *api] if page not in CHAPTERS]

    assert [int(headline(page).split(".")[0]) for page in CHAPTERS] == [
        *range(1, len(CHAPTERS) + 1)
    ]
    assert [page for page in others if re.match(r"\d+\.", headline(page))] == []


@pytest.mark.parametrize("page", CHAPTERS)
def test_figures_equations_and_tables_carry_the_number_of_their_chapter(page: str) -> None:
    text = (BOOK / f"{page}.html").read_text()
    number = headline(page).split(".")[0]
    figures = re.findall(r'caption-number">Fig. ([\d.]+)', text)
    equations = re.findall(r'class="eqno">\(([\d.]+)\)', text)
    tables = re.findall(r'id="table-(\d+)"[^<]*>\s*<\w+>\s*<b>Table ([\d.]+)\.</b>', text)
    links = re.findall(r'href="#table-(\d+)"[^>]*>Table ([\d.]+)<', text)

    assert figures or tables
    assert {name.split(".")[0] for name in figures + equations} <= {number}
    assert len(tables) == text.count('id="table-')
    assert [(k, name) for k, name in tables + links if name != f"{number}.{k}"] == []


def test_titles_name_the_page_and_the_book_once() -> None:
    titles = {page: anatomy(BOOK / f"{page}.html").title for page in pages()}

    assert titles.pop(pages()[0]) == TITLE
    assert [title for title in titles.values() if title.count(TITLE) != 1] == []
    assert len(set(titles.values())) == len(titles)


def test_a_shared_link_shows_what_the_page_is_about() -> None:
    about = {page: anatomy(BOOK / f"{page}.html").about for page in pages()}
    said = {page: given["description"] for page, given in about.items()}

    assert {page: text for page, text in said.items() if not 40 < len(text) <= 200} == {}
    assert [text for text in said.values() if re.search(r"[\\\0$]", text)] == []
    assert len(set(said.values())) == len(said)
    for page, given in about.items():
        assert given["og:title"] and given["og:description"]
        assert (BOOK / page).parent.joinpath(given["og:image"]).resolve() == (
            (BOOK / "_static/preview.png").resolve()
        )


def test_folds_are_named_by_their_words() -> None:
    text = "".join((BOOK / f"{page}.html").read_text() for page in CHAPTERS)

    assert "<details" in text
    assert "Toggle hidden content" not in text


def test_every_reference_leads_to_its_source() -> None:
    text = (BOOK / "book/bibliography.html").read_text()
    entries = re.findall(r'<div class="citation".*?</div>', text, re.DOTALL)

    assert len(entries) == (ROOT / "book/references.bib").read_text().count("\n@") + 1
    assert [entry for entry in entries if 'href="https://' not in entry] == []
    labels = [re.sub(r"<[^>]+>|[\[\]]", "", entry.split("</span>\n<p>")[0]) for entry in entries]
    assert [label for label in labels if re.search(r"[\\+{}]", label)] == []


def test_the_book_is_light() -> None:
    sizes = {path: path.stat().st_size for path in BOOK.rglob("*") if path.is_file()}
    mathjax = [path for path in sizes if "mathjax" in path.parts]

    assert sum(sizes.values()) < 38e6
    assert sum(sizes[path] for path in mathjax) < 1.5e6
    assert [path for path in mathjax if path.suffix == ".woff"]
    assert [path for path in sizes if "fontawesome" in str(path) or path.suffix == ".map"] == []


def test_every_icon_of_a_page_is_in_the_font() -> None:
    icons = (BOOK / "_static/icons.css").read_text()
    texts = [(BOOK / f"{page}.html").read_text() for page in [*pages(), "search", "genindex"]]
    named = r'class="fa[^"]*\bfa-(?!solid|lg)([a-z-]+)'
    used = {name for text in texts for name in re.findall(named, text)}

    assert "Font Awesome Free" in icons and len(icons) < 20_000
    assert used and [name for name in used if f".fa-{name}::before" not in icons] == []


def test_the_front_page_opens_the_book() -> None:
    assert "book/index.html" in (BOOK / "index.html").read_text()


def test_no_file_of_the_book_names_a_folder_of_the_machine_that_built_it() -> None:
    files = [path for path in BOOK.rglob("*") if path.is_file()]
    found = {path: own_paths(path.read_bytes().decode(errors="replace")) for path in files}

    assert len(files) > len(pages())
    assert {path: names for path, names in found.items() if names} == {}
