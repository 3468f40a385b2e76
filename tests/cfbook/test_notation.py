"""The page *Notation* says what tables and figures say."""

import re
from pathlib import Path

import pytest

from cfbook.notation import SYMBOLS, tex
from cfcore.predictions import Predictions

PAGE = Path(__file__).parents[2] / "book/notation.md"


def bare(text: str) -> str:
    """A formula without what only spaces or groups it."""
    text = text.replace(r"\lvert", "|").replace(r"\rvert", "|").replace(r"\,", " ")
    text = text.replace(r"\mathrm", "")
    return re.sub(r"[{}$~ ]", "", text)


@pytest.mark.parametrize("code", [code for code in SYMBOLS if code != "p_bar"])
def test_the_page_has_the_symbol_name_and_code_of_every_metric(code: str) -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if f"| `{code}` |" in line]

    ((symbol, name, *_),) = rows
    assert bare(symbol.removeprefix("| ")) == bare(tex(code))
    assert name == SYMBOLS[code].name


def test_every_metric_of_the_report_has_a_symbol(made: Predictions) -> None:
    assert set(made.evaluate()) <= set(SYMBOLS)


@pytest.fixture
def made() -> Predictions:
    import torch

    logit = torch.randn(8, 4, generator=torch.Generator().manual_seed(2029))
    return Predictions(logit[:, 0], logit[:, 1:], {"age": torch.arange(3.0)}, y=torch.arange(8) % 2)
