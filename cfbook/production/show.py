"""Tables of the book: rendered, numbered, with a caption that says what to see."""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from html import escape
from numbers import Integral, Real
from statistics import median_low
from typing import TYPE_CHECKING

from cfbook import notation

if TYPE_CHECKING:
    import pandas as pd

_NUMBERS: dict[str, int] = {}  # of the captions that this process, one chapter, has shown
_LEFT, _HEAVY = "text-align: left", "font-weight: bold"  # of text, and of the rows that matter
_WRAPPED = f"{_LEFT}; white-space: normal; min-width: 14rem"
_LONG = 40  # letters of a cell that is a sentence


def show(
    frame: "pd.DataFrame | pd.Series",
    caption: str,
    *,
    digits: int = 3,
    bold: Collection = (),
    note: str = "",
    fold: bool = False,
) -> None:
    """Show a table under its number and caption, in a notebook as on a page of the book.

    Columns ``low`` and ``high`` become one, ``interval``; what is missing becomes a dash; metrics
    and predictors get the symbols and names of :mod:`cfbook.notation`. Tables are counted from one
    in every notebook. A caption shown again keeps its number, so that a cell can be run twice. A
    page links to the first one by ``<a href="#table-1">Table 1</a>``.

    Args:
        caption: What it says, in a sentence or two; names between backticks become symbols, or
            code where there is none.
        digits: Significant digits of a typical number in a column, whose decimals all share;
            whole parts and counts are shown whole.
        bold: Labels of the rows that matter.
        note: What else one must know to read it, in small letters below.
        fold: Whether only the caption is seen until a reader opens it.
    """
    from IPython.display import display

    number = _NUMBERS.setdefault(caption, len(_NUMBERS) + 1)
    display(_Shown(_in_words(frame, digits), caption, number, tuple(bold), note, fold))


@dataclass(frozen=True)
class _Shown:
    """A table as a page shows it: all cells text, its number in the chapter, rows that matter."""

    words: "pd.DataFrame"
    caption: str
    number: int
    bold: tuple[object, ...] = ()
    note: str = ""
    fold: bool = False

    def __repr__(self) -> str:
        table = self.words.rename(index=_name, columns=_name).to_string()
        note = f"\n\n{self.note}" if self.note else ""
        return f"Table {self.number}. {self.caption}\n\n{table}{note}"

    def _repr_html_(self) -> str:
        """The table as HTML, the same bytes every time; a wide one scrolls below its caption."""
        outer, inner = ("details", "summary") if self.fold else ("figure", "figcaption")
        note = f'<p class="note">{_prose(self.note)}</p>\n' if self.note else ""
        return (
            f'<{outer} class="show" id="table-{self.number}">\n<{inner}>'
            f"<b>Table {self.number}.</b> {_prose(self.caption)}</{inner}>\n"
            f'<div style="overflow-x: auto">\n{self._table()}</div>\n{note}</{outer}>'
        )

    def _table(self) -> str:
        """The cells, text to the left and numbers to the right."""
        from pandas.io.formats.style import Styler

        how = {"escape": "html", "formatter": _label}
        styler = Styler(self.words, uuid=str(self.number), cell_ids=False)
        styler.format(_prose).format_index(**how).format_index(**how, axis=1)
        figures = r"[\d.,e+\-–\[\]†±<%∞ ]*"
        cells = self.words.astype(str)
        text = [name for name in cells if not cells[name].str.fullmatch(figures).all()]
        long = [name for name in text if cells[name].str.len().max() > _LONG]
        styler.set_table_styles(dict.fromkeys(text, _styled(_LEFT)))
        styler.set_table_styles(dict.fromkeys(long, _styled(_WRAPPED)), overwrite=False)
        styler.set_table_styles(dict.fromkeys(self.bold, _styled(_HEAVY)), axis=1, overwrite=False)
        return styler.to_html(table_attributes='class="dataframe"')


def _styled(rule: str) -> list[dict[str, str]]:
    """A rule for a whole row or column, as pandas asks for it."""
    return [{"selector": "", "props": rule}]


