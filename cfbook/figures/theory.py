"""Pictures of the theory: every function draws on the axes it is given, lines by the formulas."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from cfbook.figures.ladders import bars
from cfbook.theory.estimators import tolerable_generator_noise
from cfbook.theory.simulation import break_even_noise

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_TITLES = {"correct model": "(a) correct model", "noise on top": "(b) noise on top"}
NOISE_AXIS = r"noise over variance, $\sigma^2_\mathrm{gen} / \sigma^2$"
_SIZES = "os^Dv<>"
_TOP = 3.0  # the largest noise, as a multiple of the variance


def region(ax: "Axes", regime: str) -> None:
    """Where the counterfactual estimator gains, and where the paper promises that it does."""
    share = torch.linspace(0.01, 1, 300, dtype=torch.float64)
    promised, sharp = tolerable_generator_noise(1.0, share, 1), break_even_noise(1.0, share, 1)
    on_top = regime == "noise on top"
    limit = sharp.clamp(max=_TOP) if on_top else torch.ones_like(share)
    beyond = ("C3", 0.3, "loses") if on_top else ("0.6", 0.3, "cannot occur")
    bands = [(0, promised, "C0", 0.45, "gains, as promised")]
    bands += [(promised, limit, "C2", 0.45, "gains all the same"), (limit, _TOP, *beyond)]
    for low, high, colour, alpha, words in bands:
        ax.fill_between(share, low, high, color=colour, alpha=alpha, lw=0, label=words)
    ax.plot(share, promised, color="black", ls="--", lw=1)
    if on_top:
        ax.plot(share, sharp, color="black", lw=1)
    ax.set(title=_TITLES[regime], xlim=(0, 1), ylim=(0, _TOP))
    ax.set_xlabel("share of the subgroup, $n_z / n$")
    ax.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none")


def variances(ax: "Axes", frame: "pd.DataFrame", regime: str) -> None:
    """Simulated variances against the noise, with intervals, on the lines of the formulas.

    Args:
        frame: What :func:`cfbook.theory.simulation.simulate` returns, variances times
            :math:`n / \\sigma^2`.
        regime: One of :data:`cfbook.theory.simulation.REGIMES`.
    """
    part = frame[frame.regime == regime]
    most = part.noise.max()
    line = np.linspace(0, most, 50)
    few, many = (part[part.estimator == name] for name in ("observational", "counterfactual"))
    levels = sorted(few.formula.round(3).unique(), reverse=True)
    for k, level in enumerate(levels):
        ax.axhline(level, color=f"C{k}", lw=1, label=f"observational, $n_z/n$ = {1 / level:.2g}")
    on_top = regime == "noise on top"
    ax.plot(line, 1 + line * on_top, color="black", lw=1, label="counterfactual")
    ax.plot(line, 1 + line, color="black", lw=1, ls="--", label="printed bound")
    rarest = many.n_z / many.n == (many.n_z / many.n).min()
    for j, n in enumerate(sorted(part.n.unique())):
        shift = (j - 1) * most / 50
        cells = [(few[(few.n == n) & (few.formula.round(3) == level)], f"C{k}")
                 for k, level in enumerate(levels)]  # fmt: skip
        for cell, colour in [*cells, (many[rarest & (many.n == n)], "black")]:
            bars(ax, cell.noise + shift, cell, colour)
            ax.plot(cell.noise + shift, cell.variance, _SIZES[j], color=colour, ms=3.5)
        ax.plot([], [], _SIZES[j], color="0.4", label=f"$n$ = {n}")
    ticks = [1, 2, 5, 10]
    ax.set(yscale="log", yticks=ticks, yticklabels=ticks, title=_TITLES[regime], xlabel=NOISE_AXIS)
    ax.minorticks_off()


def errors(
    ax: "Axes",
    frame: "pd.DataFrame",
    crossing: Mapping[float, float],
    *,
    bias: float,
    variance: float,
) -> None:
    """Mean squared errors against the size of the test set, with the sizes that break even.

    Args:
        frame: What :func:`cfbook.theory.simulation.biased_errors` returns.
        crossing: By share, the size that breaks even; infinite if none does.
        bias: The bias of the generator.
        variance: The variance of the score.
    """
    n = np.geomspace(frame.n.min() / 2, 2 * frame.n.max(), 100)
    many = frame[frame.estimator == "counterfactual"]
    ax.plot(n, variance / n + bias**2, color="black", label=f"counterfactual, bias {bias:g}")
    if bias:  # zero has no place on a logarithmic axis, and no size breaks even
        ax.axhline(bias**2, color="black", lw=0.8, ls=":", label="squared bias")
    bars(ax, many.n, many, "black")
    ax.plot(many.n, many.error, ".", color="black")
    for k, (share, part) in enumerate(frame[frame.estimator == "observational"].groupby("share")):
        line = {"color": f"C{k}", "label": f"observational, $n_z/n$ = {share:g}"}
        ax.plot(n, variance / (share * n), **line)
        bars(ax, part.n, part, f"C{k}")
        ax.plot(part.n, part.error, ".", color=f"C{k}")
        if np.isfinite(even := crossing[share]):
            ax.plot(even, variance / (share * even), "o", mfc="none", mec=f"C{k}", ms=11, mew=1.5)
    ax.set(xscale="log", yscale="log", ylabel="mean squared error")
    ax.set_xlabel("patients in the test set, $n$")
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1))


def biases(ax: "Axes", frame: "pd.DataFrame") -> None:
    """Biases of subgroup means by world and generator, over bars that reach to the limit.

    Args:
        frame: Columns ``world, generator`` and those of :func:`cfbook.theory.images.bias_verdict`.
    """
    place = {world: -k for k, world in enumerate(frame.world.unique())}
    limit = frame.groupby("world", sort=False).limit.first()
    y = [place[world] for world in limit.index]
    ax.barh(y, 2 * limit, left=-limit, height=0.7, color="0.88", label="break-even")
    for k, (generator, part) in enumerate(frame.groupby("generator", sort=False)):
        reach = [part.bias - part.low, part.high - part.bias]
        y = part.world.map(place) + 0.15 - 0.3 * k
        ax.errorbar(part.bias, y, xerr=reach, fmt=_SIZES[k], color=f"C{k}", label=generator)
    ax.axvline(0, color="0.3", lw=0.8)
    ax.set_yticks(list(place.values()), list(place))
    ax.set_xlabel("bias of the mean score, a probability")


def curves(ax: "Axes", frame: "pd.DataFrame") -> None:
    """Mean scores by age, with intervals, one line for each way to get them.

    Args:
        frame: Columns ``curve, age, mean, low, high``; points without a line for ``observed``.
    """
    looks = [("o", "black"), ("^-", "C2"), ("s--", "C0"), ("D:", "C1")]
    for k, (name, part) in enumerate(frame.groupby("curve", sort=False)):
        x, (look, colour) = part.age + 0.7 * (k - 1.5), looks[k]
        bars(ax, x, part, colour)
        ax.plot(x, part["mean"], look, color=colour, label=name)
    ax.set_xlabel("age in years")
