r"""Generators to compare with: one that changes nothing, and variations on a given one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Generator as RandomState
from torch import Tensor

from cfcore.generator import Effect, Generator, Noise, Parents, act

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


def without_residual(noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Forgets what the decoder did not explain: the leaf ``residual`` of the noise becomes 0.

    With an additive residual, composition and reversibility hold whatever the network does.
    Without it they say what the latent variables keep.
    """
    return {**noise, "residual": torch.zeros_like(noise["residual"])}
