r"""Parent predictors: what an image, and the labels that are known, say of those that are not.

.. math:: q(y \mid x) = \prod_i q(y_i \mid x, y_{>i})

Variables are predicted against the causal order: the last effect from the image alone, each
earlier variable knowing all later ones. The paper writes :math:`q(y_i \mid y_{<i}, x)` in the
objective and :math:`q(y_i \mid x, y_{>i})` everywhere else; here it is the latter throughout.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from cfcore.generator import Parents
from cfcore.graph import CausalGraph
from cfscm.encoding import encode, widths
from cfscm.flows import MLP
from cfscm.networks import check_positive, convolutions, normal_noise

_Prediction = Categorical | Normal


@dataclass(frozen=True)
class InferenceConfig:
    """What the parent predictors are made of.

    Args:
        width: Channels of the first layer; the image becomes four times as many features.
        hidden: The widths of the hidden layers of each head.
    """

    width: int = 16
    hidden: tuple[int, ...] = (32,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))  # JSON has lists only
        check_positive(self, "width")


class ParentPredictors(nn.Module):
    r"""The predictors :math:`q(y_i \mid x, y_{>i})` of all parents: one trunk, a head for each.

    The trunk turns the image into features, once; a head reads them beside the codes of all later
    variables. Discrete variables have a categorical distribution, continuous ones a normal one
    that is linear on the encoded scale and stated in their own units.

    Args:
        names: The variables to predict, in topological order.

    Example:
        >>> from cfcore.graph import Variable
        >>> age = Variable("age", "continuous", range=(20.0, 90.0))
        >>> graph = CausalGraph([age, Variable("ill", "binary")], {"ill": ["age"]})
        >>> predictors = ParentPredictors(graph, tuple(graph), InferenceConfig())
        >>> predictors.later("age")
        ('ill',)
        >>> pa = {"age": torch.full((2,), torch.nan), "ill": torch.tensor([1.0, 0.0])}
        >>> filled = predictors.impute(torch.zeros(2, 1, 64, 64), pa)
        >>> filled["ill"].tolist(), filled["age"].shape
        ([1.0, 0.0], torch.Size([2]))
    """

    def __init__(self, graph: CausalGraph, names: tuple[str, ...], config: InferenceConfig) -> None:
        super().__init__()
        self.graph, self.names, self.config = graph, tuple(names), config
        self.trunk = nn.Sequential(*convolutions(config.width))
        heads = {name: self._head(name, 4 * config.width) for name in self.names}
        self.heads = nn.ModuleDict(heads)

    def _head(self, name: str, features: int) -> MLP:
        variable = self.graph[name]
        inputs = features + sum(widths(self.graph, self.later(name)).values())
        outputs = 2 if variable.kind == "continuous" else len(variable.values)
        return MLP(inputs, outputs, self.config.hidden, activation=nn.SiLU)

    def later(self, name: str) -> tuple[str, ...]:
        """The variables that are known when ``name`` is predicted."""
        return self.names[self.names.index(name) + 1 :]

    def features(self, x: Tensor) -> Tensor:
        """The features of images (B, 1, H, W), shape (B, F)."""
        return self.trunk(((x - 0.5) * 4).contiguous(memory_format=torch.channels_last))

    def predict(self, name: str, features: Tensor, pa: Parents) -> _Prediction:
        r"""The distribution :math:`q(y_i \mid x, y_{>i})` of one variable.

        It is categorical, or normal in the units of the variable. The features of the images have
        shape (..., F), the later variables in ``pa`` shape (...).
        """
        later = self.later(name)
        inputs = torch.cat((features, encode(self.graph, pa, later)), dim=-1) if later else features
        out, variable = self.heads[name](inputs), self.graph[name]
        if variable.kind != "continuous":
            return Categorical(logits=out, validate_args=False)
        low, high = variable.range
        mean, log_sd = out.unbind(dim=-1)
        sd = (5 * torch.tanh((log_sd - 2) / 5)).exp()  # a start near a tenth of the range
        mean, sd = low + (high - low) * (mean + 0.5), (high - low) * sd.clamp(min=1e-3)
        return Normal(mean, sd, validate_args=False)

    @torch.no_grad()
    def impute(
        self, x: Tensor, pa: Parents, rng: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        r"""Fills in what is missing, against the causal order; what is known stays.

        Args:
            x: The images, shape (B, 1, H, W).
            pa: Their parents, each of shape (B,), NaN where missing.
            rng: The source of draws; without one the likeliest value of a discrete variable and
                the mean of a continuous one are taken.
        """
        features, filled = self.features(x), dict(pa)
        for name in reversed(self.names):
            guess = _value(self.predict(name, features, filled), rng).to(pa[name].dtype)
            filled[name] = torch.where(pa[name].isnan(), guess, pa[name])
        return {name: filled[name] for name in pa}

    def log_prob(self, x: Tensor, pa: Parents) -> dict[str, Tensor]:
        r"""The terms :math:`\log q(y_i \mid x, y_{>i})` of known parents, each of shape (B,)."""
        features = self.features(x)
        return {name: self.predict(name, features, pa).log_prob(pa[name]) for name in self.names}


def _value(q: _Prediction, rng: torch.Generator | None) -> Tensor:
    if isinstance(q, Normal):
        return q.mean + q.stddev * normal_noise(q.mean, rng)
    if rng is None:
        return q.logits.argmax(dim=-1)
    return torch.multinomial(q.probs, 1, generator=rng).squeeze(-1)
