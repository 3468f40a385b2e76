"""The audit of printed tables: it reports what is impossible, and nothing that is possible."""

import json
from dataclasses import asdict
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cfbook import printed_tables

TAIL = {"R_CVaR_0.50": 0.50, "R_CVaR_0.25": 0.25, "R_CVaR_0.10": 0.10, "R_WC": 1 / 16}
PREDICTORS = [
    ("basic", 0.0),
    *(("logit", beta) for beta in (0.5, 1.0, 2.0)),
    *((family, strength) for family in ("sex", "age") for strength in (0.80, 0.90, 0.95)),
]

# A predictor that could exist, N = 1001.
POSSIBLE = {
    "R_orig": 0.441,
    "R_CM": 0.511,
    "R_IE": 0.591,
    "R_CVaR_0.50": 1.001,
    "R_CVaR_0.25": 1.321,
    "R_CVaR_0.10": 1.551,
    "R_WC": 1.701,
    "Brier_marg": 0.191,
    "ECE_marg": 0.081,
    "MCE_marg": 0.171,
    "Brier_orig": 0.141,
    "ECE_orig": 0.031,
    "MCE_orig": 0.081,
    "S_var": 0.0391,
    "S_flip": 0.241,
    "D_obs": 0.191,
    "S_rank": 0.691,
    "tau_b": 0.501,
    "abs_rank_change": 150.1,
}


def tables_of(rows: list[dict]) -> dict[str, pd.DataFrame]:
    """Tables with the given rows, and what they leave out taken from a basic predictor in C->C."""
    base = {
        "where": "appendix",
        "setting": "C->C",
        "n_test": 1001,
        "family": "basic",
        "strength": 0.0,
    }
    frame = pd.DataFrame([{**base, **row} for row in rows])
    return {
        name: frame.reindex(columns=[*base, *metrics]).dropna(subset=metrics, how="all")
        for name, metrics in printed_tables.METRICS.items()
    }


def findings_of(*rows: dict) -> list[printed_tables.Flaw]:
    return printed_tables.audit(tables_of(list(rows)))


LAST_POSSIBLE_AND_FIRST_IMPOSSIBLE = [
    # With three decimals each of two cells may give half a unit: equality up to 0.001.
    ("ladder", "R_IE", {"R_CM": 0.592}, {"R_CM": 0.593}),
    ("ladder", "R_WC", {"R_WC": 1.550}, {"R_WC": 1.549}),
    # 0.5 (C50 - h) <= R_IE + h: C50 <= 1.182 + 0.0015.
    ("tail-increasing", "R_CVaR_0.50", {"R_CVaR_0.50": 1.183}, {"R_CVaR_0.50": 1.184}),
    # In whole interventions C10 >= WC / 3 + 2 C25 / 3 = 1.4477, and 0.001 for rounding.
    ("tail-concave", "R_CVaR_0.10", {"R_CVaR_0.10": 1.447}, {"R_CVaR_0.10": 1.446}),
    # C50 >= C25 / 3 + 2 R_IE / 3: R_IE <= 0.841, and 0.0015 for rounding.
    ("tail-concave", "R_CVaR_0.50", {"R_IE": 0.842}, {"R_IE": 0.843}),
    # 2.4554 (0.141 - h) = 0.3450, and h for the risk.
    ("bce-brier", "R_orig", {"R_orig": 0.345}, {"R_orig": 0.344}),
    ("bce-brier", "R_CM", {"R_CM": 0.468}, {"R_CM": 0.467}),
    # 2.4554 (0.191 - h + S_var - h') <= 0.591 + h: S_var <= 0.05045 + h'.
    ("bce-brier", "R_IE", {"S_var": 0.0504}, {"S_var": 0.0506}),
    # (S_var - h') / 2 <= 0.591 - R_CM + 2 h: R_CM <= 0.57247 with S_var = 0.0391.
    ("jensen-gap", "R_IE", {"R_CM": 0.572}, {"R_CM": 0.573}),
    ("ece-mce", "ECE_orig", {"ECE_orig": 0.082}, {"ECE_orig": 0.083}),
    ("ece-mce", "ECE_marg", {"MCE_marg": 0.080}, {"MCE_marg": 0.079}),
    # (ECE - h)^2 <= 0.1415: ECE <= 0.37667.
    ("ece-brier", "ECE_orig", {"ECE_orig": 0.376}, {"ECE_orig": 0.377}),
    # 3003 (tau - h) <= 999 + 2004 (0.691 + h): tau <= 0.79465; the mirror image: tau >= 0.12762.
    ("kendall-spearman", "S_rank", {"tau_b": 0.794}, {"tau_b": 0.795}),
    ("kendall-spearman", "S_rank", {"tau_b": 0.128}, {"tau_b": 0.127}),
    # 500 (1 - tau + h) = 249.75 and 250 (1 - tau - h) = 124.625, and 0.05 for the printed change.
    ("footrule", "abs_rank_change", {"abs_rank_change": 249.8}, {"abs_rank_change": 249.9}),
    ("footrule", "abs_rank_change", {"abs_rank_change": 124.6}, {"abs_rank_change": 124.5}),
]


