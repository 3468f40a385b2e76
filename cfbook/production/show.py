"""Tables of the book: rendered, numbered, with a caption that says what to see."""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from html import escape
from numbers import Integral, Real
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_NUMBERS: dict[str, int] = {}  # of the captions that this process, one chapter, has shown
_RULES = ("text-align: left", "font-weight: bold")  # of text, and of the rows that matter


def show(
    frame: "pd.DataFrame | pd.Series", caption: str, *, digits: int = 3, bold: Collection = ()
) -> None:
    """Show a table under its number and caption, in a notebook as on a page of the book.

    Columns ``low`` and ``high`` become one, ``interval``; what is missing becomes a dash. Tables
    are counted from one in every notebook. A caption shown again keeps its number, so that a cell
    can be run twice. A page links to the first one by ``<a href="#table-1">Table 1</a>``.

    Args:
        caption: What it says, in a sentence or two; names between backticks are set as code.
        digits: Significant digits of numbers; whole parts and counts are shown whole.
        bold: Labels of the rows that matter.
    """
    from IPython.display import display

    number = _NUMBERS.setdefault(caption, len(_NUMBERS) + 1)
    display(Shown(_in_words(frame, digits), caption, number, tuple(bold)))


@dataclass(frozen=True)
class Shown:
    """A table as a page shows it: all cells text, its number in the chapter, rows that matter."""

    words: "pd.DataFrame"
    caption: str
    number: int
    bold: tuple[object, ...] = ()

    def __repr__(self) -> str:
        return f"Table {self.number}. {self.caption}\n\n{self.words.to_string()}"

    def _repr_html_(self) -> str:
        """The table as HTML, the same bytes every time; a wide one scrolls below its caption."""
        from pandas.io.formats.style import Styler

        how = {"escape": "html", "formatter": _label}
        styler = Styler(self.words, uuid=str(self.number), cell_ids=False)
        styler.format(escape="html").format_index(**how).format_index(**how, axis=1)
        figures = r"[\d.,e+\-–\[\] ]*"
        text = [name for name in self.words if not self.words[name].str.fullmatch(figures).all()]
        left, heavy = ([{"selector": "", "props": rule}] for rule in _RULES)
        styler.set_table_styles(dict.fromkeys(text, left))
        styler.set_table_styles(dict.fromkeys(self.bold, heavy), axis=1, overwrite=False)
        caption = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(self.caption))
        html = styler.to_html(table_attributes='class="dataframe"')
        return (
            f'<figure class="show" id="table-{self.number}">\n<figcaption>'
            f"<b>Table {self.number}.</b> {caption}</figcaption>\n"
            f'<div style="overflow-x: auto">\n{html}</div>\n</figure>'
        )


def _in_words(frame: "pd.DataFrame | pd.Series", digits: int) -> "pd.DataFrame":
    """A table with all cells as text, an interval in one column, the index named in its corner.

    Example:
        >>> import pandas as pd
        >>> found = pd.DataFrame({"R_IE": 0.51234, "low": 0.4, "high": 0.612}, index=["sex"])
        >>> print(_in_words(found, 2))
             R_IE      interval
        sex  0.51  [0.40, 0.61]
    """
    words = frame.to_frame() if frame.ndim == 1 else frame.copy()
    words = words.astype(object).map(lambda value: _in_digits(value, digits))
    if {"low", "high"} <= set(words.columns):
        words["low"] = "[" + words.low + ", " + words.high + "]"
        words = words.drop(columns="high").rename(columns={"low": "interval"})
    if words.index.nlevels == words.columns.nlevels == 1:
        words = words.rename_axis(index=None, columns=words.index.name)
    return words


def _in_digits(value: object, digits: int) -> str:
    """A value with some significant digits, the whole part always whole.

    Numbers are rounded to twelve decimals first, so that a zero is one on every machine.

    Example:
        >>> [_in_digits(value, 2) for value in (0.98765, 0.999, 1234.5, 12_345, 1e-17, 3e-7)]
        ['0.99', '1.0', '1,234', '12,345', '0', '3.0e-07']
        >>> _in_digits(float("nan"), 2), _in_digits("sex", 2), _in_digits(True, 2)
        ('–', 'sex', 'yes')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{value:,}"
    if value is None or value != value:
        return "–"
    if not isinstance(value, Real) or math.isinf(value):
        return str(value)
    rounded = round(float(value), 12)
    size = int(f"{rounded:.{digits - 1}e}".partition("e")[2])
    if rounded == 0:
        return "0"
    return f"{rounded:,.{max(digits - 1 - size, 0)}f}" if size > -5 else f"{rounded:.{digits - 1}e}"


def _label(value: object) -> str:
    """The name of a row or column."""
    return f"{value:g}" if isinstance(value, float) else str(value)
