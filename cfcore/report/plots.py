"""Pictures of predictions; every function draws on the axes it is given, or on new ones."""

from typing import TYPE_CHECKING

from cfcore.checks import InputError
from cfcore.extras import needs
from cfcore.report.findings import Question, score_findings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cfcore.predictions import Predictions


def _axes(ax: "Axes | None") -> "Axes":
    needs("matplotlib")
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1] if ax is None else ax


def _found(given: "Predictions", replicates: int) -> dict[str, list[dict]]:
    asked = {"metrics": ["S_var"], "replicates": replicates, "rank_replicates": 0}
    return score_findings(given, Question(), asked)


def plot_curves(
    given: "Predictions", attribute: str, *, ax: "Axes | None" = None, replicates: int = 200
) -> "Axes":
    """The mean score at each value of an attribute, the others averaged out, with intervals."""
    rows = [r for r in _found(given, replicates)["curves"] if r["attribute"] == attribute]
    if not rows:
        raise InputError(f"the grid has no {attribute!r}, only {', '.join(given.grid)}")
    ax, x, y = _axes(ax), [r["value"] for r in rows], [r["estimate"] for r in rows]
    known = [r for r in rows if r["low"] is not None]
    ends = [(r["estimate"] - r["low"], r["high"] - r["estimate"]) for r in known]
    ax.errorbar(x, y, list(zip(*ends, strict=True)) or None, marker="o", capsize=2)
    ax.set(xlabel=attribute, ylabel="mean score")
    return ax


def plot_calibration(given: "Predictions", *, ax: "Axes | None" = None) -> "Axes":
    """How often patients are positive in each bin of the score, observed and marginalised."""
    ax, rows = _axes(ax), _found(given, 2)["calibration"]
    if not rows:
        raise InputError("calibration needs labels, which are not here", column="y")
    for of, words in (("orig", "observed"), ("marg", "marginalised")):
        own = [(r["score"], r["frequency"]) for r in rows if r["of"] == of]
        ax.plot(*zip(*own, strict=True), marker="o", label=words)
    ax.axline((0, 0), slope=1, color="0.6", lw=1, ls="--")
    ax.set(xlabel="mean score", ylabel="share positive", xlim=(0, 1), ylim=(0, 1))
    ax.legend()
    return ax


def plot_spread(given: "Predictions", *, ax: "Axes | None" = None) -> "Axes":
    """Every patient's lowest and highest score over the worlds against the observed one."""
    ax = _axes(ax)
    order = given.logit_obs.argsort()
    p = given.logit_cf[order].double().sigmoid()
    rows = range(len(given))
    ax.fill_between(rows, p.amin(dim=1), p.amax(dim=1), alpha=0.4, step="mid", label="all worlds")
    ax.plot(rows, given.logit_obs[order].double().sigmoid(), color="black", label="observed")
    ax.set(xlabel="patients by observed score", ylabel="score", ylim=(0, 1))
    ax.legend()
    return ax
