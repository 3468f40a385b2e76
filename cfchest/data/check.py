"""Whether a folder can be used: what is there, what is missing, and whether its images open."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from cfchest.data.chexmask import DICE, LUNGS, TRUSTED, lung_fractions, mask_sheets
from cfchest.data.chexpert import load_chexpert
from cfchest.data.dataset import PARENTS, Dataset
from cfchest.data.layouts import CHEXMASK, LAYOUTS, elsewhere
from cfchest.data.loading import LoadOptions
from cfchest.data.mimic import load_mimic
from cfchest.data.nih import load_nih
from cfchest.data.own import load_table
from cfchest.data.sheet import sheet_header
from cfchest.graph import CHEST
from cfcore.checks import InputError, check_count

Kind = Literal["chexpert", "mimic", "nih", "table", "chexmask"]

_MASKED = {"Path": "CheXpert", "dicom_id": "MIMIC-CXR-JPG", "Image Index": "ChestX-ray8"}
"""The column by which CheXmask names the images of each data set."""


@dataclass
class Findings:
    """What was found in a folder, line by line, and what stands in the way of using it.

    Args:
        title: What was looked at.
        lines: What was found.
        problems: What must be mended first.
    """

    title: str
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        """Whether it can be used as it is."""
        return not self.problems

    def __str__(self) -> str:
        end = ["To be mended:" if self.problems else "Ready."]
        end += [f"  - {problem}" for problem in self.problems]
        return "\n".join([self.title, *(f"  {line}" for line in self.lines), *end])


def inspect_data(
    kind: Kind,
    path: Path,
    *,
    mimic_iv: Path | None = None,
    masks: Path | None = None,
    images: Path | None = None,
    columns: Mapping[str, str] | None = None,
    opened: int | None = 100,
) -> Findings:
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

    Returns:
        What was found.
    """
    if kind == "mimic" and mimic_iv is None:
        raise InputError("MIMIC-CXR has no sexes and ages without --mimic-iv FOLDER")
    if kind == "chexmask":
        return _check_masks(path)
    nih = "nih cache" if (path / "metadata.csv").is_file() else "nih"
    both = {"mimic": path, "mimic_iv": mimic_iv}
    title, folders, load = {
        "chexpert": ("CheXpert in {}", {kind: path}, partial(load_chexpert, path)),
        "mimic": ("MIMIC-CXR-JPG in {}, MIMIC-IV in {}", both, partial(load_mimic, *both.values())),
        "nih": ("NIH ChestX-ray14 in {}", {nih: path}, partial(load_nih, path)),
        "table": ("the table {}", {}, partial(load_table, path, images=images, columns=columns)),
    }[kind]
    found = Findings(title.format(path, mimic_iv))
    for layout, folder in folders.items():
        _look_for_parts(found, layout, folder)
    if kind != "table" and masks is None:
        found.lines.append(
            "no masks given: lung sizes will be missing, which predictors do not mind and "
            f"generators do ({CHEXMASK})"
        )
    if found.ready:
        _load_and_open(found, load, LoadOptions(masks=masks, unreadable="drop"), opened)
    return found


def _check_masks(path: Path) -> Findings:
    found = Findings(f"CheXmask in {path}")
    try:
        column = _mask_column(path)
        found.lines.append(f"about images of {_MASKED[column]}, named in column {column!r}")
        records, trusted, sizes = 0, 0, ()
        for sheet in mask_sheets(path, column):
            good = sheet.numbers(DICE) >= TRUSTED
            if not records:
                whole = sheet.frame[LUNGS].notna().all(axis=1)
                sizes = lung_fractions(sheet.filtered(good & whole))
            records, trusted = records + len(good), trusted + int(good.sum())
    except InputError as error:
        found.problems.append(str(error))
        return found
    good = f"{trusted:,} of them with a Dice estimate from {TRUSTED} on"
    found.lines.append(f"{records:,} masks, {good}")
    if len(sizes):
        found.lines.append(f"lung sizes {min(sizes):.3f} to {max(sizes):.3f} of the image")
    else:
        found.problems.append(f"{path} holds no mask that can be trusted")
    return found


def _mask_column(path: Path) -> str:
    named = [name for name in _MASKED if name in sheet_header(path)]
    if not named:
        raise InputError(
            f"{path} names no image: it has none of the columns "
            f"{', '.join(map(repr, _MASKED))}; is it a file of {CHEXMASK}?"
        )
    return named[0]


def _look_for_parts(found: Findings, layout: str, folder: Path) -> None:
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


def _load_and_open(
    found: Findings, load: Callable[..., Dataset], options: LoadOptions, opened: int | None
) -> None:
    """Load a data set without its missing images, describe it and open some of the others."""
    try:
        data = load(options=options)
    except InputError as error:
        found.problems.append(str(error))
        return
    found.lines += [*_counts(data), *str(data.report).splitlines()]
    for entry in data.report.entries:
        if entry.reason == "file missing":
            found.problems.append(
                f"{entry.count:,} of {entry.count + len(data):,} images are missing, such as "
                f"{entry.examples[0]}; complete the download"
            )
    _open_some(found, data, len(data) if opened is None else min(opened, len(data)))


def _counts(data: Dataset) -> list[str]:
    """How many images, patients and known values a data set has, in words."""
    table = data.table
    known = table[["sex", "age", "effusion"]].notna().all(axis=1).sum()
    lines = [
        f"{len(table):,} images of {table.patient.nunique():,} patients; sex, age and label are "
        f"known for {known:,} of the images"
    ]
    for name in PARENTS:
        values, levels = table[name].dropna(), CHEST[name].categories or ()
        told = f"{name}: known for {len(values):,} of {len(table):,} images"
        told += "".join(f", {level} {(values == i).sum():,}" for i, level in enumerate(levels))
        if len(values) and not levels:
            told += f", {values.min():.3g} to {values.max():.3g}"
        lines.append(told)
    if "split" in table:
        sizes = table.split.value_counts()
        lines.append("split: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items()))
    return lines


def _open_some(found: Findings, data: Dataset, number: int) -> None:
    """Open images at even steps through a data set."""
    check_count(number, "opened")
    rows = np.unique(np.linspace(0, len(data) - 1, number).round().astype(int))
    broken, sides = [], set()
    for row in rows:
        try:
            sides.update(data[int(row)].shape[-2:])
        except InputError as error:
            broken.append(str(error))
    size = f", sides from {min(sides)} to {max(sides)} pixels" if sides else ""
    opened = len(rows) - len(broken)
    found.lines.append(f"{opened:,} of {len(rows):,} images tried can be opened{size}")
    found.problems += broken[:3]
    if len(broken) > 3:
        found.problems.append(f"{len(broken) - 3:,} more of those tried cannot be opened")
