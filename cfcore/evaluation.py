"""One call for every number of the paper's tables."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor

from cfcore import checks
from cfcore.checks import InputError, Numbers, UndefinedMetricWarning, as_tensor, check_logits
from cfcore.inputs import Aside, Given, gather
from cfcore.metrics.loss import LOSSES, Loss
from cfcore.metrics.summary import EXTRA, OF, Options, Scores, names, summarise

if TYPE_CHECKING:
    import pandas as pd

Ids = Sequence[int] | Sequence[str]
"""A patient identifier for each row: all whole numbers, or all text."""


class Asked(TypedDict, total=False):
    """Options of :func:`cfcore.evaluate` that say what is computed."""

    threshold: float
    alphas: Sequence[float]
    bins: int
    loss: str | Loss
    metrics: Sequence[str] | None


def check_patients(patient: Ids, rows: int) -> Ids:
    """Identifiers as a list: all whole numbers or all text, one for each row.

    Example:
        >>> check_patients(np.array([3, 3, 5]), rows=3)
        [3, 3, 5]
        >>> check_patients(["a", None], rows=2)
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: patient[1]: None is neither text nor a whole number
    """
    if len(patient) != rows:
        raise InputError(f"has {len(patient)} rows, not {rows}", column="patient")
    values = patient.tolist() if hasattr(patient, "tolist") else list(patient)
    kind = str if values and isinstance(values[0], str) else int
    for row, value in enumerate(values):
        usable = isinstance(value, str | int) and not isinstance(value, bool)
        if not usable or not isinstance(value, kind):
            other = f"of another type than {values[0]!r}"
            problem = f"{value!r} is {other if usable else 'neither text nor a whole number'}"
            raise InputError(problem, column="patient", row=row)
    return values


def check_scores(
    obs: Numbers,
    cf: Numbers,
    y: Numbers | None,
    q: Numbers | None,
    *,
    weight: Numbers | None = None,
    patient: Ids | None = None,
    logits: bool = False,
    draws: bool = False,
) -> Scores:
    """Scores, labels and weights; raises an ``InputError`` at the first fault."""
    kind, check = ("logit", check_logits) if logits else ("p", checks.check_probabilities)
    first, second = f"{kind}_obs", f"{kind}_cf"
    obs, cf = as_tensor(obs, first, axes=1), as_tensor(cf, second, axes=2)
    y = None if y is None else as_tensor(y, "y", axes=1).to(obs.device)
    if weight is not None:
        weight = as_tensor(weight, "weight", axes=1).double().to(obs.device)
    if len(obs) == 0:
        raise InputError("there are no patients (N = 0)", column=first)
    if cf.shape[1] == 0:
        raise InputError("there are no interventions (K = 0)", column=second)
    for name, values in ((second, cf), ("y", y), ("weight", weight)):
        if values is not None and len(values) != len(obs):
            raise InputError(f"has {len(values)} rows, but {first} has {len(obs)}", column=name)
    check(obs, first)
    check(cf, second)
    if y is not None:
        checks.check_labels(y)
    if weight is not None:
        checks.check_range(weight, "weight", 0, math.inf, "a weight: finite and not negative")
        if not weight.any():
            raise InputError("all weights are zero", column="weight")
    q = checks.check_weights(q, cf.shape[1]).to(obs.device)
    patient = None if patient is None else check_patients(patient, len(obs))
    return Scores(obs, cf, q, y, logits, weight, draws, patient)


def check_options(asked: Asked, *scores: Scores) -> Options:
    """What is asked of some scores; raises an ``InputError`` at the first fault."""
    given = Options(**asked)
    loss = LOSSES.get(given.loss) if isinstance(given.loss, str) else given.loss
    if not callable(loss):
        known = f"a callable or one of {sorted(LOSSES)}"
        raise InputError(f"loss must be {known}, not {given.loss!r}")
    threshold = checks.check_fraction(given.threshold, "threshold")
    bins = checks.check_count(given.bins, "bins", most=1_000_000)
    options = Options(threshold, checks.check_alphas(given.alphas), bins, loss)
    known = [*names(options, labelled=True), *(f"{n}_{of}" for n in EXTRA for of in OF)]
    labelled = all(one.y is not None for one in scores)
    for name in given.metrics or ():
        if name not in known:
            raise InputError(f"{name!r} is none of {', '.join(known)}", column="metrics")
        if not labelled and name not in names(options, labelled=False):
            raise InputError(f"{name} needs labels, which are not here", column="metrics")
    return replace(options, metrics=tuple(given.metrics or ()))


def check_parts(given: Given, q: Numbers | None) -> dict[str, Scores]:
    """The checked scores of every label, before anything is computed of one."""
    aside = {"weight": given.weight, "patient": given.patient, "logits": given.logits}
    found = {}
    for name, part in given.parts.items():
        try:
            found[name] = check_scores(*part, q, **aside)
        except InputError as error:
            if not name:
                raise
            column = f"{name}:{error.column}"
            raise InputError(error.problem, column=column, row=error.row) from None
    return found


def as_numbers(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Metrics as plain numbers; warns of those that are undefined."""
    values = dict(zip(metrics, torch.stack(list(metrics.values())).tolist(), strict=True))
    undefined = [name for name, value in values.items() if value != value]
    if undefined:
        ranks = "Kendall's tau_b knows no weights"
        if "S_rank" in undefined:
            ranks = "ranks need two patients or more, whose observed and marginalised scores are "
            ranks += "not all equal"
        reasons = {"S_rank tau_b": ranks, "AUC AP": "AUC and AP need patients with either label"}
        starts = {name.removesuffix("_orig").removesuffix("_marg") for name in undefined}
        why = "; ".join(text for kinds, text in reasons.items() if starts & set(kinds.split()))
        text = f"{', '.join(undefined)} undefined (NaN): {why}"
        warnings.warn(text, UndefinedMetricWarning, stacklevel=3)
    return values


