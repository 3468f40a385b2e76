r"""Quasi-pairs: the same patient in both views, against the counterfactual of the view.

Two neighbouring visits of a patient with the same label and another view are the nearest thing to
a real counterfactual that these data have, and they are none: whoever turns AP is sicker, and time
has passed. What two visits in the *same* view differ by is the floor.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from cfbook.real.drawing import scores_in_worlds
from cfbook.real.weights import patient_weights, told, weighted_mean
from cfbook.real.work import FOLDS, Work
from cfcore.predictions import Predictions

_YEARS = 1  # by which two visits may differ in age, at most


def neighbours(table: pd.DataFrame) -> pd.DataFrame:
    """Neighbouring visits of one patient, with the same label: ``one``, ``other``, ``kind``.

    Both are positions of rows; ``kind`` is ``"PA-AP"`` (in either order; ``one`` is the PA),
    ``"PA-PA"`` or ``"AP-AP"``. Visits more than a year of age apart are left out.
    """
    visit = table.study.str.split("/").str[1].astype(float).to_numpy()
    order = np.lexsort((visit, table.patient.to_numpy(str)))
    one, other = order[:-1], order[1:]
    column = {name: table[name].to_numpy() for name in ("patient", "effusion", "view", "age")}
    same = (column["patient"][one] == column["patient"][other]) & (visit[one] != visit[other])
    same &= column["effusion"][one] == column["effusion"][other]
    same &= np.abs(column["age"][one] - column["age"][other]) <= _YEARS
    one, other = one[same], other[same]
    turned = (column["view"][one] == "AP") & (column["view"][other] == "PA")
    one, other = np.where(turned, other, one), np.where(turned, one, other)
    kind = [f"{column['view'][a]}-{column['view'][b]}" for a, b in zip(one, other, strict=True)]
    patient = column["patient"][one]
    return pd.DataFrame({"one": one, "other": other, "kind": kind, "patient": patient})


def scored(pairs: pd.DataFrame, given: Predictions) -> pd.DataFrame:
    """The scores of each pair: observed at both visits, and of each under the other's view."""
    p, cf = given.logit_obs.double().sigmoid().numpy(), given.logit_cf.double().sigmoid().numpy()
    sex, view = given.parents["sex"].numpy(), given.parents["view"].numpy()
    worlds = {
        (s, v): k
        for k, (s, v) in enumerate(
            zip(given.grid["sex"].tolist(), given.grid["view"].tolist(), strict=True)
        )
    }
    turned = np.array([cf[i, worlds[sex[i], 1 - view[i]]] for i in range(len(p))])
    one, other = pairs.one.to_numpy(), pairs.other.to_numpy()
    columns = {"p_one": p[one], "p_other": p[other]}
    columns |= {"cf_one": turned[one], "cf_other": turned[other]}
    return pairs.assign(**columns)


def _pair_statistics(pairs: pd.DataFrame, weights: np.ndarray) -> dict[str, np.ndarray]:
    r"""What is asked of the pairs of one predictor, each of shape (1 + B,).

    With scores :math:`p` of the PA visit and :math:`p'` of the AP visit, and :math:`\tilde p`,
    :math:`\tilde p'` of each image under the other view:

    .. math:: \text{real} = \overline{p' - p}, \qquad
        \text{drawn} = \tfrac12 \overline{(\tilde p - p) + (p' - \tilde p')}

    .. math:: \text{nothing} = \overline{|p' - p|}, \qquad
        \text{turned} = \tfrac12 \overline{|p' - \tilde p| + |p - \tilde p'|}

    ``floor`` is the mean distance of repeats in the same view, averaged over PA-PA and AP-AP, and
    ``excess removed`` is (nothing - turned) / (nothing - floor).
    """
    mixed = (pairs.kind == "PA-AP").to_numpy()
    p, q = pairs.p_one.to_numpy(), pairs.p_other.to_numpy()
    cf, fc = pairs.cf_one.to_numpy(), pairs.cf_other.to_numpy()

    def mean(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return weighted_mean(weights, np.where(rows, values, np.nan))

    found = {
        "real": mean(q - p, mixed), "drawn": mean((cf - p + q - fc) / 2, mixed),
        "nothing": mean(np.abs(q - p), mixed),
        "turned": mean((np.abs(q - cf) + np.abs(p - fc)) / 2, mixed),
    }  # fmt: skip
    repeats = [mean(np.abs(q - p), (pairs.kind == kind).to_numpy()) for kind in ("PA-PA", "AP-AP")]
    found |= {"floor PA-PA": repeats[0], "floor AP-AP": repeats[1]}
    found["floor"] = (repeats[0] + repeats[1]) / 2
    found["drawn - real"] = found["drawn"] - found["real"]
    found["turned - nothing"] = found["turned"] - found["nothing"]
    excess = found["nothing"] - found["floor"]
    found["excess removed"] = -found["turned - nothing"] / np.where(
        np.abs(excess) > 1e-9, excess, np.nan
    )
    return found


def pair_table(work: Work) -> pd.DataFrame:
    """Every statistic of the pairs of both folds, by kind of predictor, with an interval.

    Statistics are averaged over the trainings of a kind; patients are resampled. Of predictors
    biased by view, ``drawn - control`` and ``real - control`` are the same means minus those of
    their controls.
    """
    both, found, rows = [_fold_pairs(work, fold) for fold in FOLDS], {}, []
    for kind, names in _kinds(both[0]).items():
        drawn = []
        for name in names:
            pairs = pd.concat([fold[name] for fold in both], ignore_index=True)
            weights = patient_weights(pairs.patient, work.sizes.replicates)
            drawn.append(_pair_statistics(pairs, weights))
        found[kind] = {name: np.mean([each[name] for each in drawn], axis=0) for name in drawn[0]}
    for kind, control in [(kind, f"control-{kind}") for kind in found]:
        if control in found:
            for name in ("drawn", "real"):
                found[kind][f"{name} - control"] = found[kind][name] - found[control][name]
    mixed = pairs[pairs.kind == "PA-AP"]
    counts = {"pairs": len(mixed), "patients": mixed.patient.nunique()}
    for kind, statistics in found.items():
        for name, values in statistics.items():
            rows.append({"predictor": kind, "statistic": name} | told(values) | counts)
    return pd.DataFrame(rows)


def _fold_pairs(work: Work, fold: str) -> dict[str, pd.DataFrame]:
    pairs = neighbours(work.part(fold).table)
    return {name: scored(pairs, given) for name, given in scores_in_worlds(work, fold).items()}


def _kinds(found: Mapping[str, pd.DataFrame]) -> dict[str, list[str]]:
    """The names of the predictors without their seed, and who is of each kind."""
    kinds: dict[str, list[str]] = {}
    for name in found:
        kinds.setdefault(name.rpartition("-")[0], []).append(name)
    return kinds


def pair_counts(work: Work) -> pd.DataFrame:
    """How many pairs and patients there are of each kind, in the folds and over all patients."""
    found = pd.concat([neighbours(work.part(fold).table) for fold in FOLDS])
    return (
        found.groupby("kind")
        .agg(pairs=("patient", "size"), patients=("patient", "nunique"))
        .reset_index()
    )
