"""The interactive pages in a real browser: worked by hand, with the numbers of the package."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

import cfcore
from cfbook.production.gallery import _write_gallery
from cfbook.production.interactive import (
    _HOSPITAL,
    _grey,
    _matrix,
    _one_of_each_kind,
    _worlds,
    write,
)
from cfbook.study.cohorts import held_out, phantom_cohort
from cfbook.study.presets import preset
from cfchest.graph import paper_grid
from cfcore.interventions import Grid

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = os.environ.get("CFCORE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: install it, or set CFCORE_CHROMIUM"
)

ROOT = Path(__file__).parents[2]
PROBE = Path(__file__).parent / "interactive.js"
BOOK = preset("book")
PAGES = {"front": "index", "explorer": "explorer", "playground": "playground"}
TOOLS = tuple(PAGES)
WORLD = ("observed", "truth")  # pictures of the explorer
PAPER = (0.5, 0.25, 0.1)  # the tails that are always shown
ORIGINAL = ("R_orig", "Brier_orig", "ECE_orig", "MCE_orig")  # which know of no world
FIRST = ("R_IE", "S_flip", "S_var")  # what a beginner sees
STILL = 0.01  # the layout shift that nobody sees


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rendered book, or one of these pages alone, with stubs of the chapters."""
    if os.environ.get("CFCORE_BOOK"):
        return Path(os.environ["CFCORE_BOOK"]).absolute()
    source = tmp_path_factory.mktemp("book")
    for folder in ("book", "notebooks"):
        shutil.copytree(ROOT / folder, source / folder)
    for name in ("_config.yml", "_toc.yml"):
        shutil.copy(ROOT / name, source)
    _write_gallery(source)
    for chapter in (source / "notebooks").glob("*.ipynb"):
        cell = {"cell_type": "markdown", "metadata": {}, "source": f"# {chapter.stem}"}
        stub = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
        chapter.write_text(json.dumps(stub))
    chapters = [f"notebooks/{path.stem}" for path in sorted(source.glob("notebooks/*.ipynb"))]
    files = "".join(
        f"  - file: {name}\n" for name in ("book/explorer", "book/playground", *chapters)
    )
    (source / "_toc.yml").write_text(f"format: jb-book\nroot: book/index\nchapters:\n{files}")
    write(source / "book/_static", BOOK)
    build = [Path(sys.executable).with_name("jupyter-book"), "build", source]
    subprocess.run(build, check=True, capture_output=True)
    return source / "_build/html"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The address of the book on a server of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Browser, served: str) -> Iterator[Callable[..., Page]]:
    """Open a tool in a window of its own and wait until it is ready."""
    contexts = []

    def go(
        tool: str,
        *,
        base: str = served,
        state: str = "",
        ready: bool = True,
        **options,  # noqa: ANN003
    ) -> Page:
        context = chromium.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.complaints, page.requests = [], []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("console", lambda m: page.complaints.append(m.text) if m.type == "error" else None)
        page.on("request", lambda request: page.requests.append(request.url))
        page.add_init_script(path=PROBE)
        page.route("**/*-data.js", lambda route: (time.sleep(0.4), route.continue_()))
        page.goto(f"{base}/book/{PAGES[tool]}.html{state}")
        if ready:
            page.wait_for_function(f"probe.said('{tool}')")
        return page

    yield go
    for context in contexts:
        context.close()


PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
DESK = {"viewport": {"width": 1280, "height": 800}}


@pytest.mark.parametrize("scheme", ["http", "file"])
@pytest.mark.parametrize("window", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("tool", TOOLS)
def test_pages_ask_nobody_complain_of_nothing_and_do_not_jump(
    tool: str, window: dict, scheme: str, visit: Callable, served: str, site: Path
) -> None:
    base = served if scheme == "http" else site.as_uri()
    page = visit(tool, base=base, **window)

    assert [url for url in page.requests if not url.startswith((base, "data:", "blob:"))] == []
    assert page.complaints == []
    assert page.evaluate("window.shift") < STILL
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) <= 0
    assert page.locator(".still").is_hidden()


