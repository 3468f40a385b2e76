r"""An image mechanism in three parts: tone, an autoencoder, and a flow of what that leaves.

A variational autoencoder learns the large; what is small, such as where an edge lies, costs its
likelihood little and stays in its residual :math:`r`, which would be held under every
intervention. Here the law of that residual is learned as well, in the lower frequencies of the
image, given the parents and the autoencoder's mean :math:`\mu`. A denoiser :math:`D` gives the
flow between the residual and normal noise,

.. math:: \frac{\mathrm{d} r_\sigma}{\mathrm{d} \sigma} = \frac{r_\sigma - D(r_\sigma; \sigma,
    \mathbf{pa}, \mu)}{\sigma}

Abduction follows it from the image up to the noise under the parents that are; prediction follows
it back under the parents that would be. What the way there and back misses is held, so that
the null intervention returns the image.

References:
    Karras et al., *Elucidating the design space of diffusion-based generative models*, 2022.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cfcore.checks import InputError
from cfscm.encoding import expanded
from cfscm.image import ImageMechanism
from cfscm.networks import check_positive
from cfscm.tone import Tone
from cfscm.training import Images

_SHRINK = 8  # how many times smaller the coarsest resolution of the denoiser is than the band
_WAVES = 8  # of the noise level, as the denoiser sees it
_ROWS = 8_000  # images that are enough for spreads
_KEPT = 2**30  # bytes of residuals that are held in memory
_Told = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From a noise level to the parents and the context that the denoiser is told there."""


@dataclass(frozen=True)
class DetailConfig:
    """What the flow of the residual is made of.

    Args:
        side: Height and width of the band: the flow sees the image as if it had this size.
        width: Channels of the denoiser.
        embedding: Length of the embedded parents and noise level.
        glance: Numbers that are linear in the whole image.
        steps: Steps of the flow, in either direction.
        low, high: The noise levels between which it runs, in spreads of the residual.
        relevance: How much more pixels count in training where the parents matter; 0 for not at
            all.
        tone: Whether parents may bend the display of images.
    """

    side: int = 32
    width: int = 64
    embedding: int = 96
    glance: int = 64
    steps: int = 5
    low: float = 0.05
    high: float = 14.0
    relevance: float = 4.0
    tone: bool = True

    def __post_init__(self) -> None:
        check_positive(self, "side", "width", "embedding", "glance", "steps", "low", "high")
        if self.side % _SHRINK:
            raise InputError(f"side must be a multiple of {_SHRINK}, not {self.side}")
        if not self.low < self.high:
            raise InputError(f"the flow runs from low to high, not {self.low} to {self.high}")

    @property
    def levels(self) -> Tensor:
        """The noise levels of the flow, rising, densest where they are low."""
        low, high = (level ** (1 / 7) for level in (self.low, self.high))
        return (low + torch.linspace(0, 1, self.steps + 1) * (high - low)) ** 7


