"""How the time to marginalise grows with the patients and with the interventions.

Writes the table that the notebook *method* draws: for each axis, N or K, the median seconds of some
sizes, and the same relative to the smallest size. The seconds are those of the processor, on one
thread, and all sizes are timed in turns, so that what else the machine does matters little.

    python benchmarks/cost_marginalise.py [--rounds 3] [--out data/benchmarks/marginalise_cost.csv]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from bench_marginalise import Autoencoder, interventions, patients, predictors
from stopwatch import medians

from cfchest.data import Dataset
from cfcore.files import write_atomically
from cfcore.marginalise import marginalise

OUT = Path(__file__).parent.parent / "data/benchmarks/marginalise_cost.csv"
SIZES = {"N": (8, 16, 32, 64, 128), "K": (6, 14, 30, 62, 126)}
FIXED = {"N": 16, "K": 14}  # what the other axis is held at


def pieces(generator: Autoencoder, data: Dataset) -> dict[str, Callable[[], object]]:
    """One marginalisation for each size of each axis, by the name ``axis size``."""
    readers = predictors(1)
    settings = [(axis, FIXED | {axis: size}) for axis, sizes in SIZES.items() for size in sizes]
    return {
        f"{axis} {setting[axis]}": lambda n=setting["N"], k=setting["K"]: marginalise(
            generator, readers, data.take(slice(n)), interventions(k)
        )
        for axis, setting in settings
    }


def cost(rounds: int) -> pd.DataFrame:
    """Median processor seconds of each size, with the columns axis, value, seconds and relative."""
    generator = Autoencoder().to(memory_format=torch.channels_last).eval()
    work = pieces(generator, patients(max(*SIZES["N"], FIXED["N"])))
    work[f"N {FIXED['N']}"]()
    seconds = medians(rounds, clock=time.process_time, **work)
    rows = [(*name.split(), value) for name, value in seconds.items()]
    table = pd.DataFrame(rows, columns=["axis", "value", "seconds"]).astype({"value": int})
    smallest = table.groupby("axis")["seconds"].transform("first")
    return table.assign(relative=table["seconds"] / smallest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = cost(options.rounds)
    print(table.round(3).to_string(index=False))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, table.to_csv(index=False, float_format="%.4g").encode())


if __name__ == "__main__":
    main()
