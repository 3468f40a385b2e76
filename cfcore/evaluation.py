"""One call for every number of the paper's tables."""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cfcore import checks
from cfcore.checks import InputError, Numbers, UndefinedMetricWarning, as_tensor, check_logits
from cfcore.metrics.loss import Loss, resolve_loss
from cfcore.metrics.summary import Options, Scores, summarise


def check_scores(
    obs: Numbers, cf: Numbers, y: Numbers | None, q: Numbers | None, *, logits: bool = False
) -> Scores:
    """Scores, labels and weights; raises an ``InputError`` at the first fault."""
    kind, check = ("logit", check_logits) if logits else ("p", checks.check_probabilities)
    first, second = f"{kind}_obs", f"{kind}_cf"
    obs, cf = as_tensor(obs, first, axes=1), as_tensor(cf, second, axes=2)
    y = None if y is None else as_tensor(y, "y", axes=1)
    if len(obs) == 0:
        raise InputError("there are no patients (N = 0)", column=first)
    if cf.shape[1] == 0:
        raise InputError("there are no interventions (K = 0)", column=second)
    for name, values in ((second, cf), ("y", y)):
        if values is not None and len(values) != len(obs):
            raise InputError(f"has {len(values)} rows, but {first} has {len(obs)}", column=name)
    check(obs, first)
    check(cf, second)
    if y is not None:
        checks.check_labels(y)
        y = y.to(obs.device)
    q = checks.check_weights(q, cf.shape[1]).to(obs.device)
    return Scores(obs, cf, q, y, logits)


def check_options(
    threshold: float = 0.5,
    alphas: Sequence[float] = (0.5, 0.25, 0.1),
    bins: int = 10,
    loss: str | Loss = "bce",
    correction: int = 0,
) -> Options:
    """What is asked for; raises an ``InputError`` at the first fault."""
    try:
        loss = resolve_loss(loss)
    except ValueError as error:  # the metrics know no error of the package
        raise InputError(str(error)) from None
    threshold, alphas = checks.check_fraction(threshold, "threshold"), checks.check_alphas(alphas)
    bins = checks.check_count(bins, "bins", most=1_000_000)
    return Options(threshold, alphas, bins, loss, correction)


def as_numbers(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Metrics as plain numbers; warns of those that are undefined."""
    values = dict(zip(metrics, torch.stack(list(metrics.values())).tolist(), strict=True))
    undefined = [name for name, value in values.items() if value != value]
    if undefined:
        text = f"{', '.join(undefined)} undefined (NaN): ranks need two patients or more, "
        text += "whose observed and marginalised scores are not all equal"
        warnings.warn(text, UndefinedMetricWarning, stacklevel=3)
    return values


def evaluate(
    p_obs: Numbers,
    p_cf: Numbers,
    y: Numbers | None = None,
    *,
    q: Numbers | None = None,
    threshold: float = 0.5,
    alphas: Sequence[float] = (0.5, 0.25, 0.1),
    bins: int = 10,
    loss: str | Loss = "bce",
) -> dict[str, float]:
    r"""Every metric of the paper for one predictor, from its probabilities.

    Arguments may be tensors on any device, arrays, series or lists; all is computed in float64.

    Args:
        p_obs: Probabilities on the observed images, shape (N,).
        p_cf: Probabilities on the counterfactual images, shape (N, K).
        y: Labels 0 or 1, shape (N,). Without them, only the label-free metrics are computed.
        q: Intervention probabilities, shape (K,), summing to one; uniform by default.
        threshold: Decisions are ``p > threshold``, strictly.
        alphas: Tail masses in [0, 1]; each gives an entry ``R_CVaR_<alpha>`` with two decimals.
        bins: The number of calibration bins, equal in width.
        loss: ``"bce"`` (nats), ``"brier"`` or a function of probabilities and labels, used by
            all risks.

    Returns:
        Numbers by name: ``R_orig R_CM R_IE R_CVaR_0.50 R_CVaR_0.25 R_CVaR_0.10 R_WC Brier_orig
        ECE_orig MCE_orig Brier_marg ECE_marg MCE_marg S_var S_flip D_obs D_abs S_rank tau_b
        abs_rank_change``. Rank correlations that are undefined are NaN, with a warning.

    Raises:
        InputError: If a value cannot be used; the message names it and its row.

    Example:
        >>> metrics = evaluate([0.9, 0.2, 0.6], [[0.9, 0.5], [0.2, 0.1], [0.7, 0.3]], [1, 0, 1])
        >>> print(f"{metrics['R_orig']:.4f} {metrics['R_CM']:.4f} {metrics['R_IE']:.4f}")
        0.2798 0.4041 0.4479
        >>> metrics["S_flip"], metrics["S_rank"]
        (0.3333333333333333, 1.0)
    """
    options = check_options(threshold, alphas, bins, loss)
    return as_numbers(summarise(check_scores(p_obs, p_cf, y, q), options))
