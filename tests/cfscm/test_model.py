"""The deep structural causal model keeps both protocols of a generator."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cfchest.data import from_phantom
from cfchest.graph import CHEST
from cfchest.phantom import Phantom
from cfcore.checks import InputError
from cfcore.generator import Generator
from cfcore.graph import CausalGraph, Variable
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise
from cfscm.image import ImageConfig, ImageMechanism
from cfscm.mechanisms import MechanismConfig
from cfscm.model import DeepSCM, load_model, save_model
from cfscm.weights import read_manifest

CONFIG = MechanismConfig(hidden=(16,), steps=80, batch=256, learning_rate=0.02)
SETTINGS = {"graph": CHEST, "mechanisms": CONFIG}
COHORT = Phantom(16).sample(40, hospital="C", seed=2)


class FlatImage(nn.Module):
    """A brightness that is linear in the parents, and what is left over."""

    def __init__(self, inputs: int = 7) -> None:
        super().__init__()
        self.mean = nn.Conv2d(inputs, 1, 1)

    def draw(self, c: Tensor) -> Tensor:
        return 0.1 * self.mean(c[:, :, None, None]).expand(-1, -1, 16, 16)

    def abduct(self, x: Tensor, c: Tensor, rng: torch.Generator | None = None) -> dict[str, Tensor]:
        jitter = 0 if rng is None else 0.01 * torch.randn(x.shape, generator=rng)
        return {"residual": x - self.draw(c) + jitter}

    def predict(self, noise: Mapping[str, Tensor], c: Tensor) -> Tensor:
        return (self.draw(c) + noise["residual"]).clamp(0, 1)


@pytest.fixture(scope="module")
def model() -> DeepSCM:
    torch.manual_seed(0)
    model = DeepSCM(FlatImage(), **SETTINGS, target="effusion", seed=1)
    model.fit_parents(Phantom(16).sample(3000, hospital="C", seed=1).pa, seed=1)
    return model.eval().requires_grad_(False)


@pytest.fixture
def real(model: DeepSCM) -> DeepSCM:
    """The same parents, and the image mechanism that can be saved."""
    sizes = {"size": 16, "widths": (8,), "latents": (0,), "code": 4, "depth": 1, "embedding": 8}
    made = DeepSCM(ImageMechanism(ImageConfig(**sizes)), **SETTINGS, target="effusion")
    made.mechanisms.load_state_dict(model.mechanisms.state_dict())
    return made.eval().requires_grad_(False)


def test_the_protocol_is_kept(model: DeepSCM) -> None:
    assert isinstance(model, Generator)
    assert model.encode(COHORT.pa).shape == (40, 7)


def test_the_direct_effect_holds_all_other_parents(model: DeepSCM) -> None:
    acted = model.act(COHORT.pa, {"age": 80.0})

    assert set(acted["age"].tolist()) == {80.0}
    assert all(torch.equal(acted[n], COHORT.pa[n]) for n in COHORT.pa if n != "age")


def test_the_total_effect_moves_lungs_as_the_phantom_does(model: DeepSCM) -> None:
    do = {"sex": 1 - COHORT.pa["sex"]}

    acted = model.act(COHORT.pa, do, effect="total")
    truth = COHORT.phantom.act(COHORT.pa, do, effect="total")

    assert (acted["lung_size"] - truth["lung_size"]).abs().mean() < 0.1 * 0.027
    assert torch.equal(acted["effusion"], COHORT.pa["effusion"])


def test_nobody_moves_who_is_given_their_own_value(model: DeepSCM) -> None:
    acted = model.act(COHORT.pa, {"age": COHORT.pa["age"]}, effect="total")

    assert all(torch.equal(acted[name], COHORT.pa[name]) for name in COHORT.pa)


def test_the_target_follows_when_it_is_no_target() -> None:
    model = DeepSCM(FlatImage(), **SETTINGS, target=None)
    with torch.no_grad():
        steep = model.mechanisms["effusion"].conditioner.network = nn.Linear(1, 2)
        steep.weight.copy_(torch.tensor([[-20.0], [20.0]]))

    acted = model.act(COHORT.pa, {"age": 90.0}, effect="total")

    assert COHORT.pa["effusion"].min() == 0
    assert set(acted["effusion"].tolist()) == {1.0}


def test_descendants_of_descendants_follow() -> None:
    names = ("a", "b", "c")
    chain = CausalGraph(
        [Variable(name, "continuous", range=(0.0, 1.0)) for name in (*names, "image")],
        {"b": ("a",), "c": ("b",), "image": names},
    )
    model = DeepSCM(FlatImage(3), graph=chain, target=None).requires_grad_(False)
    pa = {name: torch.rand(5) for name in names}

    moved = model.act(pa, {"a": 0.9}, effect="total")
    held = model.act(pa, {"a": 0.9, "b": pa["b"]}, effect="total")
    back = model.act(moved, {"a": pa["a"]}, effect="total")

    assert (moved["c"] != pa["c"]).all()
    assert torch.equal(held["c"], pa["c"])
    torch.testing.assert_close(back, pa)


@pytest.mark.parametrize(
    ("do", "message"),
    [
        ({"image": 0.5}, "not possible"),
        ({"sex": 2}, "sex takes one of"),
        ({"age": 200.0}, "age lies in"),
        ({"age": torch.zeros(3)}, "needs shape"),
    ],
)
def test_impossible_actions_are_refused(do: dict, message: str, model: DeepSCM) -> None:
    with pytest.raises(ValueError, match=message):
        model.act(COHORT.pa, do)
    with pytest.raises(ValueError, match="effect is"):
        model.act(COHORT.pa, {}, effect="indirect")


def test_a_target_outside_the_graph_is_refused() -> None:
    with pytest.raises(InputError, match="'pneumonia' is not among"):
        DeepSCM(FlatImage(), graph=CHEST, target="pneumonia")


def test_abduction_is_the_mean_or_a_draw(model: DeepSCM, rng: torch.Generator) -> None:
    x = COHORT.images[:]

    mean, draw = model.abduct(x, COHORT.pa), model.abduct(x, COHORT.pa, rng=rng)

    torch.testing.assert_close(model.predict(mean, COHORT.pa), x)
    assert not torch.equal(mean["residual"], draw["residual"])


def test_it_runs_in_the_marginaliser(model: DeepSCM) -> None:
    grid = Grid.product({"sex": [0, 1], "age": [30, 80]})
    brightness = {"brightness": lambda x, pa: 9 * x.mean(dim=(1, 2, 3)) + 0 * pa["lung_size"]}

    for effect in ("direct", "total"):
        result = marginalise(model, brightness, from_phantom(COHORT), grid, effect=effect)
        table = result["brightness"]
        assert table.logit_cf.shape == (40, 4)
        torch.testing.assert_close(table.logit_null, table.logit_obs)
        assert table.logit_cf.std(dim=1).min() > 0


def test_the_layout_in_memory_does_not_matter(model: DeepSCM) -> None:
    x, pa = COHORT.images[:], model.act(COHORT.pa, {"sex": 1})
    last = x.contiguous(memory_format=torch.channels_last)

    one, other = (model.predict(model.abduct(image, COHORT.pa), pa) for image in (x, last))

    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("effect", ["direct", "total"])
def test_it_runs_on_the_meta_device(effect: str) -> None:
    model = DeepSCM(FlatImage(), **SETTINGS, target=None).to("meta")
    pa = {name: value.to("meta") for name, value in COHORT.pa.items()}

    noise = model.abduct(torch.empty(40, 1, 16, 16, device="meta"), pa)
    x = model.predict(noise, model.act(pa, {"age": 70.0}, effect=effect))

    assert x.is_meta
    assert x.shape == (40, 1, 16, 16)


def test_a_saved_model_acts_and_draws_alike(real: DeepSCM, tmp_path: Path) -> None:
    path, x = tmp_path / "model.safetensors", COHORT.images[:]
    save_model(real, path, seed=5, notes={"epochs": 1})

    again, manifest = load_model(path, graph=CHEST), read_manifest(path)

    acted = real.act(COHORT.pa, {"sex": 0}, effect="total")
    assert torch.equal(
        again.act(COHORT.pa, {"sex": 0}, effect="total")["lung_size"], acted["lung_size"]
    )
    assert torch.equal(again.abduct(x, acted)["residual"], real.abduct(x, acted)["residual"])
    assert again.image.config == real.image.config
    assert again.settings == real.settings
    assert not again.training
    assert (manifest["seed"], manifest["notes"]) == (5, {"epochs": 1})
    assert {"sha256", "commit", "versions", "config"} <= set(manifest)


def test_damaged_files_are_refused(real: DeepSCM, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(real, path, seed=5)
    weights, manifest = path.read_bytes(), path.with_suffix(".json").read_text()

    path.write_bytes(weights[:-1] + b"x")
    with pytest.raises(InputError, match="is not the file"):
        load_model(path, graph=CHEST)
    path.write_bytes(weights)
    for key, value in [("mechanisms", {"bins": 5}), ("mechanisms", {"knots": 5}), ("image", 7)]:
        wrong = json.loads(manifest)
        wrong["config"][key] = value
        path.with_suffix(".json").write_text(json.dumps(wrong))
        with pytest.raises(InputError, match="does not describe it"):
            load_model(path, graph=CHEST)
    path.with_suffix(".json").write_text(manifest[:50])
    with pytest.raises(InputError, match="is not JSON"):
        load_model(path, graph=CHEST)
    path.with_suffix(".json").unlink()
    with pytest.raises(InputError, match="is missing"):
        load_model(path, graph=CHEST)


def test_a_model_of_another_graph_is_refused(real: DeepSCM, tmp_path: Path) -> None:
    save_model(real, tmp_path / "model.safetensors", seed=5)
    other = CausalGraph(CHEST.values(), {"image": CHEST.parents("image")})

    with pytest.raises(InputError, match="was made for"):
        load_model(tmp_path / "model.safetensors", graph=other)
