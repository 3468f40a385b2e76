"""The book in a real browser, from a server and from a disk: whole, quiet, alone, and usable."""

import functools
import http.server
import json
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from test_book import BOOK, pages

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = os.environ.get("CFCORE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
PHONE = {"width": 390, "height": 844}
pytestmark = [
    pytest.mark.skipif(not BOOK.is_dir(), reason="no book: run `make book` first"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install it, or set CFCORE_CHROMIUM"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module", params=["http", "file"])
def base(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the book is: on a server of this machine, or in a folder."""
    if request.param == "file":
        yield BOOK.resolve().as_uri()
        return
    handler = functools.partial(Quiet, directory=BOOK)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@dataclass
class Tab:
    """A page of the browser, with what it asked for and complained of."""

    page: Page
    base: str
    outside: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", lambda request: self.asked(request.url))
        self.page.on("requestfailed", lambda request: self.failed(request.url, request.failure))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self.said(message.type, message.text))

    def asked(self, url: str) -> None:
        if not url.startswith((f"{self.base}/", "data:", "blob:")):
            self.outside.append(url)

    def failed(self, url: str, why: str) -> None:
        if why != "net::ERR_ABORTED":  # the reader went on before it had come
            self.complaints.append(f"{url}: {why}")

    def said(self, kind: str, text: str) -> None:
        if kind == "error":
            self.complaints.append(text)

    def open(self, name: str) -> Page:
        """Go to a page of the book, and wait until its formulas are set."""
        self.page.goto(f"{self.base}/{name}.html")
        self.page.evaluate("window.MathJax?.startup?.promise.then(() => null)")
        return self.page


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(color_scheme="light", viewport={"width": 1280, "height": 900})
    yield context
    context.close()


@pytest.fixture
def tab(context: BrowserContext, base: str) -> Iterator[Tab]:
    """A fresh tab; whatever a test does in it, it stays quiet and asks nobody outside."""
    tab = Tab(context.new_page(), base)
    yield tab
    assert tab.complaints == []
    assert tab.outside == []


LOOK = r"""() => {
  const visible = node => !node.parentElement.closest("script, style, pre, code, mjx-container");
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const raw = [];
  while (walker.nextNode())
    if (visible(walker.currentNode) && /\\[(\[]|\$\$/.test(walker.currentNode.data))
      raw.push(walker.currentNode.data.trim().slice(0, 60));
  const formulas = [...document.querySelectorAll(".math")];
  return {
    width: document.scrollingElement.scrollWidth,
    raw: raw,
    unset: formulas.filter(f => !f.querySelector("mjx-container")).map(f => f.textContent),
    misread: [...document.querySelectorAll("mjx-merror, mtext[mathcolor=red]")]
      .map(f => f.textContent),
    blank: [...document.images]
      .filter(i => i.checkVisibility() && !(i.complete && i.naturalWidth)).map(i => i.src),
  };
}"""


@pytest.fixture(scope="module")
def seen(browser: Browser, base: str) -> dict[str, dict]:
    """Every page of the contents, and the search and index pages, once, on a phone."""
    found = {}
    tab = Tab(browser.new_page(viewport=PHONE), base)
    for name in [*pages(), "search", "genindex"]:
        tab.outside, tab.complaints = [], []
        looks = tab.open(name).evaluate(LOOK)
        found[name] = looks | {"outside": tab.outside, "complaints": tab.complaints}
    tab.page.close()
    return found


@pytest.mark.parametrize("fault", ["outside", "complaints", "raw", "unset", "misread", "blank"])
def test_no_page_asks_outside_complains_or_leaves_formulas_or_images_undrawn(
    seen: dict[str, dict], fault: str
) -> None:
    assert {name: page[fault] for name, page in seen.items() if page[fault]} == {}


def test_no_page_is_wider_than_a_phone(seen: dict[str, dict]) -> None:
    wide = {name: page["width"] for name, page in seen.items()}
    assert {name: width for name, width in wide.items() if width > PHONE["width"]} == {}


def test_formulas_are_drawn(tab: Tab) -> None:
    assert tab.open("notebooks/metrics").locator("mjx-container").count() > 20


def brightness(page: Page) -> float:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour.strip("rgba()").split(",")[:3]) / 3


def test_dark_mode_is_chosen_by_a_button_and_kept_on_the_next_page(tab: Tab) -> None:
    page = tab.open("book/index")
    assert brightness(page) > 200

    for _ in range(3):
        page.locator(".theme-switch-button:visible").click()
        if page.locator("html").get_attribute("data-theme") == "dark":
            break
    assert brightness(page) < 60
    assert brightness(tab.open("notebooks/metrics")) < 60


def test_search_finds_a_page_and_leads_to_it(tab: Tab) -> None:
    page = tab.open("book/index")
    page.keyboard.press("Control+k")
    page.keyboard.type("calibration")
    page.keyboard.press("Enter")

    result = page.locator("#search-results li a", has_text="Every metric, by hand").first
    result.click()

    page.wait_for_url("**/notebooks/metrics.html*")
    assert page.title().startswith("Every metric")


def test_a_button_copies_the_code_beside_it(tab: Tab) -> None:
    page = tab.open("notebooks/metrics")
    code = page.locator("div.cell_input").nth(1)

    code.hover()
    code.locator("button.copybtn").click()
    page.evaluate("document.body.appendChild(document.createElement('textarea')).focus()")
    page.keyboard.press("Control+v")

    assert page.locator("body > textarea").input_value() == code.locator("pre").inner_text().strip()


def test_the_executed_notebook_can_be_downloaded(tab: Tab) -> None:
    page = tab.open("notebooks/metrics")
    page.locator(".dropdown-download-buttons > button").click()
    button = page.locator(".btn-download-source-button")
    if tab.base.startswith("http"):
        with page.expect_download() as download:
            button.click()
        assert download.value.suggested_filename == "metrics.ipynb"
        text = download.value.path().read_text()
    else:  # from a disk a browser shows the file instead
        with page.expect_popup() as shown:
            button.click()
        assert shown.value.url.endswith("/metrics.ipynb")
        text = shown.value.locator("body").inner_text()

    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    assert sum(bool(cell["outputs"]) for cell in cells) >= 5


def test_a_solution_opens_on_a_click(tab: Tab) -> None:
    page = tab.open("notebooks/metrics")
    solution = page.locator("div.admonition.dropdown").first
    inside = solution.locator("p:not(.admonition-title)").first
    assert not inside.is_visible()

    solution.locator("button.toggle-button").click()

    inside.wait_for(state="visible")


def test_the_chapters_are_one_touch_away_on_a_phone(tab: Tab) -> None:
    page = tab.open("notebooks/metrics")
    page.set_viewport_size(PHONE)
    chapter = page.locator(".bd-sidebar-primary").get_by_role("link", name="Claims, tested")
    chapter.wait_for(state="hidden")

    page.locator("button.primary-toggle").click()
    chapter.click()

    page.wait_for_url("**/notebooks/claims.html")
