"""An interval for every number, and for the difference of two predictors."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cfcore.checks import InputError, Numbers
from cfcore.evaluate import Table, check_question, check_table, evaluate_table
from cfcore.intervals import interval, rule
from cfcore.metrics.loss import Loss
from cfcore.metrics.summary import Question, names
from cfcore.resampling import Resampling, check_resampling, replicate

if TYPE_CHECKING:
    import pandas as pd

USAGE = "compare((p_obs, p_cf), (other_obs, other_cf), y)"


def bootstrap_table(table: Table, question: Question, sampling: Resampling) -> "pd.DataFrame":
    """Estimates and intervals of checked scores; see :func:`bootstrap`."""
    import pandas as pd

    estimates = evaluate_table(table, question)
    values = replicate(table, question, sampling)
    rows = []
    for name, estimate in estimates.items():
        every = np.append(estimate, values[name])
        rows.append((name, estimate, *interval(every, rule=rule(name), level=sampling.level)))
    frame = pd.DataFrame(rows, columns=["metric", "estimate", "low", "high"])
    doubted = [name for name in estimates if sampling.patients < rule(name).doubtful]
    frame.attrs["doubtful"] = doubted
    return frame


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
    population; not with another training run, and not with another generator. How often they hold
    the truth was simulated (``data/results/coverage.csv``). ``frame.attrs["doubtful"]`` names the
    metrics of which fewer than 90 % of intervals did for some predictor with so few patients:
    calibration errors, and decisions that seldom change; reports mark them. Of one patient there
    are no intervals: they are NaN, with a warning.

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
    rows, doubted = [], []
    for name in names(question, labelled=first.y is not None):
        pair = [estimate[name] for estimate in estimates]
        every = np.append(pair[1] - pair[0], values[1][name] - values[0][name])
        kind = rule(name).difference()
        rows.append((name, *pair, every[0], *interval(every, rule=kind, level=sampling.level)))
        doubted += [name] if sampling.patients < kind.doubtful else []
    columns = ["metric", "first", "second", "estimate", "low", "high"]
    frame = pd.DataFrame(rows, columns=columns)
    frame.attrs["doubtful"] = doubted
    return frame


def check_pairs(**given: object) -> None:
    """Refuse what is not a pair of arrays, such as the arguments of :func:`bootstrap`.

    Example:
        >>> check_pairs(first=np.array([0.2, 0.4]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: first: is not a pair of arrays; pass compare((p_obs, ...
    """
    for name, pair in given.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2 or np.isscalar(pair[0]):
            raise InputError(f"is not a pair of arrays; pass {USAGE}", column=name)


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
        three are about second minus first; ``attrs["doubtful"]`` as for :func:`bootstrap`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p = rng.random((50, 3))
        >>> frame = compare((p[:, 0], p), (p[:, 0], p), replicates=10, rank_replicates=2)
        >>> frame[["estimate", "low", "high"]].abs().to_numpy().max().item()
        0.0
    """
    check_pairs(first=first, second=second)
    tables = [check_table(*scores, y, q) for scores in (first, second)]
    question = check_question(threshold, alphas, bins, loss)
    rows = tables[0].obs.shape[0]
    if tables[1].obs.shape[0] != rows:
        raise InputError(
            f"has {tables[1].obs.shape[0]} rows, but first has {rows}", column="second"
        )
    sampling = check_resampling(rows, patient, replicates, rank_replicates, level, seed)
    return compare_tables(*tables, question, sampling)
