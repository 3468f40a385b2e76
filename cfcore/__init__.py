"""Counterfactual marginalisation: how robust is a classifier to nuisance variables?

The paper is one expensive table and many cheap reductions. :class:`Predictions` is the table: what
a predictor says of every patient, observed and in K counterfactual worlds. :func:`evaluate`
reduces such a table to every metric of the paper, :func:`bootstrap` adds intervals,
:func:`compare` compares two predictors on the same patients.

What is listed here is imported when it is first used: torch takes a second, and a help text needs
none of it.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cfcore import metrics as metrics
    from cfcore.bootstrap import bootstrap, compare
    from cfcore.checks import InputError, ScoreWarning, UndefinedMetricWarning
    from cfcore.evaluate import evaluate
    from cfcore.predictions import Predictions

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

_HOMES = {
    "InputError": "checks",
    "Predictions": "predictions",
    "ScoreWarning": "checks",
    "UndefinedMetricWarning": "checks",
    "bootstrap": "bootstrap",
    "compare": "bootstrap",
    "evaluate": "evaluate",
}


class _Package(ModuleType):
    """The package, in which ``cfcore.evaluate`` is always the function.

    Whoever imports the file ``cfcore/evaluate.py`` makes Python bind the module to the same name.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> object:
        if name == "metrics":
            return import_module("cfcore.metrics")
        if name not in _HOMES:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"cfcore.{_HOMES[name]}"), name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
