r"""Predictors of a variable from an image: networks, and weights on disk."""

import hashlib
import json
import math
import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from cfchest.graph import CHEST
from cfcore import __version__
from cfcore.checks import InputError
from cfcore.extras import needs
from cfcore.files import write_atomically
from cfcore.generator import Parents
from cfcore.graph import CausalGraph, Variable
from cfcore.marks import announced, label, sources_in

Architecture = Literal["small", "densenet121"]

Module = TypeVar("Module", bound=nn.Module)

PART = 4_500_000  # bytes of weights in one file


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

    variable: str = "effusion"
    architecture: Architecture = "small"
    width: int = 16

    def __post_init__(self) -> None:
        if self.architecture not in get_args(Architecture):
            known = get_args(Architecture)
            raise InputError(f"architecture must be one of {known}, not {self.architecture!r}")
        if self.width < 1:
            raise InputError(f"width must be positive, not {self.width}")


def convolutions(width: int) -> list[nn.Module]:
    """Four strided convolutions and a mean over positions: (B, 1, H, W) to (B, 4 width)."""
    layers: list[nn.Module] = []
    for before, after in pairwise((1, width, 2 * width, 4 * width, 4 * width)):
        layers += [
            nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        ]
    return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()]


class SmallNetwork(nn.Sequential):
    r"""Four strided convolutions, a mean over positions, one linear layer.

    Channels double as the resolution halves, so each layer costs about the same. The mean over
    positions accepts any image size from 16 pixels.

    Args:
        outputs: The number of outputs.
        width: The channels of the first layer.
    """

    def __init__(self, outputs: int, width: int = 16) -> None:
        super().__init__(*convolutions(width), nn.Linear(4 * width, outputs))


class Reader(nn.Module):
    r"""A network that reads one variable off the image.

    The output depends on the kind of the variable: the logit of a binary one, shape (B,); the
    logits of a categorical one, shape (B, C); the value of a continuous one in its own units,
    shape (B,), for which the network predicts :math:`(v - lo) / (hi - lo)`.

    Args:
        network: The network, from (B, 1, H, W) to (B, C).
        variable: The variable.
        config: What the network was made of, for the manifest.
    """

    def __init__(self, network: nn.Module, variable: Variable, config: PredictorConfig) -> None:
        super().__init__()
        self.network, self.variable, self.config = network, variable, config

    def forward(self, x: Tensor, pa: Parents | None = None) -> Tensor:
        """Reads the variable; the parents are accepted, as of any predictor, and ignored."""
        out = self.network(((x - 0.5) * 4).contiguous(memory_format=torch.channels_last))
        if self.variable.kind == "categorical":
            return out
        if self.variable.kind == "continuous":
            low, high = self.variable.range
            return low + (high - low) * out.squeeze(1)
        return out.squeeze(1)


def build(config: PredictorConfig, *, seed: int, graph: CausalGraph = CHEST) -> Reader:
    """Makes a predictor with random weights, without touching the global random state.

    Args:
        config: What to make.
        seed: The seed of the weights.
        graph: The graph that holds the variable.

    Returns:
        The predictor, in channels-last layout.

    Example:
        >>> reader = build(PredictorConfig("race"), seed=0)
        >>> reader(torch.zeros(2, 1, 64, 64)).shape
        torch.Size([2, 3])
    """
    variable = graph[config.variable]
    outputs = len(variable.values) if variable.kind == "categorical" else 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _network(config, outputs)
    return Reader(network, variable, config).to(memory_format=torch.channels_last)


def _network(config: PredictorConfig, outputs: int) -> nn.Module:
    if config.architecture == "small":
        return SmallNetwork(outputs, config.width)

    needs("monai")
    from monai.networks.nets import DenseNet121

    return DenseNet121(
        spatial_dims=2, in_channels=1, out_channels=outputs, init_features=config.width
    )


def save(
    reader: Reader, path: Path | str, *, seed: int, notes: Mapping[str, Any] | None = None
) -> None:
    """Writes a predictor; see :func:`write_weights`.

    Args:
        reader: The predictor.
        path: The file of the weights, ``*.safetensors``; the manifest ends in ``.json``.
        seed: The seed that the predictor was trained with.
        notes: Further entries of the manifest: training settings, statistics, data.
    """
    write_weights(path, reader, asdict(reader.config), seed=seed, notes=notes)


