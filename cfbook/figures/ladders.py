"""Pictures of studies: every function draws on the axes it is given."""

from itertools import product
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from cfbook import notation
from cfbook.study.orders import STEPS
from cfbook.study.rules import rule
from cfbook.study.runs import Run
from cfbook.study.statistics import Study
from cfbook.study.tables import learned_of
from cfcore.extras import needs
from cfcore.intervals import interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

COLOURS = {"basic": "0.35", "logit": "#0173b2", "sex": "#de8f05", "age": "#029e73"}
MARKERS = {"basic": "o", "logit": "s", "sex": "D", "age": "^"}
FAMILIES = {"basic": "unbiased", "logit": "offset", "sex": "sex bias", "age": "age bias"}
_PLACES = {"logit": 0, "sex": 5, "age": 10}  # where chains begin
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
        set_matplotlib_formats("svg", metadata={"Date": None, "Creator": "Matplotlib"})


def _look(family: str) -> dict[str, str]:
    """How points of a family look."""
    return {"color": COLOURS[family], "marker": MARKERS[family]}


def ladder(
    ax: "Axes",
    summary: pd.DataFrame,
    metric: str,
    *,
    label: str = "",
    linestyle: str = "-",
    hollow: bool = False,
) -> None:
    """A metric along the three chains of rising bias, with intervals.

    Args:
        summary: What :meth:`cfbook.study.statistics.Study.summary` returns.
        metric: Which metric.
        label: What to write on the vertical axis; by default the symbol of the metric.
        linestyle: How to draw the lines, if there are several metrics.
        hollow: Whether marks are open, and beside where full ones would be.
    """
    rows = summary[summary.metric == metric].set_index(["family", "strength"])
    for family, strengths in STEPS.items():
        if (family, strengths[0]) in rows.index:
            cells = rows.loc[[("basic", 0.0), *((family, s) for s in strengths)]]
            x = np.arange(_PLACES[family], _PLACES[family] + len(cells)) + 0.25 * hollow
            look = _look(family) | ({"markerfacecolor": "white"} if hollow else {})
            bars(ax, x, cells, COLOURS[family])
            ax.plot(x, cells["mean"], ls=linestyle, label=FAMILIES[family], **look)
    ticks = [
        (_PLACES[family] + i, name)
        for family in _drawn(ax)
        for i, name in enumerate([FAMILIES["basic"], *(f"{s:g}" for s in STEPS[family])])
    ]
    ax.set_xticks(*zip(*ticks, strict=True), rotation=90)
    ax.set(xlabel="offset, or strength of the bias", ylabel=label or notation.tex(metric))
    ax.grid(axis="x", visible=False)


def _drawn(ax: "Axes") -> list[str]:
    """The chains that stand on some axes."""
    labels = [line.get_label() for line in ax.lines]
    return [family for family in STEPS if FAMILIES[family] in labels]


def panels(studies: "Mapping[Run, Study]", metrics: "Sequence[str]", *, unit: str = "") -> None:
    """A figure of metrics along the chains, a panel for each: full marks, with intervals.

    Open marks are the mean of learned generators, where there are any, with a bar from the lowest
    of them to the highest. With a unit, all panels share it and its scale, from zero. No two
    studies may have the same chains.
    """
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    form = {"figsize": (7.2, 3.3), "layout": "constrained", "sharey": bool(unit)}
    fig, axes = plt.subplots(1, len(metrics), **form)
    learned = {run: learned_of(run, study) for run, study in studies.items()}
    for (run, study), (ax, metric) in product(studies.items(), zip(axes, metrics, strict=True)):
        ladder(ax, study.summary([metric]), metric)
        if learned[run] and not metric.endswith("_orig"):
            ladder(ax, _between(learned[run], metric), metric, linestyle="--", hollow=True)
        name = fill(notation.SYMBOLS[metric].name, 100 // len(metrics))
        ax.set(title=f"{name}\n{notation.tex(metric)}", xlabel="", ylabel="")
    axes[0].set(ylabel=unit, ylim=(0 if unit else None, None))
    marks = [Line2D([], [], label=FAMILIES[name], **_look(name)) for name in _drawn(axes[0])]
    look = {"color": "0.35", "marker": "o", "markerfacecolor": "white", "ls": "--"}
    marks += [Line2D([], [], label="learned generators", **look)] if any(learned.values()) else []
    fig.legend(handles=marks, loc="outside upper center", ncols=4)
    fig.supxlabel("offset, or strength of the bias", fontsize="medium")


def _between(found: "Mapping[str, Study]", metric: str) -> pd.DataFrame:
    """The mean of a metric over generators, its least and its largest, in rows of a summary."""
    own = [study.frame().groupby(["family", "strength"])[metric].mean() for study in found.values()]
    three = pd.concat(own, axis=1).agg(["mean", "min", "max"], axis=1)
    return three.set_axis(["mean", "low", "high"], axis=1).assign(metric=metric).reset_index()


def bars(ax: "Axes", x: "Sequence[float]", cells: pd.DataFrame, colour: str) -> None:
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
