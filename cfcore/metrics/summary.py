"""All metrics of one predictor at once, in blocks of rows and a single pass over the matrix."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cfcore.metrics import ranking, stability
from cfcore.metrics.calibration import brier_score, calibration_errors
from cfcore.metrics.loss import Loss, cross_entropy, cross_entropy_from_logits
from cfcore.metrics.marginal import marginal_prediction, rounded
from cfcore.metrics.ranking import Groups, kendall, tie_groups
from cfcore.metrics.risk import expected_risk, marginal_risk, original_risk, patient_tail_losses

_BLOCK = 16384  # rows: large enough to keep two cores busy, small beside any matrix

# Some patients: their summands of each metric, observed and marginalised probabilities.
_Block = tuple[dict[str, Tensor], Tensor, Tensor]


@dataclass(frozen=True)
class Scores:
    """What one predictor says.

    Attributes:
        obs: Observed scores, shape (N,).
        cf: Counterfactual scores, shape (N, K).
        q: Intervention probabilities, shape (K,).
        y: Labels 0 or 1, shape (N,), or None.
        logits: Whether the scores are logits, whose cross-entropy is exact, or probabilities.
        weight: How much each patient counts, shape (N,); all the same by default.
        draws: Whether the interventions are Monte Carlo draws, and not all of q.
        patient: Whose each row is, N identifiers; every row is of another patient by default.
    """

    obs: Tensor
    cf: Tensor
    q: Tensor
    y: Tensor | None = None
    logits: bool = False
    weight: Tensor | None = None
    draws: bool = False
    patient: Sequence[int] | Sequence[str] | None = None


@dataclass(frozen=True)
class Options:
    """What is to be computed: options of :func:`cfcore.evaluate`. Without ``metrics``, all those
    of the paper.
    """

    threshold: float = 0.5
    alphas: Sequence[float] = (0.5, 0.25, 0.1)
    bins: int = 10
    loss: Loss = cross_entropy
    metrics: Sequence[str] = ()


EXTRA = {"AUC": ranking.auc, "AP": ranking.average_precision}
"""Metrics of observed (``AUC_orig``) and marginalised (``AUC_marg``) scores that are asked for."""


OF = ("orig", "marg")
"""Observed and marginalised, in the names of metrics that there are of either."""


def names(options: Options, *, labelled: bool) -> list[str]:
    """The metrics of a report, in its order: those that were asked for, or those of the paper."""
    if options.metrics:
        return list(options.metrics)
    found = ["R_orig", "R_CM", "R_IE", *_tails(options)] if labelled else []
    for of in OF if labelled else ():
        found += [f"Brier_{of}", f"ECE_{of}", f"MCE_{of}"]
    return [*found, "S_var", "S_flip", "D_obs", "D_abs", "S_rank", "tau_b", "abs_rank_change"]


def _tails(options: Options) -> list[str]:
    """The names of the tail risks."""
    return [*(f"R_CVaR_{alpha:.2f}" for alpha in options.alphas), "R_WC"]


def blocks(scores: Scores, options: Options) -> Iterator[_Block]:
    """Go through the patients block by block, so that no second N x K matrix is ever held."""
    for start in range(0, len(scores.obs), _BLOCK):
        rows = slice(start, start + _BLOCK)
        obs, cf, q = scores.obs[rows].double(), scores.cf[rows].double(), scores.q.double()
        p_obs, p_cf = (obs.sigmoid(), cf.sigmoid()) if scores.logits else (obs, cf)
        p_bar = marginal_prediction(p_cf, q)
        shown, threshold, correction = rounded(p_bar), options.threshold, int(scores.draws)
        summands = {
            "S_var": stability.stability_variance.by_patient(p_cf, q, correction=correction),
            "S_flip": stability.flip_rate.by_patient(p_obs, p_cf, q, threshold),
            "D_obs": stability.disagreement_rate.by_patient(p_obs, shown, threshold),
            "D_abs": stability.mean_absolute_difference.by_patient(p_obs, p_bar),
        }
        if scores.y is not None:
            y, exact = scores.y[rows], scores.logits and options.loss is cross_entropy
            own, worlds, loss = p_obs, p_cf, options.loss
            if exact:
                own, worlds, loss = obs, cf, cross_entropy_from_logits
            losses = loss(worlds, y[:, None])
            tails = patient_tail_losses(losses, q, (*options.alphas, 0.0)).unbind(dim=-1)
            summands |= {
                "R_orig": original_risk.by_patient(own, y, loss),
                "R_CM": marginal_risk.by_patient(worlds, q, y, loss),
                "R_IE": expected_risk.by_patient(losses, q),
                **dict(zip(_tails(options), tails, strict=True)),
                "Brier_orig": brier_score.by_patient(p_obs, y),
                "Brier_marg": brier_score.by_patient(p_bar, y),
            }
        yield summands, p_obs, shown


def reduce(parts: Iterable[_Block], scores: Scores, options: Options) -> dict[str, Tensor]:
    """Every metric by name, each of shape (), from the blocks of all patients.

    Kendall's coefficient of weighted patients is not defined here: NaN.
    """
    count, y, weight = len(scores.obs), scores.y, scores.weight
    # Made before the blocks: what is kept among them would hold their memory in pieces.
    p_obs, p_bar = (scores.obs.new_empty(count, dtype=torch.float64) for _ in range(2))
    totals: dict[str, Tensor] = {}
    for i, (summands, obs, bar) in enumerate(parts):
        rows = slice(i * _BLOCK, (i + 1) * _BLOCK)
        p_obs[rows], p_bar[rows] = obs, bar
        for name, values in summands.items():
            own = values if weight is None else values * weight[rows]
            totals[name] = totals.get(name, 0.0) + own.sum()
    size = count if weight is None else weight.sum()
    metrics = {name: total / size for name, total in totals.items()}
    asked = names(options, labelled=y is not None)

    if y is not None:
        for of, p in (("orig", p_obs), ("marg", p_bar)):
            errors = calibration_errors(p, y, options.bins, weight)
            metrics[f"ECE_{of}"], metrics[f"MCE_{of}"] = errors
    p_obs = tie_groups(p_obs)  # which frees the scores
    p_bar = tie_groups(p_bar)
    metrics |= ranked(asked, p_obs, p_bar, y, weight)
    if "tau_b" in asked:
        metrics["tau_b"] = kendall(p_obs, p_bar) if weight is None else weight.new_tensor(torch.nan)
    return {name: metrics[name] for name in asked}


def ranked(
    asked: Iterable[str], p_obs: Groups, p_bar: Groups, y: Tensor | None, weight: Tensor | None
) -> dict[str, Tensor]:
    """Those asked for of the metrics that are about order, but for Kendall's, shape () or (B,)."""
    found = {}
    for name in asked:
        kind, _, of = name.partition("_")
        if name == "S_rank":
            found[name] = ranking.rank_stability(p_obs, p_bar, weight)
        elif name == "abs_rank_change":
            found[name] = ranking.mean_absolute_rank_change(p_obs, p_bar, weight)
        elif kind in EXTRA:
            found[name] = EXTRA[kind](p_obs if of == "orig" else p_bar, y, weight)
    return found


def summarise(scores: Scores, options: Options | None = None) -> dict[str, Tensor]:
    """Every metric of the paper for one predictor, on whatever device the tensors are, unchecked.

    Args:
        scores: What the predictor says, and the labels if they are known.
        options: Threshold, tail masses, bins and loss.

    Returns:
        The metrics by name, each of shape ().

    Example:
        >>> obs, cf = torch.tensor([0.9, 0.2]), torch.tensor([[0.9, 0.4], [0.2, 0.2]])
        >>> metrics = summarise(Scores(obs, cf, torch.tensor([0.5, 0.5])))
        >>> metrics["S_flip"].item()
        0.25
    """
    options = options or Options()
    return reduce(blocks(scores, options), scores, options)
