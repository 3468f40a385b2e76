"""Predictors of effusion with biases planted by sex, age and view, and size-matched controls."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from cfbook.real.sizes import Sizes
from cfbook.real.work import Work
from cfchest.cohorts import drop_age, drop_sex, drop_view, match_size
from cfchest.data import Dataset
from cfchest.graph import VIEWS
from cfcore.graph import CausalGraph, Variable
from cfcore.marks import check_place, marked
from cfscm.networks import ImageNetwork, PredictorConfig, build, load, save
from cfscm.training import train

DROPPING = {"sex": drop_sex, "age": drop_age, "view": drop_view}
"""The paper's dropping scheme, by the attribute that is made to go along with the disease."""
LABEL = "effusion"


@dataclass(frozen=True)
class Planted:
    """One predictor: the bias of its training set, if any, and the seed of its training.

    Args:
        attribute: What the bias goes by, ``"sex"``, ``"age"`` or ``"view"``; ``""`` for none.
        strength: The strength of the bias.
        control: Whether it is trained without bias on as many images as that bias leaves.

    Example:
        >>> Planted("view", 0.8, control=True, seed=2).name
        'control-view-0.8-2'
    """

    attribute: str = ""
    strength: float = 0.0
    control: bool = False
    seed: int = 0

    @property
    def name(self) -> str:
        """What it is called in tables and files."""
        bias = f"{self.attribute}-{self.strength:g}" if self.attribute else "basic"
        return f"{'control-' * self.control}{bias}-{self.seed}"

    def kept(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a training table that it learns from."""
        if not self.attribute:
            return table
        biased = DROPPING[self.attribute](table, self.strength, seed=self.seed)
        return match_size(table, len(biased), seed=self.seed) if self.control else biased


def planned(sizes: Sizes) -> list[Planted]:
    """The predictors that are judged on the test patients."""
    found = [Planted(seed=seed) for seed in range(sizes.trainings)]
    return found + [
        Planted(attribute, strength, control, seed)
        for attribute in DROPPING
        for strength in sizes.strengths
        for control in (False, True)
        for seed in range(sizes.trainings)
    ]


def planned_in_folds(sizes: Sizes) -> list[Planted]:
    """The predictors that are trained in each fold, and judged on pairs of visits."""
    kinds = (
        ("", 0.0, False),
        ("view", sizes.pair_strength, False),
        ("view", sizes.pair_strength, True),
    )
    return [Planted(*kind, seed) for kind in kinds for seed in range(sizes.pair_trainings)]


def network_of(
    work: Work, path: Path, variable: Variable, parts: tuple[Dataset, Dataset], seed: int
) -> ImageNetwork:
    """A small network that reads a variable, found trained or trained now on the first part.

    Its weights are those of the epoch with the lowest loss on the second part.
    """
    graph = CausalGraph([variable])
    if path.is_file():
        return load(path, graph=graph).to(work.device)
    check_place(path, parts[0].restricted)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = build(PredictorConfig(variable.name), graph=graph, seed=seed)
    known = [{**part.labels, **part.parents}[variable.name] for part in parts]
    images = [part[:] for part in parts]
    how = {"validation": (images[1], known[1]), "seed": seed, "config": work.sizes.training}
    how["device"] = work.device
    epochs = [asdict(epoch) for epoch in train(made, images[0], known[0], **how)]
    notes = {"images": len(parts[0]), "epochs": epochs} | marked(parts[0].restricted)
    save(made.cpu(), path, seed=seed, notes=notes)
    return load(path, graph=graph).to(work.device)


def predictor_path(work: Work, planted: Planted, part: str = "") -> Path:
    """The file of the weights of a predictor."""
    return work.made / "predictors" / f"{f'{part}-' if part else ''}{planted.name}.safetensors"


def predictor(work: Work, planted: Planted, part: str = "") -> ImageNetwork:
    """A predictor, found trained or trained now.

    Args:
        part: ``""`` for the training patients, or a fold, by whose other half it is taught.
    """
    words, path = f"{part} " if part else "", predictor_path(work, planted, part)
    rows = planted.kept(work.rows[f"{words}fit"])
    parts = work.chosen(rows), work.part(f"{words}stop")
    return network_of(work, path, VIEWS[LABEL], parts, planted.seed)


def train_all(work: Work, part: str = "", seed: int | None = None) -> Iterator[str]:
    """Train what is not trained yet, of one seed or of all, and name each."""
    plan: Callable = planned_in_folds if part else planned
    for planted in plan(work.sizes):
        if seed in (None, planted.seed):
            predictor(work, planted, part)
            yield f"{part} {planted.name}".strip()
