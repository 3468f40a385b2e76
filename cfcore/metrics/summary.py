"""All metrics of one predictor at once, in blocks of rows and a single pass over the matrix."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cfcore.metrics.calibration import expected_calibration_error, maximum_calibration_error
from cfcore.metrics.loss import (
    Loss,
    cross_entropy,
    cross_entropy_from_logits,
    marginal_cross_entropy,
    marginal_cross_entropy_from_logits,
    squared_error,
)
from cfcore.metrics.marginal import marginal_prediction, rounded
from cfcore.metrics.ranking import average_ranks, correlation, kendall
from cfcore.metrics.risk import patient_tail_losses
from cfcore.metrics.stability import patient_flips, patient_variance

BLOCK = 16384  # rows: large enough to keep two cores busy, small beside any matrix


@dataclass(frozen=True)
class Scores:
    """Probabilities and losses of some patients, however they were given.

    Attributes:
        p_obs: Observed probabilities, shape (n,).
        p_cf: Counterfactual probabilities, shape (n, K).
        p_bar: Marginalised predictions, shape (n,).
        loss_obs: Losses of the observed scores, shape (n,).
        loss_bar: Losses of the marginalised predictions, shape (n,).
        loss_cf: Losses of the counterfactual scores, shape (n, K).
            Without labels there are no losses: all three are None.
    """

    p_obs: Tensor
    p_cf: Tensor
    p_bar: Tensor
    loss_obs: Tensor | None = None
    loss_bar: Tensor | None = None
    loss_cf: Tensor | None = None


Reading = Callable[[Tensor, Tensor, Tensor, Tensor | None, Loss], Scores]


def from_probabilities(
    obs: Tensor, cf: Tensor, q: Tensor, y: Tensor | None, loss: Loss = cross_entropy
) -> Scores:
    """Read scores that are probabilities: ``obs`` (n,), ``cf`` (n, K), ``q`` (K,), ``y`` (n,)."""
    p_obs, p_cf = obs.double(), cf.double()
    p_bar = marginal_prediction(p_cf, q)
    if y is None:
        return Scores(p_obs, p_cf, p_bar)
    if loss is cross_entropy:
        loss_bar = marginal_cross_entropy(p_cf, q, y)
    else:
        loss_bar = loss(p_bar, y).double()
    loss_obs, loss_cf = loss(p_obs, y).double(), loss(p_cf, y[:, None]).double()
    return Scores(p_obs, p_cf, p_bar, loss_obs, loss_bar, loss_cf)


def from_logits(
    obs: Tensor, cf: Tensor, q: Tensor, y: Tensor | None, loss: Loss = cross_entropy
) -> Scores:
    """Read scores that are logits; their cross-entropy is then exact, however saturated."""
    scores = from_probabilities(obs.double().sigmoid(), cf.double().sigmoid(), q, y, loss)
    if y is None or loss is not cross_entropy:
        return scores
    return Scores(
        scores.p_obs,
        scores.p_cf,
        scores.p_bar,
        cross_entropy_from_logits(obs, y),
        marginal_cross_entropy_from_logits(cf, q, y),
        cross_entropy_from_logits(cf, y[:, None]),
    )


@dataclass(frozen=True)
class Question:
    """What is to be computed, apart from the data.

    Attributes:
        threshold: Decisions are ``p > threshold``.
        alphas: Tail masses of the tail risks.
        bins: The number of calibration bins.
        loss: A function of probabilities and labels.
        correction: 1 if the interventions are Monte Carlo draws, 0 if they are all of q.
    """

    threshold: float = 0.5
    alphas: Sequence[float] = (0.5, 0.25, 0.1)
    bins: int = 10
    loss: Loss = cross_entropy
    correction: int = 0


def tail_name(alpha: float) -> str:
    """The name of a tail risk.

    Example:
        >>> tail_name(0.5)
        'R_CVaR_0.50'
    """
    return f"R_CVaR_{alpha:.2f}"


def names(question: Question, *, labelled: bool) -> list[str]:
    """The metrics of a report, in its order.

    Example:
        >>> names(Question(), labelled=False)
        ['S_var', 'S_flip', 'D_obs', 'D_abs', 'S_rank', 'tau_b', 'abs_rank_change']
    """
    risks = ["R_orig", "R_CM", "R_IE", *map(tail_name, question.alphas), "R_WC"]
    calibration = [
        f"{name}_{which}" for which in ("orig", "marg") for name in ("Brier", "ECE", "MCE")
    ]
    stability = ["S_var", "S_flip", "D_obs", "D_abs", "S_rank", "tau_b", "abs_rank_change"]
    return [*risks, *calibration, *stability] if labelled else stability


def summands(scores: Scores, q: Tensor, y: Tensor | None, question: Question) -> dict[str, Tensor]:
    """Each patient's contribution to every metric that is a mean over patients.

    The mean of each entry is the metric; see the functions of the same equations. The bootstrap
    resamples these.

    Args:
        scores: Probabilities and losses, n patients.
        q: Intervention probabilities, shape (K,).
        y: Labels, shape (n,), or None.
        question: What is to be computed.

    Returns:
        The contributions, each of shape (n,).
    """
    p_obs, p_bar, threshold = scores.p_obs, scores.p_bar, question.threshold
    rows = {
        "S_var": patient_variance(scores.p_cf, q, correction=question.correction),
        "S_flip": patient_flips(p_obs, scores.p_cf, q, threshold),
        "D_obs": ((p_obs > threshold) != (rounded(p_bar) > threshold)).double(),
        "D_abs": (p_obs - p_bar).abs(),
    }
    if y is None:
        return rows

    tails = patient_tail_losses(scores.loss_cf, q, (*question.alphas, 0.0)).unbind(dim=-1)
    return {
        "R_orig": scores.loss_obs,
        "R_CM": scores.loss_bar,
        "R_IE": scores.loss_cf @ q,
        **dict(zip([*map(tail_name, question.alphas), "R_WC"], tails, strict=True)),
        "Brier_orig": squared_error(p_obs, y),
        "Brier_marg": squared_error(p_bar, y),
        **rows,
    }


def blocks(
    obs: Tensor, cf: Tensor, q: Tensor, y: Tensor | None, question: Question, read: Reading
) -> Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]:
    """Go through the patients block by block, so that no second N x K matrix is ever held.

    Yields:
        The summands, the observed and the marginalised probabilities of each block.
    """
    for start in range(0, obs.shape[0], BLOCK):
        rows = slice(start, start + BLOCK)
        labels = None if y is None else y[rows]
        scores = read(obs[rows], cf[rows], q, labels, question.loss)
        yield summands(scores, q, labels, question), scores.p_obs, rounded(scores.p_bar)


def calibration(p: Tensor, y: Tensor, bins: int, which: str) -> dict[str, Tensor]:
    """Expected and maximum calibration error, named after the scores they are of."""
    return {
        f"ECE_{which}": expected_calibration_error(p, y, bins),
        f"MCE_{which}": maximum_calibration_error(p, y, bins),
    }


def ranking(p_obs: Tensor, p_bar: Tensor) -> dict[str, Tensor]:
    """The three rank metrics, two of them sharing their ranks."""
    tau = kendall(p_obs, p_bar)
    ranks, marginal_ranks = average_ranks(p_obs), average_ranks(p_bar)
    return {
        "S_rank": correlation(ranks, marginal_ranks),
        "tau_b": tau,
        "abs_rank_change": (ranks - marginal_ranks).abs().mean(),
    }


def summarise(
    obs: Tensor,
    cf: Tensor,
    q: Tensor,
    y: Tensor | None = None,
    *,
    question: Question | None = None,
    read: Reading = from_probabilities,
) -> dict[str, Tensor]:
    """Every metric of the paper for one predictor, on whatever device the tensors are.

    Nothing is checked and no value is ever asked of the device; :func:`cfcore.evaluate` checks
    its input and returns plain numbers.

    Args:
        obs: Observed scores, shape (N,).
        cf: Counterfactual scores, shape (N, K).
        q: Intervention probabilities, shape (K,).
        y: Labels 0 or 1, shape (N,), or None for the label-free metrics only.
        question: Threshold, tail masses, bins and loss.
        read: What the scores are, :func:`from_probabilities` or :func:`from_logits`.

    Returns:
        The metrics by name, each of shape ().

    Example:
        >>> obs, cf = torch.tensor([0.9, 0.2]), torch.tensor([[0.9, 0.4], [0.2, 0.2]])
        >>> metrics = summarise(obs, cf, torch.tensor([0.5, 0.5]))
        >>> metrics["S_flip"].item()
        0.25
    """
    question = question or Question()
    q = q.double()
    totals: dict[str, Tensor] = {}
    p_obs = obs.new_empty(obs.shape, dtype=torch.float64)
    p_bar = torch.empty_like(p_obs)

    for i, (rows, *scores) in enumerate(blocks(obs, cf, q, y, question, read)):
        part = slice(i * BLOCK, (i + 1) * BLOCK)
        p_obs[part], p_bar[part] = scores
        totals = {name: totals.get(name, 0.0) + row.sum() for name, row in rows.items()}

    metrics = {name: total / obs.shape[0] for name, total in totals.items()}
    metrics |= ranking(p_obs, p_bar)
    if y is not None:
        metrics |= calibration(p_obs, y, question.bins, "orig")
        metrics |= calibration(p_bar, y, question.bins, "marg")
    return {name: metrics[name] for name in names(question, labelled=y is not None)}
