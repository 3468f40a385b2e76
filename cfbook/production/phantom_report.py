"""The phantom audited by a plan, as any classifier is: a report to look at, and three generators.

``python -m cfbook.production.phantom_report REPORT.html TABLE.csv`` audits two predictors, of which
one is biased by sex, with the true generator, a learned one and one that changes nothing. It writes
the report of the learned one, and what each of the three concluded. Patients, predictors and
interventions were chosen before anything was run: those of setting 1, the strongest bias by sex,
the paper's. The thresholds of verdicts were not, so all of it is done once more with predictors of
another training, other patients and other readers.
"""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml

from cfbook.study.cohorts import held_out, parts, phantom_cohort
from cfbook.study.learned import write_table
from cfbook.study.presets import preset
from cfbook.study.recipes import DetailedRecipe, PredictorRecipe
from cfchest.graph import CHEST
from cfchest.phantom import Oracle, Phantom
from cfcore.report.conclusions import trust
from cfscm import audit
from cfscm.soundness.baselines import Identity

_WHERE, _SIZES = "C", preset("book")
_PREDICTORS = {"unbiased": ("basic", 0.0), "sex-biased": ("sex", 0.95)}
_SEEDS = (0, 1)
_GENERATORS = {
    "truth": f"{__spec__.name}:oracle",
    "learned": "learned.safetensors",
    "identity": f"{__spec__.name}:identity",
}


def oracle() -> Oracle:
    """The generator of the true counterfactuals, by rows of the table that is exported."""
    rows = torch.tensor(parts(_WHERE, _SIZES)["test"].table.image.to_numpy())
    return phantom_cohort(_WHERE, _SIZES).take(rows).oracle


def identity() -> Identity:
    """A generator that changes nothing, whatever it is asked for."""
    return Identity(Phantom(_SIZES.size))


def export_phantom(folder: Path, rows: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Write patients whom no network has seen, and networks, as somebody else would have them.

    Args:
        folder: Where to; it then has all that the plan names.
        rows: How many patients, by default all of the test part: those of the balanced test set are
            audited, readers are trained on the others.
        seed: Of predictors and readers; if it is not 0, as many of the others are audited.

    Returns:
        The plan but for its generator.
    """
    test, chosen = parts(_WHERE, _SIZES)["test"], held_out(_WHERE, _SIZES, "balanced").table.image
    if seed:
        chosen = test.table.image[~test.table.image.isin(chosen)][: len(chosen)]
    table = test.table.assign(split=np.where(test.table.image.isin(chosen), "audit", "read"))
    table = table.reset_index(drop=True).assign(image=range(len(table)))[:rows]
    for name in ("sex", "race", "effusion"):
        table[name] = table[name].map(dict(enumerate(CHEST[name].categories)))
    np.savez(folder / "images.npz", images=test[: len(table)].numpy())
    table.drop(columns=["study", "view"]).to_csv(folder / "table.csv", index=False)
    made = {
        name: PredictorRecipe(_SIZES, _WHERE, *how, seed=seed) for name, how in _PREDICTORS.items()
    }
    for name, recipe in (made | {"learned": DetailedRecipe(_SIZES, _WHERE)}).items():
        recipe.obtain()  # trained, if it is not there
        kept = [place / recipe.file for place in (recipe.committed, recipe.cache)]
        path = next(path for path in kept if path.is_file())
        for part in path.parent.glob(f"{path.stem}.*"):
            shutil.copy(part, folder / part.name.replace(path.stem, name))
    return {
        "title": "Two classifiers of effusion, on the phantom",
        "table": "table.csv", "images": "images.npz", "image": "image", "patient": "patient",
        "graph": {name: _described(name) for name in CHEST},
        "labels": "effusion",
        "nuisances": {"sex": "all", "age": [*range(20, 91, 10)]},
        "predictors": {name: f"{name}.safetensors" for name in made},
        "rows": {"train": "split == read"},
        "subgroups": ["sex", "age"], "pictures": "local", "seed": seed,
    }  # fmt: skip


def _described(name: str) -> dict[str, Any]:
    """A variable as a plan describes it."""
    variable = CHEST[name]
    told = {"kind": variable.kind, "units": variable.units, "parents": [*CHEST.parents(name)]}
    told |= {"categories": [*variable.categories], "range": [*(variable.range or ())]}
    return {key: value for key, value in told.items() if value}


def _verdicts_of(generator: str, findings: Mapping[str, Any]) -> pd.DataFrame:
    """What an audit concluded of each predictor and nuisance, and what that rests on.

    Returns:
        A row for each; ``estimate`` is the score's standard deviation over worlds that the nuisance
        alone causes, ``low`` and ``high`` are the ends of its interval, ``changed`` says how
        well the generator changes the nuisance, and ``check`` whether patients refute it.
    """
    found, said = [], {(one["about"], one["attribute"]): one for one in findings["conclusions"]}
    for name, one in findings["predictors"].items():
        for row in one["attributes"]:
            nuisance = row["attribute"]
            about = {"generator": generator, "predictor": name.partition(":")[0]}
            about |= {"nuisance": nuisance, "verdict": said[name, nuisance]["verdict"]}
            about["check"] = findings["generator"]["standardisation"][name]["answer"]
            about |= {k: round(max(row[k], 0) ** 0.5, 6) for k in ("estimate", "low", "high")}
            changed, because = trust(findings["generator"], nuisance)
            found.append(about | {"changed": changed, "because": because})
    return pd.DataFrame(found)


def _write_phantom_report(report: Path, table: Path) -> pd.DataFrame:
    """Audit with each generator, twice; write the report of the learned one, and all verdicts."""
    found = []
    with TemporaryDirectory() as name:
        for seed in _SEEDS:
            folder = Path(name, str(seed))
            folder.mkdir()
            plan = export_phantom(folder, seed=seed)
            for generator, where in _GENERATORS.items():
                path = folder / f"{generator}.yml"
                path.write_text(yaml.safe_dump(plan | {"generator": where}, sort_keys=False))
                own = _verdicts_of(generator, audit(path, folder / generator))
                found.append(own.assign(seed=seed))
        report.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(name, str(_SEEDS[0]), "learned", "report.html"), report)
    found = pd.concat(found)
    write_table(found, table)
    return found


if __name__ == "__main__":
    print(_write_phantom_report(*map(Path, sys.argv[1:])).to_string(index=False))
