r"""Counterfactual scores without any image: every patient keeps their place among their likes.

The law of the logit given the parents and the label is regressed on observed rows. A patient whose
logit is high for someone like them is taken to be as high, for someone like them, in every world.
This is one assumption more than standardisation makes (the comonotone coupling given all parents),
and it is all that is needed for a whole table of predictions.
"""

from collections.abc import Callable, Collection
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd
import torch

from cfcore.checks import InputError
from cfcore.interventions import Grid
from cfcore.predictions import Predictions
from cfcore.standardise.estimate import PENALTIES, Arrays, Features, Pool, folds_of, on_one_core

_PLACES = np.linspace(0.02, 0.98, 25)

_Move = Callable[[np.ndarray, Arrays, Arrays], np.ndarray]
"""Logits at other parents, from logits, the own parents and the others."""


@on_one_core
def transport(
    rows: pd.DataFrame,
    grid: Grid,
    *,
    observed: pd.DataFrame | None = None,
    how: Literal["location-scale", "quantiles"] = "location-scale",
    follows: Collection[str] = (),
) -> Predictions:
    r"""Fill a table of predictions from observed logits alone.

    With the mean :math:`\mu` and the scale :math:`\sigma` of the logit given the parents,

    .. math:: \tilde{z}_{ik} = \mu(a_k, c_i, y_i) + \frac{\sigma(a_k, c_i, y_i)}
        {\sigma(a_i, c_i, y_i)} \big( z_i - \mu(a_i, c_i, y_i) \big)

    or, with ``how="quantiles"``, the logit whose rank at the parents of the world is the rank of
    the patient's own logit at their own parents.

    Args:
        rows: Whose scores to move: ``logit``, the parents, ``y``, ``patient``.
        grid: The worlds.
        observed: Rows to learn from; by default the rows themselves, cross-fitted by patient.
        follows: What follows the attributes, left out for a total effect.
    """
    learned = {"location-scale": _location_scale, "quantiles": _ranks}
    if how not in learned:
        raise InputError(f"how must be one of {', '.join(learned)}, not {how!r}")
    worlds = {name: np.asarray(values, float) for name, values in grid.values.items()}
    pool = Pool.from_frame(rows, list(worlds), follows=follows)
    known = [name for name in pool.columns if name in rows]  # nothing may be held
    for name, frame in product(("logit", *known), [rows] if observed is None else [rows, observed]):
        if name not in frame:
            raise InputError(f"there is no column {name}")
    for name, values in pool.columns.items():
        if values.dtype.kind not in "fiub":
            raise InputError("holds text: use codes of categories", column=name)
    logit = rows["logit"].to_numpy(float)
    moved = np.empty((len(pool), len(grid)))
    if observed is None:
        parts = [(pool, logit, *part) for part in folds_of(pool.patient)]
    else:
        other = Pool.from_frame(observed, list(worlds), follows=follows, numbers=pool.numbers)
        learn = observed["logit"].to_numpy(float), np.arange(len(other)), np.arange(len(pool))
        parts = [(other, *learn)]
    for other, scores, learn, apply in parts:
        move = learned[how](scores[learn], other.take(learn).columns, pool.numbers)
        own = pool.take(apply)
        for k in range(len(grid)):
            there = {name: np.full(len(apply), values[k]) for name, values in worlds.items()}
            moved[apply, k] = move(logit[apply], own.columns, {**there, **own.held})
    parents = {name: rows[name].to_numpy() for name in known}
    y = torch.tensor(parents.pop("y")) if "y" in parents else None
    effect = "total" if follows else "direct"
    facts = {"generator": f"transport of scores ({how})", "effect": effect}
    return Predictions(
        torch.tensor(logit), torch.tensor(moved), grid.values, grid.q, y,
        {n: torch.tensor(v) for n, v in parents.items()}, pool.patient.tolist(), facts,
    )  # fmt: skip


def _location_scale(logit: np.ndarray, seen: Arrays, numbers: Collection[str]) -> _Move:
    from sklearn.linear_model import RidgeCV

    features, fewer = Features(seen, numbers), Features(seen, numbers, pairs=False)
    centre = RidgeCV(PENALTIES).fit(features(seen), logit)
    far = np.abs(logit - centre.predict(features(seen)))
    scale = RidgeCV(PENALTIES).fit(fewer(seen), np.log(far + 1e-3 * far.mean() + 1e-12))

    def move(z: np.ndarray, own: Arrays, there: Arrays) -> np.ndarray:
        stretch = np.exp(scale.predict(fewer(there)) - scale.predict(fewer(own)))
        far = z - centre.predict(features(own))
        return centre.predict(features(there)) + stretch * far

    return move


def _ranks(logit: np.ndarray, seen: Arrays, numbers: Collection[str]) -> _Move:
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression

    features = Features(seen, numbers, pairs=False)
    x, places = features(seen), np.unique(np.quantile(logit, _PLACES))
    model = LogisticRegression(C=0.1, solver="newton-cholesky")
    models = [clone(model).fit(x, logit <= place) for place in places]

    def law(columns: Arrays) -> np.ndarray:
        x = features(columns)
        return np.sort(np.stack([m.predict_proba(x)[:, 1] for m in models], axis=1), axis=1)

    def move(z: np.ndarray, own: Arrays, there: Arrays) -> np.ndarray:
        inside = z.clip(places[0], places[-1])
        pairs = zip(inside, law(own), law(there), strict=True)
        found = [np.interp(np.interp(at, places, own), new, places) for at, own, new in pairs]
        return np.array(found) + (z - inside)

    return move
