"""The semi-supervised objective, against sums written out by hand, for every mask."""

import copy
import itertools
import math
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from cfchest.graph import CHEST
from cfcore.checks import InputError
from cfcore.graph import CausalGraph, Variable
from cfscm.completion import complete
from cfscm.image import ImageConfig, ImageMechanism
from cfscm.inference import InferenceConfig, ParentPredictors
from cfscm.mechanisms import MechanismConfig, build_mechanisms
from cfscm.model import DeepSCM
from cfscm.semisupervised import (
    Labelled,
    SemiSupervised,
    _Evidence,
    cause_only,
    classification,
    pack,
    partial,
    unlabelled,
    unpack,
)

GRAPH = CausalGraph(
    [
        Variable("habit", "binary"),
        Variable("cause", "categorical", categories=("low", "middle", "high")),
        Variable("effect", "binary"),
        Variable("image", "continuous", range=(0.0, 1.0)),
    ],
    {"effect": ("cause",), "image": ("habit", "cause", "effect")},
)
NAMES = ("habit", "cause", "effect")
VALUES = {name: GRAPH[name].values for name in NAMES}
EVERYTHING = [dict(zip(NAMES, v, strict=True)) for v in itertools.product(*VALUES.values())]
PICTURES = torch.rand(4, 1, 16, 16, generator=torch.Generator().manual_seed(5))
MASKS = list(itertools.product([False, True], repeat=3))


class TableImage(nn.Module):
    """An image that is one of four, each with a probability given the parents, and no code."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(2, 3, 2, 4))

    def log_p(self, picture: int, y: dict[str, int]) -> Tensor:
        return self.table[y["habit"], y["cause"], y["effect"]].log_softmax(-1)[picture]

    def shared_terms(
        self, x: Tensor, seen: Tensor, c: Tensor, rows: Tensor | None, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        pictures = (x[:, None] == PICTURES).flatten(2).all(dim=2).long().argmax(dim=1)
        codes = c[:, 0].long(), c[:, 1:4].argmax(dim=1), c[:, 4].long()
        return self.table[codes].log_softmax(-1)[range(len(c)), pictures[rows]], c.new_zeros(len(c))


class Posterior(ParentPredictors):
    """Predictors that know the truth: the posterior by Bayes' rule, written out."""

    joint: Tensor  # log p(x, y), shape (4, 2, 3, 2)

    def features(self, x: Tensor) -> Tensor:
        return (x[:, None] == PICTURES).flatten(2).all(dim=2).float()

    def predict(
        self, name: str, features: Tensor, pa: dict[str, Tensor]
    ) -> torch.distributions.Categorical:
        log = self.joint[features.argmax(dim=-1)]  # (..., 2, 3, 2)
        for other in reversed(self.later(name)):
            code = pa[other].long().reshape(*log.shape[: features.ndim - 1], *[1] * 3)
            log = log.take_along_dim(code, dim=features.ndim - 1 + NAMES.index(other))
        keep = features.ndim - 1 + NAMES.index(name)
        gone = [d for d in range(features.ndim - 1, log.ndim) if d != keep]
        return torch.distributions.Categorical(logits=log.logsumexp(dim=gone))


@pytest.fixture
def tiny() -> SimpleNamespace:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        mechanisms = build_mechanisms(GRAPH, NAMES, MechanismConfig(hidden=(4,)), seed=3)
        for parameter in mechanisms.parameters():
            nn.init.normal_(parameter)
        inference = ParentPredictors(GRAPH, NAMES, InferenceConfig(width=4))
        parts = {"mechanisms": mechanisms, "inference": inference.eval(), "image": TableImage()}
        model = SimpleNamespace(graph=GRAPH, names=NAMES, **parts)
        model.log_prob = lambda pa: DeepSCM.log_prob(model, pa)
        return model


def one(y: dict[str, int]) -> dict[str, Tensor]:
    return {name: torch.tensor([float(value)]) for name, value in y.items()}


def log_joint(model: SimpleNamespace, picture: int, y: dict[str, int]) -> float:
    """log p(x, y), a term at a time."""
    prior = sum(m.log_prob(one(y)[n], one(y)).item() for n, m in model.mechanisms.items())
    return prior + model.image.log_p(picture, y).item()


def log_q(model: SimpleNamespace, picture: int, y: dict[str, int], missing: set[str]) -> float:
    """log q(y_M | x, y_O), a term at a time."""
    features = model.inference.features(PICTURES[picture : picture + 1])
    terms = (model.inference.predict(n, features, one(y)).log_prob(one(y)[n]) for n in missing)
    return sum(term.item() for term in terms)


