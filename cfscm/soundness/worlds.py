r"""The worlds in which the axioms are tried, drawn for one batch of patients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from cfcore.checks import InputError
from cfcore.generator import Effect, Generator, Noise, Parents, act, counterfactuals

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


class Drawn(NamedTuple):
    """What a world shows: images, shape (B, 1, H, W), and their parents."""

    x: Tensor
    pa: Parents


OBSERVED = Key("observed")

_COMPARED = {
    "null": ("composition", "observed"),
    "reversed": ("reversibility", "observed"),
    "counterfactual": ("minimality", "observed"),
    "truth": ("faithfulness", "counterfactual"),
}
"""By kind of world: the axiom that it tries, and the kind of the world beside it."""


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

    axioms: Sequence[str]
    effects: Sequence[Effect]
    repeats: Sequence[int]

    def __post_init__(self) -> None:
        unknown = [axiom for axiom in self.axioms if axiom not in AXIOMS]
        if unknown:
            raise InputError(f"unknown axioms {unknown}; there are {list(AXIOMS)}")


def draw(
    generator: Generator, truth: Generator | None, batch: Batch, plan: Plan, noise: Noise
) -> dict[Key, Drawn]:
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
    worlds = {OBSERVED: Drawn(batch.x, batch.pa)}
    if "composition" in plan.axioms:
        worlds |= _null_worlds(generator, batch, plan.repeats)
    if set(plan.axioms) - {"composition", "leak"}:
        cf = _intervened(generator, batch, plan.effects, noise, "counterfactual")
        worlds |= cf
        if "reversibility" in plan.axioms:
            worlds |= _reversed_worlds(generator, batch, cf)
        if "commutativity" in plan.axioms:
            worlds |= _ordered_worlds(generator, batch, noise)
    if "faithfulness" in plan.axioms and truth is not None:
        own = truth.abduct(batch.x, batch.pa, index=batch.index)
        worlds |= _intervened(truth, batch, plan.effects, own, "truth")
    return worlds


def _null_worlds(generator: Generator, batch: Batch, repeats: Sequence[int]) -> dict[Key, Drawn]:
    """Abducts and predicts with the same parents, again and again."""
    worlds, x = {}, batch.x
    for times in range(1, max(repeats) + 1):
        x = counterfactuals(generator, x, batch.pa, {}, index=batch.index)
        if times in repeats:
            worlds[Key("null", f"null x {times}", "direct")] = Drawn(x, batch.pa)
    return worlds


def _intervened(
    generator: Generator, batch: Batch, effects: Sequence[Effect], noise: Noise, kind: str
) -> dict[Key, Drawn]:
    """The counterfactuals under each intervention and effect, all from the same noise."""
    return {
        Key(kind, label, effect): _drawn(generator, noise, batch.pa, do, effect)
        for label, do in batch.interventions.items()
        for effect in effects
    }


def _drawn(
    generator: Generator, noise: Noise, pa: Parents, do: Parents, effect: Effect = "direct"
) -> Drawn:
    acted = act(generator, pa, do, effect)
    return Drawn(generator.predict(noise, acted), acted)


def _reversed_worlds(
    generator: Generator, batch: Batch, cf: Mapping[Key, Drawn]
) -> dict[Key, Drawn]:
    """The counterfactuals of the counterfactuals, back to each patient's own values."""
    worlds = {}
    for key, there in cf.items():
        noise = generator.abduct(there.x, there.pa, index=batch.index)
        own = {name: batch.pa[name] for name in batch.interventions[key.intervention]}
        worlds[key._replace(kind="reversed")] = _drawn(generator, noise, there.pa, own, key.effect)
    return worlds


def _ordered_worlds(generator: Generator, batch: Batch, noise: Noise) -> dict[Key, Drawn]:
    """One intervention after the other, in both orders, by the direct effect.

    By the total effect, an intervention undoes an earlier one on its descendants: the order then
    matters by right.
    """
    worlds = {}
    for one, first in batch.interventions.items():
        there = _drawn(generator, noise, batch.pa, first)
        then = generator.abduct(there.x, there.pa, index=batch.index)
        for other, second in batch.interventions.items():
            if set(first).isdisjoint(second):
                key = Key("ordered", f"{one}, {other}", "direct")
                worlds[key] = _drawn(generator, then, there.pa, second)
    return worlds


def comparisons(worlds: Mapping[Key, Drawn], plan: Plan) -> dict[tuple[str, str, str], list[Key]]:
    """Which two worlds each axiom compares: (axiom, intervention, effect) to two keys."""
    pairs = {}
    for key in worlds:
        if key.kind in _COMPARED:
            axiom, kind = _COMPARED[key.kind]
            other = OBSERVED if kind == "observed" else key._replace(kind=kind)
            pairs[axiom, key.intervention, key.effect] = [key, other]
        elif key.kind == "ordered":
            one, other = key.intervention.split(", ")
            twin = key._replace(intervention=f"{other}, {one}")
            if ("commutativity", twin.intervention, key.effect) not in pairs:
                pairs["commutativity", key.intervention, key.effect] = [key, twin]
    return {label: pair for label, pair in pairs.items() if label[0] in plan.axioms}
