"""What must hold for any scores whatever: the paper's metrics as mathematics."""

import math
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis.extra.numpy import arrays
from torch import Tensor

from cfbook.study.statistics import stratified_auc
from cfcore import metrics as m
from cfcore.metrics.loss import squared_error
from cfcore.metrics.summary import Options, Scores, summarise

SMALLEST = 1e-12
RATIO = 2.4554  # the smallest ratio of cross-entropy and squared error; derived below
EXACT = {"rtol": 1e-9, "atol": 1e-12}

probabilities = st.one_of(
    st.floats(SMALLEST, 1 - SMALLEST),
    st.sampled_from([SMALLEST, 1 - SMALLEST, 0.5, 0.5 + 1e-13, 0.1, 0.3, 1e-7]),
)
logits = st.one_of(st.floats(-60, 60), st.sampled_from([-700.0, 700.0, 0.0, 36.8, -27.7]))


@st.composite
def tables(draw: st.DrawFn, element: st.SearchStrategy[float]) -> tuple[Tensor, ...]:
    """Observed scores, counterfactual scores, weights and labels, of any size and shape."""
    n, k = draw(st.integers(1, 12)), draw(st.integers(1, 9))
    cf = draw(arrays(np.float64, (n, k), elements=element))
    obs = draw(arrays(np.float64, n, elements=element))
    weights = draw(arrays(np.float64, k, elements=st.sampled_from([0.0, 1e-9, 0.1, 1.0, 7.0])))
    assume(weights.sum() > 0)
    y = draw(arrays(np.int64, n, elements=st.integers(0, 1)))
    return tuple(map(torch.from_numpy, (obs, cf, weights / weights.sum(), y)))


def uniform(k: int) -> Tensor:
    return torch.full((k,), 1 / k, dtype=torch.float64)


def at_most(low: Tensor | float, high: Tensor | float) -> bool:
    return bool(low <= high + 1e-9 * (1 + abs(high)))


@given(tables(probabilities))
def test_risks_form_a_ladder(table: tuple[Tensor, ...]) -> None:
    obs, cf, q, y = table

    report = summarise(Scores(obs, cf, q, y))

    ladder = ["R_CM", "R_IE", "R_CVaR_0.50", "R_CVaR_0.25", "R_CVaR_0.10", "R_WC"]
    risks = [report[name] for name in ladder]
    assert all(at_most(*pair) for pair in pairwise(risks))


@given(tables(logits))
def test_risks_from_logits_form_a_ladder_however_saturated(table: tuple[Tensor, ...]) -> None:
    obs, cf, q, y = table

    report = summarise(Scores(obs, cf, q, y, logits=True), Options(alphas=(0.5, 0.1)))

    risks = [report[name] for name in ["R_CM", "R_IE", "R_CVaR_0.50", "R_CVaR_0.10", "R_WC"]]
    assert all(at_most(*pair) for pair in pairwise(risks))
    assert at_most(report["S_var"] / 2, report["R_IE"] - report["R_CM"])
    assert at_most(RATIO * (report["Brier_marg"] + report["S_var"]), report["R_IE"])


@given(tables(probabilities))
def test_tail_mass_times_tail_risk_is_concave_and_increasing(table: tuple[Tensor, ...]) -> None:
    _, cf, q, y = table
    loss = m.cross_entropy(cf, y[:, None])
    alphas = torch.linspace(0.05, 1, 20, dtype=torch.float64)

    mass = torch.stack([alpha * m.tail_risk(loss, q, alpha.item()) for alpha in alphas])

    assert (mass.diff() >= -1e-9).all()
    assert (mass.diff().diff() <= 1e-9).all()


