"""What was asked of real radiographs before any result, and what the tables answer."""

from collections.abc import Callable, Mapping

import pandas as pd

from cfbook.paths import data_file
from cfbook.study.claims import holm
from cfcore.checks import InputError

_Tables = Mapping[str, pd.DataFrame]
_Answer = dict[str, float]


def read_questions() -> dict[str, object]:
    """The design, as it was written down."""
    import yaml

    return yaml.safe_load(data_file("real.yml").read_text(encoding="utf-8"))


def committed_tables() -> dict[str, pd.DataFrame]:
    """The tables that are committed, by their name."""
    folder = data_file("real/tables")
    return {path.stem: pd.read_csv(path) for path in sorted(folder.glob("*.csv"))}


def _matching(table: pd.DataFrame, asked: Mapping[str, object]) -> pd.DataFrame:
    """The rows of a table that have these values."""
    rows = table
    for name, value in asked.items():
        rows = rows[rows[name] == value]
    if not len(rows):
        raise InputError(f"no row of the table has {dict(asked)}")
    return rows


def _planted(tables: _Tables, of: Mapping[str, object]) -> _Answer:
    row = _matching(tables["bias"], {**of, "compared": "biased"}).iloc[0]
    return {"estimate": row.difference, "low": row.low, "high": row.high, "p": row.p}


def _effectiveness(tables: _Tables, of: Mapping[str, object]) -> _Answer:
    asked = {**of, "generator": "flow", "axiom": "effectiveness"}
    worst = _matching(tables["readings"], asked).sort_values("after").iloc[0]
    return {"estimate": worst.after, "low": worst.low, "high": worst.high}


def _amplification(tables: _Tables, of: Mapping[str, object]) -> _Answer:
    rows = _matching(tables["readings"], {"generator": "flow", "axiom": "amplification"})
    rows = rows[rows["do"].isin(of["do"]) & (rows.reader != rows["do"])]
    worst = rows.sort_values("shift").iloc[-1]
    return {"estimate": worst["shift"], "low": worst.low, "high": worst.high}


def _refuted(tables: _Tables, of: Mapping[str, object]) -> _Answer:
    cells = tables["check"]
    cells = cells[cells.predictor.str.startswith(of["predictor"]) & (cells.part != "test")]
    answers = cells.groupby(["part", "predictor"]).answer.first()
    if (answers == "cannot be checked").all():
        return {"estimate": float("nan"), "low": float("nan"), "high": float("nan")}
    count = float((answers == "refuted").sum())
    return {"estimate": count, "low": count, "high": count}


def _pairs(tables: _Tables, of: Mapping[str, object]) -> _Answer:
    row = _matching(tables["pairs"], of).iloc[0]
    return {name: row[name] for name in ("estimate", "low", "high")}


_TESTS: Mapping[str, Callable[[_Tables, Mapping[str, object]], _Answer]] = {
    "planted": _planted, "effectiveness": _effectiveness, "amplification": _amplification,
    "refuted": _refuted, "pairs": _pairs,
}  # fmt: skip


def _judged_by(question: Mapping[str, object], answer: _Answer) -> str:
    """What the design says of an answer.

    Example:
        >>> asked = {"side": "above", "threshold": 0.5}
        >>> [_judged_by(asked, {"low": x, "high": x + 0.2}) for x in (0.6, 0.4, 0.1)]
        ['supported', 'inconclusive', 'not supported']
    """
    threshold, side = question["threshold"], question["side"]
    low, high = answer["low"] - threshold, answer["high"] - threshold
    if not low <= high:
        return "inconclusive"
    if side == "within":
        margin = question["margin"]
        inside, outside = -margin < low and high < margin, low > margin or high < -margin
    else:
        low, high = (low, high) if side == "above" else (-high, -low)
        inside, outside = low > 0, high < 0
    inside = inside and answer.get("p_holm", 0) <= 0.05
    return "supported" if inside else "not supported" if outside else "inconclusive"


def answered(tables: _Tables) -> pd.DataFrame:
    """A row for each question: its estimate with the interval, and what the design says of it."""
    asked = read_questions()["questions"]
    found = [_TESTS[each["test"]](tables, each["of"]) for each in asked]
    family = [number for number, each in enumerate(asked) if "family" in each]
    raised = holm(pd.Series([found[number]["p"] for number in family]).to_numpy())
    for number, p in zip(family, raised, strict=True):
        found[number]["p_holm"] = p
    rows = [
        {"id": each["id"], **answer, "verdict": _judged_by(each, answer)}
        for each, answer in zip(asked, found, strict=True)
    ]
    return pd.DataFrame(rows)
