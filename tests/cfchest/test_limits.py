"""The ideal abductor: it keeps what is seen, and draws the rest from its law given that."""

import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor

from cfchest.phantom import COEFFICIENTS, Cohort, Phantom
from cfchest.phantom.anatomy import fluid_depths
from cfchest.phantom.equations import image_noise, standard_age
from cfchest.phantom.limits import _UNSEEN, PosteriorMean, PosteriorSampler
from cfcore.generator import Generator, counterfactuals

PATIENTS = 6000
ROWS = torch.arange(PATIENTS)


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    return Phantom(32).sample(PATIENTS, hospital="C", seed=31)


def drawn(cohort: Cohort, seed: int) -> dict[str, Tensor]:
    sampler = PosteriorSampler(32, cohort.noise, seed)
    return sampler.abduct(torch.empty(len(cohort)), cohort.pa, index=torch.arange(len(cohort)))


@pytest.fixture(scope="module")
def draws(cohort: Cohort) -> list[dict[str, Tensor]]:
    return [drawn(cohort, seed) for seed in (0, 1)]


@pytest.mark.parametrize("kind", [PosteriorSampler, PosteriorMean])
def test_what_is_redrawn_does_not_show_in_the_image(cohort: Cohort, kind: type) -> None:
    some = cohort.take(slice(0, 300))
    limit, x, rows = kind(32, cohort.noise), some.images[:], ROWS[:300]

    assert isinstance(limit, Generator)
    again = counterfactuals(limit, x, some.pa, {}, index=rows)
    torch.testing.assert_close(again, x, rtol=0, atol=2e-6)
    # It shows where the parents bring it out, and nowhere else.
    worlds = [{"race": (some.pa["race"] + 1) % 3}, {"sex": 1 - some.pa["sex"]}]
    apart = [
        (counterfactuals(limit, x, some.pa, do, index=rows)
         - counterfactuals(cohort.oracle, x, some.pa, do, index=rows)).abs().amax(dim=(1, 2, 3))
        for do in worlds
    ]  # fmt: skip
    man = some.pa["sex"] == 0
    assert apart[0].max() < 2e-6 and apart[1][~man].max() < 2e-6
    assert (apart[1][man] > 0.01).double().mean() > 0.9


def test_a_draw_belongs_to_a_patient_and_a_seed(cohort: Cohort, draws: list) -> None:
    few = torch.tensor([5, 2])
    pa = {name: values[few] for name, values in cohort.pa.items()}
    sampler = PosteriorSampler(32, cohort.noise)

    again = sampler.abduct(torch.empty(2), pa, index=few)
    other = sampler.abduct(torch.empty(2), pa, index=few, rng=torch.Generator().manual_seed(3))

    assert all(torch.equal(values, draws[0][name][few]) for name, values in again.items())
    assert not torch.equal(other["scar_right"], again["scar_right"])
    known = [name for name in cohort.noise if name not in _UNSEEN]
    assert all(torch.equal(cohort.noise[name], draws[0][name]) for name in known)


