"""A marginalisation described in words, as on the command line, and kept in a folder."""

import importlib
import inspect
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from cfbook.study.cohorts import test_set
from cfbook.study.recipes import Preset, Recipe, obtain, patients
from cfbook.study.recipes import preset as find_preset
from cfchest.data import Dataset, LoadOptions, load_table
from cfchest.folders import Folders, check_given, identity
from cfchest.graph import CHEST, paper_grid
from cfchest.offsets import LogitOffset
from cfcore import __version__
from cfcore.checks import InputError
from cfcore.files import check_writable, write_atomically
from cfcore.generator import Effect, Generator
from cfcore.interventions import Grid, parse_values
from cfcore.marginalise import marginalise
from cfcore.marks import check_place, marked
from cfcore.predictions import Predictions
from cfcore.predictor import Predictor, check_device
from cfcore.shards import Processes
from cfscm.networks import load

OFFSETS = (0.5, 1.0, 2.0)


def marginalise_to_folder(
    out: Path,
    *,
    preset: str = "smoke",
    hospital: str = "C",
    folders: Folders | None = None,
    data: Path | None = None,
    images: Path | None = None,
    columns: Mapping[str, str] | None = None,
    size: int | None = None,
    generator: str | None = None,
    predictors: Sequence[str] = (),
    do: Sequence[str] = (),
    q: str = "uniform",
    effect: Effect = "direct",
    draws: int | None = None,
    device: str = "cpu",
    max_images: int = 144,
) -> list[Path]:
    """Run a marginalisation and write one file for each predictor, and a manifest.

    Args:
        out: The folder to write to, made if need be; finished shards are kept in ``out/shards``.
        preset: The sizes, and the predictors that are used unless others are named.
        hospital: The hospital, ``"C"`` or ``"M"``.
        folders: Where real patients are, to use instead of the phantom's; needs a generator.
        data: A table of images to use instead; needs a generator.
        images: Of ``data``: where its images are, a folder or an ``.npz``.
        columns: Of ``data``: from the names of the schema to those of the file.
        size: Of ``data``: the side to which its images are resized; by default they keep their own.
        generator: ``module:name`` of a generator, or of a function without arguments that makes
            one; by default the phantom's oracle.
        predictors: ``name=file.safetensors`` or ``name=module:name`` of each predictor.
        do: Values to set, as in :func:`~cfcore.interventions.parse_values`.
        q: ``"uniform"``, ``"empirical"`` or a CSV file with a column ``count``.
        effect: ``"direct"`` or ``"total"``.
        draws: Monte Carlo draws for each patient, instead of the whole grid.
        device: Where to compute.
        max_images: Images in flight.

    Returns:
        The files that were written, the manifest last.
    """
    device = own_device(device)
    check_device(device)
    sizes = find_preset(preset) if folders is None else find_preset(preset, folders=folders)
    check_source(hospital, sizes, data, generator)
    if data is None:
        if images is not None or columns or size is not None:
            raise InputError(
                "images, columns and size belong to a table of your own: name it by data"
            )
        cohort = test_set(hospital, sizes, "balanced")
    else:
        cohort = load_table(data, LoadOptions(size=size), images=images, columns=columns)
    model = patients(hospital, sizes).oracle if generator is None else imported(generator)
    model = model.to(device) if isinstance(model, torch.nn.Module) else model
    grid = weighted(Grid.product(dict(map(parse_values, do))) if do else paper_grid(), q, cohort)
    readers = own_predictors(predictors)
    check_place(out / "any", cohort.restricted)
    check_writable(out)  # before anything is trained
    readers = readers or default_predictors(hospital, sizes, device)

    facts = {"preset": preset, "hospital": hospital, "data": None if data is None else str(data)}
    facts |= {"columns": dict(columns or {}), "size": size}
    facts |= {"generator": generator or "oracle", "do": list(do), "q": q, "draws": draws}
    if data is None and sizes.folders is not None:
        facts |= {"table": identity(hospital, sizes.folders, sizes.size)}
    facts |= marked(cohort.restricted)
    facts |= {"versions": {"cfcore": __version__, "torch": torch.__version__}}
    found = marginalise(
        model,
        on_device(readers, device),
        cohort,
        grid,
        effect=effect,
        draws=draws,
        device=device,
        max_images=max_images,
        resume_dir=out / "shards",
        progress=True,
        provenance=facts,
    )
    return write(out, found, facts) if Processes.current(torch.device(device)).rank == 0 else []


