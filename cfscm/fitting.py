r"""The training loop of the image mechanism: it yields its statistics and survives a kill."""

import copy
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from cfcore.checks import InputError
from cfcore.files import write_atomically
from cfscm.objective import Labelled, Objective
from cfscm.training import Images

SETTLED = 50  # steps after which the usual size of a gradient is known


@dataclass(frozen=True)
class FittingConfig:
    """How the image mechanism is trained.

    Args:
        steps: Steps of the optimiser.
        batch: Images in a step.
        learning_rate: The peak learning rate of AdamW, reached after ``warmup`` steps; it then
            falls to 0 along a cosine.
        weight_decay: The weight decay of AdamW.
        warmup: Steps over which the learning rate rises.
        average: Decay of the exponential moving average of the weights, which is kept.
        clip: Largest norm of a gradient; longer ones are shortened.
        skip: A step whose gradient is this many times longer than usual is left out.
        shift: Largest shift of a training image, in pixels, each way. Where a patient stands is
            noise that no parent moves, so a shifted image is one more image of the same parents.
        display: Deviation of the exponent with which the display of a training image is bent. How
            an image was developed is noise as well; where a parent moves it, as race does in the
            phantom, this blurs its effect without moving it.
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
        for name in ("steps", "batch", "learning_rate", "clip", "skip", "report"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}")
        if not 0 <= self.average < 1:
            raise InputError(f"average must lie in [0, 1), not {self.average}")

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rise = min(1.0, (step + 1) / (self.warmup + 1))
        return self.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * step / self.steps))


@dataclass(frozen=True)
class Progress:
    """The statistics of the steps since the last ones.

    Args:
        step: Steps done.
        terms: The mean of each term of the loss.
        gradient: The mean norm of the gradient.
        skipped: Steps left out, since the start.
    """

    step: int
    terms: Mapping[str, float]
    gradient: float
    skipped: int


def fit(
    image: nn.Module,
    images: Images,
    c: Tensor,
    *,
    seed: int,
    objective: Objective | None = None,
    config: FittingConfig | None = None,
    checkpoint: Path | str | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> Iterator[Progress]:
    """Trains the image mechanism, some steps for each item that is asked for.

    When the iterator ends, also when the caller stops asking, the mechanism holds the moving
    average of its weights. The randomness of a step depends on the seed and on its number
    alone, so a run that was killed goes on from its checkpoint to the very weights that it would
    have had. On CUDA, products are taken in half precision.

    Args:
        image: The mechanism, trained in place.
        images: The training images, N of them.
        c: Their parents as vectors, shape (N, D).
        seed: The seed of the order of images and of the draws.
        objective: The loss; by default the labelled term.
        config: How to train.
        checkpoint: Where to keep the state, ``*.safetensors``; if it is there, training goes on
            from it. The caller removes it.
        device: Where to train.
        progress: Whether to show a progress bar with the expected time.

    Yields:
        The statistics of every ``config.report`` steps and of the last ones.

    Raises:
        FloatingPointError: If a term of the loss is not finite; the message names it.
    """
    config = config or FittingConfig()
    check_pairs(images, c)
    state = State(image.to(device), config, seed, len(c), torch.device(device))
    if checkpoint is not None and Path(checkpoint).exists():
        state.restore(Path(checkpoint))
    image.train()
    try:
        with _bar(state, enabled=progress) as bar:
            while state.step < config.steps:
                end = min(config.steps, (state.step // config.report + 1) * config.report)
                seen = []
                while state.step < end:
                    seen.append(state.advance(images, c, objective or Labelled()))
                    bar.update()
                if checkpoint is not None:
                    state.keep(Path(checkpoint))
                yield _summary(state, seen)
    finally:
        image.load_state_dict(state.average)
        image.eval()


def shifted(x: Tensor, most: int, rng: torch.Generator) -> Tensor:
    """Images shifted by whole pixels, each by its own; what comes in repeats the edge.

    Args:
        x: The images, shape (B, 1, H, W).
        most: The largest shift in each direction.
        rng: The source of randomness, on the device of the images.
    """
    if not most:
        return x
    height, width = x.shape[2:]
    by = torch.randint(-most, most + 1, (2, len(x), 1), generator=rng, device=x.device)
    down = (torch.arange(height, device=x.device) + by[0]).clamp(0, height - 1)
    across = (torch.arange(width, device=x.device) + by[1]).clamp(0, width - 1)
    x = x.gather(2, down[:, None, :, None].expand_as(x))
    return x.gather(3, across[:, None, None, :].expand_as(x))


def redisplayed(x: Tensor, deviation: float, rng: torch.Generator) -> Tensor:
    """Images raised to a power close to 1, each to its own.

    Args:
        x: The images, shape (B, 1, H, W), in [0, 1].
        deviation: The standard deviation of the power, cut at two of them.
        rng: The source of randomness, on the device of the images.
    """
    if not deviation:
        return x
    draw = torch.randn(len(x), 1, 1, 1, generator=rng, device=x.device).clamp(-2, 2)
    return x.clamp(min=1e-4) ** (1 + deviation * draw)


def check_pairs(images: Images, c: Tensor) -> None:
    """Raises unless there is one vector of finite parents for each image."""
    if c.ndim != 2 or len(c) != len(images) or len(c) == 0:
        raise InputError(f"{len(images)} images need as many parents, not shape {tuple(c.shape)}")
    if not torch.isfinite(c).all():
        row = int((~torch.isfinite(c)).any(dim=1).nonzero()[0])
        raise InputError(f"the parents of row {row} are not finite: leave such rows out")


class State:
    """Everything that changes during training.

    Args:
        image: The mechanism.
        config: How it is trained.
        seed: The seed.
        count: The number of training images.
        device: Where it is trained.
    """

    def __init__(
        self, image: nn.Module, config: FittingConfig, seed: int, count: int, device: torch.device
    ) -> None:
        self.image, self.config, self.seed, self.count = image, config, seed, count
        self.device = device
        self.step, self.skipped, self.usual = 0, 0, 0.0
        self.average = copy.deepcopy(image.state_dict())
        self.optimiser = torch.optim.AdamW(
            image.parameters(), lr=0.0, betas=(0.9, 0.99), weight_decay=config.weight_decay
        )
        self.rng = torch.Generator(device)
        self._order: tuple[int, Tensor] | None = None

    def rows(self) -> Tensor:
        """The images of this step: each epoch has an order of its own, rests are left out."""
        batch = min(self.config.batch, self.count)
        epoch, number = divmod(self.step, self.count // batch)
        if self._order is None or self._order[0] != epoch:
            rng = torch.Generator().manual_seed(_seed(self.seed, epoch, "order"))
            self._order = (epoch, torch.randperm(self.count, generator=rng))
        return self._order[1][number * batch : (number + 1) * batch]

    def advance(self, images: Images, c: Tensor, objective: Objective) -> dict[str, float]:
        """Takes one step, and returns the terms of the loss and the norm of the gradient."""
        rows = self.rows()
        self.rng.manual_seed(_seed(self.seed, self.step, "draw"))
        x = shifted(images[rows].to(self.device), self.config.shift, self.rng)
        x = redisplayed(x, self.config.display, self.rng)
        some = c[rows].to(self.device)
        cuda = self.device.type == "cuda"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=cuda):
            terms = objective(self.image, x, some, self.step / self.config.steps, self.rng)
        for name, value in terms.items():
            if not torch.isfinite(value):
                raise FloatingPointError(
                    f"the term {name!r} of the loss is {value.item()} at step {self.step + 1}"
                )
        self.optimiser.zero_grad(set_to_none=True)
        sum(terms.values()).backward()
        norm = self._update()
        self.step += 1
        return {name: value.item() for name, value in terms.items()} | {"gradient": norm}

    def _update(self) -> float:
        """Lets the optimiser step unless the gradient is an outlier; returns its norm."""
        parameters = list(self.image.parameters())
        norm = nn.utils.clip_grad_norm_(parameters, self.config.clip).item()
        outlier = self.step >= SETTLED and norm > self.config.skip * self.usual
        if outlier or not math.isfinite(norm):
            self.skipped += 1
            return norm
        self.usual = norm if self.step == 0 else 0.95 * self.usual + 0.05 * norm
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.rate(self.step)
        self.optimiser.step()
        # Early weights are soon forgotten: the average is young at first.
        decay = min(self.config.average, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, value in self.image.state_dict().items():
                # Counters, such as those of batch norms, have no average.
                own = self.average[name]
                own.lerp_(value, 1 - decay) if own.is_floating_point() else own.copy_(value)
        return norm

    def keep(self, path: Path) -> None:
        """Writes the state, whole or not at all."""
        from safetensors.torch import save

        tensors = {f"image.{name}": value for name, value in self.image.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self.average.items()}
        for number, entry in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{name}": value for name, value in entry.items()}
        tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        counters = {"step": self.step, "skipped": self.skipped, "usual": self.usual}
        notes = {"run": self._run(), "counters": json.dumps(counters)}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, save(tensors, metadata=notes))

    def restore(self, path: Path) -> None:
        """Goes back to a state that :meth:`keep` wrote."""
        from safetensors import safe_open

        with safe_open(path, framework="pt", device=str(self.device)) as file:
            notes = file.metadata()
            if notes.get("run") != self._run():
                raise InputError(
                    f"{path} is of another run, {notes.get('run')}, not {self._run()}: remove it"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self.image.load_state_dict(_under("image.", tensors))
        self.average = _under("average.", tensors)
        groups, entries = self.optimiser.state_dict()["param_groups"], {}
        for name, value in _under("optimiser.", tensors).items():
            number, _, field = name.partition(".")
            entries.setdefault(int(number), {})[field] = value
        self.optimiser.load_state_dict({"state": entries, "param_groups": groups})
        counters = json.loads(notes["counters"])
        self.step, self.skipped = counters["step"], counters["skipped"]
        self.usual = counters["usual"]

    def _run(self) -> str:
        facts = {"config": asdict(self.config), "seed": self.seed, "images": self.count}
        return json.dumps(facts, sort_keys=True)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = [name for name in tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensors[name] for name in names}


def _seed(seed: int, number: int, use: str) -> int:
    """A seed for one use of randomness in one step or epoch.

    Generators on the CPU read 32 bits of a seed only, hence the hash.
    """
    digest = hashlib.blake2b(f"{seed} {use} {number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest)


def _summary(state: State, seen: list[dict[str, float]]) -> Progress:
    means = {name: math.fsum(row[name] for row in seen) / len(seen) for name in seen[0]}
    return Progress(state.step, means, means.pop("gradient"), state.skipped)


def _bar(state: State, *, enabled: bool) -> "tqdm":  # noqa: F821
    from tqdm import tqdm

    return tqdm(total=state.config.steps, initial=state.step, desc="training", disable=not enabled)
