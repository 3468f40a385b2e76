"""Subgroup means on the phantom: what follows, what is held, and what that costs."""

import pytest
import torch
from torch import Tensor

from cfbook.theory.estimators import mean_interval
from cfbook.theory.images import (
    Intervention,
    bias_verdict,
    effusion_at,
    gain,
    held_label_bias,
    ratio_of_variances,
    world_scores,
)
from cfchest.data import from_phantom
from cfchest.phantom import HOSPITALS, Cohort, Phantom
from cfchest.phantom.equations import effusion_probability
from cfcore.checks import InputError
from cfcore.generator import Parents
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    return Phantom(16).sample(2000, hospital="C", seed=2027)


def lungs(x: Tensor, pa: Parents) -> Tensor:
    """Reads the lung size off the parents."""
    return 50 * (pa["lung_size"] - 0.3)


def brightness(x: Tensor, pa: Parents) -> Tensor:
    return x.mean(dim=(1, 2, 3))


@pytest.mark.parametrize("effect", ["direct", "total"])
def test_scores_are_those_of_the_marginaliser(cohort: Cohort, effect: str) -> None:
    data = from_phantom(cohort).take(torch.tensor([5, 3, 900, 44, 8]))
    predictors = {"lungs": lungs, "brightness": brightness}

    worlds = {"women": Intervention({"sex": 1.0}, effect)}
    found = world_scores(cohort.oracle, predictors, data, worlds, batch=2)

    for name, given in marginalise(
        cohort.oracle, predictors, data, Grid.product({"sex": [1]}), effect=effect
    ).items():
        torch.testing.assert_close(
            found[name]["observed"], given.logit_obs.double().sigmoid(), rtol=0, atol=1e-6
        )
        torch.testing.assert_close(
            found[name]["women"], given.logit_cf[:, 0].double().sigmoid(), rtol=0, atol=1e-6
        )


def test_the_label_follows_age_as_its_mechanism_says(cohort: Cohort) -> None:
    rows = torch.arange(len(cohort))

    for age in (25.0, 80.0):
        share = effusion_at(cohort, rows, age).mean().item()
        p = effusion_probability(torch.tensor(age), HOSPITALS["C"]).item()
        assert share == pytest.approx(p, abs=3 * (p * (1 - p) / len(rows)) ** 0.5)
    own = [effusion_at(cohort, rows[i : i + 1], cohort.pa["age"][i].item()) for i in range(200)]
    assert torch.equal(torch.cat(own), cohort.pa["effusion"][:200])


def test_values_may_differ_from_patient_to_patient(cohort: Cohort) -> None:
    data = from_phantom(cohort).take(slice(5))
    values = torch.arange(5.0) / 10 + 0.1

    found = world_scores(
        cohort.oracle, {"lungs": lungs}, data, {"set": Intervention({"lung_size": values})}, batch=2
    )

    torch.testing.assert_close(
        found["lungs"]["set"], (50 * (values - 0.3)).double().sigmoid(), rtol=1e-5, atol=1e-6
    )


def test_only_the_total_effect_is_unbiased_where_lungs_follow_sex(cohort: Cohort) -> None:
    data = from_phantom(cohort).take(slice(400))
    worlds = {effect: Intervention({"sex": 1.0}, effect) for effect in ("direct", "total")}
    found = world_scores(cohort.oracle, {"lungs": lungs}, data, worlds)["lungs"]
    women = data.parents["sex"] == 1

    among = found["observed"][women]
    error = (among.var() / len(among)).sqrt().item()
    assert found["total"].mean().item() == pytest.approx(among.mean().item(), abs=3 * error)
    bias = mean_interval(found["direct"] - found["total"])
    assert bias.low > 3 * error
    share = ratio_of_variances(found["observed"], women, found["total"], replicates=1000, seed=2027)
    assert share.low < women.double().mean().item() < share.high


