"""What to conclude and what not, in words made from the numbers and their intervals."""

import operator
import re
from collections.abc import Mapping, Sequence

from cfcore.checks import InputError
from cfcore.metrics.summary import Options, names

RULES = {
    "tolerance": 0.05, "skill": 0.7, "skill_number": 0.5, "well": 0.8, "each": 0.5, "hardly": 0.1,
    "aside": 0.25,
}  # fmt: skip
"""The numbers that verdicts are made with; a report states them all.

A score may move by the ``tolerance``, a standard deviation over worlds. A reader needs an AUC of
``skill``, of a number an R2 of ``skill_number``, to judge. A generator moves an attribute ``well``
if its images go so far on the way from before to real images with the value, on average and by the
lower ends of intervals, and for ``each`` value so far; ``hardly`` if they go less far than that, or
no reading moves by more. If it moves anything else that can be read by more than ``aside``, in
units of what separates real groups, a score may depend on that. A score that moves by more than the
tolerance when nothing is changed is not judged by such images without a warning, nor is one for
which observed patients refute the generator, if the largest difference and what was seen together
could exceed the tolerance, by the far ends of their intervals.
"""
_CONDITION = re.compile(r"\s*([\w.]+)\s*(>=|<=|>|<)\s*(-?\d*\.?\d+(?:[eE]-?\d+)?)\s*")
_SEEN = "{0}: no dependence on {1} beyond {2:g} was seen, but "
_SAYS = {
    "nothing": "{0}: nothing can be concluded about {1}, which the generator hardly changes",
    "few": "{0}: too few patients to say whether it depends on {1}",
    "depends": "{0} depends on {1}",
    "undecided": "{0}: whether it depends on {1} is undecided",
    "none": "{0} does not depend on {1} beyond {2:g}",
    "partly": _SEEN + "the generator changes {1} only partly",
    "unknown": _SEEN + "whether the images show the change is unknown",
    "moved": _SEEN + "the generator moves the score when nothing is changed",
    "refuted": _SEEN + "observed patients refute the generator",
}
_CALLED = dict.fromkeys(("partly", "unknown", "moved", "refuted"), "warning") | {"few": "undecided"}
_ABOUT_SCORES = "only scores were given: whether the images behind them change was not checked"


def trust(generator: Mapping | None, attribute: str, rules: Mapping = RULES) -> tuple[str, str]:
    """Whether a generator moves an attribute, *well, partly, hardly* or *unknown*, and why."""
    if generator is None:
        return "unknown", _ABOUT_SCORES
    moved = [row["shift"] for row in generator["amplification"] if row["do"] == attribute]
    if moved and None not in moved and max(moved) < rules["hardly"]:
        return "hardly", f"no reader sees a difference in images set to another {attribute}"
    reader = next((r for r in generator["readers"] if r["variable"] == attribute), None)
    rows = [row for row in generator["effectiveness"] if row["variable"] == attribute]
    if reader is None or not rows:
        return "unknown", f"no reader was trained for {attribute}"
    number, skill = reader["kind"] == "continuous", reader["skill"]
    if not _able(reader, rules):
        least = rules["skill_number" if number else "skill"]
        weak = f"{skill['metric']} {_number(skill['estimate'])}, {least} needed"
        return "unknown", f"the reader of {attribute} is too weak to judge ({weak})"
    ways = [_way(row, rules) for row in ([_bridged(rows)] if number else rows)]
    if None in ways:
        return "unknown", f"the reader says the same of real images with and without {attribute}"
    share, low = (sum(part) / len(ways) for part in zip(*ways, strict=True))
    well = low >= rules["well"] and min(ways)[0] >= rules["each"]
    word = "well" if well else "hardly" if share < rules["hardly"] else "partly"
    far = f"{100 * share:.0f} % of the way to real images with that value"
    return word, f"images set to another {attribute} are read as being {far}"


