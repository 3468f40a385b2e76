"""The image mechanism: one pass, three sources of latents, three readings of the noise."""

import json
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from cfcore.checks import InputError
from cfscm.image import ImageConfig, ImageMechanism
from cfscm.layers import Normal
from cfscm.semisupervised import Labelled

PRIORS = ["exogenous", "conditional", "regressed"]


def tiny(prior: str, **changes: object) -> ImageConfig:
    sizes = {"size": 32, "widths": (8, 8), "latents": (2, 3), "code": 4, "depth": 1}
    return ImageConfig(**{**sizes, "embedding": 8, "prior": prior, **changes})


def mechanism(prior: str, headroom: float = 0.04) -> ImageMechanism:
    """A mechanism whose every layer does something, as after training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        image = ImageMechanism(tiny(prior, headroom=headroom))
        for parameter in image.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return image


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Images, their parents and other parents."""
    rng = torch.Generator().manual_seed(1)
    x = torch.rand(5, 1, 32, 32, generator=rng)
    return x, torch.rand(5, 7, generator=rng), torch.rand(5, 7, generator=rng)


@pytest.mark.parametrize("prior", PRIORS)
def test_gradients_reach_every_parameter(prior: str, batch: tuple[Tensor, ...]) -> None:
    x, c, _ = batch
    image = mechanism(prior)

    terms = Labelled()(image, x, c, 0.5, torch.Generator().manual_seed(0))
    sum(terms.values()).backward()

    still = [n for n, p in image.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("headroom", [0.0, 0.04])
@pytest.mark.parametrize("seed", [None, 3])
def test_the_null_intervention_returns_the_image(
    prior: str, headroom: float, seed: int | None, batch: tuple[Tensor, ...]
) -> None:
    x, c, _ = batch
    image = mechanism(prior, headroom)
    rng = None if seed is None else torch.Generator().manual_seed(seed)

    torch.testing.assert_close(image.predict(image.abduct(x, c, rng), c), x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("prior", PRIORS)
def test_given_latents_decode_to_the_mean_of_the_posterior_pass(
    prior: str, batch: tuple[Tensor, ...]
) -> None:
    x, c, _ = batch
    image = mechanism(prior)
    noise = image.abduct(x, c)

    residual = image.scale.apply(x) - image.mean(noise, c)

    torch.testing.assert_close(residual, noise["residual"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("prior", PRIORS)
def test_without_the_residual_only_the_mean_is_drawn(prior: str, batch: tuple[Tensor, ...]) -> None:
    x, c, other = batch
    image = mechanism(prior)
    noise = image.abduct(x, c)
    residual = noise.pop("residual")

    mean = image.predict(noise, other)

    assert not torch.allclose(mean, image.predict({**noise, "residual": residual}, other))
    torch.testing.assert_close(mean, image.scale.invert(image.mean(noise, other)).clamp(0, 1))


def test_exogenous_latents_have_a_prior_without_parents(batch: tuple[Tensor, ...]) -> None:
    _, c, other = batch
    rows = {"exogenous": True, "conditional": False}
    for prior, alike in rows.items():
        level = mechanism(prior).decoder.levels[0]
        start = mechanism(prior).decoder.start
        embed = mechanism(prior).embed
        here, there = (level.prior_of(start(embed(v))[:, :, None, None]) for v in (c, other))
        assert torch.equal(here.mean, there.mean) == alike


def test_noise_of_a_conditional_prior_is_carried_by_the_prior(batch: tuple[Tensor, ...]) -> None:
    x, c, other = batch
    image = mechanism("conditional")
    noise = image.abduct(x, c)
    seen = {}

    def given(number: int, prior: Normal, h: Tensor) -> tuple[Tensor, Tensor]:
        seen[number] = prior.at(noise[f"z{number}"]), prior
        return seen[number][0], h.new_zeros(len(h))

    mean, _ = image._decode(other, given)

    torch.testing.assert_close(mean, image.mean(noise, other))
    z, prior = seen[0]
    torch.testing.assert_close((z - prior.mean) / prior.log_sd.exp(), noise["z0"])


def test_divergence_agrees_with_torch() -> None:
    rng = torch.Generator().manual_seed(0)
    a, b, c, d = torch.randn(4, 3, 2, 4, 4, generator=rng)
    q, p = (torch.distributions.Normal(m, s.exp()) for m, s in ((a, b), (c, d)))

    want = torch.distributions.kl_divergence(q, p).flatten(1).sum(1)

    torch.testing.assert_close(Normal(a, b).divergence(Normal(c, d)), want)


@pytest.mark.parametrize("headroom", [0.0, 0.04])
def test_the_log_likelihood_is_that_of_the_pixels(
    headroom: float, batch: tuple[Tensor, ...]
) -> None:
    x, c, _ = batch
    image = mechanism("exogenous", headroom)
    rng = torch.Generator()

    log_likelihood, kl = image.terms(x, c, rng.manual_seed(4))
    residual = image.abduct(x, c, rng.manual_seed(4))["residual"]

    pixels = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(image.scale.apply(pixels).sum(), pixels)
    density = torch.distributions.Normal(0, image.log_sd.exp()).log_prob(residual) + slope.log()
    torch.testing.assert_close(log_likelihood, density.flatten(1).sum(1))
    assert (kl > 0).all()


def test_a_posterior_sample_differs_from_its_mean(batch: tuple[Tensor, ...]) -> None:
    x, c, _ = batch
    image = mechanism("exogenous")

    drawn, mean = image.abduct(x, c, torch.Generator().manual_seed(0)), image.abduct(x, c)

    assert all(not torch.equal(drawn[name], mean[name]) for name in mean)


def test_the_config_survives_json() -> None:
    config = tiny("conditional")

    assert ImageConfig(**json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 20}, "multiple of 8, not 20"),
        ({"latents": (2,)}, "as many latents"),
        ({"prior": "none"}, "prior must be one of"),
        ({"code": 0}, "code must be positive, not 0"),
        ({"headroom": -1.0}, "headroom must not be negative"),
    ],
)
def test_impossible_configs_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny("exogenous", **changes) if "prior" not in changes else tiny(**changes)


def correlated(count: int = 300) -> tuple[Tensor, Tensor]:
    """Images whose brightness follows the first parent."""
    rng = torch.Generator().manual_seed(2)
    c = torch.rand(count, 7, generator=rng)
    x = 0.6 * torch.rand(count, 1, 32, 32, generator=rng) + 0.3 * c[:, :1, None, None]
    return x, c


def worst_correlation(image: ImageMechanism, x: Tensor, c: Tensor) -> float:
    with torch.inference_mode():
        z = image.abduct(x, c)["z0"].flatten(1)
    both = torch.corrcoef(torch.cat((z, c), dim=1).T)[: z.shape[1], z.shape[1] :]
    return both.abs().max().item()


def test_a_regressed_code_says_nothing_of_the_parents() -> None:
    x, c = correlated()
    image = mechanism("regressed")
    before = worst_correlation(image, x, c)
    image.centre(x, c)
    assert before > 0.3
    assert worst_correlation(image, x, c) < 0.01


def test_a_shrunk_mean_of_the_code_is_linear() -> None:
    x, c = correlated()
    image = mechanism("regressed")
    image.centre(x, c, shrink=1e9)
    constant_and_parents, products = image.drift[: 1 + c.shape[1]], image.drift[1 + c.shape[1] :]
    assert products.abs().max() < 1e-6 < constant_and_parents.abs().max()
    assert worst_correlation(image, x, c) < 0.01


def test_a_regressed_code_moves_with_the_parents_and_comes_back() -> None:
    x, c = correlated(40)
    image = mechanism("regressed")
    image.centre(x, c)
    noise, other = image.abduct(x, c), c.flip(0)
    there = image.predict(noise, other)
    assert (there - x).abs().mean() > 1e-3
    torch.testing.assert_close(image.predict(noise, c), x, atol=1e-5, rtol=0)


@pytest.mark.parametrize("prior", ["exogenous", "conditional"])
def test_other_priors_are_not_centred(prior: str) -> None:
    x, c = correlated(20)
    image = mechanism(prior)
    image.centre(x, c)
    assert not image.drift.any()
