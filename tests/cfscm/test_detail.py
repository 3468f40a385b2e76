"""The image mechanism in three parts: tone, autoencoder, and a flow of what that leaves."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cfcore.checks import InputError
from cfcore.graph import CausalGraph, Variable
from cfscm.detail import Denoising, DetailConfig, DetailedImage, _Band, _Flow
from cfscm.image import ImageConfig, ImageMechanism
from cfscm.learning import fit_detailed
from cfscm.learning import untrained as made_for
from cfscm.model import DeepSCM, load_model, save_model
from cfscm.muon import Muon
from cfscm.semisupervised import Labelled
from cfscm.tone import Tone
from cfscm.training import FittingConfig, Loop, SwiftConfig, fit

SMALL = DetailConfig(side=16, width=16, embedding=16, glance=8)


def untrained(size: int = 32, channels: int = 1, widths: tuple[int, ...] = (1, 2)) -> DetailedImage:
    """A mechanism whose every layer does something, as after training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"parents": sum(widths), "size": size, "channels": channels, "code": 4, "depth": 1}
        config = ImageConfig(widths=(8, 8), latents=(0, 0), embedding=8, prior="regressed", **sizes)
        names = dict(zip("ab", widths, strict=True))
        image = DetailedImage(ImageMechanism(config), SMALL, names)
        for parameter in image.parameters():
            parameter.data.add_(0.05 * torch.randn_like(parameter))
    return image


@pytest.mark.parametrize(("size", "channels"), [(32, 1), (64, 3), (48, 2)])
@pytest.mark.parametrize("seed", [None, 3])
def test_the_null_intervention_returns_the_image(
    size: int, channels: int, seed: int | None
) -> None:
    image, rng = untrained(size, channels), torch.Generator().manual_seed(1)
    x, c = torch.rand(4, channels, size, size, generator=rng), torch.rand(4, 3, generator=rng)

    with torch.inference_mode():
        draw = None if seed is None else torch.Generator().manual_seed(seed)
        noise = image.abduct(x, c, draw)
        again = image.predict(noise, c)
        moved = image.predict(noise, 1 - c)

    assert torch.allclose(again, x, atol=1e-4)
    assert (moved - x).abs().mean() > 1e-3


def test_draws_differ_and_are_held_over_worlds() -> None:
    image, rng = untrained(), torch.Generator().manual_seed(1)
    x, c = torch.rand(4, 1, 32, 32, generator=rng), torch.rand(4, 3, generator=rng)

    with torch.inference_mode():
        one, other = (image.abduct(x, c, torch.Generator().manual_seed(seed)) for seed in (0, 1))
        worlds = [image.predict(noise, 1 - c) for noise in (one, one, other)]

    assert torch.equal(worlds[0], worlds[1])
    assert not torch.allclose(worlds[0], worlds[2], atol=1e-4)


def test_the_flow_does_not_follow_a_parent_beyond_its_level() -> None:
    image, rng = untrained(), torch.Generator().manual_seed(1)
    x, c = torch.rand(4, 1, 32, 32, generator=rng), torch.rand(4, 3, generator=rng)
    first, second = c.clone(), c.clone()
    first[:, 0], second[:, 1:] = 1 - c[:, 0], 1 - c[:, 1:]

    with torch.inference_mode():
        free = [image.predict(image.abduct(x, c), there) for there in (first, second)]
        image.limit(a=0.0)
        noise = image.abduct(x, c)
        null, *held = (image.predict(noise, there) for there in (c, first, second))
        image.limit(a=1.0)
        partly = image.predict(noise, first)
        image.limit()
        wholly = image.predict(image.abduct(x, c), first)
        coder, scale = image.first.abduct(x, c), image.first.scale
        moved = image.first.mean(coder, first) - image.first.mean(coder, c)
        alone = scale.invert(scale.apply(x) + moved / 2).clamp(0, 1)

    assert torch.allclose(null, x, atol=1e-4)
    # As the autoencoder alone would have it, averaged with a mean image that does not move.
    assert torch.allclose(held[0], alone, atol=1e-4)
    assert not torch.allclose(held[0], free[0], atol=1e-3)
    assert torch.allclose(held[1], free[1], atol=1e-4)  # and all others are followed
    assert torch.allclose(wholly, free[0], atol=1e-4)
    assert not any(torch.allclose(partly, end, atol=1e-3) for end in (held[0], wholly))


