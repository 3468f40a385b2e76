r"""The layers of the image mechanism: a ladder of latents from the whole image to patches."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cfcore.checks import InputError
from cfscm.networks import check_positive, normal_noise

_Prior = Literal["exogenous", "conditional", "regressed"]
Pick = Callable[[int, "Normal", Tensor], tuple[Tensor, Tensor]]
"""Where a latent comes from: the level, its prior and the state to the latent and its KL (B,)."""


@dataclass(frozen=True)
class ImageConfig:
    r"""What the image mechanism is made of.

    Args:
        parents: The length of the vector of parents.
        size: Height and width of the images, a multiple of ``patch * 2 ** (len(widths) - 1)``.
        patch: Side of the patches of pixels that are the channels of the finest resolution. The
            networks never work on single pixels, which is what makes them fast.
        widths: Channels at 1, 1/2, 1/4, ... of the finest resolution, from fine to coarse.
        latents: Latent channels at the same resolutions; 0 for a level without a latent.
        code: Latent numbers of the whole image, above the coarsest resolution.
        depth: Residual blocks of the decoder at each resolution.
        embedding: Length of the embedded parents.
        prior: ``"exogenous"``, :math:`p(z)`; ``"conditional"``, :math:`p(z \mid \mathbf{pa})`,
            learned in training; or ``"regressed"``, the mean of the code given the parents, fitted
            when training is over, see :meth:`~cfscm.image.ImageMechanism.centre`.
        headroom: How far above 1 a pixel would be opaque, see :class:`Scale`; 0 for networks
            that see the pixels themselves.
        channels: Those of the images.
    """

    parents: int = 7
    size: int = 64
    patch: int = 4
    widths: tuple[int, ...] = (64, 64, 96)
    latents: tuple[int, ...] = (0, 4, 8)
    code: int = 48
    depth: int = 2
    embedding: int = 64
    prior: _Prior = "exogenous"
    headroom: float = 0.02
    channels: int = 1

    def __post_init__(self) -> None:
        for name in ("widths", "latents"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # JSON has lists only
        check_positive(self, "parents", "code", "depth", "embedding", "patch", "channels")
        step, priors = self.patch * self.shrink, get_args(_Prior)
        if self.prior not in priors:
            raise InputError(f"prior must be one of {priors}, not {self.prior!r}")
        if len(self.widths) != len(self.latents) or not self.widths:
            raise InputError(f"{self.widths} widths need as many latents, not {self.latents}")
        if not 0 <= self.headroom < math.inf:
            raise InputError(f"headroom must not be negative, not {self.headroom}")
        if self.size % step:
            raise InputError(f"size must be a multiple of {step}, not {self.size}")

    @property
    def shrink(self) -> int:
        """How many times smaller the coarsest resolution is than the finest."""
        return 2 ** (len(self.widths) - 1)

    @property
    def grid(self) -> int:
        """Height and width of the coarsest resolution."""
        return self.size // (self.patch * self.shrink)


@dataclass(frozen=True)
class Scale:
    r"""The scale on which the networks see an image: attenuation, where organs add up.

    An image by transmission is close to :math:`x = 1 - e^{-A}`, with :math:`A` the attenuation of
    what the ray met. On the scale of :math:`A` an organ adds the same whatever lies behind it, so
    a change that the parents make and a residual that is held do not disturb each other,

    .. math:: t = -\tfrac{1}{k} \log(1 + \delta - x), \qquad k = \log \tfrac{1 + \delta}{\delta}

    where the headroom :math:`\delta` keeps white pixels finite, and :math:`k` makes [0, 1] an
    interval of length 1 again.

    Example:
        >>> scale = Scale(0.08)
        >>> scale.invert(scale.apply(torch.tensor([0.0, 0.5, 1.0])))
        tensor([0.0000, 0.5000, 1.0000])
    """

    headroom: float = 0.0

    @property
    def length(self) -> float:
        """The length of [0, 1] on the scale of attenuation."""
        return math.log((1 + self.headroom) / self.headroom)

    def apply(self, x: Tensor) -> Tensor:
        """From pixels to the scale of the networks."""
        return -torch.log(1 + self.headroom - x) / self.length if self.headroom else x

    def invert(self, t: Tensor) -> Tensor:
        """From the scale of the networks to pixels."""
        return 1 + self.headroom - torch.exp(-self.length * t) if self.headroom else t

    def log_slope(self, x: Tensor) -> Tensor:
        """The logarithm of the derivative of :meth:`apply`, for densities of pixels."""
        if not self.headroom:
            return torch.zeros_like(x)
        return -torch.log((1 + self.headroom - x) * self.length)


@dataclass(frozen=True)
class Normal:
    """A diagonal normal distribution: its mean and the logarithm of its standard deviation."""

    mean: Tensor
    log_sd: Tensor

    def at(self, eps: Tensor) -> Tensor:
        """The value of standardised noise."""
        return self.mean + self.log_sd.exp() * eps

    def noise(self, z: Tensor) -> Tensor:
        """The standardised noise of a value, the inverse of :meth:`at`."""
        return (z - self.mean) * (-self.log_sd).exp()

    def sample(self, rng: torch.Generator | None) -> Tensor:
        """A draw, differentiable in the parameters; the mean without a source of randomness."""
        return self.at(normal_noise(self.mean, rng))

    def divergence(self, prior: "Normal") -> Tensor:
        r"""The Kullback-Leibler divergence :math:`\mathrm{KL}(q \,\|\, p)` in nats, shape (B,)."""
        ratio = self.log_sd - prior.log_sd
        kl = 0.5 * ((2 * ratio).exp() + prior.noise(self.mean) ** 2 - 1) - ratio
        return kl.flatten(1).sum(dim=1)


def _split_normal(parameters: Tensor) -> Normal:
    """The normal of stacked channels; its log-deviation stays within +-5, so none overflows."""
    mean, log_sd = parameters.chunk(2, dim=1)
    return Normal(mean, 5 * torch.tanh(log_sd / 5))


def _zeroed(layer: nn.Conv2d | nn.Linear) -> nn.Conv2d | nn.Linear:
    """Sets a layer to zero, so that what it adds to starts unchanged."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class _Block(nn.Module):
    r"""A residual block that the embedded parents steer: :math:`h + \mathrm{conv}(\mathrm{silu}(
    (1 + \gamma(\mathbf{e})) \odot h + \beta(\mathbf{e})))`.
    """

    def __init__(self, width: int, embedding: int) -> None:
        super().__init__()
        self.film = nn.Linear(embedding, 2 * width)
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        with torch.no_grad():
            self.film.weight.mul_(0.5)
            self.conv.weight.mul_(0.5)

    def forward(self, h: Tensor, e: Tensor) -> Tensor:
        """Updates the state h, shape (B, C, H, W), knowing e, shape (B, E)."""
        scale, shift = self.film(e)[:, :, None, None].chunk(2, dim=1)
        return h + self.conv(F.silu(torch.addcmul(shift, h, 1 + scale)))