def _in_words(frame: "pd.DataFrame | pd.Series", digits: int) -> "pd.DataFrame":
    """A table with all cells as text, an interval in one column, the index named in its corner.

    Example:
        >>> import pandas as pd
        >>> found = pd.DataFrame({"R_IE": 0.51234, "low": 0.4, "high": 0.612}, index=["sex"])
        >>> print(_in_words(found, 2))
             R_IE      interval
        sex  0.51  [0.40, 0.61]
    """
    words = (frame.to_frame() if frame.ndim == 1 else frame.copy()).astype(object)
    before = None
    for number, name in enumerate(words.columns):
        column = list(words.iloc[:, number])
        before = column if before is None or name not in ("low", "high") else before
        places = _places(before, digits)
        words.isetitem(number, [_in_digits(value, digits, places) for value in column])
    if {"low", "high"} <= set(words.columns):
        words["low"] = "[" + words.low + ", " + words.high + "]"
        words = words.drop(columns="high").rename(columns={"low": "interval"})
    if words.index.nlevels == words.columns.nlevels == 1:
        words = words.rename_axis(index=None, columns=words.index.name)
    return words


def _places(column: Collection[object], digits: int) -> int:
    """How many decimals give a typical number of a column so many significant digits.

    Example:
        >>> _places([0.512, 0.0031, 1.7], 3), _places([1234.5], 3), _places(["sex"], 3)
        (3, 0, 0)
    """
    real = [v for v in column if isinstance(v, Real) and not isinstance(v, Integral | bool)]
    sizes = [abs(v) for v in real if math.isfinite(v) and round(float(v), 12)]
    return max(digits - 1 - _size(median_low(sizes), digits), 0) if sizes else 0


def _size(value: float, digits: int) -> int:
    """The power of ten of a number that has so many digits."""
    return int(f"{value:.{digits - 1}e}".partition("e")[2])


def _in_digits(value: object, digits: int, places: int) -> str:
    """A value with the decimals of its column, or with some digits of its own where these fail.

    They fail where nothing would be left of a number, and where it is far larger than the others.
    Numbers are rounded to twelve decimals first, so that a zero is one on every machine.

    Example:
        >>> [_in_digits(value, 2, 2) for value in (0.98765, 0.999, 1234.5, 12_345, 1e-17, 3e-7)]
        ['0.99', '1.00', '1,234', '12,345', '0', '3.0e-07']
        >>> _in_digits(8.5, 3, 5), _in_digits(0.0021, 3, 2)
        ('8.50', '0.00210')
        >>> _in_digits(float("nan"), 2, 2), _in_digits("sex", 2, 2), _in_digits(True, 2, 2)
        ('–', 'sex', 'yes')
    """
    if str(value) in ("True", "False"):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{value:,}"
    if value is None or value != value:
        return "–"
    if not isinstance(value, Real):
        return str(value)
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    rounded = round(float(value), 12)
    if rounded == 0:
        return "0"
    size = _size(rounded, digits)
    if size < -5:
        return f"{rounded:.{digits - 1}e}"
    lost = round(rounded, places) == 0 or size - (digits - 1 - places) >= 2
    return f"{rounded:,.{max(digits - 1 - size, 0) if lost else places}f}"


def _name(value: object) -> object:
    """The name of a row or column in plain text."""
    return notation.words(value) if isinstance(value, str) else value


def _label(value: object) -> str:
    """The name of a row or column of a page."""
    return f"{value:g}" if isinstance(value, float) else notation.html(str(value))


def _prose(text: str) -> str:
    """A caption or note as HTML.

    Example:
        >>> _prose("`R_IE` < 1 by `evaluate`")
        '<i>R</i><sub>IE</sub> &lt; 1 by <code>evaluate</code>'
    """
    return re.sub(r"`([^`]+)`", lambda found: _named(found[1]), escape(text))


def _named(name: str) -> str:
    """A name between backticks: a symbol where there is one, else code."""
    return notation.html(name) if name in notation.SYMBOLS else f"<code>{name}</code>"