def test_the_mean_image_of_limited_parents_is_known_in_closed_form() -> None:
    image, rng = untrained(), torch.Generator().manual_seed(1)
    c = torch.rand(300, 3, generator=rng)
    x = 0.2 + 0.4 * c[:, :1, None, None] + 0.1 * torch.rand(300, 1, 32, 32, generator=rng)
    nn.init.zeros_(image.first.average.weight)  # an autoencoder that hardly moves
    image.average(x, c)
    image.limit(a=0.0)
    there = c.clone()
    there[:, 0] = 1 - c[:, 0]

    with torch.inference_mode():
        noise = image.abduct(x, c)
        moved = (image.predict(noise, there) - x).mean(dim=(1, 2, 3))
        image.means.zero_()
        alone = (image.predict(noise, there) - x).mean(dim=(1, 2, 3))

    slope = torch.linalg.lstsq((1 - 2 * c[:, :1]), (moved - alone)[:, None]).solution.item()
    assert slope == pytest.approx(0.2, abs=0.02)  # half of the effect of 0.4


def test_levels_of_parents_that_are_none_are_refused() -> None:
    image = untrained()
    for level, what in (({"c": 1.0}, "no parent 'c', only a, b"), ({"a": -1.0}, "not -1.0")):
        with pytest.raises(InputError, match=what):
            image.limit(**level)


