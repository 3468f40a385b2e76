r"""Generators to compare with: one that changes nothing, and variations on a given one."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Generator as RandomState
from torch import Tensor

from cfchest.phantom.draws import mix
from cfcore.generator import Effect, Generator, Noise, Parents, act


@dataclass(frozen=True)
class Derived:
    """A generator that acts and predicts as another one does.

    Args:
        generator: The other one.
    """

    generator: Generator

    def abduct(
        self,
        x: Tensor,
        pa: Parents,
        *,
        index: Tensor | None = None,
        rng: RandomState | None = None,
    ) -> Noise:
        """Infers the noise as the other one does."""
        return self.generator.abduct(x, pa, index=index, rng=rng)

    def act(
        self,
        pa: Parents,
        do: Mapping[str, Tensor | float],
        *,
        effect: Effect = "direct",
        rng: RandomState | None = None,
    ) -> Parents:
        """Intervenes as the other one does."""
        return act(self.generator, pa, do, effect)

    def predict(self, noise: Noise, pa: Parents) -> Tensor:
        """Draws as the other one does."""
        return self.generator.predict(noise, pa)


class Identity(Derived):
    """Changes nothing: the counterfactual of an image is the image.

    Only the parents follow the other generator, for predictors that read them.
    """

    def abduct(
        self,
        x: Tensor,
        pa: Parents,
        *,
        index: Tensor | None = None,
        rng: RandomState | None = None,
    ) -> dict[str, Tensor]:
        """Takes the image itself for the noise."""
        return {"image": x}

    def predict(self, noise: Mapping[str, Tensor], pa: Parents) -> Tensor:
        """Gives the image back."""
        return noise["image"]


class WithoutResidual(Derived):
    """Forgets what the decoder did not explain: the leaf ``residual`` of the noise becomes 0.

    With an additive residual, composition and reversibility hold whatever the network does.
    Without it they say what the latent variables keep.
    """

    def abduct(
        self,
        x: Tensor,
        pa: Parents,
        *,
        index: Tensor | None = None,
        rng: RandomState | None = None,
    ) -> dict[str, Tensor]:
        """Infers the noise, without the residual."""
        noise = super().abduct(x, pa, index=index, rng=rng)
        return {**noise, "residual": torch.zeros_like(noise["residual"])}


class FreshDetector(Derived):
    """The oracle of the phantom behind a detector whose noise is drawn anew.

    What it changes is no property of the patient, so that no generator can be asked to know it:
    its distance to the truth is a floor.
    """

    def abduct(
        self,
        x: Tensor,
        pa: Parents,
        *,
        index: Tensor | None = None,
        rng: RandomState | None = None,
    ) -> dict[str, Tensor]:
        """Looks the noise up, with another key of the detector."""
        noise = super().abduct(x, pa, index=index, rng=rng)
        return {**noise, "detector": mix(noise["detector"] + 1)}
