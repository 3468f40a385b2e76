r"""Between which ends a metric lies that joins several worlds of a patient.

Observed scores say which law a score, or a loss, has in each world, but not which value of one
world goes with which of another. If the patient who is highest in one world is highest in all (the
comonotone coupling), the worlds are as alike as their laws allow: this gives the lower ends.

All laws come as quantiles at U equally spaced levels, shape (..., K, U). A bound of laws that are
themselves estimated is biased outwards, because noise makes laws differ. With quantiles of the same
laws from ``other`` patients this cancels: one half of the patients says which world is the worst,
or which difference is positive, and the other half how large it is.
"""

import numpy as np

Ends = tuple[np.ndarray, np.ndarray]
"""The lower and the upper end."""


def variance_bounds(quantiles: np.ndarray, q: np.ndarray, other: np.ndarray | None = None) -> Ends:
    r"""Ends of :math:`S_\mathrm{var}`, from laws of scores.

    .. math:: \tfrac12 \sum_{k, l} q_k q_l \, E (g_k - g_l)^2

    Below, every pair of worlds is comonotone, which all pairs can be at once. Above, every pair is
    antimonotone, which three worlds cannot be: this end is valid, not sharp.

    Example:
        >>> laws, q = np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([0.5, 0.5])
        >>> [float(end) for end in variance_bounds(laws, q)]
        [0.0, 0.25]
    """
    other = quantiles if other is None else other
    pairs = q[:, None] * q / 2
    np.fill_diagonal(pairs, 0.0)
    square = (quantiles * other).mean(axis=-1)

    def end(theirs: np.ndarray) -> np.ndarray:
        cross = quantiles @ np.swapaxes(theirs, -1, -2) / quantiles.shape[-1]
        gaps = square[..., :, None] + square[..., None, :] - cross - np.swapaxes(cross, -1, -2)
        return (pairs * gaps).sum(axis=(-1, -2))

    return end(other), end(other[..., ::-1])


def tail_bounds(
    quantiles: np.ndarray, q: np.ndarray, alpha: float, other: np.ndarray | None = None
) -> Ends:
    r"""Ends of the tail risk :math:`R_{\mathrm{CVaR}, \alpha}`, from laws of losses.

    Above, :math:`\min_c \; c + \alpha^{-1} \sum_k q_k E (L_k - c)_+`; with :math:`\alpha = 0`, the
    worst case, :math:`\min_c \; c + \sum_k E (L_k - c)_+`.

    Example:
        >>> laws, q = np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([0.5, 0.5])
        >>> [float(end) for end in tail_bounds(laws, q, 0.0)]
        [0.5, 1.0]
    """
    other = quantiles if other is None else other
    by_level, theirs = np.swapaxes(quantiles, -1, -2), np.swapaxes(other, -1, -2)
    worst = np.argsort(-by_level, axis=-1, kind="stable")
    mass = np.cumsum(q[worst], axis=-1)
    before = mass - q[worst]
    if alpha == 0:  # the worst world that can happen
        share = ((before <= 1e-12) & (mass > 1e-12)).astype(float)
    else:
        share = (np.minimum(mass, alpha) - np.minimum(before, alpha)) / alpha
    low = (np.take_along_axis(theirs, worst, axis=-1) * share).sum(axis=-1).mean(axis=-1)
    # The best c is where the worlds together exceed it with mass one: a quantile of all losses.
    scale, levels = q / alpha if alpha else (q > 0).astype(float), quantiles.shape[-1]
    pooled = quantiles.reshape(*quantiles.shape[:-2], -1)
    order = np.argsort(-pooled, axis=-1)
    above = np.cumsum(np.repeat(scale / levels, levels)[order], axis=-1)
    last = np.take_along_axis(order, (above < 1 - 1e-9).sum(axis=-1, keepdims=True), axis=-1)
    c = np.take_along_axis(pooled, last, axis=-1)
    return low, c[..., 0] + np.maximum(other - c[..., None], 0).mean(axis=-1) @ scale


def flip_bounds(
    positive: np.ndarray, worlds: np.ndarray, other: tuple[np.ndarray, np.ndarray] | None = None
) -> Ends:
    r"""Ends of the share of decisions that differ, from the shares that are positive.

    :math:`|p - p_k|` and :math:`\min(p + p_k, 2 - p - p_k)`, of shares on observed images, shape
    (...), and in each world, shape (..., K).

    Example:
        >>> low, high = flip_bounds(np.array(0.25), np.array([0.25, 0.5]))
        >>> low.tolist(), high.tolist()
        ([0.0, 0.25], [0.5, 0.75])
    """
    theirs, their_worlds = (positive, worlds) if other is None else other
    gap, total = positive[..., None] - worlds, positive[..., None] + worlds
    their_gap, their_total = theirs[..., None] - their_worlds, theirs[..., None] + their_worlds
    high = np.where(total <= 1, their_total, 2 - their_total)
    return np.where(gap >= 0, their_gap, -their_gap), high