class _Known(nn.Module):
    """The denoiser of a normal residual whose mean and spread a parent decides."""

    @staticmethod
    def law(c: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * c[:, :, None, None] - 1, 0.5 + c[:, :, None, None]

    def forward(self, r: Tensor, sigma: Tensor, c: Tensor, context: Tensor) -> Tensor:
        (mean, spread), s = self.law(c), sigma[:, None, None, None]
        return (spread**2 * r + s**2 * mean) / (spread**2 + s**2)


def test_the_flow_transports_normal_laws_as_is_known_in_closed_form() -> None:
    rng = torch.Generator().manual_seed(0)
    r, c = torch.randn(64, 1, 16, 16, generator=rng), torch.zeros(64, 1)
    errors = []
    for steps in (3, 6, 24):
        flow = _Flow(replace(SMALL, steps=steps), 1, 16, 1)
        flow.denoiser = known = _Known()
        (mean, spread), (there, wide) = known.law(c), known.law(1 - c)
        own = mean + spread * r
        noise = flow.up(own, c, r)
        moved = flow.down(noise, lambda _: (1 - c, r)) - flow.down(noise, lambda _: (c, r))
        true = there + wide * r - own
        errors.append(((moved - true).square().mean() / true.square().mean()).sqrt().item())

    # What is left with many steps is that the flow ends at a finite level of noise.
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 0.1 and errors[1] < 0.15


def test_a_band_keeps_the_lower_frequencies_and_drops_the_others() -> None:
    band, x = _Band(32, 8), torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    low = band.up(band.down(x))

    assert torch.allclose(band.up(band.down(low)), low, atol=1e-5)
    assert torch.allclose((x - low).mean(dim=(2, 3)), torch.zeros(2, 3), atol=1e-5)
    assert ((x - low) * low).sum().abs() < 1e-2


@pytest.fixture
def display() -> tuple[Tensor, Tensor]:
    """Squares on a ground: one parent bends the display, another one moves the square."""
    rng = torch.Generator().manual_seed(0)
    c = torch.rand(600, 2, generator=rng).round()
    x = 0.2 + 0.6 * torch.rand(600, 1, 16, 16, generator=rng)
    x[:, :, 4:8, 4:8] += 0.2 * c[:, 1, None, None, None]
    return x.clamp(0, 1) ** (1 + 0.5 * c[:, 0, None, None, None]), c


def test_the_tone_is_that_of_parents_who_bend_the_display_alone(
    display: tuple[Tensor, Tensor],
) -> None:
    x, c = display
    tone = Tone([1, 1])
    tone.fit(x, c)

    assert tone.acts.tolist() == [1.0, 0.0]
    assert torch.allclose(tone.applied(tone.removed(x, c), c), x, atol=1e-5)
    assert torch.allclose(tone.hidden(c)[:, 0], c[:, 0].mean().expand(600))
    assert torch.equal(tone.hidden(c)[:, 1], c[:, 1])

    # In each pixel apart from the square, the parent no longer tells.
    plain, bent = tone.removed(x, c)[:, 0, 8:], c[:, 0] == 1
    before = (x[bent, 0, 8:].mean(dim=0) - x[~bent, 0, 8:].mean(dim=0)).abs().mean()
    assert (plain[bent].mean(dim=0) - plain[~bent].mean(dim=0)).abs().mean() < 0.3 * before


def test_orthogonal_steps_are_those_of_the_singular_vectors() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        conv = nn.Conv2d(16, 32, 3)
    pace = {"betas": (0.9, 0.99), "weight_decay": 0.0}
    optimiser, before = Muon(conv, lr=1.0, rate=1.0, **pace), conv.weight.detach().clone()
    gradient = torch.randn(conv.weight.shape, generator=torch.Generator().manual_seed(1))
    conv.weight.grad, conv.bias.grad = gradient.clone(), torch.ones(32)

    optimiser.step()
    step = (before - conv.weight.detach()).flatten(1)
    left, _, right = torch.linalg.svd(gradient.flatten(1), full_matrices=False)

    # The iteration brings singular values near 1, not onto it.
    values = torch.linalg.svdvals(step)
    assert values.min() > 0.6 and values.max() < 1.3
    assert torch.cosine_similarity(step.flatten(), (left @ right).flatten(), dim=0) > 0.97


def test_a_swift_training_goes_on_after_a_kill(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    x, c = torch.randn(64, 2, 16, 16, generator=rng), torch.rand(64, 1, generator=rng)
    config = SwiftConfig(steps=6, batch=8, warmup=2, report=2)

    def objective(flow: _Flow, x: Tensor, c: Tensor, done: float, rng: object) -> dict[str, Tensor]:
        r, context = x.chunk(2, dim=1)
        return {"loss": (flow.denoiser(r, torch.ones(len(r)), c, context) - r).square().mean()}

    def made() -> _Flow:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return _Flow(SMALL, 1, 16, 1)

    whole, halves = made(), made()
    how = {"objective": objective, "config": config, "seed": 0}
    assert len(list(fit(whole, x, c, **how))) == 3
    checkpoint = tmp_path / "one.safetensors"
    next(parts := fit(halves, x, c, checkpoint=checkpoint, **how))
    parts.close()
    again = made()
    list(fit(again, x, c, checkpoint=checkpoint, **how))

    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_half_precision_is_for_swift_trainings_on_a_processor() -> None:
    assert not Loop(nn.Linear(1, 1), FittingConfig(), "cpu").half


def edges(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images with one edge, lower and blurred in place by chance, higher in the old."""
    rng = torch.Generator().manual_seed(seed)
    old = torch.rand(count, 1, generator=rng).round()
    at = 8 + torch.randn(count, generator=rng).clamp(-2, 2) + 2.5 * old[:, 0]
    rows = torch.arange(16.0)[:, None]
    x = torch.sigmoid((rows - at[:, None, None]) / 0.7).expand(-1, 16, 16)[:, None]
    noise = 0.02 * torch.randn(x.shape, generator=rng)
    return (0.2 + 0.6 * x + noise).clamp(0, 1), old


def where(x: Tensor) -> Tensor:
    """The row of the edge, from how much lies below it."""
    return 16 - (x.mean(dim=(1, 2, 3)) - 0.2) / 0.6 * 16


def test_training_teaches_the_flow_to_move_what_the_autoencoder_leaves(tmp_path: Path) -> None:
    variables = [Variable("old", "binary"), Variable("image", "continuous", range=(0.0, 1.0))]
    graph = CausalGraph(variables, {"image": ["old"]})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"parents": 1, "size": 16, "widths": (8,), "latents": (0,), "code": 1, "depth": 1}
        first = ImageMechanism(ImageConfig(**sizes, embedding=8, headroom=0.03, prior="regressed"))
        flow = DetailConfig(side=16, width=16, embedding=16, glance=8)
        model = DeepSCM(DetailedImage(first, flow, {"old": 1}), graph=graph, target=None)
    x, c = edges(800, 0)
    # An autoencoder that has learned nothing: all is left to the flow.
    how = {"objective": Labelled(start=4.0), "config": FittingConfig(steps=1, batch=8, report=1)}
    how["detail"] = SwiftConfig(steps=250, batch=32, warmup=20, report=125, average=0.98)
    parts = [part for part, _ in fit_detailed(model.image, x, c, seed=0, **how)]
    assert parts == ["autoencoder", "flow", "flow"]

    file = tmp_path / "edge.safetensors"
    save_model(model, file, seed=0)
    found = load_model(file, graph=graph).state_dict()
    assert all(torch.equal(value, found[name]) for name, value in model.state_dict().items())
    assert file.stat().st_size < 2.2 * sum(value.numel() for value in found.values()) + 20_000
    x, old = edges(200, 1)
    with torch.inference_mode():
        noise = model.eval().abduct(x, {"old": old[:, 0]})
        again, other = (model.predict(noise, {"old": v}) for v in (old[:, 0], 1 - old[:, 0]))
    moved = (where(other) - where(x)) * (1 - 2 * old[:, 0])

    assert torch.allclose(again, x, atol=1e-4)
    assert 1.5 < moved.mean() < 3.5  # of 2.5 pixels
    # The order of patients is kept: whose edge was high for their age has a high one still.
    rest = [where(v) - 2.5 * a[:, 0] for v, a in ((x, old), (other, 1 - old))]
    assert torch.corrcoef(torch.stack(rest))[0, 1] > 0.7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"side": 12}, "side must be a multiple of 8"),
        ({"low": 20.0}, "from low to high"),
        ({"steps": 0}, "steps must be positive"),
    ],
)
def test_a_flow_that_cannot_be_is_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(SMALL, **change)


def test_a_flow_that_does_not_fit_the_autoencoder_is_refused() -> None:
    first = ImageMechanism(ImageConfig(parents=3, size=16, widths=(8,), latents=(0,), code=2))

    with pytest.raises(InputError, match="larger than images of 16"):
        DetailedImage(first, replace(SMALL, side=24), {"a": 1, "b": 2})
    with pytest.raises(InputError, match="take 2 entries, not 3"):
        DetailedImage(first, SMALL, {"a": 1, "b": 1})


@pytest.mark.parametrize(("channels", "size"), [(1, 24), (3, 64), (2, 224)])
def test_generators_are_made_for_images_of_any_usual_form(channels: int, size: int) -> None:
    variables = [Variable("site", "categorical", categories=("a", "b", "c"))]
    variables += [Variable("age", "continuous", range=(0.0, 9.0))]
    graph = CausalGraph([*variables, Variable("image", "continuous", range=(0.0, 1.0))],
                        {"image": ["site", "age"]})  # fmt: skip
    x = torch.rand(2, channels, size, size, generator=torch.Generator().manual_seed(0))
    pa = {"site": torch.tensor([0.0, 2.0]), "age": torch.tensor([3.0, 5.0])}

    model = made_for(graph, "image", x[:1], None, 0)
    with torch.inference_mode():
        drawn = model.predict(model.abduct(x, pa), pa)

    assert drawn.shape == x.shape
    assert torch.allclose(drawn, x, atol=1e-3)
    with pytest.raises(InputError, match="in 4 channels; a generator can be trained on square"):
        made_for(graph, "image", torch.rand(1, 4, 64, 64), None, 0)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with a compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself
def test_a_compiled_flow_learns_the_same() -> None:
    rng = torch.Generator().manual_seed(0)
    x, c = torch.rand(64, 2, 16, 16, generator=rng), torch.rand(64, 3, generator=rng)
    weights = []
    for compiled in (False, True):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            flow = _Flow(SMALL, 3, 16, 1)
        config = FittingConfig(steps=4, batch=16, warmup=0, report=2, shift=0, display=0.0)
        list(fit(flow, x, c, objective=Denoising(), config=config, seed=0, compiled=compiled))
        weights.append(flow.state_dict())

    assert list(weights[0]) == list(weights[1])
    for name, value in weights[0].items():
        assert torch.allclose(value, weights[1][name], atol=1e-3), name
