"""Pictures of the theory: every function draws on the axes it is given, and computes nothing."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from cfbook.figures.ladders import bars
from cfbook.theory.estimators import tolerable_generator_noise
from cfbook.theory.simulation import break_even_noise, break_even_size

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

TITLES = {"correct model": "(a) correct model", "noise on top": "(b) noise on top"}
NOISE = r"noise over variance, $\sigma^2_\mathrm{gen} / \sigma^2$"
MARKERS = "os^Dv<>"
GAIN, MORE, LOSS, NEVER = "C0", "C2", "C3", "0.6"


def region(ax: "Axes", regime: str, *, top: float = 3.0) -> None:
    """Where the counterfactual estimator gains, and where the paper promises that it does.

    Args:
        ax: Where to draw.
        regime: ``"correct model"`` or ``"noise on top"``.
        top: The largest noise, as a multiple of the variance.
    """
    share = torch.linspace(0.01, 1, 300, dtype=torch.float64)
    promised = tolerable_generator_noise(1.0, share, 1)
    sharp = break_even_noise(1.0, share, 1)
    on_top = regime == "noise on top"
    limit = sharp.clamp(max=top) if on_top else torch.ones_like(share)
    beyond, colour = ("loses", LOSS) if on_top else ("cannot occur", NEVER)
    ax.fill_between(share, 0, promised, color=GAIN, alpha=0.45, lw=0, label="gains, as promised")
    ax.fill_between(
        share, promised, limit, color=MORE, alpha=0.45, lw=0, label="gains all the same"
    )
    ax.fill_between(share, limit, top, color=colour, alpha=0.3, lw=0, label=beyond)
    ax.plot(share, promised, color="black", ls="--", lw=1)
    if on_top:
        ax.plot(share, sharp, color="black", lw=1)
    ax.set(title=TITLES[regime], xlabel="share of the subgroup, $n_z / n$", xlim=(0, 1))
    ax.set(ylim=(0, top))
    ax.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none")


def variances(ax: "Axes", frame: "pd.DataFrame", regime: str) -> None:
    """Simulated variances against the noise, with intervals, on the lines of the formulas.

    Args:
        ax: Where to draw.
        frame: What :func:`cfbook.theory.simulation.simulate` returns, variances times
            :math:`n / \\sigma^2`.
        regime: ``"correct model"`` or ``"noise on top"``.
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
            ax.plot(cell.noise + shift, cell.variance, MARKERS[j], color=colour, ms=3.5)
        ax.plot([], [], MARKERS[j], color="0.4", label=f"$n$ = {n}")
    ticks = [1, 2, 5, 10]
    ax.set(yscale="log", yticks=ticks, yticklabels=ticks, title=TITLES[regime], xlabel=NOISE)
    ax.minorticks_off()


def errors(ax: "Axes", frame: "pd.DataFrame", *, bias: float, variance: float) -> None:
    """Mean squared errors against the size of the test set, with the sizes that break even.

    Args:
        ax: Where to draw.
        frame: What :func:`cfbook.theory.simulation.biased_errors` returns.
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
        ax.plot(
            n, variance / (share * n), color=f"C{k}", label=f"observational, $n_z/n$ = {share:g}"
        )
        bars(ax, part.n, part, f"C{k}")
        ax.plot(part.n, part.error, ".", color=f"C{k}")
        even = break_even_size(variance, share, bias).item()
        if bias:
            ax.plot(even, variance / (share * even), "o", mfc="none", mec=f"C{k}", ms=11, mew=1.5)
    ax.set(xscale="log", yscale="log", ylabel="mean squared error")
    ax.set_xlabel("patients in the test set, $n$")
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1))


def biases(ax: "Axes", frame: "pd.DataFrame") -> None:
    """Biases of subgroup means by world and generator, over bars that reach to the limit.

    Args:
        ax: Where to draw.
        frame: Columns ``world, generator`` and those of :func:`cfbook.theory.images.judge`.
    """
    place = {world: -k for k, world in enumerate(frame.world.unique())}
    limit = frame.groupby("world", sort=False).limit.first()
    y = [place[world] for world in limit.index]
    ax.barh(y, 2 * limit, left=-limit, height=0.7, color="0.88", label="break-even")
    for k, (generator, part) in enumerate(frame.groupby("generator", sort=False)):
        reach = [part.bias - part.low, part.high - part.bias]
        y = part.world.map(place) + 0.15 - 0.3 * k
        ax.errorbar(part.bias, y, xerr=reach, fmt=MARKERS[k], color=f"C{k}", label=generator)
    ax.axvline(0, color="0.3", lw=0.8)
    ax.set_yticks(list(place.values()), list(place))
    ax.set_xlabel("bias of the mean score, a probability")


def curves(ax: "Axes", frame: "pd.DataFrame") -> None:
    """Mean scores by age, with intervals, one line for each way to get them.

    Args:
        ax: Where to draw.
        frame: Columns ``curve, age, mean, low, high``; points without a line for ``observed``.
    """
    looks = ["o", "^-", "s--", "D:"]
    colours = ["black", "C2", "C0", "C1"]
    for k, (name, part) in enumerate(frame.groupby("curve", sort=False)):
        x = part.age + 0.7 * (k - 1.5)
        bars(ax, x, part, colours[k])
        ax.plot(x, part["mean"], looks[k], color=colours[k], label=name)
    ax.set_xlabel("age in years")
