"""The claims as a page shows them: in words, drawn, and with every number also as text."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from cfbook.figures.forest import Bar, forest
from cfbook.production.verdicts import _ShownClaims
from cfbook.study.claims import CERTAIN, TIED, VERDICTS, read_design

CLAIMS = {claim["id"]: claim for claim in read_design()["claims"]}


def a_test(claim: str, verdict: str, item: str = "S_var", **more: object) -> dict[str, object]:
    known = {"claim": claim, "setting": "C->C", "item": item, "verdict": verdict, "paper": np.nan}
    known |= {"estimate": 0.25, "low": -0.0014, "high": 0.625, "attainable": np.nan}
    known |= {"by_seed": (1.0, -1.0), "threshold": 0.0, "direction": "above"}
    return known | {"learned": 0.75, "learned verdict": "not supported"} | more


def shown(*tests: dict[str, object]) -> _ShownClaims:
    names = dict.fromkeys(test["claim"] for test in tests)
    claims = tuple(CLAIMS.get(name, {"id": name}) for name in names)
    return _ShownClaims(pd.DataFrame(list(tests)), claims, "true counterfactuals (oracle)")


def html(*tests: dict[str, object]) -> str:
    return shown(*tests)._repr_html_()


def test_every_claim_is_told_in_words_for_verdicts_that_exist() -> None:
    for claim in CLAIMS.values():
        words = claim["in_words"]
        assert words.keys() == {"says", "tested", "scale", "when", "so_what"}, claim["id"]
        assert set(words["when"]) <= set(VERDICTS)
        assert words["says"].endswith(".") and words["so_what"].endswith(".")


def test_what_follows_is_said_only_of_the_verdicts_it_was_written_for() -> None:
    words = CLAIMS["variance-reduction"]["in_words"]
    same, other = (html(a_test("variance-reduction", v)) for v in (CERTAIN, "inconclusive"))

    assert words["so_what"] in same and words["so_what"] not in other
    assert "Written for other verdicts" in other


@pytest.mark.parametrize(
    ("verdict", "chip"),
    [
        ("supported", '<span class="chip supported">supported 1</span>'),
        ("not supported", '<span class="chip not-supported">not supported 1</span>'),
        ("inconclusive", '<span class="chip inconclusive">inconclusive 1</span>'),
        (TIED, '<span class="chip tie">tie (both 100 %) 1</span>'),
        (CERTAIN, '<span class="chip construction">by construction 1</span>'),
    ],
)
def test_a_verdict_is_a_chip_with_a_count(verdict: str, chip: str) -> None:
    assert chip in html(a_test("null-floor", verdict))


def test_the_page_and_its_text_hold_the_same_numbers() -> None:
    one = shown(a_test("risk-order", "inconclusive", "R_IE - R_orig", attainable=1.0, paper=2.33))
    rows = re.findall(r"<tbody>\n<tr>(.*?)</tr>", one._repr_html_(), flags=re.DOTALL)
    cells = [re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", rows[-1])]

    numbers = ["0.25", "[−0.0014, 0.62]", "above 0", "1, −1", "1.00", "0.75", "2.33"]
    assert [cell for cell in cells if cell in numbers] == numbers
    assert all(number in repr(one) for number in numbers)


def test_values_of_the_oracle_and_of_learned_generators_stand_under_their_names() -> None:
    page = html(a_test("risk-order", "inconclusive"))
    tops = re.findall(r'<th colspan="(\d)" scope="colgroup">(.*?)</th>', page)

    assert tops == [("2", ""), ("5", "true counterfactuals (oracle)"), ("2", "learned generators")]


def test_tests_of_another_threshold_or_side_are_drawn_apart() -> None:
    below = a_test("blind-spot", "supported", "R_orig, sex", direction="below")
    above = a_test("blind-spot", "supported", "R_IE, sex")
    page = html(below, above)

    assert page.count('<svg class="forest" ') == 2
    assert "claimed below 0" in page and "claimed above 0" in page


def test_a_reason_why_a_test_cannot_fail_stands_with_its_tests() -> None:
    for text in (page := shown(a_test("null-floor", CERTAIN)))._repr_html_(), repr(page):
        assert "the oracle knows the noise" in text


def test_a_claim_of_a_readers_own_needs_no_words() -> None:
    own = {"id": "mine", "where": "here", "claim": "Mine holds.", "test": "ctc"}
    page = _ShownClaims(pd.DataFrame([a_test("mine", "supported")]), (own,), "oracle")

    assert "1. Mine holds." in page._repr_html_() and "1. Mine holds." in repr(page)


def test_marks_lie_where_their_values_do_and_say_which_side_is_claimed() -> None:
    bars = [Bar("C->C", 1.0, 0.0, 2.0, "supported", most=3.0), Bar("M->M", 2.0, 1.0, 3.0, "tie")]
    drawn = ElementTree.fromstring(forest(bars, 0.0, above=True))
    side, line = drawn.find("rect[@class='side']"), drawn.find("path[@class='threshold']")

    dots = [float(dot.get("cx")) for dot in drawn.iter("circle")]
    intervals = [p.get("d") for g in drawn.iter("g") for p in g if "H" in p.get("d", "")]
    left, right = (float(end) for end in re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", intervals[0])[0])
    assert dots == [pytest.approx((left + right) / 2, abs=0.11)]
    assert line.get("d").startswith(f"M{side.get('x')} ") and float(side.get("x")) == left
    assert [text.text for text in drawn.iter("text")][:2] == ["C→C", "M→M"]
    assert forest(bars, 0.0, above=True) == forest(bars, 0.0, above=True)


def test_unknown_values_are_not_drawn() -> None:
    drawn = forest([Bar("C->C", 0.5, math.nan, math.nan, "inconclusive")], 0.5, above=False)

    assert "nan" not in drawn and drawn.count("<circle") == 1