class Encoder(nn.Module):
    r"""From an image to features at every resolution, down to a single position.

    The last are a sum of two: what the convolutions saw, and what is linear in all pixels.
    """

    def __init__(self, config: ImageConfig) -> None:
        super().__init__()
        widths, self.patch = config.widths, config.patch
        self.stem = nn.Conv2d(config.channels * config.patch**2, widths[0], 3, padding=1)
        self.glance = nn.Linear(config.channels * config.size**2, 2 * config.code)
        self.blocks = nn.ModuleList(_Block(width, config.embedding) for width in widths)
        down = [nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths)]
        self.down = nn.ModuleList([*down, nn.Conv2d(widths[-1], 2 * config.code, config.grid)])

    def forward(self, x: Tensor, e: Tensor) -> list[Tensor]:
        """The features of images x, shape (B, C, H, W), from fine to coarse."""
        h = self.stem(F.pixel_unshuffle(4 * (x - 0.5), self.patch))
        features = []
        for block, down in zip(self.blocks, self.down, strict=True):
            h = block(h, e)
            features.append(h)
            h = down(F.silu(h))
        return [*features, h + self.glance(x.flatten(1))[:, :, None, None]]


class _Level(nn.Module):
    r"""One stochastic layer :math:`z_l`: its prior, its posterior and its way into the state.

    State and features have ``width`` channels; a prior that is not conditional is standard normal.
    """

    def __init__(self, width: int, latent: int, prior: _Prior) -> None:
        super().__init__()
        self.latent = latent
        self.prior = _zeroed(nn.Conv2d(width, 2 * latent, 1)) if prior == "conditional" else None
        self.posterior = _zeroed(nn.Conv2d(2 * width, 2 * latent, 1))
        self.into = nn.Conv2d(latent, width, 1)

    def prior_of(self, h: Tensor) -> Normal:
        """The prior given the state, shape (B, C, H, W)."""
        if self.prior is not None:
            return _split_normal(self.prior(h))
        zeros = h.new_zeros(len(h), self.latent, *h.shape[2:])
        return Normal(zeros, zeros)

    def posterior_of(self, h: Tensor, features: Tensor) -> Normal:
        """The posterior given the state and the features at its resolution."""
        return _split_normal(self.posterior(F.silu(torch.cat((h, features), dim=1))))


class Decoder(nn.Module):
    r"""The top-down pass: one path for training and counterfactuals.

    They differ only in where the latents come from, which is said by a function.
    """

    def __init__(self, config: ImageConfig) -> None:
        super().__init__()
        coarse, top = config.widths[::-1], 2 * config.code
        self.patch = config.patch
        self.start = nn.Linear(config.embedding, top)
        self.levels = nn.ModuleList([_Level(top, config.code, config.prior)])
        for width, latent in zip(coarse, config.latents[::-1], strict=True):
            level = _Level(width, latent, config.prior) if latent else nn.Identity()
            self.levels.append(level)
        up = [nn.Conv2d(a, b, 1) for a, b in pairwise(coarse)]
        self.up = nn.ModuleList([nn.ConvTranspose2d(top, coarse[0], config.grid), *up])
        self.blocks = nn.ModuleList(
            nn.ModuleList(_Block(width, config.embedding) for _ in range(config.depth))
            for width in coarse
        )
        self.out = nn.Conv2d(coarse[-1], config.channels * config.patch**2, 3, padding=1)

    def forward(self, e: Tensor, pick: Pick) -> tuple[Tensor, Tensor, Tensor]:
        """From embedded parents (B, E) to images (B, C, H, W), codes (B, Z), divergences (B,)."""
        h, kl, latents = self.start(e)[:, :, None, None], e.new_zeros(len(e)), []
        for number, level in enumerate(self.levels):
            if number:
                h = self._grow(h, number)
            if isinstance(level, _Level):
                z, cost = pick(number, level.prior_of(h), h)
                h, kl = h + level.into(z), kl + cost
                latents.append(z)
            if number:
                for block in self.blocks[number - 1]:
                    h = block(h, e)
        return F.pixel_shuffle(self.out(F.silu(h)), self.patch), latents[0].flatten(1), kl

    def _grow(self, h: Tensor, number: int) -> Tensor:
        h = self.up[number - 1](F.silu(h) if number == 1 else h)
        if number == 1:
            return h.contiguous(memory_format=torch.channels_last)
        return F.interpolate(h, scale_factor=2, mode="nearest")
