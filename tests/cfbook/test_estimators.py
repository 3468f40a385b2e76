"""Subgroup means: the formulas against simulated estimators, and Proposition 1 where it applies."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from cfbook.study.orders import correct_transitions
from cfbook.theory.estimators import (
    counterfactual_mean,
    counterfactual_variance,
    observational_mean,
    tolerable_generator_noise,
    variance_bound,
)

RUNS, N, SHARE = 4000, 60, 0.2
SIGMA2 = 0.04


def simulate(noise: float, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Scores in the subgroup's world, with generator noise on top; who is a member; observed ones.

    Returns:
        Counterfactual scores, membership and observed scores, each of shape (RUNS, N).
    """
    signal = 0.5 + math.sqrt(SIGMA2) * torch.randn(RUNS, N, generator=rng, dtype=torch.float64)
    member = torch.zeros(RUNS, N, dtype=torch.bool)
    member[:, : int(SHARE * N)] = True
    jitter = math.sqrt(noise) * torch.randn(RUNS, N, generator=rng, dtype=torch.float64)
    return signal + jitter, member, signal


def spread(estimates: Tensor) -> float:
    return estimates.var().item()


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_the_variances_are_those_of_the_simulated_estimators(
    noise: float, rng: torch.Generator
) -> None:
    cf, member, observed = simulate(noise, rng)

    obs = [observational_mean(g, m) for g, m in zip(observed, member, strict=True)]
    new = [counterfactual_mean(g) for g in cf]

    for estimates, truth in ((obs, SIGMA2 / (SHARE * N)), (new, (SIGMA2 + noise) / N)):
        assert spread(torch.stack([e.mean for e in estimates])) == pytest.approx(truth, rel=0.1)
        average = torch.stack([e.variance for e in estimates]).mean().item()
        assert average == pytest.approx(truth, rel=0.05)
        assert torch.stack([e.mean for e in estimates]).mean().item() == pytest.approx(
            0.5, abs=0.01
        )


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_signal_and_noise_are_told_apart(noise: float, rng: torch.Generator) -> None:
    signal = 0.5 + math.sqrt(SIGMA2) * torch.randn(5000, 1, generator=rng, dtype=torch.float64)
    jitter = math.sqrt(noise) * torch.randn(5000, 3, generator=rng, dtype=torch.float64)

    terms = counterfactual_variance(signal + jitter)

    assert terms.signal.item() * 5000 == pytest.approx(SIGMA2, rel=0.1)
    assert terms.noise.item() * 5000 == pytest.approx(noise, rel=0.1, abs=1e-9)
    with pytest.raises(ValueError, match="at least 2 draws"):
        counterfactual_variance(signal)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_tolerable_noise_keeps_the_promise_of_the_proposition(share: float) -> None:
    n, n_z = 1000, int(1000 * share)
    limit = tolerable_generator_noise(SIGMA2, n_z, n)

    assert limit.item() == pytest.approx(SIGMA2 * (1 - share))
    assert variance_bound(SIGMA2, limit, n) <= SIGMA2 / n_z
    sharp = SIGMA2 * (n / n_z - 1)
    assert limit <= sharp
    assert variance_bound(SIGMA2, sharp, n).item() == pytest.approx(SIGMA2 / n_z)


def test_transitions_are_counted_by_training() -> None:
    first = [[0.1, 0.2, 0.3, 0.4], [0.1, 0.1, 0.2, 0.3], [0.4, 0.3, 0.2, 0.1]]
    second = [[0.1, 0.2, 0.2, 0.4], [0.1, 0.0, 0.0, 0.0], [0.1, 0.2, 0.1, 0.2]]

    assert correct_transitions(np.array(first)) == 5
    assert correct_transitions(np.array(second)) == 4
    assert correct_transitions(np.array([first, second])).tolist() == [5, 4]
    assert np.isnan(correct_transitions(np.array([[0.1, np.nan, 0.3]])))