@pytest.mark.parametrize(("name", "metric", "last", "first"), LAST_POSSIBLE_AND_FIRST_IMPOSSIBLE)
def test_an_identity_fires_where_no_rounding_can_save_it(
    name: str, metric: str, last: dict, first: dict
) -> None:
    digits = {**POSSIBLE, "family": "sex", "strength": 0.8}  # a row that shows all decimals
    possible = [f for f in findings_of({**POSSIBLE, **last}, digits) if f.identity == name]
    impossible = [f for f in findings_of({**POSSIBLE, **first}, digits) if f.identity == name]

    assert possible == []
    assert [(f.family, f.metric) for f in impossible] == [("basic", metric)]
    assert 0 < impossible[0].excess < 0.2
    assert set(first) <= set(impossible[0].values)


def test_a_possible_row_has_no_finding() -> None:
    assert findings_of(POSSIBLE) == []


def test_a_tail_is_impossible_only_if_both_readings_say_so() -> None:
    # Fractional: C10 >= (WC + C25) / 2 = 1.511. Whole: C10 >= WC / 3 + 2 C25 / 3 = 1.4477.
    rows = {c10: {**POSSIBLE, "R_CVaR_0.10": c10} for c10 in (1.551, 1.481, 1.441)}
    found = {c10: findings_of(row) for c10, row in rows.items()}
    # Whole: C10 <= 2 C25, fractional: C10 <= 2.5 C25.
    steep = {**POSSIBLE, "R_CVaR_0.50": 0.701, "R_CVaR_0.25": 0.741, "R_CVaR_0.10": 1.501}

    assert found[1.551] == found[1.481] == []
    assert [f.identity for f in found[1.441]] == ["tail-concave"]
    assert found[1.441][0].excess == pytest.approx(0.125 * (1.447667 - 1.441 - 0.001), abs=1e-6)
    assert [f for f in findings_of(steep) if f.identity == "tail-increasing"] == []


def test_decimals_are_those_of_the_column_within_its_setting() -> None:
    whole = {**POSSIBLE, "setting": "M->M", "abs_rank_change": 250.0}
    found = findings_of(
        {**POSSIBLE, "abs_rank_change": 250.0}, whole, {**POSSIBLE, "family": "sex"}
    )

    # 249.75 is the limit: 250 may stand for 249.5, but 250.0 may not.
    assert [f.setting for f in found if f.identity == "footrule"] == ["C->C"]


@pytest.mark.parametrize("n", range(3, 8))
def test_rank_identities_hold_for_every_permutation_and_are_attained(n: int) -> None:
    i, j = np.triu_indices(n, 1)
    ranks = np.array(list(permutations(range(n))))
    moved = ranks - np.arange(n)
    tau = np.sign(ranks[:, j] - ranks[:, i]).mean(axis=1)
    columns = {
        "tau_b": tau,
        "S_rank": 1 - 6 * (moved**2).sum(axis=1) / (n * (n**2 - 1)),
        "abs_rank_change": np.abs(moved).mean(axis=1),
        "n_test": np.full(len(ranks), n),
    }

    for tie in printed_tables._ranks():
        excess = tie.readings[0](*(columns[name] for name in (*tie.high, *tie.low)))
        assert excess.max() == pytest.approx(0, abs=1e-12)


def test_the_brier_constant_is_where_the_ratio_is_stationary() -> None:
    p = np.linspace(1e-6, 1 - 1e-6, 999_999)
    c = printed_tables.brier_constant()

    assert c == pytest.approx(2.4554, abs=5e-5)
    assert (-np.log(p) - c * (1 - p) ** 2).min() == pytest.approx(0, abs=1e-9)


