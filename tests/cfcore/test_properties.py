"""A table of metrics and properties: what must not matter, does not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cfcore.metrics.summary import Options, Scores, names, summarise

Table = tuple[Tensor, Tensor, Tensor, Tensor]
N, K = 60, 7
METRICS = names(Options(), labelled=True)


def table(logits: bool = False) -> Table:
    rng = torch.Generator().manual_seed(2)
    cf = 2 * torch.randn(N, K, generator=rng, dtype=torch.float64)
    cf = cf.round(decimals=1) + 0.05  # ties, but no score of exactly 0.5
    obs = (cf[:, 0] + torch.randn(N, generator=rng).round(decimals=1)).round(decimals=6)
    q = torch.tensor([0.3, 0.0, 0.1, 0.2, 0.2, 0.15, 0.05], dtype=torch.float64)
    y = (torch.rand(N, generator=rng) < 0.4).long()
    return (obs, cf, q, y) if logits else (obs.sigmoid(), cf.sigmoid(), q, y)


def shuffle_patients(obs: Tensor, cf: Tensor, q: Tensor, y: Tensor) -> Table:
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    return obs[order], cf[order], q, y[order]


def shuffle_interventions(obs: Tensor, cf: Tensor, q: Tensor, y: Tensor) -> Table:
    order = torch.randperm(K, generator=torch.Generator().manual_seed(0))
    return obs, cf[:, order], q[order], y


def refine(obs: Tensor, cf: Tensor, q: Tensor, y: Tensor) -> Table:
    return obs, torch.cat((cf, cf), dim=1), torch.cat((q * 0.3, q * 0.7)), y


def drop_impossible(obs: Tensor, cf: Tensor, q: Tensor, y: Tensor) -> Table:
    return obs, cf[:, q > 0], q[q > 0], y


def duplicate_patients(obs: Tensor, cf: Tensor, q: Tensor, y: Tensor) -> Table:
    return obs.repeat(3), cf.repeat(3, 1), q, y.repeat(3)


HARMLESS = [shuffle_patients, shuffle_interventions, refine, drop_impossible, duplicate_patients]


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("change", HARMLESS)
@pytest.mark.parametrize("metric", METRICS)
def test_what_must_not_matter_does_not(metric: str, change: Callable, logits: bool) -> None:
    given = table(logits)

    before = summarise(Scores(*given, logits))[metric]
    after = summarise(Scores(*change(*given), logits))[metric]

    places = 3 if change is duplicate_patients and metric == "abs_rank_change" else 1
    torch.testing.assert_close(after, before * places, rtol=1e-10, atol=1e-12)


def flip_labels(obs: Tensor, cf: Tensor, q: Tensor, y: Tensor) -> Table:
    return 1 - obs, 1 - cf, q, 1 - y


@pytest.mark.parametrize("metric", METRICS)
def test_disease_and_health_are_treated_alike(metric: str) -> None:
    given = table()

    before = summarise(Scores(*given))[metric]
    after = summarise(Scores(*flip_labels(*given)))[metric]

    torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-12)


def constant(obs: Tensor, cf: Tensor, q: Tensor, y: Tensor) -> Table:
    return torch.full_like(obs, 0.4), torch.full_like(cf, 0.4), q, y


def deaf(obs: Tensor, cf: Tensor, q: Tensor, y: Tensor) -> Table:
    return obs, obs[:, None].expand_as(cf), q, y


@pytest.mark.parametrize("ignore", [constant, deaf])
@pytest.mark.parametrize("metric", ["S_var", "S_flip", "D_obs", "D_abs", "abs_rank_change"])
def test_a_predictor_that_ignores_the_nuisance_is_stable(metric: str, ignore: Callable) -> None:
    value = summarise(Scores(*ignore(*table())))[metric]

    assert value.item() == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("pair", [("R_CM", "R_orig"), ("R_IE", "R_orig"), ("R_WC", "R_orig")])
def test_without_sensitivity_all_risks_are_one(pair: tuple[str, str]) -> None:
    report = summarise(Scores(*deaf(*table())))

    torch.testing.assert_close(report[pair[0]], report[pair[1]])


def test_the_properties_can_fail() -> None:
    obs, cf, q, y = table()

    before = summarise(Scores(obs, cf, q, y))
    after = summarise(Scores(obs, cf.flip(1), q, 1 - y))

    unchanged = [name for name in METRICS if torch.isclose(before[name], after[name])]
    assert unchanged == []
