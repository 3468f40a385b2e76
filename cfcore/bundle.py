"""Many predictors on the same patients in the same worlds, in one file.

Ten predictors share their patients, labels, parents and grid; a file for each would hold those ten
times. A bundle holds them once, and the logits of all predictors stacked.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from cfcore.checks import InputError, check_count
from cfcore.files import write_atomically
from cfcore.marks import announced
from cfcore.predictions import Predictions, check_same_patients, part

FORMAT = 1
LOGITS = ("logit_obs", "logit_null", "logit_cf")


def save_bundle(predictions: Mapping[str, Predictions], path: str | Path) -> Path:
    """Write the predictions of several predictors to one safetensors file.

    Args:
        predictions: The predictions by the name of the predictor, all of the same patients in the
            same order, on the same grid and under the same q.
        path: Where to write, usually ``*.safetensors``; all or nothing, no pickle.

    Returns:
        The path.

    Raises:
        InputError: If there are none, or they are not about the same patients and worlds.
    """
    from safetensors.torch import save

    if not predictions:
        raise InputError("a bundle needs a predictor")
    first = next(iter(predictions.values()))
    for name, other in predictions.items():
        check_same(first, other, name)
    logits = LOGITS if first.logit_decoded is None else (*LOGITS, "logit_decoded")
    tensors = {
        name: torch.stack([getattr(p, name) for p in predictions.values()]) for name in logits
    }
    tensors |= {"q": first.q} | ({} if first.y is None else {"y": first.y})
    tensors |= {f"grid.{name}": values for name, values in first.grid.items()}
    tensors |= {f"parents.{name}": values for name, values in first.parents.items()}
    header = {"format": FORMAT, "patient": None if first.patient is None else list(first.patient)}
    header["predictors"] = {name: dict(p.provenance) for name, p in predictions.items()}
    text = json.dumps(header, allow_nan=False)  # not sorted: the order is that of the logits
    own = {name: values.detach().cpu().contiguous().clone() for name, values in tensors.items()}
    return write_atomically(path, save(own, metadata={"cfcore-bundle": text}))


def load_bundle(path: str | Path) -> dict[str, Predictions]:
    """Read what :func:`save_bundle` wrote.

    Args:
        path: A file.

    Returns:
        The predictions by the name of the predictor, on the CPU.

    Raises:
        FileNotFoundError: If there is no such file.
        InputError: If the file is damaged or something else; the message names it.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["cfcore-bundle"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        announced(header)
        if check_count(header["format"], "format") > FORMAT:
            raise InputError("written by a newer version of cfcore")
        common = {name: tensors[name] for name in ("q", "y") if name in tensors}
        common |= {"grid": part(tensors, "grid."), "parents": part(tensors, "parents.")}
        return {
            name: Predictions(
                **{name: values[i] for name, values in tensors.items() if name[:6] == "logit_"},
                **common,
                patient=header["patient"],
                provenance=provenance,
            )
            for i, (name, provenance) in enumerate(header["predictors"].items())
        }
    except (SafetensorError, KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path}: this is not a bundle, or damaged: {error}") from None


def check_same(first: Predictions, other: Predictions, name: str) -> None:
    """Refuse predictions about other patients, parents or worlds than the first."""
    check_same_patients(first, other)
    for kind in ("grid", "parents"):
        ours, theirs = getattr(first, kind), getattr(other, kind)
        if ours.keys() != theirs.keys() or any(
            not torch.equal(ours[key].nan_to_num(-1), theirs[key].nan_to_num(-1)) for key in ours
        ):
            raise InputError(f"{name!r} is on another {kind} than the first", column=kind)
    if (first.logit_decoded is None) != (other.logit_decoded is None):
        raise InputError(f"{name!r} and the first are of different generators")
    if not torch.equal(first.q, other.q):
        raise InputError(f"{name!r} is under another q than the first", column="q")