def brute_force_gradient(
    model: SimpleNamespace, x: Tensor, labels: list[dict[str, int]], missing: set[str]
) -> dict[str, Tensor]:
    """The gradient of the mean negative bound, from sums over all completions of each row."""
    total = 0.0
    for number, y in enumerate(labels):
        features, picture = model.inference.features(x[number : number + 1]), number % 4
        for world in EVERYTHING:
            if all(world[n] == y[n] for n in NAMES if n not in missing):
                pa = one(world)
                prior = sum(m.log_prob(pa[n], pa) for n, m in model.mechanisms.items())
                q = sum(model.inference.predict(n, features, pa).log_prob(pa[n]) for n in missing)
                q = q if missing else torch.zeros(1)
                joint = prior + model.image.log_p(picture, world)
                total = total - (q.exp() * (joint - q)).sum() / len(labels)
    return gradient(model, total)


def gradient(model: SimpleNamespace, loss: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter, 0 where the loss does not depend on it."""
    parts = {"image": model.image, "mechanisms": model.mechanisms, "inference": model.inference}
    named = {f"{n}.{m}": v for n, part in parts.items() for m, v in part.named_parameters()}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    pairs = zip(named.items(), found, strict=True)
    return {n: torch.zeros_like(v) if g is None else g for (n, v), g in pairs}


def batch(mask: tuple[bool, ...], size: int) -> tuple[Tensor, list[dict[str, int]], dict]:
    """Some rows, no two of which are equal, and their labels with some hidden."""
    labels = [EVERYTHING[number % len(EVERYTHING)] for number in range(size)]
    pa = {
        name: torch.tensor([torch.nan if hidden else float(y[name]) for y in labels])
        for name, hidden in zip(NAMES, mask, strict=True)
    }
    return PICTURES[torch.arange(size) % 4], labels, pa


@pytest.mark.parametrize("mask", MASKS)
def test_the_gradient_is_that_of_the_bound_by_brute_force(
    tiny: SimpleNamespace, mask: tuple[bool, ...]
) -> None:
    x, labels, pa = batch(mask, 12)
    missing = {name for name, hidden in zip(NAMES, mask, strict=True) if hidden}
    by_hand = brute_force_gradient(tiny, x, labels, missing)

    aim = SemiSupervised(trusting=True)
    loss = partial(aim.evidence(tiny, x, pa, 1.0, torch.Generator().manual_seed(0))).mean()

    for name, found in gradient(tiny, loss).items():
        assert torch.allclose(found, by_hand[name], atol=2e-5), name
    for name in missing:
        assert by_hand[f"inference.heads.{name}.2.weight"].abs().max() > 1e-3


@pytest.mark.parametrize("mask", MASKS[1:])
def test_rows_that_are_summed_over_speak_for_the_gradient_of_all(
    tiny: SimpleNamespace, mask: tuple[bool, ...]
) -> None:
    """In the mean over orders of the rows and over draws; the heads of q most of all."""
    x, _, pa = batch(mask, 8)
    rng = torch.Generator().manual_seed(0)

    def found(aim: SemiSupervised, order: Tensor) -> Tensor:
        own = {name: values[order] for name, values in pa.items()}
        loss = partial(aim.evidence(tiny, x[order], own, 1.0, rng)).mean()
        return torch.cat([g.flatten() for g in gradient(tiny, loss).values()])

    exact = found(SemiSupervised(trusting=True), torch.arange(8))
    few = SemiSupervised(trusting=True, exact=2)
    draws = torch.stack([found(few, torch.randperm(8, generator=rng)) for _ in range(400)])

    error = draws.std(dim=0) / len(draws) ** 0.5
    assert ((draws.mean(dim=0) - exact).abs() < 5 * error + 1e-5).all()
    assert error.max() > 1e-3


def brute_force(
    model: SimpleNamespace, picture: int, y: dict[str, int], missing: set[str]
) -> tuple[float, float]:
    """The bound and what it bounds, log p(x, y_O), by sums over all completions."""
    worlds = [w for w in EVERYTHING if all(w[n] == y[n] for n in NAMES if n not in missing)]
    joint = [log_joint(model, picture, world) for world in worlds]
    q = [log_q(model, picture, world, missing) for world in worlds]
    assert math.isclose(sum(map(math.exp, q)), 1, rel_tol=1e-5)
    bound = sum(math.exp(b) * (a - b) for a, b in zip(joint, q, strict=True))
    return bound, math.log(sum(map(math.exp, joint)))


def rows(mask: tuple[bool, ...]) -> Iterator[tuple[int, dict[str, int]]]:
    """Every image with every label; a mask that hides some makes equal rows, which is fine."""
    return itertools.product(range(len(PICTURES)), EVERYTHING)


def evidence(model: SimpleNamespace, mask: tuple[bool, ...], **options: object) -> _Evidence:
    pictures, labels = zip(*rows(mask), strict=True)
    pa = {
        name: torch.tensor([torch.nan if hidden else float(y[name]) for y in labels])
        for name, hidden in zip(NAMES, mask, strict=True)
    }
    aim = SemiSupervised(trusting=True, **options)
    return aim.evidence(model, PICTURES[list(pictures)], pa, 1.0, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mask", MASKS)
def test_the_objective_is_the_bound_by_brute_force(
    tiny: SimpleNamespace, mask: tuple[bool, ...]
) -> None:
    missing = {name for name, hidden in zip(NAMES, mask, strict=True) if hidden}
    by_hand = [brute_force(tiny, picture, y, missing) for picture, y in rows(mask)]
    bound, marginal = torch.tensor(by_hand).unbind(dim=1)

    ours = -partial(evidence(tiny, mask))

    assert torch.allclose(ours.float(), bound, atol=2e-5)
    assert (ours <= marginal + 1e-5).all()
    assert missing == set() or (ours < marginal - 1e-3).any()


@pytest.mark.parametrize("known_last", range(4))
def test_with_the_true_posterior_the_bound_is_the_marginal_likelihood(
    tiny: SimpleNamespace, known_last: int
) -> None:
    shape = [len(values) for values in VALUES.values()]
    table = [[log_joint(tiny, picture, y) for y in EVERYTHING] for picture in range(4)]
    tiny.inference = Posterior(GRAPH, NAMES, InferenceConfig(width=4))
    tiny.inference.joint = torch.tensor(table).reshape(4, *shape)
    mask = tuple(number < 3 - known_last for number in range(3))
    missing = {name for name, hidden in zip(NAMES, mask, strict=True) if hidden}

    ours = -partial(evidence(tiny, mask))

    marginal = [brute_force(tiny, picture, y, missing)[1] for picture, y in rows(mask)]
    assert torch.allclose(ours.float(), torch.tensor(marginal), atol=2e-5)


def labelled(e: _Evidence) -> Tensor:
    """The paper's S(x, y), all labels known."""
    return -e.image - e.rows.expect(e.of(e.log_p, missing=False))


def effect_only(e: _Evidence) -> Tensor:
    """The paper's E(x, y_E), every known label the effect of a missing one."""
    known = e.rows.expect(e.of(e.log_p, missing=False))
    return -e.trust * (e.image + known) + e.divergence


EQUATIONS = {
    labelled: [(False, False, False)],
    unlabelled: [(True, True, True)],
    cause_only: [(False, False, True), (True, False, True), (False, True, True)],
    effect_only: [(True, True, False)],
}


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("trusting", [True, False])
def test_each_equation_is_the_general_term_on_its_masks_and_refuses_others(
    tiny: SimpleNamespace, equation: object, trusting: bool
) -> None:
    for mask in EQUATIONS[equation]:
        e = evidence(tiny, mask)
        e = e if trusting else _Evidence(e.rows, e.image, e.log_p, e.rows.trust)
        assert torch.allclose(equation(e), partial(e), atol=1e-6)

    if equation in (unlabelled, cause_only):
        with pytest.raises(InputError, match="this equation is for rows with"):
            equation(evidence(tiny, (True, True, False)))


def test_rows_may_miss_different_labels(tiny: SimpleNamespace) -> None:
    alone = {mask: partial(evidence(tiny, mask)) for mask in MASKS}
    pictures, labels = zip(*rows(MASKS[0]), strict=True)
    masks = [MASKS[number % 8] for number in range(len(labels))]
    pa = {
        name: torch.tensor([torch.nan if m[i] else y[name] for m, y in zip(masks, labels)])  # noqa: B905
        for i, name in enumerate(NAMES)
    }
    aim = SemiSupervised(trusting=True)
    e = aim.evidence(tiny, PICTURES[list(pictures)], pa, 1.0, torch.Generator())

    expected = torch.stack([alone[mask][row] for row, mask in enumerate(masks)])
    assert torch.allclose(partial(e), expected, atol=1e-6)


def test_a_drawn_combination_has_the_mean_of_the_sum(tiny: SimpleNamespace) -> None:
    x, nan = PICTURES[:2].repeat_interleave(4000, dim=0), torch.full((8000,), torch.nan)
    pa = dict.fromkeys(NAMES, nan)
    rng = torch.Generator().manual_seed(1)

    drawn = SemiSupervised(exact=1).evidence(tiny, x, pa, 1.0, rng).image
    summed = SemiSupervised().evidence(tiny, x, pa, 1.0, rng).image

    means, error = drawn.view(2, -1).mean(dim=1), drawn.view(2, -1).std(dim=1) / 4000**0.5
    assert ((means - summed.view(2, -1).mean(dim=1)).abs() < 4 * error).all()
    assert (error > 0).all()


def test_trust_is_one_minus_the_whole_normalised_entropy(tiny: SimpleNamespace) -> None:
    e = evidence(tiny, (False, False, True))
    p = e.rows.weight.sort(dim=1, descending=True).values[:, :2]
    assert torch.allclose(p.sum(dim=1), torch.ones(len(p)))
    whole = -(p * p.log()).sum(dim=1) / math.log(2)
    assert torch.allclose(e.rows.trust, 1 - whole, atol=1e-5)
    assert evidence(tiny, (False, False, False)).rows.trust.eq(1).all()
    all_missing = evidence(tiny, (True, True, True)).rows.trust
    assert (all_missing <= e.rows.trust.amax()).all() and (all_missing > 0).all()

    for head in tiny.inference.heads.values():
        nn.init.zeros_(head[-1].weight)
        nn.init.zeros_(head[-1].bias)
    assert evidence(tiny, (True, True, True)).rows.trust.abs().max() < 1e-5


def test_the_classification_term_is_the_log_probability_of_known_labels(
    tiny: SimpleNamespace,
) -> None:
    whole = classification(evidence(tiny, (False, False, False)).rows)
    by_hand = [-log_q(tiny, picture, y, set(NAMES)) for picture, y in rows(MASKS[0])]
    assert torch.allclose(whole, torch.tensor(by_hand), atol=1e-5)
    assert classification(evidence(tiny, (True, True, True)).rows).eq(0).all()


@pytest.fixture(scope="module")
def chest() -> DeepSCM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"size": 32, "widths": (8, 8), "latents": (0, 2), "code": 4, "embedding": 8}
        image = ImageMechanism(ImageConfig(**sizes))
        model = DeepSCM(
            image,
            graph=CHEST,
            target="effusion",
            mechanisms=MechanismConfig(hidden=(8,)),
            inference=InferenceConfig(width=4, hidden=(8,)),
        )
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def chest_rows(count: int, hidden: tuple[bool, ...]) -> tuple[Tensor, dict[str, Tensor]]:
    rng = torch.Generator().manual_seed(3)
    pa = {
        "sex": torch.randint(2, (count,), generator=rng).float(),
        "race": torch.randint(3, (count,), generator=rng).float(),
        "age": 20 + 70 * torch.rand(count, generator=rng),
        "lung_size": 0.1 + 0.3 * torch.rand(count, generator=rng),
        "effusion": torch.randint(2, (count,), generator=rng).float(),
    }
    masked = zip(pa, pa.values(), hidden, strict=True)
    pa = {name: torch.full_like(v, torch.nan) if hide else v for name, v, hide in masked}
    return torch.rand(count, 1, 32, 32, generator=rng), pa


