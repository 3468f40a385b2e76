"""Mechanisms are invertible, normalised, and fitted to what made the data."""

import pytest
import torch
from torch import Tensor, nn

from cfchest.graph import CHEST
from cfchest.phantom import HOSPITALS, Phantom
from cfchest.phantom.equations import effusion_probability
from cfcore.checks import InputError
from cfcore.graph import CausalGraph, Variable
from cfscm.encoding import encode, widths
from cfscm.mechanisms import (
    MechanismConfig,
    _GumbelMechanism,
    _SplineMechanism,
    build_mechanisms,
    fit_mechanisms,
)

PARENTS = CHEST.parents("image")
CONFIG = MechanismConfig(hidden=(16,), steps=80, batch=256, learning_rate=0.02)
TEST = Phantom(16).sample(500, hospital="C", seed=2)

OTHER = CausalGraph(
    [
        Variable("dose", "continuous", range=(-1.0, 1.0)),
        Variable("grade", "categorical", categories=("a", "b", "c", "d")),
        Variable("relapse", "binary"),
        Variable("volume", "continuous", range=(0.0, 100.0)),
    ],
    {"grade": ("dose",), "relapse": ("dose", "grade"), "volume": ("grade", "relapse")},
)


@pytest.fixture(scope="module")
def fitted() -> nn.ModuleDict:
    mechanisms = build_mechanisms(CHEST, PARENTS, CONFIG, seed=0)
    fit_mechanisms(mechanisms, Phantom(16).sample(3000, hospital="C", seed=1).pa, CONFIG, seed=0)
    return mechanisms.requires_grad_(False)


def draws(graph: CausalGraph, n: int, rng: torch.Generator) -> dict[str, Tensor]:
    pa = {}
    for name, variable in graph.items():
        u = torch.rand(n, generator=rng)
        if variable.kind == "continuous":
            low, high = variable.range
            pa[name] = low + (high - low) * u
        else:
            pa[name] = (u * len(variable.values)).floor()
    return pa


@pytest.mark.parametrize("name", PARENTS)
def test_values_come_back_from_their_noise(name: str, fitted: nn.ModuleDict) -> None:
    for rng in (None, torch.Generator().manual_seed(0)):
        u = fitted[name].abduct(TEST.pa[name], TEST.pa, rng)

        back = fitted[name].predict(u, TEST.pa)

        assert (back - TEST.pa[name]).abs().max() <= 1e-5