@given(tables(probabilities))
def test_the_whole_tail_is_the_expectation_and_the_least_one_the_worst(
    table: tuple[Tensor, ...],
) -> None:
    _, cf, q, y = table
    loss = m.cross_entropy(cf, y[:, None])

    torch.testing.assert_close(m.tail_risk(loss, q, 1.0), m.expected_risk(loss, q), **EXACT)
    least = q[q > 0].min().item()
    torch.testing.assert_close(m.tail_risk(loss, q, least), m.worst_case_risk(loss, q), **EXACT)


@given(tables(probabilities))
def test_marginalising_gains_at_least_half_the_variance(table: tuple[Tensor, ...]) -> None:
    obs, cf, q, y = table

    report = summarise(Scores(obs, cf, q, y))

    assert at_most(report["S_var"] / 2, report["R_IE"] - report["R_CM"])


@given(tables(st.floats(0, 1)))
def test_marginalising_lowers_the_brier_score_by_exactly_the_variance(
    table: tuple[Tensor, ...],
) -> None:
    _, cf, q, y = table

    brier = m.expected_risk(squared_error(cf, y[:, None]), q)

    gain = brier - m.brier_score(m.marginal_prediction(cf, q), y)
    torch.testing.assert_close(gain, m.stability_variance(cf, q), **EXACT)


def test_the_ratio_of_cross_entropy_and_brier_score_is_the_least_possible() -> None:
    p = torch.linspace(1e-4, 1 - 1e-4, 2_000_001, dtype=torch.float64)

    least = (-p.log() / (1 - p) ** 2).min().item()

    assert RATIO <= least < RATIO + 1e-4


@given(tables(probabilities))
def test_cross_entropy_bounds_the_brier_score(table: tuple[Tensor, ...]) -> None:
    obs, cf, q, y = table

    report = summarise(Scores(obs, cf, q, y))

    assert at_most(RATIO * report["Brier_orig"], report["R_orig"])
    assert at_most(RATIO * report["Brier_marg"], report["R_CM"])
    assert at_most(RATIO * (report["Brier_marg"] + report["S_var"]), report["R_IE"])


@given(tables(st.floats(0, 1)), st.integers(1, 30))
def test_calibration_errors_are_bounded_by_each_other_and_by_the_brier_score(
    table: tuple[Tensor, ...], bins: int
) -> None:
    obs, _, _, y = table

    ece = m.expected_calibration_error(obs, y, bins)

    assert at_most(ece, m.maximum_calibration_error(obs, y, bins))
    assert at_most(ece**2, m.brier_score(obs, y))


def offset_risks(beta: float, logit: Tensor, sex: Tensor, q: Tensor, y: Tensor) -> Tensor:
    """Risks of a predictor with a logit offset: observed sex, and both intervened sexes."""
    obs = logit[:, 0] + beta * sex
    cf = torch.cat((logit, logit + beta), dim=1)
    options = Options(alphas=(0.7, 0.25, 0.1))
    report = summarise(Scores(obs, cf, q.repeat(2) / 2, y, logits=True), options)
    names = ["R_orig", "R_IE", "R_CVaR_0.70", "R_CVaR_0.25", "R_CVaR_0.10", "R_WC"]
    return torch.stack([report[name] for name in names])


@given(tables(st.floats(-30, 30)), st.floats(0, 3), st.floats(0.01, 3), st.floats(0, 1))
def test_risks_are_convex_in_a_logit_offset(
    table: tuple[Tensor, ...], low: float, width: float, share: float
) -> None:
    _, logit, q, y = table
    sex = torch.arange(len(y), dtype=torch.float64) % 2

    left, right, middle = (
        offset_risks(low + width * part, logit, sex, q, y) for part in (0.0, 1.0, share)
    )

    assert (middle <= (1 - share) * left + share * right + 1e-9).all()


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_a_logit_offset_leaves_auc_within_a_sex_alone(beta: float, rng: torch.Generator) -> None:
    logit, sex = torch.randn(400, generator=rng), torch.arange(400) % 2
    y = (torch.rand(400, generator=rng) < logit.sigmoid()).long()

    before = stratified_auc(logit, y, sex, groups=2)
    after = stratified_auc(logit.double() + beta * sex, y, sex, groups=2)

    assert torch.equal(before, after)
    assert m.auc(logit.double() + beta * sex, y) != m.auc(logit, y)


