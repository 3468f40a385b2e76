"""Stability without labels: what changes if the generator is not told them either.

Effusion is a parent of the image, so abduction is told the label, and a metric that needs no label
still used it. Here the label is hidden from the generator and imputed for everyone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from cfbook.study.cohorts import held_out
from cfbook.study.learned import RESULTS, write_table
from cfbook.study.partial import PartialRecipe
from cfbook.study.presets import Preset
from cfbook.study.recipes import GeneratorRecipe, probes
from cfbook.study.runs import PredictorId, Run
from cfbook.study.statistics import KEYS, study_predictions
from cfchest.data import Dataset
from cfchest.graph import paper_grid
from cfcore.generator import Generator, Parents
from cfcore.marginalise import marginalise
from cfcore.predictor import Predictor
from cfscm.soundness.baselines import Derived

TABLE = "label_free.csv"
_ABOUT = ["preset", "generator", "labels", "right", "patients", *KEYS]
_FOUND = ["S_var_sex", "S_var_age", "score_sex", "score_age"]


@dataclass(frozen=True)
class _Guessing(Derived):
    """A generator that is not told the effusion: it takes a guess from the image for it.

    Args:
        generator: The generator.
        guess: From images, shape (B, 1, H, W), to values of effusion, shape (B,).
    """

    guess: Callable[[Tensor], Tensor] = field(kw_only=True)
    imputes = True

    @property
    def names(self) -> tuple[str, ...]:
        """The parents that the generator needs."""
        return self.generator.names

    def impute(self, x: Tensor, pa: Parents) -> dict[str, Tensor]:
        """The parents, with the guess where effusion is missing."""
        known = pa["effusion"]
        return {**pa, "effusion": torch.where(known.isnan(), self.guess(x).to(known), known)}


def _guessers(preset: Preset) -> tuple[str, dict[str, Generator]]:
    """A generator by its name, in the ways in which it may do without the label.

    With the preset ``curve`` it is the one that learned from partly labelled images, and fills the
    label in by its own parent predictors. Otherwise it is that of the experiments, which has none:
    it takes the label from the probe of effusion, which learned from other patients, or takes
    everybody for healthy.
    """
    if preset.name == "curve":
        recipe = PartialRecipe(preset, gradient="earlier")  # the one that is kept
        return recipe.name, {"imputed by the generator": recipe.obtain()}
    recipe, reader = GeneratorRecipe(preset), probes(preset)["effusion"].obtain()
    guesses = {
        "imputed by a classifier": lambda x: (reader(x, {}) > 0).float(),
        "everybody taken for healthy": lambda x: torch.zeros(len(x)),
    }
    model = recipe.obtain()
    return recipe.name, {labels: _Guessing(model, guess=guess) for labels, guess in guesses.items()}


def collect_label_free(preset: Preset, path: Path) -> Path:
    """Stability of the trained predictors with the label recorded, and hidden from the generator.

    In setting ``C->C``, on its balanced test set, with the predictors of the first training. The
    gaps of mean scores within a label need recorded labels, and do not depend on the generator.

    Args:
        preset: The sizes; what is not kept is trained.
        path: The table to write, in which rows of other presets stay.

    Returns:
        The table: one row for each predictor and source of the label, with ``right``, the share of
        the labels that are as recorded: ``preset, generator, labels, right, patients, family,
        strength, seed, S_var_sex, S_var_age, score_sex, score_age``.
    """
    data = held_out("C", preset, "balanced")
    hidden = data.select(data.table.assign(effusion=torch.nan))
    readers = {
        member: recipe.obtain()
        for member, recipe in Run(preset, "C->C", "balanced").recipes().items()
        if member.seed == 0 and not member.family.startswith("control")
    }
    name, ways = _guessers(preset)
    recorded = answers(next(iter(ways.values())), readers, data, data)
    tables = [recorded.assign(labels="recorded", right=1.0)]
    for labels, model in ways.items():
        found = answers(model, readers, hidden, data)
        tables.append(found.assign(labels=labels, right=_share_right(model, hidden, data)))
    found = pd.concat(tables).assign(preset=preset.name, generator=name, patients=len(data))
    kept = pd.read_csv(path).query("preset != @preset.name") if path.is_file() else None
    return write_table(pd.concat([kept, found[[*_ABOUT, *_FOUND]]]), path)


@torch.inference_mode()
def _share_right(model: Generator, hidden: Dataset, data: Dataset) -> float:
    """The share of hidden labels that a generator imputes as they were recorded."""
    own = {name: hidden.parents[name] for name in model.names}
    guess = [
        model.impute(x, {name: values[rows] for name, values in own.items()})["effusion"]
        for rows, x, _ in hidden.batches(128)
    ]
    return (torch.cat(guess) == data.parents["effusion"]).double().mean().item()


def answers(
    model: Generator, readers: Mapping[PredictorId, Predictor], rows: Dataset, data: Dataset
) -> pd.DataFrame:
    """How each predictor answers to sex and age, by worlds and by groups.

    Args:
        model: The generator.
        readers: The predictors.
        rows: The patients as the generator knows them.
        data: The same patients as they were recorded.
    """
    said = marginalise(model, {m.name: reader for m, reader in readers.items()}, rows, paper_grid())
    pa = data.parents
    given = {m: replace(said[m.name], y=pa["effusion"].long(), parents=pa) for m in readers}
    return study_predictions(given, replicates=2).frame()[[*KEYS, *_FOUND]]


def label_free_table() -> pd.DataFrame:
    """The claim ``label-free`` with recorded and with imputed labels, from the committed table.

    Returns:
        One row for each preset and source of the label: ``right``, ``patients``, ``predictors``,
        and for each attribute the correlation ``r_sex, r_age`` of the root of its ``S_var`` with
        the gap of scores over the predictors, and ``moved_sex, moved_age``, the largest change of
        that ``S_var`` against recorded labels, in per cent.

    Example:
        >>> label_free_table()["labels"].tolist()[:2]
        ['recorded', 'imputed by a classifier']
    """
    frame, rows = pd.read_csv(RESULTS / TABLE), []
    for (preset, labels), own in frame.groupby(["preset", "labels"], sort=False):
        first = frame[(frame.preset == preset) & (frame.labels == "recorded")].set_index(KEYS)
        about = own.iloc[0][["generator", "right", "patients"]].to_dict()
        row = {"preset": preset, "labels": labels} | about | {"predictors": len(own)}
        own = own.set_index(KEYS)
        for name in ("sex", "age"):
            spread = own[f"S_var_{name}"]
            row[f"r_{name}"] = (spread**0.5).corr(own[f"score_{name}"])
            moved = 100 * (spread / first[f"S_var_{name}"] - 1)
            row[f"moved_{name}"] = moved[moved.abs().idxmax()]
        rows.append(row)
    return pd.DataFrame(rows)
