"""Whether a folder can be used: what is there, what is missing, and whether its images open."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from cfchest.cohorts import labelled
from cfchest.data.chexmask import DICE, LUNGS, TRUSTED, lung_fractions, mask_sheets
from cfchest.data.chexpert import load_chexpert
from cfchest.data.dataset import FINDINGS, PARENTS, Dataset
from cfchest.data.layouts import CHEXMASK, LAYOUTS, elsewhere
from cfchest.data.loading import LoadOptions, failures
from cfchest.data.mimic import load_mimic
from cfchest.data.nih import load_nih
from cfchest.data.own import load_table
from cfchest.data.sheet import sheet_header
from cfchest.graph import CHEST
from cfcore.checks import InputError, check_count

_Kind = Literal["chexpert", "mimic", "nih", "table", "chexmask"]
_MASKED = {"Path": "CheXpert", "dicom_id": "MIMIC-CXR-JPG", "Image Index": "ChestX-ray8"}
"""The column by which CheXmask names the images of each data set."""
_TITLES = {
    "chexpert": "CheXpert in", "mimic": "MIMIC-CXR-JPG in", "nih": "NIH ChestX-ray14 in",
    "table": "the table", "chexmask": "CheXmask in",
}  # fmt: skip


@dataclass
class _Findings:
    """What was found in a folder, line by line, and what stands in the way of using it."""

    title: str
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    data: Dataset | None = None

    @property
    def ready(self) -> bool:
        """Whether it can be used as it is."""
        return not self.problems

    def __str__(self) -> str:
        end = ["To be mended:" if self.problems else "Ready."]
        end += [f"  - {problem}" for problem in self.problems]
        return "\n".join([self.title, *(f"  {line}" for line in self.lines), *end])


def inspect_data(
    kind: _Kind,
    path: Path,
    *,
    mimic_iv: Path | None = None,
    masks: Path | None = None,
    images: Path | None = None,
    columns: Mapping[str, str] | None = None,
    opened: int | None = 100,
) -> _Findings:
    """Look for every part of a data set, then load it and open some of its images.

    Args:
        kind: What it is: a published data set, your own table, or a file of CheXmask, of which all
            records are counted and the masks of the first few thousand decoded.
        path: The folder, or the CSV file.
        mimic_iv: The folder of MIMIC-IV, which ``"mimic"`` needs.
        masks: The file of CheXmask for a published data set, if there is one.
        images: The folder of the images of a table, or their ``.npz``.
        columns: From the names of the schema to those of a table.
        opened: How many images to open; None opens all.
    """
    if kind == "mimic" and mimic_iv is None:
        raise InputError("MIMIC-CXR has no sexes and ages without --mimic-iv FOLDER")
    if opened is not None:
        check_count(opened, "opened")
    nih = "nih cache" if (path / "metadata.csv").is_file() else "nih"
    found = _Findings(f"{_TITLES[kind]} {path}")
    folders = {"chexpert": {kind: path}, "nih": {nih: path}}.get(kind, {})
    if kind == "mimic":
        found.title += f", MIMIC-IV in {mimic_iv}"
        folders = {"mimic": path, "mimic_iv": mimic_iv}
    for layout, folder in folders.items():
        _look_for_parts(found, layout, folder)
    if folders and masks is None:
        lost = "lung sizes will be missing, which predictors do not mind and generators do"
        found.lines.append(f"no masks given: {lost} ({CHEXMASK})")
    options = LoadOptions(masks=masks, unreadable="drop")
    load = {
        "chexpert": lambda: load_chexpert(path, options),
        "mimic": lambda: load_mimic(path, mimic_iv, options),
        "nih": lambda: load_nih(path, options),
        "table": lambda: load_table(path, options, images=images, columns=columns),
    }
    try:
        if kind == "chexmask":
            _check_masks(found, path)
        elif found.ready:
            found.data = load[kind]()
            _open_some(found, found.data, opened)
    except InputError as error:
        found.problems.append(str(error))
    return found


def _check_masks(found: _Findings, path: Path) -> None:
    named = [name for name in _MASKED if name in sheet_header(path)]
    if not named:
        none = f"it has none of the columns {', '.join(map(repr, _MASKED))}"
        raise InputError(f"{path} names no image: {none}; is it a file of {CHEXMASK}?")
    column, records, trusted, sizes = named[0], 0, 0, ()
    found.lines.append(f"about images of {_MASKED[column]}, named in column {column!r}")
    for sheet in mask_sheets(path, column):
        good = sheet.numbers(DICE) >= TRUSTED
        if not records:
            whole = sheet.frame[LUNGS].notna().all(axis=1)
            sizes = lung_fractions(sheet.filtered(good & whole))
        records, trusted = records + len(good), trusted + int(good.sum())
    good = f"{trusted:,} of them with a Dice estimate from {TRUSTED} on"
    found.lines.append(f"{records:,} masks, {good}")
    if not len(sizes):
        raise InputError(f"{path} holds no mask that can be trusted")
    found.lines.append(f"lung sizes {min(sizes):.3f} to {max(sizes):.3f} of the image")


def _look_for_parts(found: _Findings, layout: str, folder: Path) -> None:
    """Say of every file of a layout whether it is there."""
    if not folder.is_dir():
        found.problems.append(f"{folder} is {'a file' if folder.exists() else 'missing'}")
        return
    needed = []
    for part in LAYOUTS[layout].values():
        path = part.find(folder)
        if path is not None:
            name = path.relative_to(folder if path.is_relative_to(folder) else folder.parent)
            found.lines.append(f"there    {name}: {part.purpose}")
        elif part.needed:
            needed.append(part)
        else:
            found.lines.append(f"missing  {part}; not needed")
    first = next(iter(LAYOUTS[layout].values()))
    meant = elsewhere(layout, folder) if first in needed else None
    if meant is not None:
        found.problems.append(f"{folder} is not the folder itself: give {meant}")
    else:
        found.problems += [f"{folder} has no {part}" for part in needed]


def _open_some(found: _Findings, data: Dataset, opened: int | None) -> None:
    """Describe a data set loaded without its missing images, and open some at even steps."""
    found.lines += [*_counts(data), *str(data.report).splitlines()]
    for entry in data.report.entries:
        if entry.reason == "file missing":
            share = f"{entry.count:,} of {entry.count + len(data):,} images"
            problem = f"{share} are missing, such as {entry.examples[0]}; complete the download"
            found.problems.append(problem)
    tried = len(data) if opened is None else min(opened, len(data))
    rows, sides = np.unique(np.linspace(0, len(data) - 1, tried).round().astype(int)), set()

    def opened_one(row: np.ndarray) -> Tensor:
        sides.update((x := data[row]).shape[-2:])
        return x

    broken, dark = failures(opened_one, rows.tolist())
    size = f", sides from {min(sides)} to {max(sides)} pixels" if sides else ""
    good = f"{len(rows) - len(broken):,} of {len(rows):,} images tried"
    found.lines.append(f"{good} can be opened{size}")
    if dark:
        first = data.table.get("file", data.table.image)[dark[0]]
        found.lines.append(f"{len(dark):,} of them show nothing, such as {first}")
    found.problems += list(broken.values())[:3]
    if len(broken) > 3:
        found.problems.append(f"{len(broken) - 3:,} more of those tried cannot be opened")


def _counts(data: Dataset) -> list[str]:
    """How many images, patients and known values a data set has, in words."""
    table, known = data.table, len(labelled(data.table))
    told = f"{len(table):,} images of {table.patient.nunique():,} patients; sex, age and label are"
    lines = [f"{told} known for {known:,} of the images"]
    for name in PARENTS:
        values, levels = table[name].dropna(), CHEST[name].categories or ()
        told = f"{name}: known for {len(values):,} of {len(table):,} images"
        told += "".join(f", {level} {(values == i).sum():,}" for i, level in enumerate(levels))
        if len(values) and not levels:
            told += f", {values.min():.3g} to {values.max():.3g}"
        lines.append(told)
    both = (table.groupby("patient").view.nunique() > 1).sum()
    told = ", ".join(f"{name} {n:,}" for name, n in table.view.value_counts().sort_index().items())
    lines.append(f"view: {told or 'known for no image'}; {both:,} patients have both")
    lines.append(f"minors: {(table.age < 18).sum():,} images")
    for name in (name for name in FINDINGS if name in table):
        ill = table[table[name] == 1]
        lines.append(f"{name}: {len(ill):,} images of {ill.patient.nunique():,} patients")
    if "split" in table:
        sizes = table.split.value_counts()
        lines.append("split: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items()))
    return lines
