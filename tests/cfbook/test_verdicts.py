"""The claims as a page shows them: in words, drawn, and with every number also as text."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from cfbook.figures.forest import Bar, forest
from cfbook.production.verdicts import _ShownClaims
from cfbook.study.claims import VERDICTS, read_design

CLAIMS = {claim["id"]: claim for claim in read_design()["claims"]}


def a_test(claim: str, verdict: str, item: str = "S_var", **more: object) -> dict[str, object]:
    known = {"claim": claim, "setting": "C->C", "item": item, "verdict": verdict, "primary": True}
    known |= {"estimate": 0.25, "low": -0.0014, "high": 0.625, "attainable": np.nan, "p": 0.2}
    known |= {"by_seed": (1.0, -1.0), "threshold": 0.0, "direction": "above", "margin": 0.1}
    known |= {"power": 0.345, "control": np.nan, "control low": np.nan, "control high": np.nan}
    return known | {"learned": 0.75, "learned verdict": "not supported"} | more


def shown(*tests: dict[str, object]) -> _ShownClaims:
    claims = tuple(CLAIMS[name] for name in dict.fromkeys(test["claim"] for test in tests))
    return _ShownClaims(pd.DataFrame(list(tests)), claims, "true counterfactuals (oracle)")


def html(*tests: dict[str, object]) -> str:
    return shown(*tests)._repr_html_()


def test_every_claim_says_what_follows_from_a_verdict_that_exists() -> None:
    for claim in CLAIMS.values():
        assert claim["when"] in VERDICTS
        assert claim["says"].endswith(".") and claim["so_what"].endswith(".")


def test_what_follows_is_said_only_of_the_verdict_it_was_written_for() -> None:
    claim = CLAIMS["null-floor"]
    same, other = (html(a_test("null-floor", v)) for v in (claim["when"], "not supported"))

    assert claim["so_what"] in same and claim["so_what"] not in other
    assert "Written for another verdict" in other


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_verdict_is_a_chip_and_is_counted(verdict: str) -> None:
    page = html(a_test("risk-order", verdict), a_test("risk-order", "tie", primary=False))

    assert re.search(rf'<span class="chip [a-z-]+">{re.escape(verdict)} 1</span>', page)
    assert re.search(rf'<p><span class="chip [a-z-]+">{re.escape(verdict)}</span></p>', page)


def test_the_page_and_its_text_hold_the_same_numbers() -> None:
    control = {"control": 0.125, "control low": -0.5, "control high": 0.75}
    one = shown(a_test("risk-order", "tie", "R_IE - R_orig", attainable=1.0, **control))
    rows = re.findall(r"<tbody>\n<tr>(.*?)</tr>", one._repr_html_(), flags=re.DOTALL)
    cells = [re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", rows[-1])]

    numbers = ["0.25", "[−0.0014, 0.62]", "0.200", "34 %", "1, −1", "1.00"]
    numbers += ["0.12 [−0.50, 0.75]", "0.75"]
    assert [cell for cell in cells if cell in numbers] == numbers
    assert all(number in repr(one) for number in numbers)


def test_values_of_the_oracle_and_of_learned_generators_stand_under_their_names() -> None:
    page = html(a_test("risk-order", "tie"))
    tops = re.findall(r'<th colspan="(\d)" scope="colgroup">(.*?)</th>', page)

    assert tops == [("2", ""), ("6", "true counterfactuals (oracle)"), ("2", "learned generators")]


def test_a_reason_why_a_test_cannot_fail_stands_with_its_tests() -> None:
    assert "the oracle knows the noise" in html(a_test("null-floor", "identity"))


def test_marks_lie_where_their_values_do_and_say_which_side_is_claimed() -> None:
    bars = [Bar("C->C", 1.0, 0.0, 2.0, "supported", most=3.0), Bar("M->M", 2.0, 1.0, 3.0, "tie")]
    drawn = ElementTree.fromstring(forest(bars, 0.0, (0.0, math.inf)))
    side, line = drawn.find("rect[@class='side']"), drawn.find("path[@class='threshold']")

    dots = [float(dot.get("cx")) for dot in drawn.iter("circle")]
    intervals = [p.get("d") for g in drawn.iter("g") for p in g if "H" in p.get("d", "")]
    left, right = (float(end) for end in re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", intervals[0])[0])
    assert dots == [pytest.approx((left + right) / 2, abs=0.11)]
    assert line.get("d").startswith(f"M{side.get('x')} ") and float(side.get("x")) == left
    assert [text.text for text in drawn.iter("text")][:2] == ["C→C", "M→M"]
    assert forest(bars, 0.0, (0.0, math.inf)) == forest(bars, 0.0, (0.0, math.inf))


def test_unknown_values_are_not_drawn() -> None:
    drawn = forest([Bar("C->C", 0.5, math.nan, math.nan, "inconclusive")], 0.5, (-math.inf, 0.5))

    assert "nan" not in drawn and drawn.count("<circle") == 1
