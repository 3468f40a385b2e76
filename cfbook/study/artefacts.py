"""What was trained once is found again by the name of its file, which says what made it."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from torch import nn

from cfcore.checks import InputError

Module = TypeVar("Module", bound=nn.Module)


def found_or_made(
    file: str,
    committed: Path,
    cache: Path,
    *,
    load: Callable[[Path], Module],
    make: Callable[[Path], Module],
) -> Module:
    """A trained network: from the project's data, from earlier runs, or made now.

    Args:
        file: The name of its file, which says what made it.
        committed: The folder of those that come with the project.
        cache: The folder of those that were made here.
        load: Reads it.
        make: Makes it and keeps it at the given path.

    Returns:
        The network, on the CPU and in evaluation mode.
    """
    if (committed / file).is_file():
        return load(committed / file)
    try:
        return load(cache / file)
    except (FileNotFoundError, InputError):  # never made, or not to its end
        return make(cache / file).cpu().eval()
