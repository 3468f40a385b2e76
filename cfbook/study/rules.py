r"""Which interval each statistic of the study gets, and how far the trainings widen it.

Two things vary: which patients are in the test set, and how a training went. Patients are resampled
within the trainings at hand (:mod:`cfcore.intervals`); trainings are too few to be resampled, and
get a t interval. The two are drawn independently, so that their squares add up; what varies between
trainings in the same patients is counted twice, so that intervals are rather too wide.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cfcore import intervals
from cfcore.intervals import ALWAYS, ERROR, LARGE, SHARE, Rule

# By simulation (benchmarks/coverage.py), as for the metrics.
_RULES = {
    **dict.fromkeys(("AUC", "AUC_men", "AUC_women", "gap_sex", "score_sex", "score_age"), SHARE),
    **dict.fromkeys(("null_flip", "null_abs"), SHARE),
    **dict.fromkeys(("S_var_sex", "S_var_age"), intervals.rule("S_var")),
    "ECE_q": ERROR,
    **dict.fromkeys(("gap_race", "gap_age"), replace(ERROR, doubtful_difference=ALWAYS)),
    "variance_ratio": Rule(0, doubtful=ALWAYS, doubtful_difference=LARGE),
    "gap_coin": SHARE,
    "marginal_accuracy": Rule(-1, 1, pivotal=True, doubtful=LARGE),
}


def rule(statistic: str) -> Rule:
    """The rule of a statistic by its name; those of the metrics are :func:`cfcore.intervals.rule`.

    Example:
        >>> rule("gap_race").pivotal, rule("gap_sex").pivotal, rule("R_IE").least
        (True, False, 0)
    """
    return _RULES.get(statistic) or intervals.rule(statistic)


def training_reach(left_out: Sequence[float]) -> float | None:
    r"""How far a 95 % interval over trainings reaches to either side.

    A jackknife that leaves out one of :math:`S` trainings at a time gives the standard error, which
    for a mean over trainings is :math:`s / \sqrt{S}`, and :math:`t_{S-1}` how many of them it
    reaches: with three trainings, 4.3.

    Args:
        left_out: The statistic without each training in turn, shape (S,).

    Returns:
        The reach; None of one training, from which it is unknown.

    Example:
        >>> by_training = np.array([1.0, 2.0, 3.0])
        >>> reach = training_reach((by_training.sum() - by_training) / 2)  # means without each
        >>> round(reach / by_training.std(ddof=1).item() * 3**0.5, 3)
        4.303
    """
    from scipy import stats

    count = len(left_out)
    if count < 2:
        return None
    error = np.std(left_out) * np.sqrt(count - 1)
    return float(stats.t.ppf(0.975, count - 1) * error)