@pytest.mark.parametrize("tool", TOOLS)
def test_without_scripts_or_data_a_still_picture_stands_in(
    tool: str, visit: Callable, chromium: Browser, served: str
) -> None:
    page = visit(tool, ready=False, java_script_enabled=False)
    assert page.locator(".tool").is_hidden()
    assert page.locator(".still img").is_visible()

    page = chromium.new_page()
    page.route("**/*-data.js", lambda route: route.abort())
    page.goto(f"{served}/book/{PAGES[tool]}.html")
    page.locator(".still img").wait_for()
    assert page.locator(".tool").is_hidden()
    assert page.evaluate("document.querySelector('.still img').decode().then(() => true)")
    page.close()


# The front page.


def scores(page: Page) -> dict[str, float]:
    """What both classifiers say on the front page, by name."""
    return page.evaluate("probe.scores()")


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_on_the_front_page_sex_moves_the_biased_score_and_hardly_the_other(
    scheme: str, visit: Callable, served: str, site: Path
) -> None:
    page = visit("front", base=served if scheme == "http" else site.as_uri(), **DESK)
    man = scores(page)
    assert (
        page.locator("#front-verdict")
        .inner_text()
        .endswith(
            "been a man of 70, only the classifier “sex bias 0.95” would have decided otherwise."
        )
    )

    places = page.evaluate("probe.dots()")
    page.get_by_role("radio", name="woman", exact=True).check()
    page.wait_for_timeout(600)  # the dots take their time
    woman, moved = scores(page), page.evaluate("probe.dots()")
    assert abs(woman["unbiased"] - man["unbiased"]) < 0.1
    assert woman["sex bias 0.95"] - man["sex bias 0.95"] > 0.5
    assert abs(moved[0] - places[0]) < 0.1 < 0.5 < moved[1] - places[1]
    assert page.complaints == []


def test_the_front_page_is_worked_by_keyboard_and_says_what_it_shows(visit: Callable) -> None:
    page = visit("front", **DESK)
    first = scores(page)

    tab_to(page, "front-sex")
    page.keyboard.press("ArrowUp")
    tab_to(page, "front-age")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")

    slider = page.get_by_role("slider", name="What if: age")
    assert slider.get_attribute("aria-valuetext") == "30 years"
    hear(page, "front", "As a woman of 30")
    assert scores(page)["unbiased"] != first["unbiased"]
    for name, score in scores(page).items():
        assert f"{name} {score:.2f}" in page.evaluate("probe.said('front')")


def test_the_front_page_shows_the_same_world_as_the_explorer(visit: Callable) -> None:
    front, explorer = visit("front", **DESK), visit("explorer", **DESK)

    for sex, age in ((0, 20), (1, 90)):
        for page, tool in ((front, "front"), (explorer, "explorer")):
            page.locator(f"[name={tool}-sex][value='{sex}']").check()
            page.locator(f"#{tool}-age").fill(str(age))
        true = {name: row[1] for name, row in risks(explorer).items()}
        assert scores(front).items() <= true.items()
        for picture in ("observed", "truth"):
            grey = [
                page.locator(f"#{tool}-{picture}").evaluate("probe.grey")
                for page, tool in ((front, "front"), (explorer, "explorer"))
            ]
            assert grey[0] == grey[1]


@pytest.mark.parametrize(
    ("window", "last"), [(DESK, ".doors"), (PHONE, "#front-scores")], ids=["desk", "phone"]
)
def test_the_first_screen_has_the_question_the_picture_and_what_one_can_do(
    window: dict, last: str, visit: Callable
) -> None:
    page = visit("front", **window)

    for part in ("h1 + p", "#front-truth", "#front-age", last):
        box = page.locator(part).bounding_box()
        assert box["y"] + box["height"] <= window["viewport"]["height"], part


def test_on_paper_the_front_page_has_its_still_picture(visit: Callable) -> None:
    page = visit("front", **DESK)
    page.emulate_media(media="print")

    assert page.locator("#front").is_hidden()
    assert page.locator(".still img").is_visible()


