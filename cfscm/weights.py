r"""Weights on disk: safetensors, and a JSON manifest of what they are and where they came from."""

import hashlib
import json
import math
import platform
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from cfcore import __version__
from cfcore.checks import InputError
from cfcore.files import write_atomically
from cfcore.marks import announce, label, sources_in

Module = TypeVar("Module", bound=nn.Module)
_Facts = Mapping[str, Any]
_State = Mapping[str, torch.Tensor]
PART = 4_500_000  # bytes of weights in one file
_STEP = ".step"  # ends the name of the steps of what is kept in eight bits


def write_weights(
    path: Path | str,
    module: nn.Module,
    config: _Facts,
    *,
    seed: int,
    notes: _Facts | None = None,
    half: str | None = None,
    eight: bool = False,
) -> None:
    """Writes the weights as safetensors, and a JSON manifest beside them.

    Each file appears whole or not at all. The manifest is written last and holds the digest of
    the weights, so a pair of which one half is missing or old is refused when it is loaded. What
    is larger than ``PART`` goes on in ``*.safetensors.1`` and so forth, since repositories do not
    like large files.

    Args:
        path: The file of the weights, ``*.safetensors``; the manifest ends in ``.json``.
        module: The network.
        notes: Further entries of the manifest: training settings, statistics, data.
        half: The part of the network, by its name, whose numbers are rounded to half precision, in
            the file and in the network, so that both remain the same.
        eight: Whether kernels and matrices are rounded to eight bits, likewise: to 255 steps of a
            size of its own for each row.
    """
    from safetensors.torch import save as to_bytes

    path = _weights_path(path)
    state = {name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}
    if half is not None:
        inside = (n for n, v in state.items() if n.startswith(f"{half}.") and v.is_floating_point())
        state |= {name: state[name].half() for name in inside}
        module.load_state_dict(state)
    if eight:
        state = _packed(state)
        module.load_state_dict(_unpacked(state))
    weights = to_bytes(state, metadata=label(sources_in(str(notes).encode())))
    made = {"config": dict(config), "seed": seed, "sha256": hashlib.sha256(weights).hexdigest()}
    versions = {"cfcore": __version__, "python": platform.python_version()}
    versions["torch"] = torch.__version__
    made |= {"commit": commit(), "versions": versions, "notes": dict(notes or {})}
    path.parent.mkdir(parents=True, exist_ok=True)
    slices = [weights[start : start + PART] for start in range(0, len(weights), PART)]
    for number, part in enumerate(slices):
        write_atomically(_part(path, number), part)
    text = json.dumps(plain(made | {"parts": len(slices)}), indent=2, allow_nan=False)
    write_atomically(path.with_suffix(".json"), f"{text}\n".encode())


def read_weights(path: Path | str, make: Callable[[dict[str, Any]], Module]) -> Module:
    """Reads a network that :func:`write_weights` wrote.

    Args:
        make: Makes the network, with any weights, from its configuration.
    """
    from safetensors.torch import load as from_bytes

    path = _weights_path(path)
    weights, manifest = path.read_bytes(), read_manifest(path)
    announce(sources_in(str(manifest).encode()))
    for number in range(1, manifest.get("parts", 1)):
        weights += _part(path, number).read_bytes()
    if hashlib.sha256(weights).hexdigest() != manifest.get("sha256"):
        raise InputError(f"{path} is not the file that its manifest describes: save it again")
    try:
        module = make(manifest["config"])
        module.load_state_dict(_unpacked(from_bytes(weights)))
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path.with_suffix('.json')} does not describe it: {error}") from None
    return module


def _packed(state: _State) -> _State:
    """Kernels and matrices as whole numbers of eight bits, and the size of a step in each row."""
    packed = dict(state)
    for name, value in state.items():
        if value.is_floating_point() and value.ndim > 1:
            rows = value.float().flatten(1)
            step = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-20) / 127
            packed[name] = (rows / step).round().to(torch.int8).view(value.shape)
            packed[name + _STEP] = step[:, 0]
    return packed


def _unpacked(state: _State) -> _State:
    """What :func:`_packed` packed; anything else as it is.

    Example:
        >>> packed = _packed({"w": torch.tensor([[0.0, 127.0], [-1.0, 0.5]])})
        >>> packed["w"].tolist(), _unpacked(packed)["w"][0].tolist()
        ([[0, 127], [-127, 64]], [0.0, 127.0])
    """
    steps = {name: state[name] for name in state if name.endswith(_STEP)}
    found = {name: value for name, value in state.items() if name not in steps}
    for name, step in steps.items():
        whole = found[own := name.removesuffix(_STEP)]
        found[own] = whole.float() * step.view(-1, *[1] * (whole.ndim - 1))
    return found


def read_manifest(path: Path | str) -> dict[str, Any]:
    """The manifest of the weights at ``path``."""
    manifest = _weights_path(path).with_suffix(".json")
    try:
        return json.loads(manifest.read_text())
    except FileNotFoundError:
        problem = "is missing: the weights were not saved to their end"
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error}"
    raise InputError(f"{manifest} {problem}")


def plain(value: object) -> Any:  # noqa: ANN401
    """Values that JSON has: what is not a number, such as the AUC of one class, is null."""
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