def _able(reader: Mapping, rules: Mapping) -> bool:
    """Whether a reader reads well enough to judge."""
    skill = reader["skill"]["estimate"]
    least = rules["skill_number" if reader["kind"] == "continuous" else "skill"]
    return skill is not None and skill >= least


def _bridged(rows: Sequence[Mapping]) -> dict[str, float]:
    """Distances from what was asked as the share of them that is bridged, over all values."""
    total = {k: sum(row.get(k) or 0 for row in rows) for k in ("before", "after", "high", "real")}
    share = {key: 1 - value / (total["before"] or 1) for key, value in total.items()}
    return {"before": 0.0, "after": share["after"], "low": share["high"], "real": share["real"]}


def _way(row: Mapping, rules: Mapping = RULES) -> tuple[float, float] | None:
    """How far images go on the way to real ones, and at least; None where those are hardly apart.

    Example:
        >>> _way({"before": 0.0, "after": 0.5, "low": 0.25, "real": 1.0})
        (0.5, 0.25)
    """
    before, real = row["before"], 1 if row.get("real") is None else row["real"]
    if real - before < rules["hardly"] or row["low"] is None:
        return None
    return tuple(min((row[end] - before) / (real - before), 1.0) for end in ("after", "low"))


def conclude(findings: Mapping) -> list[dict[str, str | None]]:
    """A sentence for each predictor, label and nuisance variable, and what it rests on."""
    found, generator, rules = [], findings["generator"], findings["asked"]["rules"]
    still = generator["composition"]["D_abs_null"] if generator else {}
    for name, one in findings["predictors"].items():
        metrics, own = {row["metric"]: row for row in one["metrics"]}, []
        floor = still.get(name) or 0
        refuted, off = _refuted(generator, name, rules["tolerance"])
        for row in one["attributes"] or [metrics["S_var"] | {"attribute": "the world"}]:
            attribute = row["attribute"]
            moved, why = trust(generator, attribute, rules)
            if floor > rules["tolerance"]:
                moved = "moved" if moved == "well" else moved
                why += f"; the score moves by {_number(floor)} when nothing is changed"
            far = off + max(row["high"] or 0, 0) ** 0.5 > rules["tolerance"]
            if refuted and far and moved == "well":
                moved = "refuted"
            verdict, short, text = _dependence(name, row, rules["tolerance"], moved)
            entry = {"about": name, "attribute": attribute, "verdict": verdict, "short": short}
            told = verdict in ("nothing", "warning")
            warning = None if told else _aside(generator, attribute, rules, moved)
            said = [warning, refuted if verdict != "nothing" else None]
            warning = "; ".join(filter(None, said)) or None
            own.append(entry | {"text": text, "because": why, "warning": warning})
        if all(entry["verdict"] in ("none", "warning") for entry in own):
            _doubt(own, one["attributes"], metrics, rules["tolerance"])
        found += own
    return found


def _refuted(generator: Mapping | None, name: str, most: float) -> tuple[str | None, float]:
    """Where observed patients refute a generator, for a predictor; and by how much at most."""
    check = ((generator or {}).get("standardisation") or {}).get(name) or {"cells": ()}
    cells = [cell for cell in check["cells"] if cell["refuted"]]
    if not cells:
        return None, 0.0
    worst = max(cells, key=lambda cell: abs(cell["difference"]))
    off = max(max(-cell["low"], cell["high"]) for cell in cells)
    gap = f"{_number(abs(worst['difference']))} {'more' if worst['difference'] > 0 else 'less'}"
    where = f"at {worst['words']} counterfactuals score {gap} on average than they do"
    size = "" if off > most else ", which is tolerated"
    return f"observed patients refute the generator: {where}{size}", off


