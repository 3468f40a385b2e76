"""Counterfactual marginalisation: how robust is a classifier to nuisance variables?

The paper is one expensive table and many cheap reductions. :class:`Predictions` is the table: what
a predictor says of every patient, observed and in K counterfactual worlds. :func:`evaluate`
reduces such a table to every metric of the paper, :func:`bootstrap` adds intervals,
:func:`compare` compares two predictors on the same patients.

What is listed here is imported when it is first used: torch takes a second, and a help text needs
none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cfcore import metrics as metrics
    from cfcore.checks import InputError, ScoreWarning, UndefinedMetricWarning
    from cfcore.evaluation import evaluate
    from cfcore.predictions import Predictions
    from cfcore.resampling import bootstrap, compare

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "Predictions",
    "ScoreWarning",
    "UndefinedMetricWarning",
    "bootstrap",
    "compare",
    "evaluate",
]

# No file bears the name of a function here: importing it would put the module in its place.
_HOMES = {"Predictions": "predictions", "evaluate": "evaluation"}
_HOMES |= dict.fromkeys(("bootstrap", "compare"), "resampling")


def __getattr__(name: str) -> object:
    if name == "metrics":
        return import_module("cfcore.metrics")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"cfcore.{_HOMES.get(name, 'checks')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
