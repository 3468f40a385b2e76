r"""What a counterfactual generator must offer: abduct, act, predict."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Generator as RandomState
from torch import Tensor

from cfcore.checks import InputError
from cfcore.graph import CausalGraph

Parents = Mapping[str, Tensor]
"""The parents of the image, one tensor of shape (B,) per name."""

Noise = Any
"""The exogenous noise of B images: a dictionary (or another tree) of tensors whose leading
axis is the batch, so that it can be sliced, repeated and moved like one."""

_Rng = RandomState | None

Effect = Literal["direct", "total"]
"""Which effect an intervention has on the other parents of the image."""


@runtime_checkable
class Generator(Protocol):
    r"""A model of the image given its parents, with explicit exogenous noise.

    A counterfactual is abduction, action and prediction:

    .. math:: \tilde{x}_i = \mathrm{predict}\big(\mathrm{abduct}(x_i, \mathbf{pa}_i),
        \widetilde{\mathbf{pa}}_i\big)

    Two further methods are optional. Both are found by name.

    ``act(pa, do, *, effect, rng)`` replaces parents by the values of an intervention (:func:`act`).
    The **direct** effect holds every parent that is not intervened on,
    :math:`\widetilde{\mathbf{pa}} = (\tilde a, c_i)`; a generator without the
    method has no other. The **total** effect lets the descendants of the intervened variables
    follow through their mechanisms, :math:`\tilde{y}_j = f_j(\widetilde{\mathbf{pa}}_j, u_j)`, with
    the noise :math:`u_j` abducted from the observed parents; ``rng`` is the source of randomness of
    discrete mechanisms, whose noise is known only up to a distribution, and its mean is taken
    without one. A label is held under both unless it is itself intervened on.

    ``impute(x, pa)`` fills in parents that are NaN, of those that the attribute ``names`` lists, if
    the attribute ``imputes`` is true.
    """

    def abduct(
        self, x: Tensor, pa: Parents, *, index: Tensor | None = None, rng: _Rng = None
    ) -> Noise:
        r"""Infers the exogenous noise :math:`u_i` of the images.

        Args:
            x: The images, shape (B, C, ...), in [0, 1].
            pa: Their parents, each of shape (B,).
            index: The rows of the images in their cohort, shape (B,); read by generators that
                look the noise up.
            rng: The source of randomness of a sampled posterior; its mean is taken without one.
        """

    def predict(self, noise: Noise, pa: Parents) -> Tensor:
        """Draws the images that the noise gives under the parents, shape (B, C, ...), in [0, 1]."""


def check_protocol(generator: object) -> None:
    """Refuse what cannot abduct and predict.

    Example:
        >>> check_protocol(object())
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: generator: object has no method abduct()
    """
    if isinstance(generator, type):
        name = generator.__name__
        raise InputError(f"is the class {name}; make one, {name}(...)", column="generator")
    for method in ("abduct", "predict"):
        if not callable(getattr(generator, method, None)):
            kind = type(generator).__name__
            raise InputError(f"{kind} has no method {method}()", column="generator")


@contextmanager
def blaming(what: str, x: Tensor | None = None) -> Iterator[None]:
    """Say who failed, and on tensors of which shape; running out of memory is nobody's fault."""
    try:
        yield
    except (InputError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        seen = "" if x is None else f" on {tuple(x.shape)}"
        raise InputError(f"{what} fails{seen}: {type(error).__name__}: {error}") from error


def act(
    generator: Generator, pa: Parents, do: Parents, effect: Effect = "direct", rng: _Rng = None
) -> Parents:
    """The parents after an intervention, by the generator's own ``act``, or directly without one.

    Observed parents and the values to set are each of shape (B,); :class:`Generator` says what the
    effects are, and what ``rng`` is for.
    """
    if hasattr(generator, "act"):
        return generator.act(pa, do, effect=effect, **({} if rng is None else {"rng": rng}))
    if effect == "total":
        raise InputError(f"{type(generator).__name__} has no act(), which total effects need")
    return {**pa, **do}


def values_set(
    graph: CausalGraph, pa: Parents, do: Mapping[str, Tensor | float]
) -> dict[str, Tensor]:
    """What an intervention sets, as tensors like the parents; for ``act`` of a generator.

    Args:
        pa: The parents that can be intervened on, each of shape (B,).
        do: The values to set: numbers, checked against the range of their variable, or tensors of
            shape () or (B,), which are not checked.
    """
    made = {}
    for name, value in do.items():
        if name not in pa:
            raise InputError(f"do({name}) is not possible: the parents are {list(pa)}")
        like = pa[name]
        if not isinstance(value, Tensor):
            graph[name].check(value)
            value = torch.full_like(like, value)
        if value.shape not in ((), like.shape):
            raise InputError(f"do({name}) needs shape {(*like.shape,)}, not {(*value.shape,)}")
        made[name] = value.to(like).expand_as(like)
    return made


def counterfactuals(
    generator: Generator,
    x: Tensor,
    pa: Parents,
    do: Mapping[str, Tensor | float],
    *,
    effect: Effect = "direct",
    index: Tensor | None = None,
    rng: _Rng = None,
) -> Tensor:
    """The images of the same patients under an intervention: abduct, act, predict.

    Args:
        x, pa, index, rng: As for ``abduct`` of a :class:`Generator`.
        do: The values to set: numbers, or tensors of shape (B,); none reproduces the images.
        effect: ``"direct"`` or ``"total"``.
    """
    noise = generator.abduct(x, pa, index=index, rng=rng)
    values = {name: torch.as_tensor(v, device=x.device).expand(len(x)) for name, v in do.items()}
    return generator.predict(noise, act(generator, pa, values, effect, rng))
