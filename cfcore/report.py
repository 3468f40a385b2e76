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


def as_json(frame: "pd.DataFrame", resampling: Mapping[str, object] | None = None) -> str:
    """A report as a JSON object; undefined metrics are null.

    Args:
        frame: Columns ``metric, estimate`` and perhaps ``low, high``: each estimate is an entry.
        resampling: What the intervals came from, for an entry of that name, and one ``intervals``
            that holds the two ends of each interval, or null.

    Returns:
        The text.

    Example:
        >>> as_json(as_frame({"S_var": 0.25, "S_rank": float("nan")}))
        '{\\n  "S_var": 0.25,\\n  "S_rank": null\\n}\\n'
    """
    rows = frame.set_index("metric").astype(float).to_dict("index")
    report: dict[str, object] = {name: _number(row["estimate"]) for name, row in rows.items()}
    if resampling is not None:
        ends = {name: [_number(row["low"]), _number(row["high"])] for name, row in rows.items()}
        report["intervals"] = {name: None if None in pair else pair for name, pair in ends.items()}
        report["resampling"] = dict(resampling)
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def _number(value: float) -> float | None:
    """A number as JSON has it: null if it is undefined."""
    return None if value != value else value


def resampled(resampling: Mapping[str, object] | None) -> str:
    """What was resampled, as the end of a line.

    Example:
        >>> resampled({"level": 0.95, "replicates": 200, "patient": None, "patients": 1000})
        '; 95 % intervals from 200 samples of the 1000 rows (no column patient: see --patient)'
    """
    if resampling is None:
        return ""
    what = f"{resampling['patients']} patients (column {resampling['patient']})"
    if resampling["patient"] is None:
        what = f"the {resampling['patients']} rows (no column patient: see --patient)"
    samples = f"{resampling['replicates']} samples of {what}"
    return f"; {100 * resampling['level']:.0f} % intervals from {samples}"
