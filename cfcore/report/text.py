"""Metrics in frames as readable text and as JSON."""

import json
from collections.abc import Mapping

import pandas as pd

from cfcore.intervals import DAGGER, NOTE

_OF_EITHER = {
    "Brier": "Brier score",
    "ECE": "expected calibration error",
    "MCE": "maximum calibration error",
    "AUC": "area under the ROC curve",
    "AP": "average precision",
}
MEANINGS = {
    "R_orig": "risk on the observed images",
    "R_CM": "risk of the marginalised prediction",
    "R_IE": "risk expected over interventions",
    "R_WC": "risk of each patient's worst intervention",
    **{f"{name}_orig": f"{words}, observed" for name, words in _OF_EITHER.items()},
    **{f"{name}_marg": f"{words}, marginalised" for name, words in _OF_EITHER.items()},
    "S_var": "variance of the score over interventions",
    "S_flip": "decisions flipped by an intervention",
    "D_obs": "decisions changed by marginalising",
    "D_abs": "score change by marginalising, absolute",
    "S_rank": "Spearman's rank correlation, observed to marginalised",
    "tau_b": "Kendall's rank correlation, observed to marginalised",
    "abs_rank_change": "places moved in the ranking",
}
"""What each metric says, in a few words."""


def as_text(frame: pd.DataFrame) -> str:
    """A report as lines of text, one for each metric, with its interval and what it says.

    Intervals that hold the truth too seldom, ``frame.attrs["doubtful"]``, are marked, and a last
    line says so.

    Example:
        >>> print(as_text(pd.DataFrame({"metric": ["R_CVaR_0.10"], "estimate": [0.25]})))
        R_CVaR_0.10         0.2500  risk in the worst 0.10 of interventions
    """
    parts = [name for name in ("label", "group") if name in frame]
    if parts:
        texts = []
        for key, own in frame.groupby(parts, sort=False):
            title = ", ".join(map(str, key))
            if "worst" in own and own.worst.notna().all():
                title += " between the worst group and the best"
            texts.append(f"{title}\n{as_text(own.drop(columns=parts))}")
        return "\n\n".join(texts)
    columns = [name for name in ("metric", "estimate", "low", "high") if name in frame]
    lines, doubtful = [], frame.attrs.get("doubtful", ()) if "low" in frame else ()
    for i, name, estimate, *ends in frame[columns].itertuples():
        tail = f"risk in the worst {name.removeprefix('R_CVaR_')} of interventions"
        value = f"{estimate:.4f}" if estimate == estimate else "undefined"
        mark = DAGGER if name in doubtful else " "
        between = "  [{:.4f}, {:.4f}]".format(*ends) + mark if ends else ""
        gap = "worst" in frame and frame.worst.notna()[i]
        words = f"{frame.worst[i]} - {frame.best[i]}" if gap else MEANINGS.get(name, tail)
        lines.append(f"{name:<16}{value:>10}{between}  {words}")
    return "\n".join([*lines, NOTE] if doubtful else lines)


def as_json(frame: pd.DataFrame, resampling: Mapping[str, object] | None = None) -> str:
    """A report as a JSON object, each estimate an entry; undefined metrics are null.

    What the intervals came from is an entry ``resampling``, and makes one ``intervals`` that holds
    the two ends of each interval, or null.

    Example:
        >>> as_json(pd.DataFrame({"metric": ["S_var", "S_rank"], "estimate": [0.25, None]}))
        '{\\n  "S_var": 0.25,\\n  "S_rank": null\\n}\\n'
    """
    table = frame.astype(object).where(frame.notna(), None)
    if {"label", "group"} & set(frame):
        report = {"rows": table.to_dict("records")}
    else:
        report = dict(zip(table.metric, table.estimate, strict=True))
        if resampling:
            ends = zip(table.metric, table.low, table.high, strict=True)
            report["intervals"] = {n: None if None in pair else pair for n, *pair in ends}
    report |= {"resampling": dict(resampling)} if resampling else {}
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def resampled(replicates: int, level: float, patient: str | None, patients: int) -> str:
    """What was resampled, in words; ``patient`` is the column that says which rows are whose.

    Example:
        >>> resampled(200, 0.95, None, 1000)
        '95 % intervals from 200 samples of the 1000 rows (no column patient: see --patient)'
    """
    rows = f"the {patients} rows (no column patient: see --patient)"
    whom = rows if patient is None else f"{patients} patients (column {patient})"
    return f"{100 * level:.0f} % intervals from {replicates} samples of {whom}"
