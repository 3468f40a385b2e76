"""Checks of what users pass in: early, and with the offending row and value in the message.

Every error and every warning about input is defined here or below one that is. torch is imported
where a tensor is made: a command that prints its help needs these errors, but no tensor.
"""

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Union

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Numbers = Union[ArrayLike, "torch.Tensor"]

_TOLERANCE = 1e-6  # how far weights may be from summing to one
_SLIGHT = 0.01  # what is outside [0, 1] by less is a probability with an error, not a logit
_FEW = 20  # fewer logits than this may all be in [0, 1] by chance
_BINS, _SPREAD = 20, 5  # probabilities are in at least so many of so many bins of [0, 1]


class InputError(ValueError):
    """A value that cannot be used, and where it stands.

    Attributes:
        problem: What is wrong, without the place.
        column: The name of the argument or column to blame, if there is one.
        row: The row of the table to blame, counted from 0, if there is one.
    """

    def __init__(self, problem: str, *, column: str | None = None, row: int | None = None) -> None:
        self.problem, self.column, self.row = problem, column, row
        place = "".join((column or "", "" if row is None else f"[{row}]"))
        super().__init__(f"{place}: {problem}" if place else problem)


class UndefinedMetricWarning(UserWarning):
    """A metric has no value on these data, and is NaN."""


class ScoreWarning(UserWarning):
    """Scores that can be used, but look like something else than what they are said to be."""


def as_tensor(values: Numbers, name: str, axes: int) -> "Tensor":
    """Numbers of any kind as a tensor with so many axes, in their precision, often in place."""
    import torch

    if not isinstance(values, torch.Tensor):
        values = torch.from_numpy(as_array(values, name))
    if values.ndim != axes:
        problem = f"needs {axes} axes, but its shape is {tuple(values.shape)}"
        if values.ndim == axes + 1 and name != "q":
            problem += "; of several classes, pass one class at a time"
        raise InputError(problem, column=name)
    if values.is_complex():
        raise InputError(f"must be real numbers, not {values.dtype}", column=name)
    return values.detach()


