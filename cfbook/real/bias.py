r"""Do the metrics find the planted biases? Each against its size-matched control, of the same seed.

A statistic of a biased predictor minus that of its control has a value for each training and
for each resampled set of test patients. The mean over trainings is judged by
:func:`cfbook.study.claims.estimate`: two sources of variance, and Student's law.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch

from cfbook.real.drawing import scores_in_worlds
from cfbook.real.planted import DROPPING, Planted
from cfbook.real.weights import patient_weights, weighted_mean
from cfbook.real.work import Work
from cfbook.study.claims import estimate, holm
from cfcore.metrics.stability import attribute_variance
from cfcore.predictions import Predictions

_MIDDLE = 50  # years: who is older counts as old where two groups are compared without worlds


def by_patient(given: Predictions, attribute: str) -> dict[str, np.ndarray]:
    r"""Numbers of each row, shape (N,), whose means are statistics about one attribute.

    ``S_var`` is the variance of the score over the values of the attribute, the others averaged
    out; ``response`` the score at its highest value minus that at its lowest; ``R_IE`` the mean
    loss over worlds; ``R_orig`` the observed loss.
    """
    p, values = given.logit_cf.double().sigmoid(), given.grid[attribute]
    y = given.y.double()
    ends = [p[:, values == end].mean(dim=1) for end in (values.max(), values.min())]
    loss = torch.nn.functional.softplus
    found = {
        "S_var": attribute_variance.by_patient(p, given.q, values),
        "response": ends[0] - ends[1],
        "R_IE": loss((1 - 2 * y[:, None]) * given.logit_cf.double()) @ given.q.double(),
        "R_orig": loss((1 - 2 * y) * given.logit_obs.double()),
    }
    return {name: each.numpy() for name, each in found.items()}


def _score_gap(given: Predictions, attribute: str, weights: np.ndarray) -> np.ndarray:
    r"""What needs no generator: the gap of observed scores within the label, shape (1 + B,).

    .. math:: \sum_y \hat{P}(y) \big( \bar{p}_{y, a = 1} - \bar{p}_{y, a = 0} \big)

    for the old, :math:`a = 1`, against the younger.
    """
    p, y = given.logit_obs.double().sigmoid().numpy(), given.y.numpy()
    own = given.parents[attribute].numpy()
    group = own > _MIDDLE if attribute == "age" else own == 1
    gaps = []
    for label in (0, 1):
        one, other = (np.where((y == label) & (group == side), p, np.nan) for side in (True, False))
        share = weights @ (y == label) / weights.sum(axis=1)
        gaps.append(share * (weighted_mean(weights, one) - weighted_mean(weights, other)))
    return gaps[0] + gaps[1]


def _statistics_of(
    given: Predictions, attribute: str, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Every statistic of a predictor about an attribute, shape (1 + B,)."""
    means = by_patient(given, attribute).items()
    found = {name: weighted_mean(weights, values) for name, values in means}
    return found | {"score gap": _score_gap(given, attribute, weights)}


def bias_table(work: Work) -> pd.DataFrame:
    """A row for each planted bias and statistic, and for each control as if it had a bias.

    The columns are ``attribute, strength, compared`` (``biased`` with its control, or ``control``
    with a predictor trained on all images), ``statistic``, the mean difference with its interval,
    ``p`` and whether it is ``found`` at 5 per cent: above zero. ``p_holm`` is corrected over the
    planted biases of a statistic.
    """
    found = scores_in_worlds(work)
    first = next(iter(found.values()))
    weights = patient_weights(first.patient, work.sizes.replicates)
    rows = [
        {"attribute": attribute, "strength": strength, "compared": compared} | row
        for attribute in DROPPING
        for strength in work.sizes.strengths
        for compared in ("biased", "control")
        for row in _compared(work, found, weights, Planted(attribute, strength), compared)
    ]
    table = pd.DataFrame(rows)
    for _, some in table.groupby(["statistic", "compared"]):
        table.loc[some.index, "p_holm"] = holm(some.p.to_numpy())
    return table


def _compared(
    work: Work,
    found: Mapping[str, Predictions],
    weights: np.ndarray,
    kind: Planted,
    compared: str,
) -> list[dict[str, object]]:
    """The differences of one planted bias from its control, or of the control from no bias."""
    control = compared == "control"
    differences: dict[str, list[np.ndarray]] = {}
    for seed in range(work.sizes.trainings):
        one = Planted(kind.attribute, kind.strength, control, seed)
        other = (
            Planted(seed=seed) if control else Planted(kind.attribute, kind.strength, True, seed)
        )
        pair = [_statistics_of(found[p.name], kind.attribute, weights) for p in (one, other)]
        for name in pair[0]:
            differences.setdefault(name, []).append(pair[0][name] - pair[1][name])
    rows = []
    for name, values in differences.items():
        said = estimate(np.stack(values))
        low, high = said.interval()
        row = {"statistic": name, "difference": said.value, "low": low, "high": high}
        rows.append(row | {"error": said.error, "p": said.p(0.0), "found": low > 0})
    return rows


def shares_found(table: pd.DataFrame) -> pd.DataFrame:
    """The share of planted biases that each statistic finds at 5 per cent, and of false alarms."""
    shares = table.groupby(["statistic", "compared"]).found.agg(["sum", "size"]).unstack()
    return pd.DataFrame(
        {
            "statistic": shares.index,
            "planted": shares["size", "biased"].to_numpy(),
            "found": shares["sum", "biased"].to_numpy(),
            "false_alarms": shares["sum", "control"].to_numpy(),
        }
    )
