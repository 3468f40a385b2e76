r"""A training loop that yields its statistics."""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cfcore.checks import InputError
from cfcore.graph import Variable
from cfcore.metrics import auc
from cfscm.networks import Reader


class Images(Protocol):
    """Images that can be indexed by rows: a tensor, or anything that loads them when asked."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor) -> Tensor:
        """The images of the rows, shape (B, 1, H, W), for an int64 index of shape (B,)."""


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
        for name in ("epochs", "batch", "patience", "learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("weight_decay", "noise", "brightness", "shift"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} must not be negative, not {getattr(self, name)}")
        for name in ("epochs", "batch", "patience", "shift"):
            if getattr(self, name) != int(getattr(self, name)):
                raise InputError(f"{name} must be a whole number, not {getattr(self, name)}")


@dataclass(frozen=True)
class Epoch:
    """The statistics of one epoch.

    Args:
        epoch: Its number, from 1.
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


def train(
    reader: Reader,
    images: Images,
    target: Tensor,
    *,
    validation: tuple[Images, Tensor],
    seed: int,
    config: TrainingConfig | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> Iterator[Epoch]:
    """Trains a predictor, one epoch for each item that is asked for.

    Training stops early when the validation loss no longer falls; the weights of the best
    epoch are put back when it ends, also when the caller stops asking. With the same seed,
    threads and device the weights are the same, bit by bit. On CUDA, products are taken in
    half precision.

    Args:
        reader: The predictor, trained in place.
        images: The training images, N of them.
        target: The values of its variable, shape (N,).
        validation: Images and targets on which to stop.
        seed: The seed of shuffling and augmentation.
        config: How to train.
        device: Where to train.
        progress: Whether to show a progress bar.

    Yields:
        The statistics of each epoch.
    """
    config = config or TrainingConfig()
    target, validation = target.float(), (validation[0], validation[1].float())
    for rows, values in ((images, target), validation):
        check_target(reader.variable, rows, values)
    if len(target) < 2:
        raise InputError("training needs two images or more")

    loop = _Loop(reader.to(device), len(target), config, seed, torch.device(device))
    best, since = copy.deepcopy(reader.state_dict()), 0
    lowest = float("inf")
    try:
        for number in range(1, config.epochs + 1):
            train_loss = loop.epoch(number, images, target, progress=progress)
            val_loss, val_score = validate(reader, *validation)
            if not math.isfinite(val_loss):
                raise FloatingPointError(f"validation loss is {val_loss} at epoch {number}")
            since = 0 if val_loss < lowest else since + 1
            if since == 0:
                lowest, best = val_loss, copy.deepcopy(reader.state_dict())
            yield Epoch(number, train_loss, val_loss, val_score, since == 0)
            if since == config.patience:
                return
    finally:
        reader.load_state_dict(best)
        reader.eval()


class _Loop:
    """What one training keeps between its steps."""

    def __init__(
        self, reader: Reader, count: int, config: TrainingConfig, seed: int, device: torch.device
    ) -> None:
        self.reader, self.config, self.device = reader, config, device
        self.batches = -(-count // config.batch)
        self.optimiser = torch.optim.AdamW(
            reader.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimiser, config.epochs * self.batches
        )
        self.half = device.type == "cuda"
        self.scaler = torch.amp.GradScaler(enabled=self.half)
        self.order = torch.Generator().manual_seed(seed)
        self.rng = torch.Generator(device).manual_seed(seed)

    def epoch(self, number: int, images: Images, target: Tensor, *, progress: bool) -> float:
        """One pass over the training set; returns the mean loss."""
        self.reader.train()
        total = 0.0
        rows = torch.randperm(len(target), generator=self.order)
        batches = split_rows(rows, self.config.batch)
        batches = enumerate(_progress(batches, f"epoch {number}", progress))
        for step, index in batches:
            x = augment(images[index].to(self.device), self.config, self.rng)
            loss = self.step(x, target[index].to(self.device))
            if not math.isfinite(loss):
                raise FloatingPointError(f"loss is {loss} at epoch {number}, step {step + 1}")
            total += loss * len(index)
        return total / len(target)

    def step(self, x: Tensor, y: Tensor) -> float:
        """One step of the optimiser; returns the loss."""
        with torch.autocast(self.device.type, enabled=self.half):
            out = self.reader(x)
        loss = loss_of(self.reader.variable, out.float(), y)
        self.optimiser.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.schedule.step()
        return loss.item()


def split_rows(rows: Tensor, batch: int) -> list[Tensor]:
    """Batches of rows; a last one of a single row joins the one before, for batch norms need two.

    Example:
        >>> [len(part) for part in split_rows(torch.arange(9), 4)]
        [4, 5]
    """
    parts = list(rows.split(batch))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def _progress(batches: Sequence[Tensor], label: str, enabled: bool) -> Iterable[Tensor]:
    if not enabled:
        return batches
    from tqdm import tqdm

    return tqdm(batches, desc=label, leave=False)


def check_target(variable: Variable, images: Images, target: Tensor) -> None:
    """Raises unless there is one finite, possible value for each image."""
    if target.ndim != 1 or len(images) != len(target) or len(target) == 0:
        shape = tuple(target.shape)
        raise InputError(f"{len(images)} images need as many targets, not shape {shape}")
    if not torch.isfinite(target).all():
        row = int((~torch.isfinite(target)).nonzero()[0])
        raise InputError(f"{variable.name} is not finite in row {row}: leave such rows out")
    seen = target.aminmax() if variable.kind == "continuous" else target.unique()
    for value in seen:
        row = int((target == value).nonzero()[0])
        try:
            variable.check(float(value))
        except InputError as error:
            raise InputError(f"row {row}: {error}") from None


def augment(x: Tensor, config: TrainingConfig, rng: torch.Generator) -> Tensor:
    """Shifts a batch, brightens each image and adds noise.

    Args:
        x: The images, shape (B, 1, H, W).
        config: The size of each change.
        rng: The source of randomness, on the device of the images.

    Returns:
        The changed images, of the same shape.
    """
    if config.shift:
        d = config.shift
        top, left = torch.randint(2 * d + 1, (2,), generator=rng, device=x.device).tolist()
        padded = F.pad(x, (d, d, d, d), mode="replicate")
        x = padded[..., top : top + x.shape[-2], left : left + x.shape[-1]]
    if config.brightness:
        u = torch.rand(len(x), 1, 1, 1, generator=rng, device=x.device)
        x = x + config.brightness * (2 * u - 1)
    if config.noise:
        x = x + config.noise * torch.randn(x.shape, generator=rng, device=x.device)
    return x


def loss_of(variable: Variable, out: Tensor, y: Tensor) -> Tensor:
    """The mean loss: cross-entropy in nats, or the squared error over the range squared."""
    if variable.kind == "binary":
        return F.binary_cross_entropy_with_logits(out, y)
    if variable.kind == "categorical":
        return F.cross_entropy(out, y.long())
    low, high = variable.range
    return F.mse_loss(out / (high - low), y / (high - low))


def score_of(variable: Variable, out: Tensor, y: Tensor) -> float:
    """AUC, mean AUC of one class against the rest, or R^2, by the kind of the variable."""
    if variable.kind == "binary":
        return auc(out, y).item()
    if variable.kind == "categorical":
        return torch.stack([auc(out[:, k], y == k) for k in variable.values]).mean().item()
    return 1 - (F.mse_loss(out, y) / y.var(correction=0)).item()


@torch.inference_mode()
def outputs(
    predictor: nn.Module, images: Images, pa: Mapping[str, Tensor] | None = None, *, batch: int = 64
) -> Tensor:
    """The outputs of a predictor for all images, in evaluation mode, batch by batch.

    Args:
        predictor: The predictor.
        images: The images, N of them.
        pa: Their parents, each of shape (N,), if the predictor reads them.
        batch: Images at once.

    Returns:
        The outputs, shape (N,) or (N, C), on the device of the predictor.
    """
    was_training = predictor.training
    predictor.eval()
    device = next(predictor.parameters(), torch.empty(0)).device
    parts = []
    try:
        for rows in torch.arange(len(images)).split(batch):
            some = {name: value[rows].to(device) for name, value in (pa or {}).items()}
            parts.append(predictor(images[rows].to(device), some))
    finally:
        predictor.train(was_training)
    return torch.cat(parts)


def validate(reader: Reader, images: Images, target: Tensor) -> tuple[float, float]:
    """The loss and the score on a validation set."""
    out = outputs(reader, images)
    y = target.to(out.device)
    return loss_of(reader.variable, out, y).item(), score_of(reader.variable, out, y)
