"""The page *Notation* and the chapter on metrics say what tables and figures say."""

import re
from pathlib import Path

import pytest

from cfbook.notation import SYMBOLS, tex
from cfcore.predictions import Predictions

ROOT = Path(__file__).parents[2]
PAGE, CHAPTER = ROOT / "book/notation.md", ROOT / "notebooks/metrics.md"


def bare(text: str) -> str:
    """A formula without what only spaces or shapes it."""
    text = text.replace(r"\lvert", "|").replace(r"\rvert", "|")
    return re.sub(r"\\mathrm|\\[,;!]|[{}$~\s]", "", text)


@pytest.mark.parametrize("code", [code for code in SYMBOLS if code != "p_bar"])
def test_the_page_has_the_symbol_name_and_code_of_every_metric(code: str) -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if f"| `{code}` |" in line]

    ((symbol, name, *_),) = rows
    assert bare(symbol.removeprefix("| ")) == bare(tex(code))
    assert name == SYMBOLS[code].name


@pytest.mark.parametrize("code", SYMBOLS)
def test_the_chapter_on_the_metrics_defines_every_symbol(code: str) -> None:
    formulas = re.findall(r"```\{math\}.*?```|\$[^$]+\$", CHAPTER.read_text(), flags=re.DOTALL)

    assert any(bare(tex(code)) in bare(formula) for formula in formulas)


def test_every_metric_of_the_report_has_a_symbol(made: Predictions) -> None:
    assert set(made.evaluate()) <= set(SYMBOLS)


@pytest.fixture
def made() -> Predictions:
    import torch

    logit = torch.randn(8, 4, generator=torch.Generator().manual_seed(2029))
    return Predictions(logit[:, 0], logit[:, 1:], {"age": torch.arange(3.0)}, y=torch.arange(8) % 2)
