r"""The worlds in which the axioms are tried, drawn for one batch of patients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from cfcore.checks import InputError
from cfcore.generator import Effect, Generator, Noise, Parents, act

AXIOMS = (
    "composition",
    "effectiveness",
    "reversibility",
    "commutativity",
    "minimality",
    "amplification",
    "leak",
    "faithfulness",
)
"""What is measured. Effectiveness, minimality and amplification read the same images."""

Interventions = Mapping[str, Mapping[str, Tensor]]
"""What each named intervention sets: a value for each patient, shape (N,), by variable."""


class Key(NamedTuple):
    """Which world: of which kind, under which intervention, by which effect."""

    kind: str
    intervention: str = ""
    effect: str = ""


class World(NamedTuple):
    """Images, shape (B, 1, H, W), and their parents."""

    x: Tensor
    pa: Parents


OBSERVED = Key("observed")


@dataclass(frozen=True)
class Batch:
    """Some patients.

    Args:
        x: Their images, shape (B, 1, H, W).
        pa: Their parents, each of shape (B,).
        index: Their rows in the cohort, shape (B,).
        interventions: What the interventions set, each of shape (B,).
    """

    x: Tensor
    pa: Parents
    index: Tensor
    interventions: Interventions


@dataclass(frozen=True)
class Plan:
    """What to try.

    Args:
        axioms: Some of ``AXIOMS``.
        effects: The effects of the interventions.
        repeats: After how many null interventions to look.
    """

    axioms: Sequence[str] = AXIOMS
    effects: Sequence[Effect] = ("direct", "total")
    repeats: Sequence[int] = (1, 3)

    def __post_init__(self) -> None:
        unknown = [axiom for axiom in self.axioms if axiom not in AXIOMS]
        if unknown:
            raise InputError(f"unknown axioms {unknown}; there are {list(AXIOMS)}")


def draw(
    generator: Generator, truth: Generator | None, batch: Batch, plan: Plan, noise: Noise
) -> dict[Key, World]:
    """Draws all worlds that the plan needs.

    Args:
        generator: The generator on trial.
        truth: The generator of true counterfactuals, if they are known.
        batch: The patients.
        plan: What to try.
        noise: Their noise, as the generator abducts it.

    Returns:
        The worlds by key, the observed one first.
    """
    worlds = {OBSERVED: World(batch.x, batch.pa)}
    if "composition" in plan.axioms:
        worlds |= null_worlds(generator, batch, plan.repeats)
    if set(plan.axioms) - {"composition", "leak"}:
        cf = counterfactuals(generator, batch, plan.effects, noise, "counterfactual")
        worlds |= cf
        if "reversibility" in plan.axioms:
            worlds |= reversed_worlds(generator, batch, cf)
        if "commutativity" in plan.axioms:
            worlds |= ordered_worlds(generator, batch, noise)
    if "faithfulness" in plan.axioms and truth is not None:
        own = truth.abduct(batch.x, batch.pa, index=batch.index)
        worlds |= counterfactuals(truth, batch, plan.effects, own, "truth")
    return worlds


def null_worlds(generator: Generator, batch: Batch, repeats: Sequence[int]) -> dict[Key, World]:
    """Abducts and predicts with the same parents, again and again."""
    worlds, x = {}, batch.x
    for times in range(1, max(repeats) + 1):
        noise = generator.abduct(x, batch.pa, index=batch.index)
        x = generator.predict(noise, batch.pa)
        if times in repeats:
            worlds[Key("null", f"null x {times}", "direct")] = World(x, batch.pa)
    return worlds


def counterfactuals(
    generator: Generator, batch: Batch, effects: Sequence[Effect], noise: Noise, kind: str
) -> dict[Key, World]:
    """The counterfactuals under each intervention and effect."""
    worlds = {}
    for label, do in batch.interventions.items():
        for effect in effects:
            pa = act(generator, batch.pa, do, effect)
            worlds[Key(kind, label, effect)] = World(generator.predict(noise, pa), pa)
    return worlds


def reversed_worlds(
    generator: Generator, batch: Batch, cf: Mapping[Key, World]
) -> dict[Key, World]:
    """The counterfactuals of the counterfactuals, back to each patient's own values."""
    worlds = {}
    for key, there in cf.items():
        noise = generator.abduct(there.x, there.pa, index=batch.index)
        own = {name: batch.pa[name] for name in batch.interventions[key.intervention]}
        pa = act(generator, there.pa, own, key.effect)
        worlds[key._replace(kind="reversed")] = World(generator.predict(noise, pa), pa)
    return worlds


def ordered_worlds(generator: Generator, batch: Batch, noise: Noise) -> dict[Key, World]:
    """One intervention after the other, in both orders, by the direct effect.

    By the total effect, an intervention undoes an earlier one on its descendants: the order then
    matters by right.
    """
    worlds = {}
    for one, first in batch.interventions.items():
        there = act(generator, batch.pa, first, "direct")
        then = generator.abduct(generator.predict(noise, there), there, index=batch.index)
        for other, second in batch.interventions.items():
            if set(first).isdisjoint(second):
                pa = act(generator, there, second, "direct")
                key = Key("ordered", f"{one}, {other}", "direct")
                worlds[key] = World(generator.predict(then, pa), pa)
    return worlds


def comparisons(worlds: Mapping[Key, World], plan: Plan) -> dict[tuple[str, str, str], list[Key]]:
    """Which two worlds each axiom compares: (axiom, intervention, effect) to two keys."""
    rules = {
        "null": ("composition", "observed"),
        "reversed": ("reversibility", "observed"),
        "counterfactual": ("minimality", "observed"),
        "truth": ("faithfulness", "counterfactual"),
    }
    pairs = {}
    for key in worlds:
        if key.kind in rules:
            axiom, kind = rules[key.kind]
            other = OBSERVED if kind == "observed" else key._replace(kind=kind)
            pairs[axiom, key.intervention, key.effect] = [key, other]
        elif key.kind == "ordered":
            one, other = key.intervention.split(", ")
            twin = key._replace(intervention=f"{other}, {one}")
            if ("commutativity", twin.intervention, key.effect) not in pairs:
                pairs["commutativity", key.intervention, key.effect] = [key, twin]
    return {label: pair for label, pair in pairs.items() if label[0] in plan.axioms}