def check_source(hospital: str, preset: Preset, data: Path | None, generator: str | None) -> None:
    """Refuse real patients that are not given, or that no generator is named for."""
    if data is None and preset.folders is not None:
        check_given(hospital, preset.folders)
    if generator is None and (data is not None or preset.folders is not None):
        raise InputError(
            "the phantom's oracle knows the phantom only: name a generator for other images"
        )


def write(out: Path, found: dict[str, Predictions], facts: dict[str, object]) -> list[Path]:
    """Write the predictions, and a manifest that lists them."""
    paths = [given.save(out / f"{name}.safetensors") for name, given in found.items()]
    manifest = facts | {"files": [path.name for path in paths], "python": platform.python_version()}
    text = json.dumps(manifest, indent=2) + "\n"
    return [*paths, write_atomically(out / "manifest.json", text.encode())]


def default_predictors(hospital: str, preset: Preset, device: str = "cpu") -> dict[str, Predictor]:
    """The basic predictor of a preset, trained if need be, and its logit offsets."""
    basic = obtain(Recipe(preset, hospital), device=device, progress=True)
    return {"basic": basic, **{f"logit-{b:g}": LogitOffset(basic, b) for b in OFFSETS}}


def own_predictors(words: Sequence[str]) -> dict[str, Predictor]:
    """Predictors as named on the command line."""
    named = {}
    for word in words:
        name, _, where = word.partition("=")
        if not name or not where:
            raise InputError(f"{word!r} is not of the form NAME=FILE", column="predictor")
        if Path(name).name != name or name in named:
            raise InputError(f"{name!r} cannot name a file of its own", column="predictor")
        named[name] = (
            load(where, graph=CHEST) if where.endswith(".safetensors") else imported(where)
        )
    return named


def imported(where: str) -> Generator | Predictor | Callable[[], Generator]:
    """An object by ``module:name``; a class or a function without arguments is called.

    Example:
        >>> imported("math:pi")
        3.141592653589793
    """
    module, _, name = where.partition(":")
    if not module or not name:
        raise InputError(f"{where!r} is neither a *.safetensors file nor of the form MODULE:NAME")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # where the user's plug-in is
    try:
        thing = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the user's module does
        raise InputError(
            f"{where!r} cannot be imported from {Path.cwd()} or installed packages: {error}"
        ) from None
    return thing() if makes_one(thing) else thing


def makes_one(thing: object) -> bool:
    """Whether a thing is a class, or a function that needs no arguments.

    Example:
        >>> makes_one(lambda: 1), makes_one(lambda x, pa: 1), makes_one(torch.nn.Identity())
        (True, False, False)
    """
    if not inspect.isfunction(thing):
        return isinstance(thing, type)
    options = inspect.signature(thing).parameters.values()
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(option.default is not option.empty or option.kind in optional for option in options)


def weighted(grid: Grid, q: str, data: Dataset) -> Grid:
    """A grid weighted by name or by a file."""
    if q == "uniform":
        return grid
    if q == "empirical":
        table = data.table.dropna(subset=list(grid.values))
        return grid.empirical({name: np.array(table[name]) for name in grid.values})
    import pandas as pd

    if not Path(q).is_file():
        raise InputError(f"{q!r} is neither uniform, empirical nor a file", column="q")
    return grid.external(pd.read_csv(q))


def own_device(device: str) -> str:
    """The device of this process: under ``torchrun``, ``"cuda"`` is a GPU of its own.

    Example:
        >>> own_device("cuda"), own_device("cpu")
        ('cuda', 'cpu')
    """
    rank = os.environ.get("LOCAL_RANK")
    return f"cuda:{rank}" if device == "cuda" and rank is not None else device


def on_device(predictors: dict[str, Predictor], device: str) -> dict[str, Predictor]:
    """Networks moved to a device; functions as they are."""
    for predictor in predictors.values():
        if isinstance(predictor, torch.nn.Module):
            predictor.to(device).eval()
    return predictors