def evaluate_all(scores: Mapping[str, Scores], asked: Asked) -> dict[str, dict[str, float]]:
    """Every metric of the checked scores of each label; see :func:`cfcore.evaluate`."""
    options = check_options(asked, *scores.values())
    return {name: as_numbers(summarise(one, options)) for name, one in scores.items()}


def evaluate(
    p_obs: "Numbers | pd.DataFrame",
    p_cf: Numbers | None = None,
    y: Numbers | None = None,
    *,
    q: Numbers | None = None,
    threshold: float = 0.5,
    alphas: Sequence[float] = (0.5, 0.25, 0.1),
    bins: int = 10,
    loss: str | Loss = "bce",
    metrics: Sequence[str] | None = None,
    weight: Aside = None,
    labels: Sequence[str] | None = None,
) -> dict[str, float] | dict[str, dict[str, float]]:
    r"""Every metric of the paper for one predictor, from its probabilities.

    Arguments may be tensors on any device, arrays, series or lists; all is computed in float64.

    Args:
        p_obs: Probabilities on the observed images, shape (N,), or (N, L) of L labels or classes.
            Or a frame with the columns ``p_obs``, ``p_cf_0``, ``p_cf_1``, ... and ``y``, of several
            labels ``NAME:p_obs`` and so on (or ``logit_obs``, ...); it is then passed alone.
        p_cf: Probabilities on the counterfactual images, shape (N, K), or (N, K, L).
        y: Labels 0 or 1, shape (N,) or (N, L), or the class of each row, by number or name.
            Without them, only the label-free metrics are computed.
        q: Intervention probabilities, shape (K,), summing to one, or counts; uniform by default.
        threshold: Decisions are ``p > threshold``, strictly.
        alphas: Tail masses in [0, 1]; each gives an entry ``R_CVaR_<alpha>`` with two decimals.
        bins: The number of calibration bins, equal in width.
        loss: ``"bce"`` (nats), ``"brier"`` or a function of probabilities and labels, used by
            all risks.
        metrics: Those wanted, in this order: any of the names below, and ``AUC_orig, AUC_marg,
            AP_orig, AP_marg`` (average precision); all those below by default.
        weight: How much each row counts, shape (N,), or the column that says so.
        labels: The names of L labels or classes.

    Returns:
        Numbers by name: ``R_orig R_CM R_IE R_CVaR_0.50 R_CVaR_0.25 R_CVaR_0.10 R_WC Brier_orig
        ECE_orig MCE_orig Brier_marg ECE_marg MCE_marg S_var S_flip D_obs D_abs S_rank tau_b
        abs_rank_change``; of several labels, such numbers by the name of the label. Rank
        correlations that are undefined are NaN, with a warning.

    Raises:
        InputError: If a value cannot be used; the message names it and its row.

    Example:
        >>> metrics = evaluate([0.9, 0.2, 0.6], [[0.9, 0.5], [0.2, 0.1], [0.7, 0.3]], [1, 0, 1])
        >>> print(f"{metrics['R_orig']:.4f} {metrics['R_CM']:.4f} {metrics['R_IE']:.4f}")
        0.2798 0.4041 0.4479
        >>> metrics["S_flip"], metrics["S_rank"]
        (0.3333333333333333, 1.0)
    """
    asked = Asked(threshold=threshold, alphas=alphas, bins=bins, loss=loss, metrics=metrics)
    given = gather(p_obs, p_cf, y, labels=labels, weight=weight)._replace(patient=None)
    found = evaluate_all(check_parts(given, q), asked)
    return found[""] if list(found) == [""] else found
