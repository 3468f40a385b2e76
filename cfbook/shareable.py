"""What of open data may be shared: scores, averages over many patients, weights, never one image.

Some data sets may be used by everybody, with attribution, and yet no image of a patient and no
single counterfactual has a place in a repository. A file made of them is let pass by the guard if
``.guard.yml`` lists it under ``open``, and if it holds what the list says:

- ``scores``: predictions of :mod:`cfcore.predictions`, numbers for each row and world;
- ``averages``: images, each a mean over 200 patients or more, which says how many;
- ``weights``: those of networks, in which no array looks like a stack of images;
- ``text``: tables and reports, whose images are looked at by the guard.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

LEAST = 200
"""Patients of whom an average that may be shared is made, at least."""
_ROWS = ("logit_obs", "logit_cf", "logit_null", "logit_decoded", "y", "weight", "q")
_WORLDS = 256  # of predictions, at most
_SIDE, _STACK = 16, 16  # what is larger than that, both ways, and more often, may be images
_Arrays = Mapping[str, list[int]]


def unshareable(kind: str, content: bytes) -> str:
    """Why a file is not what the list says it is, or ``""`` if it is.

    Example:
        >>> unshareable("scores", b"no safetensors")
        'is no file of arrays'
        >>> unshareable("text", b"a,b")
        ''
    """
    if kind == "text" or (kind == "weights" and content[:1] == b"{"):
        return "is not text" if b"\0" in content else ""
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        notes = json.loads(header.pop("__metadata__", {}).get("cfcore", "{}"))
        arrays = {name: each["shape"] for name, each in header.items()}
    except (ValueError, KeyError, AttributeError, TypeError):
        return "is no file of arrays"
    if kind not in _KINDS:
        return f"is listed as {kind!r}, not as one of text, {', '.join(_KINDS)}"
    return _KINDS[kind](arrays, notes)


def _scores(arrays: _Arrays, notes: Mapping[str, Any]) -> str:
    rows, predictors = len(notes.get("patient") or ()), len(notes.get("predictors", {}))
    strange = [n for n in arrays if n not in _ROWS and not n.startswith(("grid.", "parents."))]
    if not rows or strange:
        return f"holds {', '.join(strange) or 'no patients'}, which predictions do not"
    for name, shape in arrays.items():
        each = math.prod(shape) / (rows * max(predictors, 1))
        if each > _WORLDS:
            return f"holds {each:.0f} numbers for each row as {name!r}: more than there are worlds"
    return ""


def _averages(arrays: _Arrays, notes: Mapping[str, Any]) -> str:
    known = {each.get("name"): each.get("patients", 0) for each in notes.get("averages", ())}
    for name, shape in arrays.items():
        if known.get(name, 0) < LEAST:
            return f"holds {name!r}, an average over {known.get(name, 0)} patients"
        if math.prod(shape[:-2]) != 1:
            return f"holds {math.prod(shape[:-2])} images as {name!r}, not one average"
    return ""


def _weights(arrays: _Arrays, notes: Mapping[str, Any]) -> str:
    for name, shape in arrays.items():
        if len(shape) > 2 and min(shape[-2:]) >= _SIDE and math.prod(shape[:-2]) > _STACK:
            return f"holds {name!r} of shape {shape}, which may be images"
    return ""


_KINDS: Mapping[str, Callable[[_Arrays, Mapping[str, Any]], str]] = {
    "scores": _scores,
    "averages": _averages,
    "weights": _weights,
}