def along_beta(metric: str, values: tuple[float, ...]) -> list[dict]:
    """Possible rows, identical but for one metric along the logit offsets."""
    rows = zip(PREDICTORS, values, strict=False)
    return [{**POSSIBLE, "family": f, "strength": s, metric: value} for (f, s), value in rows]


def test_convexity_is_reported_once_for_each_metric_and_middle_row() -> None:
    # A chord from 0.441 to 0.451, 0.461 and 0.481; the last row bends it for both middle rows.
    straight = findings_of(*along_beta("R_orig", (0.441, 0.451, 0.461, 0.481)))
    bent = findings_of(*along_beta("R_orig", (0.441, 0.451, 0.461, 0.461)))
    convex = [f for f in bent if "convex" in f.identity]

    assert not [f for f in straight if "convex" in f.identity]
    assert [(f.family, f.strength, f.metric) for f in convex] == [
        ("logit", 0.5, "R_orig"),
        ("logit", 1.0, "R_orig"),
    ]
    assert convex[0].values == {
        "R_orig at beta=0.5": 0.451,
        "R_orig at beta=0": 0.441,
        "R_orig at beta=2": 0.461,
    }
    # The worst of its triples is the one that counts: for 1 that is (0, 1, 2), not (0.5, 1, 2).
    assert [f.excess for f in convex] == pytest.approx(
        [0.451 - 0.446 - 0.001, 0.461 - 0.451 - 0.001]
    )


def test_convexity_allows_for_rounding_and_leaves_the_marginal_risk_alone() -> None:
    # 0.452 may be 0.4515 and the chord 0.4515; R_CM is the loss of a mean.
    edge = findings_of(*along_beta("R_orig", (0.441, 0.452, 0.461, 0.481)))
    beyond = findings_of(*along_beta("R_orig", (0.441, 0.453, 0.461, 0.481)))
    marginal = findings_of(*along_beta("R_CM", (0.511, 0.541, 0.542, 0.543)))

    assert not [f for f in edge if "convex" in f.identity]
    assert [f.strength for f in beyond if "convex" in f.identity] == [0.5]
    assert not [f for f in marginal if "convex" in f.identity]


def test_three_equal_cells_repeat_and_two_do_not() -> None:
    other = {name: round(value * 1.002 + 0.001, 4) for name, value in POSSIBLE.items()}
    two = {**other, "R_orig": 0.441, "R_CM": 0.511, "S_var": 0.0391, "setting": "M->M"}
    three = {**two, "R_IE": 0.591}

    assert not [f for f in findings_of(POSSIBLE, two) if f.identity == "repeat"]
    (repeat,) = [f for f in findings_of(POSSIBLE, three) if f.identity == "repeat"]
    assert repeat.setting == "M->M"
    assert repeat.values == {"R_orig": 0.441, "R_CM": 0.511, "R_IE": 0.591}
    assert "C->C basic" in repeat.statement


def test_a_copied_main_row_is_tested_but_not_a_repeat() -> None:
    row = {**POSSIBLE, "R_WC": 1.301}
    main = {"where": "main"} | {name: row[name] for name in printed_tables.METRICS["risk"]}
    found = findings_of(row, main)

    assert {(f.identity, f.where) for f in found} == {("ladder", "appendix"), ("ladder", "main")}


def test_a_repeat_is_counted_once_though_the_main_text_copies_it() -> None:
    other = {**POSSIBLE, "family": "age", "strength": 0.8}
    main = {"where": "main"} | {name: POSSIBLE[name] for name in printed_tables.METRICS["risk"]}
    copied = [f for f in findings_of(POSSIBLE, other, main) if "R_WC" in f.values]
    changed = [
        f for f in findings_of(POSSIBLE, other, {**main, "R_CM": 0.521}) if "R_WC" in f.values
    ]

    assert [(f.identity, f.where, f.family) for f in copied] == [("repeat", "appendix", "age")]
    assert [(f.identity, f.where) for f in changed] == [("repeat", "appendix"), ("repeat", "main")]


def test_a_changed_main_cell_is_tested_against_the_other_tables() -> None:
    main = {name: POSSIBLE[name] for name in printed_tables.METRICS["stability"][:4]}
    same = findings_of(POSSIBLE, {"where": "main", **main})
    changed = findings_of(POSSIBLE, {"where": "main", **main, "S_var": 0.1731})

    assert same == []
    assert [(f.identity, f.where) for f in changed] == [
        ("bce-brier", "main"),
        ("jensen-gap", "main"),
        ("main-appendix", "main"),
    ]
    assert changed[-1].values == {"main": 0.1731, "appendix": 0.0391}


