r"""The table of soundness: one generator, beside doing nothing and beside the truth."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pandas as pd
import torch
from torch import Tensor

from cfchest.data import Dataset
from cfchest.graph import CHEST
from cfchest.phantom import Oracle
from cfcore.checks import InputError
from cfcore.generator import Effect, Generator, Parents
from cfcore.graph import CausalGraph
from cfcore.predictor import Predictor
from cfscm.networks import Reader
from cfscm.soundness.baselines import FreshDetector, Identity, WithoutResidual
from cfscm.soundness.distances import agreement, image_distances, shift, signal_to_noise
from cfscm.soundness.leak import leak, noise_features
from cfscm.soundness.worlds import (
    AXIOMS,
    OBSERVED,
    Batch,
    Interventions,
    Key,
    Plan,
    World,
    comparisons,
    draw,
)

LOOKED_UP = ("reversibility", "commutativity", "leak")
"""Axioms for which fresh detector noise is no floor: an oracle looks up the old noise."""

COLUMNS = ["axiom", "intervention", "effect", "measure", "classifier"]


def interventions_of(
    pa: Parents,
    names: Sequence[str] = ("sex", "race", "age", "effusion"),
    *,
    graph: CausalGraph = CHEST,
    seed: int = 0,
) -> Interventions:
    """One intervention on each variable, which gives every patient another value.

    The other value of a binary variable; one of the other values of a categorical one, at
    random; the value of another patient for a continuous one.

    Args:
        pa: The observed parents, each of shape (N,).
        names: The variables.
        graph: The graph.
        seed: The seed of the draws.

    Returns:
        The values by intervention and variable, each of shape (N,).

    Example:
        >>> interventions_of({"sex": torch.tensor([0.0, 1.0])}, ["sex"])
        {'sex': {'sex': tensor([1., 0.])}}
    """
    rng, made = torch.Generator().manual_seed(seed), {}
    for name in names:
        own, variable = pa[name].cpu(), graph[name]
        if variable.kind == "continuous":
            other = own[torch.randperm(len(own), generator=rng).roll(1)]
        else:
            count = len(variable.values)
            step = torch.randint(1, count, own.shape, generator=rng)
            other = (own + step) % count
        made[name] = {name: other.to(pa[name])}
    return made


def soundness(
    generator: Generator,
    data: Dataset,
    *,
    classifiers: Mapping[str, Reader],
    audited: Mapping[str, Predictor],
    truth: Generator | None = None,
    interventions: Interventions | None = None,
    axioms: Sequence[str] = AXIOMS,
    effects: Sequence[Effect] = ("direct", "total"),
    repeats: Sequence[int] = (1, 3),
    beside: Sequence[str] = ("identity", "oracle", "floor"),
    graph: CausalGraph = CHEST,
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
        generator: The generator on trial.
        data: The patients, with all parents.
        classifiers: Independent readers of the parents, by name; several may read the same.
        audited: The predictors whose scores matter, by name.
        truth: The generator of true counterfactuals, where they are known.
        interventions: What to try; :func:`interventions_of` by default.
        axioms: Which axioms to try.
        effects: Which effects the interventions have.
        repeats: After how many null interventions to look.
        beside: What the generator is compared with; fewer columns take less time.
        graph: The graph.
        seed: The seed of interventions and probes.
        batch: Patients at once.
        device: Where to compute; networks are there already.

    Returns:
        One row for each measure: ``axiom, intervention, effect, measure, classifier``, the
        ``value``, the same measure of ``identity`` (change nothing), of the ``oracle`` and of
        the ``floor`` (the truth behind fresh detector noise); NaN where there is none.
    """
    pa = data.parents
    missing = [name for name, values in pa.items() if values.isnan().any()]
    if missing or not len(data):
        raise InputError(f"soundness needs patients of whom all is known, not missing {missing}")
    plan = Plan(axioms, effects, repeats)
    if truth is None and set(axioms) <= {"faithfulness"}:
        raise InputError("there is nothing to measure: faithfulness needs the truth")
    do = interventions_of(pa, graph=graph, seed=seed) if interventions is None else interventions
    trial = _Trial(data, do, classifiers, audited, truth, graph, seed, batch, torch.device(device))

    columns = {"value": generator, "identity": Identity(generator if truth is None else truth)}
    if truth is not None:
        columns["oracle"] = truth
    if isinstance(truth, Oracle):
        columns["floor"] = FreshDetector(truth)
    columns = {name: one for name, one in columns.items() if name in ("value", *beside)}
    plans = {"floor": replace(plan, axioms=[axiom for axiom in axioms if axiom not in LOOKED_UP])}
    found = {
        column: pd.Series(trial.measure(one, plans.get(column, plan)), dtype="float64")
        for column, one in columns.items()
    }
    table = pd.DataFrame(found, index=found["value"].index)
    table = table.reindex(columns=["value", "identity", "oracle", "floor"])
    again = [axiom for axiom in ("composition", "reversibility") if axiom in axioms]
    if again and trial.has_residual(generator):
        bare = trial.measure(WithoutResidual(generator), replace(plan, axioms=again))
        twin = table.loc[list(bare)].assign(value=pd.Series(bare))
        table = pd.concat([table, twin.rename(lambda axiom: f"{axiom} without residual", level=0)])
    return table.rename_axis(COLUMNS).reset_index()


