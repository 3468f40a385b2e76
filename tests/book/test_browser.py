"""The book in a real browser, from a server and from a disk: whole, quiet, alone, and usable."""

import functools
import http.server
import json
import os
import re
import shutil
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from test_book import BOOK, pages

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = os.environ.get("CFCORE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
PHONE = {"width": 390, "height": 844}
METRICS = "The metrics, each computed by hand"
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


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    handler = functools.partial(Quiet, directory=BOOK)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module", params=["http", "file"])
def base(request: pytest.FixtureRequest, server: str) -> str:
    """Where the book is: on a server of this machine, or in a folder."""
    return server if request.param == "http" else BOOK.resolve().as_uri()


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


@pytest.fixture
def served(context: BrowserContext, server: str) -> Tab:
    """A fresh tab, for what is the same on a server and in a folder, or only on a server."""
    return Tab(context.new_page(), server)


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
      .filter(i => i.checkVisibility() && i.loading !== "lazy" && !(i.complete && i.naturalWidth))
      .map(i => i.src),
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

    result = page.locator("#search-results li a", has_text=METRICS).first
    result.click()

    page.wait_for_url("**/notebooks/metrics.html*")
    assert "The metrics" in page.title()


def test_found_words_are_marked_on_the_page_found_and_on_no_other(tab: Tab) -> None:
    page = tab.open("search")
    page.goto(f"{page.url.split('?')[0]}?q=calibration")
    page.locator("#search-results li a", has_text=METRICS).first.click()
    page.locator("span.highlighted").first.wait_for(state="attached")
    page.goto(f"{tab.base}/search.html?q=calibration")
    page.locator("#search-results li a").first.wait_for()

    page.locator(".bd-sidebar-primary").get_by_role("link", name=METRICS).click()

    page.wait_for_url("**/notebooks/metrics.html*")
    page.wait_for_timeout(100)
    assert page.locator("span.highlighted, .highlight-link").count() == 0


def test_a_button_copies_the_code_beside_it(tab: Tab) -> None:
    page = tab.open("notebooks/metrics")
    code = page.locator("div.cell_input:visible").first

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
    sidebar = page.locator(".bd-sidebar-primary")
    chapter = sidebar.get_by_role("link", name="The paper’s claims, tested")
    chapter.wait_for(state="hidden")

    page.locator("button.primary-toggle").click()
    chapter.click()

    page.wait_for_url("**/notebooks/claims.html")


def test_one_button_shows_all_code_and_is_kept_on_the_next_page(tab: Tab) -> None:
    page = tab.open("notebooks/missing")
    button = page.get_by_role("button", name="Show all code")
    closed = page.locator("details.hide:not([open])")
    assert button.get_attribute("aria-pressed") == "false" and closed.count() > 0

    button.focus()
    page.keyboard.press("Enter")
    assert closed.count() == 0

    page = tab.open("notebooks/training")
    assert page.locator("details.hide").count() > 0 and closed.count() == 0
    button = page.get_by_role("button", name="Hide all code")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert page.locator("details.hide[open]").count() == 0
    assert tab.open("book/glossary").locator(".code-switch").count() == 0


def test_a_figure_is_enlarged_on_a_phone(tab: Tab) -> None:
    page = tab.open("notebooks/metrics")
    page.set_viewport_size(PHONE)
    figure = page.locator(".bd-article img.enlarges").first
    window = page.locator("dialog.enlarged")
    focused = "node => node === document.activeElement"

    figure.click()
    assert window.locator("img").evaluate("image => image.clientWidth") >= 900
    assert window.evaluate("node => node.clientWidth") < PHONE["width"]
    page.keyboard.press("Escape")
    window.wait_for(state="hidden")
    assert figure.evaluate(focused)
    page.keyboard.press("Enter")
    window.get_by_role("button", name="Close").click()
    window.wait_for(state="hidden")
    figure.click()
    page.mouse.click(5, 5)
    window.wait_for(state="hidden")
    assert figure.evaluate(focused)


WIDE = """() => [...document.querySelectorAll('.bd-article mjx-container[display="true"]')]
  .filter(box => box.scrollWidth > box.clientWidth + 1)
  .map(box => ({ keys: box.tabIndex === 0, fades: getComputedStyle(box).maskImage !== "none" }))"""


def test_formulas_fit_a_desk_and_can_be_scrolled_by_keys_elsewhere(tab: Tab) -> None:
    page = tab.open("notebooks/phantom")
    page.wait_for_timeout(300)
    assert page.evaluate(WIDE) == []

    page.set_viewport_size({"width": 240, "height": 500})  # narrower than any phone
    page.wait_for_function("document.querySelector('mjx-container.scrolls')")
    assert all(box["keys"] and box["fades"] for box in page.evaluate(WIDE))


def test_icons_are_drawn(tab: Tab) -> None:
    page = tab.open("notebooks/metrics")
    drawn = "n => [n.className, getComputedStyle(n, '::before').content, n.clientWidth]"
    icons = page.locator(".bd-header-article i:visible").evaluate_all(f"all => all.map({drawn})")

    assert len(icons) >= 3
    assert [icon for icon in icons if icon[1] == "none" or icon[2] < 5] == []
    assert page.evaluate("document.fonts.check('900 16px \"Font Awesome 6 Free\"')")


def glyphs(pdf: bytes) -> list[int]:
    """How often each page of a PDF, as Chromium writes it, draws text."""
    bodies = dict(re.findall(rb"\n(\d+) 0 obj\n?(.*?)endobj", pdf, re.DOTALL))
    found = []
    for body in bodies.values():
        if re.search(rb"/Type ?/Page\b", body):
            drawn = bodies[re.search(rb"/Contents (\d+) 0 R", body)[1]]
            drawn = zlib.decompressobj().decompress(drawn.partition(b"stream\n")[2])
            found.append(len(re.findall(rb"\bT[jJ]\b", drawn)))
    return found


@pytest.mark.parametrize("name", ["notebooks/metrics", "notebooks/setting_1"])
def test_on_paper_no_page_is_empty_and_nothing_is_cut(served: Tab, name: str) -> None:
    page = served.open(name)
    pages_drawn = glyphs(page.pdf(format="A4"))
    assert len(pages_drawn) > 3 and min(pages_drawn) > 10

    page.set_viewport_size({"width": 680, "height": 960})
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    right = "nodes => nodes.map(n => n.getBoundingClientRect().left + n.scrollWidth)"
    boxes = page.locator(".bd-article :is(pre, table, img, p):visible").evaluate_all(right)
    assert max(boxes) <= 682
    assert page.locator(".print-head").inner_text().endswith(f"/{name}.html")
    assert page.locator("details.show:not([open])").count() == 0
    hidden = "details.hide:not([open]), .toggle-hidden, .bd-sidebar, button, .prev-next-footer"
    assert page.locator(hidden).locator("visible=true").count() == 0


@pytest.mark.parametrize("name", ["book/index", "notebooks/phantom", "notebooks/theory"])
def test_a_first_visit_loads_less_than_three_megabytes(served: Tab, name: str) -> None:
    sizes = []
    served.page.on("response", lambda r: sizes.append(int(r.headers.get("content-length", 0))))
    served.open(name)

    assert 0.3e6 < sum(sizes) < 3e6
