r"""Mechanisms of the parents: invertible maps between noise and value, given the causes.

.. math:: y_j = f_j(\mathbf{pa}_j, u_j), \qquad u_j = f_j^{-1}(\mathbf{pa}_j, y_j)

A continuous variable is a monotone spline of normal noise; a discrete one is the argument of the
maximum of logits plus Gumbel noise. Both are fitted by maximum likelihood. Networks compute in
float32, the maps between noise and value in float64: whoever goes there and back again loses
nothing that float32 could show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Generator as RandomState
from torch import Tensor, nn
from torch.distributions import AffineTransform, Categorical, Normal
from torch.nn import functional as F

from cfcore.checks import InputError
from cfcore.generator import Parents
from cfcore.graph import CausalGraph
from cfscm.encoding import encode, widths
from cfscm.flows import (
    MLP,
    ComposedTransform,
    MonotonicAffineTransform,
    MonotonicRQSTransform,
    NormalizingFlow,
)
from cfscm.networks import check_positive
from cfscm.training import FittingConfig, Loop

_EULER = 0.5772156649015329  # the mean of a standard Gumbel variable
_BOUND = 5.0  # deviations of the noise beyond which the spline goes on as a straight line


@dataclass(frozen=True)
class MechanismConfig:
    """What mechanisms are made of and how they are fitted.

    Args:
        hidden: The widths of the hidden layers of each network.
        bins: The bins of each spline.
        steps: The steps of Adam.
        learning_rate: The peak learning rate; it falls to 0 along a cosine.
    """

    hidden: tuple[int, ...] = (32, 32)
    bins: int = 8
    steps: int = 400
    batch: int = 1024
    learning_rate: float = 1e-2

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))  # JSON has lists only
        check_positive(self, "bins", "steps", "batch", "learning_rate")


class _Conditioner(nn.Module):
    r"""The parameters of a mechanism: a network of its causes, or free numbers at a root."""

    def __init__(self, graph: CausalGraph, name: str, outputs: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.graph, self.causes = graph, graph.parents(name)
        self.offset = nn.Parameter(torch.zeros(outputs))
        if self.causes:
            inputs = sum(widths(graph, self.causes).values())
            self.network = MLP(inputs, outputs, hidden, activation=nn.SiLU)
            with torch.no_grad():
                for parameter in self.network[-1].parameters():
                    parameter.mul_(0.1)

    def forward(self, pa: Parents) -> Tensor:
        """The parameters, float64, shape (B, P), or (P,) at a root."""
        if not self.causes:
            return self.offset.double()
        inputs = encode(self.graph, pa, self.causes).to(self.offset.dtype)
        return (self.offset + self.network(inputs)).double()


class _SplineMechanism(nn.Module):
    r"""A continuous variable as a monotone function of normal noise.

    .. math:: u = S_{\mathbf{pa}}\big(e^{a(\mathbf{pa})} (y - m) / s + b(\mathbf{pa})\big),
        \qquad u \sim \mathcal{N}(0, 1)

    with a rational-quadratic spline :math:`S` that is the identity beyond five deviations. No
    value is impossible, so that one on the edge of its range, or a little beyond, has finite
    noise and comes back; the price is a little mass where there should be none. Nothing is
    clipped, since what is clipped cannot be inverted.

    References:
        Durkan et al., *Neural spline flows*, 2019.
    """

    def __init__(self, graph: CausalGraph, name: str, config: MechanismConfig) -> None:
        super().__init__()
        self.variable, self.bins = graph[name], config.bins
        self.conditioner = _Conditioner(graph, name, 3 * config.bins + 1, config.hidden)
        low, high = self.variable.range
        self.register_buffer("centre", torch.tensor((low + high) / 2))
        self.register_buffer("spread", torch.tensor((high - low) / 4))

    def start(self, y: Tensor) -> None:
        """Starts from the mean and the deviation of the data."""
        low, high = self.variable.range
        self.centre.copy_(y.mean())
        self.spread.copy_(y.std(correction=0).clamp(min=1e-3 * (high - low)))

    def forward(self, pa: Parents) -> NormalizingFlow:
        """The distribution of the variable given its causes."""
        k = self.bins
        b, a, w, h, d = self.conditioner(pa).split((1, 1, k, k, k - 1), dim=-1)
        m, s = self.centre.double(), self.spread.double()
        transform = ComposedTransform(
            AffineTransform(-m / s, 1 / s),
            MonotonicAffineTransform(b.squeeze(-1), a.squeeze(-1)),
            MonotonicRQSTransform(w, h, d, bound=_BOUND),
        )
        return NormalizingFlow(transform, Normal(m.new_zeros(()), 1.0, validate_args=False))

    def log_prob(self, y: Tensor, pa: Parents) -> Tensor:
        """The log-density of values in their own units, float64, shape (B,)."""
        return self(pa).log_prob(y.double())

    def abduct(self, y: Tensor, pa: Parents, rng: RandomState | None = None) -> Tensor:
        """The noise of values, float64, shape (B,); it is certain, so ``rng`` is not used."""
        return self(pa).transform(y.double())

    def predict(self, u: Tensor, pa: Parents) -> Tensor:
        """The values that the noise gives, float64, shape (B,)."""
        return self(pa).transform.inv(u.double())


class _GumbelMechanism(nn.Module):
    r"""A discrete variable as the largest of its log-probabilities plus Gumbel noise.

    .. math:: y = \arg\max_k \big(\ell_k(\mathbf{pa}) + u_k\big), \qquad
        \textstyle\sum_k e^{\ell_k} = 1

    The value does not determine the noise. Its posterior factorises: the maximum is a standard
    Gumbel variable, whichever argument attains it, and the other terms are Gumbel variables
    truncated there. Its mean, taken where no source of randomness is given, is

    .. math:: \mathbb{E}[u_k \mid y = k] = \gamma - \ell_k, \qquad
        \mathbb{E}[u_k \mid y \neq k] = \gamma + \frac{p_k \ell_k}{1 - p_k},
        \qquad p_k = e^{\ell_k}

    which returns the observed value with a margin of 1 or more. (The most probable noise does
    not do: it lies where two terms tie, unless the value is the likeliest one.)

    References:
        Oberst and Sontag, *Counterfactual off-policy evaluation with Gumbel-max structural causal
        models*, 2019. Maddison, Tarlow and Minka, *A\* sampling*, 2014.
    """

    def __init__(self, graph: CausalGraph, name: str, config: MechanismConfig) -> None:
        super().__init__()
        self.variable = graph[name]
        self.conditioner = _Conditioner(graph, name, len(self.variable.values), config.hidden)

    def start(self, y: Tensor) -> None:
        """Starts from the frequencies in the data: at a root, the maximum of the likelihood."""
        count = torch.stack([(y == value).sum() for value in self.variable.values])
        with torch.no_grad():
            self.conditioner.offset.copy_(((count + 0.5) / (count + 0.5).sum()).log())

    def forward(self, pa: Parents) -> Categorical:
        """The distribution of the variable given its causes."""
        return Categorical(logits=self.conditioner(pa), validate_args=False)

    def log_prob(self, y: Tensor, pa: Parents) -> Tensor:
        """The log-probability of codes, float64, shape (B,)."""
        return self._logits(pa, y.shape).gather(-1, y.long()[..., None]).squeeze(-1)

    def abduct(self, y: Tensor, pa: Parents, rng: RandomState | None = None) -> Tensor:
        """The noise of codes, float64, shape (B, C): its posterior mean, or a draw with ``rng``."""
        logits = self._logits(pa, y.shape)
        chosen = F.one_hot(y.long(), logits.shape[-1]).bool()
        if rng is not None:
            top, rest = _gumbel(logits[..., :1], rng), logits + _gumbel(logits, rng)
            return torch.where(chosen, top, -torch.logaddexp(-top, -rest)) - logits
        certain = logits.clamp(max=-1e-12)  # the ratio tends to -1 as p tends to 1
        rest = certain.exp() * certain / -torch.expm1(certain)
        return _EULER + torch.where(chosen, -logits, rest)

    def predict(self, u: Tensor, pa: Parents) -> Tensor:
        """The codes that the noise gives, float64, shape (B,)."""
        return (self._logits(pa, u.shape[:-1]) + u).argmax(dim=-1).to(u.dtype)

    def _logits(self, pa: Parents, shape: torch.Size) -> Tensor:
        return self(pa).logits.expand(*shape, -1)


def _gumbel(like: Tensor, rng: RandomState) -> Tensor:
    return -torch.empty_like(like).exponential_(generator=rng).log()


_Mechanism = _SplineMechanism | _GumbelMechanism


def build_mechanisms(
    graph: CausalGraph, names: Sequence[str], config: MechanismConfig, *, seed: int
) -> nn.ModuleDict:
    """Makes the mechanisms of some variables, without touching the global random state."""
    kinds = {"continuous": _SplineMechanism}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = {n: kinds.get(graph[n].kind, _GumbelMechanism)(graph, n, config) for n in names}
        return nn.ModuleDict(made)


def fit_mechanisms(
    mechanisms: Mapping[str, _Mechanism], pa: Parents, config: MechanismConfig, *, seed: int
) -> dict[str, float]:
    r"""Fits mechanisms by maximum likelihood, each on the rows that have all it needs.

    Args:
        mechanisms: The mechanisms by name, fitted in place.
        pa: The values of all variables, each of shape (N,); NaN where missing.

    Returns:
        The mean negative log-likelihood of each variable, in nats.

    Example:
        >>> from cfcore.graph import Variable
        >>> graph, config = CausalGraph([Variable("sex", "binary")]), MechanismConfig(steps=1)
        >>> mechanisms = build_mechanisms(graph, ["sex"], config, seed=0)
        >>> sex = torch.tensor([0.0, 0.0, 1.0, 1.0])
        >>> round(fit_mechanisms(mechanisms, {"sex": sex}, config, seed=0)["sex"], 3)
        0.693
    """
    return {name: _fit(mechanism, pa, config, seed) for name, mechanism in mechanisms.items()}


def _fit(mechanism: _Mechanism, pa: Parents, config: MechanismConfig, seed: int) -> float:
    """Fits one mechanism, where neither its variable nor a cause of it is missing."""
    variable, names = mechanism.variable, mechanism.conditioner.causes
    whole = torch.stack([pa[name].isfinite() for name in (variable.name, *names)]).all(dim=0)
    y, causes = pa[variable.name][whole], {name: pa[name][whole] for name in names}
    if not len(y):
        raise InputError(f"{variable.name} and its causes {names} are known together in no row")
    for value in y.unique() if variable.kind != "continuous" else ():
        variable.check(value.item())
    mechanism.start(y)

    def loss(rows: Tensor | slice = slice(None)) -> Tensor:
        return -mechanism.log_prob(y[rows], {name: v[rows] for name, v in causes.items()}).mean()

    if causes or isinstance(mechanism, _SplineMechanism):
        pace = FittingConfig.plain(config.steps, config.learning_rate)
        loop, rng = Loop(mechanism, pace, y.device, half=False), RandomState().manual_seed(seed)
        for _ in range(config.steps):
            rows = torch.randint(len(y), (config.batch,), generator=rng).to(y.device)
            rows = rows if len(y) > config.batch else slice(None)
            loop.advance(lambda _, rows=rows: {variable.name: loss(rows)})
    with torch.no_grad():
        return loss().item()
