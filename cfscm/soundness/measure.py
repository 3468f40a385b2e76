r"""The table of soundness: one generator, beside doing nothing and beside the truth."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pandas as pd
import torch
from torch import Tensor

from cfcore.checks import InputError
from cfcore.generator import Effect, Generator, Parents
from cfcore.graph import CausalGraph, Variable
from cfcore.patients import Patients
from cfcore.predictor import Predictor
from cfscm.networks import ImageNetwork
from cfscm.soundness.baselines import Derived, Identity, without_residual
from cfscm.soundness.distances import agreement, image_distances, shift, signal_to_noise
from cfscm.soundness.leak import leak, noise_features
from cfscm.soundness.worlds import AXIOMS, Batch, Drawn, Interventions, Plan, World, draw

_LOOKED_UP = ("reversibility", "commutativity", "leak")
"""Axioms for which fresh noise is no floor: an oracle looks up the old noise."""
_OBSERVED: World = ("", "")
_COLUMNS = ["axiom", "intervention", "effect", "measure", "classifier"]
_Row = tuple[str, str, str, str, str]
"""What a row of the table is about, in the order of its first columns."""
_Read = dict[tuple[World, str], Tensor]
"""Numbers of each patient by world and classifier."""


def interventions_of(
    pa: Parents, names: Sequence[str] | None = None, *, graph: CausalGraph, seed: int = 0
) -> Interventions:
    """One intervention on each variable, which gives every patient another value.

    The other value of a binary variable; one of the other values of a categorical one, at
    random; the value of another patient for a continuous one.

    Without ``names``, that is each variable of the graph that the parents have. The values have
    shape (N,), by intervention and variable.

    Example:
        >>> graph = CausalGraph([Variable("sex", "binary")])
        >>> interventions_of({"sex": torch.tensor([0.0, 1.0])}, graph=graph)
        {'sex': {'sex': tensor([1., 0.])}}
    """
    rng, made = torch.Generator().manual_seed(seed), {}
    for name in [name for name in graph if name in pa] if names is None else names:
        if name not in pa:
            raise InputError(f"the patients have no {name!r}, only {', '.join(pa)}")
        own, variable = pa[name].cpu(), graph[name]
        if variable.kind == "continuous":
            other = own[torch.randperm(len(own), generator=rng).roll(1)]
        else:
            count = len(variable.values)
            other = (own + torch.randint(1, count, own.shape, generator=rng)) % count
        made[name] = {name: other.to(pa[name])}
    return made


def soundness(
    generator: Generator,
    data: Patients,
    *,
    graph: CausalGraph,
    classifiers: Mapping[str, ImageNetwork],
    audited: Mapping[str, Predictor],
    truth: Generator | None = None,
    floor: Generator | None = None,
    interventions: Interventions | Sequence[str] | None = None,
    axioms: Sequence[str] = AXIOMS,
    effects: Sequence[Effect] = ("direct", "total"),
    beside: Sequence[str] = ("identity", "oracle", "floor"),
    seed: int = 0,
    batch: int = 32,
    device: torch.device | str = "cpu",
) -> pd.DataFrame:
    r"""Tries the axioms of counterfactuals on a generator, over a whole set of patients.

    ================== =====================================================================
    axiom              what is measured
    ================== =====================================================================
    composition        the null intervention, once and several times, against the image
    effectiveness      what independent classifiers read of the variable intervened on
    reversibility      there and back again, against the image
    commutativity      two interventions in one order against the other (direct effect)
    minimality         the counterfactual against the image: no more than the oracle's
    amplification      what the classifiers read of variables not intervened on
    leak               what a probe reads of the parents off the noise, and what by chance
    faithfulness       the counterfactual against the true one
    ================== =====================================================================

    Pairs of images are compared by ``MAE``, ``PSNR`` and ``SSIM``, and in the score of the
    audited predictors by the mean ``score difference``, which against the truth is the paper
    companion's g-err, :math:`\frac{1}{N} \sum_i |g(\tilde{x}_i) - g(\tilde{x}_i^*)|`. Classifiers
    are judged by accuracy and AUC, or by error and R2; ``shift`` is how far their reading moved.
    Where the noise has a leaf ``residual``, composition and reversibility are repeated without it.

    Args:
        data: The patients; all parents of the graph that they have are known.
        classifiers: Independent predictors of the parents, by name; several may read the same.
        audited: The predictors whose scores matter, by name.
        truth: The generator of true counterfactuals, where they are known.
        floor: The truth with everything drawn anew that no generator can be asked to know.
        interventions: What to try, or the variables for :func:`interventions_of`; by default all.
        axioms: Which axioms to try.
        effects: Which effects the interventions have.
        beside: What the generator is compared with; fewer columns take less time.

    Returns:
        One row for each measure: ``axiom, intervention, effect, measure, classifier``, the
        ``value``, the same measure of ``identity`` (change nothing), of the ``oracle`` (the
        truth) and of the ``floor``; NaN where there is none.
    """
    pa = data.parents
    missing = [name for name in graph if name in pa and pa[name].isnan().any()]
    if missing or not len(data):
        raise InputError(f"soundness needs patients of whom all is known, not missing {missing}")
    if truth is None and set(axioms) <= {"faithfulness"}:
        raise InputError("there is nothing to measure: faithfulness needs the truth")
    if not isinstance(interventions, Mapping):
        interventions = interventions_of(pa, interventions, graph=graph, seed=seed)
    plan = Plan(axioms, effects, interventions)

    def batches(size: int = batch) -> Iterator[Batch]:
        return batches_of(data, interventions, size, device)

    def measure(one: Generator, plan: Plan) -> dict[_Row, float]:
        gaps, read, leaves = observe(one, truth, batches(), plan, classifiers, audited)
        variables = {name: network.variable for name, network in classifiers.items()}
        found = _distances(gaps) | _readings(read, variables, plan)
        for name, said in leak(leaves, pa, graph, seed=seed).items() if leaves else ():
            found |= {("leak", name, "", what, "probe"): value for what, value in said.items()}
        return found

    others = {"identity": Identity(generator if truth is None else truth)}
    others |= {"oracle": truth, "floor": floor}
    plans = {"floor": replace(plan, axioms=[axiom for axiom in axioms if axiom not in _LOOKED_UP])}
    found = {"value": measure(generator, plan)}
    for column, one in others.items():
        if column in beside and one is not None:
            found[column] = measure(one, plans.get(column, plan))
    columns = {name: pd.Series(values, dtype="float64") for name, values in found.items()}
    table = pd.DataFrame(columns, index=columns["value"].index)
    table = table.reindex(columns=["value", "identity", "oracle", "floor"])
    again = [axiom for axiom in ("composition", "reversibility") if axiom in axioms]
    if again and _has_residual(generator, next(batches(1))):
        bare = measure(Derived(generator, without_residual), replace(plan, axioms=again))
        twin = table.loc[list(bare)].assign(value=pd.Series(bare))
        table = pd.concat([table, twin.rename(lambda axiom: f"{axiom} without residual", level=0)])
    return table.rename_axis(_COLUMNS).reset_index()


def batches_of(
    data: Patients, interventions: Interventions, size: int, device: torch.device | str
) -> Iterator[Batch]:
    """The patients batch by batch on a device, with what each intervention sets for them."""
    for rows, x, pa in data.batches(size):
        own = {name: values.to(device) for name, values in pa.items()}
        do = {
            label: {name: values[rows].to(device) for name, values in given.items()}
            for label, given in interventions.items()
        }
        yield Batch(x.to(device), own, data.index[rows].to(device), do)


@torch.inference_mode()
def _has_residual(generator: Generator, one: Batch) -> bool:
    """Whether the noise of the generator has a leaf ``residual``."""
    noise = generator.abduct(one.x, one.pa, index=one.index)
    return isinstance(noise, Mapping) and "residual" in noise


@torch.inference_mode()
def observe(
    generator: Generator,
    truth: Generator | None,
    batches: Iterator[Batch],
    plan: Plan,
    classifiers: Mapping[str, ImageNetwork],
    audited: Mapping[str, Predictor],
) -> tuple[dict[_Row, Tensor], tuple[_Read, _Read], list[Tensor]]:
    """What is kept of all patients, a few numbers for each, never an image.

    These are distances between worlds by row of the table; the outputs of the classifiers and what
    they should have read; and the features of the noise by leaf.
    """
    parts = []
    for batch in batches:
        noise = generator.abduct(batch.x, batch.pa, index=batch.index)
        cf, pairs = draw(generator, truth, batch, plan, noise)
        leaves = noise_features(noise) if "leak" in plan.axioms else ()
        if not {"effectiveness", "amplification"} & set(plan.axioms):
            cf = {}
        seen = (_gaps(pairs, audited), *_read(batch, cf, classifiers))
        parts.append((*seen, dict(enumerate(leaves))))
    gaps, outputs, values, features = (
        {label: torch.cat([one[label].cpu() for one in kind]) for label in kind[0]}
        for kind in zip(*parts, strict=True)
    )
    return gaps, (outputs, values), list(features.values())


def _gaps(
    pairs: Mapping[tuple[str, str, str], tuple[Drawn, Drawn]], audited: Mapping[str, Predictor]
) -> dict[_Row, Tensor]:
    """Distances of images and of scores between the worlds that the axioms compare."""
    scores = {
        world: {name: g(world.x, world.pa).double().sigmoid() for name, g in audited.items()}
        for world in {world for pair in pairs.values() for world in pair}
    }
    gaps = {}
    for label, (one, other) in pairs.items():
        for measure, values in image_distances(one.x, other.x).items():
            gaps[*label, measure, ""] = values
        for name in audited:
            gap = (scores[one][name] - scores[other][name]).abs()
            gaps[*label, "score difference", name] = gap
    return gaps


def _read(
    batch: Batch, cf: Mapping[World, Drawn], classifiers: Mapping[str, ImageNetwork]
) -> tuple[_Read, _Read]:
    """The outputs of the classifiers, and the values that they should have read."""
    worlds = {_OBSERVED: Drawn(batch.x, batch.pa), **cf} if cf else {}
    outputs, values = {}, {}
    for key, world in worlds.items():
        for name, network in classifiers.items():
            outputs[key, name] = network(world.x, world.pa)
            values[key, name] = world.pa[network.variable.name]
    return outputs, values


def _distances(gaps: Mapping[_Row, Tensor]) -> dict[_Row, float]:
    found = {}
    for (*label, measure, name), values in gaps.items():
        squared = measure == "MSE"
        mean = signal_to_noise(values) if squared else values.mean()
        found[*label, "PSNR" if squared else measure, name] = mean.item()
    return found


def _readings(
    read: tuple[_Read, _Read], variables: Mapping[str, Variable], plan: Plan
) -> dict[_Row, float]:
    found, (outputs, values) = {}, read
    for (key, name), out in outputs.items():
        variable = variables[name]
        hit = key != _OBSERVED and variable.name in plan.interventions[key[0]]
        axiom = "effectiveness" if hit else "amplification"
        if axiom in plan.axioms and key != _OBSERVED:
            measures = agreement(variable, out, values[key, name])
            measures["shift"] = shift(variable, out, outputs[_OBSERVED, name]).mean().item()
            for measure, value in measures.items():
                found[axiom, *key, measure, name] = value
    return found
