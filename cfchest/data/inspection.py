"""Whether a folder can be used: what is there, what is missing, and whether its images open."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from cfchest.data.chexmask import CHUNK, DICE, LUNGS, fractions
from cfchest.data.chexpert import load_chexpert
from cfchest.data.dataset import PARENTS, RACES, Dataset
from cfchest.data.layouts import LAYOUTS, PHYSIONET, Part, elsewhere
from cfchest.data.mimic import load_mimic
from cfchest.data.nih import load_nih
from cfchest.data.own import load_table
from cfchest.data.sheet import read_chunks, read_header
from cfcore.checks import InputError, check_count

MASKS = {"Path": "CheXpert", "dicom_id": "MIMIC-CXR-JPG", "Image Index": "ChestX-ray8"}
"""The column by which CheXmask names the images of each data set."""


@dataclass
class Inspection:
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
        text = [self.title, *(f"  {line}" for line in self.lines)]
        if self.ready:
            return "\n".join([*text, "Ready."])
        return "\n".join([*text, "To be mended:", *(f"  - {each}" for each in self.problems)])


def inspect_chexpert(
    root: Path, *, masks: Path | None = None, opened: int = 100, every: bool = False
) -> Inspection:
    """Look at a folder of CheXpert; see :func:`inspect_folder`."""
    found = Inspection(f"CheXpert in {root}")
    load = partial(load_chexpert, root, size=None)
    return inspect_folder(found, {"chexpert": root}, load, masks, opened, every)


def inspect_mimic(
    root: Path,
    mimic_iv: Path,
    *,
    masks: Path | None = None,
    opened: int = 100,
    every: bool = False,
) -> Inspection:
    """Look at the folders of MIMIC-CXR-JPG and of MIMIC-IV; see :func:`inspect_folder`."""
    found = Inspection(f"MIMIC-CXR-JPG in {root}, MIMIC-IV in {mimic_iv}")
    load = partial(load_mimic, root, mimic_iv, size=None)
    return inspect_folder(found, {"mimic": root, "mimic_iv": mimic_iv}, load, masks, opened, every)


def inspect_nih(
    root: Path, *, masks: Path | None = None, opened: int = 100, every: bool = False
) -> Inspection:
    """Look at a folder of NIH ChestX-ray14, or at a cache of it; see :func:`inspect_folder`."""
    found = Inspection(f"NIH ChestX-ray14 in {root}")
    kind = "nih cache" if (root / "metadata.csv").is_file() else "nih"
    return inspect_folder(found, {kind: root}, partial(load_nih, root), masks, opened, every)


def inspect_table(
    path: Path,
    *,
    images: Path | None = None,
    columns: Mapping[str, str] | None = None,
    opened: int = 100,
    every: bool = False,
) -> Inspection:
    """Look at a table of your own images: its cells, and the files that it lists.

    Args:
        path: The CSV file.
        images: The folder of the images, or their ``.npz``; by default the folder of the CSV.
        columns: From the names of the schema to those of the file.
        opened: How many images to open.
        every: Whether to open all instead.

    Returns:
        What was found.
    """
    found = Inspection(f"the table {path}")
    load = partial(load_table, path, images=images, columns=columns)
    load_and_open(found, load, opened, every)
    return found


def inspect_masks(path: Path) -> Inspection:
    """Look at a file of CheXmask: its columns, whose images it is about, and its masks.

    All records are counted; the masks of the first few thousand are decoded.

    Args:
        path: The CSV file, plain or gzipped.

    Returns:
        What was found.
    """
    found = Inspection(f"CheXmask in {path}")
    try:
        column = mask_column(path)
        found.lines.append(f"about images of {MASKS[column]}, named in column {column!r}")
        columns = (column, DICE, *LUNGS, "Height", "Width")
        records, trusted, sizes = 0, 0, None
        for sheet in read_chunks(path, columns, records=CHUNK):
            good = sheet.numbers(DICE) >= 0.7
            records, trusted = records + len(good), trusted + int(good.sum())
            if sizes is None:
                whole = sheet.frame[list(LUNGS)].notna().all(axis=1)
                sizes = fractions(sheet.filtered(good & whole))
    except InputError as error:
        found.problems.append(str(error))
        return found
    found.lines.append(f"{records:,} masks, {trusted:,} of them with a Dice estimate from 0.7 on")
    if sizes is None or not len(sizes):
        found.problems.append(f"{path} holds no mask that can be trusted")
    else:
        found.lines.append(f"lung sizes {sizes.min():.3f} to {sizes.max():.3f} of the image")
    return found


def mask_column(path: Path) -> str:
    """The column that names the images in a file of CheXmask."""
    named = [name for name in MASKS if name in read_header(path)]
    if not named:
        raise InputError(
            f"{path} names no image: it has none of the columns {', '.join(map(repr, MASKS))}; is "
            f"it a file of {PHYSIONET}/chexmask-cxr-segmentation-data?"
        )
    return named[0]


def inspect_folder(
    found: Inspection,
    folders: dict[str, Path],
    load: Callable[..., Dataset],
    masks: Path | None,
    opened: int,
    every: bool,
) -> Inspection:
    """Look for every part of a data set, then load it and open some of its images.

    Args:
        found: Where what is found goes.
        folders: The folders, by the names of their layouts.
        load: Loads the data set.
        masks: The file of CheXmask, if there is one.
        opened: How many images to open.
        every: Whether to open all instead.

    Returns:
        ``found``.
    """
    for kind, folder in folders.items():
        look_for_parts(found, kind, folder)
    if masks is None:
        found.lines.append(
            "no masks given: lung sizes will be missing, which predictors do not mind and "
            f"generators do ({PHYSIONET}/chexmask-cxr-segmentation-data)"
        )
    if found.ready:
        load_and_open(found, partial(load, masks=masks), opened, every)
    return found


def look_for_parts(found: Inspection, kind: str, folder: Path) -> None:
    """Say of every file of a layout whether it is there."""
    if not folder.is_dir():
        found.problems.append(f"{folder} is {'a file' if folder.exists() else 'missing'}")
        return
    absent = [part for part in LAYOUTS[kind] if part.find(folder) is None]
    for part in LAYOUTS[kind]:
        path = part.find(folder)
        if path is not None:
            name = path.relative_to(folder if path.is_relative_to(folder) else folder.parent)
            found.lines.append(f"there    {name}: {part.purpose}")
        elif not part.needed:
            found.lines.append(f"missing  {described(part)}; not needed")
    needed = [part for part in absent if part.needed]
    meant = elsewhere(kind, folder) if LAYOUTS[kind][0] in needed else None
    if meant is not None:
        found.problems.append(f"{folder} is not the folder itself: give {meant}")
        return
    for part in needed:
        found.problems.append(f"{folder} has no {described(part)}")


def described(part: Part) -> str:
    """A part in words, such as ``train.csv (labels), from https://...``."""
    return f"{' or '.join(part.names)} ({part.purpose}), from {part.origin}"