def features(noise: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the posterior must get right, each of shape (N,)."""
    found = {name: noise[name].double() for name in _UNSEEN if name != "side"}
    both = (noise["side"] > 0.4) & (noise["side"] < 0.7)
    found |= {"right only": (noise["side"] <= 0.4).double(), "both": both.double()}
    return found | {f"{name}, squared": v.square() for name, v in found.items() if v.min() < 0}


def groups(cohort: Cohort) -> dict[str, Tensor]:
    """Patients who look alike in one way: by sex, label, age, and the depths that are seen."""
    noise = {name: cohort.noise[name] for name in _UNSEEN}
    seen = fluid_depths(noise, cohort.pa["effusion"], standard_age(cohort.pa["age"]))
    right, left, ill = seen["fluid_right"], seen["fluid_left"], cohort.pa["effusion"] > 0
    found = {"men": cohort.pa["sex"] == 0, "old": cohort.pa["age"] > 65, "well": ~ill}
    found |= {"well, dark": ~ill & (right == 0) & (left == 0), "right only": ill & (left == 0)}
    middle = right[ill].median()
    found |= {"deep": ill & (right > middle), "shallow": ill & (right <= middle)}
    return found | {"more on the left": ill & (left > right), "ratio": ill & (left > 0.5 * right)}


@pytest.mark.parametrize("name", ["men", "old", "well", "well, dark", "right only", "deep",
                                  "shallow", "more on the left", "ratio"])  # fmt: skip
def test_whoever_looks_alike_has_the_law_of_the_true_noise(
    cohort: Cohort, draws: list, name: str
) -> None:
    group = groups(cohort)[name]
    assert group.sum() > 300
    true, one, other = (
        {key: values[group] for key, values in features(noise).items()}
        for noise in (cohort.noise, *draws)
    )
    for key in true:
        # The posterior has the law of the truth; and a draw is as far from the truth as from
        # another draw, or it knows more than the image shows.
        for gap in (one[key] - true[key], one[key] * other[key] - one[key] * true[key]):
            error = gap.std() / len(gap) ** 0.5
            assert gap.mean().abs() <= 4.5 * error + 1e-6, (key, (gap.mean() / error).item())


def test_fluid_on_both_sides_without_scars_is_known(cohort: Cohort, draws: list) -> None:
    at = standard_age(cohort.pa["age"]) * COEFFICIENTS.scar_age
    closed = (cohort.noise["scar_right"] + at < 0) & (cohort.noise["scar_left"] + at < 0)
    both = (cohort.noise["side"] > 0.4) & (cohort.noise["side"] < 0.7)
    group = closed & both & (cohort.pa["effusion"] > 0)

    assert group.sum() > 100
    for noise in draws:
        gap = noise["severity"][group] - cohort.noise["severity"][group]
        assert gap.abs().max() < 1e-4
        assert (noise["scar_left"][group] + at[group] < 0).all()


@pytest.fixture(scope="module")
def prior() -> dict[str, Tensor]:
    return image_noise(torch.arange(1_000_000), hospital="C", seed=77)


@pytest.mark.parametrize("trace", [(0.12, 0.0), (0.12, 0.03), (0.15, 0.10), (0.05, 0.05)])
def test_the_posterior_of_fluid_is_that_of_simulated_patients_who_look_the_same(
    prior: dict[str, Tensor], trace: tuple[float, float]
) -> None:
    c, age, near = COEFFICIENTS, torch.tensor(70.0), 0.0025
    a = standard_age(age)
    seen = fluid_depths(prior, torch.ones(()), a)
    alike = torch.ones(len(prior["side"]), dtype=torch.bool)
    for side, depth in zip(("fluid_right", "fluid_left"), trace, strict=True):
        alike &= (seen[side] - depth).abs() <= (near if depth else 0)
    assert alike.sum() > 200

    n = 4000
    fluid = ((torch.tensor(trace[0]) - c.fluid_least) / c.fluid_span).sqrt()
    given = {"severity": fluid, "side": 0.2, "scar_right": -2.0}
    given["scar_left"] = trace[1] / c.scar - c.scar_age * a if trace[1] else -2.0
    noise = {name: prior[name][:n] for name in _UNSEEN}
    noise |= {name: torch.full((n,), float(value)) for name, value in given.items()}
    pa = {"sex": torch.zeros(n), "effusion": torch.ones(n), "age": age.expand(n)}
    sampler = PosteriorSampler(32, noise)
    posterior = sampler.abduct(torch.empty(n), pa, index=torch.arange(n))

    rng = torch.Generator().manual_seed(5)
    # Those alike are so within a tolerance, which smears what is a point of the posterior: both
    # are smeared, by more.
    for name, blur in {"severity": 0.03, "side": 0.0, "scar_right": 0.3, "scar_left": 0.3}.items():
        both = [
            values + blur * torch.randn(values.shape, generator=rng)
            for values in (prior[name][alike], posterior[name])
        ]
        assert ks_2samp(*both).statistic < 2.0 * (1 / alike.sum() + 1 / n) ** 0.5, name
