"""The paper's metrics: pure functions of tensors, one for each equation.

They take the observed scores (N,), the counterfactual scores (N, K) and the intervention
probabilities q (K,), reduce in float64, run on any device without waiting for it, and return
tensors without axes. Values are not checked here: :func:`cfcore.evaluate` does that.
"""

from cfcore.metrics.calibration import (
    brier_score,
    expected_calibration_error,
    maximum_calibration_error,
)
from cfcore.metrics.discrimination import auc, stratified_auc, worst_gap
from cfcore.metrics.loss import (
    cross_entropy,
    cross_entropy_from_logits,
    marginal_cross_entropy,
    marginal_cross_entropy_from_logits,
    squared_error,
)
from cfcore.metrics.marginal import marginal_prediction, monte_carlo_prediction, rounded
from cfcore.metrics.ranking import (
    average_ranks,
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

__all__ = [
    "attribute_variance",
    "auc",
    "average_ranks",
    "brier_score",
    "cross_entropy",
    "cross_entropy_from_logits",
    "disagreement_rate",
    "expected_calibration_error",
    "expected_risk",
    "flip_rate",
    "kendall",
    "marginal_cross_entropy",
    "marginal_cross_entropy_from_logits",
    "marginal_prediction",
    "marginal_risk",
    "maximum_calibration_error",
    "mean_absolute_difference",
    "mean_absolute_rank_change",
    "monte_carlo_prediction",
    "original_risk",
    "rank_stability",
    "rounded",
    "squared_error",
    "stability_variance",
    "stratified_auc",
    "summarise",
    "tail_risk",
    "worst_case_risk",
    "worst_gap",
]
