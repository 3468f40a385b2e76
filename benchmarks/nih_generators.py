"""What generators do to real radiographs: effectiveness by independent readers, and the check.

Needs the NIH ChestX-ray14 data, as published or as a cache (images_64.npz and metadata.csv) with a
column ``split``; patients of ``val`` are not touched. Of the training patients three quarters teach
readers, a classifier of effusion and the generators: the closed-form shift of the mean image, the
autoencoder alone, in as many steps as it has in the book, and the autoencoder with a flow, within
some minutes. The others are judged. Readers and generators thus learn from the same patients, but
know nothing of each other.

    python benchmarks/nih_generators.py FOLDER --minutes 20 [--csv OUT]
"""

import argparse
import tempfile
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from cfchest.cohorts import split
from cfchest.data import load_nih
from cfcore import CausalGraph, Grid, Patients, Variable, check_generator, marginalise
from cfcore.generator import Generator
from cfscm.learning import learn, untrained
from cfscm.networks import ImageNetwork, PredictorConfig, build
from cfscm.semisupervised import Labelled
from cfscm.soundness import soundness
from cfscm.soundness.baselines import MeanShift
from cfscm.training import FittingConfig, TrainingConfig, fit, train

VARIABLES = [
    Variable("sex", "binary"),
    Variable("age", "continuous", range=(0.0, 100.0), units="years"),
    Variable("view", "binary"),
    Variable("effusion", "binary"),
]
NAMES = [variable.name for variable in VARIABLES]
IMAGE = Variable("image", "continuous", range=(0.0, 1.0))
GRAPH = CausalGraph([*VARIABLES, IMAGE], {"effusion": ["age"], "image": NAMES})
TRAINING = TrainingConfig(epochs=30, batch=32, shift=3, patience=30)
ALONE = 5_000  # steps of the autoencoder alone


def patients(folder: Path, seed: int) -> dict[str, Patients]:
    """Patients to learn from, to stop on, and to judge, all of the training split."""
    data = load_nih(folder)
    data = data.take(data.table.split == "train")
    data = data.take(data.table[["sex", "age", "view"]].notna().all(axis=1).to_numpy())
    shares = {"learn": 0.65, "stop": 0.1, "judged": 0.25}
    found = {}
    for name, table in split(data.table, shares, seed=seed).items():
        some = data.select(table)
        parents = {n: some.parents[n] for n in ("sex", "age", "effusion")}
        parents["view"] = torch.tensor((some.table.view == "AP").to_numpy()).float()
        parents["age"] = parents["age"].clamp(0, 100)
        who = some.table.patient.astype(str).to_numpy()
        label = {"effusion": parents["effusion"]}
        found[name] = Patients(some[:], {n: parents[n] for n in NAMES}, label, who)
    return found


def reader(name: str, data: dict[str, Patients], seed: int) -> ImageNetwork:
    """A network that reads one variable."""
    made = build(PredictorConfig(name), graph=GRAPH, seed=seed)
    (x, y), stop = ((part[:], part.parents[name]) for part in (data["learn"], data["stop"]))
    last = [e.val_score for e in train(made, x, y, validation=stop, seed=seed, config=TRAINING)]
    print(f"reader of {name}: {max(last):.3f} on the patients on whom it stops", flush=True)
    return made


def generators(data: Patients, minutes: float, seed: int) -> dict[str, Generator]:
    """The generators, trained."""
    flow, alone = (untrained(GRAPH, "image", data[[0]], "effusion", seed) for _ in range(2))
    how = {"budget": {"minutes": minutes}, "seed": seed, "made_of": "nih"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flow.safetensors"
        flow, _ = learn(flow, data, path, say=lambda line: print(line, flush=True), **how)
    alone.image, c = alone.image.first, alone.encode(data.parents)
    config, aim = FittingConfig(ALONE, batch=32, report=500), Labelled(start=4.0)
    for step in fit(alone.image, data, c, objective=aim, config=config, seed=seed):
        print(f"autoencoder alone: step {step.step}", flush=True)
    alone.image.centre(data, c)
    shift = MeanShift.fit(GRAPH, tuple(NAMES), data)
    return {"mean shift": shift, "autoencoder": alone, "flow": flow}


def judge(
    generator: Generator, readers: dict[str, ImageNetwork], predictor: nn.Module, data: Patients
) -> pd.DataFrame:
    """Effectiveness, amplification, and whether standardisation refutes it."""
    terms = {"graph": GRAPH, "audited": {}, "interventions": tuple(NAMES), "effects": ["direct"]}
    terms |= {"axioms": ["effectiveness", "amplification"], "beside": ["identity"]}
    table = soundness(generator, data, classifiers=readers, **terms)
    rows = []
    for name in ("sex", "view"):
        grid = Grid.product({name: [0, 1]}, graph=GRAPH)
        said = marginalise(generator, {"effusion": predictor}, data, grid)["effusion"]
        check = check_generator(said, graph=GRAPH)
        print(check, flush=True)
        row = {"axiom": "standardisation", "intervention": name, "measure": check.answer}
        rows.append(row | {"value": check.cells["checked"].sum()})
    return pd.concat([table, pd.DataFrame(rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = patients(args.folder, args.seed)
    print({name: len(part) for name, part in data.items()}, flush=True)
    readers = {name: reader(name, data, args.seed) for name in NAMES}
    predictor = reader("effusion", data, args.seed + 1)
    made = generators(data["learn"], args.minutes, args.seed)
    table = pd.concat(
        judge(one, readers, predictor, data["judged"]).assign(generator=name)
        for name, one in made.items()
    )
    if args.csv:
        table.round(4).to_csv(args.csv, index=False)
    print(table.to_string())


if __name__ == "__main__":
    main()
