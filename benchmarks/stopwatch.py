"""Timing pieces of work against each other."""

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path


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


def growth(
    work: Callable[[int], object], size: int, rounds: int, least: int = 1
) -> dict[str, float]:
    """The exponent by which the processor time of some work grows between half a size and all.

    Args:
        work: Does the work, given its size.
        size: The larger of the two sizes.
        rounds: How often each is timed.
        least: A size so small that its time is what any work costs, whatever its size.

    Returns:
        ``exponent``, and ``fixed share``, the time of the least size over that of half the size:
        above 0.05 the exponent is too low.
    """
    sizes = {"least": least, "half": size // 2, "whole": size}
    work(least)
    seconds = medians(
        rounds, clock=time.process_time, **{k: lambda n=n: work(n) for k, n in sizes.items()}
    )
    return {
        "exponent": math.log(seconds["whole"] / seconds["half"]) / math.log(size / (size // 2)),
        "fixed share": seconds["least"] / seconds["half"],
    }


def finish(results: Mapping[str, float], path: str | None = None) -> None:
    """Print results, and write them to a JSON file if there is one to write."""
    for name, value in results.items():
        print(f"{name:<48}{value:10.3f}")
    if path:
        Path(path).write_text(json.dumps(results))
