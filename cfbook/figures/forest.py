"""Estimates with their intervals as a small drawing inside a table: a dot and a bar for each."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from cfbook import notation

_WIDTH, _LEFT, _RIGHT, _TEXT = 250, 34, 242, 10  # of the drawing, its plot and its letters
_MARKS = {
    "supported": '<circle class="dot" cx="{x}" cy="{y}" r="3"/>',
    "inconclusive": '<circle class="dot" cx="{x}" cy="{y}" r="2.6"/>',
    "not-supported": '<path class="dot" d="M{x} {y}m-3 -3h6v6h-6z"/>',
    "tie": '<path class="dot" d="M{x} {y}m0 -3.8l3.8 3.8l-3.8 3.8l-3.8 -3.8z"/>',
    "construction": '<circle class="dot" cx="{x}" cy="{y}" r="2.2"/>',
    "paper": '<path d="M{x} {y}m-2.6 -2.6l5.2 5.2m0 -5.2l-5.2 5.2"/>',
    "most": '<path d="M{x} {y}m0 -3v6"/>',
}


@dataclass(frozen=True)
class Bar:
    """One test: its group, estimate and interval, and what else may be known; NaN if not.

    Attributes:
        kind: The verdict, a class of the style sheet, which is also the shape of the mark.
        most: The largest value that it could have had.
        paper: What the paper prints.
    """

    group: str
    estimate: float
    low: float
    high: float
    kind: str
    most: float = math.nan
    paper: float = math.nan


def mark(kind: str) -> str:
    """One mark alone, for a legend."""
    shape = _MARKS[kind].format(x=6, y=6)
    return (
        f'<svg class="forest key" viewBox="0 0 12 12" aria-hidden="true">{_as(kind, shape)}</svg>'
    )


def forest(bars: Sequence[Bar], threshold: float, claimed: tuple[float, float]) -> str:
    """Draw tests of one criterion, a row for each, as SVG whose colours a style sheet gives.

    A line is the threshold, and what the claim needs, between two values or beyond one, is shaded.
    The drawing is hidden from screen readers: its numbers must stand in the text beside it.
    """
    low, high = _reach(bars, threshold)
    pitch = 7 if len(bars) > 8 else 11
    groups = list(dict.fromkeys(bar.group for bar in bars))
    rows, y = [], 1 + pitch / 2
    for group in groups:
        own = [bar for bar in bars if bar.group == group]
        middle = _point(y + pitch * (len(own) - 1) / 2 + 3.5)
        rows.append(f'<text x="0" y="{middle}">{escape(notation.words(group))}</text>')
        for bar in own:
            rows.append(_row(bar, _point(y), low, high))
            y += pitch
        y += 4
    bottom = _point(y - pitch / 2)
    at = _place(threshold, low, high)
    start, end = (_place(min(max(value, low), high), low, high) for value in claimed)
    side = f'<rect class="side" x="{start}" y="0" width="{_point(end - start)}" '
    ground = [f'{side}height="{bottom}"/>', f'<path class="threshold" d="M{at} 0V{bottom}"/>']
    parts = [*ground, *rows, *_axis(low, high, bottom)]
    box = f"0 0 {_WIDTH} {_point(bottom + _TEXT + 4)}"
    return f'<svg class="forest" viewBox="{box}" aria-hidden="true">{"".join(parts)}</svg>'


def _row(bar: Bar, y: float, low: float, high: float) -> str:
    """The interval of a test, with what could be attained and what the paper has, and its mark."""
    known = all(map(math.isfinite, (bar.low, bar.high)))
    ends = [_place(value, low, high) for value in (bar.low, bar.high)] if known else []
    parts = [_as(bar.kind, f'<path d="M{ends[0]} {y}H{ends[1]}"/>')] if known else []
    for kind, value in (("most", bar.most), ("paper", bar.paper), (bar.kind, bar.estimate)):
        if math.isfinite(value):
            parts.append(_as(kind, _MARKS[kind].format(x=_place(value, low, high), y=y)))
    return "".join(parts)


def _as(kind: str, shape: str) -> str:
    """A shape in the colours of its kind; a verdict has those of its chip in the text."""
    kind = kind if kind in ("most", "paper") else f"chip {kind}"
    return f'<g class="{kind}">{shape}</g>'


def _reach(bars: Iterable[Bar], threshold: float) -> tuple[float, float]:
    """The ends of the horizontal axis, a little beyond all that is drawn."""
    drawn = [(bar.estimate, bar.low, bar.high, bar.most, bar.paper) for bar in bars]
    known = [value for five in drawn for value in five if math.isfinite(value)] + [threshold]
    margin = 0.06 * (max(known) - min(known)) or 0.5
    return min(known) - margin, max(known) + margin


def _axis(low: float, high: float, y: float) -> list[str]:
    """A line with round numbers below it."""
    parts = [f'<path class="axis" d="M{_LEFT} {y}H{_RIGHT}"/>']
    for tick in _round_numbers(low, high):
        x, label = _place(tick, low, high), f"{tick:.6g}".replace("-", "\N{MINUS SIGN}")
        parts.append(f'<path class="axis" d="M{x} {y}v3"/>')
        parts.append(f'<text x="{x}" y="{_point(y + _TEXT + 2)}" class="tick">{label}</text>')
    return parts


def _round_numbers(low: float, high: float) -> list[float]:
    """Two to five round numbers between two others.

    Example:
        >>> _round_numbers(-2.3, 3.9), _round_numbers(0.55, 1.05)
        ([-2.0, 0.0, 2.0], [0.6, 0.8, 1.0])
        >>> _round_numbers(-0.18, 0.18)
        [-0.1, 0.0, 0.1]
    """
    power = 10 ** math.floor(math.log10((high - low) / 4))
    wide = next(m for m in (1, 2, 5, 10) if m * power >= (high - low) / 4)
    for step in (wide * power, wide * power / 2):
        whole = range(math.ceil(low / step), math.floor(high / step) + 1)
        if len(whole) > 1:
            break
    return [float(f"{number * step:.6g}") for number in whole]


def _place(value: float, low: float, high: float) -> float:
    """Where a value lies from left to right."""
    return _point(_LEFT + (_RIGHT - _LEFT) * (value - low) / (high - low))


def _point(value: float) -> float:
    """A coordinate to a tenth, so that the drawing is the same on every machine."""
    return round(value, 1)
