r"""The objective of the appendix, for any pattern of missing labels over any graph.

For a row of which the labels :math:`y_O` are known and :math:`y_M` are missing,

.. math:: \log p(x, y_O) \ge \mathbb{E}_{q(y_M \mid x, y_O)} \Big[ \mathcal{L}(x, y)
    + \sum_i \log p(y_i \mid \mathbf{pa}_i) - \sum_{i \in M} \log q(y_i \mid x, y_{>i}) \Big]

The paper's four equations are this bound with everything, nothing, the causes or the effects
known; :func:`partial` takes any mask. A test computes the bound by brute force for every mask of a
small model. With everything known, mechanisms and image share no parameter and are trained apart:
:class:`Labelled` is the term of the image alone.

An objective returns *named* terms whose sum is the loss (:data:`cfscm.training.Objective`), so that
another can stand in its place and a term that goes wrong can be named.

Where the paper leaves a choice, this is what was chosen:

- its :math:`\mathcal{U}` has :math:`\mathrm{KL}(q(y_E \mid x) \,\|\, p(y_E \mid y_C))` outside the
  expectation over :math:`y_C`, where that is not bound to any value. Here it is inside;
- the weight :math:`1 - H` of imputed labels scales the expectation, not the divergences; several
  missing labels have one weight each, see :attr:`.Completions.trust`. With it the objective is no
  bound any more; ``trusting`` leaves it out;
- the classification term is on rows of which all is known. With labels missing one by one there may
  be no such row, so every known label counts, averaged over what is missing of its later variables;
- its weight against the bound is not stated: the rest of :math:`\mathcal{T}` are sums over rows,
  this is a mean. It is a parameter here;
- the priors are called Gaussian, which no discrete label has: here
  :math:`p(y_i \mid \mathbf{pa}_i)` are the mechanisms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cfcore.checks import InputError
from cfcore.generator import Parents
from cfscm.completion import Completions, complete
from cfscm.encoding import encode
from cfscm.image import ImageMechanism
from cfscm.inference import ParentPredictors
from cfscm.model import DeepSCM
from cfscm.networks import check_positive


@dataclass(frozen=True)
class Labelled:
    r"""The labelled term :math:`\mathcal{S}(x, y)` of the appendix.

    .. math:: \mathcal{S}(x, y) = -\mathcal{L}(x, y) - \log p(y_E \mid y_C) - \log p(y_C), \qquad
        \mathcal{L} = \mathbb{E}_q \log p(x \mid z, y) - \beta\, \mathrm{KL}(q \,\|\, p)

    With all labels known, the last two terms hold the mechanisms of the parents alone and the
    first the image alone: they share no parameter, so the two are trained apart, and this is
    :math:`-\mathcal{L}`, in nats for each pixel.

    The weight :math:`\beta` of the divergence falls from ``start`` to ``beta``, geometrically,
    over the share ``until`` of the training. A heavy start closes the latents until the decoder
    has learned what the parents alone say of the image; what the latents then add has little
    left to leak.

    Args:
        beta: The weight of the divergence in the end; 1 is the evidence lower bound.
        start: Its weight at the start.
        until: The share of the training after which it no longer falls.
    """

    beta: float = 1.0
    start: float = 1.0
    until: float = 0.5

    def __post_init__(self) -> None:
        check_positive(self, "beta", "start", "until")

    def weight(self, done: float) -> float:
        """The weight of the divergence when a share of the training is behind.

        Example:
            >>> [Labelled(beta=1, start=16, until=0.5).weight(t) for t in (0, 0.25, 0.5, 1)]
            [16.0, 4.0, 1.0, 1.0]
        """
        left = max(0.0, 1 - done / self.until)
        return self.beta * (self.start / self.beta) ** left

    def __call__(
        self, image: ImageMechanism, x: Tensor, c: Tensor, done: float, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """The terms of the loss; see :data:`.Objective`."""
        (log_likelihood, kl), pixels = image.terms(x, c, rng), x[0].numel()
        kl = self.weight(done) * kl.mean() / pixels
        return {"reconstruction": -log_likelihood.mean() / pixels, "divergence": kl}


@dataclass(frozen=True)
class _Evidence:
    r"""What the equations are made of, for B rows.

    Args:
        image: The expected bound of the image :math:`\mathbb{E}_q \mathcal{L}(x, y)`, shape (B,).
        log_p: The terms :math:`\log p(y_i \mid \mathbf{pa}_i)`, each of shape (B, K).
        trust: The weight of what is expected of imputed labels, shape (B,); 1 for a bound.
    """

    rows: Completions
    image: Tensor
    log_p: Mapping[str, Tensor]
    trust: Tensor

    def of(self, terms: Mapping[str, Tensor], *, missing: bool) -> Tensor:
        """The sum of the terms of the variables that are missing, or known, shape (B, K)."""
        chosen = self.rows.missing if missing else {n: ~m for n, m in self.rows.missing.items()}
        parts = [torch.where(chosen[name][:, None], term, 0) for name, term in terms.items()]
        return torch.stack(parts).sum(dim=0)

    @property
    def divergence(self) -> Tensor:
        r"""The divergence :math:`\mathbb{E}_q \sum_{i \in M} \log (q_i / p_i)`, shape (B,)."""
        q, p = self.of(self.rows.log_q, missing=True), self.of(self.log_p, missing=True)
        return self.rows.expect(q - p)


def unlabelled(e: _Evidence) -> Tensor:
    r"""The unlabelled term :math:`\mathcal{U}(x)` (``eq:app:bothunlab``), no label known.

    .. math:: \mathcal{U}(x) = -\mathbb{E}_{q(y \mid x)} \mathcal{L}(x, y)
        + \mathbb{E}_{q(y \mid x)} \sum_i \log \frac{q(y_i \mid x, y_{>i})}
        {p(y_i \mid \mathbf{pa}_i)}

    It is the negative bound of each row in nats, shape (B,). The paper's form is
    :eq:`eq:app:bothunlab` in :doc:`/notebooks/training`.
    """
    _require(e, all(missing.all() for missing in e.rows.missing.values()), "no labels")
    return -e.trust * e.image + e.divergence


def cause_only(e: _Evidence) -> Tensor:
    r"""The cause-only term :math:`\mathcal{C}(x, y_C)` (``eq:app:cause``).

    .. math:: \mathcal{C}(x, y_C) = -\mathbb{E}_{q(y_E \mid x)} \mathcal{L}(x, y) - \log p(y_C)
        + \mathrm{KL}\big(q(y_E \mid x) \,\|\, p(y_E \mid y_C)\big)

    What is predicted does not know the causes, though they are recorded: the predictors read
    later variables only. The bound holds all the same; it cannot be tight. No known variable may
    have a missing cause. The paper's form is :eq:`eq:app:cause` in :doc:`/notebooks/training`.
    """
    _require(e, not any(_open(e, name).any() for name in e.log_p), "causes before effects")
    return -e.trust * e.image - e.rows.expect(e.of(e.log_p, missing=False)) + e.divergence


def partial(e: _Evidence) -> Tensor:
    r"""The term of any mask, each row with its own: the four equations are special cases.

    .. math:: -\tau\, \mathbb{E}_q \Big[ \mathcal{L}(x, y) + \sum_{i \in O,\, \mathbf{pa}_i \cap M
        \neq \emptyset} \log p(y_i \mid \mathbf{pa}_i) \Big] - \sum_{i \in O,\, \mathbf{pa}_i
        \cap M = \emptyset} \log p(y_i \mid \mathbf{pa}_i) + \mathbb{E}_q \sum_{i \in M}
        \log \frac{q(y_i \mid x, y_{>i})}{p(y_i \mid \mathbf{pa}_i)}

    with the trust :math:`\tau` in what was imputed: 1, or :math:`1 - H`; in nats, shape (B,).
    """
    inside, outside = 0.0, 0.0
    for name, term in e.log_p.items():
        known = e.rows.expect(torch.where(e.rows.missing[name][:, None], 0, term))
        inside = inside + torch.where(_open(e, name), known, 0)
        outside = outside + torch.where(_open(e, name), 0, known)
    return -e.trust * (e.image + inside) - outside + e.divergence


def classification(rows: Completions) -> Tensor:
    r"""The classification term of :math:`\mathcal{T}` (``eq:app:total``), on every known label.

    .. math:: -\sum_{i \in O} \mathbb{E}_{q(y_M \mid x, y_O)} \log q(y_i \mid x, y_{>i})

    In nats, shape (B,); nothing is learned here about the labels that are averaged over. The
    paper's form is :eq:`eq:app:total` in :doc:`/notebooks/training`.
    """
    total = 0.0
    for name, term in rows.log_q.items():
        mean = (rows.weight.detach() * torch.where(rows.possible, term, 0)).sum(dim=1)
        total = total - torch.where(rows.missing[name], 0, mean)
    return total


def _open(e: _Evidence, name: str) -> Tensor:
    """Which rows know a variable and miss one of its causes, shape (B,)."""
    causes = [e.rows.missing[cause] for cause in e.rows.graph.parents(name)]
    lacking = torch.stack(causes).any(dim=0) if causes else torch.zeros_like(e.image).bool()
    return lacking & ~e.rows.missing[name]


def _require(e: _Evidence, holds: bool, what: str) -> None:
    if not holds:
        known = [name for name, missing in e.rows.missing.items() if not missing.all()]
        raise InputError(f"this equation is for rows with {what}, but known are {known}")


@dataclass(frozen=True)
class SemiSupervised:
    r"""The total objective :math:`\mathcal{T}`: bounds of all rows and the classification term.

    Missing discrete labels are summed over, for every row: its image is encoded once and decoded in
    each combination that its known labels allow.

    With ``exact`` only the first rows of a batch are summed over, and of each other row one
    combination is drawn from q. The mean over draws is the same, but a draw has no gradient with
    respect to q. So the rows that are summed over count for all in the gradient of the
    probabilities: they have the weight :math:`w + (B / \text{exact} - 1) (w - \bar{w})`, in which
    :math:`\bar{w} = w` is held. Rows come in random order, so the gradient is right in the mean
    over batches, with a variance that is larger by the same factor. It is for networks that cannot
    decode so many images at once.

    Args:
        labelled: The bound of the image: the weight of its divergence over the training.
        exact: Rows of a batch of which all combinations are decoded; by default all.
        classify: The weight of the classification term; the bound is in nats for each pixel.
        trusting: Whether imputed labels are trusted like recorded ones; by default by
            :math:`1 - H`.
    """

    labelled: Labelled = field(default_factory=Labelled)
    exact: int | None = None
    classify: float = 0.1
    trusting: bool = False

    def __post_init__(self) -> None:
        if self.exact is not None and self.exact < 1:
            raise InputError(f"one row or more is summed over, not {self.exact}: q would not learn")

    def __call__(
        self, model: DeepSCM, x: Tensor, packed: Tensor, done: float, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """The terms of the loss; see :data:`.Objective`."""
        model.inference.eval()  # norms hold from here on: an image has its features in any company
        e = self.evidence(model, x, unpack(packed, model.names), done, rng)
        known = self.classify * classification(e.rows).mean().float()
        return {"bound": partial(e).mean().float() / x[0].numel(), "classification": known}

    def evidence(
        self, model: DeepSCM, x: Tensor, pa: Parents, done: float, rng: torch.Generator
    ) -> _Evidence:
        """What the equations are made of, for a batch with labels missing anywhere."""
        rows = complete(model.inference, model.inference.features(x), pa, rng)
        image = self.image(model, x, rows, done, rng)
        trust = torch.ones_like(image) if self.trusting else rows.trust
        return _Evidence(rows, image, model.log_prob(rows.pa), trust)

    def image(
        self, model: DeepSCM, x: Tensor, rows: Completions, done: float, rng: torch.Generator
    ) -> Tensor:
        r"""The expected bound of each image, by sums or by a draw, shape (B,)."""
        count = len(x) if self.exact is None else min(self.exact, len(x))
        summed = torch.arange(len(x), device=x.device) < count
        row, k = (rows.possible & summed[:, None]).nonzero().unbind(dim=1)
        rest = (~summed).nonzero().squeeze(1)
        weight = rows.weight[row, k]
        weight = weight + (len(x) / count - 1) * (weight - weight.detach())
        share = torch.cat((weight, torch.ones_like(rows.weight[rest, 0])))
        if len(rest):
            drawn = torch.multinomial(rows.weight.detach(), 1, generator=rng).squeeze(1)
            row, k = torch.cat((row, rest)), torch.cat((k, drawn[rest]))
        c = encode(model.graph, {n: v[row, k] for n, v in rows.pa.items()}, model.names)
        seen = (rows.weight[..., None] * encode(model.graph, rows.pa, model.names)).sum(dim=1)
        likelihood, kl = model.image.shared_terms(x, seen, c, row, rng)
        bound = share * (likelihood - self.labelled.weight(done) * kl)
        return torch.zeros_like(bound[: len(x)]).index_add(0, row, bound)


def classify_only(
    predictors: ParentPredictors, x: Tensor, packed: Tensor, done: float, rng: torch.Generator
) -> dict[str, Tensor]:
    """The classification term alone, by which training starts: on labels that are recorded."""
    pa = unpack(packed, predictors.names)
    rows = complete(predictors, predictors.features(x), pa, rng)
    return {"classification": classification(rows).mean()}


def pack(pa: Parents, names: Sequence[str]) -> Tensor:
    """Labels (N,), NaN where missing, as a matrix (N, 2 V): values, or 0, and which are known.

    Example:
        >>> pack({"age": torch.tensor([50.0, torch.nan])}, ["age"])
        tensor([[50.,  1.],
                [ 0.,  0.]])
    """
    values = torch.stack([pa[name] for name in names], dim=1)
    return torch.cat((values.nan_to_num(), values.isfinite().to(values.dtype)), dim=1)


def unpack(packed: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """Labels from the matrix that :func:`pack` made, NaN where missing."""
    values, known = packed.chunk(2, dim=1)
    filled = torch.where(known > 0, values, torch.nan)
    return dict(zip(names, filled.unbind(dim=1), strict=True))
