"""The matrix of the playground: what six predictors say of each patient in sixteen worlds."""

import base64
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cfbook.production.interactive.members import MEMBERS, label
from cfbook.study.recipes import Preset
from cfbook.study.runs import Member, Run, predictions
from cfcore.interventions import Grid
from cfcore.predictions import Predictions

PATIENTS = 320  # twenty for each of sixteen worlds


def matrix(preset: Preset) -> dict[Member, Predictions]:
    """The first patients of the balanced test set of hospital C, logits in float32."""
    found = predictions(Run(preset, "C->C", "balanced"))
    return {member: head(found[member], PATIENTS) for member in MEMBERS}


def head(given: Predictions, rows: int) -> Predictions:
    """The first rows of predictions on a common grid, logits in float32."""
    logits = ("logit_obs", "logit_null", "logit_cf")
    return replace(
        given,
        **{name: getattr(given, name)[:rows].float() for name in logits},
        y=given.y[:rows],
        parents={name: values[:rows] for name, values in given.parents.items()},
        patient=given.patient[:rows],
    )


def encoded(values: Tensor) -> str:
    """Numbers as base64 of little-endian float32.

    Example:
        >>> encoded(torch.tensor([1.0]))
        'AACAPw=='
    """
    return base64.b64encode(values.to(torch.float32).numpy().astype("<f4").tobytes()).decode()


def playground(given: Mapping[Member, Predictions]) -> dict[str, object]:
    """The data of the metric playground, ready for JSON.

    Args:
        given: Predictions of the same patients on the same grid.

    Returns:
        ``worlds``, each with ``sex`` and ``age``; ``nearest``, how many patients are nearest to
        each world, the empirical q; ``patients`` with ``sex``, ``age`` and ``y``; and
        ``predictors`` with ``label`` and ``logits``: for each patient the observed one, then one
        for each world, :func:`encoded`.
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
                "logits": encoded(torch.cat((one.logit_obs[:, None], one.logit_cf), dim=1)),
            }
            for member, one in given.items()
        ],
    }
