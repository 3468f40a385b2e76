"""One schema for every data set: a table with one row for each image, and images on demand."""

import hashlib
import os
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cfchest.data.ledger import Ledger
from cfcore.checks import InputError
from cfcore.graph import CausalGraph, as_codes
from cfcore.marks import announce, check_place
from cfcore.patients import Files, Patients, Source, Stored, as_images

SOURCES = ("chexpert", "mimic", "nih", "table")
"""The sources of real patients; ``"table"`` is the user's own."""
PARENTS = ("sex", "age", "race", "lung_size", "effusion")
"""The parents of the image in the chest graph, in the order of the table."""
COLUMNS = ("image", *PARENTS, "patient", "study", "view")
"""The columns of every table; ``split`` follows where the source has one."""
RACES = ("white", "asian", "black")
"""What the codes 0, 1, 2 of ``race`` mean."""
FINDINGS = (
    "atelectasis", "cardiomegaly", "consolidation", "edema", "effusion", "emphysema", "fibrosis",
    "hernia", "infiltration", "mass", "nodule", "pleural_thickening", "pneumonia", "pneumothorax",
)  # fmt: skip
"""The labels that a data set may have beside effusion, which every one has: columns of 0 and 1."""
RANGES = dict.fromkeys((*PARENTS, *FINDINGS), (0, 1)) | {
    "age": (0, 120),
    "race": (0, len(RACES) - 1),
}


@dataclass(frozen=True)
class Radiographs(Files):
    """Radiographs that are decoded when they are asked for; colour is reduced to luminance."""

    grey: bool = True
    advice: ClassVar[str] = "Fetch the file again, or load with verify=True, unreadable='drop'."


@dataclass(frozen=True)
class _Memmap:
    """Images in a ``.npy`` file, uint8, shape (N, H, W), of which only the rows asked for are read.

    The file is opened at each call: worker processes then share nothing but its name.
    """

    path: Path

    def __call__(self, rows: np.ndarray) -> Tensor:
        return as_images(np.load(self.path, mmap_mode="r")[rows])

    def fingerprint(self, rows: np.ndarray) -> str:
        """A hash of the file's name, which itself is one of what it holds, and of the rows."""
        return hashlib.sha256(self.path.name.encode() + rows.tobytes()).hexdigest()


