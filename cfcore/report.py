"""Metrics as tidy frames and readable text."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cfcore.intervals import DAGGER, NOTE

if TYPE_CHECKING:
    import pandas as pd

MEANINGS = {
    "R_orig": "risk on the observed images",
    "R_CM": "risk of the marginalised prediction",
    "R_IE": "risk expected over interventions",
    "R_WC": "risk of each patient's worst intervention",
    "Brier_orig": "Brier score, observed",
    "ECE_orig": "expected calibration error, observed",
    "MCE_orig": "maximum calibration error, observed",
    "Brier_marg": "Brier score, marginalised",
    "ECE_marg": "expected calibration error, marginalised",
    "MCE_marg": "maximum calibration error, marginalised",
    "S_var": "variance of the score over interventions",
    "S_flip": "decisions flipped by an intervention",
    "D_obs": "decisions changed by marginalising",
    "D_abs": "score change by marginalising, absolute",
    "S_rank": "Spearman's rank correlation, observed to marginalised",
    "tau_b": "Kendall's rank correlation, observed to marginalised",
    "abs_rank_change": "places moved in the ranking",
}


def meaning(name: str) -> str:
    """What a metric of a report says, in a few words.

    Example:
        >>> meaning("R_CVaR_0.10")
        'risk in the worst 0.10 of interventions'
    """
    if name.startswith("R_CVaR_"):
        return f"risk in the worst {name.removeprefix('R_CVaR_')} of interventions"
    return MEANINGS[name]


def as_frame(metrics: Mapping[str, float]) -> "pd.DataFrame":
    """A report as a frame with the columns ``metric, estimate``.

    Example:
        >>> as_frame({"S_var": 0.25})
          metric  estimate
        0  S_var      0.25
    """
    import pandas as pd

    return pd.DataFrame({"metric": list(metrics), "estimate": list(metrics.values())})


def as_text(frame: "pd.DataFrame", digits: int = 4) -> str:
    """A report as lines of text, one for each metric, with its interval if there is one.

    Intervals that hold the truth too seldom, ``frame.attrs["doubtful"]``, are marked, and a last
    line says so.

    Args:
        frame: Columns ``metric, estimate`` and perhaps ``low, high``.
        digits: Decimals to show.

    Returns:
        The text.

    Example:
        >>> print(as_text(as_frame({"S_var": 0.25})))
        S_var               0.2500  variance of the score over interventions
    """
    lines, doubtful = [], frame.attrs.get("doubtful", ()) if "low" in frame else ()
    for row in frame.to_dict("records"):
        value = (
            "undefined" if row["estimate"] != row["estimate"] else f"{row['estimate']:.{digits}f}"
        )
        ends = f"  [{row['low']:.{digits}f}, {row['high']:.{digits}f}]" if "low" in row else ""
        ends += DAGGER if row["metric"] in doubtful else " " * ("low" in row)
        lines.append(f"{row['metric']:<16}{value:>10}{ends}  {meaning(row['metric'])}")
    return "\n".join([*lines, NOTE] if doubtful else lines)


def as_json(
    metrics: Mapping[str, float],
    frame: "pd.DataFrame | None" = None,
    resampling: Mapping[str, object] | None = None,
) -> str:
    """A report as a JSON object; undefined metrics are null.

    Args:
        metrics: The estimates, each an entry of its own.
        frame: Columns ``metric, low, high``, for an entry ``intervals`` that holds the two ends of
            each interval, or null.
        resampling: What the intervals came from, for an entry of that name; without it there is
            no entry about intervals.

    Returns:
        The text.

    Example:
        >>> as_json({"S_var": 0.25, "S_rank": float("nan")})
        '{\\n  "S_var": 0.25,\\n  "S_rank": null\\n}\\n'
    """
    report: dict[str, object] = {name: number(value) for name, value in metrics.items()}
    if frame is not None and resampling is not None:
        ends = zip(frame.metric, map(number, frame.low), map(number, frame.high), strict=True)
        report["intervals"] = {
            name: None if None in (low, high) else [low, high] for name, low, high in ends
        }
        report["resampling"] = dict(resampling)
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def number(value: float) -> float | None:
    """A number as JSON has it: null if it is undefined."""
    return None if value != value else float(value)
