"""What a plan names, loaded without pickle: predictors as they were trained, and generators."""

import importlib
import inspect
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from cfcore.checks import InputError
from cfcore.generator import Parents, blaming
from cfcore.graph import CausalGraph
from cfcore.patients import Patients
from cfscm.model import load_model
from cfscm.networks import load

SCORES = ("logits", "probabilities", "softmax")
_Numbers = float | Sequence[float]
_beside: set[str] = set()  # modules that were found beside a plan


class Adapted(nn.Module):
    """A predictor with what a plan says of its input and of its outputs.

    Args:
        predictor: A module of images, or a function of images and parents.
        outputs: The numbers of its outputs that are wanted, or how many it has.
        scores: What it gives: one of ``SCORES``; by softmax, its outputs are classes.
        channels: Its channels, into which a grey image is repeated.
        size: The side to which images are resized for it.
        mean, std: What is taken off its input, and by what it is divided, for each channel.
    """

    def __init__(
        self,
        predictor: object,
        outputs: int | list[int],
        *,
        scores: str = "logits",
        channels: int | None = None,
        size: int | None = None,
        mean: _Numbers = 0.0,
        std: _Numbers = 1.0,
    ) -> None:
        super().__init__()
        self.predictor, self.outputs, self.scores = predictor, outputs, scores
        self.channels, self.size, self.alone = channels, size, isinstance(predictor, nn.Module)
        self.scale = [torch.tensor(part).view(-1, 1, 1).float() for part in (mean, std)]
        with suppress(AttributeError, TypeError, ValueError):  # of what has no signature
            self.alone &= list(inspect.signature(predictor.forward).parameters)[1:2] != ["pa"]

    def forward(self, x: Tensor, pa: Parents) -> Tensor:
        """The logits of the labels, shape (B, L)."""
        if self.size and x.shape[2:] != (self.size, self.size):
            smaller = self.size < min(x.shape[2:])
            how = {"mode": "area"} if smaller else {"mode": "bilinear", "align_corners": False}
            x = interpolate(x, size=(self.size, self.size), **how)
        if self.channels and x.shape[1] == 1:
            x = x.expand(-1, self.channels, -1, -1)
        x = (x - self.scale[0].to(x)) / self.scale[1].to(x)
        out = self.predictor(x) if self.alone else self.predictor(x, pa)
        if not isinstance(out, Tensor):
            raise InputError(f"gives a {type(out).__name__}, not a tensor of logits")
        out, shape = out[:, None] if out.ndim == 1 else out, tuple(out.shape)
        exact = isinstance(self.outputs, int)
        count = self.outputs if exact else max(self.outputs) + 1
        enough = out.ndim == 2 and out.shape[1] >= count
        if not enough or len(out) != len(x) or (exact and out.shape[1] > count):
            wanted = (
                f"{count} output{'s' * (count > 1)}" if exact else f"an output number {count - 1}"
            )
            advice = "say which outputs are which labels, outputs: {label: number}"
            advice += ", and scores: softmax if they are classes of which one is right"
            raise InputError(f"gives {shape} for {len(x)} images, not {wanted}; {advice}")
        if self.scores == "softmax" and out.shape[1] == 1:
            raise InputError("gives one output, and a softmax needs two or more")
        if self.scores == "softmax" and _of_a_softmax(out):
            raise InputError("ends in a softmax already: say scores: probabilities, and outputs")
        out = out.double().softmax(dim=1) if self.scores == "softmax" else out.double()
        out = out if exact else out[:, self.outputs]
        if self.scores == "probabilities" and not (out.min() >= 0 and out.max() <= 1):
            raise InputError(f"gives {out.min():.3g} to {out.max():.3g}, not probabilities")
        return (out if self.scores == "logits" else out.clamp(1e-6, 1 - 1e-6).logit()).float()


def _of_a_softmax(out: Tensor) -> bool:
    """Whether outputs are probabilities of classes of which one is right; a few may seem so."""
    return len(out) > 8 and bool((out >= 0).all() and ((out.sum(dim=1) - 1).abs() < 1e-3).all())


def load_predictor(where: Path | str, graph: CausalGraph, folder: Path) -> object:
    """A predictor from MODULE:NAME, from our own weights, or from TorchScript.

    A file that holds anything but TorchScript is refused: to unpickle it would run what is in it.
    """
    if isinstance(where, str):
        found = _named(where, folder)
        if not callable(found):
            raise InputError(f"{where!r} is a {type(found).__name__}, not a function or a network")
        return found
    if where.suffix == ".safetensors":
        return load(where, graph=graph)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(where, map_location="cpu").eval()
    except (RuntimeError, ValueError) as error:
        why = f"({str(error).splitlines()[0][:80]})"
        how = "write it with torch.jit.trace(model, images).save(...); nothing is unpickled here"
        raise InputError(f"{where} is not TorchScript {why}: {how}") from None


def load_generator(where: Path | str, graph: CausalGraph, folder: Path) -> object:
    """A generator from MODULE:NAME, or from weights that were trained here."""
    return _named(where, folder) if isinstance(where, str) else load_model(where, graph=graph)


def _named(where: str, folder: Path) -> object:
    """An object of the user's; whatever happens when it is made is said.

    What is beside a plan is imported anew each time: the next plan may have another of that name.
    """
    for name in _beside:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    before = set(sys.modules)
    sys.path[:] = dict.fromkeys([str(folder), str(Path.cwd()), *sys.path])
    try:
        with blaming(f"{where!r}, called without arguments,"):
            found = imported(where)
    finally:
        new = {name: name.partition(".")[0] for name in set(sys.modules) - before}
        _beside.update(name for name, top in new.items() if folder in _homes(top))
    module = where.partition(":")[0]
    own = folder / f"{module.replace('.', '/')}.py"
    if own.is_file() and own.parent != _homes(module)[0]:
        raise InputError(
            f"{where!r}: a module {module!r} of {_homes(module)[0]} was imported "
            f"before; rename {own}"
        )
    return found


def imported(where: str) -> object:
    """An object by ``module:name``; a class, or a function that needs no arguments, is called.

    Example:
        >>> imported("math:pi"), imported("builtins:list")
        (3.141592653589793, [])
    """
    module, _, name = where.partition(":")
    if not module or not name:
        raise InputError(f"{where!r} is neither a *.safetensors file nor of the form MODULE:NAME")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # where the user's plug-in is
    try:
        thing = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the user's module does
        problem = f"cannot be imported from {here} or installed packages: {error}"
        raise InputError(f"{where!r} {problem}") from None
    made = isinstance(thing, type)
    if inspect.isfunction(thing):
        with suppress(TypeError):  # it needs arguments, and is the object itself
            made = inspect.signature(thing).bind() is not None
    return thing() if made else thing


def _homes(module: str) -> list[Path]:
    """The folder of a module, and the one above, where a package is."""
    file = getattr(sys.modules.get(module), "__file__", None) or "/built in/no/folder"
    return list(Path(file).resolve().parents)[:2]


def on_device(
    data: Patients, device: torch.device | str
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """All images of some patients, their parents and their rows, where networks are."""
    pa = {name: values.to(device) for name, values in data.parents.items()}
    return data[range(len(data))].to(device), pa, data.index.to(device)
