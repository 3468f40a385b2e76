"""The chapter on the metrics defines what tables and figures call by a symbol."""

import re
from pathlib import Path

import pytest

from cfbook.notation import SYMBOLS

CHAPTER = Path(__file__).parents[2] / "notebooks/metrics.md"


def bare(text: str) -> str:
    """TeX without what only shapes it."""
    return re.sub(r"\\mathrm|\\[,;!]|[{}~\s]", "", text)


@pytest.mark.parametrize("name", SYMBOLS)
def test_the_chapter_on_the_metrics_defines_every_symbol(name: str) -> None:
    formulas = re.findall(r"```\{math\}.*?```|\$[^$]+\$", CHAPTER.read_text(), flags=re.DOTALL)

    assert any(bare(SYMBOLS[name].tex()) in bare(formula) for formula in formulas)
