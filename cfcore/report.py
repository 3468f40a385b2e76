"""Metrics as tidy frames and readable text."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

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

    Args:
        frame: Columns ``metric, estimate`` and perhaps ``low, high``.
        digits: Decimals to show.

    Returns:
        The text.

    Example:
        >>> print(as_text(as_frame({"S_var": 0.25})))
        S_var               0.2500  variance of the score over interventions
    """
    lines = []
    for row in frame.to_dict("records"):
        value = (
            "undefined" if row["estimate"] != row["estimate"] else f"{row['estimate']:.{digits}f}"
        )
        ends = f"  [{row['low']:.{digits}f}, {row['high']:.{digits}f}]" if "low" in row else ""
        lines.append(f"{row['metric']:<16}{value:>10}{ends}  {meaning(row['metric'])}")
    return "\n".join(lines)


def as_json(metrics: Mapping[str, float]) -> str:
    """A report as a JSON object; undefined metrics are null.

    Example:
        >>> as_json({"S_var": 0.25, "S_rank": float("nan")})
        '{\\n  "S_var": 0.25,\\n  "S_rank": null\\n}\\n'
    """
    numbers = {name: None if value != value else value for name, value in metrics.items()}
    return json.dumps(numbers, indent=2, allow_nan=False) + "\n"
