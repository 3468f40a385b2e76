"""Break-even points and simulations of the two estimators of a subgroup's mean."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from cfbook.figures.theory import errors
from cfbook.theory.estimators import mean_interval, tolerable_generator_noise
from cfbook.theory.simulation import (
    REGIMES,
    _Scores,
    _subgroup_means,
    _variance_interval,
    biased_errors,
    break_even_bias,
    break_even_noise,
    break_even_size,
    redrawn_scores,
    scattered_scores,
    simulate,
)
from cfcore.checks import InputError

SIGMA2, N, N_Z, RUNS = 0.15, 60, 12, 4000


def ratio(scores: _Scores) -> float:
    """The simulated variance of the counterfactual over that of the observational estimator."""
    means = _subgroup_means(scores, N_Z)
    return (means["counterfactual"].var() / means["observational"].var()).item()


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_noise_that_replaces_variance_costs_nothing(part: float, rng: torch.Generator) -> None:
    scores = redrawn_scores(RUNS, N, variance=SIGMA2, generator_noise=part * SIGMA2, rng=rng)

    assert ratio(scores) == pytest.approx(N_Z / N, rel=0.1)
    difference = (scores.generated - scores.true).var().item()
    assert difference == pytest.approx(2 * part * SIGMA2, rel=0.02, abs=1e-12)


def test_noise_on_top_breaks_even_at_the_sharp_condition(rng: torch.Generator) -> None:
    limit = break_even_noise(SIGMA2, N_Z, N).item()

    ratios = [
        ratio(scattered_scores(RUNS, N, variance=SIGMA2, generator_noise=c * limit, rng=rng))
        for c in (0.5, 1.0, 2.0)
    ]

    assert ratios == pytest.approx([0.6, 1.0, 1.8], rel=0.1)


@pytest.mark.parametrize("n_z", [2, 30, 60])
def test_the_printed_condition_is_a_share_of_the_sharp_one(n_z: int) -> None:
    printed, sharp = tolerable_generator_noise(SIGMA2, n_z, N), break_even_noise(SIGMA2, n_z, N)

    assert printed.item() == pytest.approx(sharp.item() * n_z / N)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_at_the_break_even_bias_the_mean_squared_errors_are_one(
    noise: float, rng: torch.Generator
) -> None:
    bias = break_even_bias(SIGMA2, N_Z, N, generator_noise=noise).item()
    scores = scattered_scores(RUNS, N, variance=SIGMA2, generator_noise=noise, rng=rng)
    means = _subgroup_means(scores, N_Z)

    error, low, high = mean_interval((means["counterfactual"] + bias).square())

    assert low < SIGMA2 / N_Z < high
    assert error == pytest.approx(mean_interval(means["observational"].square()).value, rel=0.1)
    size = break_even_size(SIGMA2, N_Z / N, bias, generator_noise=noise)
    assert size.item() == pytest.approx(N)


def test_where_noise_alone_loses_no_bias_is_tolerated() -> None:
    noise = 2 * break_even_noise(SIGMA2, N_Z, N)

    assert break_even_bias(SIGMA2, N_Z, N, generator_noise=noise) == 0
    assert break_even_size(SIGMA2, N_Z / N, 0.1, generator_noise=noise) == 0
    assert break_even_size(SIGMA2, N_Z / N, 0.0) == torch.inf


def test_intervals_cover_as_often_as_they_say(rng: torch.Generator) -> None:
    samples = torch.randn(2000, 12, generator=rng, dtype=torch.float64)

    ends = [_variance_interval(sample)[1:] for sample in samples]

    assert sum(low < 1 < high for low, high in ends) / 2000 == pytest.approx(0.95, abs=0.02)
    many = torch.randn(500, 400, generator=rng, dtype=torch.float64) + 1
    ends = [mean_interval(values.square())[1:] for values in many]
    assert sum(low < 2 < high for low, high in ends) / 500 == pytest.approx(0.95, abs=0.03)


def test_the_simulation_agrees_with_its_formulas_and_with_itself() -> None:
    noises = {"correct model": [0.0, 1.0], "noise on top": [0.0, 3.0]}
    frame = simulate([20, 80], [0.1, 0.5], noises, variance=SIGMA2, runs=500)

    assert len(frame) == 2 * 2 * 4 * 2
    assert frame.formula.between(frame.low, frame.high).mean() > 0.85
    assert frame.equals(simulate([20, 80], [0.1, 0.5], noises, variance=SIGMA2, runs=500))
    assert set(frame.regime) == set(REGIMES)
    other = simulate([20, 80], [0.1, 0.5], noises, variance=SIGMA2, runs=500, seed=1)
    assert not frame.variance.equals(other.variance)


def test_a_bias_loses_from_the_break_even_size_on() -> None:
    even = break_even_size(SIGMA2, 0.25, 0.05).item()
    sizes = [round(even / 4), round(4 * even)]

    frame = biased_errors(sizes, [0.25], 0.05, variance=SIGMA2, runs=1000)

    error = frame.pivot(index="n", columns="estimator", values="error")
    assert (error.counterfactual < error.observational).tolist() == [True, False]
    assert frame.formula.between(frame.low, frame.high).mean() >= 0.75


def test_what_cannot_be_is_refused(rng: torch.Generator) -> None:
    with pytest.raises(InputError, match=r"a part of the variance 1, not 1\.5"):
        redrawn_scores(2, 4, variance=1.0, generator_noise=1.5, rng=rng)
    with pytest.raises(InputError, match="between 2 and all 4 patients are members, not 1"):
        _subgroup_means(_Scores(torch.zeros(2, 4), torch.zeros(2, 4)), 1)
    with pytest.raises(InputError, match="there is no regime 'novel', only correct model, noise"):
        simulate([20], [0.5], {"novel": [0.0]})


@pytest.mark.parametrize("bias", [0.0, 0.02])
def test_an_unbiased_generator_never_breaks_even_and_is_drawn_so(bias: float) -> None:
    frame = biased_errors([20, 80], [0.25, 0.5], bias, variance=0.15, runs=100)
    fig = Figure()
    ax = fig.subplots()

    crossing = {w: break_even_size(0.15, w, bias).item() for w in (0.25, 0.5)}
    errors(ax, frame, crossing, bias=bias, variance=0.15)
    fig.canvas.draw()

    drawn = [np.asarray(line.get_xydata(), dtype=float) for line in ax.lines]
    assert all(np.isfinite(points).all() and (points[:, 1] > 0).all() for points in drawn)
    rings = [line for line in ax.lines if line.get_markerfacecolor() == "none"]
    assert len(rings) == (2 if bias else 0)
    assert (crossing[0.25] == np.inf) is (bias == 0)
