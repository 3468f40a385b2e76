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
_INK, _TITLE = "0.25", 10

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
        self.ax.imshow(image, vmin=0, vmax=1, extent=extent, zorder=2, cmap="gray")


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
    observed: np.ndarray,
    worlds: Sequence[np.ndarray],
    labels: Sequence[str],
    scores: Sequence[float],
    observed_score: float,
    average: float,
    count: int,
) -> None:
    """The method: abduct, act, predict, classify, average, and compare.

    Args:
        observed: The observed image, shape (H, W).
        worlds: Some of its counterfactuals, each of shape (H, W).
        labels: What was done in each of them.
        scores: What the classifier says of each, and ``observed_score`` of the observed image.
        average: The marginalised score, over ``count`` worlds.
    """
    board = _Board(ax, (16.4, 6.6))
    board.image(observed, (1.0, 3.6), 1.7)
    board.note((1.0, 4.72), "observed $x_i$")
    board.arrow((1.95, 3.6), (2.95, 3.6))
    board.note((2.45, 3.95), "abduct")
    board.box((3.4, 3.6), "$u_i$", _LATENT)
    board.box((4.6, 6.1), r"do$(\tilde a_k)$", _CAUSAL)
    board.note((3.3, 6.1), "act")
    board.arrow((4.6, 5.6), (4.6, 4.45))
    board.note((4.6, 2.2), "predict")
    heights = np.linspace(5.8, 1.75, len(worlds))
    for y, image, words, score in zip(heights, worlds, labels, scores, strict=True):
        board.arrow((3.85, 3.6), (6.2, y))
        board.image(image, (6.9, y), 1.2)
        board.note((7.6, y), words, ha="left")
        board.arrow((9.2, y), (9.75, y))
        _classified(board, y, score)
        board.arrow((12.1, y), (12.85, 3.75 + 0.15 * (y - 3.75)))
    board.box((13.7, 3.75), rf"$\bar p_i = {average:.2f}$", _DECODED)
    board.note((14.0, 4.6), f"average over $q$,\nall {count} worlds")
    board.arrow((1.0, 2.7), (9.75, 0.45), bend=0.12)
    _classified(board, 0.45, observed_score)
    board.box((14.6, 0.9), "metrics: risk, calibration,\nstability, ranking", round_=False)
    board.arrow((12.1, 0.45), (12.6, 0.6))
    board.arrow((13.7, 3.2), (14.2, 1.65))
    board.arrow((12.05, 1.5), (12.6, 1.2))


def _classified(board: _Board, y: float, score: float) -> None:
    """The classifier and its score, at one height of the overview."""
    board.box((10.25, y), r"$g_\theta$", _DECODED, round_=False)
    board.arrow((10.75, y), (11.25, y))
    board.note((11.68, y), f"{score:.2f}", size=9)


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