@pytest.mark.parametrize("hidden", list(itertools.product([False, True], repeat=5)))
@pytest.mark.parametrize("exact", [1, None])
def test_gradients_reach_every_parameter_under_every_mask(
    chest: DeepSCM, hidden: tuple[bool, ...], exact: int | None
) -> None:
    x, pa = chest_rows(3, hidden)
    aim = SemiSupervised(Labelled(), exact=exact)
    chest.zero_grad(set_to_none=True)

    sum(aim(chest, x, pack(pa, chest.names), 0.5, torch.Generator()).values()).backward()

    silent = [
        name
        for name, parameter in chest.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().sum() > 0
    ]
    assert silent == []


@pytest.mark.parametrize("hidden", [(True,) * 5, (True, False) * 2 + (True,), (False,) * 5])
def test_the_gradient_is_the_slope_of_the_value(chest: DeepSCM, hidden: tuple[bool, ...]) -> None:
    """In every network, with continuous labels missing as well: by small steps of the weights."""
    model = copy.deepcopy(chest).double()
    x, pa = chest_rows(3, hidden)
    x, pa = x.double(), {name: values.double() for name, values in pa.items()}
    aim = SemiSupervised(Labelled(), trusting=True)

    def loss() -> Tensor:
        return partial(aim.evidence(model, x, pa, 0.5, torch.Generator().manual_seed(2))).mean()

    slopes = torch.autograd.grad(loss(), list(model.parameters()), allow_unused=True)
    groups = {f"inference.heads.{name}" for name in model.names} | {"image", "mechanisms"}
    for group in groups | {"inference"}:
        rng, expected, before = torch.Generator().manual_seed(3), 0.0, {}
        for (name, parameter), slope in zip(model.named_parameters(), slopes, strict=True):
            if name.startswith(group) and slope is not None:
                step = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
                before[parameter] = parameter.data.clone(), step
                expected += (slope * step).sum().item()
        ends = []
        for sign in (1e-6, -1e-6):
            for parameter, (start, step) in before.items():
                parameter.data = start + sign * step
            ends.append(loss().item())
        for parameter, (start, _) in before.items():
            parameter.data = start
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(expected, rel=1e-3, abs=1e-3), group


