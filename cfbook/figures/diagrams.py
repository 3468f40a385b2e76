"""Drawn diagrams: how the method works, and what the generator is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cfcore.graph import CausalGraph

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

_OBSERVED, _LATENT, _CAUSAL, _DECODED = "#cfe8d5", "#e3e3e3", "#cfe3f1", "#fbe3c0"
_INK, _TITLE, _MARK, _AVERAGE = "0.25", 10, "#0173b2", "#d55e00"
_STEPS = {
    "1 Abduct": "find the noise",
    "2 Act": "set sex and age",
    "3 Predict": "redraw the image",
    "4 Classify": "score it",
    "5 Average": "over all {} worlds",
}
_PLACES, _SCALE = (2.2, 5.1, 7.3, 9.1, 11.6), (9.8, 13.0)

_Point = tuple[float, float]


@dataclass(frozen=True)
class _Board:
    """Axes of some width and height, without axes, for boxes, arrows and images."""

    ax: "Axes"
    size: _Point

    def __post_init__(self) -> None:
        self.ax.set(xlim=(0, self.size[0]), ylim=(0, self.size[1]), aspect="equal")
        self.ax.axis("off")

    def box(self, at: _Point, words: str, fill: str = "white", *, round_: bool = True) -> "Text":
        """Words in a box, round for variables and square for computations."""
        shape = "round,pad=0.45" if round_ else "square,pad=0.45"
        edge = {"boxstyle": shape, "facecolor": fill, "edgecolor": _INK, "lw": 0.7}
        return self.ax.text(*at, words, ha="center", va="center", bbox=edge, zorder=3)

    def note(
        self, at: _Point, words: str, *, ha: str = "center", va: str = "center", size: int = 8
    ) -> None:
        """Small words without a box; titles, of size 10, are bold."""
        weight = "bold" if size == _TITLE else "normal"
        style = {"ha": ha, "va": va, "fontsize": size, "weight": weight, "color": _INK}
        self.ax.text(*at, words, **style)

    def arrow(self, start: _Point, end: _Point, *, bend: float = 0.0, dashed: bool = False) -> None:
        """An arrow; dashed where something is held rather than computed."""
        style = {"connectionstyle": f"arc3,rad={bend}", "linestyle": "--" if dashed else "-"}
        self.ax.annotate("", end, start, arrowprops=_arrow(0) | style, zorder=2)

    def image(self, image: np.ndarray, at: _Point, side: float) -> None:
        """A grey image with its middle at a point."""
        x, y = at
        extent = (x - side / 2, x + side / 2, y - side / 2, y + side / 2)
        style = {"cmap": "gray", "vmin": 0, "vmax": 1, "interpolation": "none"}
        self.ax.imshow(image, extent=extent, zorder=2, **style)


def causal_graph(ax: "Axes", drawn: CausalGraph, places: Mapping[str, _Point]) -> None:
    """A causal graph, its variables at some places: roots blue, what follows from them orange."""
    width, height = (max(at[i] for at in places.values()) + 1 for i in (0, 1))
    board = _Board(ax, (width, height))
    boxes = {
        name: board.box(at, name.replace("_", " "), _CAUSAL if name in drawn.roots else _DECODED)
        for name, at in places.items()
    }
    for name, cause in ((name, cause) for name, causes in drawn.edges.items() for cause in causes):
        ends = {"patchA": boxes[cause].get_bbox_patch(), "patchB": boxes[name].get_bbox_patch()}
        ax.annotate("", places[name], places[cause], arrowprops=_arrow(1) | ends, zorder=4)


def _arrow(shrink: float) -> dict[str, object]:
    """How arrows look, which end so far from what they point at."""
    return {"arrowstyle": "-|>", "color": _INK, "lw": 0.9, "shrinkA": shrink, "shrinkB": shrink}


def overview(
    ax: "Axes",
    observed: tuple[np.ndarray, str, float],
    worlds: tuple[np.ndarray, Sequence[str], np.ndarray],
    drawn: Sequence[int],
) -> None:
    """The method: abduct, act, predict, classify, average.

    Args:
        observed: The image of a patient, shape (H, W), who that is, and the classifier's score.
        worlds: The same of their counterfactuals in K worlds: shapes (K, H, W), (K,) and (K,).
        drawn: The worlds whose images are shown.
    """
    image, who, score = observed
    images, labels, scores = worlds
    board, middle = _Board(ax, (13.2, 9.0)), 5.0
    for x, (title, words) in zip(_PLACES, _STEPS.items(), strict=True):
        board.note((x, 8.75), title, size=_TITLE)
        board.note((x, 8.25), words.format(len(images)))
    board.image(image, (1.1, middle), 2.1)
    board.note((1.1, middle + 1.6), f"observed $x_i$:\n{who}", size=9)
    board.arrow((2.2, middle), (2.65, middle))
    board.box((3.05, middle), "$u_i$", _LATENT)
    for y, k in zip(np.linspace(7.25, 2.75, len(drawn)), drawn, strict=True):
        board.arrow((3.45, middle), (4.05, y))
        board.box((5.1, y), labels[k], _CAUSAL)
        board.arrow((6.1, y), (6.55, y))
        board.image(images[k], (7.3, y), 1.4)
        board.arrow((8.05, y), (8.5, y))
        _classified(board, y, scores[k])
    board.ax.plot([1.1, 1.1], [middle - 1.1, 0.75], color=_INK, lw=0.9)
    board.arrow((1.1, 0.75), (8.5, 0.75))
    board.note((1.3, 1.0), "what one usually sees: the observed image alone", ha="left")
    _classified(board, 0.75, score, fill="white")
    _averaged(board, scores)


def _classified(board: _Board, y: float, score: float, fill: str = _MARK) -> None:
    """The classifier and its score, at one height of the overview."""
    board.box((8.9, y), r"$g_\theta$", _DECODED, round_=False)
    board.ax.plot(_SCALE, [y, y], color="0.85", lw=0.8, zorder=1)
    x = np.interp(score, (0, 1), _SCALE)
    board.ax.plot(x, y, "o", color=_MARK, markerfacecolor=fill, ms=6, zorder=3)
    board.ax.plot(x, y + 0.35, "s", color="white", ms=12, zorder=2.5)  # hides the average
    board.note((x, y + 0.35), f"{score:.2f}", size=9)


def _averaged(board: _Board, scores: np.ndarray) -> None:
    """The scores of all worlds on one scale, and their average."""
    x, average = np.interp(scores, (0, 1), _SCALE), np.interp(scores.mean(), (0, 1), _SCALE)
    board.ax.plot(x, np.full(len(x), 1.7), "|", color=_MARK, ms=8, zorder=3)
    board.note((9.5, 1.7), f"all {len(x)} worlds", ha="right")
    board.ax.plot([average, average], [1.4, 7.7], color=_AVERAGE, lw=1.6, zorder=2)
    board.box((average, 5.2), rf"$\bar p_i = {scores.mean():.2f}$", _DECODED)
    for at, words in zip((_SCALE[0], sum(_SCALE) / 2, _SCALE[1]), ("0", "score", "1"), strict=True):
        board.note((at, 0.2), words)


def image_model(axes: Sequence["Axes"], observed: np.ndarray, counterfactual: np.ndarray) -> None:
    """The generator: how it is trained (left), and how it makes a counterfactual (right).

    Axes are a pair; an image and the counterfactual that the generator draws of it are (H, W).
    """
    training, action = (_Board(ax, (9.0, 6.6)) for ax in axes)
    training.note((4.5, 6.4), "training", size=_TITLE)
    _half(training, observed, r"\mathbf{pa}", _OBSERVED)
    training.arrow((1.95, 3.3), (3.4, 3.3))
    training.note((2.7, 3.0), r"$q(z \mid x, \mathbf{pa})$", va="top")
    training.arrow((4.0, 4.85), (4.15, 4.0))
    training.arrow((1.6, 2.35), (3.2, 0.95))
    training.arrow((6.6, 2.65), (5.0, 1.05))
    training.box((4.1, 0.7), r"$r = x - \mu$", _LATENT)
    action.note((4.5, 6.4), "counterfactual", size=_TITLE)
    _half(action, observed, r"\widetilde{\mathbf{pa}}", _CAUSAL)
    action.note((4.6, 5.3), r"after do$(\tilde a)$", ha="left")
    action.arrow((1.95, 3.3), (3.4, 3.3), dashed=True)
    action.note((2.7, 3.0), "abducted\nonce, held", va="top")
    action.box((4.1, 0.9), "$r$", _LATENT)
    action.arrow((1.6, 2.35), (3.65, 1.05), dashed=True)
    action.image(counterfactual, (7.5, 0.9), 1.7)
    action.arrow((4.55, 0.9), (6.55, 0.9))
    action.arrow((7.2, 2.65), (7.4, 1.85))
    action.note((5.5, 1.25), r"$\tilde{x} = \tilde{\mu} + r$")


def _half(board: _Board, observed: np.ndarray, parents: str, fill: str) -> None:
    """What training and counterfactual share: mechanisms, latents from coarse to fine, decoder."""
    board.image(observed, (1.0, 3.3), 1.8)
    board.box((1.0, 5.3), "$u_j$", _LATENT)
    board.arrow((1.5, 5.3), (3.3, 5.3))
    board.note((2.4, 5.62), "$f_j$")
    board.box((4.0, 5.3), f"${parents}$", fill)
    for shift, words in zip((0.0, 0.35, 0.7), ("", "", "$z_{1:L}$"), strict=True):
        board.box((3.9 + shift, 3.5 - shift / 2), words or "       ", _LATENT)
    board.arrow((5.2, 3.2), (6.2, 3.2))
    board.arrow((4.6, 5.1), (6.6, 3.7))
    board.box((7.0, 3.2), r"$\mu(z, " + parents + ")$", _DECODED, round_=False)
    board.note((6.9, 3.95), "decoder", ha="left")
