"""Predictors as users pass them: checked before anything is computed, called, and labelled."""

import inspect
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from cfcore.checks import InputError, Numbers, as_tensor, check_labels
from cfcore.generator import Parents, blaming
from cfcore.patients import Patients

Labels = Mapping[str, str | Sequence[str] | Numbers | None]
"""By predictor: the name of a label, those of its several outputs in their order, the labels
themselves, 0 or 1 of shape (N,), or None for no labels."""


@runtime_checkable
class Predictor(Protocol):
    """Anything that gives a logit for each image, or several, knowing its parents."""

    def __call__(self, x: Tensor, pa: Parents) -> Tensor:
        """The logits, shape (B,), (B, 1), or (B, L) of L labels, of images (B, C, ...) in [0, 1].

        Under an intervention the parents, each of shape (B,), are the intervened ones.
        """


class Output(NamedTuple):
    """One output of a predictor, and the label that it is judged by, if it has one.

    Attributes:
        key: The name of the predictor, followed by that of the label if it has several outputs.
        y: The labels, shape (N,), None unless all are known.
        among: The labels of all outputs of the predictor, if it has several.
    """

    key: str
    predictor: str
    label: str | None = None
    y: Tensor | None = None
    among: Sequence[str] = ()


def _check_predictors(predictors: Mapping[str, Predictor]) -> None:
    """Refuse what cannot be called with images and parents; a module may take images alone.

    Example:
        >>> _check_predictors({"net": lambda x: x})
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
            if not isinstance(predictor, nn.Module):
                inspect.signature(predictor).bind(None, None)
        except ValueError:  # some builtins have no signature
            continue
        except TypeError:
            wrapped = f"wrap it, lambda x, pa: {name}(x)"
            wanted = f"predictor {name!r} must take images and parents: {wrapped}"
            raise InputError(wanted) from None


def logits(name: str, predictor: Predictor, count: int, x: Tensor, pa: Parents) -> Tensor:
    """The logits of a predictor of so many outputs, shape (count, images).

    A network is called with the parents too if its second argument is called ``pa``; another second
    argument is an option of its own, and is left alone. A predictor that gives anything but so many
    logits for each image is refused by its name.
    """
    alone = isinstance(predictor, nn.Module)
    with suppress(AttributeError, TypeError, ValueError):  # functions, and what has no signature
        alone &= list(inspect.signature(predictor.forward).parameters)[1:2] != ["pa"]
    with blaming(f"predictor {name!r}", x):
        out = predictor(x) if alone else predictor(x, pa)
    if not isinstance(out, Tensor):
        raise InputError(f"predictor {name!r} gives a {type(out).__name__}, not a tensor of logits")
    rows = out[:, None] if out.ndim == 1 else out
    if rows.shape != (len(x), count):
        wanted = f"one for each of {count} labels; "
        if count == 1:
            wanted = f"one logit for each; choose one output, lambda x, pa: {name}(x)[:, 0], "
        raise InputError(
            f"predictor {name!r} gives a tensor of shape {tuple(out.shape)} for {len(x)} images, "
            f"not {wanted}or name its labels, labels={{{name!r}: [...]}}"
        )
    return rows.T.float()


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


def outputs_of(
    predictors: Mapping[str, Predictor], data: Patients, labels: Labels | None
) -> list[Output]:
    """What each predictor predicts, one output after the other.

    One that does not take images and parents is refused. Those without labels of their own have an
    output for each label of the data, in their order; one that says by its ``variable``, a name or
    a variable of a graph, that it reads another one is refused.
    """
    _check_predictors(predictors)
    if labels is not None and not isinstance(labels, Mapping):
        raise InputError("are given by predictor, {'mine': 'column'}", column="labels")
    unknown = sorted(set(labels or {}) - set(predictors))
    if unknown:
        raise InputError(f"there is no predictor {unknown[0]!r}", column="labels")
    default, found = dict.fromkeys(predictors, list(data.labels) or None), []
    for name, given in (default | dict(labels or {})).items():
        reads = getattr(predictors[name], "variable", None)
        reads = getattr(reads, "name", reads)
        if given is default[name] and reads and given and [reads] != given:
            judged = " and ".join(map(repr, given))
            raise InputError(
                f"predictor {name!r} predicts {reads!r}, but would be judged by {judged}: pass "
                f"labels={{{name!r}: ...}}, the name of a column or the labels themselves"
            )
        found += _given(given, data, name)
    return found


def _given(given: str | Sequence[str] | Numbers | None, data: Patients, name: str) -> list[Output]:
    """The outputs of one predictor, by what its labels are said to be."""
    place = f"labels[{name!r}]"
    names = [given] if isinstance(given, str) else given
    if given is None:
        return [Output(name, name)]
    if isinstance(names, list | tuple) and names and all(isinstance(n, str) for n in names):
        if len(set(names)) < len(names):
            raise InputError(f"a label is named twice in {list(names)}", column=place)
        found = {label: _known(label, data, place) for label in names}
        if len(names) == 1:
            return [Output(name, name, *item) for item in found.items()]
        return [Output(f"{name}:{n}", name, n, y, list(names)) for n, y in found.items()]
    values = as_tensor(given, place, axes=1)
    if len(values) != len(data):
        raise InputError(f"has {len(values)} rows, but there are {len(data)}", column=place)
    check_labels(values, place)
    return [Output(name, name, y=values.long().cpu())]


def _known(label: str, data: Patients, place: str) -> Tensor | None:
    """A label, None if some are missing; or a parent or column of 0 and 1."""
    known = ChainMap(data.labels, data.parents, data.columns)
    if label not in known:
        raise InputError(f"the data have no column {label!r}", column=place)
    values = as_tensor(known[label], place, axes=1)
    if label in data.labels and values.isnan().any():
        return None
    check_labels(values, place)
    return values.long()


def check_device(device: torch.device | str) -> torch.device:
    """The device, refused if this machine does not have it."""
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, RuntimeError) as error:
        problem = f"{str(device)!r} cannot be used here: {str(error).splitlines()[0]}"
        raise InputError(problem, column="device") from None
