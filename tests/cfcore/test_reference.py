"""The report against independent computations: scikit-learn, SciPy and plain loops."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import expit, logsumexp
from scipy.stats import kendalltau, rankdata, spearmanr
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from cfbook.study.statistics import stratified_auc, worst_gap
from cfcore import Predictions, evaluate
from cfcore import metrics as m
from cfcore.metrics import ranking

Case = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def case(rng: np.random.Generator, n: int = 200, k: int = 16, scale: float = 1.0) -> Case:
    """Probabilities, labels and uniform weights."""
    patient, world = rng.normal(size=(n, 1)), rng.normal(size=(n, k))
    p_cf = expit(scale * (patient + world))
    p_obs = expit(scale * (patient[:, 0] + rng.normal(size=n)))
    y = (rng.random(n) < expit(patient[:, 0])).astype(int)
    return p_obs, p_cf, y, np.full(k, 1 / k)


def weighted(rng: np.random.Generator) -> Case:
    p_obs, p_cf, y, _ = case(rng)
    q = rng.random(16)
    q[[2, 7]] = 0
    return p_obs, p_cf, y, q / q.sum()


def tied(rng: np.random.Generator) -> Case:
    p_obs, p_cf, y, q = case(rng, k=4)
    return p_obs.round(1), p_cf.round(1), y, q


def saturated(rng: np.random.Generator) -> Case:
    p_obs, p_cf, y, q = case(rng, scale=30.0)
    p_cf[:5, :3], p_obs[:3] = [[0.0, 1.0, 0.5]], [0.0, 1.0, 1.0]
    return p_obs.astype(np.float32), p_cf.astype(np.float32), y, q


def null(rng: np.random.Generator) -> Case:
    _, p_cf, y, q = case(rng, k=1)
    return p_cf[:, 0], p_cf, y, q


CASES: dict[str, Callable[[np.random.Generator], Case]] = {
    "random": case,
    "weighted": weighted,
    "tied": tied,
    "saturated": saturated,
    "one intervention": lambda rng: case(rng, k=1),
    "one null intervention": null,
    "two patients": lambda rng: (
        np.array([0.2, 0.7]),
        np.array([[0.1, 0.9], [0.6, 0.6]]),
        np.array([0, 1]),
        np.array([0.5, 0.5]),
    ),
    "more rows than a block": lambda rng: case(rng, n=20_000, k=2),
}


def loop_tail(loss: np.ndarray, q: np.ndarray, alpha: float) -> float:
    """CVaR of one patient: take interventions, the worst first, until the tail is full."""
    left, total = alpha, 0.0
    for k in sorted(range(len(q)), key=lambda k: -loss[k]):
        taken = min(left, q[k])
        total += taken * loss[k]
        left -= taken
    return total / alpha


def loop_calibration(p: np.ndarray, y: np.ndarray, bins: int) -> tuple[float, float]:
    """ECE and MCE, bin by bin."""
    edges = [k / bins for k in range(bins + 1)]
    ece, mce = 0.0, 0.0
    for b in range(bins):
        last = b == bins - 1
        inside = [i for i, s in enumerate(p) if edges[b] <= s and (last or s < edges[b + 1])]
        if inside:
            gap = abs(np.mean(y[inside]) - np.mean(p[inside]))
            ece, mce = ece + len(inside) / len(p) * gap, max(mce, gap)
    return ece, mce


def reference(p_obs: np.ndarray, p_cf: np.ndarray, y: np.ndarray, q: np.ndarray) -> dict:
    """The report of ``evaluate``, computed without it."""
    p_obs, p_cf = p_obs.astype(np.float64), p_cf.astype(np.float64)
    p_bar = np.average(p_cf, axis=1, weights=q)
    shown = p_bar.round(12)
    k = p_cf.shape[1]

    eps = np.finfo(np.float64).eps
    right = np.where(y[:, None] == 1, p_cf, 1 - p_cf).clip(eps, 1 - eps)
    loss = -np.log(right)
    columns = [log_loss(y, p_cf[:, j], labels=[0, 1]) for j in range(k)]
    flips = [np.mean((p_cf[:, j] > 0.5) != (p_obs > 0.5)) for j in range(k)]
    spread = [np.average((row - row @ q) ** 2, weights=q) for row in p_cf]
    ece, ece_bar = loop_calibration(p_obs, y, 10), loop_calibration(shown, y, 10)
    return {
        "R_orig": log_loss(y, p_obs, labels=[0, 1]),
        "R_CM": log_loss(y, p_bar, labels=[0, 1]),
        "R_IE": np.dot(columns, q),
        **{
            f"R_CVaR_{alpha:.2f}": np.mean([loop_tail(row, q, alpha) for row in loss])
            for alpha in (0.5, 0.25, 0.1)
        },
        "R_WC": np.mean(loss[:, q > 0].max(axis=1)),
        "Brier_orig": brier_score_loss(y, p_obs),
        "ECE_orig": ece[0],
        "MCE_orig": ece[1],
        "Brier_marg": brier_score_loss(y, p_bar),
        "ECE_marg": ece_bar[0],
        "MCE_marg": ece_bar[1],
        "S_var": np.mean(spread),
        "S_flip": np.dot(flips, q),
        "D_obs": np.mean((p_obs > 0.5) != (shown > 0.5)),
        "D_abs": np.mean(np.abs(p_obs - p_bar)),
        "S_rank": spearmanr(p_obs, shown).statistic,
        "tau_b": kendalltau(p_obs, shown).statistic,
        "abs_rank_change": np.mean(np.abs(rankdata(p_obs) - rankdata(shown))),
    }


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_the_report_agrees_with_independent_computations(name: str, seed: int) -> None:
    p_obs, p_cf, y, q = CASES[name](np.random.default_rng(seed))

    report = evaluate(p_obs, p_cf, y, q=q)

    expected = reference(p_obs, p_cf, y, q)
    assert list(report) == list(expected)
    assert report == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_label_free_metrics_are_the_same_without_labels(name: str) -> None:
    p_obs, p_cf, y, q = CASES[name](np.random.default_rng(0))

    free = evaluate(p_obs, p_cf, q=q)

    assert list(free) == ["S_var", "S_flip", "D_obs", "D_abs", "S_rank", "tau_b", "abs_rank_change"]
    full = evaluate(p_obs, p_cf, y, q=q)
    assert free == {name: full[name] for name in free}


def test_other_losses_are_used_by_every_risk() -> None:
    p_obs, p_cf, y, _ = case(np.random.default_rng(3))

    brier = evaluate(p_obs, p_cf, y, loss="brier")
    own = evaluate(p_obs, p_cf, y, loss=lambda p, y: (p - y).abs())

    assert brier["R_orig"] == pytest.approx(brier["Brier_orig"])
    assert brier["R_CM"] == pytest.approx(brier["Brier_marg"])
    assert brier["R_IE"] == pytest.approx(brier["R_CM"] + brier["S_var"])
    assert own["R_orig"] == pytest.approx(np.abs(p_obs - y).mean())
    assert own["R_WC"] == pytest.approx(np.abs(p_cf - y[:, None]).max(axis=1).mean())
    with pytest.raises(ValueError, match="hinge"):
        evaluate(p_obs, p_cf, y, loss="hinge")


def predictions(scale: float, n: int = 300, k: int = 5) -> Predictions:
    rng = torch.Generator().manual_seed(4)
    logit = scale * torch.randn(n, k + 1, generator=rng, dtype=torch.float64)
    return Predictions(
        logit_obs=logit[:, 0],
        logit_null=logit[:, 0],
        logit_cf=logit[:, 1:],
        grid={"age": torch.linspace(20, 90, k)},
        q=torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0]),
        y=(torch.rand(n, generator=rng) < 0.4).long(),
    )


def test_logits_and_probabilities_give_the_same_report() -> None:
    given = predictions(scale=2.0)

    from_logits = given.evaluate()

    p_obs, p_cf = given.logit_obs.sigmoid(), given.logit_cf.sigmoid()
    assert from_logits == pytest.approx(evaluate(p_obs, p_cf, given.y, q=given.q), rel=1e-9)


def test_logits_keep_what_saturated_probabilities_lose() -> None:
    given = predictions(scale=500.0)
    sign = np.where(given.y[:, None] == 1, 1, -1)
    log_p = -np.logaddexp(0, -sign * given.logit_cf.numpy())
    q = given.q.numpy()

    report = given.evaluate()

    with np.errstate(divide="ignore"):
        marginal = -logsumexp(log_p + np.log(q), axis=1)
    assert report["R_CM"] == pytest.approx(marginal.mean(), rel=1e-12)
    assert report["R_IE"] == pytest.approx((-log_p @ q).mean(), rel=1e-12)
    clipped = evaluate(given.logit_obs.sigmoid(), given.logit_cf.sigmoid(), given.y, q=given.q)
    assert clipped["R_IE"] < 0.2 * report["R_IE"]


@pytest.mark.parametrize("decimals", [1, 2, 15])
def test_auc_agrees_with_scikit_learn_in_every_stratum(decimals: int) -> None:
    rng = np.random.default_rng(5)
    score = rng.random(500).round(decimals)
    y, group = rng.integers(2, size=500), rng.integers(3, size=500)

    areas = stratified_auc(*map(torch.tensor, (score, y, group)), groups=3)

    expected = [roc_auc_score(y[group == g], score[group == g]) for g in range(3)]
    assert areas.tolist() == pytest.approx(expected)
    assert worst_gap(areas).item() == pytest.approx(max(expected) - min(expected))


def test_a_stratum_without_both_classes_has_no_auc() -> None:
    areas = stratified_auc(
        torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), groups=2
    )

    assert areas.isnan().tolist() == [False, True]
    assert worst_gap(areas).isnan()


@pytest.mark.parametrize("n", [2, 3, 8, 9, 777, 4096])
@pytest.mark.parametrize("values", [2, 5, 1000, 10**6])
def test_kendall_agrees_with_scipy(values: int, n: int) -> None:
    x, y = np.random.default_rng(n + values).integers(values, size=(2, n))

    tau = m.kendall(torch.tensor(x), torch.tensor(y)).item()

    assert tau == pytest.approx(kendalltau(x, y).statistic, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("values", [5, 1000])
def test_kendall_of_resampled_scores_is_that_of_the_scores_drawn(values: int) -> None:
    rng = np.random.default_rng(values)
    x, y = (torch.tensor(v) for v in rng.integers(values, size=(2, 90)))
    drawn = torch.tensor(rng.multinomial(90, np.full(90, 1 / 90), size=6))

    tau = ranking.kendall_of_samples(ranking.tie_groups(x), ranking.tie_groups(y))(drawn)

    rows = [torch.repeat_interleave(often) for often in drawn]
    expected = [kendalltau(x[one], y[one]).statistic for one in rows]
    assert tau.tolist() == pytest.approx(expected, abs=1e-12)


def test_spearmans_printed_formula_holds_without_ties() -> None:
    rng = torch.Generator().manual_seed(6)
    x, y = torch.rand(2, 101, generator=rng)
    d = torch.tensor(rankdata(x) - rankdata(y))

    printed = 1 - 6 * (d**2).sum() / (101 * (101**2 - 1))

    torch.testing.assert_close(m.rank_stability(x, y), printed)


@pytest.mark.parametrize("n", [1, 3])
def test_undefined_ranks_are_nan_with_a_warning(n: int) -> None:
    with pytest.warns(UserWarning, match="S_rank, tau_b undefined"):
        report = evaluate(np.full(n, 0.3), np.full((n, 2), 0.3), [0] * n)

    assert np.isnan([report["S_rank"], report["tau_b"]]).all()
    assert report["abs_rank_change"] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert evaluate(np.full(n, 0.3), np.full((n, 2), 0.3))["S_var"] == 0


def test_monte_carlo_draws_make_the_variance_unbiased() -> None:
    rng = np.random.default_rng(7)
    grid = rng.normal(size=(1, 16))
    truth = expit(grid).var()
    draws = grid[0, rng.integers(16, size=(40_000, 3))]

    given = Predictions(
        logit_obs=torch.zeros(40_000),
        logit_null=torch.zeros(40_000),
        logit_cf=torch.tensor(draws),
        grid={"age": torch.tensor(draws)},
    )
    with pytest.warns(UserWarning, match="undefined"):
        report = given.evaluate()

    assert report["S_var"] == pytest.approx(truth, rel=0.02)
    biased = m.stability_variance(given.logit_cf.sigmoid(), torch.full((3,), 1 / 3)).item()
    assert biased == pytest.approx(truth * 2 / 3, rel=0.02)
