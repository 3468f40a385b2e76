"""The paper's metrics: pure functions of tensors, one for each equation.

They reduce in float64, run on any device without waiting for it, and return tensors without axes.
A metric that is a mean over patients also has its summands, (N,), as ``metric.by_patient``. Values
are not checked here: :func:`cfcore.evaluate` does that. By hand: :doc:`/notebooks/metrics`.
"""
# ruff: noqa: F401

from cfcore.metrics.calibration import (
    brier_score,
    expected_calibration_error,
    maximum_calibration_error,
)
from cfcore.metrics.loss import cross_entropy, cross_entropy_from_logits
from cfcore.metrics.marginal import marginal_prediction, monte_carlo_prediction, rounded
from cfcore.metrics.ranking import (
    auc,
    average_precision,
    kendall,
    mean_absolute_rank_change,
    rank_stability,
)
from cfcore.metrics.risk import (
    expected_risk,
    marginal_risk,
    original_risk,
    tail_risk,
    worst_case_risk,
)
from cfcore.metrics.stability import (
    attribute_variance,
    disagreement_rate,
    flip_rate,
    mean_absolute_difference,
    stability_variance,
)
from cfcore.metrics.summary import summarise

__all__ = sorted(name for name, thing in globals().items() if callable(thing) and name[0] != "_")