class Dataset(Patients):
    """A table of patients and the radiographs that belong to it, decoded when asked for.

    The table is small and always in memory; choosing a cohort is work on the table
    (:mod:`cfchest.cohorts`), after which :meth:`select` returns the data set of that cohort
    without touching an image.

    ============= =======================================================================
    column        meaning
    ============= =======================================================================
    ``image``     path of the file, or row number in an array
    ``sex``       0 male, 1 female
    ``age``       in years at the time of the image
    ``race``      0 white, 1 asian, 2 black; any other group is missing
    ``lung_size`` area of both lungs as a fraction of the image
    ``effusion``  pleural effusion, 0 or 1
    ``patient``   identifier, text; never missing
    ``study``     identifier, text
    ``view``      ``"AP"``, ``"PA"`` or missing
    ``split``     the publisher's split, where there is one
    findings      further labels in ``FINDINGS``, 0 or 1, where there are any
    ============= =======================================================================

    Args:
        table: One row for each image; only ``patient`` is required, see :func:`schema`.
        images: A tensor or array (N, H, W) or (N, 1, H, W), uint8 or in [0, 1]; or a function
            of row numbers (B,) that returns float32 images (B, 1, H, W) in [0, 1].
        report: What was dropped or set missing on the way here.

    Example:
        >>> table = pd.DataFrame({"patient": ["a", "a", "b"], "age": [40, 41, 70]})
        >>> data = Dataset(table, torch.rand(3, 8, 8), name="toy")
        >>> data
        Dataset('toy', 3 images of 2 patients)
        >>> data[1:].shape, data.parents["age"]
        (torch.Size([2, 1, 8, 8]), tensor([40., 41., 70.]))
        >>> data.take([2]).table.patient.item()
        'b'
    """

    def __init__(
        self,
        table: pd.DataFrame,
        images: Tensor | np.ndarray | Source,
        *,
        name: str = "images",
        report: Ledger | None = None,
    ) -> None:
        self.name = name
        self.report = report or Ledger(name, read=len(table), kept=len(table))
        super().__init__(images, **_described(schema(table)))
        kept = self._source.images if isinstance(self._source, Stored) else None
        if kept is not None and kept.ndim != 3 and kept.shape[1] != 1:
            raise InputError(f"images have shape {tuple(kept.shape)}, expected (N, 1, H, W)")
        announce(self.restricted)

    def __repr__(self) -> str:
        patients = self.table.patient.nunique()
        return f"Dataset({self.name!r}, {len(self):,} images of {patients:,} patients)"

    @property
    def table(self) -> pd.DataFrame:
        """One row for each image."""
        return self.columns

    @property
    def restricted(self) -> tuple[str, ...]:
        """Whose real patients they are, by names in ``SOURCES``."""
        return (self.report.source,) if self.report.source else ()

    @property
    def index(self) -> Tensor:
        """The rows by which an oracle looks noise up; of the cohort, if images are numbers."""
        numbered = self.table.image.dtype.kind in "iu"
        return torch.tensor(self.table.image.to_numpy(np.int64)) if numbered else super().index

    def select(self, table: pd.DataFrame) -> "Dataset":
        """The data set of a cohort: rows by the index of ``table``, values from ``table``.

        ``table`` is what the functions of :mod:`cfchest.cohorts` make of this table: some of
        its rows under their row numbers, perhaps with labels masked.
        """
        strange = ~table.index.isin(self.table.index)
        if strange.any():
            why = f"there is no row {table.index[strange.argmax()]}"
            raise InputError(f"the table is no part of {self!r}: {why}")
        rows = table.index.to_numpy(dtype=np.int64)
        if not np.array_equal(self.table.image.iloc[rows].to_numpy(), table.image.to_numpy()):
            raise InputError(f"the table is no part of {self!r}: its images are others")
        data = self.take(rows)
        data._describe(**_described(schema(table)))
        return data

    def under(self, graph: CausalGraph, *, labels: Sequence[str] = ("effusion",)) -> "Dataset":
        """The same patients with the parents that the image has in another graph.

        Every parent and label is a column of the table, text such as the view under the categories
        that the graph lists; what is missing stays missing. Choose the cohort first.
        """
        for name in (*graph.parents("image"), *labels):
            if name not in self.table:
                raise InputError(f"{self!r} has no column {name!r}, but {', '.join(self.table)}")
        data, table = copy(self), self.table
        parents = {name: as_codes(table[name], name, graph) for name in graph.parents("image")}
        given = {name: table[name] for name in labels}
        data._describe(parents, given, table.patient, table)
        return data

    def cached(self, folder: str | Path, *, workers: int = 0, size: int = 64) -> "Dataset":
        """Decode every image once into a file and read from that file ever after.

        The file is a uint8 ``.npy``, named by a hash of what is in it: the files' names, sizes
        and modification times, their order and the target size. Whatever changes, another name
        is looked up, and a stale cache is never read. Labels are not part of the hash, so that
        masking or correcting them decodes nothing again. The file appears under its name only
        when it is complete. Images from 8-bit files come back bit by bit; others are rounded to
        the nearest of 256 levels.

        Args:
            folder: Where the file is kept; made if need be.
            workers: Worker processes that decode.
            size: Images in flight for each step.

        Returns:
            The same data set, reading from the cache.
        """
        if self.drawn_by is not None:
            stale = "which has no method fingerprint(rows) to tell when a cache is stale"
            raise InputError(f"{self.name} draws its images with {self._source!r}, {stale}")
        if not len(self):
            raise InputError(f"{self!r} has no image to cache")
        path = Path(folder) / f"images-{self.fingerprint()[:32]}.npy"
        if not path.is_file():
            check_place(path, self.restricted)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(path, size, workers)
        data = copy(self)
        data._rows, data._source = np.arange(len(self)), _Memmap(path)
        return data

    def _write(self, path: Path, size: int, workers: int) -> None:
        name = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            shape = (len(self), *self[0].shape[-2:])
            array = np.lib.format.open_memmap(name, mode="w+", dtype=np.uint8, shape=shape)
            title = f"decoding {self.name}"
            for rows, x, _ in self.batches(size, workers=workers, progress=title):
                array[rows] = (x[:, 0] * 255).round().clamp(0, 255).byte().numpy()
            array.flush()
            name.replace(path)
        finally:
            name.unlink(missing_ok=True)


def _described(table: pd.DataFrame) -> dict[str, object]:
    """What patients are, of a table under the schema."""
    parents = {name: table[name] for name in PARENTS}
    labels = {name: table[name] for name in ("effusion", *FINDINGS) if name in table}
    return {"parents": parents, "labels": labels, "patient": table.patient, "columns": table}


def schema(table: pd.DataFrame) -> pd.DataFrame:
    """Bring a table to the schema: columns in order, types fixed, ranges checked.

    Columns that are absent are filled: ``image`` with the row number, ``study`` with the
    image, the rest with missing values. Further columns are kept, at the end.

    Raises:
        InputError: If there is no column ``patient``, a patient is missing, or a value lies
            outside its range.
    """
    if "patient" not in table:
        raise InputError("the table has no column 'patient', without which no split is safe")
    if table.patient.isna().any():
        raise InputError(f"row {table.patient.isna().to_numpy().argmax()} has no patient")
    table = table.reset_index(drop=True)
    numbers = {name: _in_range(table, name) for name in PARENTS}
    image = table.get("image", pd.Series(range(len(table))))
    view = table.get("view", pd.Series(pd.NA, index=table.index))
    texts = {"patient": table.patient, "study": table.get("study", image), "view": view}
    texts = {name: text.astype("str") for name, text in texts.items()}
    rest = table.drop(columns=[name for name in COLUMNS if name in table])
    rest = rest.assign(**{name: _in_range(table, name) for name in FINDINGS if name in rest})
    return pd.concat([pd.DataFrame({"image": image, **numbers, **texts}), rest], axis=1)


def _in_range(table: pd.DataFrame, name: str) -> pd.Series:
    values = table.get(name, pd.Series(np.nan, index=table.index)).astype("float64")
    low, high = RANGES[name]
    wrong = (values < low) | (values > high)
    if name not in ("age", "lung_size"):
        wrong |= values.notna() & (values % 1 != 0)
    if wrong.any():
        row = wrong.to_numpy().argmax()
        expected = f"expected {low} to {high} or missing"
        raise InputError(f"row {row}: {name} = {values[row]:g}, {expected}")
    return values