def test_a_main_cell_with_fewer_decimals_does_not_disagree() -> None:
    main = {"where": "main", "S_var": 0.04, "S_flip": 0.24, "D_obs": 0.19, "S_rank": 0.69}

    assert findings_of(POSSIBLE, main) == []
    assert [f.metric for f in findings_of(POSSIBLE, {**main, "S_var": 0.05})] == ["S_var"]


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def cross_entropy(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    return -np.log(np.where(y == 1, p, 1 - p))


def tail_mean(loss: np.ndarray, alpha: float, *, whole: bool) -> float:
    """The mean loss of the worst interventions, of which the last one counts in part or in full."""
    K = loss.shape[1]
    size = np.ceil(alpha * K) if whole else alpha * K
    share = np.clip(size - np.arange(K), 0, 1)
    return float((np.sort(loss, axis=1)[:, ::-1] * share).sum(axis=1).mean() / size)


def calibration_of(p: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    gaps = [abs(np.sum((y - p)[b])) / len(p) for b in bins_of(p)]
    worst = [abs(np.mean((y - p)[b])) for b in bins_of(p)]
    return float(np.mean((p - y) ** 2)), float(sum(gaps)), float(max(worst))


def bins_of(p: np.ndarray) -> list[np.ndarray]:
    bins = np.minimum((10 * p).astype(int), 9)
    return [bins == b for b in np.unique(bins)]


def evaluate(obs: np.ndarray, cf: np.ndarray, y: np.ndarray, *, whole: bool) -> dict[str, float]:
    """The metrics of one seed from logits, with nothing but numpy."""
    p, p_cf = sigmoid(obs), sigmoid(cf)
    mean, loss = p_cf.mean(axis=1), cross_entropy(p_cf, y[:, None])
    rank, rank_mean = (x.argsort().argsort() for x in (p, mean))
    i, j = np.triu_indices(len(y), 1)
    tails = {name: tail_mean(loss, alpha, whole=whole) for name, alpha in TAIL.items()}
    return {
        "R_orig": cross_entropy(p, y).mean(),
        "R_CM": cross_entropy(mean, y).mean(),
        "R_IE": loss.mean(),
        **tails,
        **dict(zip(("Brier_marg", "ECE_marg", "MCE_marg"), calibration_of(mean, y), strict=True)),
        **dict(zip(("Brier_orig", "ECE_orig", "MCE_orig"), calibration_of(p, y), strict=True)),
        "S_var": p_cf.var(axis=1).mean(),
        "S_flip": ((p_cf > 0.5) != (p > 0.5)[:, None]).mean(),
        "D_obs": ((p > 0.5) != (mean > 0.5)).mean(),
        "S_rank": np.corrcoef(rank, rank_mean)[0, 1],
        "tau_b": (np.sign(rank[j] - rank[i]) * np.sign(rank_mean[j] - rank_mean[i])).mean(),
        "abs_rank_change": np.abs(rank - rank_mean).mean(),
    }


def honest_seed(rng: np.random.Generator, *, whole: bool) -> pd.DataFrame:
    """Ten predictors on one test set; the offsets share the basic network."""
    N = 120
    y, sex = rng.integers(0, 2, N), rng.integers(0, 2, N)
    rows = []
    for family, strength in PREDICTORS:
        if family != "logit":
            obs = rng.uniform(0, 3) * (2 * y - 1) + rng.normal(size=N)
            cf = obs[:, None] + rng.uniform(0.2, 3) * rng.normal(size=(N, 16))
        beta = strength if family == "logit" else 0.0
        shifted = cf + beta * np.repeat([0, 1], 8)
        rows.append(evaluate(obs + beta * sex, shifted, y, whole=whole))
    return pd.DataFrame(rows)


@pytest.mark.parametrize("whole", [False, True], ids=["fractional", "whole"])
@pytest.mark.parametrize("seed", range(8))
def test_an_honest_paper_fails_no_identity(seed: int, whole: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = []
    for setting in ("C->C", "M->M", "C->M"):
        mean = sum(honest_seed(rng, whole=whole) for _ in range(3)) / 3
        mean = mean.round(3).assign(S_var=mean["S_var"].round(4))
        mean["abs_rank_change"] = mean["abs_rank_change"].round(1 if setting == "C->C" else 0)
        mean[["family", "strength"]] = PREDICTORS
        rows += mean.assign(setting=setting, n_test=120).to_dict("records")

    # Three equal cells are a suspicion only: a small offset may leave as many unchanged.
    found = findings_of(*rows)
    assert [f for f in found if f.identity != "repeat"] == []
    assert len(found) <= 1


@pytest.fixture(scope="module")
def published() -> list[printed_tables.Flaw]:
    return printed_tables.audit(printed_tables.read_tables())


KNOWN = [
    ("C->C", "sex", 0.80, "ladder", "R_WC", {"R_WC": 1.390, "R_CVaR_0.10": 1.991}),
    ("M->M", "sex", 0.80, "bce-brier", "R_orig", {"R_orig": 0.375, "Brier_orig": 0.193}),
    ("M->M", "sex", 0.95, "bce-brier", "R_IE", {"R_IE": 0.581, "S_var": 0.0514}),
    ("M->M", "sex", 0.95, "tail-increasing", "R_CVaR_0.50", {"R_CVaR_0.50": 1.232, "R_IE": 0.581}),
    ("C->M", "age", 0.80, "tail-concave", "R_CVaR_0.10", {"R_WC": 1.464, "R_CVaR_0.25": 1.056}),
    ("M->M", "logit", 1.0, "beta-convex", "R_WC", {"R_WC at beta=1": 1.494}),
    ("M->M", "age", 0.80, "repeat", "R_orig, R_CM, R_IE", {"R_orig": 0.335, "R_IE": 0.536}),
    ("C->M", "basic", 0.0, "repeat", "S_var, S_flip, D_obs", {"S_var": 0.0358}),
    ("C->M", "basic", 0.0, "main-appendix", "S_var", {"main": 0.0198, "appendix": 0.0358}),
]


@pytest.mark.parametrize(("setting", "family", "strength", "identity", "metric", "values"), KNOWN)
def test_what_is_known_of_the_published_tables_is_found(
    published: list[printed_tables.Flaw],
    setting: str,
    family: str,
    strength: float,
    identity: str,
    metric: str,
    values: dict,
) -> None:
    row = (setting, family, strength, identity, metric)
    found = [f for f in published if (f.setting, f.family, f.strength, f.identity, f.metric) == row]

    # The risks of C->C are printed twice.
    assert len(found) == (2 if setting == "C->C" else 1)
    assert all(values.items() <= f.values.items() for f in found)


def test_findings_are_unique_positive_and_leave_ctc_out(
    published: list[printed_tables.Flaw],
) -> None:
    frame = printed_tables.as_frame(published)

    assert (frame["excess"] > 0).all()
    assert set(frame["family"]) == {"basic", "logit", "sex", "age"}
    assert not frame.drop(columns=["values", "excess", "statement"]).duplicated().any()
    assert "R_WC 1.390 is below R_CVaR_0.10 1.991" in set(frame["statement"])


def test_the_summary_counts_every_finding_once(published: list[printed_tables.Flaw]) -> None:
    counts = printed_tables.summary(published)

    assert list(counts.columns) == ["C->C", "M->M", "C->M"]
    assert list(counts.index) == list(printed_tables.NAMES)
    assert counts.to_numpy().sum() == len(published)
    assert printed_tables.summary([]).to_numpy().sum() == 0


def test_findings_survive_json(published: list[printed_tables.Flaw]) -> None:
    text = json.dumps([asdict(f) for f in published], allow_nan=False)

    assert [printed_tables.Flaw(**row) for row in json.loads(text)] == published


def test_a_bad_table_is_named(tmp_path: Path) -> None:
    tables = printed_tables.read_tables()
    for name, table in tables.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    assert len(printed_tables.audit(printed_tables.read_tables(tmp_path))) == len(
        printed_tables.audit(tables)
    )

    stability = tables["stability"]
    stability.drop(columns="tau_b").to_csv(tmp_path / "stability.csv", index=False)
    with pytest.raises(ValueError, match=r"stability\.csv has no column tau_b"):
        printed_tables.read_tables(tmp_path)

    stability.assign(tau_b="high").to_csv(tmp_path / "stability.csv", index=False)
    with pytest.raises(ValueError, match=r"stability\.csv: .*high"):
        printed_tables.read_tables(tmp_path)

    pd.concat([stability, stability[:1]]).to_csv(tmp_path / "stability.csv", index=False)
    with pytest.raises(ValueError, match=r"stability\.csv has two rows for .*basic"):
        printed_tables.read_tables(tmp_path)

    (tmp_path / "risk.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"risk\.csv is missing"):
        printed_tables.read_tables(tmp_path)
