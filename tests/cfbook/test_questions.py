"""What the questions to the authors rest on: every quoted cell, every count, every inequality."""

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cfbook import printed_tables

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book/questions.md").read_text()
TABLES = printed_tables.read_tables()
FINDINGS = printed_tables.as_frame(printed_tables.audit(TABLES))
PREDICTOR = ["setting", "family", "strength"]
QUOTE = re.compile(r"`([CM]->[CM]) (\w+) ([\d.]+)( \(main\))?, ([^`]+)`")


def printed(setting: str, family: str, strength: float, where: str, metric: str) -> float:
    """The one cell of the tables that this is."""
    (table,) = (t for t in TABLES.values() if metric in t)
    rows = table[
        (table.setting == setting)
        & (table.family == family)
        & (table.strength == strength)
        & (table["where"] == where)
    ]
    return rows[metric].item()


def test_cells_are_quoted() -> None:
    assert len(QUOTE.findall(PAGE)) >= 15


@pytest.mark.parametrize("quote", QUOTE.findall(PAGE), ids=" ".join)
def test_every_quoted_cell_is_the_printed_one(quote: tuple[str, ...]) -> None:
    setting, family, strength, main, cells = quote
    where = "main" if main else "appendix"

    for cell in cells.split(", "):
        metric, value = cell.split()
        assert float(value) == printed(setting, family, float(strength), where, metric), cell


IDENTITIES = {
    "the worst case is no milder than a tail average": "ladder",
    "the worst half weighs no more than the whole": "tail-increasing",
    "tail averages bend one way": "tail-concave",
    "cross-entropy is at least": "bce-brier",
    "risks are convex in the logit offset": "beta-convex",
}


@pytest.mark.parametrize(("words", "identity"), IDENTITIES.items())
def test_every_inequality_fails_as_often_as_said_and_most_in_the_case_shown(
    words: str, identity: str
) -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {words}")]
    found = FINDINGS[FINDINGS.identity == identity]
    worst = found.loc[found.excess.idxmax()]
    setting, family, strength, _, cells = QUOTE.search(row).groups()

    assert int(row.split("|")[-2]) == len(found[PREDICTOR].drop_duplicates())
    assert (setting, family, float(strength)) == tuple(worst[PREDICTOR])
    assert {cell.split()[0] for cell in cells.split(", ")} >= {worst.metric}


def test_the_page_speaks_of_every_kind_of_finding() -> None:
    assert set(FINDINGS.identity) == {*IDENTITIES.values(), "repeat", "main-appendix"}
    assert f"{printed_tables.brier_constant():.4f}" in PAGE


def test_the_observed_risks_of_the_example_are_on_no_convex_curve() -> None:
    found = FINDINGS[(FINDINGS.identity == "beta-convex") & (FINDINGS.metric == "R_orig")]

    assert set(found.setting) == {"C->C"} and set(found.strength) == {0.5}


def test_two_rows_repeat_another_in_three_cells() -> None:
    repeats = FINDINGS[FINDINGS.identity == "repeat"].set_index(PREDICTOR)["values"]

    assert set(repeats.index) == {("C->M", "basic", 0.0), ("M->M", "age", 0.8)}
    assert list(repeats["C->M", "basic", 0.0]) == ["S_var", "S_flip", "D_obs"]
    assert list(repeats["M->M", "age", 0.8]) == ["R_orig", "R_CM", "R_IE"]


def test_the_main_text_fits_the_rows_below_the_repeated_one() -> None:
    rows = TABLES["stability"].query("setting == 'C->M' and family != 'basic'")
    smallest = rows.S_var.min()

    # In the main text the predictor without bias is the most stable, in the appendix it is not.
    assert printed("C->M", "basic", 0, "main", "S_var") < smallest
    assert printed("C->M", "basic", 0, "appendix", "S_var") > smallest


def test_transition_counts_are_thirds_cut_off_and_possible() -> None:
    counts = (
        TABLES["risk"].query("family == 'ctc'")[printed_tables.METRICS["risk"]].to_numpy().ravel()
    )

    assert all(math.floor(100 * round(3 * c) / 3 + 1e-9) == round(100 * c) for c in counts)
    assert (counts * 100 % 100 == 66).any()