@settings(max_examples=300)
@given(st.integers(2, 30).flatmap(lambda n: st.permutations(range(n))))
def test_rank_metrics_bound_each_other_without_ties(order: list[int]) -> None:
    n = len(order)
    x, y = torch.arange(n) / n, torch.tensor(order) / n

    tau, rho = m.kendall(x, y).item(), m.rank_stability(x, y).item()
    change = m.mean_absolute_rank_change(x, y).item()

    assert (1 - tau) * (n - 1) / 4 - 1e-9 <= change <= (1 - tau) * (n - 1) / 2 + 1e-9
    # Daniels; as n grows, |3 tau - 2 rho| <= 1
    assert abs(3 * n * tau - 2 * (n + 1) * rho) <= n - 2 + 1e-9


@given(tables(st.floats(0, 1)), st.integers(0, 8))
def test_splitting_an_intervention_changes_nothing(table: tuple[Tensor, ...], which: int) -> None:
    obs, cf, q, y = table
    k = which % len(q)
    part = torch.cat((q, q[k : k + 1] * 0.25))
    part[k] = q[k] * 0.75

    coarse = summarise(Scores(obs, cf, q, y))
    fine = summarise(Scores(obs, torch.cat((cf, cf[:, k : k + 1]), dim=1), part, y))

    torch.testing.assert_close(fine, coarse, rtol=1e-6, atol=1e-9, equal_nan=True)


@given(tables(st.floats(0, 1)))
def test_an_impossible_intervention_changes_nothing(table: tuple[Tensor, ...]) -> None:
    obs, cf, q, y = table

    more = summarise(Scores(obs, torch.cat((cf, 1 - cf), dim=1), torch.cat((q, 0 * q)), y))

    torch.testing.assert_close(
        more, summarise(Scores(obs, cf, q, y)), rtol=1e-6, atol=1e-9, equal_nan=True
    )


@given(st.integers(0, 10**9), st.integers(1, 17), st.integers(2, 9), st.booleans())
def test_a_constant_predictor_is_stable(billionths: int, k: int, n: int, disease: bool) -> None:
    p = billionths / 10**9  # only the marginalised score is rounded, to 12 decimals
    y = torch.arange(n) % 2 if disease else torch.zeros(n, dtype=torch.int64)
    obs = torch.full((n,), p, dtype=torch.float64)

    report = summarise(Scores(obs, obs[:, None].expand(n, k), uniform(k), y))

    assert report["S_var"] == report["S_flip"] == report["D_obs"] == 0
    assert report["D_abs"] < 1e-15
    assert report["S_rank"].isnan() and report["tau_b"].isnan()
    assert math.isclose(report["R_orig"], report["R_WC"], rel_tol=1e-9, abs_tol=1e-12)


def test_averaging_a_constant_changes_no_decision_rank_or_bin() -> None:
    obs = torch.arange(0, 1.01, 0.1, dtype=torch.float64).round(decimals=1)
    y = torch.arange(11) % 2

    for k in range(1, 40):
        report = summarise(Scores(obs, obs[:, None].expand(11, k), uniform(k), y))
        assert report["D_obs"] == report["abs_rank_change"] == 0
        assert report["S_rank"] == report["tau_b"] == 1
        torch.testing.assert_close(report["ECE_marg"], report["ECE_orig"])
        torch.testing.assert_close(report["MCE_marg"], report["MCE_orig"])


