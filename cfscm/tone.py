r"""Tone: how parents bend the display of an image, by one curve of grey levels for all pixels.

Some causes change no anatomy. They change how an image was developed: each grey level becomes
another one, wherever it stands. Such an effect is known without training, from the levels alone,

.. math:: \tilde{x} = Q_{\widetilde{\mathbf{pa}}}\big(Q_{\mathbf{pa}}^{-1}(x)\big), \qquad
    Q_{\mathbf{pa}}(u) = \mathrm{E}\big[\text{the level below which a share } u \text{ of an image
    lies} \mid \mathbf{pa}\big]

and it is exactly invertible. Which parents act in this way is decided by the training images: those
whose effect on the mean image a curve explains nearly whole.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from cfscm.training import Images

_LEVELS = 33  # points of a curve
_ROWS = 20_000  # images that are enough for a curve
_TRIED = 1_000  # images on which its effect is compared
_WHOLE = 0.9  # of the effect on the mean image that a curve must explain
_APART = 1e-4  # least rise of a curve between two points


class Tone(nn.Module):
    """The curves of grey levels that parents choose.

    Args:
        widths: How many entries of the vector of parents each of them takes, in order.

    Example:
        >>> rng = torch.Generator().manual_seed(0)
        >>> x, c = (torch.rand(500, *shape, generator=rng) for shape in ((1, 8, 8), (1,)))
        >>> c = c.round()
        >>> tone = Tone([1])
        >>> tone.fit(x ** (1 + c[:, :, None, None]), c)
        >>> tone.acts.tolist()  # the parent bends the display
        [1.0]
        >>> plain = tone.removed(x**2, torch.ones(500, 1))
        >>> torch.allclose(tone.applied(plain, torch.ones(500, 1)), x**2, atol=1e-6)
        True
    """

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.widths, count = tuple(widths), sum(widths)
        self.register_buffer("curves", torch.zeros(1 + count, _LEVELS))
        self.register_buffer("acts", torch.zeros(count))  # 1 for entries that bend the display
        self.register_buffer("typical", torch.zeros(count))  # the mean vector of parents

    @torch.no_grad()
    def fit(self, images: Images, c: Tensor) -> None:
        """Fits the curves by least squares, and decides which parents act by them.

        Args:
            images: The training images, N of them, in [0, 1].
            c: Their parents as vectors, shape (N, D).
        """
        rows = torch.arange(len(c))[:_ROWS]
        levels, gram, cross = [], 0.0, 0.0
        for some in rows.split(256):
            x, terms = images[some].flatten(1).cpu(), _with_one(c[some]).double()
            levels.append(torch.quantile(x, torch.linspace(0.01, 0.99, _LEVELS), dim=1).T)
            gram, cross = gram + terms.T @ terms, cross + terms.T @ x.double()
        terms = _with_one(c[rows]).double()
        gram = gram + 1e-6 * len(rows) * torch.eye(len(gram))
        self.curves.copy_(torch.linalg.solve(gram, terms.T @ torch.cat(levels).double()))
        self.typical.copy_(c.mean(dim=0))
        mean_image = torch.linalg.solve(gram, cross)[1:].float()  # the effect of each entry
        x, own = images[rows[:_TRIED]].cpu(), c[:_TRIED]
        start = 0
        for width in self.widths:
            entries = slice(start, start + width)
            self.acts[entries] = self._explained(x, own, entries, mean_image[entries]) > _WHOLE
            start += width

    def _explained(self, x: Tensor, c: Tensor, entries: slice, effect: Tensor) -> float:
        """The share of a parent's effect on the mean image that its curves make."""
        left = whole = 0.0
        usual = c.clone()
        usual[:, entries] = self.typical[entries].to(c)
        for step in self._steps(c[:, entries]):
            there = usual.clone()
            there[:, entries] += step
            curves = [self._curve(one.to(self.curves)).cpu() for one in (c, usual, there)]
            moved = [_remapped(x, curves[0], curve) for curve in curves[1:]]
            drawn, true = (moved[1] - moved[0]).flatten(1).mean(dim=0), step @ effect
            left, whole = left + (drawn - true).square().sum(), whole + true.square().sum()
        return 1 - float(left / whole) if whole > 0 else 0.0

    @staticmethod
    def _steps(c: Tensor) -> Iterator[Tensor]:
        """From the mean of the entries of one parent to values that it takes."""
        mean = c.mean(dim=0)
        if c.shape[1] == 1:
            yield c.std(dim=0)
        else:
            yield from (code - mean for code in torch.eye(c.shape[1]).to(c))

    def hidden(self, c: Tensor) -> Tensor:
        """The parents as those see them who see images without tone: at their usual values."""
        return torch.lerp(c, self.typical.expand_as(c), self.acts)

    def removed(self, x: Tensor, c: Tensor) -> Tensor:
        """Images as if the parents that bend the display had their usual values."""
        return self._between(x, c, self.hidden(c))

    def applied(self, x: Tensor, c: Tensor) -> Tensor:
        """The inverse of :meth:`removed`."""
        return self._between(x, self.hidden(c), c)

    def _between(self, x: Tensor, c: Tensor, other: Tensor) -> Tensor:
        return _remapped(x, self._curve(c), self._curve(other)) if self.acts.any() else x

    def _curve(self, c: Tensor) -> Tensor:
        """The levels of the curve of each vector of parents, rising, shape (B, L)."""
        curve = _with_one(c) @ self.curves
        rise = curve.diff(dim=1).clamp(min=_APART)
        return torch.cat((curve[:, :1], rise), dim=1).cumsum(dim=1)


def _with_one(c: Tensor) -> Tensor:
    return torch.cat((torch.ones_like(c[:, :1]), c), dim=1)


def _remapped(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Images under piecewise linear maps from levels a, (B, L), to b; the ends are straight."""
    flat = x.flatten(1).contiguous()
    k = torch.searchsorted(a, flat).clamp(1, a.shape[1] - 1)
    low, high, start, end = (part.gather(1, at) for part in (a, b) for at in (k - 1, k))
    return (start + (flat - low) / (high - low) * (end - start)).view_as(x)
