r"""Networks that predict a variable from an image."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from cfcore.checks import InputError
from cfcore.extras import needs
from cfcore.generator import Parents
from cfcore.graph import CausalGraph, Variable
from cfscm.weights import read_weights, write_weights

_Architecture = Literal["small", "densenet121"]


@dataclass(frozen=True)
class PredictorConfig:
    """What a predictor is made of.

    Args:
        variable: The variable to predict; its kind decides the head and the loss.
        architecture: ``"small"``, four strided convolutions that train on a laptop, or
            ``"densenet121"``, the network of the paper's size.
        width: Channels of the first layer: 16 suits the small network at 64 pixels, 64 is
            the published DenseNet121.
    """

    variable: str
    architecture: _Architecture = "small"
    width: int = 16

    def __post_init__(self) -> None:
        known = get_args(_Architecture)
        if self.architecture not in known:
            raise InputError(f"architecture must be one of {known}, not {self.architecture!r}")
        check_positive(self, "width")


def check_positive(config: object, *names: str) -> None:
    """Raise :class:`InputError` unless these fields of a config are positive and finite."""
    for name in names:
        if not 0 < getattr(config, name) < math.inf:
            raise InputError(f"{name} must be positive, not {getattr(config, name)}")


def convolutions(width: int, channels: int = 1) -> list[nn.Module]:
    """Four strided convolutions and a mean over positions: (B, C, H, W) to (B, 4 width).

    Channels double as the resolution halves, so each layer costs about the same. The mean over
    positions accepts any image size from 16 pixels.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise((channels, width, 2 * width, 4 * width, 4 * width)):
        layer = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
        layers += [layer, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()]


class ImageNetwork(nn.Module):
    r"""A network that predicts one variable from the image.

    The output depends on the kind of the variable: the logit of a binary one, shape (B,); the
    logits of a categorical one, shape (B, C); the value of a continuous one in its own units,
    shape (B,), for which the network predicts :math:`(v - lo) / (hi - lo)`.

    Args:
        network: The network, from (B, 1, H, W) to (B, C).
        variable: The variable.
    """

    def __init__(self, network: nn.Module, variable: Variable, config: PredictorConfig) -> None:
        super().__init__()
        self.network, self.variable, self.config = network, variable, config

    def forward(self, x: Tensor, pa: Parents | None = None) -> Tensor:
        """Predicts the variable; the parents are accepted, as of any predictor, and ignored."""
        out = self.network(((x - 0.5) * 4).contiguous(memory_format=torch.channels_last))
        return in_units(self.variable, out)


def in_units(variable: Variable, out: Tensor) -> Tensor:
    """Outputs (B, C) as logits (B, C), one logit (B,), or values in the variable's range (B,)."""
    if variable.kind == "categorical":
        return out
    low, high = variable.range if variable.kind == "continuous" else (0, 1)
    return low + (high - low) * out.squeeze(1)


def normal_noise(like: Tensor, rng: torch.Generator | None) -> Tensor:
    """Standard normal noise, of the shape of a tensor; zeros without a source of randomness."""
    if rng is None:
        return torch.zeros_like(like)
    return torch.randn(like.shape, generator=rng, device=like.device, dtype=like.dtype)


def build(
    config: PredictorConfig, *, graph: CausalGraph, seed: int, channels: int = 1
) -> ImageNetwork:
    """Makes a predictor with random weights, without touching the global random state.

    The network is in channels-last layout, for images of so many ``channels``.

    Example:
        >>> grade = Variable("grade", "categorical", categories=("a", "b", "c"))
        >>> network = build(PredictorConfig("grade"), graph=CausalGraph([grade]), seed=0)
        >>> network(torch.zeros(2, 1, 64, 64)).shape
        torch.Size([2, 3])
    """
    variable = graph[config.variable]
    outputs = len(variable.values) if variable.kind == "categorical" else 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _layers(config, outputs, channels)
    return ImageNetwork(network, variable, config).to(memory_format=torch.channels_last)


def _layers(config: PredictorConfig, outputs: int, channels: int) -> nn.Module:
    if config.architecture == "small":
        layers = convolutions(config.width, channels)
        return nn.Sequential(*layers, nn.Linear(4 * config.width, outputs))
    needs("monai")
    from monai.networks.nets import DenseNet121

    return DenseNet121(2, in_channels=channels, out_channels=outputs, init_features=config.width)


def save(
    network: ImageNetwork,
    path: Path | str,
    *,
    seed: int,
    notes: Mapping[str, Any] | None = None,
    eight: bool = False,
) -> None:
    """Writes a predictor, perhaps in eight bits; see :func:`.write_weights`."""
    write_weights(path, network, asdict(network.config), seed=seed, notes=notes, eight=eight)


def load(path: Path | str, *, graph: CausalGraph) -> ImageNetwork:
    """Reads a predictor that :func:`save` wrote, in evaluation mode, on the CPU."""
    made = read_weights(path, lambda given: build(PredictorConfig(**given), graph=graph, seed=0))
    return made.eval()
