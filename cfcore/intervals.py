r"""One rule for all intervals: which interval each metric gets, and how it is made."""

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
        least, most: The smallest and the largest value that the statistic can have.
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


SHARE = Rule(0, 1)
ERROR = Rule(0, 1, pivotal=True, doubtful=ALWAYS)

# By simulation (benchmarks/coverage.py): the interval that covers better, and where neither does.
_RULES = {
    **dict.fromkeys(("Brier_orig", "Brier_marg", "D_abs"), SHARE),
    **dict.fromkeys(("S_flip", "D_obs"), Rule(0, 1, doubtful=LARGE)),  # if they seldom change
    "S_var": Rule(0, 0.25),
    **dict.fromkeys(("ECE_orig", "ECE_marg"), ERROR),
    **dict.fromkeys(("MCE_orig", "MCE_marg"), replace(ERROR, doubtful_difference=ALWAYS)),
    "S_rank": Rule(-1, 1, pivotal=True, doubtful=LARGE),
    "tau_b": Rule(-1, 1),
    "abs_rank_change": Rule(0, pivotal=True),
}


def rule(metric: str) -> Rule:
    """The rule of a metric by its name; risks, which have many names, are not negative.

    Example:
        >>> rule("ECE_orig").pivotal, rule("R_CVaR_0.10").pivotal, rule("R_CVaR_0.10").least
        (True, False, 0)
        >>> rule("S_rank").difference().most
        2
    """
    return _RULES.get(metric, Rule(0))


def interval(
    values: np.ndarray, *, rule: Rule, reach: float | None = None, level: float = 0.95
) -> tuple[float, float]:
    r"""The interval of one number over patients and, if given, a second source of uncertainty.

    The ends are quantiles of the replicates, in which patients are resampled. Where that biases the
    statistic, as it does absolute errors, which noise only increases, and ranks, which repeated
    patients tie, the pivotal interval
    :math:`[2\hat\theta - \theta^*_{\mathrm{high}},\; 2\hat\theta - \theta^*_{\mathrm{low}}]`
    takes the bias off, and so need not contain the estimate. Distances from the centre add up with
    the reach of an independent source by their squares (MOVER): :math:`\sqrt{(c - \mathrm{low})^2
    + \mathrm{reach}^2}` below and likewise above.

    References:
        Zou and Donner, Construction of confidence limits about effect measures: a general approach,
        Statistics in Medicine 27 (2008).

    Args:
        values: The statistic on all patients, then on each resample of them, shape (1 + B,).
        rule: How intervals of this statistic are made.
        reach: How far an interval over something else would reach, such as one over trainings.
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
        >>> interval(drawn, rule=Rule(0, 1), reach=1.0)
        (0.0, 1.0)
    """
    estimate, drawn = values[0], values[1:][~np.isnan(values[1:])]
    if np.isnan(estimate) or len(drawn) == 0:
        return np.nan, np.nan
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    centre = estimate
    if rule.pivotal:
        low, high, centre = 2 * estimate - high, 2 * estimate - low, 2 * estimate - drawn.mean()
    if reach is not None:
        centre = np.clip(centre, low, high)
        low, high = centre - np.hypot(centre - low, reach), centre + np.hypot(high - centre, reach)
    if rule.pivotal or reach is not None:  # percentiles of what can be found are in range
        low, high = np.clip((low, high), rule.least, rule.most)
    return float(low), float(high)
