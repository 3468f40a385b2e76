"""Counterfactual marginalisation: how robust is a classifier to nuisance variables?

The paper is one expensive table and many cheap reductions. :class:`Predictions` is the table: what
a predictor says of every patient, observed and in K counterfactual worlds. :func:`evaluate`
reduces such a table to every metric of the paper, :func:`bootstrap` adds intervals,
:func:`compare` compares two predictors on the same patients.
"""

from cfcore.bootstrap import bootstrap, compare
from cfcore.checks import InputError, ScoreWarning
from cfcore.evaluate import UndefinedMetricWarning, evaluate
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
