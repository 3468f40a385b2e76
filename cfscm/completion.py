r"""Completions of a row with missing labels: every discrete one, and a draw of the others.

Expectations over missing discrete labels are sums over all their values, as the appendix asks,
:math:`\mathbb{E}_{q(y \mid x)} f(y) = \sum_y q(y \mid x) f(y)`. The K combinations of all discrete
variables are one axis of every tensor, for any mask: those that contradict a known label have
weight 0. Missing continuous labels are drawn from q, reparameterised, with the same noise in all
combinations, so that the weights of a row sum to 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cfcore.generator import Parents
from cfcore.graph import CausalGraph
from cfscm.inference import ParentPredictors
from cfscm.networks import normal_noise


def _combinations(graph: CausalGraph, names: Sequence[str]) -> dict[str, Tensor]:
    """Every combination of the discrete variables among ``names``, each of shape (K,)."""
    discrete = {name: graph[name].values for name in names if graph[name].kind != "continuous"}
    axes = [torch.tensor(values).float() for values in discrete.values()]
    axes = torch.meshgrid(*axes, indexing="ij") if axes else ()
    return {name: axis.flatten() for name, axis in zip(discrete, axes, strict=True)}


@dataclass(frozen=True)
class Completions:
    r"""The completions of B rows in K combinations.

    Args:
        pa: The completed labels, each of shape (B, K).
        missing: Which rows miss each variable, each of shape (B,).
        log_q: The terms :math:`\log q(y_i \mid x, y_{>i})` of all variables, each (B, K).
        entropy: The entropies of the predictions of discrete variables, in nats, each (B, K).
        possible: Which combinations agree with the known labels, shape (B, K).
    """

    graph: CausalGraph
    pa: dict[str, Tensor]
    missing: dict[str, Tensor]
    log_q: dict[str, Tensor]
    entropy: dict[str, Tensor]
    possible: Tensor

    @cached_property
    def weight(self) -> Tensor:
        r"""The probability :math:`q(y_M \mid x, y_O)` of the missing discrete labels, (B, K)."""
        total = torch.zeros_like(self.possible, dtype=next(iter(self.log_q.values())).dtype)
        for name in self.entropy:
            total = total + torch.where(self.missing[name][:, None], self.log_q[name], 0)
        return torch.where(self.possible, total.exp(), 0)

    def expect(self, f: Tensor) -> Tensor:
        r"""The expectation :math:`\mathbb{E}_{q(y_M \mid x, y_O)} f`, from (B, K) to (B,)."""
        return (self.weight * torch.where(self.possible, f, 0)).sum(dim=1)

    @cached_property
    def trust(self) -> Tensor:
        r"""How far imputed labels are trusted, shape (B,).

        .. math:: \tau(x) = \prod_{i \in M} \Big(1 - \frac{\mathbb{E}_q H_q(y_i \mid x, y_{>i})}
            {\log |Y_i|}\Big)

        over the missing discrete labels. The paper scales the term of one missing label by one
        minus its entropy; several missing ones scale it in turn. It is 1 where nothing discrete is
        missing, and 0 where nothing is known of one that is. No gradient passes: the weight says
        how far to believe, and a predictor should not learn to be uncertain where the image is
        hard to explain.
        """
        with torch.no_grad():
            trust = torch.ones_like(self.weight[:, 0])
            for name, entropy in self.entropy.items():
                share = self.expect(entropy) / math.log(len(self.graph[name].values))
                trust = trust * torch.where(self.missing[name], (1 - share).clamp(0, 1), 1)
            return trust


def complete(
    predictors: ParentPredictors, features: Tensor, pa: Parents, rng: torch.Generator | None
) -> Completions:
    """Completes rows in every combination of the discrete labels.

    Args:
        features: The features of the images, shape (B, F).
        pa: Their labels, each of shape (B,), NaN where missing.
        rng: The source of the draws of continuous labels; their mean is taken without one.
    """
    graph, names = predictors.graph, predictors.names
    sums = _combinations(graph, names)
    count = len(next(iter(sums.values()))) if sums else 1
    wide = features[:, None].expand(-1, count, -1)
    possible = torch.ones(len(features), count, dtype=torch.bool, device=features.device)
    filled, log_q, entropy = {}, {}, {}
    missing = {name: pa[name].isnan() for name in names}
    for name in reversed(names):
        q, lacks = predictors.predict(name, wide, filled), missing[name][:, None]
        known = pa[name].nan_to_num()[:, None].expand(-1, count)
        if graph[name].kind == "continuous":
            guess = q.mean + q.stddev * normal_noise(features[:, :1], rng)
        else:
            guess = sums[name].to(features).expand_as(known)
            possible = possible & (lacks | (guess == known))
            entropy[name] = q.entropy()
        filled[name] = torch.where(lacks, guess, known)
        log_q[name] = q.log_prob(filled[name])
    ordered = {name: filled[name] for name in names}
    return Completions(graph, ordered, missing, log_q, entropy, possible)
