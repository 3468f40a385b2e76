"""What all tests and doctests share."""

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