def test_a_row_at_least_is_summed_over() -> None:
    with pytest.raises(InputError, match="one row or more"):
        SemiSupervised(exact=0)


def test_weights_of_a_row_sum_to_one_with_continuous_labels_missing(chest: DeepSCM) -> None:
    x, pa = chest_rows(6, (True, True, True, True, True))
    found = complete(chest.inference, chest.inference.features(x), pa, torch.Generator())

    assert found.weight.shape == (6, 12)
    assert torch.allclose(found.weight.sum(dim=1), torch.ones(6), atol=1e-5)
    assert len(found.pa["lung_size"][0].unique()) == 2  # one for each value of effusion


def test_the_encoder_sees_each_image_once(chest: DeepSCM) -> None:
    seen = []
    hook = chest.image.encoder.register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    decoded = chest.image.decoder.register_forward_hook(
        lambda _, args, __: seen.append(len(args[0]))
    )
    x, pa = chest_rows(3, (True, True, False, False, True))
    SemiSupervised(exact=2)(chest, x, pack(pa, chest.names), 0.0, torch.Generator())
    hook.remove()
    decoded.remove()

    assert seen == [3, 2 * 12 + 1]


def test_shared_terms_of_one_completion_are_the_terms(chest: DeepSCM) -> None:
    x, pa = chest_rows(4, (False,) * 5)
    c = chest.encode(pa)
    terms = chest.image.terms(x, c, None)
    shared = chest.image.shared_terms(x, c, c, torch.arange(4), None)

    assert all(torch.allclose(a, b) for a, b in zip(terms, shared, strict=True))


