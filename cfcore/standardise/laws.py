"""Laws of scores in each world, and the ends of the metrics that they leave open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cfcore.checks import InputError, check_count
from cfcore.standardise.bounds import Ends, flip_bounds, tail_bounds, variance_bounds
from cfcore.standardise.estimate import (
    Arrays,
    Pool,
    Standardised,
    folds_of,
    on_one_core,
    standardise,
)

LEAST = 50
"""Patients near a world, in number and in effect, below which nothing is said of it."""
MOST = 0.5
"""The share of patients without overlap above which nothing is said of a world."""
_RARE = np.array([0.001, 0.005, 0.01, 0.02])
_STEPS = np.sort(np.concatenate([np.linspace(0, 1, 33), _RARE, 1 - _RARE]))
_FEW = 30  # thresholds: scores with fewer values are not interpolated
_LEVELS = (np.arange(128) + 0.5) / 128
_SPLITS = 10
_ALPHAS = (0.5, 0.25, 0.1)
_TAIL = (1 - 0.95) / 2  # of the limits


def _below(logit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Thresholds, shape (T,), and whether each logit is at most each of them, shape (N, T)."""
    thresholds = np.unique(np.quantile(logit, _STEPS))
    return thresholds, (logit[:, None] <= thresholds).astype(float)


