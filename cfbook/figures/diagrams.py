"""Drawn diagrams: how the method works, and what the generator is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cfcore.graph import CausalGraph

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

OBSERVED, LATENT, CAUSAL, DECODED = "#cfe8d5", "#e3e3e3", "#cfe3f1", "#fbe3c0"
INK = "0.25"

Point = tuple[float, float]


@dataclass(frozen=True)
class Sheet:
    """Axes without axes, on which boxes, arrows and images are placed.

    Args:
        ax: Where to draw.
        size: Its width and height, in units of its own.
    """

    ax: "Axes"
    size: Point

    def __post_init__(self) -> None:
        self.ax.set(xlim=(0, self.size[0]), ylim=(0, self.size[1]), aspect="equal")
        self.ax.axis("off")

    def box(self, at: Point, words: str, fill: str = "white", *, round_: bool = True) -> "Text":
        """Words in a box, round for variables and square for computations."""
        shape = "round,pad=0.45" if round_ else "square,pad=0.45"
        edge = {"boxstyle": shape, "facecolor": fill, "edgecolor": INK, "lw": 0.7}
        return self.ax.text(*at, words, ha="center", va="center", bbox=edge, zorder=3)

    def note(self, at: Point, words: str, **options: object) -> None:
        """Small words without a box."""
        style = {"ha": "center", "va": "center", "fontsize": 8, "color": INK}
        self.ax.text(*at, words, **(style | options))

    def arrow(self, start: Point, end: Point, *, bend: float = 0.0, dashed: bool = False) -> None:
        """An arrow; dashed where something is held rather than computed."""
        style = {"arrowstyle": "-|>", "color": INK, "lw": 0.9, "shrinkA": 0, "shrinkB": 0}
        style |= {"connectionstyle": f"arc3,rad={bend}", "linestyle": "--" if dashed else "-"}
        self.ax.annotate("", end, start, arrowprops=style, zorder=2)

    def image(self, image: np.ndarray, at: Point, side: float) -> None:
        """A grey image with its middle at a point."""
        x, y = at
        extent = (x - side / 2, x + side / 2, y - side / 2, y + side / 2)
        self.ax.imshow(image, vmin=0, vmax=1, extent=extent, zorder=2, cmap="gray")


def graph(ax: "Axes", drawn: CausalGraph, places: Mapping[str, Point]) -> None:
    """A causal graph: roots are blue, what follows from them orange.

    Args:
        ax: Where to draw.
        drawn: The graph.
        places: Where each variable stands.
    """
    width, height = (max(at[i] for at in places.values()) + 1 for i in (0, 1))
    sheet = Sheet(ax, (width, height))
    boxes = {
        name: sheet.box(at, name.replace("_", " "), CAUSAL if name in drawn.roots else DECODED)
        for name, at in places.items()
    }
    for name, causes in drawn.edges.items():
        for cause in causes:
            ends = {"patchA": boxes[cause].get_bbox_patch(), "shrinkA": 1}
            ends |= {"patchB": boxes[name].get_bbox_patch(), "shrinkB": 1}
            style = {"arrowstyle": "-|>", "color": INK, "lw": 0.9} | ends
            ax.annotate("", places[name], places[cause], arrowprops=style, zorder=4)


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
        ax: Where to draw.
        observed: The observed image, shape (H, W).
        worlds: Some of its counterfactuals, each of shape (H, W).
        labels: What was done in each of them.
        scores: What the classifier says of each.
        observed_score: What it says of the observed image.
        average: The marginalised score.
        count: How many worlds it is the average of.
    """
    sheet = Sheet(ax, (16.4, 6.6))
    sheet.image(observed, (1.0, 3.6), 1.7)
    sheet.note((1.0, 4.72), "observed $x_i$")
    sheet.arrow((1.95, 3.6), (2.95, 3.6))
    sheet.note((2.45, 3.95), "abduct")
    sheet.box((3.4, 3.6), "$u_i$", LATENT)
    sheet.box((4.6, 6.1), r"do$(\tilde a_k)$", CAUSAL)
    sheet.note((3.3, 6.1), "act")
    sheet.arrow((4.6, 5.6), (4.6, 4.45))
    sheet.note((4.6, 2.2), "predict")
    for y, image, words, score in zip(
        np.linspace(5.8, 1.75, len(worlds)), worlds, labels, scores, strict=True
    ):
        sheet.arrow((3.85, 3.6), (6.2, y))
        sheet.image(image, (6.9, y), 1.2)
        sheet.note((7.6, y), words, ha="left")
        sheet.arrow((9.2, y), (9.75, y))
        classified(sheet, y, score)
        sheet.arrow((12.1, y), (12.85, 3.75 + 0.15 * (y - 3.75)))
    sheet.box((13.7, 3.75), rf"$\bar p_i = {average:.2f}$", DECODED)
    sheet.note((14.0, 4.6), f"average over $q$,\nall {count} worlds")
    sheet.arrow((1.0, 2.7), (9.75, 0.45), bend=0.12)
    classified(sheet, 0.45, observed_score)
    sheet.box((14.6, 0.9), "metrics: risk, calibration,\nstability, ranking", round_=False)
    sheet.arrow((12.1, 0.45), (12.6, 0.6))
    sheet.arrow((13.7, 3.2), (14.2, 1.65))
    sheet.arrow((12.05, 1.5), (12.6, 1.2))