def load_and_open(
    found: Inspection, load: Callable[..., Dataset], opened: int, every: bool
) -> None:
    """Load a data set without its missing images, describe it and open some of the others."""
    try:
        data = load(unreadable="drop")
    except InputError as error:
        found.problems.append(str(error))
        return
    found.lines += [*counts(data), *str(data.report).splitlines()]
    for entry in data.report.entries:
        if entry.reason == "file missing":
            found.problems.append(
                f"{entry.count:,} of {entry.count + len(data):,} images are missing, such as "
                f"{entry.examples[0]}; complete the download"
            )
    open_some(found, data, len(data) if every else min(opened, len(data)))


def counts(data: Dataset) -> list[str]:
    """How many images, patients and known values a data set has, in words."""
    table = data.table
    known = table[["sex", "age", "effusion"]].notna().all(axis=1).sum()
    lines = [
        f"{len(table):,} images of {table.patient.nunique():,} patients; sex, age and label are "
        f"known for {known:,} of the images"
    ]
    for name in PARENTS:
        values = table[name].dropna()
        told = f"{name}: known for {len(values):,} of {len(table):,} images"
        if name in ("sex", "effusion"):
            told += f", 1 for {int(values.sum()):,}"
        elif name == "race":
            told += "".join(f", {race} {(values == i).sum():,}" for i, race in enumerate(RACES))
        elif len(values):
            told += f", {values.min():.3g} to {values.max():.3g}"
        lines.append(told)
    if "split" in table:
        sizes = table.split.value_counts()
        lines.append("split: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items()))
    return lines


def open_some(found: Inspection, data: Dataset, number: int) -> None:
    """Open images at even steps through a data set."""
    check_count(number, "opened")
    rows = np.unique(np.linspace(0, len(data) - 1, number).round().astype(int))
    broken, shapes = [], set()
    for row in rows:
        try:
            shapes.add(tuple(data[int(row)].shape[-2:]))
        except InputError as error:
            broken.append(str(error))
    sides = sorted({side for shape in shapes for side in shape})
    size = f", sides from {sides[0]} to {sides[-1]} pixels" if sides else ""
    opened = len(rows) - len(broken)
    found.lines.append(f"{opened:,} of {len(rows):,} images tried can be opened{size}")
    found.problems += broken[:3]
    if len(broken) > 3:
        found.problems.append(f"{len(broken) - 3:,} more of those tried cannot be opened")
