"""The paper's last figure: four patients under one intervention after the other, then all at once.

The panels are small and come with the project; the generator that drew them does not.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from cfbook.study.cohorts import parts, phantom_cohort
from cfbook.study.partial import PartialRecipe
from cfchest.data import Dataset
from cfchest.graph import CHEST
from cfcore.files import write_atomically
from cfcore.generator import Generator
from cfscm.model import DeepSCM

EXAMPLES = "missing_examples.safetensors"

PATIENTS = (
    {"race": 0, "effusion": 1, "age": 52, "sex": 0},
    {"race": 2, "effusion": 0, "age": 77, "sex": 1},
    {"race": 0, "effusion": 1, "age": 52, "sex": 0},
    {"race": 2, "effusion": 0, "age": 68, "sex": 1},
)
"""The patients of the paper's last figure: race, disease, age and sex, as its captions say."""

ACTIONS = (
    {"age": 22, "effusion": 0, "race": 2, "sex": 1},
    {"age": 20, "effusion": 1, "race": 0, "sex": 0},
    {"age": 82, "effusion": 0, "race": 1, "sex": 1},
    {"age": 35, "effusion": 1, "race": 0, "sex": 0},
)
"""What is done to each of them, one after the other, and then all at once."""


def caption(values: Mapping[str, float]) -> str:
    """Values in the words of the paper's captions.

    Example:
        >>> caption({"race": 0, "effusion": 1, "age": 52, "sex": 0})
        'white, diseased, 52-year-old, male'
        >>> caption({"age": 22})
        'age=22'
    """
    words = {
        "race": CHEST["race"].categories,
        "effusion": ("healthy", "diseased"),
        "sex": CHEST["sex"].categories,
    }
    if set(values) == {"age"}:
        return f"age={values['age']:g}"
    return ", ".join(
        f"{value:g}-year-old" if name == "age" else words[name][int(value)]
        for name, value in values.items()
    )


def alike(data: Dataset, patient: dict[str, float], *, besides: Iterable[int] = ()) -> int:
    """The row of the test patient nearest in age, of the same race, sex and label."""
    table, same = data.table, ["race", "effusion", "sex"]
    rows = table[(table[same] == [patient[name] for name in same]).all(axis=1)]
    rows = rows.drop(index=list(besides), errors="ignore")
    return int((rows.age - patient["age"]).abs().idxmin())


def examples(model: DeepSCM, truth: Generator, data: Dataset) -> tuple[Tensor, Tensor, list[int]]:
    """The panels of the paper's last figure, and what they should look like.

    Args:
        model: The generator.
        truth: The generator of true counterfactuals.
        data: The patients among whom those of the captions are looked for.

    Returns:
        Learned and true panels, each of shape (4, 6, H, W), uint8, the observed image first;
        and the rows of the patients.
    """
    rows: list[int] = []
    for patient in PATIENTS:
        rows.append(alike(data, patient, besides=rows))
    chosen = data.take(rows)
    x, pa = chosen[:], chosen.parents
    index = torch.tensor(chosen.table.image.to_numpy().copy())
    do = {n: torch.tensor([float(a[n]) for a in ACTIONS]) for n in ACTIONS[0]}
    drawn = []
    with torch.no_grad():
        for generator in (model, truth):
            noise = generator.abduct(x, pa, index=index)
            worlds = [generator.act(pa, {name: value}) for name, value in do.items()]
            panels = [x] + [generator.predict(noise, w) for w in (*worlds, generator.act(pa, do))]
            drawn.append((torch.cat(panels, dim=1) * 255).round().to(torch.uint8))
    return drawn[0], drawn[1], rows


def collect_examples(recipe: PartialRecipe, path: Path, *, folder: Path) -> Path:
    """Draw the paper's last figure by one generator, and keep its panels; see :func:`examples`.

    Args:
        recipe: The generator.
        path: The file, ``*.safetensors``, with ``learned``, ``true`` and the ``rows`` of patients.
        folder: Where generators are kept.
    """
    from safetensors.torch import save

    model, preset = recipe.obtain(cache=folder), recipe.preset
    everybody, oracle = parts("C", preset)["test"], phantom_cohort("C", preset).oracle
    learned, true, rows = examples(model, oracle, everybody)
    panels = {"learned": learned, "true": true, "rows": torch.tensor(rows)}
    return write_atomically(path, save(panels))
