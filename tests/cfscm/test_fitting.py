"""The training loop of the image mechanism: repeatable, resumable, honest about failure."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cfcore.checks import InputError
from cfscm.image import ImageConfig, ImageMechanism
from cfscm.semisupervised import Labelled
from cfscm.training import FittingConfig, Loop, Progress, _rows, fit

CONFIG = FittingConfig(steps=12, batch=4, warmup=2, report=4)
OPTIONS = {"objective": Labelled(), "config": CONFIG, "seed": 0}


def mechanism() -> ImageMechanism:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"size": 32, "widths": (8, 8), "latents": (0, 2), "code": 4, "embedding": 8}
        return ImageMechanism(ImageConfig(**sizes))


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    c = torch.rand(18, 7, generator=rng)
    return (c[:, :1, None, None] * torch.rand(1, 32, 32, generator=rng)), c


def weights(image: ImageMechanism) -> Tensor:
    return torch.cat([value.flatten() for value in image.state_dict().values()])


def run(data: tuple[Tensor, Tensor], **options: object) -> tuple[Tensor, list[Progress]]:
    image = mechanism()
    seen = list(fit(image, *data, **{**OPTIONS, **options}))
    return weights(image), seen


def test_the_loss_falls(data: tuple[Tensor, Tensor]) -> None:
    config = FittingConfig(steps=60, batch=8, warmup=5, report=20)

    _, seen = run(data, config=config)

    assert [part.step for part in seen] == [20, 40, 60]
    losses = [sum(part.terms.values()) for part in seen]
    assert losses == sorted(losses, reverse=True)


def test_runs_are_identical_and_seeds_are_not(data: tuple[Tensor, Tensor]) -> None:
    one, again, other = (run(data, seed=seed)[0] for seed in (0, 0, 1))

    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("stop", [1, 2])
def test_a_killed_run_ends_where_it_would_have(
    data: tuple[Tensor, Tensor], stop: int, tmp_path: Path
) -> None:
    whole, seen = run(data)
    path = tmp_path / "state.safetensors"
    killed = fit(mechanism(), *data, **OPTIONS, checkpoint=path)
    for _ in range(stop):
        next(killed)
    del killed

    resumed, rest = run(data, checkpoint=path)

    assert torch.equal(resumed, whole)
    assert rest == seen[stop:]


def test_a_finished_run_is_only_loaded(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    whole, _ = run(data, checkpoint=path)

    again, rest = run(data, checkpoint=path)

    assert torch.equal(again, whole)
    assert rest == []


def test_a_checkpoint_of_another_run_is_refused(
    data: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "state.safetensors"
    run(data, checkpoint=path)

    with pytest.raises(InputError, match="is of another run"):
        run(data, checkpoint=path, seed=1)


def test_a_loss_that_is_not_finite_stops_and_is_named(data: tuple[Tensor, Tensor]) -> None:
    def failing(
        image: ImageMechanism, x: Tensor, c: Tensor, done: float, rng: torch.Generator
    ) -> Mapping[str, Tensor]:
        terms = Labelled()(image, x, c, done, rng)
        return terms | {"divergence": terms["divergence"] * (torch.nan if done >= 0.5 else 1)}

    with pytest.raises(FloatingPointError, match="'divergence' of the loss is nan at step 7 of 12"):
        run(data, objective=failing)


def test_an_outlying_gradient_is_skipped(data: tuple[Tensor, Tensor]) -> None:
    image = mechanism()
    loop = Loop(image, CONFIG, "cpu")
    loop.step, loop.typical_norm = 100, 1e-9
    before = weights(image).clone()

    loop.advance(lambda done: Labelled()(image, *data, done, torch.Generator()))

    assert loop.skipped == 1
    assert loop.step == 101
    assert torch.equal(weights(image), before)


def test_without_limits_a_gradient_that_is_not_finite_stops() -> None:
    network = torch.nn.Linear(1, 1)
    loop = Loop(network, FittingConfig.plain(5, 1e-2), "cpu")

    with pytest.raises(FloatingPointError, match="norm of the gradient is nan at step 1 of 5"):
        loop.advance(lambda _: {"root": (network.weight * 0).sqrt().sum()})


def test_the_average_of_the_weights_is_kept_also_when_stopped(data: tuple[Tensor, Tensor]) -> None:
    image = mechanism()
    loop = fit(image, *data, **OPTIONS)
    next(loop)
    raw = weights(image).clone()

    loop.close()

    assert not torch.equal(weights(image), raw)
    assert not image.training


def test_rows_visit_every_image_once_in_an_epoch() -> None:
    rows = [_rows(step, 6, 18, 0) for step in range(3)]

    assert sorted(torch.cat(rows).tolist()) == list(range(18))


@pytest.mark.parametrize("bad", ["count", "nan"])
def test_parents_that_do_not_fit_are_refused(data: tuple[Tensor, Tensor], bad: str) -> None:
    x, c = data
    c = c[:-1] if bad == "count" else c.index_fill(0, torch.tensor([2]), torch.nan)

    with pytest.raises(InputError, match="18 images need" if bad == "count" else "row 2"):
        next(fit(mechanism(), x, c, **OPTIONS))


def test_the_weight_of_the_divergence_falls_geometrically() -> None:
    schedule = Labelled(beta=1, start=16, until=0.5)

    assert [schedule.weight(done) for done in (0, 0.25, 0.5, 1)] == [16, 4, 1, 1]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(InputError, match="steps must be positive, not 0"):
        FittingConfig(steps=0)
    with pytest.raises(InputError, match="clip and skip must be positive, not 0 and 20"):
        FittingConfig(clip=0)
    with pytest.raises(InputError, match="average must lie"):
        FittingConfig(average=1.0)
    with pytest.raises(InputError, match="beta must be positive"):
        Labelled(beta=0)