def test_a_bias_is_seen_through_the_variance_between_patients(rng: torch.Generator) -> None:
    truth = torch.randn(400, generator=rng, dtype=torch.float64)
    made = truth + 0.02 + 0.01 * torch.randn(400, generator=rng, dtype=torch.float64)

    bias = mean_interval(made - truth)

    assert bias.low < 0.02 < bias.high
    assert bias.high - bias.low == pytest.approx(2 * 1.96 * 0.01 / 20, rel=0.1)


def test_the_observed_world_cannot_be_redefined(cohort: Cohort) -> None:
    with pytest.raises(InputError, match="'observed' is there already"):
        world_scores(cohort.oracle, {}, from_phantom(cohort), {"observed": Intervention({})})


@pytest.mark.parametrize("age", [25.0, 85.0])
def test_the_bias_of_a_held_label_is_the_predicted_one(cohort: Cohort, age: float) -> None:
    data, rows = from_phantom(cohort).take(slice(1000)), torch.arange(1000)
    worlds = {
        "held": Intervention({"age": age}),
        "follows": Intervention({"age": age, "effusion": effusion_at(cohort, rows, age)}),
    }
    reads = {"label": lambda x, pa: 4 * pa["effusion"] - 2 + brightness(x, pa)}
    found = world_scores(cohort.oracle, reads, data, worlds)["label"]
    p = effusion_probability(torch.tensor(age), HOSPITALS["C"]).item()
    label = data.parents["effusion"]

    bias = mean_interval(found["held"] - found["follows"])

    assert bias.low < held_label_bias(found["held"], label, p) < bias.high
    assert bias.low * bias.high > 0
    share = label.double().mean()
    weight = torch.where(label == 1, p / share, (1 - p) / (1 - share))
    mended = mean_interval(weight * found["held"] - found["follows"])
    assert mended.low < 0 < mended.high


def test_the_gain_of_a_true_generator_is_the_share(rng: torch.Generator) -> None:
    g = torch.rand(2000, generator=rng)
    member = torch.arange(2000) % 5 == 0

    found = gain(g, member, g, replicates=200, seed=0)

    assert found["share"] == pytest.approx(0.2)
    assert found["low"] < 0.2 < found["high"]
    assert found["CF s.e."] == pytest.approx(found["s.e."] * found["ratio"] ** 0.5)
    assert abs(found["z"]) < 3


@pytest.mark.parametrize("noise", [0.0, 2.0])
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_the_distance_of_two_means_that_share_members_is_in_its_own_standard_errors(
    noise: float, share: float, rng: torch.Generator
) -> None:
    n, runs = 400, 800
    member = torch.arange(n) < share * n
    true = torch.randn(runs, n, generator=rng)
    made = true + noise * torch.randn(runs, n, generator=rng)

    pairs = zip(true, made, strict=True)
    z = torch.tensor([gain(g, member, h, replicates=2, seed=0)["z"] for g, h in pairs])

    # The standard deviation of so many normal values is known to 2.5 %.
    assert abs(z.mean()) < 4 / runs**0.5
    assert z.std().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(("bias", "verdict"), [(0.0, "gains"), (0.026, "open"), (-0.1, "loses")])
def test_a_generator_is_judged_by_its_bias(bias: float, verdict: str, rng: torch.Generator) -> None:
    truth = torch.rand(500, generator=rng, dtype=torch.float64)
    made = truth + bias + 0.1 * torch.randn(500, generator=rng, dtype=torch.float64)
    member = torch.arange(500) < 100

    found = bias_verdict(made, truth, truth, member)

    assert found["limit"] == pytest.approx((1 / 12 * (1 / 100 - 1 / 500)) ** 0.5, rel=0.15)
    assert found["verdict"] == verdict
    assert (found["until"] > 500) == (abs(found["bias"]) < found["limit"])
    assert found["rms"] == pytest.approx((bias**2 + 0.01) ** 0.5, rel=0.1)