@pytest.mark.parametrize("name", list(OTHER))
def test_values_come_back_in_any_graph(name: str, rng: torch.Generator) -> None:
    pa = draws(OTHER, 200, rng)
    mechanism = build_mechanisms(OTHER, list(OTHER), MechanismConfig(hidden=(8,)), seed=1)[name]

    for source in (None, rng):
        back = mechanism.predict(mechanism.abduct(pa[name], pa, source), pa)
        torch.testing.assert_close(back, pa[name].double(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["age", "lung_size"])
def test_noise_comes_back_from_continuous_values(
    name: str, fitted: nn.ModuleDict, rng: torch.Generator
) -> None:
    u = 2.5 * torch.randn(500, generator=rng, dtype=torch.float64)

    back = fitted[name].abduct(fitted[name].predict(u, TEST.pa), TEST.pa)

    torch.testing.assert_close(back, u, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["age", "lung_size"])
def test_values_on_and_beyond_the_range_have_finite_noise(name: str, fitted: nn.ModuleDict) -> None:
    low, high = CHEST[name].range
    y = torch.tensor([low, high, low - 0.1 * (high - low), high + 0.1 * (high - low)])
    pa = {cause: TEST.pa[cause][:4] for cause in PARENTS}

    u = fitted[name].abduct(y, pa)

    assert u.isfinite().all()
    assert fitted[name].log_prob(y, pa).isfinite().all()
    torch.testing.assert_close(fitted[name].predict(u, pa).float(), y, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["age", "lung_size"])
def test_densities_agree_with_autograd(name: str, fitted: nn.ModuleDict) -> None:
    y = TEST.pa[name].double().requires_grad_()

    u = fitted[name].abduct(y, TEST.pa)
    (slope,) = torch.autograd.grad(u.sum(), y)

    by_hand = torch.distributions.Normal(0, 1).log_prob(u) + slope.log()
    torch.testing.assert_close(fitted[name].log_prob(y, TEST.pa), by_hand)


def test_densities_integrate_to_one(fitted: nn.ModuleDict) -> None:
    pa = {"sex": torch.ones(4001), "age": torch.full((4001,), 40.0)}
    y = torch.linspace(0.1, 0.5, 4001, dtype=torch.float64)

    density = fitted["lung_size"].log_prob(y, pa).exp()

    assert torch.trapezoid(density, y).item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", ["grade", "relapse"])
def test_probabilities_sum_to_one(name: str, rng: torch.Generator) -> None:
    pa = draws(OTHER, 50, rng)
    mechanism = build_mechanisms(OTHER, list(OTHER), CONFIG, seed=1)[name]

    values = [torch.full((50,), float(v)) for v in OTHER[name].values]
    total = sum(mechanism.log_prob(value, pa).exp() for value in values)

    torch.testing.assert_close(total, torch.ones(50, dtype=torch.float64))


def test_gumbel_noise_is_standard_when_values_are_drawn(rng: torch.Generator) -> None:
    n = 40_000
    pa = {name: value[:1].expand(n) for name, value in draws(OTHER, 1, rng).items()}
    mechanism = build_mechanisms(OTHER, ["grade"], CONFIG, seed=3)["grade"].requires_grad_(False)
    y = torch.multinomial(mechanism(pa).probs[0], n, replacement=True, generator=rng)

    u = mechanism.abduct(y, pa, rng)

    # Posterior draws at values of the prior are draws of the prior: P(u < t) = exp(-exp(-t)).
    for t in (-1.0, 0.0, 1.0, 3.0):
        expected = torch.tensor(-t).exp().neg().exp().item()
        torch.testing.assert_close(
            (u < t).double().mean(dim=0),
            torch.full((4,), expected, dtype=torch.float64),
            atol=0.012,
            rtol=0,
        )
    assert torch.corrcoef(u.T).triu(1).abs().max() < 0.02


def test_the_default_noise_is_the_mean_of_the_posterior(rng: torch.Generator) -> None:
    n = 40_000
    pa = {name: value[:1].expand(n) for name, value in draws(OTHER, 1, rng).items()}
    mechanism = build_mechanisms(OTHER, ["grade"], CONFIG, seed=3)["grade"].requires_grad_(False)

    for value in OTHER["grade"].values:
        y = torch.full((n,), float(value))
        sampled = mechanism.abduct(y, pa, rng).mean(dim=0)
        torch.testing.assert_close(mechanism.abduct(y, pa)[0], sampled, atol=0.04, rtol=0)


def test_certain_values_have_finite_noise() -> None:
    graph = CausalGraph([Variable("sex", "binary")])
    mechanism = _GumbelMechanism(graph, "sex", CONFIG)
    with torch.no_grad():
        mechanism.conditioner.offset.copy_(torch.tensor([0.0, 80.0]))

    u = mechanism.abduct(torch.tensor([0.0, 1.0]), {})

    assert u.isfinite().all()
    assert mechanism.predict(u, {}).tolist() == [0, 1]


def test_fitted_mechanisms_are_those_of_the_phantom(fitted: nn.ModuleDict) -> None:
    pa = TEST.pa
    truth = effusion_probability(pa["age"].double(), HOSPITALS["C"])
    acted = TEST.phantom.act(pa, {"sex": 1 - pa["sex"]}, effect="total")

    lung = fitted["lung_size"]
    moved = lung.predict(lung.abduct(pa["lung_size"], pa), acted)
    u = lung.abduct(pa["lung_size"], pa)

    assert fitted["sex"]({}).probs[1].item() == pytest.approx(HOSPITALS["C"].female, abs=0.03)
    assert (fitted["effusion"](pa).probs[:, 1] - truth).abs().mean() < 0.03
    assert (moved - acted["lung_size"]).abs().mean() < 0.1 * 0.027
    assert abs(u.mean()) < 0.15
    assert abs(u.std() - 1) < 0.1


def test_fitting_is_a_function_of_the_seed() -> None:
    pa, config = TEST.pa, MechanismConfig(steps=5, batch=64)

    def weights(seed: int) -> Tensor:
        torch.rand(1)
        mechanisms = build_mechanisms(CHEST, PARENTS, config, seed=seed)
        fit_mechanisms(mechanisms, pa, config, seed=seed)
        return nn.utils.parameters_to_vector(mechanisms.parameters())

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


def test_gradients_reach_every_parameter() -> None:
    mechanisms = build_mechanisms(CHEST, PARENTS, CONFIG, seed=0)

    sum(m.log_prob(TEST.pa[name], TEST.pa).mean() for name, m in mechanisms.items()).backward()

    assert [name for name, p in mechanisms.named_parameters() if not p.grad.abs().max() > 0] == []


def test_rows_with_missing_values_are_left_out() -> None:
    config = MechanismConfig(steps=3, batch=600)
    gaps = {name: value.clone() for name, value in TEST.pa.items()}
    gaps["age"][100:] = torch.nan
    whole = {name: value[:100] for name, value in TEST.pa.items()}

    losses = [
        fit_mechanisms(build_mechanisms(CHEST, PARENTS, config, seed=0), pa, config, seed=0)
        for pa in (gaps, whole)
    ]

    assert losses[0]["lung_size"] == losses[1]["lung_size"]
    assert losses[0]["sex"] != losses[1]["sex"]


def test_impossible_tables_are_refused() -> None:
    mechanisms = build_mechanisms(CHEST, PARENTS, CONFIG, seed=0)

    with pytest.raises(InputError, match="sex takes one of"):
        fit_mechanisms(mechanisms, TEST.pa | {"sex": torch.full((500,), 2.0)}, CONFIG, seed=0)
    with pytest.raises(InputError, match="in no row"):
        fit_mechanisms(mechanisms, TEST.pa | {"sex": torch.full((500,), torch.nan)}, CONFIG, seed=0)


def test_a_constant_variable_can_be_fitted() -> None:
    config = MechanismConfig(steps=5)
    mechanism = build_mechanisms(CHEST, ["age"], config, seed=0)

    assert (
        abs(fit_mechanisms(mechanism, {"age": torch.full((50,), 60.0)}, config, seed=0)["age"])
        < 100
    )


@pytest.mark.parametrize("name", PARENTS)
def test_mechanisms_run_on_the_meta_device(name: str) -> None:
    mechanism = build_mechanisms(CHEST, PARENTS, CONFIG, seed=0).to("meta")[name]
    pa = {parent: value.to("meta") for parent, value in TEST.pa.items()}

    assert mechanism.predict(mechanism.abduct(pa[name], pa), pa).shape == (500,)
    assert mechanism.log_prob(pa[name], pa).shape == (500,)


def test_encoding_follows_the_names_not_the_dictionary() -> None:
    pa = {name: TEST.pa[name] for name in reversed(PARENTS)}

    code = encode(CHEST, pa, PARENTS)

    assert code.shape == (500, sum(widths(CHEST, PARENTS).values()))
    assert torch.equal(code, encode(CHEST, TEST.pa, PARENTS))
    assert torch.equal(code[:, 1:4].argmax(dim=1), TEST.pa["race"].long())
    assert code[:, 4].min() >= 0
    assert code[:, 4].max() <= 1


def test_kinds_decide_the_mechanism() -> None:
    mechanisms = build_mechanisms(OTHER, list(OTHER), CONFIG, seed=0)

    kinds = [_SplineMechanism, _GumbelMechanism, _GumbelMechanism, _SplineMechanism]
    assert [type(m) for m in mechanisms.values()] == kinds
