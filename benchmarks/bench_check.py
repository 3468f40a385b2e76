"""How long it takes to check a generator by observed patients, beside the regressions it needs.

python benchmarks/bench_check.py [--rows 10000] [--worlds 16] [--json OUT]
"""

import argparse
import time

import numpy as np
import torch
from stopwatch import finish, medians
from threadpoolctl import threadpool_limits

from cfcore import Predictions, check_generator
from cfcore.interventions import Grid
from cfcore.standardise.check import observed_rows
from cfcore.standardise.estimate import Pool, standardise


def predictions(rows: int, worlds: int) -> Predictions:
    """Scores that depend on sex, age, size and label, and counterfactuals that are right."""
    rng = np.random.default_rng(0)
    y, sex = rng.integers(2, size=(2, rows))
    age = rng.uniform(20, 90, rows)
    size = 0.5 * sex - 0.01 * age + rng.standard_normal(rows)
    grid = Grid.product({"sex": [0, 1], "age": np.linspace(20, 90, worlds // 2)}).values
    own = 2 * y - 1 + 0.3 * size + 0.5 * rng.standard_normal(rows)
    logit = own + sex + 0.02 * age
    cf = own[:, None] + grid["sex"].numpy() + 0.02 * grid["age"].numpy()
    parents = {"sex": sex, "age": age, "size": size}
    return Predictions(logit, cf, grid, y=y, parents=parents, patient=list(range(rows)))


def bench(rows: int, worlds: int) -> dict[str, float]:
    """The whole check against the estimate of one mean in each world."""
    given, small = predictions(rows, worlds), predictions(500, 4)
    frame = observed_rows(given)
    pool = Pool.from_frame(frame, list(given.grid))
    values = 1 / (1 + np.exp(-frame[["logit"]].to_numpy()))
    set_to = {name: own.numpy() for name, own in given.grid.items()}
    check_generator(small)
    with threadpool_limits(1):
        seconds = medians(
            1,
            clock=time.process_time,
            check=lambda: check_generator(given),
            mean=lambda: standardise(values, pool, set_to),
        )
    return {
        f"check of {rows:,} rows x {worlds}, CPU seconds": seconds["check"],
        "check / standardised means of the worlds": seconds["check"] / seconds["mean"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--worlds", type=int, default=16)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    finish(bench(options.rows, options.worlds), options.json)


if __name__ == "__main__":
    main()