class _Trial:
    """What is the same for all generators that are tried."""

    def __init__(
        self,
        data: Dataset,
        interventions: Interventions,
        classifiers: Mapping[str, Reader],
        audited: Mapping[str, Predictor],
        truth: Generator | None,
        graph: CausalGraph,
        seed: int,
        size: int,
        device: torch.device,
    ) -> None:
        self.data, self.interventions, self.truth = data, interventions, truth
        self.classifiers, self.audited, self.graph = classifiers, audited, graph
        self.seed, self.size, self.device = seed, size, device

    def batches(self, size: int | None = None) -> Iterator[Batch]:
        index = self.data.index
        for rows, x, pa in self.data.batches(size or self.size):
            yield Batch(
                x.to(self.device),
                {name: values.to(self.device) for name, values in pa.items()},
                index[rows].to(self.device),
                {
                    label: {name: values[rows].to(self.device) for name, values in do.items()}
                    for label, do in self.interventions.items()
                },
            )

    @torch.inference_mode()
    def has_residual(self, generator: Generator) -> bool:
        """Whether the noise of the generator has a leaf ``residual``."""
        one = next(self.batches(1))
        noise = generator.abduct(one.x, one.pa, index=one.index)
        return isinstance(noise, Mapping) and "residual" in noise

    @torch.inference_mode()
    def measure(self, generator: Generator, plan: Plan) -> dict[tuple[str, ...], float]:
        """All measures of one generator, from what is kept of all patients."""
        kept: dict[tuple, list[Tensor]] = defaultdict(list)
        for batch in self.batches():
            noise = generator.abduct(batch.x, batch.pa, index=batch.index)
            worlds = draw(generator, self.truth, batch, plan, noise)
            for label, values in self.observe(worlds, plan, noise).items():
                kept[label].append(values.cpu())
        whole = {label: torch.cat(parts) for label, parts in kept.items()}
        return self.pairs(whole) | self.readings(whole, plan) | self.leaks(whole)

    def observe(
        self, worlds: Mapping[Key, World], plan: Plan, noise: object
    ) -> dict[tuple, Tensor]:
        """What is kept of the worlds of a batch: a few numbers for each patient."""
        kept: dict[tuple, Tensor] = {}
        scores = {
            (key, name): predictor(world.x, world.pa).double().sigmoid()
            for key, world in worlds.items()
            for name, predictor in self.audited.items()
        }
        for label, (one, other) in comparisons(worlds, plan).items():
            for measure, values in image_distances(worlds[one].x, worlds[other].x).items():
                kept["pair", *label, measure, ""] = values
            for name in self.audited:
                gap = (scores[one, name] - scores[other, name]).abs()
                kept["pair", *label, "score difference", name] = gap
        if {"effectiveness", "amplification"} & set(plan.axioms):
            for key, world in worlds.items():
                if key.kind in ("observed", "counterfactual"):
                    for name, reader in self.classifiers.items():
                        kept["output", key, name] = reader(world.x, world.pa)
                        kept["value", key, name] = world.pa[reader.variable.name]
        if "leak" in plan.axioms:
            leaves = noise_features(noise)
            kept |= {("noise", number): leaf for number, leaf in enumerate(leaves)}
        return kept

    def pairs(self, whole: Mapping[tuple, Tensor]) -> dict[tuple[str, ...], float]:
        found = {}
        for (kind, *label), values in whole.items():
            if kind == "pair" and label[3] == "MSE":
                found[*label[:3], "PSNR", ""] = signal_to_noise(values).item()
            elif kind == "pair":
                found[tuple(label)] = values.mean().item()
        return found

    def readings(self, whole: Mapping[tuple, Tensor], plan: Plan) -> dict[tuple[str, ...], float]:
        found = {}
        for kind, *rest in whole:
            if kind == "output" and rest[0] != OBSERVED:
                key, name = rest
                variable = self.classifiers[name].variable
                hit = variable.name in self.interventions[key.intervention]
                axiom = "effectiveness" if hit else "amplification"
                out = whole["output", key, name]
                measures = agreement(variable, out, whole["value", key, name])
                measures["shift"] = shift(variable, out, whole["output", OBSERVED, name]).mean()
                for measure, value in measures.items():
                    if axiom in plan.axioms:
                        found[axiom, *key[1:], measure, name] = float(value)
        return found

    def leaks(self, whole: Mapping[tuple, Tensor]) -> dict[tuple[str, ...], float]:
        features = [values for (kind, *_), values in whole.items() if kind == "noise"]
        if not features:
            return {}
        found = leak(features, self.data.parents, self.graph, seed=self.seed)
        return {
            ("leak", name, "", measure, "probe"): value
            for name, measures in found.items()
            for measure, value in measures.items()
        }