def _quantiles_of(share: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Quantiles at 128 levels, shape (..., U), from shares below thresholds, shape (..., T).

    Example:
        >>> levels = np.linspace(0, 1, 33)
        >>> bool(np.allclose(_quantiles_of(levels.copy(), levels), _LEVELS))
        True
        >>> np.unique(_quantiles_of(np.array([0.25, 1.0]), np.array([-3.0, 3.0]))).tolist()
        [-3.0, 3.0]
    """
    share = np.sort(np.nan_to_num(share).clip(0, 1), axis=-1)
    share[..., -1] = 1.0
    rows = share.reshape(-1, share.shape[-1])
    if len(thresholds) < _FEW:  # each threshold is a value that scores have
        found = np.stack([thresholds[np.searchsorted(row, _LEVELS)] for row in rows])
    else:
        rows[:, 0] = 0.0
        found = np.stack([np.interp(_LEVELS, row, thresholds) for row in rows])
    return found.reshape(*share.shape[:-1], len(_LEVELS))


def law_of_scores(
    logit: np.ndarray, pool: Pool, worlds: Arrays, target: Pool | None = None
) -> np.ndarray:
    """The quantiles of the logit in each world, shape (K, U), from observed logits, shape (N,).

    Other arguments are as for :func:`~cfcore.standardise.estimate.standardise`.
    """
    thresholds, under = _below(logit)
    return _quantiles_of(standardise(under, pool, worlds, target=target).estimate, thresholds)


@dataclass(frozen=True)
class _Part:
    """The patients of one label, and what is known of them in the worlds, under q.

    The functions that were standardised are shares below thresholds, the decision and the score.
    """

    label: float | None
    positive: np.ndarray
    known: Standardised
    thresholds: np.ndarray
    worlds: Arrays
    q: np.ndarray

    @property
    def supported(self) -> np.ndarray:
        """Of which worlds something is said, shape (K,)."""
        enough = (self.known.near >= LEAST) & (self.known.effective >= LEAST)
        return enough & (self.known.scarce <= MOST)

    def laws(self, weight: np.ndarray) -> tuple[np.ndarray, ...]:
        """What is known if patients count by weights, shape (B, P).

        Returns:
            Quantiles of the logit in each world, shape (B, K, U); mean scores, (B, K); shares of
            positive decisions, observed and in each world, (B, 1 + K).
        """
        here, there = (weight[:, rows] for rows in self.known.patient)
        here = here / np.maximum(here.sum(axis=1, keepdims=True), 1e-300)
        expected = np.tensordot(here, self.known.outcome, axes=1)  # (B, K, F)
        for k, own in enumerate(self.known.weight.T):
            share = there * own
            share /= np.maximum(share.sum(axis=1, keepdims=True), 1e-300)
            expected[:, k] += share @ self.known.residual
        decisions = np.column_stack([here @ self.positive, expected[:, :, -2]])
        logits = _quantiles_of(expected[:, :, :-2], self.thresholds)
        return logits, expected[:, :, -1], decisions

    def ends(self, pair: Sequence[tuple]) -> dict[str, Ends]:
        """The ends of every metric, each of shape (B,): the first laws select, the others value."""
        q, known = self.q, np.where(self.supported, self.q, 0.0)
        logits, means, positive = zip(*pair, strict=True)
        scores = [1 / (1 + np.exp(-each)) for each in logits]
        low, high = variance_bounds(scores[0], known, scores[1])
        left_out = (1 - (q**2).sum()) - (known.sum() ** 2 - (known**2).sum())
        found = {"S_var": (low, high + left_out / 2)}
        # Along one attribute, individual scores vary at least as much as their mean does.
        for name, values in self.worlds.items() if len(self.worlds) > 1 else ():
            same = (values == np.unique(values)[:, None]) * q  # (values, K)
            share = np.maximum(same.sum(axis=1), 1e-300)
            sure = np.where((same[:, ~self.supported] > 0).any(axis=1), 0.0, share)
            curves = [(each @ (same / share[:, None]).T)[..., None] for each in means]
            along = variance_bounds(curves[0], sure, curves[1])[0]
            found[f"S_var_{name}"] = along, np.full_like(along, np.inf)
        shares = [(each[:, 0], each[:, 1:]) for each in positive]
        low, high = flip_bounds(*shares[0], shares[1])
        found["S_flip"] = low @ known, high @ known + (1 - known.sum())
        if self.label is None:
            return found
        sign = 1 if self.label else -1
        losses = [np.logaddexp(0, -sign * each)[..., ::-sign] for each in logits]
        for each in losses:
            each[:, ~self.supported] = 0.0
        open_end = 0.0 if self.supported[q > 0].all() else np.inf
        for alpha in (*_ALPHAS, 0.0):
            low, high = tail_bounds(losses[0], q, alpha, losses[1])
            found[f"R_CVaR_{alpha:.2f}" if alpha else "R_WC"] = low, high + open_end
        return found


@on_one_core
def metric_bounds(
    logit: np.ndarray,
    pool: Pool,
    worlds: Arrays,
    q: np.ndarray,
    *,
    target: Pool | None = None,
    target_logit: np.ndarray | None = None,
    width: Mapping[str, float] | None = None,
    replicates: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """Between which ends the metrics lie that join several worlds of a patient.

    Laws are standardised over what is held, within each label, so they rest on no more than
    :func:`~cfcore.standardise.estimate.standardise` does. Half the patients select what the other
    half values, in 10 random halvings, so that noise does not push the ends apart. Worlds with
    fewer than 50 observed patients, or without overlap for half the population, leave the ends as
    open as they can be; elsewhere patients without overlap are judged by the regression.

    Args:
        logit: Observed logits of the pool, shape (N,).
        pool, worlds, target, width: As for :func:`~cfcore.standardise.estimate.standardise`; the
            label is ``held["y"]``, if there is one.
        q: Intervention probabilities, shape (K,).
        target_logit: Observed logits of the target, if there is one.

    Returns:
        A frame ``metric, low, high, low_limit, high_limit``; both limits hold together with a
        chance of about 95 %, where there is overlap. Of ``S_var_NAME``, the part that is due to
        one attribute, the lower end is the variance of the mean score along it. Decisions are
        ``p > 0.5``.
    """
    check_count(replicates, "replicates", least=2)
    if (target is None) != (target_logit is None):
        raise InputError("a target needs its own logits, and they need a target", column="target")
    thresholds, under = _below(logit)
    values = np.column_stack([under, logit > 0, 1 / (1 + np.exp(-logit))])
    known = standardise(values, pool, worlds, target=target, width=width, seed=seed)
    population, own = (pool, logit) if target is None else (target, target_logit)
    common = thresholds, worlds, q
    labels = known.by_label(population, pool)
    parts = [_Part(y, own[here] > 0, part, *common) for y, here, part in labels]
    rng, count = np.random.default_rng(seed), known.people
    plain = _joint(parts, np.ones((1, count)), np.ones((2, 1, count)))
    half = rng.random((_SPLITS, count)) < 0.5
    split = _joint(parts, np.ones(half.shape), (half, ~half))
    drawn = [
        _joint(parts, rng.exponential(size=half.shape), (half, ~half))
        for half in np.array_split(rng.random((replicates, count)) < 0.5, max(1, replicates // 50))
    ]
    rows = []
    for name in plain:
        own = {"metric": name}
        for side, (end, of) in enumerate((("low", 1 - _TAIL), ("high", _TAIL))):
            own[end] = own[f"{end}_limit"] = split[name][side].mean()
            if np.isfinite(own[end]):
                moved = np.concatenate([each[name][side] for each in drawn]) - plain[name][side]
                own[f"{end}_limit"] -= np.quantile(moved, of)
            if end == "low":  # no metric is negative, though a product of two halves may be
                own |= {name: max(own[name], 0.0) for name in ("low", "low_limit")}
        rows.append(own)
    return pd.DataFrame(rows, columns=["metric", "low", "high", "low_limit", "high_limit"])


def _joint(parts: Sequence[_Part], weight: np.ndarray, halves: Sequence) -> dict[str, Ends]:
    """The ends over all labels, each of shape (B,), for weights of the patients, shape (B, P)."""
    shares = [weight[:, part.known.patient[0]].sum(axis=1) for part in parts]
    found = {}
    for part, share in zip(parts, shares, strict=True):
        pair = [part.laws(weight * half) for half in halves]
        for name, ends in part.ends(pair).items():
            found[name] = found.get(name, 0.0) + np.array(ends) * share / np.sum(shares, axis=0)
    return found


def variance_of_means(score: np.ndarray, pool: Pool, worlds: Arrays, q: np.ndarray) -> float:
    r"""The lower end of :math:`S_\mathrm{var}` given all that is held, from mean scores.

    .. math:: E_{c, y} \mathrm{Var}_{k} \, E[ g \mid a_k, c, y ]

    Beside the end by laws, neither always the higher, this one rests on a model: the regression
    must be right for every combination of what is held, not on average. Two halves of the
    patients have a regression each, and the product is taken, so that noise adds nothing.

    Args:
        score: Observed scores, shape (N,).
        pool, worlds, q: As for :func:`metric_bounds`.
    """
    halves = []
    for _, rows in folds_of(pool.patient, 2):
        found = standardise(score[rows, None], pool.take(rows), worlds, target=pool)
        expected = found.outcome[:, :, 0]
        halves.append(expected - (expected @ q)[:, None])
    return float((halves[0] * halves[1] @ q).mean())