def test_labels_survive_packing() -> None:
    pa = {"sex": torch.tensor([1.0, torch.nan, 0.0]), "age": torch.tensor([torch.nan, 40.0, 0.0])}
    back = unpack(pack(pa, ["sex", "age"]), ["sex", "age"])

    assert all(torch.equal(back[n].nan_to_num(-1), pa[n].nan_to_num(-1)) for n in pa)


def test_imputation_keeps_what_is_known_and_reads_against_the_causal_order(chest: DeepSCM) -> None:
    x, pa = chest_rows(5, (False, True, True, False, True))
    filled = chest.impute(x, pa)

    assert all(torch.equal(filled[name], pa[name]) for name in ("sex", "lung_size"))
    assert all(values.isfinite().all() for values in filled.values())
    assert set(filled["race"].tolist()) <= {0.0, 1.0, 2.0}
    other = chest.impute(x, pa | {"sex": 1 - pa["sex"]})
    assert torch.equal(filled["age"], other["age"])  # sex comes first: age is read without it
    drawn = chest.impute(x, pa, torch.Generator().manual_seed(0))
    assert not torch.equal(drawn["age"], filled["age"])


def test_a_model_without_predictors_says_so() -> None:
    image = ImageMechanism(ImageConfig(size=32, widths=(8, 8), latents=(0, 0), code=4))
    bare = DeepSCM(image, graph=CHEST, target=None)

    assert not bare.imputes
    with pytest.raises(InputError, match="no predictors of missing parents"):
        bare.impute(torch.zeros(1, 1, 32, 32), {})
