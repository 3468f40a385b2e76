"""Speed as ratios in one run, with half of the margin that ``make bench`` shows."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks/bench_metrics.py"


def test_the_report_is_faster_than_one_of_its_numbers_elsewhere(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    call = [sys.executable, BENCHMARK, "--rows", "400000", "--rounds", "3", "--json", out]
    subprocess.run(call, check=True, capture_output=True)

    ratios = json.loads(out.read_text())

    assert ratios["report / sklearn log_loss, time"] <= 0.70
    assert ratios["peak / matrix, memory"] <= 4
    for kind in ("report", "kendall"):
        assert ratios[f"{kind}, fixed share"] <= 0.05
        assert ratios[f"{kind}, exponent"] <= 1.58  # of N, whose square would be 2
