"""Numbers for the text of a chapter: computed in a cell, kept by name, read by a sentence."""

from collections.abc import Mapping
from typing import SupportsFloat

_WORDS = [
    "no", "one", "two", "three", "four", "five", "six",
    "seven", "eight", "nine", "ten", "eleven", "twelve",
]  # fmt: skip


def keep(chapter: str, found: Mapping[str, SupportsFloat | str]) -> None:
    """Keep what was found for the text of a chapter.

    A sentence reads it as ``{glue:text}`chapter-name:.2f```, and so says what the page computed
    and nothing else. Numbers are rounded before they are kept, so that the last bits, which differ
    between machines, are not compared when a notebook is run again.

    Args:
        chapter: The name of the notebook; it begins every name, so that names are unique.
        found: What was found, by name: numbers, or words such as those of :func:`count`.
    """
    from myst_nb import glue

    for name, value in found.items():
        kept = value if isinstance(value, str) else _rounded(value)
        glue(f"{chapter}-{name}", kept, display=False)


def _rounded(value: SupportsFloat) -> float | int:
    """A number to four significant digits, and a whole number as it is.

    Example:
        >>> _rounded(0.123456), _rounded(1234.56), _rounded(20_000), _rounded(0.0)
        (0.1235, 1235.0, 20000, 0.0)
    """
    return value if isinstance(value, int) else float(f"{float(value):.4g}")


def count(number: SupportsFloat) -> str:
    """A count in words up to twelve, and in digits beyond.

    Example:
        >>> count(3), count(0), count(16)
        ('three', 'no', '16')
    """
    whole = round(float(number))
    return _WORDS[whole] if whole < len(_WORDS) else f"{whole:,}"
