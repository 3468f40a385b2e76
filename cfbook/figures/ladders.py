"""Pictures of studies: every function draws on the axes it is given."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cfbook import notation
from cfbook.study.claims import STEPS
from cfbook.study.rules import rule
from cfbook.study.statistics import Study
from cfcore.extras import needs
from cfcore.intervals import interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes

COLOURS = {"basic": "0.35", "logit": "#0173b2", "sex": "#de8f05", "age": "#029e73"}
MARKERS = {"basic": "o", "logit": "s", "sex": "D", "age": "^"}
FAMILIES = {"basic": "unbiased", "logit": "offset", "sex": "sex bias", "age": "age bias"}
_STYLE = Path(__file__).with_name("book.mplstyle")


def style() -> None:
    """Draw from here on as the whole book does: one style file, and lines that stay sharp (SVG).

    A notebook started with a format of its own (``InlineBackend.figure_formats``) keeps it.
    """
    needs("matplotlib")
    import matplotlib.pyplot as plt
    from IPython import get_ipython
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    plt.style.use(_STYLE)
    shell = get_ipython()
    if shell and "figure_formats" not in shell.config.InlineBackend:
        set_matplotlib_formats("svg", metadata={"Date": None, "Creator": None})


def _look(family: str) -> dict[str, str]:
    """How points of a family look."""
    return {"color": COLOURS[family], "marker": MARKERS[family]}


def ladder(
    ax: "Axes", summary: "pd.DataFrame", metric: str, *, label: str = "", linestyle: str = "-"
) -> None:
    """A metric along the three chains of rising bias, with intervals.

    Args:
        summary: What :meth:`cfbook.study.statistics.Study.summary` returns.
        metric: Which metric.
        label: What to write on the vertical axis; by default the symbol of the metric.
        linestyle: How to draw the lines, if there are several metrics.
    """
    rows = summary[summary.metric == metric].set_index(["family", "strength"])
    start, ticks = 0, []
    for family, strengths in STEPS.items():
        if (family, strengths[0]) not in rows.index:
            continue
        cells = rows.loc[[("basic", 0.0), *((family, s) for s in strengths)]]
        x = start + np.arange(len(cells))
        bars(ax, x, cells, COLOURS[family])
        ax.plot(x, cells["mean"], ls=linestyle, label=FAMILIES[family], **_look(family))
        ticks += zip(x, [FAMILIES["basic"], *(f"{s:g}" for s in strengths)], strict=True)
        start = x[-1] + 2
    ax.set_xticks(*zip(*ticks, strict=True), rotation=90)
    ax.set(xlabel="offset, or strength of the bias", ylabel=label or notation.tex(metric))
    ax.grid(axis="x", visible=False)


def bars(ax: "Axes", x: "Sequence[float]", cells: "pd.DataFrame", colour: str) -> None:
    """Intervals as they are, from ``low`` to ``high``: a mean may lie outside its own.

    Dotted are those that :data:`cfcore.intervals.NOTE` is about, by a column ``doubtful``.
    """
    middle, half = (cells["low"] + cells["high"]) / 2, (cells["high"] - cells["low"]) / 2
    *_, (lines,) = ax.errorbar(x, middle, half, fmt="none", color=colour, lw=1.1)
    if "doubtful" in cells:
        lines.set_linestyle([":" if doubtful else "-" for doubtful in cells["doubtful"]])


def scatter(ax: "Axes", study: Study, x: str, y: str) -> None:
    """Two statistics, x and y, of every trained predictor and training, one point for each.

    Thin lines are 95 % intervals over patients, if the study has replicates.
    """
    for family in ("basic", "sex", "age"):
        strengths = [s for name, s in sorted(study.kinds) if name == family]
        for i, strength in enumerate(strengths):
            both = [study.column(name, family, strength) for name in (x, y)]
            for across, up in zip(*both, strict=True):
                if len(across) > 1:
                    style = {"color": COLOURS[family], "lw": 0.5, "alpha": 0.45, "zorder": 1}
                    ax.plot(interval(across, rule=rule(x)), [up[0]] * 2, **style)
                    ax.plot([across[0]] * 2, interval(up, rule=rule(y)), **style)
            look = _look(family) | {"alpha": 0.9, "edgecolor": "white", "lw": 0.5, "zorder": 2}
            look |= {"label": FAMILIES[family]} if i == len(strengths) - 1 else {}
            ax.scatter(both[0][:, 0], both[1][:, 0], s=22 + 16 * i, **look)
    ax.set(xlabel=notation.tex(x), ylabel=notation.tex(y))


def calibration(ax: "Axes", summary: "pd.DataFrame") -> None:
    """Original and marginalised calibration error of every predictor, with intervals.

    The colour is that of the family; the original error is an open mark, the marginalised a full
    one. The summary is that of a study.
    """
    rows = summary.set_index(["metric", "family", "strength"])
    order = [("basic", 0.0), *((family, s) for family in STEPS for s in STEPS[family])]
    order = [kind for kind in order if ("ECE_orig", *kind) in rows.index]
    for x, (family, strength) in enumerate(order):
        for shift, metric, fill in ((-0.14, "ECE_orig", "white"), (0.14, "ECE_marg", None)):
            cell, look = rows.loc[[(metric, family, strength)]], _look(family)
            bars(ax, [x + shift], cell, look["color"])
            ax.plot(x + shift, cell["mean"], markerfacecolor=fill or look["color"], **look)
    for fill, name in (("white", "original"), ("0.35", "marginalised")):
        ax.plot([], [], "o", color="0.35", markerfacecolor=fill, label=name)
    names = [FAMILIES[f] + f" {s:g}" * (f != "basic") for f, s in order]
    ax.set_xticks(np.arange(len(order)), names, rotation=45, ha="right")
    ax.set(ylabel="expected calibration error", ylim=(0, None))
    ax.grid(axis="x", visible=False)
    ax.legend()
