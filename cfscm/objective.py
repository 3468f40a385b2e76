r"""What the deep structural causal model is trained to minimise.

The appendix of the paper splits the data by the labels that are known: all of them
(:math:`\mathcal{S}`), none (:math:`\mathcal{U}`), causes only (:math:`\mathcal{C}`) or effects
only (:math:`\mathcal{E}`). Here is the first. Each objective is a function of one signature,
:data:`Objective`, that returns *named* terms whose sum is the loss, so that another can stand
in its place and a term that goes wrong can be named.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cfcore.checks import InputError


class Bounded(Protocol):
    """An image mechanism that gives the two terms of its evidence lower bound."""

    def terms(self, x: Tensor, c: Tensor, rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The expected log-likelihood and the divergence in nats, each of shape (B,)."""


Objective = Callable[[Bounded, Tensor, Tensor, float, torch.Generator], Mapping[str, Tensor]]
"""From the mechanism, images (B, 1, H, W), parents (B, D), the share of the training that is
behind (0 to 1) and a source of randomness to the named terms of the loss, each of shape ()."""


@dataclass(frozen=True)
class Labelled:
    r"""The labelled term :math:`\mathcal{S}(x, y)` of the appendix.

    .. math:: \mathcal{S}(x, y) = -\mathcal{L}(x, y) - \log p(y_E \mid y_C) - \log p(y_C), \qquad
        \mathcal{L} = \mathbb{E}_q \log p(x \mid z, y) - \beta\, \mathrm{KL}(q \,\|\, p)

    With all labels known, the last two terms hold the mechanisms of the parents alone and the
    first the image alone: they share no parameter, so the two are trained apart, and this is
    :math:`-\mathcal{L}`, in nats for each pixel.

    The weight :math:`\beta` of the divergence falls from ``start`` to ``beta``, geometrically,
    over the share ``until`` of the training. A heavy start closes the latents until the decoder
    has learned what the parents alone say of the image; what the latents then add has little
    left to leak.

    Args:
        beta: The weight of the divergence in the end; 1 is the evidence lower bound.
        start: Its weight at the start.
        until: The share of the training after which it no longer falls.
    """

    beta: float = 1.0
    start: float = 1.0
    until: float = 0.5

    def __post_init__(self) -> None:
        for name in ("beta", "start", "until"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} must be positive, not {getattr(self, name)}")

    def weight(self, done: float) -> float:
        """The weight of the divergence when a share of the training is behind.

        Example:
            >>> [Labelled(beta=1, start=16, until=0.5).weight(t) for t in (0, 0.25, 0.5, 1)]
            [16.0, 4.0, 1.0, 1.0]
        """
        left = max(0.0, 1 - done / self.until)
        return self.beta * (self.start / self.beta) ** left

    def __call__(
        self, image: Bounded, x: Tensor, c: Tensor, done: float, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """The terms of the loss; see :data:`Objective`."""
        log_likelihood, kl = image.terms(x, c, rng)
        pixels = x[0].numel()
        return {
            "reconstruction": -log_likelihood.mean() / pixels,
            "divergence": self.weight(done) * kl.mean() / pixels,
        }
