r"""Generators to compare with: one that changes nothing, and variations on a given one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator as RandomState
from torch import Tensor

from cfcore.generator import Effect, Generator, Noise, Parents, act
from cfcore.graph import CausalGraph
from cfcore.patients import Patients
from cfscm.encoding import encode, expanded
from cfscm.layers import Scale

_Values = Mapping[str, Tensor | float]  # of an intervention


@dataclass(frozen=True)
class Derived:
    """A generator that acts and predicts as another one does, from noise that may be changed.

    Args:
        change: A function of the noise that it abducts.
    """

    generator: Generator
    change: Callable[[Noise], Noise] = lambda noise: noise

    def abduct(
        self, x: Tensor, pa: Parents, *, index: Tensor | None = None, rng: RandomState | None = None
    ) -> Noise:
        """Infers the noise as the other one does, and changes it."""
        return self.change(self.generator.abduct(x, pa, index=index, rng=rng))

    def act(
        self, pa: Parents, do: _Values, *, effect: Effect = "direct", rng: RandomState | None = None
    ) -> Parents:
        """Intervenes as the other one does."""
        return act(self.generator, pa, do, effect, rng)

    def predict(self, noise: Noise, pa: Parents) -> Tensor:
        """Draws as the other one does."""
        return self.generator.predict(noise, pa)


@dataclass(frozen=True)
class Sampled(Derived):
    """Draws the noise of a generator that takes its mean otherwise, and holds it over worlds.

    Args:
        draw: The number of the draw, which with the first row of a batch decides it.
    """

    draw: int = 0

    def abduct(
        self, x: Tensor, pa: Parents, *, index: Tensor | None = None, rng: RandomState | None = None
    ) -> Noise:
        """Draws the noise from its posterior."""
        if rng is None:
            first = 0 if index is None else int(index[0])
            rng = RandomState(x.device).manual_seed(1_000_003 * self.draw + first)
        return super().abduct(x, pa, index=index, rng=rng)


class Identity(Derived):
    """Changes nothing: the image itself is the noise, and is given back.

    Only the parents follow the other generator, for predictors that read them.
    """

    def abduct(self, x: Tensor, pa: Parents, **_: object) -> dict[str, Tensor]:
        """Takes the image itself for the noise."""
        return {"image": x}

    def predict(self, noise: Mapping[str, Tensor], pa: Parents) -> Tensor:
        """Gives the image back."""
        return noise["image"]


@dataclass(frozen=True)
class MeanShift:
    r"""The closed form that a network has to beat: it moves the mean image, and nothing else.

    .. math:: \tilde{t} = t + \mathrm{E}[t \mid \widetilde{\mathbf{pa}}] - \mathrm{E}[t \mid
        \mathbf{pa}]

    on the scale of attenuation, with means that are quadratic in the parents.

    Args:
        graph: The causal graph.
        names: The parents of the image.
        weights: The means, shape (terms, C, H, W).
    """

    graph: CausalGraph
    names: tuple[str, ...]
    weights: Tensor
    scale: ClassVar[Scale] = Scale(0.03)

    @classmethod
    @torch.no_grad()
    def fit(cls, graph: CausalGraph, names: Sequence[str], data: Patients) -> "MeanShift":
        """The means of training images, given the names of their parents."""
        gram = cross = 0.0
        for _, x, pa in data.batches(256):
            terms = expanded(encode(graph, pa, names)).double()
            t = cls.scale.apply(x).double()
            gram, cross = gram + terms.T @ terms, cross + terms.T @ t.flatten(1)
        ridge = 1e-4 * len(data) * torch.eye(len(gram))
        weights = torch.linalg.solve(gram + ridge, cross).float()
        return cls(graph, tuple(names), weights.unflatten(1, t.shape[1:]))

    def _mean(self, pa: Parents) -> Tensor:
        terms = expanded(encode(self.graph, pa, self.names))
        return torch.einsum("bt,tchw->bchw", terms, self.weights.to(terms))

    def abduct(self, x: Tensor, pa: Parents, **_: object) -> dict[str, Tensor]:
        """Takes what the mean image does not explain for the noise."""
        return {"residual": self.scale.apply(x) - self._mean(pa)}

    def predict(self, noise: Mapping[str, Tensor], pa: Parents) -> Tensor:
        """Adds it to the mean image of the parents."""
        return self.scale.invert(self._mean(pa) + noise["residual"]).clamp(0, 1)


def without_residual(noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Forgets what the decoder did not explain: the leaf ``residual`` of the noise becomes 0.

    With an additive residual, composition and reversibility hold whatever the network does.
    Without it they say what the latent variables keep.
    """
    return {**noise, "residual": torch.zeros_like(noise["residual"])}