def _doubt(own: list[dict], attributes: Sequence[Mapping], metrics: Mapping, most: float) -> None:
    """Warn where every attribute seems harmless, and their combinations or decisions are not."""
    flips, said = metrics["S_flip"], []
    together = metrics["S_var"]["estimate"] - sum(row["estimate"] for row in attributes)
    if attributes and together > most**2:
        said.append(f"attributes together move the score by {_number(together**0.5)} more")
    if (flips["low"] or 0) > most:
        share = f"{100 * flips['estimate']:.0f} % of decisions flip over all worlds"
        said.append(f"{share} all the same: many scores are near the threshold")
    for entry in own if said else ():
        entry["warning"] = "; ".join([entry["warning"]] * bool(entry["warning"]) + said)


def _aside(generator: Mapping | None, attribute: str, rules: Mapping, moved: str) -> str | None:
    """What else a generator moves, or may move, so that a score may depend on that."""
    if generator is None:
        return None
    able = [reader["variable"] for reader in generator["readers"] if _able(reader, rules)]
    rows = [row for row in generator["amplification"] if row["do"] == attribute and not row["own"]]
    rows = [row for row in rows if row["reader"] in able and (row["shift"] or 0) > rules["aside"]]
    far = ", ".join(f"{row['reader']} ({_number(row['shift'])})" for row in rows)
    if rows:
        what = f"setting {attribute} also moves the reading of {far}, in units of what separates"
        return f"{what} real groups: what is seen may be due to that"
    return f"what changes with {attribute} in the images is unknown" if moved == "unknown" else None


def _dependence(name: str, row: Mapping, tolerance: float, moved: str) -> tuple[str, str, str]:
    """The verdict on one attribute, in a few words, and with its numbers."""
    if moved == "hardly" or row["low"] is None:
        key = "nothing" if moved == "hardly" else "few"
    elif row["high"] > tolerance**2:
        key = "depends" if row["low"] > tolerance**2 else "undecided"
    else:
        key = "none" if moved == "well" else moved
    short = _SAYS[key].format(name, row["attribute"], tolerance)
    text = f"{short}."
    if key not in ("nothing", "few"):
        ends = [_number(max(row[end], 0) ** 0.5) for end in ("estimate", "low", "high")]
        size = "{} (standard deviation; 95 % interval {} to {}".format(*ends)
        text += f" Changing {row['attribute']} alone moves the score by {size};"
        text += f" {tolerance:g} is tolerated)."
        text += " The true dependence may be larger." if moved == "partly" else ""
    return _CALLED.get(key, key), short, text


def _number(value: float | None) -> str:
    """Two significant digits.

    Example:
        >>> _number(0.05123), _number(3e-17), _number(None)
        ('0.051', '0', 'undefined')
    """
    if value is None or value != value:
        return "undefined"
    return f"{value:.2g}" if abs(value) > 5e-7 else "0"


def check_gate(conditions: Sequence[str], known: Sequence[str] = ()) -> None:
    """Refuse conditions that cannot be read, or are on no metric that is known, by default those
    of the paper, before anything is computed.
    """
    known = known or names(Options(), labelled=True)
    rows = [{"metric": name, "estimate": 0.0} for name in known]
    gate({"predictors": {"any predictor": {"metrics": rows}}}, conditions)


def gate(findings: Mapping, conditions: Sequence[str]) -> list[str]:
    """Which conditions such as ``S_flip > 0.1`` hold, and of which predictor: reasons to fail.

    The estimate is compared; an undefined metric fails every condition on it.
    """
    signs = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}
    reasons = []
    for condition in conditions:
        parsed = _CONDITION.fullmatch(condition)
        if parsed is None:
            raise InputError(f"{condition!r} is not of the form 'S_flip > 0.1'")
        metric, sign, limit = parsed[1], parsed[2], float(parsed[3])
        for name, one in findings["predictors"].items():
            values = {row["metric"]: row["estimate"] for row in one["metrics"]}
            if metric not in values:
                raise InputError(f"{condition!r}: there is no metric {metric} of {name}")
            value = values[metric]
            if value is None or signs[sign](value, limit):
                reasons.append(f"{name}: {metric} = {_number(value)} ({condition})")
    return reasons
