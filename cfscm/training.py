r"""The training loop of all networks: it yields its statistics, and survives a kill if asked to.

:class:`Loop` takes the steps. :func:`train` drives it over epochs, until the validation loss of a
predictor no longer falls; :func:`fit` over a number of steps, with a moving average of the weights
and checkpoints, for what minimises an :data:`Objective`.
"""

import copy
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from cfcore.checks import InputError
from cfcore.files import write_atomically
from cfcore.graph import Variable
from cfcore.predictor import evaluating
from cfscm.muon import Muon
from cfscm.networks import ImageNetwork, check_positive
from cfscm.soundness.distances import agreement

_FIRST = 50  # steps after which the typical norm of a gradient is known


class Images(Protocol):
    """Images that can be indexed by rows: a tensor, or anything that loads them when asked."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor) -> Tensor:
        """The images of the rows, shape (B, 1, H, W), for an int64 index of shape (B,)."""


Objective = Callable[[nn.Module, Tensor, Tensor, float, torch.Generator], Mapping[str, Tensor]]
"""From the network, images (B, 1, H, W), parents (B, D), the share of the training that is behind
(0 to 1) and a source of randomness to the named terms of the loss, each of shape ()."""


@dataclass(frozen=True)
class TrainingConfig:
    """How a predictor is trained.

    The augmentation is what keeps a predictor from reading the detector: with ``noise`` some
    times the grain of the detector, a fresh draw of the grain hardly moves the score.

    Args:
        epochs: The most epochs to train.
        batch: The batch size.
        learning_rate: The peak learning rate of AdamW; it falls to 0 along a cosine.
        weight_decay: The weight decay of AdamW.
        patience: Epochs without a better validation loss after which training stops.
        noise: Standard deviation of the noise added to training images.
        brightness: Largest shift of the brightness of a training image.
        shift: Largest shift of a training batch, in pixels.
    """

    epochs: int = 10
    batch: int = 64
    learning_rate: float = 3e-3
    weight_decay: float = 1e-3
    patience: int = 4
    noise: float = 0.03
    brightness: float = 0.03
    shift: int = 1

    def __post_init__(self) -> None:
        check_positive(self, "epochs", "batch", "patience", "learning_rate")
        for name, value in asdict(self).items():
            if not 0 <= value < math.inf:
                raise InputError(f"{name} must not be negative, not {value}")
            if name in ("epochs", "batch", "patience", "shift") and value != int(value):
                raise InputError(f"{name} must be a whole number, not {value}")


@dataclass(frozen=True)
class FittingConfig:
    """How the image mechanism is trained.

    Args:
        steps: Steps of the optimiser, of ``batch`` images each.
        learning_rate: The peak learning rate of AdamW, reached after ``warmup`` steps; it then
            falls to 0 along a cosine.
        warmup: Steps over which the learning rate rises.
        average: Decay of the exponential moving average of the weights, which is kept.
        clip: Largest norm of a gradient; longer ones are shortened.
        skip: A step whose gradient is this many times longer than usual is left out.
        shift: Largest shift of a training image, in pixels, each way. Where a patient stands is
            noise that no parent moves, so a shifted image is one more image of the same parents.
        display: Deviation of the exponent with which the display of a training image is bent. How
            an image was developed is noise as well; where a parent moves it, this blurs its effect
            without moving it.
        report: Steps between two statistics, and between two checkpoints.
    """

    steps: int = 6000
    batch: int = 48
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    warmup: int = 200
    average: float = 0.998
    clip: float = 1.0
    skip: float = 20.0
    shift: int = 2
    display: float = 0.1
    report: int = 200

    def __post_init__(self) -> None:
        check_positive(self, "steps", "batch", "learning_rate", "report")
        if not min(self.clip, self.skip) > 0:
            raise InputError(f"clip and skip must be positive, not {self.clip} and {self.skip}")
        if not 0 <= self.average < 1:
            raise InputError(f"average must lie in [0, 1), not {self.average}")

    @classmethod
    def plain(cls, steps: int, learning_rate: float, weight_decay: float = 0.0) -> "FittingConfig":
        """A cosine alone: no warm-up, no average, no limit on gradients."""
        free = {"warmup": 0, "average": 0.0, "clip": math.inf, "skip": math.inf}
        return cls(steps, learning_rate=learning_rate, weight_decay=weight_decay, **free)

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rise = min(1.0, (step + 1) / (self.warmup + 1))
        return self.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * step / self.steps))


@dataclass(frozen=True)
class SwiftConfig(FittingConfig):
    """How a network of convolutions is trained where time is short.

    Kernels take the orthogonal steps of :class:`.Muon`, and products are taken in half precision on
    processors that have it as well as on CUDA.

    Args:
        kernels: The learning rate of kernels, as a multiple of that of the rest.
    """

    batch: int = 32
    weight_decay: float = 5e-2
    average: float = 0.999
    shift: int = 0
    display: float = 0.0
    kernels: float = 12.5


@dataclass(frozen=True)
class _Epoch:
    """The statistics of one epoch.

    Args:
        train_loss: The mean loss over the training batches, augmented.
        val_loss: The loss on the validation set.
        val_score: On the validation set: the AUC of a binary variable, the mean AUC of one
            class against the rest of a categorical one, R^2 of a continuous one.
        best: Whether no epoch before had a lower validation loss.
    """

    epoch: int
    train_loss: float
    val_loss: float
    val_score: float
    best: bool


@dataclass(frozen=True)
class Progress:
    """The statistics of the steps since the last ones.

    Args:
        step: Steps done.
        terms: The mean of each term of the loss.
        gradient: The mean norm of the gradient.
        skipped: Steps left out, since the start.
        earlier: CPU seconds that went into it before it was killed, if it was.
    """

    step: int
    terms: Mapping[str, float]
    gradient: float
    skipped: int
    earlier: float = field(default=0.0, compare=False)


class Loop:
    """A training between its steps: the optimiser, the average of the weights, what was seen.

    Args:
        module: The network, trained in place.
        config: The pace: steps, rates, and limits on gradients.
        betas: The memory of AdamW, for gradients and for their squares.
        half: Whether products may be taken in half precision, on CUDA, or on a processor that has
            it if the pace is swift.
    """

    def __init__(
        self,
        module: nn.Module,
        config: FittingConfig,
        device: torch.device | str,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        half: bool = True,
    ) -> None:
        self.module, self.config, self.device = module.to(device), config, torch.device(device)
        self.half = half and _has_half(self.device, config)
        self.step, self.skipped, self.typical_norm, self.earlier = 0, 0, 0.0, 0.0
        self.began = time.process_time()
        self.average = copy.deepcopy(module.state_dict())
        pace = {"lr": 0.0, "betas": betas, "weight_decay": config.weight_decay}
        if isinstance(config, SwiftConfig):
            self.optimiser = Muon(module, rate=config.kernels, **pace)
        else:
            self.optimiser = torch.optim.AdamW(module.parameters(), **pace)

    def advance(self, loss: Callable[[float], Mapping[str, Tensor]]) -> dict[str, float]:
        """Takes one step; a term of the loss that is not finite raises a FloatingPointError.

        Args:
            loss: From the share of the training that is behind to the named terms of the loss.

        Returns:
            The terms, and the norm of the ``gradient``.
        """
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.half):
            terms = loss(self.step / self.config.steps)
        values = {name: value.item() for name, value in terms.items()}
        for name, value in values.items():
            self._check_finite(f"the term {name!r} of the loss", value)
        self.optimiser.zero_grad(set_to_none=True)
        sum(terms.values()).backward()
        norm = self._update()
        self.step += 1
        return values | {"gradient": norm}

    def _check_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            at = f"step {self.step + 1} of {self.config.steps}"
            raise FloatingPointError(f"{what} is {value} at {at}")

    def _update(self) -> float:
        """Lets the optimiser step unless the gradient is an outlier; returns its norm."""
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), self.config.clip).item()
        if self.config.skip == math.inf:
            self._check_finite("the norm of the gradient", norm)
        outlier = self.step >= _FIRST and norm > self.config.skip * self.typical_norm
        if outlier or not math.isfinite(norm):
            self.skipped += 1
            return norm
        self.typical_norm = norm if self.step == 0 else 0.95 * self.typical_norm + 0.05 * norm
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.rate(self.step) * group.get("rate", 1.0)
        self.optimiser.step()
        # Early weights are soon forgotten: the average is young at first.
        decay = min(self.config.average, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, value in self.module.state_dict().items():
                # Counters, such as those of batch norms, have no average.
                own = self.average[name]
                own.lerp_(value, 1 - decay) if own.is_floating_point() else own.copy_(value)
        return norm

    def keep(self, path: Path, run: str) -> None:
        """Writes the state, whole or not at all; ``run`` says what run it is of."""
        from safetensors.torch import save

        tensors = {f"module.{name}": value for name, value in self.module.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self.average.items()}
        for number, entry in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{name}": value for name, value in entry.items()}
        tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        spent = self.earlier + time.process_time() - self.began
        counters = [self.step, self.skipped, self.typical_norm, spent]
        notes = {"run": run, "counters": json.dumps(counters)}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, save(tensors, metadata=notes))

    def restore(self, path: Path, run: str) -> None:
        """Goes back to a state that :meth:`keep` wrote, of the same run."""
        from safetensors import safe_open

        with safe_open(path, framework="pt", device=str(self.device)) as file:
            notes = file.metadata()
            if (other := notes.get("run")) != run:
                raise InputError(f"{path} is of another run, {other}, not {run}: remove it")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self.module.load_state_dict(_under("module.", tensors))
        self.average = _under("average.", tensors)
        groups, entries = self.optimiser.state_dict()["param_groups"], {}
        for name, value in _under("optimiser.", tensors).items():
            number, _, field = name.partition(".")
            entries.setdefault(int(number), {})[field] = value
        self.optimiser.load_state_dict({"state": entries, "param_groups": groups})
        self.step, self.skipped, self.typical_norm, self.earlier = json.loads(notes["counters"])


def _has_half(device: torch.device, config: FittingConfig) -> bool:
    """Whether half precision saves time there."""
    if device.type != "cpu" or not isinstance(config, SwiftConfig):
        return device.type == "cuda"
    return bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = [name for name in tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensors[name] for name in names}


def train(
    network: ImageNetwork,
    images: Images,
    target: Tensor,
    *,
    validation: tuple[Images, Tensor],
    seed: int,
    config: TrainingConfig | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> Iterator[_Epoch]:
    """Trains a predictor, one epoch for each item that is asked for.

    Training stops early when the validation loss no longer falls; the weights of the best
    epoch are put back when it ends, also when the caller stops asking. With the same seed,
    threads and device the weights are the same, bit by bit. On CUDA, products are taken in
    half precision.

    Args:
        network: The predictor, trained in place.
        target: The values of its variable, shape (N,).
        validation: Images and targets on which to stop.
    """
    config = config or TrainingConfig()
    target, validation = target.float(), (validation[0], validation[1].float())
    for rows, values in ((images, target), validation):
        _check_target(network.variable, rows, values)
    if len(target) < 2:
        raise InputError("training needs two images or more")
    steps = config.epochs * -(-len(target) // config.batch)
    pace = FittingConfig.plain(steps, config.learning_rate, config.weight_decay)
    loop, lowest, since = Loop(network, pace, device), math.inf, 0
    order, rng = torch.Generator().manual_seed(seed), torch.Generator(device).manual_seed(seed)
    best = copy.deepcopy(network.state_dict())
    try:
        for number in range(1, config.epochs + 1):
            parts = _split_rows(torch.randperm(len(target), generator=order), config.batch)
            parts = tqdm(parts, desc=f"epoch {number}", leave=False, disable=not progress)
            total = 0.0
            network.train()
            for index in parts:
                x = _augment(images[index].to(device), config, rng)
                total += _step(loop, x, target[index].to(device)) * len(index)
            out = outputs(network, validation[0])
            val_loss, val_score = _judged(network.variable, out, validation[1].to(out.device))
            if not math.isfinite(val_loss):
                raise FloatingPointError(f"validation loss is {val_loss} at epoch {number}")
            since = 0 if val_loss < lowest else since + 1
            if since == 0:
                lowest, best = val_loss, copy.deepcopy(network.state_dict())
            yield _Epoch(number, total / len(target), val_loss, val_score, since == 0)
            if since == config.patience:
                return
    finally:
        network.load_state_dict(best)
        network.eval()


def _step(loop: Loop, x: Tensor, y: Tensor) -> float:
    network, name = loop.module, loop.module.variable.name
    return loop.advance(lambda _: {name: _loss(network.variable, network(x).float(), y)})[name]


def fit(
    module: nn.Module,
    images: Images,
    c: Tensor,
    *,
    objective: Objective,
    config: FittingConfig,
    seed: int,
    checkpoint: Path | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
    compiled: bool = False,
) -> Iterator[Progress]:
    """Trains a network by an objective, some steps for each item that is asked for.

    When the iterator ends, also when the caller stops asking, the network holds the moving
    average of its weights. The randomness of a step depends on the seed and on its number
    alone, so a run that was killed goes on from its checkpoint to the very weights that it would
    have had. On CUDA, products are taken in half precision.

    Args:
        module: The network, trained in place.
        c: Their parents as vectors, shape (N, D).
        objective: The loss; a term of it that is not finite raises an error that names it.
        checkpoint: Where to keep the state, ``*.safetensors``; if it is there, training goes on
            from it. The caller removes it.
        progress: Whether to show a progress bar with the expected time.
        compiled: Whether torch compiles the parts of the network, each when it is first used.

    Yields:
        The statistics of every ``config.report`` steps and of the last ones.
    """
    _check_rows(images, c, 2, "parents")
    loop, rng = Loop(module, config, device, betas=(0.9, 0.99)), torch.Generator(device)
    facts = {"config": asdict(config), "seed": seed, "images": len(c)}
    run, seen = json.dumps(facts, sort_keys=True), []
    if checkpoint is not None and checkpoint.exists():
        loop.restore(checkpoint, run)
    for part in module.children() if compiled else ():
        part.compile()
    module.train()
    bar = tqdm(total=config.steps, initial=loop.step, desc="training", disable=not progress)
    try:
        while loop.step < config.steps:
            rows = _rows(loop.step, min(config.batch, len(c)), len(c), seed)
            rng.manual_seed(_seed(seed, loop.step, "draw"))
            x = shifted(images[rows].to(device), config.shift, rng, count=len(rows))
            x, some = _redisplayed(x, config.display, rng), c[rows].to(device)
            seen.append(loop.advance(lambda done: objective(module, x, some, done, rng)))  # noqa: B023
            bar.update()
            if loop.step % config.report == 0 or loop.step == config.steps:
                if checkpoint is not None:
                    loop.keep(checkpoint, run)
                means = {name: math.fsum(row[name] for row in seen) / len(seen) for name in seen[0]}
                norm = means.pop("gradient")
                yield Progress(loop.step, means, norm, loop.skipped, loop.earlier)
                seen = []
    finally:
        bar.close()
        module.load_state_dict(loop.average)
        module.eval()


def _rows(step: int, batch: int, count: int, seed: int) -> Tensor:
    """The images of a step: each epoch has an order of its own, rests are left out."""
    epoch, number = divmod(step, count // batch)
    rng = torch.Generator().manual_seed(_seed(seed, epoch, "order"))
    return torch.randperm(count, generator=rng)[number * batch : (number + 1) * batch]


def _seed(seed: int, number: int, use: str) -> int:
    """A seed of 32 bits, all that CPU generators read, for one use in one step or epoch."""
    digest = hashlib.blake2b(f"{seed} {use} {number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest)


def _split_rows(rows: Tensor, batch: int) -> list[Tensor]:
    """Batches of rows; a last one of a single row joins the one before, for batch norms need two.

    Example:
        >>> [len(part) for part in _split_rows(torch.arange(9), 4)]
        [4, 5]
    """
    parts = list(rows.split(batch))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def _check_rows(images: Images, values: Tensor, axes: int, what: str) -> None:
    """Raises unless there is one finite value, or vector of values, for each image."""
    if values.ndim != axes or len(images) != len(values) or len(values) == 0:
        shape = tuple(values.shape)
        raise InputError(f"{len(images)} images need as many {what}, not shape {shape}")
    bad = (~values.isfinite()).nonzero()
    if len(bad):
        raise InputError(f"{what} of row {int(bad[0, 0])} are not finite: leave such rows out")


def _check_target(variable: Variable, images: Images, target: Tensor) -> None:
    """Raises unless there is one finite, possible value for each image."""
    _check_rows(images, target, 1, f"values of {variable.name}")
    for value in target.aminmax() if variable.kind == "continuous" else target.unique():
        try:
            variable.check(float(value))
        except InputError as error:
            row = int((target == value).nonzero()[0])
            raise InputError(f"row {row}: {error}") from None


def _augment(x: Tensor, config: TrainingConfig, rng: torch.Generator) -> Tensor:
    """Shifts a batch, brightens each image and adds noise."""
    x = shifted(x, config.shift, rng)
    if config.brightness:
        u = torch.rand(len(x), 1, 1, 1, generator=rng, device=x.device)
        x = x + config.brightness * (2 * u - 1)
    if config.noise:
        x = x + config.noise * torch.randn(x.shape, generator=rng, device=x.device)
    return x


def shifted(x: Tensor, most: int, rng: torch.Generator, *, count: int = 1) -> Tensor:
    """Images (B, 1, H, W) shifted by whole pixels; what comes in repeats the edge.

    ``count`` shifts of up to ``most`` pixels each way are drawn: one for all images, or B.
    """
    if not most:
        return x
    height, width = x.shape[2:]
    by = torch.randint(-most, most + 1, (2, count, 1), generator=rng, device=x.device)
    down = (torch.arange(height, device=x.device) + by[0]).clamp(0, height - 1)
    across = (torch.arange(width, device=x.device) + by[1]).clamp(0, width - 1)
    x = x.gather(2, down[:, None, :, None].expand_as(x))
    return x.gather(3, across[:, None, None, :].expand_as(x))


def _redisplayed(x: Tensor, deviation: float, rng: torch.Generator) -> Tensor:
    """Images in [0, 1] raised to a power close to 1, each to its own, cut at two deviations."""
    if not deviation:
        return x
    draw = torch.randn(len(x), 1, 1, 1, generator=rng, device=x.device).clamp(-2, 2)
    return x.clamp(min=1e-4) ** (1 + deviation * draw)


def _loss(variable: Variable, out: Tensor, y: Tensor) -> Tensor:
    """The mean loss: cross-entropy in nats, or the squared error over the range squared."""
    if variable.kind == "binary":
        return F.binary_cross_entropy_with_logits(out, y)
    if variable.kind == "categorical":
        return F.cross_entropy(out, y.long())
    low, high = variable.range
    return F.mse_loss(out / (high - low), y / (high - low))


def _judged(variable: Variable, out: Tensor, y: Tensor) -> tuple[float, float]:
    """The loss; and AUC, its mean over one class against the rest, or R^2, by the kind."""
    area = "R2" if variable.kind == "continuous" else "AUC"
    return _loss(variable, out, y).item(), agreement(variable, out, y)[area]


@torch.inference_mode()
def outputs(predictor: nn.Module, images: Images, pa: Mapping[str, Tensor] | None = None) -> Tensor:
    """The outputs of a predictor for all images, in evaluation mode, batch by batch.

    The parents ``pa``, each of shape (N,), are for predictors that read them. The outputs have
    shape (N,) or (N, C), on the device of the predictor.
    """
    device = next(predictor.parameters(), torch.empty(0)).device
    parts = []
    with evaluating(predictor):
        for rows in torch.arange(len(images)).split(64):
            some = {name: value[rows].to(device) for name, value in (pa or {}).items()}
            parts.append(predictor(images[rows].to(device), some))
    return torch.cat(parts)
