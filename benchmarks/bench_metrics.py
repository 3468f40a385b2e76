"""How fast the report and its intervals are, in ratios to well-known work on the same machine.

Everything is timed in one run, in turns, and medians are compared, since machines are noisy; and on
one thread, since scikit-learn's loss uses one.

    python benchmarks/bench_metrics.py [--rows 1000000] [--rounds 3] [--json OUT]
"""

import argparse
import resource
import time

import numpy as np
import torch
from sklearn.metrics import log_loss
from stopwatch import finish, growth, medians

from cfcore import bootstrap, evaluate
from cfcore.metrics import kendall

K = 16


def peak() -> int:
    """The most memory this process has held so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def scores(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores in float32, and labels."""
    rng = np.random.default_rng(0)
    p_cf = rng.random((rows, K), dtype=np.float32)
    p_obs = (0.7 * p_cf[:, 0] + 0.3 * rng.random(rows, dtype=np.float32)).astype(np.float32)
    return p_obs, p_cf, (rng.random(rows) < 0.4).astype(np.int64)


def bench_report(rows: int, rounds: int) -> dict[str, float]:
    """The whole report against scikit-learn's loss for one of its numbers."""
    evaluate(*scores(1000))
    p_obs, p_cf, y = scores(rows)
    before = peak()
    evaluate(p_obs, p_cf, y)
    memory = (peak() - before + p_cf.nbytes) / p_cf.nbytes

    repeated = np.repeat(y, K)
    seconds = medians(
        rounds,
        clock=time.process_time,
        report=lambda: evaluate(p_obs, p_cf, y),
        log_loss=lambda: log_loss(repeated, p_cf.ravel()),
    )
    return {
        "report / sklearn log_loss, time": seconds["report"] / seconds["log_loss"],
        "peak / matrix, memory": memory,
        "report, seconds": seconds["report"],
    }


def bench_growth(rows: int, rounds: int) -> dict[str, float]:
    """How the costs of the report and of Kendall's coefficient grow when N doubles."""
    data = scores(rows)
    pair = torch.from_numpy(np.random.default_rng(0).random((2, rows)))
    report = growth(lambda n: evaluate(*(values[:n] for values in data)), rows, rounds, least=2)
    tau = growth(lambda n: kendall(*pair[:, :n]), rows, rounds)
    named = {"report": report, "kendall": tau}
    return {f"{what}, {name}": v for what, found in named.items() for name, v in found.items()}


def bench_bootstrap() -> dict[str, float]:
    """A thousand replicates of the paper's largest test set."""
    data = scores(28_189)
    evaluate(*data)
    start = time.process_time()
    bootstrap(*data, replicates=1000, rank_replicates=0)
    means = time.process_time() - start
    bootstrap(*data, replicates=1000)
    return {
        "bootstrap 28,189 x 1,000, CPU seconds": means,
        "the same with 200 replicates of ranks": time.process_time() - start - means,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = bench_report(options.rows, options.rounds)
    results |= bench_growth(options.rows, options.rounds)
    results |= bench_bootstrap()
    finish(results, options.json)


if __name__ == "__main__":
    main()
