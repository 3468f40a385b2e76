"""The rendered book: every page is there, whole, and needs no network."""

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
BOOK = Path(os.environ.get("CFCORE_BOOK", ROOT / "_build/html"))
pytestmark = pytest.mark.skipif(not BOOK.is_dir(), reason="no book: run `make book` first")


def pages() -> list[str]:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    files = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    return [toc["root"], *files]


class Resources(HTMLParser):
    """What a page loads by itself, as opposed to what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loads = {"script": "src", "img": "src", "iframe": "src", "source": "src"}
        if tag in loads and given.get(loads[tag]):
            self.found.append(given[loads[tag]])
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon"):
            self.found.append(given["href"])


@pytest.mark.parametrize("page", pages())
def test_every_page_of_the_contents_exists(page: str) -> None:
    assert (BOOK / f"{page}.html").stat().st_size > 5_000


@pytest.mark.parametrize("page", pages())
def test_pages_load_nothing_from_outside_and_nothing_that_is_missing(page: str) -> None:
    path = BOOK / f"{page}.html"
    parser = Resources()
    parser.feed(path.read_text())

    assert [name for name in parser.found if re.match(r"(https?:)?//", name)] == []
    local = [name.split("?")[0] for name in parser.found if not name.startswith("data:")]
    assert local
    assert [name for name in local if not (path.parent / name).is_file()] == []


@pytest.mark.parametrize("page", [page for page in pages() if page.startswith("notebooks/")])
def test_notebooks_are_rendered_with_their_outputs(page: str) -> None:
    text = (BOOK / f"{page}.html").read_text()

    assert text.count('class="cell_output') >= 5
    assert "<img" in text
    assert "Traceback" not in text


def test_the_front_page_opens_the_book() -> None:
    assert "book/index.html" in (BOOK / "index.html").read_text()
