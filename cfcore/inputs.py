"""What users pass: arrays, or a frame with a column for each; one label, or several by name."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cfcore.checks import InputError, Numbers, as_array

if TYPE_CHECKING:
    import pandas as pd

_Scored = tuple[Numbers, Numbers, Numbers | None]
"""Observed and counterfactual probabilities and labels, of one label."""
Aside = Sequence[object] | str | None
"""Something for each row, or the name of the column of a frame that holds it."""


class Given(NamedTuple):
    """The scores of each label (one without a name is ``""``), and what else is known of rows."""

    parts: dict[str, _Scored]
    weight: Sequence[float] | None
    patient: Sequence[int] | Sequence[str] | None
    by: Sequence[object] | None
    logits: bool = False


def gather(
    p_obs: "Numbers | pd.DataFrame",
    p_cf: Numbers | None,
    y: Numbers | None,
    *,
    labels: Sequence[str] | None = None,
    weight: Aside = None,
    patient: Aside = None,
    by: Aside = None,
) -> Given:
    """Take apart what was passed to :func:`cfcore.evaluate` or :func:`cfcore.bootstrap`.

    Example:
        >>> p_obs, p_cf = [[0.2, 0.8], [0.6, 0.4]], [[[0.2, 0.8]], [[0.5, 0.5]]]
        >>> given = gather(p_obs, p_cf, ["b", "a"], labels=["a", "b"])
        >>> [np.asarray(part).tolist() for part in given.parts["b"]]
        [[0.8, 0.4], [[0.8], [0.5]], [True, False]]
    """
    if not hasattr(p_obs, "columns"):
        for name, value in (("weight", weight), ("patient", patient), ("by", by)):
            if isinstance(value, str):
                raise InputError(f"{value!r} names a column, but there is no frame", column=name)
        if p_cf is None:
            raise InputError("there are no counterfactual scores", column="p_cf")
        return Given(_parts(p_obs, p_cf, y, labels), weight, patient, by)
    if p_cf is not None or y is not None:
        raise InputError("is a frame, which holds p_cf and y: pass it alone", column="p_obs")
    header = [str(name) for name in p_obs.columns]
    kind = "logit" if any(name.split(":")[-1] == "logit_obs" for name in header) else "p"
    patient = "patient" if patient is None and "patient" in header else patient
    aside = (column(p_obs, each) for each in (weight, patient, by))
    return Given(_in_frame(p_obs, header, kind), *aside, logits=kind == "logit")


def _parts(
    p_obs: Numbers, p_cf: Numbers, y: Numbers | None, labels: Sequence[str] | None
) -> dict[str, _Scored]:
    """Scores by label: each column against all others, if there are several."""
    given = {"p_obs": p_obs, "p_cf": p_cf}.items()
    obs, cf = (v if hasattr(v, "shape") else as_array(v, name) for name, v in given)
    if len(obs.shape) < 2 or len(cf.shape) < 3:  # what does not fit is said where it is checked
        return {"": (p_obs, p_cf, y)}
    names = [str(name) for name in (range(obs.shape[1]) if labels is None else labels)]
    if len(set(names)) < len(names):
        raise InputError(f"one of {', '.join(names)} is there twice", column="labels")
    if cf.shape[2:] != obs.shape[1:] or len(names) != obs.shape[1]:
        wanted = f"{obs.shape[1]} columns of p_obs ask for (N, K, {obs.shape[1]})"
        problem = f"has shape {tuple(cf.shape)}, and there are {len(names)} labels; {wanted}"
        raise InputError(problem, column="p_cf")
    return {
        name: (obs[:, i], cf[:, :, i], None if y is None else _one_label(y, i, name, names))
        for i, name in enumerate(names)
    }


def _one_label(y: Numbers, number: int, name: str, names: Sequence[str]) -> np.ndarray:
    """Whether each row has a label: a column of ``y``, or its class, by name or else by number."""
    given = np.asarray(y.cpu() if hasattr(y, "cpu") else y)
    if given.ndim > 1:
        if given.shape[1] != len(names):
            problem = f"has {given.shape[1]} columns, and there are {len(names)} labels"
            raise InputError(problem, column="y")
        return given[:, number]
    classes = np.array([_class(value) for value in given.tolist()])
    for known, own in ((names, name), ([str(i) for i in range(len(names))], str(number))):
        if np.isin(classes, known).all():
            return classes == own
    row = int((~np.isin(classes, names)).argmax())
    problem = f"{str(classes[row])!r} is none of the classes {', '.join(names)}"
    raise InputError(problem, column="y", row=row)


def _class(value: object) -> str:
    """A class as text: 1, 1.0 and True are the same one."""
    whole = isinstance(value, bool | int | float) and value == value // 1
    return str(int(value)) if whole else str(value)


def _in_frame(frame: "pd.DataFrame", header: Sequence[str], kind: str) -> dict[str, _Scored]:
    """Scores by label from the columns ``p_obs``, ``p_cf_0`` ..., ``y``, or ``NAME:p_obs`` ..."""
    last = f"{kind}_obs"
    starts = [name.removesuffix(last) for name in header if name.split(":")[-1] == last]
    if not starts:
        raise InputError(f"there is no column p_obs (found: {', '.join(header[:8])})")
    if kind == "logit" and any(name.split(":")[-1] == "p_obs" for name in header):
        raise InputError("there are columns p_obs and logit_obs; keep those of one kind")
    found = {}
    for start in starts:
        name, cf = start.removesuffix(":"), frame[_worlds(header, start, kind)].to_numpy()
        if start == ":":
            raise InputError(f"the column {start + last} names no label")
        found[name] = frame[start + last], cf, frame.get(f"{start}y")
        if cf.shape[1] != (first := next(iter(found.values()))[1].shape[1]):
            raise InputError(f"the label {name} has {cf.shape[1]} worlds, the first one {first}")
    return found


def _worlds(header: Iterable[str], start: str = "", kind: str = "p") -> list[str]:
    """The columns ``p_cf_0``, ``p_cf_1``, ... of a table, of which none may be missing.

    Example:
        >>> _worlds(["p_cf_1", "y", "p_cf_0"])
        ['p_cf_0', 'p_cf_1']
    """
    first = f"{start}{kind}_cf_"
    names = sorted((n for n in header if n.startswith(first[:-1])), key=lambda n: (len(n), n))
    if f"{first}0" not in names:
        raise InputError(f"there is no column {first}0")
    for k, name in enumerate(names):
        if name != f"{first}{k}":
            raise InputError(f"the column {name!r} is in the place of {first}{k}")
    return names


def column(frame: "pd.DataFrame", given: Aside) -> Sequence[object] | None:
    """A column by its name, or what was given in its place."""
    if not isinstance(given, str):
        return given
    if given not in frame:
        found = ", ".join(map(str, frame.columns[:8]))
        raise InputError(f"there is no column {given} (found: {found})")
    return frame[given].to_numpy()
