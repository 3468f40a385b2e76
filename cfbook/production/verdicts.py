"""The claims of the paper as a page shows them: in words, drawn, judged, with every test behind."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import pandas as pd

from cfbook import notation
from cfbook.figures.forest import Bar, forest, mark
from cfbook.study.claims import VERDICTS

_CHIPS = {  # classes of the style sheet
    "supported": "supported",
    "not supported": "not-supported",
    "tie": "tie",
    "identity": "construction",
    "inconclusive (power)": "inconclusive",
    "differ": "inconclusive",
}
_OTHERS = "Written for another verdict than this, and so left out."
_HEADS = ("The paper says", "Tested here", "Found here", "So what")
_WHOSE = {"oracle": "true counterfactuals (oracle)"}
_LEARNED = {"learned": "mean", "learned verdict": "verdict"}
_MINUS = "\N{MINUS SIGN}"
_STYLE = """<style>
.claims { --open: var(--pst-color-text-muted, #57606a); --line: var(--pst-color-border, #b0b8c4);
  --theirs: var(--pst-color-primary, #0a6e9a); margin: 1rem 0; }
html[data-theme] .bd-content div.cell_output .text_html:has(figure.claims) {
  background: none; color: inherit; padding: 0; }
.claims > figcaption { color: inherit; margin: 0 0 .6rem; max-width: none; text-align: left; }
.claims .legend { color: var(--open); font-size: .82rem; margin: .3rem 0 0; }
.claims .legend span { margin-right: .9em; white-space: nowrap; }
.claims table { border-collapse: collapse; font-size: .88rem; line-height: 1.4; margin: 0;
  width: 100%; }
.claims table :is(th, td) { border: 0; padding: .6rem .7rem .2rem 0; text-align: left;
  vertical-align: top; white-space: normal; }
.claims table tbody tr, .claims table tbody tr:hover { background: none; }
.claims .rows { table-layout: fixed; }
.claims .rows > thead th:nth-child(1) { width: 23%; }
.claims .rows > thead th:nth-child(3) { width: 35%; }
.claims .rows > thead th { border-bottom: 1px solid var(--line); }
.claims .rows .claim > th { font-weight: 600; }
.claims .rows .more > td { border-bottom: 1px solid var(--line); padding-bottom: .6rem; }
.claims p { margin: 0 0 .3rem; }
.claims :is(.where, .said) { color: var(--open); font-size: .8rem; font-weight: 400;
  margin: .2rem 0 0; }
.claims summary { color: var(--open); cursor: pointer; font-size: .82rem; }
.claims .wide { overflow-x: auto; }
.claims table.tests { font-size: .75rem; font-variant-numeric: tabular-nums; width: auto; }
.claims table.tests :is(th, td) { border-bottom: 1px solid var(--line); font-weight: 400;
  padding: .2rem .6rem .2rem 0; white-space: nowrap; }
.claims table.tests .chip { font-size: .7rem; padding: 0 .5em; }
.claims table.tests thead th { font-weight: 600; }
.claims .chip { white-space: nowrap; }
.forest { display: block; height: auto; margin: .2rem 0; max-width: 22rem; width: 100%; }
.forest.key { display: inline-block; height: .8em; margin: 0 .25em 0 0; width: .8em; }
.forest text { fill: currentColor; font-family: inherit; font-size: 9.5px; }
.forest .tick { text-anchor: middle; }
.forest path { fill: none; stroke: currentColor; stroke-width: 1; }
.forest .side { fill: currentColor; opacity: .07; }
.forest .threshold { stroke-width: 1.3; }
.forest .paper { color: var(--theirs); }
.forest .most { color: var(--open); stroke-dasharray: 2 1; }
.forest :is(.inconclusive, .tie) .dot { fill: var(--pst-color-background, #fff);
  stroke: currentColor; }
.forest :is(.supported, .not-supported, .construction) .dot { fill: currentColor; }
@media (max-width: 768px) {
  .claims .rows > thead { display: none; }
  .claims .rows, .claims .rows > tbody, .claims .rows > tbody > tr,
  .claims .rows > tbody > tr > :is(th, td) { display: block; width: auto !important; }
  .claims .rows .claim > *::before { color: var(--open); content: attr(data-label);
    display: block; font-size: .75rem; font-weight: 400; }
}
</style>"""


def show_claims(
    verdicts: pd.DataFrame,
    design: Mapping[str, object],
    learned: pd.DataFrame,
    *,
    generator: str = "oracle",
    note: str = "",
) -> None:
    """Show each claim in words, what was found as dots and bars, the verdict, and all its tests.

    Args:
        verdicts: What :func:`cfbook.study.claims.verdicts` returns.
        design: What :func:`cfbook.study.claims.read_design` returns.
        learned: What :func:`cfbook.study.learned.learned_claims` returns.
        generator: Who made the counterfactuals behind the verdicts.
        note: What else one must know to read it, in small letters below.
    """
    from IPython.display import display

    tests = verdicts.merge(learned, on=["claim", "setting", "item"], how="left")
    known = set(verdicts.claim)
    claims = tuple(claim for claim in design["claims"] if claim["id"] in known)
    display(_ShownClaims(tests, claims, _WHOSE.get(generator, generator), note))


@dataclass(frozen=True)
class _ShownClaims:
    """The claims as a page shows them: every test with its claim, and the claims in words."""

    tests: pd.DataFrame
    claims: tuple[Mapping[str, object], ...]
    whose: str
    note: str = ""

    def __repr__(self) -> str:
        parts = [self._caption()]
        for number, claim in enumerate(self.claims, start=1):
            tests = self._of(claim)
            first = tests[tests.primary].iloc[0]
            lines = [f"{number}. {claim['says']}", f"tested: {_tested(claim)}"]
            lines += [
                f"found: {first.verdict}; {_found(first)}",
                f"so what: {_so_what(claim, first)}",
            ]
            parts.append("\n".join(lines) + f"\n\n{_details(tests).to_string(index=False)}")
        return "\n\n".join([*parts, self.note]).rstrip()

    def _repr_html_(self) -> str:
        heads = "".join(f'<th scope="col">{head}</th>' for head in _HEADS)
        rows = "\n".join(self._claim(*each) for each in enumerate(self.claims, start=1))
        note = f'<p class="said">{escape(self.note)}</p>\n' if self.note else ""
        return (
            f'{_STYLE}\n<figure class="claims">\n<figcaption>{self._tally()}\n{_legend()}'
            f'</figcaption>\n<table class="rows">\n<thead><tr>{heads}</tr></thead>\n<tbody>\n'
            f"{rows}\n</tbody>\n</table>\n{note}</figure>"
        )

    def _of(self, claim: Mapping[str, object]) -> pd.DataFrame:
        """The tests of a claim."""
        return self.tests[self.tests.claim == claim["id"]]

    def _counts(self) -> dict[str, int]:
        counts = self.tests[self.tests.primary].verdict.value_counts()
        return {verdict: int(counts.get(verdict, 0)) for verdict in VERDICTS}

    def _caption(self) -> str:
        """How many claims came out how."""
        counts = ", ".join(f"{verdict} {n}" for verdict, n in self._counts().items())
        return f"{len(self.claims)} claims: {counts}."

    def _tally(self) -> str:
        """How many claims came out how, in chips."""
        chips = " ".join(_chip(verdict, f"{verdict} {n}") for verdict, n in self._counts().items())
        return f"<b>{len(self.claims)} claims</b> {chips}"

    def _claim(self, number: int, claim: Mapping[str, object]) -> str:
        """A claim: a row in words and marks, and a row with its tests behind a fold."""
        tests = self._of(claim)
        first = tests[tests.primary].iloc[0]
        where = f'<p class="where">{escape(str(claim["where"]))}</p>'
        said = f'<p class="said">{_symbols(_found(first))}</p>'
        found = f"<p>{_chip(first.verdict)}</p>{_panel(tests)}{said}"
        cells = (
            f"{number}. {_symbols(claim['says'])}{where}", _symbols(_tested(claim)),
            found, _symbols(_so_what(claim, first)),
        )  # fmt: skip
        tags = ('th scope="row"', "td", 'td class="found"', "td")
        row = "".join(
            f'<{tag} data-label="{head}">{cell}</{tag.split()[0]}>'
            for tag, head, cell in zip(tags, _HEADS, cells, strict=True)
        )
        return (
            f'<tr class="claim" id="claim-{claim["id"]}">{row}</tr>\n'
            f'<tr class="more"><td colspan="{len(_HEADS)}">{self._fold(claim, tests)}</td></tr>'
        )

    def _fold(self, claim: Mapping[str, object], tests: pd.DataFrame) -> str:
        """All tests of a claim, behind a fold, and what the design says of it."""
        number = "The test" if len(tests) == 1 else f"All {len(tests)} tests"
        said = [f"Attainable: {claim['attainable']}. Negative control: {claim['control']}."]
        reasons = claim.get("identity", {}).items()
        said += [f"Why “{item}” could not have failed: {why}." for item, why in reasons]
        paragraphs = "".join(f'<p class="said">{_symbols(one)}</p>' for one in said)
        return (
            f"<details><summary>{number}, one by one; the first decides</summary>{paragraphs}"
            f'<div class="wide">{_tests_table(tests, self.whose)}</div></details>'
        )


def _tested(claim: Mapping[str, object]) -> str:
    """The estimand, as a sentence."""
    words = " ".join(str(claim["estimand"]).split())
    return f"{words[0].upper()}{words[1:]}."


def _found(first: pd.Series) -> str:
    """What the primary test of a claim found, in one line."""
    said = [f"{_number(first.estimate)} [{_number(first.low)}, {_number(first.high)}]"]
    said += [f"claimed {_side(first)}"]
    if first.verdict != "identity":
        said += [f"p {_p(first.p)}", f"power at {first.margin:g}: {100 * first.power:.0f} %"]
    if first.attainable == first.attainable:
        said.append(f"at most {_number(first.attainable)}")
    if first.control == first.control:
        ends = f"[{_number(first['control low'])}, {_number(first['control high'])}]"
        said.append(f"negative control {_number(first.control)} {ends}")
    return "; ".join(said)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _so_what(claim: Mapping[str, object], first: pd.Series) -> str:
    """What follows, if the verdict is the one that the sentence was written for."""
    if "so_what" not in claim:
        return "–"
    return claim["so_what"] if claim["when"] == first.verdict else _OTHERS


def _chip(verdict: str, words: str = "") -> str:
    """A verdict as a chip."""
    return f'<span class="chip {_CHIPS[verdict]}">{words or verdict}</span>'


def _legend() -> str:
    """What the marks mean."""
    marks = [(_CHIPS[verdict], verdict) for verdict in VERDICTS]
    marks += [("most", "at most attainable")]
    items = [f"<span>{mark(kind)}{name}</span>" for kind, name in marks]
    words = (
        "Each mark is one test and its bar the 95 % interval. The uppermost is the primary test, "
        "which alone decides. The vertical line is the threshold; what the claim needs is shaded."
    )
    return f'<p class="legend">{words}<br>{" ".join(items)}</p>'


def _panel(tests: pd.DataFrame) -> str:
    """A drawing of the tests of a claim, the primary one first."""
    bars = [
        Bar(t.setting, t.estimate, t.low, t.high, _CHIPS[t.verdict], t.attainable)
        for t in tests.itertuples()
    ]
    first = tests.iloc[0]
    at, far = first.threshold, math.inf
    ranges = {"below": (-far, at), "within": (at - first.margin, at + first.margin)}
    return forest(bars, at, ranges.get(first.direction, (at, far)))


def _side(test: pd.Series) -> str:
    """The threshold of a test and its side."""
    if test.direction == "within":
        return f"within {test.margin:g} of {test.threshold:g}"
    return f"{test.direction} {test.threshold:g}".replace("-", _MINUS)


def _tests_table(tests: pd.DataFrame, whose: str) -> str:
    """A row for each test, with columns of the oracle apart from those of learned generators."""
    table = _details(tests)
    oracle = sum(name not in ("setting", "test", *_LEARNED) for name in table)
    groups = [("", 2), (whose, oracle), ("learned generators", len(_LEARNED))]
    tops = "".join(f'<th colspan="{n}" scope="colgroup">{name}</th>' for name, n in groups)
    heads = "".join(f'<th scope="col">{_LEARNED.get(name, name)}</th>' for name in table)
    rows = []
    for words, verdicts in zip(
        table.to_dict("records"), tests[["verdict", "learned verdict"]].to_numpy(), strict=True
    ):
        chips = dict(zip(("verdict", "learned verdict"), verdicts, strict=True))
        rows.append("".join(f"<td>{_cell(words[n], chips.get(n))}</td>" for n in table))
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<table class="tests">\n<thead><tr>{tops}</tr>\n<tr>{heads}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table>"
    )


def _cell(words: str, verdict: str | None) -> str:
    """A cell of the tests: a chip for a verdict, else words with their symbols."""
    return _chip(verdict) if isinstance(verdict, str) else _symbols(words)


def _details(tests: pd.DataFrame) -> pd.DataFrame:
    """The tests of a claim with all cells as words; columns of which nothing is known left out."""
    ends = zip(tests.low, tests.high, strict=True)
    control = zip(tests.control, tests["control low"], tests["control high"], strict=True)
    table = {
        "setting": tests.setting.map(notation.words),
        "test": tests["item"].str.replace(" - ", f" {_MINUS} "),
        "estimate": tests.estimate.map(_number),
        "95 % interval": [f"[{_number(low)}, {_number(high)}]" for low, high in ends],
        "verdict": tests.verdict,
        "p": tests.p.map(_p).str.removeprefix("= "),
        "power": [f"{100 * power:.0f} %" for power in tests.power],
        "by training": [
            ", ".join(f"{round(v, 12) + 0:.2g}" for v in values).replace("-", _MINUS)
            for values in tests.by_seed
        ],
        "at most": tests.attainable.map(_number),
        "control": [
            "–" if value != value else f"{_number(value)} [{_number(low)}, {_number(high)}]"
            for value, low, high in control
        ],
        "learned": tests["learned"].map(_number),
        "learned verdict": tests["learned verdict"].fillna("–"),
    }
    frame = pd.DataFrame(table, index=tests.index)
    optional = ("at most", "control")
    return frame.drop(columns=[name for name in optional if (frame[name] == "–").all()])


def _number(value: float) -> str:
    """A number to two decimals, or to two digits where nothing would be left of it.

    Example:
        >>> [_number(value) for value in (0.125, -2.0, 0.0, 1e-17, -0.0014, float("nan"))]
        ['0.12', '−2.00', '0', '0', '−0.0014', '–']
    """
    if value != value:
        return "–"
    rounded = round(float(value), 13)
    digits = "0" if rounded == 0 else f"{rounded:.2f}" if abs(rounded) >= 0.01 else f"{rounded:.2g}"
    return digits.replace("-", _MINUS)


def _symbols(text: str) -> str:
    """Words as HTML, with symbols in place of the names of metrics.

    Example:
        >>> _symbols("R_IE - R_CVaR_0.50 < 0")
        '<i>R</i><sub>IE</sub> - <i>R</i><sub>CVaR .50</sub> &lt; 0'
    """
    names = "|".join(sorted(map(re.escape, notation.SYMBOLS), key=len, reverse=True))
    return re.sub(rf"\b({names})\b", lambda found: notation.html(found[1]), escape(text))
