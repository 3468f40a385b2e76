"""Predictors as users pass them: checked before anything is computed, called, and labelled."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from cfchest.data import Dataset
from cfcore.checks import InputError, Numbers, as_tensor, check_labels
from cfcore.generator import Parents

LABEL = "effusion"
"""The column of labels by which predictors are judged, unless ``labels`` says otherwise."""

Labels = Mapping[str, str | Numbers | None]
"""By predictor: the name of a column, labels 0 or 1 of shape (N,), or None for no labels."""


@runtime_checkable
class Predictor(Protocol):
    """Anything that gives a logit for each image, knowing its parents."""

    def __call__(self, x: Tensor, pa: Parents) -> Tensor:
        """Predicts.

        Args:
            x: The images, shape (B, 1, H, W), in [0, 1].
            pa: The parents, each of shape (B,): the intervened ones under an intervention.

        Returns:
            The logits of disease, shape (B,).
        """


def check_predictors(predictors: Mapping[str, Predictor]) -> None:
    """Refuse what cannot be called with images and parents; a module may take images alone.

    Example:
        >>> check_predictors({"net": lambda x: x})
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: predictor 'net' must take images and parents: \
wrap it, lambda x, pa: net(x)
    """
    if not isinstance(predictors, Mapping):
        kind = type(predictors).__name__
        raise InputError(f'predictors are given by name, {{"mine": predictor}}, not as a {kind}')
    if not predictors:
        raise InputError("there are no predictors")
    for name, predictor in predictors.items():
        if not callable(predictor):
            raise InputError(f"predictor {name!r} is a {type(predictor).__name__}, not a function")
        try:
            signature = None if isinstance(predictor, nn.Module) else inspect.signature(predictor)
        except ValueError:  # of some builtins there is none
            signature = None
        try:
            if signature is not None:
                signature.bind(None, None)
        except TypeError:
            raise InputError(
                f"predictor {name!r} must take images and parents: wrap it, lambda x, pa: {name}(x)"
            ) from None


def check_generator(generator: object) -> None:
    """Refuse what cannot abduct and predict.

    Example:
        >>> check_generator(object())
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


def takes_parents(network: nn.Module) -> bool:
    """Whether a network is called with parents too: if its second argument is called ``pa``.

    Another second argument is an option of its own, and is left alone.

    Example:
        >>> takes_parents(nn.Linear(2, 1))
        False
    """
    try:
        return list(inspect.signature(network.forward).parameters)[1:2] == ["pa"]
    except (TypeError, ValueError):
        return False


def score(predictors: Mapping[str, Predictor], x: Tensor, pa: Parents) -> Tensor:
    """The logits of all predictors, shape (predictors, images).

    Args:
        predictors: The predictors by name; see :func:`check_predictors`.
        x: The images, shape (B, ...).
        pa: Their parents, each of shape (B,).

    Raises:
        InputError: If a predictor gives anything but one logit for each image; it is named.
    """
    return torch.stack([_logits(name, g, x, pa) for name, g in predictors.items()])


def _logits(name: str, predictor: Predictor, x: Tensor, pa: Parents) -> Tensor:
    alone = isinstance(predictor, nn.Module) and not takes_parents(predictor)
    with blaming(f"predictor {name!r}", x):
        out = predictor(x) if alone else predictor(x, pa)
    if not isinstance(out, Tensor):
        raise InputError(f"predictor {name!r} gives a {type(out).__name__}, not a tensor of logits")
    if out.ndim == 2 and out.shape[1] == 1:
        out = out.squeeze(1)
    if out.shape != x.shape[:1]:
        raise InputError(
            f"predictor {name!r} gives a tensor of shape {tuple(out.shape)} for {len(x)} images, "
            f"not one logit for each; choose one output, lambda x, pa: {name}(x)[:, 0]"
        )
    return out.float()


@contextmanager
def evaluating(*things: object) -> Iterator[None]:
    """Networks in evaluation mode, and back afterwards: nothing is dropped out at random."""
    networks = [thing for thing in things if isinstance(thing, nn.Module)]
    training = [part for network in networks for part in network.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


def find_labels(
    predictors: Mapping[str, Predictor], data: Dataset, labels: Labels | None
) -> dict[str, tuple[str | None, Tensor | None]]:
    """What each predictor predicts: the name of the label, and its values.

    Args:
        predictors: The predictors by name.
        data: The patients.
        labels: Those of some predictors; the others are judged by ``LABEL``, if it is recorded of
            everyone. A predictor that says by its ``variable``, a name or a variable of a graph,
            that it reads another one is refused unless it is among these.

    Returns:
        By predictor, the name of the label and the labels, shape (N,), None if there are none.
    """
    if labels is not None and not isinstance(labels, Mapping):
        raise InputError("are given by predictor, {'mine': 'column'}", column="labels")
    given = dict(labels or {})
    unknown = sorted(set(given) - set(predictors))
    if unknown:
        raise InputError(f"there is no predictor {unknown[0]!r}", column="labels")
    own = data.parents([LABEL])[LABEL]
    usual = (LABEL, None if own.isnan().any() else own.long())
    found = {}
    for name, predictor in predictors.items():
        reads = getattr(predictor, "variable", None) or LABEL
        reads = getattr(reads, "name", reads)
        if name not in given and reads != LABEL:
            raise InputError(
                f"predictor {name!r} predicts {reads!r}, but would be judged by {LABEL!r}: pass "
                f"labels={{{name!r}: ...}}, the name of a column or the labels themselves"
            )
        found[name] = _labels(given[name], data, name) if name in given else usual
    return found


def _labels(
    given: str | Numbers | None, data: Dataset, name: str
) -> tuple[str | None, Tensor | None]:
    if given is None:
        return None, None
    place, label = f"labels[{name!r}]", None
    if isinstance(given, str):
        if given not in data.table:
            raise InputError(f"the data have no column {given!r}", column=place)
        label, given = given, data.table[given]
    values = as_tensor(given, place, axes=1)
    if len(values) != len(data):
        raise InputError(f"has {len(values)} rows, but there are {len(data)}", column=place)
    check_labels(values, place)
    return label, values.long().cpu()


def check_device(device: torch.device | str) -> torch.device:
    """The device, refused if this machine does not have it."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{str(device)!r} cannot be used here: {reason}", column="device"
        ) from None
    return torch.device(device)