@given(tables(st.floats(0, 1)))
def test_the_report_agrees_with_the_function_of_each_equation(table: tuple[Tensor, ...]) -> None:
    obs, cf, q, y = table
    loss, p_bar = m.cross_entropy(cf, y[:, None]), m.marginal_prediction(cf, q)
    shown = m.rounded(p_bar)

    report = summarise(Scores(obs, cf, q, y))

    equations = {
        "R_orig": m.original_risk(obs, y),
        "R_CM": m.marginal_risk(cf, q, y),
        "R_IE": m.expected_risk(loss, q),
        "R_CVaR_0.50": m.tail_risk(loss, q, 0.5),
        "R_CVaR_0.25": m.tail_risk(loss, q, 0.25),
        "R_CVaR_0.10": m.tail_risk(loss, q, 0.1),
        "R_WC": m.worst_case_risk(loss, q),
        "Brier_orig": m.brier_score(obs, y),
        "ECE_orig": m.expected_calibration_error(obs, y),
        "MCE_orig": m.maximum_calibration_error(obs, y),
        "Brier_marg": m.brier_score(p_bar, y),
        "ECE_marg": m.expected_calibration_error(shown, y),
        "MCE_marg": m.maximum_calibration_error(shown, y),
        "S_var": m.stability_variance(cf, q),
        "S_flip": m.flip_rate(obs, cf, q),
        "D_obs": m.disagreement_rate(obs, shown),
        "D_abs": m.mean_absolute_difference(obs, p_bar),
        "S_rank": m.rank_stability(obs, shown),
        "tau_b": m.kendall(obs, shown),
        "abs_rank_change": m.mean_absolute_rank_change(obs, shown),
    }
    torch.testing.assert_close(report, equations, rtol=1e-12, atol=1e-12, equal_nan=True)


@given(tables(probabilities))
def test_draws_in_proportion_average_to_the_expectation(table: tuple[Tensor, ...]) -> None:
    _, cf, _, _ = table
    times = torch.arange(1, cf.shape[1] + 1)
    drawn = cf.repeat_interleave(times, dim=1)  # world k is drawn k times

    expected = m.marginal_prediction(cf, times / times.sum().double())
    torch.testing.assert_close(m.monte_carlo_prediction(drawn), expected, **EXACT)


@pytest.mark.parametrize("k", range(1, 40))
def test_rounding_protects_every_threshold(k: int) -> None:
    obs = torch.arange(0, 1.01, 0.1, dtype=torch.float64).round(decimals=1)

    for threshold in obs.tolist():
        options = Options(threshold=threshold)
        report = summarise(Scores(obs, obs[:, None].expand(11, k), uniform(k)), options)
        assert report["D_obs"] == 0


def test_attributes_and_interaction_make_up_the_variance() -> None:
    rng = torch.Generator().manual_seed(4)
    p = torch.rand(50, 2, 3, generator=rng, dtype=torch.float64)
    first, second = torch.tensor([0.3, 0.7]), torch.tensor([0.2, 0.5, 0.3])
    q = (first[:, None] * second).flatten().double()
    values = torch.cartesian_prod(torch.arange(2), torch.arange(3))
    flat = p.flatten(1)

    parts = [m.attribute_variance(flat, q, column) for column in values.T]
    mean = (flat @ q)[:, None, None]
    rows, columns = (p @ second.double())[..., None], (first.double() @ p)[:, None]
    interaction = ((p - rows - columns + mean) ** 2).flatten(1) @ q

    total = m.stability_variance(flat, q)
    torch.testing.assert_close(sum(parts) + interaction.mean(), total)


def test_an_area_of_a_weighted_sample_is_that_of_the_repeated_patients() -> None:
    rng = torch.Generator().manual_seed(5)
    score = torch.randn(40, generator=rng).round(decimals=1)
    y = (torch.rand(40, generator=rng) < 0.4).long()
    weight = torch.randint(3, (6, 40), generator=rng)

    areas = m.auc(score, y, weight)

    for area, times in zip(areas, weight, strict=True):
        rows = torch.repeat_interleave(times)
        torch.testing.assert_close(area, m.auc(score[rows], y[rows]))