def test_every_chapter_has_a_card_with_a_picture(visit: Callable, site: Path) -> None:
    page = visit("front", **DESK)
    links = page.locator(".gallery a").evaluate_all("all => all.map((a) => a.getAttribute('href'))")
    images = page.locator(".gallery img").evaluate_all(
        "all => all.map((image) => image.getAttribute('src'))"
    )
    chapters = {path.stem for path in (ROOT / "notebooks").glob("*.md")}
    files = [site / "book" / image for image in images]

    assert {Path(link).stem for link in links} == chapters
    assert len(files) == len(links) == len(chapters)
    assert all((site / "book" / link).is_file() for link in links)
    assert min(file.stat().st_size for file in files) > 1000
    assert sum(file.stat().st_size for file in files) < 700_000
    sizes = "all => Promise.all(all.map((i) => (i.loading = 'eager', i.decode())))"
    page.locator(".gallery img").evaluate_all(sizes)  # every one can be drawn


# The explorer.


def risks(page: Page) -> dict[str, list[float]]:
    """The table of the explorer: observed, true and learned probability by predictor."""
    return page.evaluate("probe.risks()")


def hear(page: Page, tool: str, words: str) -> None:
    """Wait until a screen reader is told something that starts with these words."""
    page.wait_for_function(f"probe.said('{tool}').startsWith('{words}')")


def value(page: Page, control: str) -> str:
    return page.locator(f"#{control}").input_value()


