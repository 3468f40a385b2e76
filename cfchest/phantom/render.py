r"""The renderer: organs attenuate, a display curve develops, a detector adds noise.

.. math:: x = \mathrm{clip}\Big(o + g \big(1 - e^{-A}\big)^{\gamma} + \sigma \epsilon, 0, 1\Big),
    \qquad A = \Big[\sum_{\mathrm{organs}} A_j\Big]_+

Every organ is a function of position with soft edges; the same measures give the same chest at
any size. All positions are in the frame of the patient, x to the right of the image (the left
of the patient), y downwards, with the image spanning [-1, 1] both ways.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cfchest.phantom.anatomy import APEX_CURVE, DOME_AT
from cfchest.phantom.draws import field

_Measures = Mapping[str, Tensor]
_MEDIAL = 0.09  # distance of the lungs from the midline
_FAR = 20.0  # deviations or logits at which a tail is cut
_EDGE = 0.016  # softness of an edge, about half a pixel at 64 pixels
_OCTAVES = ((5, 1.0), (10, 0.8), (20, 0.7), (40, 0.6))  # nodes a side and weight


@dataclass(frozen=True)
class _Frame:
    """Positions in the frame of the patient and of the lungs, each of shape (B, H, W)."""

    x: Tensor
    y: Tensor
    a: Tensor  # |x|
    left: Tensor  # softly 1 on the left of the patient, the right of the image
    xi: Tensor  # across a lung, 0 medial, 1 lateral
    eta: Tensor  # down a lung, 0 at the apex, 1 at the costophrenic angle
    wall: Tensor  # signed distance to the inner wall of the chest, positive inside
    floor: Tensor  # signed distance to the diaphragm, positive above


def _step(distance: Tensor, softness: float = _EDGE) -> Tensor:
    """A soft step: 0 far below 0, 1 far above."""
    # The tails would be denormal numbers, which processors treat many times slower.
    return torch.sigmoid((distance * (1 / softness)).clamp(min=-_FAR))


def _bump(x: Tensor, width: float, y: Tensor | float = 0.0, height: float = 1.0) -> Tensor:
    """A bell of height 1 with the given deviations, in one direction or two."""
    z, w = x * (0.5**0.5 / width), y * (0.5**0.5 / height)
    return torch.exp((-z * z - w * w).clamp(min=-_FAR))


def frame(m: _Measures, size: tuple[int, int], like: Tensor) -> _Frame:
    """Lays the coordinates of the patient and of the lungs over the pixels.

    Args:
        m: The measures, each of shape (B, 1, 1).
        like: A tensor with the device and dtype to use.
    """
    ticks = (torch.arange(n, device=like.device, dtype=like.dtype) for n in size)
    v, u = ((at + 0.5) * (2 / n) - 1 for at, n in zip(ticks, size, strict=True))
    u, v = u[None, None, :] - m["shift_x"], v[None, :, None] - m["shift_y"]
    x, y = u + m["tilt"] * v, v - m["tilt"] * u
    a, left = x.abs(), _step(x, 0.02)

    xi = (a - _MEDIAL) / m["lung_width"]
    eta = (y - m["apex"]) / m["lung_height"]
    inner = 0.36
    t = torch.maximum((inner - xi) * (1 / inner), (xi - inner) * (1 / (1 - inner)))
    apex = (1 - eta * (1 / APEX_CURVE)).clamp(min=0)
    wall = (1 - t * t - apex * apex) * (0.32 * m["lung_width"])
    across = (xi - DOME_AT) * (1 / (1 - DOME_AT))
    floor = 1 - (1 - left) * m["dome_right"] - m["dome"] * (1 - across * across) - eta
    return _Frame(x, y, a, left, xi, eta, wall, floor * m["lung_height"])


def _lung_fields(f: _Frame) -> Tensor:
    """The lung fields, between 0 and 1."""
    return _step(torch.minimum(f.wall, f.floor))


def _body(f: _Frame, m: _Measures) -> Tensor:
    """Soft tissue: neck, shoulders and a torso that is thicker in the middle and the abdomen."""
    torso = _MEDIAL + m["lung_width"] + m["wall"]
    arms = _step(-0.02 - f.y, 0.11)
    half = torso + (1.20 * m["shoulder"] - torso) * arms + 0.05 * f.y
    top = -1.75 + 0.88 * _step(f.a - 0.235 * m["shoulder"], 0.04) + 0.26 * f.a * f.a
    inside = _step(torch.minimum(half - f.a, f.y - top), 0.025)
    across = f.a / half
    thick = 0.66 + 0.34 * (1 - across * across) + 0.10 * f.y
    return inside * thick


def _abdomen(f: _Frame, m: _Measures) -> Tensor:
    """Liver, spleen and gut below the diaphragm, with a bubble of air in the stomach."""
    across = (f.xi.clamp(0.12, 1.0) - DOME_AT) * (1 / (1 - DOME_AT))
    dome = 1 - (1 - f.left) * m["dome_right"] - m["dome"] * (1 - across * across)
    depth = (f.eta - dome) * m["lung_height"]
    below = _step(depth, 0.028) * _step((1.04 - f.xi) * m["lung_width"], 0.05)
    bubble = _bump(f.x - 0.34, 0.11, depth - 0.12, 0.045)
    return 0.88 * below - 1.5 * m["stomach"] * bubble


def _skeleton(f: _Frame, m: _Measures) -> Tensor:
    """Ribs, clavicles, scapulae and spine."""
    slope = m["rib_slope"]
    back = f.eta - slope * (0.26 * f.xi * f.xi - 0.10 * f.xi)
    front = f.eta - slope * (0.34 - 0.40 * f.xi + 0.10 * f.xi * f.xi)
    cage = _step(f.wall + 0.03, 0.015) * _step(f.floor + 0.08, 0.08)
    ribs = 0.17 * _rib(10 * back + m["rib_phase"])
    ribs = ribs + 0.10 * _rib(7.5 * front + m["rib_phase"]) * _step(f.xi - 0.45, 0.12)
    spine = _bump(f.x, 0.055) * (0.17 + 0.07 * torch.cos(f.y * 34.0))
    return m["bone"] * (cage * ribs + _girdle(f, m) + spine)


def _rib(phase: Tensor) -> Tensor:
    """A periodic bell, one for each unit of phase."""
    return torch.exp(1.6 * (torch.cos(phase * (2 * torch.pi)) - 1))


def _girdle(f: _Frame, m: _Measures) -> Tensor:
    """Clavicles and the blades and heads of the shoulders."""
    reach = f.a / m["shoulder"]
    line = f.y - (m["apex"] + 0.22 - 0.20 * reach - 0.06 * reach * reach)
    clavicle = 0.30 * _bump(line, 0.028) * _step(f.a - 0.07, 0.02) * _step(0.80 - reach, 0.04)
    blade = 0.16 * _bump(reach - 0.74 - 0.18 * f.y, 0.05, f.y + 0.34, 0.22)
    head = 0.30 * _bump(reach - 0.93, 0.08, f.y + 0.60, 0.08)
    return clavicle + blade + head


def _mediastinum(f: _Frame, m: _Measures) -> Tensor:
    """Great vessels, aortic knob, hila, and the air of the trachea."""
    vessels = _bump(f.x - 0.015, 0.085) * (0.38 - 0.24 * f.y)
    knob = 0.50 * m["aorta"] * _bump(f.x - 0.125, 0.05, f.y + 0.36, 0.065)
    arch = 0.18 * m["aorta"] * _bump(f.x - 0.105, 0.035) * _step(f.y + 0.36, 0.05)
    hila = 0.28 * m["hilum"] * _bump(f.a - 0.19, 0.065, f.y + 0.09 + 0.05 * f.left, 0.12)
    trachea = 0.46 * _bump(f.x + m["trachea"], 0.036) * _step(-0.34 - f.y, 0.04)
    return vessels + knob + arch + hila - trachea


def _branches(f: _Frame, m: _Measures) -> Tensor:
    """Pulmonary vessels that fan out from the hila and fade."""
    x, y = f.a - 0.13, f.y + 0.08
    angle, radius = torch.atan2(y, x), torch.sqrt(x * x + y * y)
    fan = torch.exp(1.5 * (torch.cos(8 * angle + 6 * radius + m["vessels"]) - 1))
    return 0.26 * fan * torch.exp(-4.5 * radius) * _step(radius - 0.10, 0.03)


def _heart(f: _Frame, m: _Measures) -> Tensor:
    """An egg whose narrow end points down and to the left of the patient, and an atrium."""
    base = m["apex"] + m["lung_height"] * (1 - 0.75 * m["dome"])
    x, y = f.x - 0.11, f.y - (base - 0.22)
    t = m["heart_tilt"]
    cos, sin = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
    along = (cos * x + sin * y) / (0.39 * m["heart"])
    across = (cos * y - sin * x) / (0.25 * m["heart"])
    across = across * (1 + 0.22 * along)
    egg = 1 - along * along - across * across
    side, rise = (x + 0.16) / (0.12 * m["heart"]), (y - 0.02) / (0.20 * m["heart"])
    inside = _step(torch.maximum(egg, 0.6 * (1 - side * side - rise * rise)), 0.10)
    return inside * (0.52 + 0.22 * egg.clamp(min=-1))


def _breasts(f: _Frame, m: _Measures) -> Tensor:
    """Two domes of soft tissue that fade upwards and end in an edge below."""
    radius = 0.27 + 0.06 * m["breast"]
    x = (f.a - 0.47) / radius
    y = (f.y - 0.24 - m["breast_low"]) / radius
    ball = (1 - x * x - y * y * (1 - 0.30 * y)).clamp(min=0)
    return 0.54 * m["breast"] * torch.sqrt(ball) * _step(y + 0.25, 0.25)


def _displaced(f: _Frame, m: _Measures) -> Tensor:
    """How much of the lung is displaced by fluid: a level that climbs the lateral wall."""
    depth = m["fluid_right"] + (m["fluid_left"] - m["fluid_right"]) * f.left
    base = 1 - (1 - f.left) * m["dome_right"]
    climb = f.xi.clamp(0, 1) * f.xi.clamp(0, 1)
    level = base - depth * (1 + 0.6 * climb * climb)
    present = (depth * 40).clamp(max=1)
    return m["opacity"] * present * _step((f.eta - level) * m["lung_height"], 0.025)


def _texture(key: Tensor, size: tuple[int, int]) -> Tensor:
    r"""Anatomical noise: smooth random fields at four scales, held by the individual.

    Each octave interpolates its nodes by quadratic splines, first down, then across.

    Args:
        key: The keys, int64, shape (B,).
    """
    counts = [(n + 2) ** 2 for n, _ in _OCTAVES]
    nodes = field(key, sum(counts)).split(counts, dim=1)
    total = 0.0
    for (n, weight), values in zip(_OCTAVES, nodes, strict=True):
        down, across = (_spline_matrix(n, count, like=values) for count in size)
        grid = weight * values.unflatten(1, (n + 2, n + 2))
        rows = torch.bmm(down.expand(len(key), -1, -1), grid)
        total = total + torch.bmm(rows, across.mT.expand(len(key), -1, -1))
    return total


def _spline_matrix(n: int, count: int, *, like: Tensor) -> Tensor:
    """The weights of n + 2 nodes, a unit apart, in ``count`` pixels: shape (count, n + 2)."""
    pixel = (torch.arange(count, device=like.device, dtype=like.dtype) + 0.5) * (n / count)
    node = torch.arange(n + 2, device=like.device, dtype=like.dtype) - 0.5
    z = (pixel[:, None] - node).abs()
    outer = (1.5 - z).clamp(min=0)
    return torch.where(z < 0.5, 0.75 - z * z, 0.5 * outer * outer)


def _attenuation(m: _Measures, key: Tensor, size: tuple[int, int]) -> Tensor:
    """The attenuation along the ray of each pixel, shape (B, H, W)."""
    f = frame(m, size, m["gamma"])
    lung, water = _lung_fields(f), _displaced(f, m)
    air = 0.66 * m["lucency"] * (1 - water) - 0.35 * water - _branches(f, m)
    depth = _body(f, m) + _abdomen(f, m) + _skeleton(f, m) + _mediastinum(f, m)
    depth = depth + _heart(f, m) + _breasts(f, m) - lung * air
    return depth + _texture(key, size) * (0.035 + 0.055 * lung)


def develop(
    m: _Measures, texture: Tensor, detector: Tensor, grain: Tensor, size: tuple[int, int]
) -> Tensor:
    """The radiographs, shape (B, 1, H, W), in [0, 1]."""
    depth = _attenuation(m, texture, size).clamp(min=0)
    image = m["offset"] + m["gain"] * (1 - torch.exp(-depth)).clamp(min=1e-6) ** m["gamma"]
    epsilon = field(detector, size[0] * size[1]).unflatten(1, size)
    return (image + grain[:, None, None] * epsilon).clamp(0, 1).unsqueeze(1)
