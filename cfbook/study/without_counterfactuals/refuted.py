r"""How often observed patients refute learned generators, on patients drawn by a seed of their own.

**Design**, fixed before any result. Test sets of 1,000 patients are drawn without replacement from
those whose worlds are known, each with a pool of 8,000 of those of whom only the image is known, as
in :mod:`cfbook.study.without_counterfactuals.size`. Asked is :func:`cfcore.check_generator` at the
level 95 %, for the ten predictors of a setting: seven networks and three offsets of the first. The
oracle stands beside the generators: it should be refuted in 5 % of the sets.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from cfbook.study.learned import write_table
from cfbook.study.presets import Preset
from cfbook.study.recipes import DetailedRecipe, GeneratorRecipe
from cfbook.study.runs import BETAS, PredictorId
from cfbook.study.without_counterfactuals.bank import Bank, bank_recipes
from cfbook.study.without_counterfactuals.size import set_answers, shares
from cfchest.data import from_phantom
from cfchest.graph import paper_grid
from cfchest.phantom import Phantom
from cfcore.marginalise import marginalise

REFUTED = "refuted_fresh.csv"


def collect_refuted(
    preset: Preset,
    out: Path,
    *,
    cohort: int,
    seeds: Iterable[int] = range(2),
    patients: int = 2_000,
    observed: int = 40_000,
    sets: int = 100,
    test: int = 1_000,
    pool: int = 8_000,
) -> Path:
    """In how many test sets the autoencoder, each flow and the oracle are refuted.

    Args:
        cohort: The seed of the patients; those of whom the image alone is known have the next one.
        seeds: Of the trainings of the generator with a flow.
        patients, observed: How many of either there are.
        sets: Test sets.
        test, pool: Patients of a test set and of its pool.
    """
    bank = _filled(preset, cohort, seeds, patients, observed)
    every = tqdm(range(sets), desc="test sets")
    how = {"test": test, "pool": pool}
    rows = [one for number in every for one in set_answers(bank, number, list(bank.made), **how)]
    table = shares(pd.DataFrame(rows)).assign(patients=patients, cohort=cohort)
    return write_table(table, out / REFUTED)


def _filled(
    preset: Preset, cohort: int, seeds: Iterable[int], patients: int, observed: int
) -> Bank:
    """The worlds of the patients, and what is observed of the others."""
    readers = {name: recipe.obtain() for name, recipe in bank_recipes(preset).items()}
    drawn, more = (
        Phantom(preset.size).sample(count, hospital="C", seed=seed)
        for count, seed in ((patients, cohort), (observed, cohort + 1))
    )
    data, others, grid = from_phantom(drawn), from_phantom(more), paper_grid()
    generators = {"oracle": drawn.oracle, "autoencoder": GeneratorRecipe(preset).obtain()}
    generators |= {f"flow {s}": DetailedRecipe(preset, seed=s).obtain() for s in seeds}
    made = {}
    for name, generator in generators.items():
        said = marginalise(generator, readers, data, grid, progress=True)
        made[name] = np.stack([said[each].logit_cf.numpy() for each in readers], axis=-1)
    own = np.stack([said[each].logit_obs.numpy() for each in readers], axis=-1)
    with torch.inference_mode():
        read = [torch.stack([g(b.x, b.pa) for g in readers.values()], 1) for b in others.batches()]
    parents = {n: torch.cat([data.parents[n], others.parents[n]]).numpy() for n in data.parents}
    table = pd.DataFrame(parents).astype(float).rename(columns={"effusion": "y"})
    table = table[[*table.columns.drop("y"), "y"]]
    table = table.assign(patient=np.arange(len(table)).astype(str))
    seen = np.concatenate([own, torch.cat(read).numpy()])
    return _with_offsets(Bank(table, list(readers), seen, made, grid))


def _with_offsets(bank: Bank) -> Bank:
    """The same bank with the three offsets of its first predictor."""
    own, worlds = bank.table.sex.to_numpy(), bank.worlds["sex"]
    names = [*bank.predictors, *(PredictorId("logit", beta, 0).name for beta in BETAS)]
    seen = [bank.observed[:, 0] + beta * own for beta in BETAS]
    made = {}
    for name, logits in bank.made.items():
        moved = [logits[..., 0] + beta * worlds for beta in BETAS]
        made[name] = np.concatenate([logits, np.stack(moved, axis=-1)], axis=-1)
    observed = np.concatenate([bank.observed, np.stack(seen, axis=-1)], axis=-1)
    return replace(bank, predictors=names, observed=observed, made=made)
