"""Timing pieces of work against each other."""

import statistics
import time
from collections.abc import Callable


def medians(
    rounds: int, *, clock: Callable[[], float] = time.perf_counter, **work: Callable[[], object]
) -> dict[str, float]:
    """Median seconds of several pieces of work, done in turns, by a clock."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, function in work.items():
            start = clock()
            function()
            seconds[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}
