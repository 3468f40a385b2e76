"""``make wheel-check``: what somebody gets who installs the wheel, and no checkout.

The wheel is built and installed into an empty environment, first alone, then with one extra after
another. After each, commands are run in a folder of their own, as a user would, and each must end
with the exit code and the words of the table below.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import small_audit

ROOT = Path(__file__).parent.parent
ABSENT = """
from importlib.util import find_spec as find
heavy = 'zuko monai PIL matplotlib pyarrow openpyxl sklearn jupytext papermill sphinx'.split()
print('brings', [name for name in heavy if find(name)])
"""
CHECK = "cfcore check-data table table.csv --images png --columns image=file"
IMPORTS = "import cfcore, cfscm, cfchest, cfbook; print(cfcore.__file__)"
DATA = "from cfbook.study.claims import read_design; read_design()"
PLOT = """
import torch
from cfcore import Predictions
logit = torch.randn(9, 3)
print(type(Predictions(logit[:, 0], logit[:, 1:], {'sex': [0, 1]}).plot_curves('sex')))
"""
NETWORK = """
from cfcore.graph import CausalGraph, Variable
from cfscm.networks import PredictorConfig, build
config = PredictorConfig('ill', architecture='densenet121')
print(type(build(config, graph=CausalGraph([Variable('ill', 'binary')]), seed=0)))
"""
STEPS = {
    "": [
        ("cfcore --version", 0, "cfcore 0.1.0"),
        ("cfcore --help", 0, "train-generator"),
        (IMPORTS, 0, "site-packages"),
        (ABSENT, 0, "brings []"),
        ("cfcore evaluate scores.csv --replicates 50 --by view --json metrics.json", 0, "S_flip"),
        ("cfcore compare scores.csv scores.csv --replicates 50", 0, "minus"),
        ("cfcore report scores.csv --out report --replicates 50", 0, "report.html"),
        ("cfcore audit-paper", 0, "47 findings"),
        ("cfcore audit plan.yml --out found", 2, "pip install 'cfcore[generator]'"),
        ("cfcore evaluate scores.parquet", 2, "pip install 'cfcore[tables]'"),
        (CHECK, 2, "pip install 'cfcore[datasets]'"),
        ("cfcore run notebooks/metrics.md out.ipynb", 2, "pip install 'cfcore[book]'"),
        (PLOT, 1, "pip install 'cfcore[report]'"),
    ],
    "generator": [
        ("cfcore plan table.csv", 0, "graph:"),
        ("cfcore audit plan.yml --check", 0, "audits 120 rows"),
        ("cfcore audit plan.yml --out found", 0, "written: found"),
        (DATA, 1, "needs a checkout of the repository"),
        (NETWORK, 1, "pip install 'cfcore[predictors]'"),
    ],
    "tables": [("cfcore evaluate scores.parquet", 0, "S_flip")],
    "datasets": [(CHECK, 0, "Ready.")],
    "report": [(PLOT, 0, "Axes")],
    "predictors": [(NETWORK, 0, "ImageNetwork")],
    "book": [("cfcore run notebooks/metrics.md out.ipynb", 2, "needs a checkout")],
}


def write_inputs(folder: Path) -> None:
    """Everything that the commands read: scores, images, a classifier, a plan."""
    small_audit.make(folder)
    (folder / "small_audit.py").write_text(Path(small_audit.__file__).read_text())
    rows = small_audit.table()
    scores = pd.DataFrame({"p_obs": rows.age / 100, "y": rows.ill, "view": rows.view})
    scores["patient"], scores["p_cf_0"], scores["p_cf_1"] = rows.patient, rows.age / 110, 0.3
    scores.to_csv(folder / "scores.csv", index=False)
    scores.to_parquet(folder / "scores.parquet")


def call(words: list[str], folder: Path) -> tuple[int, str, float]:
    """The exit code of a command, what it printed, and seconds; it sees no other package."""
    outside = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    start = time.monotonic()
    done = subprocess.run(words, cwd=folder, env=outside, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - start


def must(words: list[str], folder: Path, code: int = 0, said: str = "") -> float:
    """Call a command, and stop if it does not end as it should; returns seconds."""
    found, text, seconds = call(words, folder)
    if found != code or said not in text or "Traceback" in text * (code != 1):
        sys.exit(f"{words}\nended with {found}, not {code}, or did not say {said!r}:\n{text}")
    return seconds


def megabytes(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main(place: Path) -> None:
    """Build, install, try."""
    folder, venv = place / "work", place / "venv"
    write_inputs(folder)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(place)]
    must(build, ROOT)
    (wheel,) = place.glob("*.whl")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB")
    must([sys.executable, "-m", "venv", str(venv)], place)
    pip = [f"{venv}/bin/python", "-m", "pip", "install", "-c", str(ROOT / "requirements.lock")]
    for extra, steps in STEPS.items():
        name = f"cfcore[{extra}]" if extra else "cfcore"
        seconds = must([*pip, name if extra else str(wheel)], place)  # as messages advise
        print(f"pip install {name}: {seconds:.0f} s, now {megabytes(venv):.0f} MB", flush=True)
        for words, code, said in steps:
            own = words.startswith("cfcore ")
            python = [f"{venv}/bin/python", "-c", words]
            line = [f"{venv}/bin/cfcore", *words.split()[1:]] if own else python
            seconds = must(line, folder, code, said)
            shown = words if own else words.strip().splitlines()[-1]
            print(f"  {shown}: exit {code}, {said!r}, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
