"""How much each row counts in each resampled set of patients, the same for every statistic."""

from collections.abc import Sequence

import numpy as np
import torch

from cfcore.resampling import check_resampling


def patient_weights(patient: Sequence[object], replicates: int, seed: int = 0) -> np.ndarray:
    """How often each row is drawn when patients are, shape (1 + B, N); the first row is all ones.

    Example:
        >>> patient_weights(["a", "a", "b"], 4).shape
        (5, 3)
    """
    sampling = check_resampling(len(patient), list(patient), replicates, seed=seed)
    drawn = torch.cat(list(sampling.counts()))[:, sampling.code]
    return np.concatenate((np.ones((1, len(patient))), drawn.numpy()))


def weighted_mean(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    r"""The mean of a number of each row, in each set of patients, shape (1 + B,).

    .. math:: \frac{\sum_i w_{bi} v_i}{\sum_i w_{bi}}

    Rows whose number is missing do not count.
    """
    known = np.isfinite(values)
    return weights[:, known] @ values[known] / np.maximum(weights[:, known].sum(axis=1), 1e-12)


def told(replicates: np.ndarray, level: float = 0.95) -> dict[str, float]:
    """An estimate, first, with the percentile interval of the replicates that follow it."""
    low, high = np.nanquantile(replicates[1:], [(1 - level) / 2, (1 + level) / 2])
    return {"estimate": float(replicates[0]), "low": float(low), "high": float(high)}
