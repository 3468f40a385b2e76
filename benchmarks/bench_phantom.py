"""How many phantom images are drawn in a second, and what a patient costs in memory."""

import time

import torch

from cfchest.phantom import Phantom

TARGET = 1000  # images a second at 64 pixels, on two cores


def rate(size: int, threads: int, count: int = 1024) -> float:
    """Images a second, the best of three rounds."""
    torch.set_num_threads(threads)
    cohort = Phantom(size).sample(count, hospital="C", seed=0)
    _ = cohort.images[:64]
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        _ = cohort.images[:]
        seconds.append(time.perf_counter() - start)
    return count / min(seconds)


def main() -> None:
    """Prints the rates."""
    for size in (64, 128):
        for threads in (1, 2):
            r = rate(size, threads, count=1024 * 64**2 // size**2)
            ratio = f"  {r / TARGET:.1f} of the target" if (size, threads) == (64, 2) else ""
            print(f"{size:4d} px  {threads} thread(s)  {r:6.0f} images/s{ratio}")

    noise = Phantom().sample(1, hospital="C", seed=0).noise
    print(f"a patient is {sum(v.nbytes for v in noise.values())} bytes of noise")


if __name__ == "__main__":
    main()