class _Band(nn.Module):
    """The lower frequencies of images, as smaller images: a cosine transform that is cut off.

    Example:
        >>> band, small = _Band(16, 8), torch.rand(1, 1, 8, 8)
        >>> torch.allclose(band.down(band.up(small)), small, atol=1e-5)
        True
    """

    def __init__(self, size: int, side: int) -> None:
        super().__init__()
        low = _cosines(side, side).T @ _cosines(size, side) * (side / size) ** 0.5
        self.register_buffer("low", low.float(), persistent=False)  # (side, size)
        self.register_buffer("high", (low.T * (size / side)).float(), persistent=False)

    def down(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) as images (B, C, side, side)."""
        return self.low @ x @ self.low.T

    def up(self, x: Tensor) -> Tensor:
        """The images (B, C, H, W) that have these lower frequencies and no others."""
        return self.high @ x @ self.high.T


def _cosines(size: int, count: int) -> Tensor:
    """The first cosines over so many pixels, orthonormal, float64, shape (count, size)."""
    at, wave = torch.arange(size).double() + 0.5, torch.arange(count).double()[:, None]
    basis = torch.cos(wave * at * (math.pi / size)) * (2 / size) ** 0.5
    basis[0] /= 2**0.5
    return basis


class _Block(nn.Module):
    r"""A residual block that the embedded parents and noise level steer."""

    def __init__(self, width: int, embedding: int) -> None:
        super().__init__()
        self.gain, self.shift = (nn.Parameter(v(width)) for v in (torch.ones, torch.zeros))
        self.film = nn.Linear(embedding, 2 * width)
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, h: Tensor, e: Tensor) -> Tensor:
        """Updates the state h, shape (B, C, H, W), knowing e, shape (B, E)."""
        gain, bias = (v.to(h.dtype)[:, None, None] for v in (self.gain, self.shift))
        scale, shift = self.film(e)[:, :, None, None].chunk(2, dim=1)
        g = self.first(F.silu(_unit(h) * gain + bias))
        return h + self.second(F.silu(g * (1 + scale) + shift))


def _unit(h: Tensor) -> Tensor:
    """States (B, C, H, W), each scaled to a mean square of 1."""
    size = torch.linalg.vector_norm(h.flatten(1), dim=1) / h[0].numel() ** 0.5
    return h * (1 / (size + 1e-3)).to(h.dtype)[:, None, None, None]


class _Denoiser(nn.Module):
    r"""The mean of a residual given a noisy one, :math:`D(r_\sigma; \sigma, \mathbf{pa}, \mu)`.

    A small U-net on patches of two pixels a side. Residuals have a spread near 1; the output mixes
    the noisy residual with what the network adds, so that the network always has the same task.

    Args:
        config: Its sizes.
        parents: The length of the vector of parents.
        channels: The channels of the residual; the context has as many.
    """

    def __init__(self, config: DetailConfig, parents: int, channels: int) -> None:
        super().__init__()
        width, e, grid = config.width, config.embedding, config.side // 2
        level = 1 + 2 * _WAVES
        self.register_buffer("waves", torch.randn(_WAVES))
        self.glance = nn.Linear(2 * channels * config.side**2, config.glance)
        inputs = parents + level + config.glance
        layers = [nn.Linear(inputs, e), nn.SiLU(), nn.Linear(e, e), nn.SiLU()]
        self.embed = nn.Sequential(*layers)
        self.stem = nn.Conv2d(8 * channels, width, 3, padding=1)
        self.maps = nn.Parameter(torch.zeros(1 + parents, width * grid**2))
        self.gate = nn.Linear(level, width)
        self.fine, self.middle, self.coarse = (_Block(width, e) for _ in range(3))
        self.back = nn.ModuleList(_Block(width, e) for _ in range(3))
        self.join = nn.ModuleList(nn.Conv2d(2 * width, width, 1) for _ in range(2))
        self.out = nn.Conv2d(width, 4 * channels, 3, padding=1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, r: Tensor, sigma: Tensor, c: Tensor, context: Tensor) -> Tensor:
        """The mean residual, shape (B, C, S, S).

        Args:
            r: The noisy residual, shape (B, C, S, S).
            sigma: Its noise level, shape (B,).
            c: The parents as vectors, shape (B, D).
            context: What the autoencoder draws, in the same band.
        """
        s = sigma[:, None, None, None]
        whole = (1 + s * s).rsqrt()
        seen, level = torch.cat((r * whole, context), dim=1), self._level(sigma)
        e = self.embed(torch.cat((c - 0.5, level, self.glance(seen.flatten(1))), dim=1))
        h = F.pixel_unshuffle(seen, 2).contiguous(memory_format=torch.channels_last)
        one = torch.cat((torch.ones_like(c[:, :1]), c - 0.5), dim=1)
        h = self.stem(h)
        own = (one @ self.maps).view_as(h)
        fine = self.fine(h + own * (1 + self.gate(level))[:, :, None, None], e)
        middle = self.middle(F.avg_pool2d(fine, 2), e)
        h = self.coarse(F.avg_pool2d(middle, 2), e)
        h = self.back[0](self._joined(0, middle, h), e)
        h = self.back[1](self._joined(1, fine, h), e)
        h = F.pixel_shuffle(self.out(F.silu(_unit(self.back[2](h, e)))), 2)
        return whole * whole * r + s * whole * h

    def _level(self, sigma: Tensor) -> Tensor:
        """The noise level as numbers of moderate size, shape (B, 1 + 2 _WAVES)."""
        log = sigma.log()[:, None]
        turn = log * self.waves
        return torch.cat((log / 4, turn.sin(), turn.cos()), dim=1)

    def _joined(self, number: int, fine: Tensor, coarse: Tensor) -> Tensor:
        coarse = F.interpolate(coarse, scale_factor=2, mode="nearest")
        return self.join[number](torch.cat((fine, coarse), dim=1))


@dataclass(frozen=True)
class Denoising:
    r"""What the denoiser minimises: its squared error over all noise levels.

    .. math:: \mathrm{E}_{\sigma, \epsilon}\; \frac{1 + \sigma^2}{\sigma^2}\, \big\lVert
        D(r + \sigma \epsilon; \sigma, \mathbf{pa}, \mu) - r \big\rVert_w^2

    Pixels count by weights :math:`w`, more where the parents matter.

    Args:
        middle, spread: Mean and deviation of the logarithm of the noise level.
    """

    middle: float = 0.3
    spread: float = 1.4

    def __call__(
        self, flow: "_Flow", x: Tensor, c: Tensor, done: float, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """The loss of residuals and contexts, stacked by channel in x, (B, 2 C, S, S)."""
        r, context = x.chunk(2, dim=1)
        draw = torch.randn(len(x), generator=rng, device=x.device)
        sigma = (self.middle + self.spread * draw).exp().clamp(0.04, 20)
        s = sigma[:, None, None, None]
        noisy = r + s * torch.randn(r.shape, generator=rng, device=r.device)
        error = (flow.denoiser(noisy, sigma, c, context).float() - r).square()
        return {"denoising": ((1 + s * s) / (s * s) * flow.weight * error).mean()}


class _Flow(nn.Module):
    """The flow between a residual in the band and normal noise.

    Args:
        config: Its sizes.
        parents: The length of the vector of parents.
        size, channels: Those of the images.
    """

    def __init__(self, config: DetailConfig, parents: int, size: int, channels: int) -> None:
        super().__init__()
        self.config, self.band = config, _Band(size, config.side)
        shape = (1, channels, config.side, config.side)
        denoiser = _Denoiser(config, parents, channels)
        self.denoiser = denoiser.to(memory_format=torch.channels_last)
        for name in ("spread", "weight", "usual"):
            self.register_buffer(name, torch.ones(shape))
        self.register_buffer("levels", config.levels, persistent=False)

    def seen(self, residual: Tensor, mean: Tensor) -> Tensor:
        """A residual and the mean it belongs to, as the denoiser sees both, (B, 2 C, S, S)."""
        low = self.band.down(residual) / self.spread, self.context(mean)
        return torch.cat(low, dim=1)

    def context(self, mean: Tensor) -> Tensor:
        """What the autoencoder draws, as the denoiser sees it, shape (B, C, S, S)."""
        return 5 * (self.band.down(mean) - self.usual)

    def up(self, r: Tensor, c: Tensor, context: Tensor) -> Tensor:
        """From residuals to noise, both (B, C, S, S)."""
        return self._followed(r, lambda _: (c, context), self.levels)

    def down(self, u: Tensor, told: _Told) -> Tensor:
        """From noise to residuals, by what is told at each level."""
        return self._followed(u, told, self.levels.flip(0))

    def _followed(self, r: Tensor, told: _Told, levels: Tensor) -> Tensor:
        r"""Follows the flow from level to level.

        Between two levels the equation is solved exactly for a denoised residual that is linear in
        :math:`\log \sigma`, by its values at this level and the one before: a multistep method
        of second order, one evaluation a step (Lu et al., *DPM-Solver++*, 2022).
        """
        before = pace = None
        for here, there in pairwise(levels):
            clean, step = self.denoiser(r, here.expand(len(r)), *told(here)), (there / here).log()
            ahead = clean if before is None else clean + (clean - before) * (step / pace) / 2
            r = torch.lerp(ahead, r, there / here)
            before, pace = clean, step
        return r


class DetailedImage(nn.Module):
    r"""The mechanism of the image in three parts; see the module.

    Args:
        first: The autoencoder.
        config: What the flow is made of.
        widths: How many entries of the vector of parents each of them takes, by name and in order.

    Example:
        >>> from cfscm.image import ImageConfig
        >>> small = ImageConfig(parents=3, size=32, widths=(8, 8), latents=(0, 0), code=5)
        >>> flow = DetailConfig(side=16, width=16, embedding=8, glance=4)
        >>> image = DetailedImage(ImageMechanism(small), flow, {"sex": 1, "site": 2})
        >>> x, c = torch.rand(2, 1, 32, 32), torch.rand(2, 3)
        >>> noise = image.abduct(x, c)
        >>> {name: tuple(value.shape) for name, value in noise.items()}
        {'z0': (2, 5, 1, 1), 'residual': (2, 1, 32, 32), 'flow': (2, 1, 16, 16)}
        >>> torch.allclose(image.predict(noise, c), x, atol=1e-4)
        True
    """

    def __init__(
        self, first: ImageMechanism, config: DetailConfig, widths: Mapping[str, int]
    ) -> None:
        super().__init__()
        own, self.widths = first.config, dict(widths)
        if (count := sum(widths.values())) != own.parents:
            raise InputError(f"the parents take {count} entries, not {own.parents}")
        if config.side > own.size:
            raise InputError(f"a band of {config.side} pixels is larger than images of {own.size}")
        self.first, self.tone, self.config = first, Tone(list(widths.values())), config
        self.flow = _Flow(config, own.parents, own.size, own.channels)
        # The noise level up to which the flow follows each entry of the vector of parents.
        self.register_buffer("reach", torch.full((own.parents,), torch.inf))
        terms = len(expanded(torch.zeros(1, own.parents))[0])
        self.register_buffer("means", torch.zeros(terms, own.channels, own.size, own.size))

    def limit(self, **reach: float) -> None:
        """Lets the flow follow these parents up to a noise level only, all others at every level.

        When a parent changes, a flow may redraw large structures that this parent does not cause:
        the law of the images stays right, but single patients change without need. Above its level
        the flow keeps the patient's own value of a parent; at 0 it does not follow the parent at
        all. Tone and autoencoder follow every parent.
        """
        for name, level in reach.items():
            if name not in self.widths:
                known = ", ".join(self.widths)
                raise InputError(f"there is no parent {name!r}, only {known}")
            if not level >= 0:
                raise InputError(f"the level of {name!r} must not be negative, not {level}")
        levels = [
            reach.get(name, torch.inf) for name, width in self.widths.items() for _ in range(width)
        ]
        self.reach.copy_(torch.tensor(levels))

    def abduct(self, x: Tensor, c: Tensor, rng: torch.Generator | None = None) -> dict[str, Tensor]:
        """Infers the noise: that of the autoencoder, that of the flow, and what both miss.

        See :meth:`.ImageMechanism.abduct`; with ``rng`` the code is drawn.
        """
        plain, c = self.tone.removed(x, c), self.tone.hidden(c)
        noise = self.first.abduct(plain, c, rng)
        residual = noise["residual"]
        seen = self.flow.seen(residual, self.first.scale.apply(plain) - residual)
        r, context = seen.chunk(2, dim=1)
        u = self.flow.up(r, c, context)
        drawn = self._drawn(u, lambda _: (c, context))
        noise |= {"flow": u, "residual": residual - drawn}
        return noise | {"own": c} if self.reach.isfinite().any() else noise

    def predict(self, noise: Mapping[str, Tensor], c: Tensor) -> Tensor:
        """Draws the images that the noise gives under the parents; see :class:`.ImageMechanism`."""
        hidden = self.tone.hidden(c)
        mean, told = self._told(noise, hidden)
        t = mean + self._drawn(noise["flow"], told)
        t = t + noise["residual"] if "residual" in noise else t
        return self.tone.applied(self.first.scale.invert(t), c).clamp(0, 1)

    def _told(self, noise: Mapping[str, Tensor], c: Tensor) -> tuple[Tensor, _Told]:
        """The mean image, and what the flow is told at each level.

        That are new parents within their reach and own ones above it.
        """
        limited, mean = self.reach.isfinite(), self.first.mean(noise, c)
        known = {}
        if "own" in noise:
            own = torch.where(limited, noise["own"], c)
            start = self.first.mean(noise, own)
            known[tuple((~limited).tolist())] = own, self.flow.context(start)
            mean = (mean + start + self._shift(c) - self._shift(own)) / 2
        known[(True,) * len(limited)] = c, self.flow.context(mean)

        def told(level: Tensor) -> tuple[Tensor, Tensor]:
            follows = level <= self.reach
            if (key := tuple(follows.tolist())) not in known:
                seen = torch.where(follows, c, own)
                known[key] = seen, self.flow.context(self.first.mean(noise, seen))
            return known[key]

        return mean, told

    def _shift(self, c: Tensor) -> Tensor:
        """The mean image given the parents, in closed form, shape (B, C, H, W)."""
        return torch.tensordot(expanded(c), self.means, dims=1)

    def _drawn(self, u: Tensor, told: _Told) -> Tensor:
        """What the flow draws of noise, on the scale of the networks, shape (B, C, H, W)."""
        return self.flow.band.up(self.flow.down(u, told) * self.flow.spread)

    def plain(self, images: Images, c: Tensor) -> Images:
        """The images without tone, for the training of the autoencoder."""
        return _Plain(self.tone, images, c)

    @torch.no_grad()
    def average(self, images: Images, c: Tensor) -> None:
        """Fits the mean image given the parents, quadratic in them, by least squares.

        Args:
            images: The training images, without tone; N of them.
            c: Their parents as vectors, shape (N, D), at usual values where tone acts.
        """
        gram = cross = 0.0
        for rows in torch.arange(len(c)).split(256):
            terms = expanded(c[rows]).double()
            t = self.first.scale.apply(images[rows].to(self.means.device)).flatten(1).cpu()
            gram, cross = gram + terms.T @ terms, cross + terms.T @ t.double()
        ridge = 1e-4 * len(c) * torch.eye(len(gram))
        self.means.copy_(torch.linalg.solve(gram + ridge, cross).view_as(self.means))

    def left(self, images: Images, c: Tensor) -> Images:
        """What the autoencoder leaves of images, for the training of the flow.

        The spread of residuals, the usual context and the weights of pixels are measured first.
        """
        left = _Left(self, images, c)
        for name in ("spread", "weight"):
            getattr(self.flow, name).fill_(1)
        self.flow.usual.zero_()
        rows = torch.arange(len(c))[:_ROWS]
        seen = torch.cat([left[some].cpu() for some in rows.split(256)])
        r, context = seen.chunk(2, dim=1)
        spread = _smooth(r.std(dim=0, keepdim=True).clamp(min=1e-4), 3)
        self.flow.spread.copy_(spread)
        self.flow.usual.copy_(context.mean(dim=0, keepdim=True) / 5)
        hidden = self.tone.hidden(c[rows].to(self.tone.typical)).cpu()
        share = _told(r / spread, hidden)
        weight = 1 + self.config.relevance * share / share.mean().clamp(min=1e-12)
        self.flow.weight.copy_(weight / weight.mean())
        return left.kept()


class _Plain(Images):
    """Images whose tone is taken off when they are asked for."""

    def __init__(self, tone: Tone, images: Images, c: Tensor) -> None:
        self.tone, self.images, self.c = tone, images, c

    def __len__(self) -> int:
        return len(self.c)

    @torch.no_grad()
    def __getitem__(self, index: Tensor) -> Tensor:
        """The images of the rows, shape (B, C, H, W)."""
        device = self.tone.curves.device
        return self.tone.removed(self.images[index].to(device), self.c[index].to(device))


class _Left(Images):
    """What an autoencoder leaves of images and what it draws, as a flow sees both."""

    def __init__(self, image: DetailedImage, images: Images, c: Tensor) -> None:
        self.image, self.images, self.c = image, images, c

    def __len__(self) -> int:
        return len(self.c)

    @torch.no_grad()
    def __getitem__(self, index: Tensor) -> Tensor:
        """Residuals and contexts of the rows, stacked, shape (B, 2 C, S, S)."""
        image, device = self.image, self.image.flow.spread.device
        x, c = (part[index].to(device) for part in (self.images, self.c))
        x, c = image.tone.removed(x, c), image.tone.hidden(c)
        residual = image.first.abduct(x, c)["residual"]
        return image.flow.seen(residual, image.first.scale.apply(x) - residual)

    def kept(self) -> Images:
        """The same, computed once and held if they fit."""
        if len(self) * self[torch.zeros(1, dtype=torch.long)].numel() * 4 > _KEPT:
            return self
        return torch.cat([self[rows].cpu() for rows in torch.arange(len(self)).split(256)])


def _told(r: Tensor, c: Tensor) -> Tensor:
    r"""How much the parents say of the spread of each pixel, shape (1, C, S, S).

    The share of the variance of :math:`r^2`, and of products with neighbours, that a quadratic
    regression on the parents explains: the largest of them, smoothed.
    """
    terms = expanded(c).double()
    terms = terms - terms.mean(dim=0)
    gram = terms.T @ terms + 1e-3 * len(c) * torch.eye(terms.shape[1])
    shares = []
    for near in (r, r.roll(1, dims=2), r.roll(1, dims=3)):
        product = (r * near).flatten(1).double()
        product = product - product.mean(dim=0)
        told = terms @ torch.linalg.solve(gram, terms.T @ product)
        shares.append((told.var(dim=0) / product.var(dim=0).clamp(min=1e-12)).view_as(r[0]))
    return _smooth(torch.stack(shares).amax(dim=0, keepdim=True).float(), 5)


def _smooth(x: Tensor, size: int) -> Tensor:
    """Means over squares of so many pixels a side; edges are repeated."""
    return F.avg_pool2d(F.pad(x, [size // 2] * 4, mode="replicate"), size, stride=1)
