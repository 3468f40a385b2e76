r"""The panel: what a generator does to the scores of a predictor, in more than one number.

The error of the score rewards whoever shrinks: a mean over what is not known comes nearer to each
truth than a draw from it, and has too small a variance over worlds. So the laws of scores stand
beside it, and the error itself beside the least that can be expected.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from scipy.special import expit
from scipy.stats import wasserstein_distance

from cfcore.checks import InputError
from cfcore.metrics.stability import attribute_variance
from cfcore.predictions import Predictions

_COLUMNS = ["measure", "about", "value"]
_EFFECTIVE = ("accuracy", "AUC", "error")


def regret(error: pd.Series, limit: pd.Series, nothing: pd.Series) -> pd.Series:
    r"""How much of what could be gained a generator leaves: 0 at the limit, 1 for doing nothing.

    .. math:: \frac{\mathrm{error} - \mathrm{limit}}{\mathrm{nothing} - \mathrm{limit}}

    The limit is of the same kind as the generator: that of an ideal sampler for one that draws its
    noise, that of the mean over ideal draws for one that takes means. It may be negative, and is
    NaN where doing nothing is no worse than the limit, so that there is nothing to gain.

    Args:
        error: The errors of the generator.
        limit: Those of an ideal abductor.
        nothing: Those of leaving the image as it is.

    Example:
        >>> regret(*(pd.Series(v) for v in ([0.5, 0.1], [0.25, 0.2], [0.75, 0.2]))).tolist()
        [0.5, nan]
    """
    gain = nothing - limit
    return (error - limit) / gain.where(gain > 0)


def panel(
    found: Mapping[str, Mapping[str, Predictions]],
    sound: Mapping[str, pd.DataFrame],
    *,
    limits: Mapping[str, str],
    truth: str = "oracle",
    nothing: str = "doing nothing",
    observed: Mapping[str, np.ndarray] | None = None,
) -> pd.DataFrame:
    r"""All that is asked of generators, on the same patients, in one tidy table.

    ======================= ================================================================
    measure                 what it is
    ======================= ================================================================
    mean score              the mean of :math:`g(\tilde{x}(a))` in each world
    law of scores           :math:`W_1` of :math:`g(\tilde{x}(a))` to the true law, by world
    law, standardised       the same to the law of observed scores: it needs no truth
    mean, standardised      the mean score less that of observed patients, by world
    paired difference       :math:`W_1` of :math:`g(\tilde{x}(a)) - g(x)` to the truth's, by world
    S_var                   the variance of the score due to an attribute, over the truth's
    S_flip                  the flip rate over all worlds, over the truth's
    R_IE                    the interventional expected risk, over the truth's, if labels are known
    accuracy, AUC, error    effectiveness: what classifiers read of the variable intervened on
    PSNR                    of the counterfactual against the true one, in decibels
    score error             mean distance from the score of the true counterfactual
    regret                  of the score error (:func:`regret`)
    ======================= ================================================================

    Args:
        found: Predictions by generator and predictor, the truth among them; a generator that draws
            may have the same patients several times.
        sound: Tables of :func:`~cfscm.soundness.measure.soundness` by generator, with the axioms
            effectiveness and faithfulness; read by the direct effect. What moves scores without an
            image has none.
        limits: The limit of those generators whose regret is asked for: another generator.
        truth: The generator of true counterfactuals.
        nothing: The one that changes nothing.
        observed: By predictor: quantiles of the logits in each world, shape (K, U), as
            :func:`cfcore.standardise.laws.law_of_scores` gives them from observed patients.

    Returns:
        ``generator, classifier, measure, about, value``: a row is about a world, an attribute or
        an intervention.
    """
    unknown = {truth, nothing, *limits, *limits.values()} - (set(found) & set(sound))
    if unknown:
        raise InputError(f"there are no predictions and soundness of {sorted(unknown)}")
    parts = []
    for generator, every in found.items():
        for name, given in every.items():
            true, laws = found[truth][name], (observed or {}).get(name)
            parts.append(_scores(given, true, laws).assign(generator=generator, classifier=name))
        if generator in sound:
            parts.append(_read(sound[generator]).assign(generator=generator))
    frame = pd.concat(parts)
    errors = frame[frame.measure == "score error"].set_index(["classifier", "about"])
    errors = {name: rows["value"] for name, rows in errors.groupby("generator", sort=False)}
    for generator, limit in limits.items():
        left = regret(errors[generator], errors[limit], errors[nothing]).reset_index()
        parts.append(left.assign(generator=generator, measure="regret"))
    return pd.concat(parts)[["generator", "classifier", *_COLUMNS]].reset_index(drop=True)


def _scores(given: Predictions, true: Predictions, laws: np.ndarray | None) -> pd.DataFrame:
    """What one generator does to the scores of one predictor in all worlds."""
    if _worlds(given) != _worlds(true):
        raise InputError("the panel compares generators in the same worlds of a grid")
    p, p_true = (one.logit_cf.double().sigmoid().numpy() for one in (given, true))
    seen, seen_true = (one.logit_obs.double().sigmoid().numpy() for one in (given, true))
    rows = []
    for k, world in enumerate(_worlds(given)):
        own, other = p[:, k], p_true[:, k]
        rows.append(("mean score", world, own.mean()))
        rows.append(("law of scores", world, wasserstein_distance(own, other)))
        change = wasserstein_distance(own - seen, other - seen_true)
        rows.append(("paired difference", world, change))
        if laws is not None:
            known = expit(laws[k])
            rows.append(("law, standardised", world, wasserstein_distance(own, known)))
            rows.append(("mean, standardised", world, own.mean() - known.mean()))
    for name, values in given.grid.items():
        own, other = (
            attribute_variance(torch.from_numpy(scores), given.q, values).item()
            for scores in (p, p_true)
        )
        rows.append(("S_var", name, own / other if other else np.nan))
    measured = [one.evaluate() for one in (given, true)]
    for name in ("S_flip", "R_IE"):
        own, other = (every.get(name, np.nan) for every in measured)
        rows.append((name, "all worlds", own / other if other else np.nan))
    return pd.DataFrame(rows, columns=_COLUMNS)


def _worlds(given: Predictions) -> list[str]:
    """The worlds of a grid in words."""
    if given.draws:
        raise InputError("the panel needs a grid, not draws of its own for every patient")
    values = {name: [f"{value:g}" for value in v.tolist()] for name, v in given.grid.items()}
    return [
        ", ".join(f"{name} = {value}" for name, value in zip(values, world, strict=True))
        for world in zip(*values.values(), strict=True)
    ]


def _read(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table of soundness that belong to the panel."""
    table = table[table.effect == "direct"].rename(columns={"intervention": "about"})
    read = table[(table.axiom == "effectiveness") & table.measure.isin(_EFFECTIVE)]
    far = table[table.axiom == "faithfulness"].replace(
        {"measure": {"score difference": "score error"}}
    )
    far = far[far.measure.isin(["PSNR", "score error"])]
    return pd.concat([read, far])[["classifier", *_COLUMNS]]
