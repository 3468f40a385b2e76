"""What marginalising costs beside the work that cannot be avoided, in ratios within one run.

The generator is a small convolutional autoencoder with random weights: speed does not depend on
what it has learnt, and an oracle would have nothing to encode.

    python benchmarks/bench_marginalise.py [--patients 120] [--rounds 3] [--json OUT]
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
from stopwatch import finish, growth, medians
from torch import Tensor, nn

from cfchest.data import Dataset
from cfchest.graph import CHEST, paper_grid
from cfcore.generator import Parents
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise
from cfscm.networks import ImageNetwork, PredictorConfig, build

SIDE = 64


class Autoencoder(nn.Module):
    """A generator: abduct encodes, predict decodes together with the parents."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 4, 2, 1),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(2 * width + 2, 2 * width, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, 2, 1),
            nn.Sigmoid(),
        )

    def abduct(
        self, x: Tensor, pa: Parents, *, index: Tensor | None = None, rng: object = None
    ) -> Tensor:
        return self.encoder(x)

    def predict(self, noise: Tensor, pa: Parents) -> Tensor:
        parents = torch.stack((pa["sex"], pa["age"] / 90), dim=1)[:, :, None, None]
        return self.decoder(torch.cat((noise, parents.expand(-1, -1, *noise.shape[2:])), dim=1))


def patients(count: int) -> Dataset:
    """Random images of random patients."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"patient": [f"p{i}" for i in range(count)]})
    table = table.assign(sex=rng.integers(2, size=count), age=rng.uniform(20, 90, count))
    table = table.assign(effusion=rng.integers(2, size=count), race=0, lung_size=0.3)
    return Dataset(table, torch.from_numpy(rng.random((count, SIDE, SIDE), dtype=np.float32)))


def predictors(count: int) -> dict[str, ImageNetwork]:
    return {
        f"g{i}": build(PredictorConfig("effusion"), graph=CHEST, seed=i).eval()
        for i in range(count)
    }


def floor(
    generator: Autoencoder, readers: dict[str, ImageNetwork], count: int, worlds: int, batch: int
) -> None:
    """The bare decoder and the classifiers on as many images, in batches of one size."""
    noise = torch.zeros(batch, 64, SIDE // 8, SIDE // 8).contiguous(
        memory_format=torch.channels_last
    )
    pa = {"sex": torch.zeros(batch), "age": torch.zeros(batch)}
    with torch.inference_mode():
        for _ in range(round(count * (worlds + 2) / batch)):
            x = generator.predict(noise, pa)
            for reader in readers.values():
                reader(x, pa)


def naive(
    generator: Autoencoder, readers: dict[str, ImageNetwork], data: Dataset, grid: Grid
) -> None:
    """Encode again for each intervention, in plain batches."""
    with torch.inference_mode():
        for k in range(len(grid)):
            do = {name: values[k] for name, values in grid.values.items()}
            for batch in data.batches(256):
                acted = batch.pa | {n: v.expand(len(batch.x)) for n, v in do.items()}
                x = generator.predict(generator.abduct(batch.x, batch.pa), acted)
                for reader in readers.values():
                    reader.network((x - 0.5) * 4)


def bench(count: int, rounds: int) -> dict[str, float]:
    generator = Autoencoder().to(memory_format=torch.channels_last).eval()
    plain = Autoencoder().eval()
    ten, one = predictors(10), predictors(1)
    nchw = {name: reader.to(memory_format=torch.contiguous_format) for name, reader in one.items()}
    data, grid = patients(count), paper_grid()
    work = {
        "ten": lambda: marginalise(generator, ten, data, grid),
        "one": lambda: marginalise(generator, predictors(1), data, grid),
        "naive": lambda: naive(plain, nchw, data, grid),
    }
    for batch in (16, 32, 64, 128):
        work[f"floor_{batch}"] = lambda batch=batch: floor(generator, ten, count, len(grid), batch)
    work["ten"]()
    s = medians(rounds, **work)
    best = min(value for name, value in s.items() if name.startswith("floor"))
    return {
        "floor / marginalise, ten predictors": best / s["ten"],
        "encoding for each intervention / marginalise": s["naive"] / s["one"],
        "ten predictors at once / ten runs": s["ten"] / (10 * s["one"]),
        "images/s, ten predictors": count * 18 / s["ten"],
    }


def interventions(count: int) -> Grid:
    """So many interventions: both sexes at ages evenly spread."""
    return Grid.product({"sex": [0, 1], "age": np.linspace(20, 90, count // 2)})


def bench_growth(count: int, rounds: int) -> dict[str, float]:
    """How the cost grows with the patients, and with the images of a patient, K + 2."""
    generator = Autoencoder().to(memory_format=torch.channels_last).eval()
    one, data, grid = predictors(1), patients(2 * count), paper_grid()

    def by_patients(size: int) -> None:
        marginalise(generator, one, data.take(slice(size)), grid)

    def by_images(size: int) -> None:
        marginalise(generator, one, data.take(slice(count // 6)), interventions(size - 2))

    found = {"N": growth(by_patients, 2 * count, rounds)}
    found["K"] = growth(by_images, 256, rounds, least=4)
    return {f"{name} of {axis}": v for axis, each in found.items() for name, v in each.items()}


def resumed(count: int) -> float:
    """CPU time of reading a finished run, checks of its shards included, over that of the run."""
    generator, readers, data = Autoencoder().eval(), predictors(10), patients(count)
    with TemporaryDirectory() as folder:
        times = []
        for _ in range(2):
            start = time.process_time()
            marginalise(generator, readers, data, paper_grid(), resume_dir=folder)
            times.append(time.process_time() - start)
    return times[1] / times[0]


def peak(count: int) -> int:
    """Peak memory of a process that marginalises so many patients, less that of their images."""
    script = (
        "import resource, sys, torch; torch.set_num_threads(1); sys.path.insert(0, sys.argv[1]);"
        "import bench_marginalise as b; d = b.patients(int(sys.argv[2]));"
        "g = b.Autoencoder().eval(); r = b.predictors(1);"
        "b.marginalise(g, r, d, b.paper_grid());"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    call = [sys.executable, "-c", script, str(Path(__file__).parent), str(count)]
    kilobytes = int(subprocess.run(call, capture_output=True, text=True, check=True).stdout)
    return kilobytes * 1024 - count * SIDE * SIDE * 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patients", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", nargs=2, type=int, default=[500, 5000])
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = bench(options.patients, options.rounds)
    results |= bench_growth(options.patients, options.rounds)
    results |= {"finished run of 1,000 patients / that run": resumed(1000)}
    small, large = (peak(count) / 1e6 for count in options.memory)
    results |= {f"peak MB without the images, N = {options.memory[0]}": small}
    results |= {f"peak MB without the images, N = {options.memory[1]}": large}
    finish(results, options.json)


if __name__ == "__main__":
    main()
