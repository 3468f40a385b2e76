"""Counterfactual marginalisation: how robust is a classifier to nuisance variables?

The paper is one expensive table and many cheap reductions. :class:`Predictions` is the table: what
a predictor says of every patient, observed and in K counterfactual worlds; :func:`marginalise`
fills it. :func:`evaluate` reduces it to every metric of the paper, :func:`bootstrap` adds
intervals, :func:`compare` compares two predictors on the same patients. :func:`check_generator`
asks whether observed patients refute the counterfactuals.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cfcore import metrics as metrics
    from cfcore.checks import InputError, ScoreWarning, UndefinedMetricWarning
    from cfcore.evaluation import evaluate
    from cfcore.graph import CausalGraph, Variable
    from cfcore.interventions import Grid
    from cfcore.marginalise import marginalise
    from cfcore.patients import Patients
    from cfcore.predictions import Predictions
    from cfcore.resampling import bootstrap, compare
    from cfcore.standardise.check import check_generator

__version__ = "0.1.0"
__all__ = ["CausalGraph", "Grid", "InputError", "Patients", "Predictions", "ScoreWarning"]
__all__ += ["UndefinedMetricWarning", "Variable", "bootstrap", "check_generator"]
__all__ += ["compare", "evaluate", "marginalise"]

_HOMES = {"CausalGraph": "graph", "Variable": "graph", "Grid": "interventions"}
_HOMES |= {"Patients": "patients", "Predictions": "predictions", "marginalise": "marginalise"}
_HOMES |= {"evaluate": "evaluation", "bootstrap": "resampling", "compare": "resampling"}
_HOMES |= {"check_generator": "standardise.check"}


class _Package(ModuleType):
    """A package in which no file hides the function of its name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in __all__ or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    """What is listed is imported when it is first used: torch takes a second, a help text none."""
    if name == "metrics":
        return import_module("cfcore.metrics")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"cfcore.{_HOMES.get(name, 'checks')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
