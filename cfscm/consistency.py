r"""Counterfactual regularisation: what a counterfactual shows should be what it was asked to show.

A stage after training, and optional. An intervention on the graph gives an image its
counterfactual and the parents that it should have: the new value, its effects by their mechanisms,
and everything else as it was. The parent predictors read the counterfactual, and what they should
have read is made likelier.

It is kept light, and the label under audit is left out of it, for a reason that a table can show.
What it improves, agreement of classifiers, is not truth: a generator can learn to please a
classifier. And a counterfactual in which a classifier of disease must read the old disease hides
the very sensitivity that an audit looks for.
"""

import copy
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cfcore.checks import InputError
from cfcore.generator import Parents
from cfscm.inference import ParentPredictors
from cfscm.model import DeepSCM
from cfscm.semisupervised import SemiSupervised, unpack


@dataclass(frozen=True)
class ConsistencyConfig:
    """What counterfactuals are asked for, and how strongly.

    Args:
        weight: The weight of the disagreement in nats; the bound is in nats for each pixel.
        audited: Whether the target under audit is asked for as well; by default it is neither
            intervened on nor compared.
        every: A counterfactual is drawn for every n-th row of a batch.
    """

    weight: float = 0.01
    audited: bool = False
    every: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise InputError(f"weight must not be negative, not {self.weight}")
        if self.every < 1:
            raise InputError(f"every must be 1 or more, not {self.every}")


def intervention(model: DeepSCM, pa: Parents, name: str, rng: torch.Generator) -> dict[str, Tensor]:
    """Another value of one variable for each row: another code, or that of another row."""
    own, values = pa[name], model.graph[name].values
    if values is None:
        return {name: own[torch.randperm(len(own), generator=rng, device=own.device)]}
    step = torch.randint(1, len(values), own.shape, generator=rng, device=own.device)
    return {name: (own + step) % len(values)}


def disagreement(
    model: DeepSCM,
    readers: ParentPredictors,
    x: Tensor,
    pa: Parents,
    do: Parents,
    compared: tuple[str, ...],
) -> Tensor:
    r"""How unlikely the parents of a counterfactual are, as it is read.

    .. math:: D = -\sum_{i} \log q(\tilde{y}_i \mid \tilde{x}, \tilde{y}_{>i})

    The distance of the paper is left open; this one is the log-likelihood by which the predictors
    are trained. Variables that the intervention does not move should be read as they were, those
    that it moves as their mechanisms say; both are in :math:`\tilde{y}`. Gradients reach the image
    mechanism and, by the effects of an intervention, the mechanisms of continuous parents.

    Args:
        readers: The predictors that read the counterfactual.
        x: The images, shape (B, 1, H, W).
        pa: Their parents, complete, each of shape (B,).
        do: The values to set, each of shape (B,).
        compared: The variables to compare.

    Returns:
        The disagreement of each row in nats, shape (B,).
    """
    noise, acted = model.abduct(x, pa), model.act(pa, do, effect="total")
    terms = readers.log_prob(model.predict(noise, acted), acted)
    return -torch.stack([terms[name] for name in compared]).sum(dim=0)


@dataclass(frozen=True)
class Consistent:
    """The objective of the stage: that of the training, and the disagreement.

    The predictors that read counterfactuals are a frozen copy. If they learned meanwhile, they and
    the generator could agree on marks that nobody else sees.

    Args:
        readers: The frozen predictors, see :meth:`reading`.
        training: The objective of the training.
    """

    readers: ParentPredictors
    config: ConsistencyConfig = field(default_factory=ConsistencyConfig)
    training: SemiSupervised = field(default_factory=SemiSupervised)

    @classmethod
    def reading(
        cls, model: DeepSCM, config: ConsistencyConfig, training: SemiSupervised
    ) -> "Consistent":
        """The objective of the stage for a model, whose predictors are copied as they are."""
        readers = copy.deepcopy(model.inference).requires_grad_(False).eval()
        return cls(readers, config, training)

    def __call__(
        self, model: DeepSCM, x: Tensor, packed: Tensor, done: float, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """The terms of the loss; see :data:`.Objective`."""
        terms = self.training(model, x, packed, 1.0, rng)
        if not self.config.weight:
            return terms
        names = tuple(n for n in model.names if self.config.audited or n != model.target)
        some = slice(None, None, self.config.every)
        with torch.no_grad():
            pa = self.readers.impute(x[some], unpack(packed[some], model.names))
        roots = [n for n in names if n in model.graph.roots or n == model.target]
        pick = torch.randint(len(roots), (), generator=rng, device=x.device).item()
        do = intervention(model, pa, roots[pick], rng)
        gap = disagreement(model, self.readers, x[some], pa, do, names).mean()
        return terms | {"disagreement": self.config.weight * gap}