def tab_to(page: Page, name: str) -> None:
    """Press Tab until a control has the focus."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if page.evaluate("probe.focused()") == name:
            return
    raise AssertionError(f"no way to {name} by Tab")


def test_the_explorer_is_worked_by_keyboard(visit: Callable) -> None:
    page = visit("explorer", **DESK)
    first = risks(page)

    tab_to(page, "explorer-patient")
    page.keyboard.press("ArrowRight")
    assert risks(page) != first
    page.keyboard.press("ArrowLeft")
    assert risks(page) == first

    tab_to(page, "explorer-sex")
    page.keyboard.press("ArrowDown")
    tab_to(page, "explorer-age")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    slider = page.get_by_role("slider", name="What if: age")
    assert slider.get_attribute("aria-valuetext") == "30 years"
    hear(page, "explorer", "As a woman of 30")
    assert risks(page) != first

    tab_to(page, "explorer-own")
    page.keyboard.press("Enter")
    own = risks(page)
    assert all(abs(observed - true) < 0.05 for observed, true, _ in own.values())

    panel = page.get_by_role("slider", name="with the score of sex bias 0.95")
    panel.focus()
    page.keyboard.press("ArrowUp")
    assert panel.get_attribute("aria-valuetext").startswith("man of 70: 0.0")
    page.keyboard.press("Home")
    assert panel.get_attribute("aria-valuenow") == "20" == value(page, "explorer-age")

    tab_to(page, "explorer-more")
    page.keyboard.press("Space")
    assert page.locator(".panel:visible").count() == 6


def drag(page: Page, selector: str, to: float) -> None:
    """Drag the handle of a slider with a finger to a share of its length."""
    slider = page.locator(selector)
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    low, high, now = (float(slider.evaluate(f"e => e.{part}")) for part in ("min", "max", "value"))
    start, y = (now - low) / (high - low), box["y"] + box["height"] / 2
    places = [box["x"] + 8 + share * (box["width"] - 16) for share in np.linspace(start, to, 8)]
    finger = page.context.new_cdp_session(page)
    for i, x in enumerate(places):
        kind = "touchMove" if i else "touchStart"
        points = [{"x": x, "y": y}]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def test_the_explorer_is_worked_by_touch(visit: Callable) -> None:
    page = visit("explorer", **PHONE)
    first = risks(page)

    page.get_by_role("radio", name="man of 81").tap()
    assert risks(page) != first
    page.get_by_role("radio", name="woman", exact=True).tap()
    drag(page, "#explorer-age", 0.0)
    assert value(page, "explorer-age") == "20"
    hear(page, "explorer", "As a woman of 20")
    page.get_by_role("button", name="Back to the patient").tap()
    assert value(page, "explorer-age") == "80"

    panel = page.locator(".panel").first
    panel.scroll_into_view_if_needed()
    box = panel.locator("svg").bounding_box()
    page.touchscreen.tap(box["x"] + 24, box["y"] + box["height"] / 2)
    assert value(page, "explorer-age") == "20"
    assert "of 20: " in panel.locator(".readout").inner_text()
    page.locator("#explorer-learned").tap()
    assert page.locator("#explorer-drawn").is_visible()


def test_the_pictures_of_the_explorer_are_those_of_the_generators(visit: Callable) -> None:
    data = held_out(_HOSPITAL, BOOK, "balanced")
    data = data.take(_one_of_each_kind(data.table))
    drawn = _grey(_worlds(phantom_cohort(_HOSPITAL, BOOK).oracle, data, paper_grid()))
    page = visit("explorer", **DESK)
    radios = page.locator("[name=explorer-patient]")

    assert radios.count() == len(data) == 8
    for row, sex, age in ((0, 0, 20), (3, 1, 90), (7, 0, 60)):
        radios.nth(row).check()
        page.locator(f"[name=explorer-sex][value='{sex}']").check()
        page.locator("#explorer-age").fill(str(age))
        world = 8 * sex + (age - 20) // 10
        shown = page.locator("#explorer-truth").evaluate("probe.grey")
        np.testing.assert_array_equal(np.reshape(shown, (64, 64)), drawn[row, world])
        observed = page.locator("#explorer-observed").evaluate("probe.grey")
        np.testing.assert_array_equal(np.reshape(observed, (64, 64)), _grey(data[row])[0, 0])


def test_the_explorer_opens_with_two_predictors_where_something_is_seen(visit: Callable) -> None:
    page = visit("explorer", **DESK)
    seen = risks(page)

    assert page.locator(".panel:visible b").all_inner_texts() == ["unbiased", "sex bias 0.95"]
    assert page.locator("#explorer-risks tr:visible").count() == 2
    assert page.locator(".with-learned:visible").count() == 0
    assert abs(seen["unbiased"][1] - seen["unbiased"][0]) < 0.1
    assert seen["sex bias 0.95"][0] - seen["sex bias 0.95"][1] > 0.5
    turned = "a man of 70, “sex bias 0.95” would have decided otherwise"
    assert turned in page.locator("#explorer-sentence").inner_text()

    observed, truth = (page.locator(f"#explorer-{name}").evaluate("probe.grey") for name in WORLD)
    change = np.subtract(truth, observed)
    assert np.abs(change).max() > 30
    shown = page.locator("#explorer-change").evaluate("probe.signed")
    strength = np.sign(change) * np.minimum(4 * np.abs(change), 255)
    strong = np.abs(change) > 2  # a browser does not keep the colour of what is all but transparent
    np.testing.assert_array_equal(np.array(shown)[strong], strength[strong])
    np.testing.assert_array_equal(np.abs(shown), np.abs(strength))


def test_the_explorer_draws_the_mean_of_all_worlds(visit: Callable) -> None:
    page = visit("explorer", **DESK)
    truth = page.evaluate("window.EXPLORER.patients[0].truth")
    height = page.locator(".panel svg").first.evaluate("chart => chart.clientHeight")

    for panel, g in zip(page.locator(".panel:visible").all(), (0, 3), strict=True):
        line = panel.locator("polyline.average.truth").get_attribute("points")
        levels = [float(place.split(",")[1]) for place in line.split()]
        level = height - 20 - np.mean(truth[g]) * (height - 28)
        assert levels == pytest.approx([level, level], abs=0.1)
        assert panel.locator("text.halo").text_content() == f"mean {np.mean(truth[g]):.2f}"
    cells = page.locator("#explorer-risks tr:visible [data-of=mean]").all_inner_texts()
    assert cells == [f"{np.mean(truth[g]):.2f}" for g in (0, 3)]


def test_the_curves_of_the_explorer_tell_values_and_can_be_clicked(visit: Callable) -> None:
    page = visit("explorer", **DESK)
    truth = page.evaluate("window.EXPLORER.patients[0].truth")[3]
    panel = page.locator(".panel:visible").nth(1)
    panel.scroll_into_view_if_needed()
    box = panel.locator("svg").bounding_box()
    left = box["x"] + 26  # at twenty years

    page.mouse.move(left, box["y"] + 12)
    readout = panel.locator(".readout")
    assert readout.inner_text() == f"20 years: woman {truth[8]:.2f}, man {truth[0]:.2f}"
    page.mouse.click(left, box["y"] + 12)  # nearer to the woman
    page.mouse.move(0, 0)
    assert readout.inner_text() == f"woman of 20: {truth[8]:.2f}"
    assert value(page, "explorer-age") == "20"
    assert page.locator("[name=explorer-sex]:checked").input_value() == "1"

    page.mouse.move(left, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 9, box["y"] + 60, steps=5)
    assert value(page, "explorer-age") == "90"
    page.mouse.up()


@pytest.mark.parametrize("window", [DESK, PHONE], ids=["desk", "phone"])
def test_what_a_suggestion_changes_is_scrolled_into_view(window: dict, visit: Callable) -> None:
    page = visit("explorer", **window)
    for number in range(3):
        page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
        page.locator("button[data-try]").nth(number).click()
        for part in ("#explorer-age", ".panel >> nth=0"):
            page.locator(part).evaluate(
                "node => new Promise(done => setInterval(() => probe.inView(node) && done(), 50))"
            )
        first = page.locator("#explorer-truth" if number < 2 or window is DESK else ".panel svg")
        assert first.first.evaluate("probe.inView")

    page = visit("playground", **window)
    page.get_by_role("button", name="What averaging hides").click()
    row = page.locator("[data-metric=R_orig]")
    row.evaluate("node => new Promise(done => setInterval(() => probe.inView(node) && done(), 50))")


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_the_address_of_the_explorer_holds_what_it_shows(
    scheme: str, visit: Callable, served: str, site: Path
) -> None:
    base = served if scheme == "http" else site.as_uri()
    page = visit("explorer", base=base, **DESK)
    assert page.url.endswith("explorer.html")

    page.get_by_role("radio", name="man of 34").first.check()
    page.locator("[name=explorer-sex][value='1']").check()
    page.locator("#explorer-age").fill("50")
    page.locator("#explorer-more").check()
    page.locator("#explorer-learned").check()
    page.wait_for_function("location.href.includes('learned=yes')")
    query = "?patient=4&sex=woman&age=50&predictors=all&learned=yes"
    assert page.url.endswith(query)

    for sign in "?#":
        other = visit("explorer", base=base, state=sign + query[1:], **DESK)
        assert risks(other) == risks(page)
        assert other.locator("[name=explorer-patient]").nth(3).is_checked()
        assert other.locator(".panel:visible").count() == 6
        assert other.locator("#explorer-drawn").is_visible()
        assert other.locator("#explorer-age").evaluate("probe.inView")
    odd = visit("explorer", base=base, state="?patient=99&sex=x&age=55&learned=%", **DESK)
    assert odd.locator("[name=explorer-patient]").first.is_checked()
    assert odd.complaints == page.complaints == []


def test_what_the_explorer_suggests_can_be_seen(visit: Callable) -> None:
    page = visit("explorer", **DESK)
    page.locator("#explorer-own").click()
    own = risks(page)
    suggestions = page.locator("button[data-try]")

    suggestions.nth(0).click()
    turned = risks(page)
    assert abs(turned["unbiased"][1] - own["unbiased"][1]) < 0.1
    assert own["sex bias 0.95"][1] - turned["sex bias 0.95"][1] > 0.5

    suggestions.nth(1).click()
    young = risks(page)
    page.locator("#explorer-age").fill("90")
    assert all(risks(page)[name][1] > young[name][1] + 0.1 for name in young)

    suggestions.nth(2).click()
    observed, true, learned = risks(page)["unbiased"]
    assert abs(learned - observed) < 0.1 < 0.3 < observed - true


# The playground.


def numbers(rows: dict[str, list[str]], column: int) -> dict[str, float]:
    """One column of the table of metrics: the chosen predictor, or the unbiased one."""
    return {name: float(values[column]) for name, values in rows.items()}


def shown(page: Page) -> dict[str, float]:
    """The metrics of the chosen predictor on the page, with all their digits."""
    return numbers(page.evaluate("probe.metrics()"), 0)


@cache
def table() -> list[cfcore.Predictions]:
    """What the playground is made of."""
    return list(_matrix(BOOK).values())


def expected(predictor: int, asked: dict[str, object], q: np.ndarray) -> dict[str, float]:
    """The same from the package; the tail of the slider under the name it has on the page."""
    one = table()[predictor]
    alpha = asked["alpha"]
    alphas = [*(other for other in PAPER if other != alpha), alpha]
    rest = {"threshold": asked["threshold"], "alphas": alphas, "bins": asked["bins"]}
    p_obs, p_cf = one.logit_obs.double().sigmoid(), one.logit_cf.double().sigmoid()
    metrics = cfcore.evaluate(p_obs, p_cf, one.y, q=q, **rest)
    own = f"R_CVaR_{alpha:.2f}"
    return metrics | {"R_CVaR": metrics[own] if alpha in PAPER else metrics.pop(own)}


def random_setting(rng: np.random.Generator) -> dict[str, object]:
    weights = rng.integers(0, 61, size=16) * (rng.random(16) < rng.random())
    weights[rng.integers(16)] += not weights.any()
    return {
        "predictor": int(rng.integers(6)),
        "threshold": round(float(rng.random()), 2),
        "alpha": float(rng.choice([0.0, 0.1, 1.0, round(float(rng.random()), 2)])),
        "bins": int(rng.integers(2, 31)),
        "q": str(rng.choice(["uniform", "empirical", "custom", "custom"])),
        "weights": weights.tolist(),
    }


def target(asked: dict[str, object]) -> np.ndarray:
    """The q of a setting."""
    if asked["q"] == "custom":
        return np.array(asked["weights"]) / np.sum(asked["weights"])
    first = table()[0]
    grid = Grid(first.grid)
    own = {name: first.parents[name] for name in first.grid}
    return (grid.empirical(own) if asked["q"] == "empirical" else grid).q.numpy()


def test_two_hundred_random_settings_of_the_playground_agree_with_the_package(
    visit: Callable,
) -> None:
    page, rng = visit("playground", **DESK), np.random.default_rng(8)
    settings = [random_setting(rng) for _ in range(200)]
    try_all = "settings => settings.map((one) => { probe.set(one); return probe.metrics(); })"
    worst = 0.0

    for asked, rows in zip(settings, page.evaluate(try_all, settings), strict=True):
        for column, predictor in enumerate((asked["predictor"], 0)):
            want, have = expected(predictor, asked, target(asked)), numbers(rows, column)
            assert have.keys() == want.keys()
            difference = {name: abs(have[name] - want[name]) for name in want}
            assert max(difference.values()) < 1e-6, (asked, difference)
            worst = max(worst, *difference.values())
    print(f"largest difference {worst:.1e}")


def test_the_playground_is_worked_by_keyboard(visit: Callable) -> None:
    page = visit("playground", **DESK)
    asked = {"threshold": 0.5, "alpha": 0.2, "bins": 10}
    uniform = np.full(16, 1 / 16)

    tab_to(page, "playground-predictor")
    page.keyboard.press("Home")
    assert value(page, "playground-predictor") == "0"
    tab_to(page, "playground-threshold")
    page.keyboard.press("ArrowRight")
    tab_to(page, "playground-more")
    page.keyboard.press("Enter")
    page.locator("#playground-predictor").focus()
    tab_to(page, "playground-alpha")
    page.keyboard.press("Home")
    assert shown(page) == pytest.approx(
        expected(0, asked | {"threshold": 0.51, "alpha": 0.0}, uniform)
    )
    assert shown(page)["R_CVaR"] == shown(page)["R_WC"]

    page.locator("#playground-threshold").focus()
    tab_to(page, "playground-q")
    page.keyboard.press("ArrowRight")
    assert page.locator("[name=playground-q]:checked").input_value() == "empirical"
    page.locator("#playground-bins").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    assert page.locator("[name=playground-q]:checked").input_value() == "custom"
    hear(page, "playground", "unbiased")

    tab_to(page, "playground-patient")
    before = page.locator("#playground-sentence").inner_text()
    page.keyboard.press("ArrowDown")
    assert page.locator("#playground-sentence").inner_text() != before
    assert page.evaluate("probe.focused()") == "playground-patient"


def test_the_playground_is_worked_by_touch(visit: Callable) -> None:
    page = visit("playground", **PHONE)

    drag(page, "#playground-threshold", 0.9)
    threshold = float(value(page, "playground-threshold"))
    assert 0.8 < threshold < 1
    page.get_by_role("radio", name="as in the test set").tap()
    asked = {"threshold": threshold, "alpha": 0.2, "bins": 10, "q": "empirical"}
    chosen = int(value(page, "playground-predictor"))
    assert shown(page) == pytest.approx(expected(chosen, asked, target(asked)), abs=1e-6)

    page.get_by_role("button", name="All 21 metrics").tap()
    drag(page, "[data-world='3']", 1.0)
    assert page.locator("[data-world='3']").input_value() == "60"
    assert page.locator("[name=playground-q]:checked").input_value() == "custom"
    page.locator("[name=playground-patient]").nth(4).tap()
    assert page.locator("[name=playground-patient]").nth(4).is_checked()


def test_the_list_of_the_playground_is_in_the_order_that_was_asked_for(visit: Callable) -> None:
    page = visit("playground", **DESK)
    page.locator("#playground-order").select_option("flips")
    rates = [float(text.rstrip(" %")) for text in page.locator(".rows .flips").all_inner_texts()]

    assert len(rates) == 320
    assert rates == sorted(rates, reverse=True)
    assert np.mean(rates) / 100 == pytest.approx(shown(page)["S_flip"], abs=0.005)


def test_without_any_weight_the_playground_says_so(visit: Callable) -> None:
    page = visit("playground", **DESK)
    setting = {"predictor": 0, "threshold": 0.5, "alpha": 0.2, "bins": 10, "q": "custom"}
    page.evaluate("probe.set", setting | {"weights": [0] * 16})

    assert "nothing to average" in page.locator("#playground-hint").inner_text()
    empty = shown(page)
    known = {name: value for name, value in empty.items() if not np.isnan(value)}
    whole = expected(0, setting, np.full(16, 1 / 16))
    assert known == pytest.approx({name: whole[name] for name in ORIGINAL})
    page.evaluate("probe.set", setting | {"weights": [1] * 16})
    assert shown(page)["R_IE"] == pytest.approx(expected(0, setting, np.full(16, 1 / 16))["R_IE"])
    assert page.complaints == []


def test_the_playground_begins_with_three_metrics_and_can_be_reset(visit: Callable) -> None:
    page = visit("playground", **DESK)
    first, address = page.evaluate("probe.metrics()"), page.url
    tiles = page.locator("[data-tile]:visible")
    assert [tile.get_attribute("data-tile") for tile in tiles.all()] == [*FIRST]
    for name, tile in zip(FIRST, tiles.all(), strict=True):
        for part, column in (("b", 0), (".basic", 1)):
            number = float(first[name][column])
            words = f"{100 * number:.0f} %" if name == "S_flip" else f"{number:.3f}"
            assert tile.locator(part).inner_text() == words
    further = page.locator("[data-metric], #playground-alpha, #playground-bins, [data-world]")
    assert further.locator("visible=true").count() == 0

    page.get_by_role("button", name="All 21 metrics").click()
    assert page.locator("[data-metric]:visible").count() == 21
    assert further.locator("visible=true").count() == further.count() == 21 + 2 + 16
    page.locator("#playground-alpha").fill("0.6")
    page.locator("[data-world='2']").fill("3")
    page.locator("#playground-predictor").select_option("4")
    assert page.evaluate("probe.metrics()") != first

    page.get_by_role("button", name="Reset").click()
    assert page.evaluate("probe.metrics()") == first
    assert further.locator("visible=true").count() == 0
    page.wait_for_function("address => location.href === address", arg=address)


@pytest.mark.parametrize("window", [DESK, PHONE], ids=["desk", "phone"])
def test_a_name_shows_its_formula_by_focus_by_pointer_and_by_touch(
    window: dict, visit: Callable
) -> None:
    page = visit("playground", state="?metrics=all", **window)
    names = page.locator(".named:visible")
    assert names.count() == len(FIRST) + 21

    for name in names.all():
        button, note = name.locator("button"), name.locator(".formula")
        assert note.is_hidden()
        button.focus()
        assert note.is_visible()
        symbol = button.inner_text()
        assert note.inner_text().replace("\n", "").startswith(symbol.replace("\n", "") + " =")
        box = note.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= window["viewport"]["width"]
        page.keyboard.press("Escape")
        assert note.is_hidden()
        button.blur()

    button, note = (names.last.locator(part) for part in ("button", ".formula"))
    if window is PHONE:
        button.tap()
        assert note.is_visible()
        page.locator("h2.tool-heading").tap()
    else:
        button.hover()
        assert note.is_visible()
        note.hover()  # it stays while it is read
        assert note.is_visible()
        page.mouse.move(0, 0)
    assert note.is_hidden()


def test_the_mean_of_the_explorer_shows_its_formula(visit: Callable) -> None:
    page = visit("explorer", **PHONE)
    note = page.locator("#explorer .formula")
    page.get_by_role("button", name="mean", exact=True).tap()
    assert "the marginalised prediction" in note.inner_text()
    box = note.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_the_address_of_the_playground_holds_what_it_shows(
    scheme: str, visit: Callable, served: str, site: Path
) -> None:
    base = served if scheme == "http" else site.as_uri()
    page = visit("playground", base=base, **DESK)
    page.locator("#playground-more").click()
    rng = np.random.default_rng(3)
    for asked in (random_setting(rng) | {"q": q} for q in ("custom", "empirical")):
        page.evaluate("probe.set", asked)
        page.locator("#playground-order").select_option("moved")
        page.locator("[name=playground-patient]").nth(7).check()
        page.wait_for_function("q => location.href.includes(`q=${q}`)", arg=asked["q"])
        page.wait_for_timeout(400)  # the address comes last
        other = visit("playground", base=base, state="?" + page.url.split("?")[1], **DESK)
        for what in ("probe.metrics()", "document.querySelector('#playground-sentence').innerText"):
            assert other.evaluate(what) == page.evaluate(what)
        assert value(other, "playground-order") == "moved"

    odd = visit(
        "playground", base=base, state="?predictor=x&q=custom&alpha=x&order=x&bins=1", **DESK
    )
    assert odd.complaints == page.complaints == []


def test_what_the_playground_suggests_can_be_seen(visit: Callable) -> None:
    page = visit("playground", **DESK)
    suggestions = page.locator("button[data-try]")

    suggestions.nth(0).click()
    both = page.evaluate("probe.metrics()")
    assert all(float(both[name][0]) > 3 * float(both[name][1]) for name in FIRST)
    suggestions.nth(3).click()
    tail = shown(page)
    assert tail["R_CM"] < tail["R_orig"] < tail["R_CVaR"] <= tail["R_WC"]
    suggestions.nth(1).click()
    hidden = shown(page)
    assert hidden["S_flip"] < tail["S_flip"] / 2
    assert hidden["S_var"] == tail["S_var"]
    suggestions.nth(2).click()
    assert page.locator("[name=playground-q]:checked").input_value() == "women"
    women = shown(page)
    assert women["S_var"] < tail["S_var"] / 10
    assert women["S_flip"] > 0.2
    assert page.locator(".rows .who").first.inner_text().startswith("man")


SETTINGS = {
    "explorer": {
        "patient": "[1-8]",
        "sex": "woman|man",
        "age": "[2-9]0",
        "predictors": "all",
        "learned": "yes",
    },
    "playground": {
        "predictor": "unbiased|offset \\+1|(sex|age) bias 0\\.(8|95)",
        "q": "uniform|empirical|women|custom",
        "weights": r"\d+(\.\d+){15}",
        "threshold": r"[01]|0\.\d\d?",
        "alpha": r"[01]|0\.\d\d?",
        "bins": r"\d+",
        "order": "flips|variance|moved|excess|tail",
        "patient": r"\d+",
        "metrics": "all",
    },
}


WRITTEN = ("notebooks/*.md", "book/*.md", "book/_interactive/*.html")


def test_links_to_a_view_name_settings_that_there_are() -> None:
    found = []
    for path in (p for place in WRITTEN for p in ROOT.glob(place)):
        text = path.read_text()
        found += re.findall(r"(explorer|playground)\.html[?#]([^\"')\s]+)", text)
        found += [(path.stem, words) for words in re.findall(r'data-try="([^"]+)"', text)]

    assert len(found) >= 7
    for tool, words in found:
        for name, setting in parse_qsl(unescape(words), strict_parsing=True):
            assert re.fullmatch(SETTINGS[tool][name], setting), (tool, words)


def test_what_the_pages_load_is_the_same_every_time(tmp_path: Path) -> None:
    both = [[path.read_bytes() for path in write(tmp_path / name, BOOK)] for name in "ab"]

    assert both[0] == both[1]
    assert max(map(len, both[0])) < 500_000
