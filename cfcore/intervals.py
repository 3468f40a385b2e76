r"""One rule for the intervals of metrics and claims.

Two things vary: which patients are in the test set, and how a training went. Patients are resampled
within the trainings at hand; trainings are too few to be resampled, and get a t interval. This
module holds which interval each statistic gets (:data:`RULES`) and makes it (:func:`interval`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

SMALL, LARGE = 300, 1500  # patients, at which coverage was simulated
ALWAYS = 10**9
DAGGER = "†"
NOTE = (
    f"{DAGGER} with so few patients, fewer than 90 % of such intervals held the truth about some "
    "simulated predictor (data/results/coverage.csv)"
)
"""What the dagger means, for whoever reads a table or a figure."""


@dataclass(frozen=True)
class Rule:
    """How the interval of a statistic is made.

    Attributes:
        least: The smallest value that the statistic can have.
        most: The largest.
        pivotal: Whether resampling patients biases it, so that the interval is the pivotal one.
        doubtful: With fewer patients than this, fewer than 90 % of the intervals that aim at 95 %
            held the truth about some simulated predictor.
        doubtful_difference: The same for the difference of two predictors.
    """

    least: float = -np.inf
    most: float = np.inf
    pivotal: bool = False
    doubtful: int = 0
    doubtful_difference: int = 0

    def difference(self) -> "Rule":
        """The rule for the difference of two such statistics."""
        reach, doubtful = self.most - self.least, self.doubtful_difference
        return replace(self, least=-reach, most=reach, doubtful=doubtful)


RISK, SHARE, VARIANCE = Rule(0), Rule(0, 1), Rule(0, 0.25)
ERROR = Rule(0, 1, pivotal=True)

# By simulation (benchmarks/coverage.py): the interval that covers better, and where neither does.
RULES = {
    **dict.fromkeys(("Brier_orig", "Brier_marg", "D_abs"), SHARE),
    **dict.fromkeys(
        ("S_flip", "D_obs"), replace(SHARE, doubtful=LARGE)
    ),  # if decisions seldom change
    **dict.fromkeys(("S_var", "S_var_sex", "S_var_age"), VARIANCE),
    **dict.fromkeys(("AUC", "AUC_men", "AUC_women", "score_sex", "score_age"), SHARE),
    **dict.fromkeys(("null_flip", "null_abs"), SHARE),
    "ECE_orig": replace(ERROR, doubtful=ALWAYS),
    "ECE_marg": replace(ERROR, doubtful=ALWAYS),
    "ECE_q": replace(ERROR, doubtful=ALWAYS),
    "MCE_orig": replace(ERROR, doubtful=ALWAYS, doubtful_difference=ALWAYS),
    "MCE_marg": replace(ERROR, doubtful=ALWAYS, doubtful_difference=LARGE),
    "S_rank": Rule(-1, 1, pivotal=True, doubtful=LARGE),
    "tau_b": Rule(-1, 1),
    "abs_rank_change": Rule(0, pivotal=True),
    "gap_sex": SHARE,
    "gap_race": replace(ERROR, doubtful=ALWAYS, doubtful_difference=ALWAYS),
    "gap_age": replace(SHARE, doubtful=ALWAYS),
    "variance_ratio": Rule(0, doubtful=ALWAYS, doubtful_difference=ALWAYS),
}
"""The rule of each statistic, by its name."""


def rule(statistic: str) -> Rule:
    """The rule of a statistic by its name; risks, which have many names, are not negative.

    Example:
        >>> rule("ECE_orig").pivotal, rule("R_CVaR_0.10").pivotal, rule("R_CVaR_0.10").least
        (True, False, 0)
        >>> rule("S_rank").difference().most
        2
    """
    return RULES.get(statistic, RISK)


def interval(
    values: np.ndarray, left_out: Sequence[float] = (), *, rule: Rule, level: float = 0.95
) -> tuple[float, float]:
    r"""The interval of one number, over patients and, if there are several, over trainings.

    *Patients.* The ends are quantiles of the replicates, in which patients are resampled and the
    trainings stay; where resampling biases the statistic, as it does absolute errors, which noise
    only increases, and ranks, which repeated patients tie, the pivotal interval
    :math:`[2\hat\theta - \theta^*_{\mathrm{high}},\; 2\hat\theta - \theta^*_{\mathrm{low}}]`
    takes the bias off, and so need not contain the estimate.

    *Trainings.* A jackknife that leaves out one of :math:`S` trainings at a time gives the standard
    error, which for a mean over trainings is :math:`s / \sqrt{S}`, and :math:`t_{S-1}` how far it
    reaches: with three trainings, 4.3 of them. Test patients are drawn independently of the
    trainings, so the two sources are independent, and distances from the centre add up by their
    squares (MOVER):
    :math:`\sqrt{(c - \mathrm{low})^2 + (t\,\mathrm{se})^2}` below and likewise above. What
    varies between trainings in the same patients is counted twice, which makes the interval a
    little too wide rather than too narrow.

    References:
        Zou and Donner, Construction of confidence limits about effect measures: a general approach,
        Statistics in Medicine 27 (2008).

    Args:
        values: The statistic on all patients, then on each resample of them, shape (1 + B,).
        left_out: The statistic without each training in turn, shape (S,); none of one training,
            whose interval is about patients only: how trainings vary is then unknown.
        rule: How intervals of this statistic are made.
        level: The coverage aimed at.

    Returns:
        The lower and the upper end; NaN if there are no defined replicates.

    Example:
        >>> drawn = np.array([0.5, 0.5, 0.6, 0.7])
        >>> interval(drawn, rule=Rule(), level=1.0)
        (0.5, 0.7)
        >>> low, high = interval(drawn, rule=Rule(pivotal=True), level=1.0)
        >>> round(low, 3), high
        (0.3, 0.5)
        >>> low, high = interval(drawn, [0.4, 0.5, 0.6], rule=Rule(0, 1))
        >>> round(low, 3), high
        (0.008, 1.0)
    """
    estimate, drawn = values[0], values[1:][~np.isnan(values[1:])]
    if np.isnan(estimate) or len(drawn) == 0:
        return np.nan, np.nan
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    centre = estimate
    if rule.pivotal:
        low, high, centre = 2 * estimate - high, 2 * estimate - low, 2 * estimate - drawn.mean()
    if len(left_out) > 1:
        centre, reach = np.clip(centre, low, high), training_reach(left_out, level)
        low, high = centre - np.hypot(centre - low, reach), centre + np.hypot(high - centre, reach)
    if rule.pivotal or len(left_out) > 1:  # percentiles of what can be found are in range
        low, high = np.clip((low, high), rule.least, rule.most)
    return float(low), float(high)


def training_reach(left_out: Sequence[float], level: float) -> float:
    """How far a t interval over trainings reaches, by the jackknife.

    Example:
        >>> by_training = np.array([1.0, 2.0, 3.0])
        >>> reach = training_reach(means_without_each(by_training), 0.95)
        >>> round(reach / by_training.std(ddof=1).item() * 3**0.5, 3)  # the quantile of t
        4.303
    """
    from scipy import stats

    count = len(left_out)
    error = np.std(left_out) * np.sqrt(count - 1)
    return float(stats.t.ppf((1 + level) / 2, count - 1) * error)


def means_without_each(values: np.ndarray) -> np.ndarray:
    """The mean of all values but one, for each, shape (S,); nothing of a single value.

    Example:
        >>> means_without_each(np.array([1.0, 2.0, 6.0])).tolist()
        [4.0, 3.5, 1.5]
    """
    if len(values) < 2:
        return np.empty(0)
    return (values.sum() - values) / (len(values) - 1)