def as_array(values: Numbers, name: str) -> np.ndarray:
    """Numbers as an array that torch can share; text is refused, even if it spells numbers."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError("is ragged: its rows differ in length", column=name) from None
    if array.dtype.kind == "O":
        objects, array = array, np.empty(array.shape)
        for place, value in np.ndenumerate(objects):
            try:
                array[place] = float("text" if isinstance(value, str | bytes) else value)
            except (TypeError, ValueError):
                raise _misfit(f"{value!r} is not a number", name, place) from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"must be real numbers, not {array.dtype}", column=name)
    if array.dtype.itemsize > 8 or (array.dtype.kind == "u" and array.dtype.itemsize > 1):
        array = array.astype(np.float64)
    return np.require(array, dtype=array.dtype.newbyteorder("="), requirements="CW")


def _misfit(problem: str, name: str, place: Sequence[int]) -> InputError:
    """An error about a row, and about a column if there are several."""
    row, *column = place or (None,)
    return InputError(problem, column="_".join([name, *map(str, column)]), row=row)


def refuse_rows(bad: ArrayLike, problem: str, name: str) -> None:
    """Refuse the first of the rows that are bad."""
    if np.any(bad):
        raise InputError(problem, column=name, row=int(np.argmax(bad)))


def _refuse_first(bad: "Tensor", values: "Tensor", name: str, what: str) -> None:
    """Refuse the first value at which ``bad`` holds."""
    if bad.any():
        place = tuple(bad.nonzero()[0].tolist())
        raise _misfit(f"{shown(values[place].item())} is not {what}", name, place)


def shown(value: float) -> str:
    """A number with all its digits, and no more: 2, not 2.0."""
    return repr(value).removesuffix(".0")


def check_range(values: "Tensor", name: str, low: float, high: float, what: str) -> None:
    """Refuse numbers that are NaN, infinite or outside [low, high]."""
    lowest, highest = _ends(values)
    if not (low <= lowest and highest <= high and math.isfinite(highest - lowest)):
        numbers = values.double()
        inside = (numbers >= low) & (numbers <= high) & numbers.isfinite()
        _refuse_first(~inside, values, name, what)


def _ends(values: "Tensor") -> list[float]:
    """The smallest and the largest value; both NaN if any is, or if there are none."""
    return [end.item() for end in values.aminmax()] if values.numel() else [math.nan, math.nan]


def check_logits(values: "Tensor", name: str) -> None:
    """Refuse logits that are not finite."""
    check_range(values, name, -math.inf, math.inf, "a finite logit")


def check_probabilities(values: "Tensor", name: str) -> None:
    """Refuse what is not in [0, 1], and say if it looks like logits or per cent.

    Example:
        >>> check_probabilities(as_tensor([0.5, -1.5], "p_obs", axes=1), "p_obs")
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: p_obs[1]: -1.5 is not a probability in [0, 1]; are these logits?
    """
    lowest, highest = _ends(values)
    hint = "; are these logits, or per cent?" if highest > 1 + _SLIGHT else ""
    hint = "; are these logits?" if lowest < -_SLIGHT else hint
    check_range(values, name, 0, 1, f"a probability in [0, 1]{hint}")


def warn_of_probabilities(*logits: "Tensor", name: str) -> None:
    """Warn if scores that are said to be logits look like probabilities.

    Twenty or more that all lie in [0, 1] and are spread there are most likely probabilities, and
    every metric of them would be wrong. Spread means in five or more of twenty equal bins: the
    logits of a network that has learnt little are nearly all the same, and with an offset there are
    two groups of them. Probabilities that are all below 0.2 are therefore not found out.
    """
    count = sum(values.numel() for values in logits)
    if count < _FEW or not all(low >= 0 and high <= 1 for low, high in map(_ends, logits)):
        return
    bins = {number for values in logits for number in (values * _BINS).floor().unique().tolist()}
    if len(bins) >= _SPREAD:
        text = f"{name}: all {count} lie in [0, 1]; are these probabilities?"
        text += " Logits are expected: log(p / (1 - p))"
        # The level of whoever makes Predictions, whose __init__ is between.
        warnings.warn(text, ScoreWarning, stacklevel=4)


def check_labels(y: "Tensor", name: str = "y") -> None:
    """Refuse labels other than 0 and 1."""
    _refuse_first((y != 0) & (y != 1), y, name, "a label, 0 or 1")


def check_weights(q: Numbers | None, interventions: int) -> "Tensor":
    """Intervention probabilities in float64, uniform by default, summing to exactly one.

    Whole numbers are counts, and are divided by their sum.
    """
    import torch

    if q is None:
        return torch.full((interventions,), 1 / interventions, dtype=torch.float64)
    q = as_tensor(q, "q", axes=1).double()
    if len(q) != interventions:
        problem = f"has {len(q)} weights, but there are {interventions} interventions"
        raise InputError(problem, column="q")
    check_range(q, "q", 0, math.inf, "a weight: finite and not negative")
    total = q.sum().item()
    counts = total > 0 and not (q % 1).any()
    if abs(total - 1) > _TOLERANCE and not counts:
        raise InputError(f"the weights sum to {total:.9g}, not to 1", column="q")
    return q / q.sum()


def _check_kind(value: object, name: str, kinds: tuple[type, ...], what: str) -> None:
    """Refuse what is not of these types; a truth value is not a number."""
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise InputError(f"must be {what}, not {value!r}", column=name)


def check_fraction(value: float, name: str) -> float:
    """A number in [0, 1]."""
    _check_kind(value, name, (int, float, np.number), "a number")
    if not 0 <= value <= 1:
        raise InputError(f"{shown(float(value))} is outside [0, 1]", column=name)
    return float(value) + 0.0  # no negative zero


def check_count(value: int, name: str, least: int = 1, most: int = 2**31) -> int:
    """A whole number that is neither too small nor too large."""
    _check_kind(value, name, (int, np.integer), "a whole number")
    if not least <= value <= most:
        limit = f"less than {least}" if value < least else f"more than {most}"
        raise InputError(f"{value} is {limit}", column=name)
    return int(value)


def check_alphas(alphas: Sequence[float]) -> tuple[float, ...]:
    """Tail masses, in [0, 1] and distinct when printed with two decimals."""
    if not isinstance(alphas, Sequence | np.ndarray) or isinstance(alphas, str):
        raise InputError(f"must be a sequence of numbers, not {alphas!r}", column="alphas")
    seen: dict[str, float] = {}
    for alpha in (check_fraction(alpha, "alphas") for alpha in alphas):
        name = f"{alpha:.2f}"
        if name in seen:
            problem = f"{seen[name]:.9g} and {alpha:.9g} are both called {name}"
            raise InputError(problem, column="alphas")
        seen[name] = alpha
    return tuple(seen.values())
