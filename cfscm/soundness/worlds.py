r"""The worlds in which the axioms are tried, drawn for one batch of patients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from torch import Tensor

from cfcore.checks import InputError
from cfcore.generator import Effect, Generator, Noise, Parents, act, counterfactuals

AXIOMS = (
    "composition", "effectiveness", "reversibility", "commutativity", "minimality",
    "amplification", "leak", "faithfulness",
)  # fmt: skip
"""What is measured. Effectiveness, minimality and amplification read the same images."""
_REPEATS = (1, 3)  # after how many null interventions to look
Interventions = Mapping[str, Mapping[str, Tensor]]
"""What each named intervention sets: a value for each patient, shape (N,), by variable."""
World = tuple[str, str]
"""An intervention by its name, and its effect."""
_Comparison = tuple[str, str, str]
"""An axiom, and the world in which it is tried."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """What a world shows: images, shape (B, 1, H, W), and their parents."""

    x: Tensor
    pa: Parents


@dataclass(frozen=True)
class Batch:
    """Some patients: images (B, 1, H, W), parents, rows in the cohort and values to set, (B,)."""

    x: Tensor
    pa: Parents
    index: Tensor
    interventions: Interventions


@dataclass(frozen=True)
class Plan:
    """What to try: some of ``AXIOMS``, under which effects, with values for all patients."""

    axioms: Sequence[str]
    effects: Sequence[Effect]
    interventions: Interventions

    def __post_init__(self) -> None:
        unknown = [axiom for axiom in self.axioms if axiom not in AXIOMS]
        if unknown:
            raise InputError(f"unknown axioms {unknown}; there are {list(AXIOMS)}")


def draw(
    generator: Generator, truth: Generator | None, batch: Batch, plan: Plan, noise: Noise
) -> tuple[dict[World, Drawn], dict[_Comparison, tuple[Drawn, Drawn]]]:
    """Draws all worlds that the plan needs.

    Args:
        truth: The generator of true counterfactuals, if they are known.
        plan: What to try.
        noise: Their noise, as the generator abducts it.

    Returns:
        The counterfactuals, and the pairs of worlds that the axioms compare.
    """
    observed, pairs, cf = Drawn(batch.x, batch.pa), {}, {}
    if "composition" in plan.axioms:
        x = batch.x
        for times in range(1, max(_REPEATS) + 1):
            x = counterfactuals(generator, x, batch.pa, {}, index=batch.index)
            if times in _REPEATS:
                pairs["composition", f"null x {times}", "direct"] = (Drawn(x, batch.pa), observed)
    if set(plan.axioms) - {"composition", "leak"}:
        cf = _intervened(generator, batch, plan.effects, noise)
    if "minimality" in plan.axioms:
        pairs |= {("minimality", *world): (there, observed) for world, there in cf.items()}
    if "reversibility" in plan.axioms:
        for world, there in cf.items():
            back = _reversed(generator, batch, world, there)
            pairs["reversibility", *world] = (back, observed)
    if "commutativity" in plan.axioms:
        ordered = _ordered(generator, batch, noise)
        for one, other in combinations(batch.interventions, 2):
            if (one, other) in ordered:
                both = (ordered[one, other], ordered[other, one])
                pairs["commutativity", f"{one}, {other}", "direct"] = both
    if "faithfulness" in plan.axioms and truth is not None:
        own = truth.abduct(batch.x, batch.pa, index=batch.index)
        true = _intervened(truth, batch, plan.effects, own)
        pairs |= {("faithfulness", *world): (true[world], cf[world]) for world in cf}
    return cf, pairs


def _intervened(
    generator: Generator, batch: Batch, effects: Sequence[Effect], noise: Noise
) -> dict[World, Drawn]:
    """The counterfactuals under each intervention and effect, all from the same noise."""
    return {
        (name, effect): _drawn(generator, noise, batch.pa, do, effect)
        for name, do in batch.interventions.items()
        for effect in effects
    }


def _drawn(
    generator: Generator, noise: Noise, pa: Parents, do: Parents, effect: Effect = "direct"
) -> Drawn:
    acted = act(generator, pa, do, effect)
    return Drawn(generator.predict(noise, acted), acted)


def _reversed(generator: Generator, batch: Batch, world: World, there: Drawn) -> Drawn:
    """The counterfactual of a counterfactual, back to each patient's own values."""
    intervention, effect = world
    noise = generator.abduct(there.x, there.pa, index=batch.index)
    own = {name: batch.pa[name] for name in batch.interventions[intervention]}
    return _drawn(generator, noise, there.pa, own, effect)


def _ordered(generator: Generator, batch: Batch, noise: Noise) -> dict[tuple[str, str], Drawn]:
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
                worlds[one, other] = _drawn(generator, then, there.pa, second)
    return worlds
