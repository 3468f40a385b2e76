"""A report from scores alone: 100,000 rows in 32 worlds of 5 labels, from CSV, on one core."""

import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from cfcore.cells import read_scores
from cfcore.report.cli import report

ROWS, WORLDS, LABELS = 100_000, 32, "abcde"


def write_scores(path: Path) -> None:
    """Scores of labels that are known a little, of patients with 2.5 images each."""
    rng = np.random.default_rng(2034)
    columns = {
        "patient": rng.integers(ROWS * 2 // 5, size=ROWS),
        "sex": rng.choice(["F", "M"], ROWS),
    }
    for label in LABELS:
        own = rng.normal(size=ROWS)
        worlds = own[:, None] + 0.3 * rng.normal(size=(ROWS, WORLDS))
        p_obs, p_cf = (1 / (1 + np.exp(-logit)) for logit in (own, worlds))
        columns |= {f"{label}:p_obs": p_obs, f"{label}:y": rng.random(ROWS) < p_obs}
        columns |= {f"{label}:p_cf_{k}": p_cf[:, k] for k in range(WORLDS)}
    frame = pd.DataFrame(columns)
    frame = frame.astype({name: int for name in frame if name.endswith(":y")})
    frame.to_csv(path, index=False, float_format="%.6f")


def main() -> None:
    """Prints seconds of CPU, the share that reads the file, and the memory at its peak."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scores.csv")
        write_scores(path)
        begin = time.process_time()
        read_scores(path)
        reading = time.process_time() - begin
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        begin = time.process_time()
        written = list(report(path, out=Path(folder, "report"), by=["sex"]))
        seconds = time.process_time() - begin
        size = Path(written[0]).stat().st_size / 2**20
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"report of {ROWS:,} x {WORLDS} x {len(LABELS)}  {seconds:6.1f} s, target 120 on one core"
    )
    print(f"reading the CSV / all        {reading / seconds:6.2f}")
    print(
        f"memory at its peak           {memory:6.2f} GB, target 2 ({before:.2f} before the report)"
    )
    print(f"report.html                  {size:6.2f} MB, target 3")


if __name__ == "__main__":
    main()
