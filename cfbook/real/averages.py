"""Mean changes of the image under each intervention: averages over many patients, never one."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cfbook.real.drawing import generator
from cfbook.real.work import FOLDS, Work
from cfbook.shareable import LEAST
from cfcore.checks import InputError
from cfcore.files import write_atomically
from cfcore.generator import counterfactuals
from cfcore.marks import marked

_CHANGES = {
    "do(sex = female)": ("sex", 1.0),
    "do(view = AP)": ("view", 1.0),
    "do(age + 20)": ("age", 20.0),
}
"""What is set, and how: the other value of a binary variable, more years of age."""


def mean_changes(work: Work, least: int = LEAST) -> Path:
    """The mean change of the image under each intervention, over one image of each patient.

    Those of whom the intervention changes nothing do not count. Every patient's counterfactual is
    drawn by the generator of the fold that never saw them.
    """
    path = work.made / "averages.safetensors"
    if path.is_file():
        return path
    sums, counts = dict.fromkeys(_CHANGES, 0.0), dict.fromkeys(_CHANGES, 0)
    for fold in FOLDS:
        for name, change in _changes(work, fold):
            sums[name], counts[name] = sums[name] + change.sum(dim=0), counts[name] + len(change)
    enough = {name: sums[name] / counts[name] for name in _CHANGES if counts[name] >= least}
    _write_averages(path, enough, {name: counts[name] for name in enough}, work.data.restricted)
    return path


def _changes(work: Work, fold: str) -> list[tuple[str, Tensor]]:
    """The change of the image of each patient of a fold, shape (N, 1, H, W), by intervention."""
    data, found = work.part(fold), []
    first = ~data.table.duplicated("patient").to_numpy()
    data, made = data.take(np.flatnonzero(first)), generator(work, fold)
    for name, (variable, value) in _CHANGES.items():
        own = data.parents[variable]
        new = own + value if variable == "age" else torch.full_like(own, value)
        some = np.flatnonzero((new != own).numpy() & (new <= 100).numpy())
        for rows in np.array_split(some, -(-len(some) // 64)) if len(some) else ():
            x = data[rows].to(work.device)
            pa = {n: v[rows].to(work.device) for n, v in data.parents.items()}
            with torch.inference_mode():
                drawn = counterfactuals(made, x, pa, {variable: new[rows]})
            found.append((name, (drawn.clamp(0, 1) - x).cpu()))
    return found


def _write_averages(
    path: Path, images: dict[str, Tensor], patients: dict[str, int], sources: tuple[str, ...]
) -> None:
    """Write averages with the number of patients behind each."""
    from safetensors.torch import save

    header = {"averages": [{"name": name, "patients": patients[name]} for name in images]}
    text = {"cfcore": json.dumps(header | marked(sources))}
    tensors = {name: image.float().contiguous() for name, image in images.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, save(tensors, metadata=text))


def read_averages(path: Path) -> dict[str, tuple[Tensor, int]]:
    """Averages and the number of patients behind each; one of too few is refused."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["cfcore"])["averages"]
        found = {each["name"]: (file.get_tensor(each["name"]), each["patients"]) for each in header}
    for name, (_, patients) in found.items():
        if patients < LEAST:
            raise InputError(f"{path}: {name} is an average over {patients} patients only")
    return found
