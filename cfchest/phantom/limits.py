r"""What is left to chance for somebody who sees all that an image shows: the limit of abduction.

Some of the exogenous noise leaves no trace. Nobody can know the breasts of a man, the severity of
an effusion that is not there, or a scar that is closed; and of a patient with fluid an image shows
the depth at either side, not how much of it is effusion and how much scar. All other noise is
taken as known, the detector's included: that is more than any network could read, so that errors
of real generators should not come below these limits, and may well stay above them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Generator as RandomState
from torch import Tensor

from cfchest.phantom.anatomy import fluid_depths
from cfchest.phantom.cohort import Oracle
from cfchest.phantom.draws import TAIL, row_keys, truncated_normal, uniform
from cfchest.phantom.equations import COEFFICIENTS, standard_age
from cfcore.generator import Parents

_STREAM = 8  # of the draws; the hospitals have 0 to 7
_UNSEEN = ("breast", "breast_low", "severity", "side", "opacity", "scar_right", "scar_left")
_SIDES = ((1.0, 0.0, 0.0, 0.4), (1.0, 0.6, 0.4, 0.3), (0.0, 1.0, 0.7, 0.3))
"""Where fluid is: its share of the depth on the right and left, where this begins in the noise
``side``, and its probability."""
_POINTS = 1024  # at which the posterior of a severity is computed
_CLOSED = 1e-7  # a scar of less depth is none, but rounding
_CERTAIN = 1e30  # weight beside which others are none


@dataclass(frozen=True)
class PosteriorSampler(Oracle):
    r"""The ideal abductor: it knows what leaves a trace and draws the rest from its posterior.

    The noise that an image does not show is redrawn from its law given the image and the parents:
    from the prior where there is no trace at all, from a normal distribution truncated to closed
    scars, and jointly for the parts of fluid. So the image and its counterfactuals have
    the joint law of the true ones, and all metrics are right in expectation, although a single
    counterfactual is not.

    A draw belongs to a row of the cohort and is held over all worlds. Images must be observed:
    what a counterfactual of this generator shows is not looked up.

    Args:
        size: Height and width of the images, as of the phantom.
        noise: The exogenous noise of the cohort, each of shape (N,).
        seed: Of the draws.

    Example:
        >>> from cfchest.phantom import Phantom
        >>> cohort = Phantom(16).sample(3, hospital="C", seed=2027)
        >>> x, rows = cohort.images[:], torch.arange(3)
        >>> noise = PosteriorSampler(16, cohort.noise).abduct(x, cohort.pa, index=rows)
        >>> torch.allclose(cohort.phantom.predict(noise, cohort.pa), x, atol=1e-5)
        True
    """

    seed: int = 0

    def abduct(
        self, x: Tensor, pa: Parents, *, index: Tensor | None = None, rng: RandomState | None = None
    ) -> dict[str, Tensor]:
        """Looks up the noise of the images, each of shape (B,), and redraws what they do not show.

        Without ``rng`` the draws are a function of the seed and of ``index``.
        """
        noise = super().abduct(x, pa, index=index)
        seed = self.seed if rng is None else int(torch.randint(2**62, (), generator=rng))
        key = row_keys(seed, _STREAM, index)
        u = {name: uniform(key, place) for place, name in enumerate((*_UNSEEN, "which"))}
        return noise | _redrawn(noise, pa, u)


@dataclass(frozen=True)
class PosteriorMean(PosteriorSampler):
    """The mean image over several draws of the ideal abductor, which hold in all worlds.

    What a network comes to that is trained to be near the true image: of the unseen it draws the
    average. Every leaf of its noise has shape (B, draws).
    """

    draws: int = 12

    def abduct(
        self, x: Tensor, pa: Parents, *, index: Tensor | None = None, rng: RandomState | None = None
    ) -> dict[str, Tensor]:
        """The noise of all draws, each of shape (B, draws)."""
        seeds = range(self.draws * self.seed, self.draws * (self.seed + 1))
        samplers = [PosteriorSampler(self.size, self.noise, seed) for seed in seeds]
        drawn = [one.abduct(x, pa, index=index, rng=rng) for one in samplers]
        return {name: torch.stack([one[name] for one in drawn], dim=1) for name in drawn[0]}

    def predict(self, noise: Mapping[str, Tensor], pa: Parents) -> Tensor:
        """The mean over the draws of the images that they give, shape (B, 1, H, W)."""
        every = {name: values.flatten() for name, values in noise.items()}
        pa = {name: values.repeat_interleave(self.draws) for name, values in pa.items()}
        return super().predict(every, pa).unflatten(0, (-1, self.draws)).mean(dim=1)


def _redrawn(
    noise: Mapping[str, Tensor], pa: Parents, u: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The noise of ``_UNSEEN`` from its posterior, float32, by uniform numbers, each (B,)."""
    c, a, ill = COEFFICIENTS, standard_age(pa["age"].double()), pa["effusion"] > 0
    own = {name: noise[name].double() for name in _UNSEEN}
    seen = fluid_depths(own, pa["effusion"].double(), a)
    right, left = seen["fluid_right"], seen["fluid_left"]
    made = {name: u[name].clone() for name in ("severity", "side")}
    scars = {"scar_right": right.clone(), "scar_left": left.clone()}
    under = _fluid(right[ill], left[ill], a[ill], {name: values[ill] for name, values in u.items()})
    for values, drawn in zip((*made.values(), *scars.values()), under, strict=True):
        values[ill] = drawn
    for name, scar in scars.items():
        closed = truncated_normal(u[name] * _closed(a))
        made[name] = torch.where(scar > _CLOSED, scar / c.scar - c.scar_age * a, closed)
    man, dark = pa["sex"] == 0, right + left == 0
    for name, hidden in {"breast": man, "breast_low": man, "opacity": dark}.items():
        made[name] = torch.where(hidden, truncated_normal(u[name]), own[name])
    return {name: values.float() for name, values in made.items()}


