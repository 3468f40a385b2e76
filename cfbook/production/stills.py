"""Still pictures of the interactive pages: what paper and a browser without JavaScript show."""

import base64
import io
import zlib
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cfcore.metrics import cross_entropy_from_logits
from cfcore.metrics.risk import patient_tail_losses
from cfcore.predictions import Predictions

_INCHES, _DPI = (12, 8), 100
_COLOURS = {"woman": "#823d9b", "man": "#007a7a"}
_LADDER = ("R_orig", "R_CM", "R_IE", "R_CVaR_0.50", "R_CVaR_0.25", "R_CVaR_0.10", "R_WC")
_ALPHA = 0.2


def _png(drawn: Figure) -> bytes:
    """A picture as a file, the same bytes every time."""
    file = io.BytesIO()
    drawn.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _unpacked(pictures: str, size: int) -> np.ndarray:
    """The series of images behind ``pictures``."""
    steps = np.frombuffer(zlib.decompress(base64.b64decode(pictures)), dtype=np.uint8)
    return steps.reshape(-1, size, size).cumsum(axis=0, dtype=np.uint8)


def explorer_still(data: Mapping[str, object]) -> bytes:
    """The first patient of the explorer at every age and the response of each predictor, a PNG."""
    one, ages = data["patients"][0], data["ages"]
    images = _unpacked(one["pictures"], data["size"])
    first = int(one["sex"]) * len(ages)
    drawn = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    above, below = drawn.subfigures(2, 1, height_ratios=(1, 1.4))
    grid = above.subplots(2, len(ages))
    for row, (name, start) in enumerate({"truth": 1, "learned": 1 + 2 * len(ages)}.items()):
        for ax, age, image in zip(grid[row], ages, images[start + first :], strict=False):
            ax.imshow(image, cmap="gray", vmin=0, vmax=255)
            ax.set(xticks=[], yticks=[])
            ax.set_title(f"{age:.0f} years" if row == 0 else "")
        grid[row, 0].set_ylabel(name)
    for g, ax in enumerate(below.subplots(2, 3, sharex=True, sharey=True).flat):
        _responses(ax, one, g, ages)
        ax.set_title(data["predictors"][g])
    below.supxlabel("age in the world, years")
    below.supylabel("probability of effusion")
    return _png(drawn)


def _responses(ax: Axes, one: Mapping[str, object], g: int, ages: list[float]) -> None:
    """What one predictor says of one patient at every age, for both sexes, true and learned."""
    for name, style in {"truth": "-", "learned": "--"}.items():
        for sex, word in enumerate(("man", "woman")):
            scores = one[name][g][sex * len(ages) : (sex + 1) * len(ages)]
            ax.plot(ages, scores, style, color=_COLOURS[word], label=f"as a {word}, {name}")
    ax.plot(one["age"], one["observed"][g], "x", color="black", label="observed")
    ax.set(ylim=(-0.03, 1.03))
    if g == 0:
        ax.legend(fontsize="small", frameon=False)


def playground_still(given: Mapping[str, Predictions]) -> bytes:
    """The ladder of risks of every predictor of the playground, and the tail of one patient."""
    drawn = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    left, right = drawn.subplots(1, 2)
    for name, one in given.items():
        metrics = one.evaluate()
        left.plot([metrics[rung] for rung in _LADDER], "o-", label=name)
    left.set_xticks(range(len(_LADDER)), _LADDER, rotation=45)
    left.set(ylabel="risk, nats", ylim=(0, None))
    left.legend(frameon=False)
    _tail(right, given["sex bias 0.8"], "sex bias 0.8")
    return _png(drawn)


def _tail(ax: Axes, one: Predictions, name: str) -> None:
    """The worlds of the patient with the largest tail loss, the worst first."""
    losses = cross_entropy_from_logits(one.logit_cf, one.y[:, None])
    worst = patient_tail_losses(losses, one.q, (_ALPHA,))[:, 0].argmax()
    loss, order = losses[worst].sort(descending=True)
    width, loss = one.q[order].numpy(), loss.numpy()
    start = width.cumsum() - width
    inside = np.clip(_ALPHA - start, 0, width)
    ax.bar(start, loss, width, align="edge", color="0.88", edgecolor="0.5")
    ax.bar(start, loss, inside, align="edge", color="#b22252")
    ax.axvline(_ALPHA, color="black", ls="--", lw=1)
    ax.set(xlabel="mass of worlds, the worst first", ylabel="loss, nats")
    ax.set_title(f"one patient, {name}: the tail of mass {_ALPHA:g}")
