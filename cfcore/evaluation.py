"""One call for every number of the paper's tables."""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cfcore.checks import (
    InputError,
    Numbers,
    UndefinedMetricWarning,
    as_tensor,
    check_alphas,
    check_count,
    check_fraction,
    check_labels,
    check_probabilities,
    check_range,
    check_sizes,
    check_weights,
)
from cfcore.metrics.loss import Loss, resolve_loss
from cfcore.metrics.summary import Options, Scores, summarise

FLOAT_MAX = torch.finfo(torch.float64).max
MOST_BINS = 1_000_000


def check_logits(values: Tensor, name: str) -> None:
    """Refuse logits that are not finite."""
    check_range(values, name, -FLOAT_MAX, FLOAT_MAX, "a finite logit")


def check_scores(
    obs: Numbers,
    cf: Numbers,
    y: Numbers | None = None,
    q: Numbers | None = None,
    *,
    logits: bool = False,
) -> Scores:
    """Check scores, labels and weights; raises an ``InputError`` at the first fault."""
    kind, check = ("logit", check_logits) if logits else ("p", check_probabilities)
    names = (f"{kind}_obs", f"{kind}_cf", "y")
    obs, cf = as_tensor(obs, names[0], axes=1), as_tensor(cf, names[1], axes=2)
    y = None if y is None else as_tensor(y, "y", axes=1)
    check_sizes(obs, cf, y, names)
    check(obs, names[0])
    check(cf, names[1])
    if y is not None:
        check_labels(y)
        y = y.to(obs.device)
    return Scores(obs, cf, check_weights(q, cf.shape[1]).to(obs.device), y, logits)


def check_options(
    threshold: float = 0.5,
    alphas: Sequence[float] = (0.5, 0.25, 0.1),
    bins: int = 10,
    loss: str | Loss = "bce",
    correction: int = 0,
) -> Options:
    """Check what is asked for."""
    try:
        loss = resolve_loss(loss)
    except ValueError as error:  # the metrics know no error of the package
        raise InputError(str(error)) from None
    threshold, alphas = check_fraction(threshold, "threshold"), check_alphas(alphas)
    return Options(threshold, alphas, check_count(bins, "bins", most=MOST_BINS), loss, correction)


def as_numbers(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Metrics as plain numbers; warns of those that are undefined."""
    values = dict(zip(metrics, torch.stack(list(metrics.values())).tolist(), strict=True))
    undefined = [name for name, value in values.items() if value != value]
    if undefined:
        warnings.warn(
            f"{', '.join(undefined)} undefined (NaN): ranks need two patients or more, whose "
            "observed and marginalised scores are not all equal",
            UndefinedMetricWarning,
            stacklevel=3,
        )
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

    Arguments may be tensors on any device, arrays, series or lists. They are cast to float64
    before anything else, block by block.

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