def write_weights(
    path: Path | str,
    module: nn.Module,
    config: Mapping[str, Any],
    *,
    seed: int,
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Writes the weights as safetensors, and a JSON manifest beside them.

    Each file appears whole or not at all. The manifest is written last and holds the digest of
    the weights, so a pair of which one half is missing or old is refused when it is loaded. What
    is larger than ``PART`` goes on in ``*.safetensors.1`` and so forth, since repositories do not
    like large files.

    Args:
        path: The file of the weights, ``*.safetensors``; the manifest ends in ``.json``.
        module: The network.
        config: What the network was made of.
        seed: The seed that it was trained with.
        notes: Further entries of the manifest: training settings, statistics, data.
    """
    from safetensors.torch import save as to_bytes

    path = _weights_path(path)
    state = {name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}
    weights = to_bytes(state, metadata=label(sources_in(str(notes).encode())))
    manifest = {
        "config": dict(config),
        "seed": seed,
        "sha256": hashlib.sha256(weights).hexdigest(),
        "commit": commit(),
        "versions": {
            "cfcore": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "notes": dict(notes or {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    slices = [weights[start : start + PART] for start in range(0, len(weights), PART)]
    for number, part in enumerate(slices):
        write_atomically(_part(path, number), part)
    write_atomically(path.with_suffix(".json"), as_json(manifest | {"parts": len(slices)}).encode())


def load(path: Path | str, *, graph: CausalGraph = CHEST) -> Reader:
    """Reads a predictor that :func:`save` wrote.

    Args:
        path: The file of the weights.
        graph: The graph that holds the variable.

    Returns:
        The predictor, in evaluation mode, on the CPU.
    """
    return read_weights(
        path, lambda config: build(PredictorConfig(**config), seed=0, graph=graph)
    ).eval()


def read_weights(path: Path | str, make: Callable[[dict[str, Any]], Module]) -> Module:
    """Reads a network that :func:`write_weights` wrote.

    Args:
        path: The file of the weights.
        make: Makes the network, with any weights, from its configuration.

    Returns:
        The network, on the CPU.

    Raises:
        InputError: If weights and manifest do not belong together.
    """
    from safetensors.torch import load as from_bytes

    path = _weights_path(path)
    weights, manifest = path.read_bytes(), read_manifest(path)
    announced(manifest)
    for number in range(1, manifest.get("parts", 1)):
        weights += _part(path, number).read_bytes()
    if hashlib.sha256(weights).hexdigest() != manifest.get("sha256"):
        raise InputError(f"{path} is not the file that its manifest describes: save it again")
    try:
        module = make(manifest["config"])
        module.load_state_dict(from_bytes(weights))
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path.with_suffix('.json')} does not describe it: {error}") from None
    return module


def read_manifest(path: Path | str) -> dict[str, Any]:
    """The manifest of the weights at ``path``."""
    manifest = _weights_path(path).with_suffix(".json")
    try:
        return json.loads(manifest.read_text())
    except FileNotFoundError:
        raise InputError(
            f"{manifest} is missing: the weights were not saved to their end"
        ) from None
    except json.JSONDecodeError as error:
        raise InputError(f"{manifest} is not JSON: {error}") from None


def as_json(manifest: Mapping[str, Any]) -> str:
    """A manifest as text; what is not a number, such as the AUC of one class, is null."""

    def plain(value: object) -> object:
        if isinstance(value, Mapping):
            return {name: plain(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [plain(part) for part in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(manifest), indent=2, allow_nan=False) + "\n"


def commit() -> str | None:
    """The commit of this project's repository, if it runs from one."""
    call = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(call, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def _part(path: Path, number: int) -> Path:
    return path if number == 0 else path.with_name(f"{path.name}.{number}")


def _weights_path(path: Path | str) -> Path:
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"weights are kept in *.safetensors, not in {path.name!r}")
    return path
