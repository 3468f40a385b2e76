"""An interval for every number, and for the difference of two predictors."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cfcore.checks import InputError, Numbers
from cfcore.evaluate import Table, check_question, check_table, evaluate_table
from cfcore.metrics.loss import Loss
from cfcore.metrics.summary import Question, names
from cfcore.resampling import Resampling, check_resampling, replicate

if TYPE_CHECKING:
    import pandas as pd

# Metrics that resampling biases, and their ranges.
BIASED = {
    "ECE_orig": (0.0, 1.0),
    "MCE_orig": (0.0, 1.0),
    "ECE_marg": (0.0, 1.0),
    "MCE_marg": (0.0, 1.0),
    "S_rank": (-1.0, 1.0),
    "tau_b": (-1.0, 1.0),
    "abs_rank_change": (0.0, np.inf),
}


def interval(estimate: float, values: np.ndarray, level: float, *, biased: bool) -> np.ndarray:
    r"""The interval of one number from its replicates.

    The percentile interval for means over patients. Calibration errors and rank metrics are
    biased by resampling (errors add up; repeated patients are tied), and for them it may miss the
    truth nearly always; they get the pivotal interval
    :math:`[2\hat\theta - \theta^*_{\mathrm{high}},\; 2\hat\theta - \theta^*_{\mathrm{low}}]`, which
    takes the bias off and so need not contain the estimate.

    Args:
        estimate: The number on the data.
        values: The number on each replicate, shape (B,).
        level: The coverage aimed at.
        biased: Whether resampling biases the number.

    Returns:
        The lower and the upper end; NaN if there are no defined values.

    Example:
        >>> interval(0.5, np.array([0.5, 0.6, 0.7]), 1.0, biased=False).tolist()
        [0.5, 0.7]
        >>> interval(0.5, np.array([0.5, 0.6, 0.7]), 1.0, biased=True).round(3).tolist()
        [0.3, 0.5]
    """
    values = values[~np.isnan(values)]
    if np.isnan(estimate) or len(values) == 0:
        return np.array([np.nan, np.nan])
    ends = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return 2 * estimate - ends[::-1] if biased else ends


def bootstrap_table(table: Table, question: Question, sampling: Resampling) -> "pd.DataFrame":
    """Estimates and intervals of checked scores; see :func:`bootstrap`."""
    import pandas as pd

    estimates = evaluate_table(table, question)
    values = replicate(table, question, sampling)
    rows = []
    for name, estimate in estimates.items():
        ends = interval(estimate, values[name], sampling.level, biased=name in BIASED)
        rows.append((name, estimate, *ends.clip(*BIASED.get(name, (-np.inf, np.inf)))))
    return pd.DataFrame(rows, columns=["metric", "estimate", "low", "high"])


def bootstrap(
    p_obs: Numbers,
    p_cf: Numbers,
    y: Numbers | None = None,
    *,
    q: Numbers | None = None,
    threshold: float = 0.5,
    alphas: Sequence[float] = (0.5, 0.25, 0.1),
    bins: int = 10,
    loss: str | Loss = "bce",
    patient: Sequence[int] | Sequence[str] | None = None,
    replicates: int = 1000,
    rank_replicates: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> "pd.DataFrame":
    """Every metric with an interval, by resampling patients.

    The intervals say how much the numbers would change with other patients from the same
    population; not with another training run, and not with another generator. Simulations in the
    tests show their coverage: close to nominal for means over patients and for ranks, too low for
    the calibration errors of a nearly calibrated predictor in a small sample, and for rates of
    which there are only a handful of cases.

    Args:
        p_obs: Probabilities on the observed images, shape (N,).
        p_cf: Probabilities on the counterfactual images, shape (N, K).
        y: Labels 0 or 1, shape (N,), if known.
        q: Intervention probabilities, shape (K,); uniform by default.
        threshold: Decisions are ``p > threshold``, strictly.
        alphas: Tail masses in [0, 1].
        bins: The number of calibration bins.
        loss: As for :func:`cfcore.evaluate`.
        patient: A patient identifier for each row, if a patient can have several rows; all rows
            of a patient are drawn together.
        replicates: How many samples to draw.
        rank_replicates: How many of them to use for rank metrics, which cost more.
        level: The coverage aimed at.
        seed: The seed of the draws.

    Returns:
        A frame with the columns ``metric, estimate, low, high``.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p_cf = rng.random((200, 4))
        >>> frame = bootstrap(p_cf[:, 0], p_cf, replicates=100, rank_replicates=20)
        >>> list(frame.columns), len(frame)
        (['metric', 'estimate', 'low', 'high'], 7)
        >>> bool((frame.low <= frame.high).all())
        True
    """
    table = check_table(p_obs, p_cf, y, q)
    question = check_question(threshold, alphas, bins, loss)
    rows = table.obs.shape[0]
    sampling = check_resampling(rows, patient, replicates, rank_replicates, level, seed)
    return bootstrap_table(table, question, sampling)


def compare_tables(
    first: Table, second: Table, question: Question, sampling: Resampling
) -> "pd.DataFrame":
    """Differences of two checked tables about the same rows; see :func:`compare`."""
    import pandas as pd

    estimates = [evaluate_table(table, question) for table in (first, second)]
    values = [replicate(table, question, sampling) for table in (first, second)]
    rows = []
    for name in names(question, labelled=first.y is not None):
        pair = [estimate[name] for estimate in estimates]
        change = values[1][name] - values[0][name]
        ends = interval(pair[1] - pair[0], change, sampling.level, biased=name in BIASED)
        rows.append((name, *pair, pair[1] - pair[0], *ends))
    return pd.DataFrame(rows, columns=["metric", "first", "second", "estimate", "low", "high"])


def compare(
    first: tuple[Numbers, Numbers],
    second: tuple[Numbers, Numbers],
    y: Numbers | None = None,
    *,
    q: Numbers | None = None,
    threshold: float = 0.5,
    alphas: Sequence[float] = (0.5, 0.25, 0.1),
    bins: int = 10,
    loss: str | Loss = "bce",
    patient: Sequence[int] | Sequence[str] | None = None,
    replicates: int = 1000,
    rank_replicates: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> "pd.DataFrame":
    """Two predictors on the same patients: how much larger is each metric of the second?

    Both are evaluated on the same resampled patients, so that what makes a patient difficult for
    both cancels, and the interval is of the difference itself.

    Args:
        first: ``(p_obs, p_cf)`` of the first predictor.
        second: ``(p_obs, p_cf)`` of the second predictor, the same patients in the same order.
        y: Labels 0 or 1, shape (N,), if known.
        q: Intervention probabilities, shape (K,); uniform by default.
        threshold: Decisions are ``p > threshold``, strictly.
        alphas: Tail masses in [0, 1].
        bins: The number of calibration bins.
        loss: As for :func:`cfcore.evaluate`.
        patient: A patient identifier for each row.
        replicates: How many samples to draw.
        rank_replicates: How many of them to use for rank metrics.
        level: The coverage aimed at.
        seed: The seed of the draws.

    Returns:
        A frame with the columns ``metric, first, second, estimate, low, high``, where the last
        three are about second minus first.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p = rng.random((50, 3))
        >>> frame = compare((p[:, 0], p), (p[:, 0], p), replicates=10, rank_replicates=2)
        >>> frame[["estimate", "low", "high"]].abs().to_numpy().max().item()
        0.0
    """
    tables = [check_table(*scores, y, q) for scores in (first, second)]
    question = check_question(threshold, alphas, bins, loss)
    rows = tables[0].obs.shape[0]
    if tables[1].obs.shape[0] != rows:
        raise InputError(
            f"has {tables[1].obs.shape[0]} rows, but first has {rows}", column="second"
        )
    sampling = check_resampling(rows, patient, replicates, rank_replicates, level, seed)
    return compare_tables(*tables, question, sampling)
