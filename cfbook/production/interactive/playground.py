"""The predictors of the interactive pages, and what they say of each patient in sixteen worlds."""

import base64
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cfbook.study.presets import Preset
from cfbook.study.runs import PredictorId, Run, predictions
from cfchest.offsets import offset
from cfcore.interventions import Grid
from cfcore.predictions import Predictions

_PATIENTS = 320  # twenty for each of sixteen worlds
_BASIC = PredictorId("basic", 0.0, 0)
_BIASED = [
    PredictorId(family, strength, 0) for family in ("sex", "age") for strength in (0.8, 0.95)
]
TRAINED = (_BASIC, *_BIASED)
_DERIVED = PredictorId("logit", 1.0, 0)
MEMBERS = (_BASIC, _DERIVED, *_BIASED)
"""The unbiased predictor first; the others are compared with it."""

_LABELS = {"basic": "unbiased", "logit": "logit offset", "sex": "sex bias", "age": "age bias"}


def label(member: PredictorId) -> str:
    """What a predictor is called on the pages.

    Example:
        >>> [label(member) for member in MEMBERS[:3]]
        ['unbiased', 'logit offset 1', 'sex bias 0.8']
    """
    strength = f" {member.strength:g}" if member.strength else ""
    return _LABELS[member.family] + strength


def with_offset(given: Mapping[PredictorId, Predictions]) -> dict[PredictorId, Predictions]:
    """The predictions of :data:`MEMBERS`, that of the logit offset derived from its base."""
    derived = {_DERIVED: offset(given[_BASIC], _DERIVED.strength)}
    return {member: derived.get(member) or given[member] for member in MEMBERS}


def matrix(preset: Preset) -> dict[PredictorId, Predictions]:
    """The first patients of the balanced test set of hospital C, logits in float32."""
    found = predictions(Run(preset, "C->C", "balanced"))
    return {member: _head(found[member], _PATIENTS) for member in MEMBERS}


def _head(given: Predictions, rows: int) -> Predictions:
    """The first rows of predictions on a common grid, logits in float32."""
    logits = ("logit_obs", "logit_null", "logit_cf")
    return replace(
        given,
        **{name: getattr(given, name)[:rows].float() for name in logits},
        y=given.y[:rows],
        parents={name: values[:rows] for name, values in given.parents.items()},
        patient=given.patient[:rows],
    )


def _encoded(values: Tensor) -> str:
    """Numbers as base64 of little-endian float32.

    Example:
        >>> _encoded(torch.tensor([1.0]))
        'AACAPw=='
    """
    return base64.b64encode(values.to(torch.float32).numpy().astype("<f4").tobytes()).decode()


def playground(given: Mapping[PredictorId, Predictions]) -> dict[str, object]:
    """The data of the metric playground, ready for JSON.

    Args:
        given: Predictions of the same patients on the same grid.

    Returns:
        ``worlds``, each with ``sex`` and ``age``; ``nearest``, how many patients are nearest to
        each world, the empirical q; ``patients`` with ``sex``, ``age`` and ``y``; and
        ``predictors`` with ``label`` and ``logits``: for each patient the observed one, then one
        for each world, base64 of float32.
    """
    first = next(iter(given.values()))
    grid = Grid(first.grid)
    own = {name: first.parents[name] for name in first.grid}
    nearest = torch.bincount(grid.nearest(own), minlength=len(grid))
    return {
        "worlds": {name: values.tolist() for name, values in first.grid.items()},
        "nearest": nearest.tolist(),
        "patients": {
            "sex": first.parents["sex"].int().tolist(),
            "age": first.parents["age"].round().int().tolist(),
            "y": first.y.int().tolist(),
        },
        "predictors": [
            {
                "label": label(member),
                "logits": _encoded(torch.cat((one.logit_obs[:, None], one.logit_cf), dim=1)),
            }
            for member, one in given.items()
        ],
    }
