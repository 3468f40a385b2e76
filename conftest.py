"""What all tests and doctests share."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import settings

# The same examples every time; `--hypothesis-profile=explore` looks for new ones.
settings.register_profile("repeat", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("repeat")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The number of threads changes the last digits, and costs time on small tensors."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(np=np, torch=torch)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Say last, and in words, if the book was not tried in a browser."""
    yield
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = {report.longrepr[2] for report in skipped if "test_browser.py" in report.nodeid}
    for reason in sorted(reasons):
        why = reason.removeprefix("Skipped: ")
        terminalreporter.line(f"The book was NOT tried in a browser: {why}.", yellow=True)