def classified(sheet: Sheet, y: float, score: float) -> None:
    """The classifier and its score, at one height of the overview."""
    sheet.box((10.25, y), r"$g_\theta$", DECODED, round_=False)
    sheet.arrow((10.75, y), (11.25, y))
    sheet.note((11.68, y), f"{score:.2f}", fontsize=9)


def generator(axes: Sequence["Axes"], observed: np.ndarray, counterfactual: np.ndarray) -> None:
    """The generator: how it is trained (left), and how it makes a counterfactual (right).

    Args:
        axes: Where to draw, a pair.
        observed: An observed image, shape (H, W).
        counterfactual: The counterfactual that the generator draws of it, shape (H, W).
    """
    training, action = (Sheet(ax, (9.0, 6.6)) for ax in axes)
    training.note((4.5, 6.4), "training", fontsize=10, weight="bold")
    half(training, observed, r"\mathbf{pa}", OBSERVED)
    training.arrow((1.95, 3.3), (3.4, 3.3))
    training.note((2.7, 3.0), r"$q(z \mid x, \mathbf{pa})$", va="top")
    training.arrow((4.0, 4.85), (4.15, 4.0))
    training.arrow((1.6, 2.35), (3.2, 0.95))
    training.arrow((6.6, 2.65), (5.0, 1.05))
    training.box((4.1, 0.7), r"$r = x - \mu$", LATENT)

    action.note((4.5, 6.4), "counterfactual", fontsize=10, weight="bold")
    half(action, observed, r"\widetilde{\mathbf{pa}}", CAUSAL)
    action.note((4.6, 5.3), r"after do$(\tilde a)$", ha="left")
    action.arrow((1.95, 3.3), (3.4, 3.3), dashed=True)
    action.note((2.7, 3.0), "abducted\nonce, held", va="top")
    action.box((4.1, 0.9), "$r$", LATENT)
    action.arrow((1.6, 2.35), (3.65, 1.05), dashed=True)
    action.image(counterfactual, (7.5, 0.9), 1.7)
    action.arrow((4.55, 0.9), (6.55, 0.9))
    action.arrow((7.2, 2.65), (7.4, 1.85))
    action.note((5.5, 1.25), r"$\tilde{x} = \tilde{\mu} + r$")


def half(sheet: Sheet, observed: np.ndarray, parents: str, fill: str) -> None:
    """What training and counterfactual share: mechanisms, latents from coarse to fine, decoder."""
    sheet.image(observed, (1.0, 3.3), 1.8)
    sheet.box((1.0, 5.3), "$u_j$", LATENT)
    sheet.arrow((1.5, 5.3), (3.3, 5.3))
    sheet.note((2.4, 5.62), "$f_j$")
    sheet.box((4.0, 5.3), f"${parents}$", fill)
    for shift, words in zip((0.0, 0.35, 0.7), ("", "", "$z_{1:L}$"), strict=True):
        sheet.box((3.9 + shift, 3.5 - shift / 2), words or "       ", LATENT)
    sheet.arrow((5.2, 3.2), (6.2, 3.2))
    sheet.arrow((4.6, 5.1), (6.6, 3.7))
    sheet.box((7.0, 3.2), r"$\mu(z, " + parents + ")$", DECODED, round_=False)
    sheet.note((6.9, 3.95), "decoder", ha="left")