def steps(setting: str, metric: str) -> np.ndarray:
    """The nine differences of the printed means along the three chains."""
    rows = TABLES["risk"].query("setting == @setting and where == 'appendix'")
    rows = rows.astype({"strength": float}).set_index(["family", "strength"])[metric]
    chains = ([rows["basic", 0.0], *rows[family]] for family in ("logit", "sex", "age"))
    return np.concatenate([np.diff(chain) for chain in chains])


def test_the_printed_counts_are_compared_with_the_printed_means() -> None:
    rises = steps("C->C", "R_CM").round(6)
    ties, falls = (rises == 0).sum(), (rises < 0).sum()
    assert f"leaves {(rises > 0).sum()} rises in the means of nine steps" in PAGE
    assert (ties, falls) == (1, 1)

    counts = TABLES["risk"].query("family == 'ctc' and where == 'appendix'").set_index("setting")
    assert counts.R_CM["C->C"] == 8.33 == round(25 / 27 * 9, 2)

    limits = {}  # each step at which the mean falls takes a third off a count of three seeds
    for setting in counts.index:
        for metric in printed_tables.METRICS["risk"]:
            most = 9 - (steps(setting, metric).round(6) < 0).sum() / 3
            limits[setting, metric] = most - counts.loc[setting, metric]
    assert min(limits.values()) > -0.01, "a count is impossible: the page would have to say so"
    assert [key for key, left in limits.items() if left < 0.01] == [("C->M", "R_CVaR_0.50")]
    falling = steps("C->M", "R_CVaR_0.50")
    assert "2 of its steps fall" in PAGE and (falling < 0).sum() == 2
    # Of three seeds two rise, so that the third falls by three times the mean, rounding allowed.
    assert f"by {3 * (-falling.min() - 0.001):.2f} or more" in PAGE


def test_the_rise_of_the_risk_of_the_unbiased_predictor_is_the_printed_one() -> None:
    rise = printed("C->C", "basic", 0, "appendix", "R_IE")
    rise -= printed("C->C", "basic", 0, "appendix", "R_orig")

    assert f"by {rise:.2f} nats" in PAGE


def test_the_number_of_studies_is_odd_and_that_of_the_balanced_set() -> None:
    sizes = pd.concat(TABLES.values()).groupby("setting").n_test.agg(set)

    assert sizes["M->M"] == sizes["C->M"] == {28189}
    assert "$N = 28189$" in PAGE and 28189 % 2 == 1


def test_the_tail_of_a_tenth_holds_no_whole_number_of_worlds() -> None:
    assert not (0.1 * printed_tables.K).is_integer()
    assert f"it holds {0.1 * printed_tables.K:g} of them" in PAGE


def test_the_printed_condition_is_the_sharp_one_times_the_share_of_the_group() -> None:
    n = 1000
    for group in range(1, n):
        sharp, condition = n / group - 1, 1 - group / n
        assert condition == pytest.approx(sharp * group / n)
        # At the sharp condition both estimators have the same variance.
        assert (1 + sharp) / n == pytest.approx(1 / group)


def test_the_two_terms_of_the_decomposition_sum_to_the_variance() -> None:
    rng = np.random.default_rng(2027)
    u, noise = rng.normal(size=(2, 400_000))
    g = 1 / (1 + np.exp(-(u + 0.8 * noise * (1 + u**2))))
    edges = np.quantile(u, np.linspace(0, 1, 201)[1:-1])
    cells = pd.Series(g).groupby(np.digitize(u, edges))
    share = cells.size() / len(g)
    signal = (share * (cells.mean() - g.mean()) ** 2).sum()
    generation = (share * cells.var(ddof=0)).sum()

    assert signal + generation == pytest.approx(g.var(), rel=1e-9)
    # The printed bound adds the second term to the whole: it is larger by that term.
    assert g.var() + generation > 1.3 * g.var()


def test_one_minus_the_entropy_of_three_classes_may_be_negative() -> None:
    assert 1 - math.log(3) < 0 < 1 - math.log(2)