def _fluid(
    right: Tensor, left: Tensor, a: Tensor, u: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Draws what makes up the depths of patients with an effusion, from its exact posterior.

    With fluid of depth :math:`d(s)` for the severity :math:`s`, a share :math:`r_j` of it on the
    right and :math:`l_j` on the left if its side is :math:`j`, what is left over is scar:

    .. math:: p(j, s \mid D_r, D_l) \propto p_j\; w\big(D_r - r_j d(s)\big)\,
        w\big(D_l - l_j d(s)\big)

    where :math:`w` is the density of a scar, and the probability of a closed one at 0. Severities
    at which the scar beside the fluid is closed are single points, whose weight is the density of
    the depth there; if both scars beside the fluid are closed, the depths are in a ratio that
    nothing else gives, and :math:`s` is known.

    Args:
        right, left: The depths :math:`D_r` and :math:`D_l` that are seen, shape (B,).
        a: Age on the scale of the equations.
        u: Uniform numbers.

    Returns:
        The severity, the noise of the side, and the depths of the right and of the left scar.
    """
    parts = [_candidates(right, left, a, shares) for *shares, _, _ in _SIDES]
    weights = [part[1] * side[-1] for part, side in zip(parts, _SIDES, strict=True)]
    total = torch.cat(weights, dim=1).cumsum(dim=1)
    at = torch.searchsorted(total, (u["which"] * total[:, -1])[:, None])
    at = at.clamp(max=total.shape[1] - 1)
    severity = torch.cat([part[0] for part in parts], dim=1).gather(1, at).squeeze(1)
    counts = torch.tensor([w.shape[1] for w in weights], device=a.device)
    sides = torch.tensor(_SIDES, dtype=a.dtype, device=a.device).repeat_interleave(counts, dim=0)
    to_right, to_left, begin, width = sides[at.squeeze(1)].T
    d = _depth(severity)
    return severity, begin + width * u["side"], right - to_right * d, left - to_left * d


def _candidates(
    right: Tensor, left: Tensor, a: Tensor, shares: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Severities that the depths may come from if fluid has these shares, and weights, (B, M)."""
    grid = (torch.arange(_POINTS, device=a.device, dtype=a.dtype) + 0.5) / _POINTS
    severity = [grid.expand(len(a), -1)]
    weight = [torch.full_like(severity[0], 1 / _POINTS)]
    sides = list(zip(shares, (right[:, None], left[:, None]), strict=True))
    for share, depth in sides:
        if share:  # the scar beside this fluid is closed
            s = ((depth / share - _depth(0)) / COEFFICIENTS.fluid_span).clamp(0, 1).sqrt()
            slope = 2 * COEFFICIENTS.fluid_span * share * s.clamp(min=_CLOSED)
            severity, weight = [*severity, s], [*weight, ((s > 0) & (s < 1)) / slope]
    s, w = torch.cat(severity, dim=1), torch.cat(weight, dim=1)
    for share, depth in sides:
        w = w * _scar_law(depth - share * _depth(s), a[:, None])
    if all(shares):
        known = (right * shares[1] - left * shares[0]).abs() < _CLOSED
        w[:, _POINTS:] += _CERTAIN * known[:, None]
    return s, w


def _depth(severity: Tensor | float) -> Tensor | float:
    """The depth of the fluid of an effusion."""
    return COEFFICIENTS.fluid_least + COEFFICIENTS.fluid_span * severity * severity


def _closed(a: Tensor) -> Tensor:
    """The probability that a scar is closed at an age."""
    below = torch.special.ndtr(-COEFFICIENTS.scar_age * a)
    return (below - TAIL) / (1 - 2 * TAIL)


def _scar_law(depth: Tensor, a: Tensor) -> Tensor:
    """The density of the depth of a scar; where it is 0, the probability of that."""
    c = COEFFICIENTS
    z = depth / c.scar - c.scar_age * a
    density = torch.exp(-0.5 * z * z) / ((2 * torch.pi) ** 0.5 * c.scar * (1 - 2 * TAIL))
    density = density * ((depth > 0) & (torch.special.ndtr(z) < 1 - TAIL))
    return torch.where(depth.abs() < _CLOSED, _closed(a), density)
