"""Intervals: the fast way equals the plain way; how often they hold the truth is in a table."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit

from cfbook.study.rules import rule
from cfcore import InputError, Predictions, bootstrap, compare, evaluate, intervals
from cfcore.evaluation import check_options, check_scores
from cfcore.report.text import as_text
from cfcore.resampling import check_resampling, replicate

COVERAGE = Path(intervals.__file__).parent.parent / "data/results/coverage.csv"

Data = tuple[np.ndarray, np.ndarray, np.ndarray]


def population(rng: np.random.Generator, n: int) -> Data:
    """A predictor that is moderately miscalibrated and moves with the intervention."""
    logit = 1.5 * rng.normal(size=n) - 0.6
    y = (rng.random(n) < expit(logit)).astype(int)
    score = 1.5 * logit + 0.6 * rng.normal(size=n)
    cf = score[:, None] + np.array([-1.2, -0.2, 0.3, 1.5]) * (0.2 + rng.random((n, 1)))
    return expit(score), expit(cf), y


@pytest.mark.parametrize("clustered", [False, True])
def test_replicates_equal_evaluating_the_resampled_patients(clustered: bool) -> None:
    p_obs, p_cf, y = population(np.random.default_rng(0), 60)
    p_obs = p_obs.round(1)
    patient = np.repeat(np.arange(20), 3)[::-1] if clustered else None
    sampling = check_resampling(60, patient, 7, 5, 0.95, seed=3)
    options = {"q": [0.1, 0.2, 0.3, 0.4], "threshold": 0.4, "alphas": (0.3,), "bins": 7}
    scores = check_scores(p_obs, p_cf, y, options["q"])

    fast = replicate(
        scores, check_options({"threshold": 0.4, "alphas": (0.3,), "bins": 7}), sampling
    )

    counts = torch.cat(list(sampling.counts())).numpy()
    for b in range(7):
        rows = np.repeat(np.arange(60), counts[b][sampling.code])
        plain = evaluate(p_obs[rows], p_cf[rows], y[rows], **options)
        ranked = {name: v for name, v in plain.items() if 1 + b < len(fast[name])}
        assert {name: fast[name][1 + b] for name in ranked} == pytest.approx(ranked, abs=1e-12)
    assert {len(fast[name]) for name in ("S_rank", "tau_b", "abs_rank_change")} == {1 + 5}
    assert {len(fast[name]) for name in ("R_CM", "ECE_marg", "S_var")} == {1 + 7}
    assert {name: v[0] for name, v in fast.items()} == evaluate(p_obs, p_cf, y, **options)


def test_patients_are_drawn_whole_and_equally_often() -> None:
    patient = ["a", "b", "b", "c", "c", "c"]
    sampling = check_resampling(6, patient, 4000, 0, 0.95, seed=0)

    counts = torch.cat(list(sampling.counts()))

    assert (counts.sum(dim=1) == 3).all()
    torch.testing.assert_close(
        counts.double().mean(dim=0), torch.ones(3).double(), atol=0.06, rtol=0
    )
    assert sampling.code.tolist() == [0, 1, 1, 2, 2, 2]


def test_clusters_widen_the_interval() -> None:
    p_obs, p_cf, y = (
        np.repeat(values, 5, axis=0) for values in population(np.random.default_rng(1), 100)
    )

    rows = bootstrap(p_obs, p_cf, y, rank_replicates=0).set_index("metric")
    patients = bootstrap(p_obs, p_cf, y, patient=np.repeat(np.arange(100), 5), rank_replicates=0)

    ratio = width(patients.set_index("metric"), "R_CM") / width(rows, "R_CM")
    assert ratio == pytest.approx(np.sqrt(5), rel=0.15)


def width(frame: object, metric: str) -> float:
    return frame.high[metric] - frame.low[metric]


def test_the_frame_has_every_metric_and_the_same_seed_the_same_frame() -> None:
    data = population(np.random.default_rng(2), 80)

    first, second = (bootstrap(*data, replicates=120, rank_replicates=10) for _ in range(2))

    assert list(first.columns) == ["metric", "estimate", "low", "high"]
    assert dict(zip(first.metric, first.estimate, strict=True)) == evaluate(*data)
    assert first.equals(second)
    other = bootstrap(*data, replicates=120, rank_replicates=10, seed=1)
    assert not first.low.equals(other.low)


def test_more_confidence_is_a_wider_interval() -> None:
    data = population(np.random.default_rng(3), 80)

    narrow, wide = (bootstrap(*data, level=level, replicates=200) for level in (0.5, 0.99))

    assert ((wide.high - wide.low) >= (narrow.high - narrow.low)).all()


def test_undefined_metrics_have_no_interval() -> None:
    with pytest.warns(UserWarning, match="undefined"):
        frame = bootstrap(np.full(5, 0.5), np.full((5, 2), 0.5), replicates=10)

    frame = frame.set_index("metric")
    assert frame.loc[["S_rank", "tau_b"]].isna().all(axis=None)
    assert not frame.drop(["S_rank", "tau_b"]).isna().any(axis=None)


def test_comparing_on_the_same_patients_is_sharper_than_apart() -> None:
    p_obs, p_cf, y = population(np.random.default_rng(4), 500)
    shift = expit(np.log(p_cf / (1 - p_cf)) * 1.2)

    together = compare((p_obs, p_cf), (p_obs, shift), y, rank_replicates=20).set_index("metric")

    apart = [bootstrap(p_obs, p, y, rank_replicates=0).set_index("metric") for p in (p_cf, shift)]
    alone = np.hypot(width(apart[0], "R_IE"), width(apart[1], "R_IE"))
    assert width(together, "R_IE") < 0.5 * alone
    assert together.low["R_IE"] > 0
    reports = [evaluate(p_obs, p, y) for p in (p_cf, shift)]
    difference = {name: reports[1][name] - value for name, value in reports[0].items()}
    assert together.estimate.to_dict() == pytest.approx(difference)


def test_a_difference_of_nothing_is_found_significant_rarely() -> None:
    found = 0
    for trial in range(60):
        rng = np.random.default_rng(trial)
        p_obs, p_cf, y = population(rng, 200)
        first, second = (
            expit(np.log(p_cf / (1 - p_cf)) + 0.5 * rng.normal(size=(200, 1))) for _ in "ab"
        )
        frame = compare((p_obs, first), (p_obs, second), y, replicates=150, rank_replicates=0)
        row = frame.set_index("metric").loc["R_CM"]
        found += not row.low <= 0 <= row.high
    assert found <= 10  # 3 expected; more than 10 has a probability below 1 in 1,000


def test_predictions_bootstrap_and_compare_from_logits() -> None:
    rng = torch.Generator().manual_seed(0)
    logit = torch.randn(60, 5, generator=rng)
    given = Predictions(
        logit_obs=logit[:, 0],
        logit_null=logit[:, 0],
        logit_cf=logit[:, 1:],
        grid={"sex": torch.arange(4)},
        y=torch.arange(60) % 2,
        patient=[i // 2 for i in range(60)],
    )
    p = logit.double().sigmoid()

    frame = given.bootstrap(replicates=50, rank_replicates=10)

    plain = bootstrap(
        p[:, 0], p[:, 1:], given.y, patient=given.patient, replicates=50, rank_replicates=10
    )
    np.testing.assert_allclose(frame[["low", "high"]], plain[["low", "high"]], rtol=1e-9)
    assert given.compare(given, replicates=10).estimate.abs().max() == 0


def test_labels_may_be_booleans() -> None:
    p_obs, p_cf, y = population(np.random.default_rng(5), 40)

    frames = [
        bootstrap(p_obs, p_cf, labels, replicates=10, rank_replicates=2)
        for labels in (y, y.astype(bool))
    ]

    assert frames[0].equals(frames[1])


@pytest.mark.parametrize(
    "options",
    [
        {"q": [0.7, 0.1, 0.1, 0.1]},
        {"threshold": 0.2},
        {"bins": 3},
        {"alphas": (0.9,)},
        {"loss": "brier"},
        {"patient": np.arange(120) // 4},
    ],
)
def test_every_option_reaches_the_replicates(options: dict) -> None:
    p_obs, p_cf, y = population(np.random.default_rng(6), 120)
    other = p_cf[:, ::-1] ** 2

    plain = bootstrap(p_obs, p_cf, y, replicates=60, rank_replicates=10)
    changed = bootstrap(p_obs, p_cf, y, **options, replicates=60, rank_replicates=10)
    pair = [
        compare((p_obs, p_cf), (p_obs, other), y, **given, replicates=60, rank_replicates=10)
        for given in ({}, options)
    ]

    assert not plain[["low", "high"]].equals(changed[["low", "high"]])
    assert not pair[0][["low", "high"]].equals(pair[1][["low", "high"]])


def test_chunks_of_replicates_are_all_used_and_all_random() -> None:
    sampling = check_resampling(30, None, 125, 60, 0.95, seed=0)

    counts = torch.cat(list(sampling.counts()))

    assert counts.shape == (125, 30)
    assert len({tuple(row.tolist()) for row in counts}) == 125
    assert not (counts == 1).all(dim=1).any()
    data = check_scores(*population(np.random.default_rng(7), 30), q=None)
    values = replicate(data, check_options({"alphas": (0.5,)}), sampling)
    assert (len(values["R_CM"]), len(values["tau_b"])) == (126, 61)


def test_pivotal_intervals_stay_within_the_range_of_their_metric() -> None:
    data = population(np.random.default_rng(8), 25)

    frame = bootstrap(*data, replicates=100, rank_replicates=50).set_index("metric")

    errors = frame.loc[["ECE_orig", "MCE_orig", "ECE_marg", "MCE_marg"]]
    assert (errors.low >= 0).all() and (errors.high <= 1).all()
    assert frame.high["S_rank"] <= 1 and frame.high["tau_b"] <= 1
    assert frame.low["abs_rank_change"] >= 0


def test_differences_of_bounded_metrics_stay_in_bounds() -> None:
    rng = np.random.default_rng(2)
    y = (rng.random(40) < 0.5).astype(int)
    good = np.clip(0.03 + 0.94 * y[:, None] + 0.02 * rng.normal(size=(40, 2)), 0, 1)
    bad = good.copy()
    wrong = rng.integers(40, size=2)  # alone in their bins, and missing from many samples
    bad[wrong] = 1 - 0.7 * bad[wrong]
    pairs = (good[:, 0], good), (bad[:, 0], bad)

    frame = compare(*pairs, y, replicates=200, rank_replicates=50).set_index("metric")

    errors = frame.loc[["ECE_orig", "MCE_orig", "ECE_marg", "MCE_marg"]]
    assert (errors.low >= -1).all() and (errors.high <= 1).all()
    assert frame.low[["S_rank", "tau_b"]].min() >= -2 and frame.high.S_rank <= 2


@pytest.mark.parametrize("patient", [None, ["a"] * 30])
def test_of_one_patient_there_is_no_interval(patient: list[str] | None) -> None:
    p_obs, p_cf, y = population(np.random.default_rng(9), 30 if patient else 1)

    with pytest.warns(UserWarning, match="two patients or more"):
        frame = bootstrap(p_obs, p_cf, y, patient=patient, replicates=20, rank_replicates=5)
    with pytest.warns(UserWarning, match="two patients or more"):
        both = compare(
            (p_obs, p_cf), (p_obs, p_cf**2), y, patient=patient, replicates=20, rank_replicates=5
        )

    assert frame[["low", "high"]].isna().all(axis=None)
    assert both[["low", "high"]].isna().all(axis=None)
    assert not frame.set_index("metric").estimate.drop(["S_rank", "tau_b"]).isna().any()


def test_comparing_three_arrays_says_what_to_pass() -> None:
    p_obs, p_cf, y = population(np.random.default_rng(10), 30)

    with pytest.raises(InputError, match=r"first.*\(\(p_obs, p_cf\), \(other_obs, other_cf\), y\)"):
        compare(p_obs, p_cf, y)
    with pytest.raises(InputError, match="second: is not a pair"):
        compare((p_obs, p_cf), (p_obs, p_cf, y))
    with pytest.raises(InputError, match="first: is not a pair"):
        compare(p_obs.tolist()[:2], p_cf.tolist()[:2], y[:2])


def test_costly_losses_may_be_negative() -> None:
    p_obs, p_cf, y = population(np.random.default_rng(11), 60)

    frame = bootstrap(p_obs, p_cf, y, loss=lambda p, y: p - 2, replicates=50, rank_replicates=2)

    row = frame.set_index("metric").loc["R_orig"]
    assert row.low < row.estimate < row.high < 0


def simulated() -> pd.DataFrame:
    """How often intervals held the truth, by statistic: columns ``percentile, pivotal``."""
    table = pd.read_csv(COVERAGE)
    table = table[(table.part == "metrics") & ~table.statistic.str.startswith("null")]
    assert (table.samples >= 400).all() and set(table.N) == {intervals.SMALL, intervals.LARGE}
    return table.set_index("statistic")


def test_each_metric_has_the_interval_that_covers_better() -> None:
    alone = simulated().query("of != 'difference'")
    worst = alone.groupby("statistic")[["percentile", "pivotal"]].min()

    # Two standard errors of the simulation: within them, percentiles, which are plainer.
    better = worst.pivotal > worst.percentile + 0.02
    assert {name: rule(name).pivotal for name in worst.index} == better.to_dict()
    data = population(np.random.default_rng(12), 30)
    assert set(bootstrap(*data, replicates=5, rank_replicates=2).metric) <= set(worst.index)


@pytest.mark.parametrize("difference", [False, True])
def test_exactly_the_intervals_that_cover_too_seldom_carry_a_note(difference: bool) -> None:
    table = simulated()
    table = table[(table.of == "difference") == difference]
    for name, rows in table.groupby("statistic"):
        kind = rule(name).difference() if difference else rule(name)
        worst = rows.groupby("N")["pivotal" if kind.pivotal else "percentile"].min()
        limits = [size for size, held in worst.items() if held < 0.9]
        expected = {0: 0, intervals.SMALL: intervals.LARGE, intervals.LARGE: intervals.ALWAYS}
        assert kind.doubtful == expected[max(limits, default=0)], (name, worst.to_dict())


def test_several_trainings_are_covered_by_the_whole_rule() -> None:
    table = pd.read_csv(COVERAGE).query("part == 'trainings'").set_index(["statistic", "of"])
    held = {
        key: row["pivotal" if rule(key[0]).pivotal else "percentile"]
        for key, row in table.iterrows()
    }
    assert len(held) > 50
    assert {name for (name, _), share in held.items() if share < 0.9} == {
        "gap_age",
        "gap_coin",
        "gap_race",
    }  # gaps of small groups, and of groups that mean nothing


def test_the_note_stands_in_reports_where_it_belongs() -> None:
    p_obs, p_cf, y = population(np.random.default_rng(13), 100)
    options = {"replicates": 20, "rank_replicates": 2}

    shown = as_text(bootstrap(p_obs, p_cf, y, **options))
    many = [
        np.tile(values, (20, 1)) if values.ndim > 1 else np.tile(values, 20)
        for values in (p_obs, p_cf)
    ]
    plain = as_text(bootstrap(*many, **options))
    both = compare((p_obs, p_cf), (p_obs, p_cf**2), y, **options)

    marked = [line.split()[0] for line in shown.splitlines() if f"]{intervals.DAGGER}" in line]
    assert marked == ["ECE_orig", "MCE_orig", "ECE_marg", "MCE_marg", "S_flip", "D_obs", "S_rank"]
    assert shown.endswith(intervals.NOTE) and intervals.DAGGER not in plain
    assert both.attrs["doubtful"] == ["MCE_orig", "MCE_marg"]
