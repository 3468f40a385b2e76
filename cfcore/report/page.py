"""Findings as one self-contained page, as JSON, and as tables for LaTeX."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from cfcore.files import write_atomically
from cfcore.report.text import MEANINGS

_ORDER = ("depends", "undecided", "warning", "nothing", "none")
_FEW = 20  # images near a world, below which it is an extrapolation
_Row = Mapping[str, object]


def write_report(findings: Mapping, folder: str | Path) -> list[Path]:
    """Write findings as ``report.html``, ``report.json``, whose keys they are, ``tables.tex``."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(findings, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    made = {"report.html": _html(findings), "report.json": text, "tables.tex": _latex(findings)}
    return [write_atomically(folder / name, own.encode()) for name, own in made.items()]


def _html(findings: Mapping) -> str:
    """The report as a page that asks nobody for anything; whatever users named is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parent)
    page = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page.filters |= {"short": _short, "ends": _ends, "place": _place, "grouped": _grouped}
    page.filters["root"] = lambda value: None if value is None else math.sqrt(max(value, 0))
    asked, readers = findings["asked"], (findings["generator"] or {}).get("readers", ())
    nuisances = asked["nuisances"].values()
    words = [dict(zip(own["values"], own["words"], strict=True)) for own in nuisances]
    return page.get_template("page.html").render(
        **findings,
        few=_FEW,
        meanings=MEANINGS,
        kinds={one["variable"]: one["kind"] for one in readers},
        verdicts=sorted(findings["conclusions"], key=lambda one: _ORDER.index(one["verdict"])),
        worlds=[
            [own.get(value, value) for own, value in zip(words, world, strict=True)]
            for world in asked["worlds"]
        ],
    )


def _ends(rows: Sequence[_Row], *others: float) -> tuple[float, float]:
    """A scale for estimates and intervals, zero and others among them."""
    drawn = ("estimate", "low", "high", "before", "real")
    known = [row[k] for row in rows for k in drawn if row.get(k) is not None]
    return min([0, *known, *others]), max([1e-12, *known, *others])


def _place(value: float, low: float, high: float, first: float = 0, last: float = 100) -> str:
    """Where a value stands on a scale that is drawn from first to last, by default in per cent."""
    return f"{first + (last - first) * (value - low) / (high - low):.1f}"


def _grouped(rows: Sequence[_Row], key: str) -> list[tuple[str, list[_Row]]]:
    """Rows that stand together, by what they have in common."""
    return [(name, list(own)) for name, own in groupby(rows, key=lambda row: row[key])]


def _short(value: object, like: float | None = None) -> str:
    """A value in words: numbers with three digits, or as many as another one has; lists joined.

    Example:
        >>> [_short(value) for value in (0.12345, None, 1200, ["a", 0.5], {"b": True})]
        ['0.123', '–', '1,200', 'a, 0.5', 'b: yes']
        >>> _short(0.012, like=1.5), _short(3e-8), _short(914.0)
        ('0.01', '0', '914')
    """
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        size = max(abs(value if like is None else like), 0.01)
        digits = max(0, 2 - math.floor(math.log10(size)))
        text = f"{value:,.{digits}f}" if abs(value) > 5e-7 else "0"
        text = text if text.strip("-0.,") else text.removeprefix("-")  # no negative zero
        return text if like is not None or "." not in text else text.rstrip("0").rstrip(".")
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_short(own)}" for name, own in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_short, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _latex(findings: Mapping) -> str:
    """Tables for ``booktabs``: the metrics of each predictor, then differences of predictors."""
    tables = []
    for name, one in findings["predictors"].items():
        parts = [row | {"metric": f"S_var, {row['attribute']}"} for row in one["attributes"]]
        tables.append((name, one["metrics"] + parts))
    for pair in findings["comparisons"]:
        tables.append(("{label}: {second} minus {first}".format(**pair), pair["metrics"]))
    lines = [r"% \usepackage{booktabs}; names that are not Latin need XeLaTeX or LuaLaTeX"]
    for name, rows in tables:
        lines += [r"\begin{tabular}{lrr}", r"\toprule"]
        lines += [f"{{{_tex(name)}}}" + r" & estimate & 95\,\% interval \\", r"\midrule"]
        for row in rows:
            like = max(map(abs, _ends([row])))
            middle, low, high = (_short(row[key], like) for key in ("estimate", "low", "high"))
            ends = "" if row["low"] is None else rf"\([{low}, {high}]\)"
            middle = "--" if row["estimate"] is None else rf"\({middle}\)"
            lines.append(rf"{_tex(row['metric'])} & {middle} & {ends} \\")
        lines += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def _tex(text: str) -> str:
    r"""Text in which nothing is a command.

    Example:
        >>> print(_tex("R_IE & 50 %"), _tex("a\\b"))
        R\_IE \& 50 \% a\textbackslash{}b
    """
    signs = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater"}
    known = {sign: rf"\text{name}{{}}" for sign, name in signs.items()}
    known |= {sign: rf"\{sign}" for sign in "&%$#_{}"}
    return "".join(known.get(c, c if c.isprintable() else " ") for c in text)
