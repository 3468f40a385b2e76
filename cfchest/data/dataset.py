"""One schema for every data set: a table with one row for each image, and images on demand."""

import os
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from cfchest.data.images import Memmap, Source, Stored
from cfchest.data.ledger import Ledger
from cfcore.checks import InputError
from cfcore.restricted import announce, check_place

PARENTS = ("sex", "age", "race", "lung_size", "effusion")
"""The parents of the image in the chest graph, in the order of the table."""

COLUMNS = ("image", *PARENTS, "patient", "study", "view")
"""The columns of every table; ``split`` follows where the source has one."""

RACES = ("white", "asian", "black")
"""What the codes 0, 1, 2 of ``race`` mean."""

RANGES = {
    "sex": (0, 1),
    "age": (0, 120),
    "race": (0, len(RACES) - 1),
    "lung_size": (0, 1),
    "effusion": (0, 1),
}

Rows = int | slice | Sequence[int] | np.ndarray | Tensor | pd.Index


class Batch(NamedTuple):
    """Some rows of a data set: their numbers, shape (B,), images and parents."""

    rows: np.ndarray
    x: Tensor
    pa: dict[str, Tensor]


class Dataset:
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
    ============= =======================================================================

    Args:
        table: One row for each image; only ``patient`` is required, see :func:`schema`.
        images: A tensor or array (N, H, W) or (N, 1, H, W), uint8 or in [0, 1]; or a function
            of row numbers (B,) that returns float32 images (B, 1, H, W) in [0, 1].
        name: What to call it in messages.
        report: What was dropped or set missing on the way here.

    Example:
        >>> table = pd.DataFrame({"patient": ["a", "a", "b"], "age": [40, 41, 70]})
        >>> data = Dataset(table, torch.rand(3, 8, 8), name="toy")
        >>> data
        Dataset('toy', 3 images of 2 patients)
        >>> data[1:].shape, data.parents(["age"])
        (torch.Size([2, 1, 8, 8]), {'age': tensor([40., 41., 70.])})
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
        self.table = schema(table)
        self.report = report or Ledger(name, read=len(table), kept=len(table))
        self._source = images if callable(images) else Stored(torch.as_tensor(images))
        self._rows = np.arange(len(table))
        if isinstance(self._source, Stored) and len(self._source.images) != len(table):
            raise InputError(f"{len(self._source.images)} images for {len(table)} rows")
        announce(self.restricted)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        patients = self.table.patient.nunique()
        return f"Dataset({self.name!r}, {len(self):,} images of {patients:,} patients)"

    @property
    def restricted(self) -> tuple[str, ...]:
        """Whose real patients they are, by names in :mod:`cfcore.restricted`."""
        return (self.report.source,) if self.report.source else ()

    @property
    def drawn_by(self) -> Source | None:
        """The function that draws the images, unless it can tell what they are made of."""
        return None if hasattr(self._source, "fingerprint") else self._source

    def __getitem__(self, rows: Rows) -> Tensor:
        """The images of some rows, float32 in [0, 1], shape (B, 1, H, W); B = 1 for an integer."""
        return self._source(np.atleast_1d(self._rows[_indexer(rows)]))

    def parents(self, columns: Sequence[str] = PARENTS) -> dict[str, Tensor]:
        """Parents as float32 tensors, shape (N,), NaN where missing."""
        unknown = [name for name in columns if name not in PARENTS]
        if unknown:
            raise InputError(f"{unknown} are not among the parents {list(PARENTS)}")
        return {name: torch.tensor(self.table[name].to_numpy(np.float32)) for name in columns}

    def take(self, rows: Rows) -> "Dataset":
        """The data set of some rows, in the order given; nothing is decoded."""
        chosen = np.atleast_1d(np.arange(len(self))[_indexer(rows)])
        return self._with(self.table.iloc[chosen].reset_index(drop=True), self._rows[chosen])

    def select(self, table: pd.DataFrame) -> "Dataset":
        """The data set of a cohort: rows by the index of ``table``, values from ``table``.

        ``table`` is what the functions of :mod:`cfchest.cohorts` make of this table: some of
        its rows under their row numbers, perhaps with labels masked.
        """
        strange = ~table.index.isin(self.table.index)
        if strange.any():
            row = table.index[strange.argmax()]
            raise InputError(f"the table is no part of {self!r}: there is no row {row}")
        rows = table.index.to_numpy(dtype=np.int64)
        if not np.array_equal(self.table.image.iloc[rows].to_numpy(), table.image.to_numpy()):
            raise InputError(f"the table is no part of {self!r}: its images are others")
        return self._with(schema(table), self._rows[rows])

    def batches(
        self,
        size: int = 64,
        *,
        columns: Sequence[str] = PARENTS,
        shuffle: torch.Generator | None = None,
        workers: int = 0,
        progress: str | None = None,
    ) -> Iterator[Batch]:
        """Go through the data set once, decoding ahead in worker processes.

        Args:
            size: Rows in a batch; the last one may be smaller.
            columns: The parents to give.
            shuffle: The source of a random order; by default rows come in order.
            workers: Worker processes that decode; 0 decodes here.
            progress: The title of a progress bar, shown on a terminal.

        Yields:
            Row numbers, images and parents.
        """
        count, pa = len(self), self.parents(columns)
        order = torch.arange(count) if shuffle is None else torch.randperm(count, generator=shuffle)
        chunks = [rows.numpy() for rows in order.split(size)] if count else []
        # With a generator of its own the loader leaves the global random state alone.
        loader = DataLoader(
            self, batch_size=None, sampler=chunks, num_workers=workers, generator=torch.Generator()
        )
        with tqdm(total=count, desc=progress, disable=None if progress else True) as bar:
            for rows, x in zip(chunks, loader, strict=True):
                yield Batch(rows, x, {name: values[rows] for name, values in pa.items()})
                bar.update(len(rows))

    def fingerprint(self) -> str:
        """A hash of the images by what they are made of, "" if their source cannot tell.

        Images in memory are hashed by their pixels, files by their names, sizes and modification
        times. Nothing is decoded.
        """
        own = getattr(self._source, "fingerprint", None)
        return own(self._rows) if own else ""

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
        if not hasattr(self._source, "fingerprint"):
            raise InputError(
                f"{self.name} draws its images with {self._source!r}, which has no method "
                "fingerprint(rows) to tell when a cache is stale"
            )
        if not len(self):
            raise InputError(f"{self!r} has no image to cache")
        path = Path(folder) / f"images-{self._source.fingerprint(self._rows)[:32]}.npy"
        if not path.is_file():
            check_place(path, self.restricted)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(path, size, workers)
        data = self._with(self.table, np.arange(len(self)))
        data._source = Memmap(path)
        return data

    def _write(self, path: Path, size: int, workers: int) -> None:
        name = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            shape = (len(self), *self[0].shape[-2:])
            array = np.lib.format.open_memmap(name, mode="w+", dtype=np.uint8, shape=shape)
            title = f"decoding {self.name}"
            for rows, x, _ in self.batches(size, columns=(), workers=workers, progress=title):
                array[rows] = (x[:, 0] * 255).round().clamp(0, 255).byte().numpy()
            array.flush()
            name.replace(path)
        finally:
            name.unlink(missing_ok=True)

    def _with(self, table: pd.DataFrame, rows: np.ndarray) -> "Dataset":
        data = copy(self)
        data.table, data._rows = table, rows
        return data


def schema(table: pd.DataFrame) -> pd.DataFrame:
    """Bring a table to the schema: columns in order, types fixed, ranges checked.

    Columns that are absent are filled: ``image`` with the row number, ``study`` with the
    image, the rest with missing values. Further columns are kept, at the end.

    Args:
        table: Any table with a column ``patient``.

    Returns:
        A new table with the index 0, ..., N - 1.

    Raises:
        InputError: If there is no column ``patient``.
        InputError: If a patient is missing or a value lies outside its range.
    """
    if "patient" not in table:
        raise InputError("the table has no column 'patient', without which no split is safe")
    if table.patient.isna().any():
        raise InputError(f"row {table.patient.isna().to_numpy().argmax()} has no patient")

    table = table.reset_index(drop=True)
    numbers = {name: _in_range(table, name) for name in PARENTS}
    image = table.get("image", pd.Series(range(len(table))))
    texts = {
        "patient": table.patient.astype("str"),
        "study": table.get("study", image).astype("str"),
        "view": table.get("view", pd.Series(pd.NA, index=table.index)).astype("str"),
    }
    rest = table.drop(columns=[name for name in COLUMNS if name in table])
    return pd.concat([pd.DataFrame({"image": image, **numbers, **texts}), rest], axis=1)


def _in_range(table: pd.DataFrame, name: str) -> pd.Series:
    values = table.get(name, pd.Series(np.nan, index=table.index)).astype("float64")
    low, high = RANGES[name]
    wrong = (values < low) | (values > high)
    if name in ("sex", "race", "effusion"):
        wrong |= values.notna() & (values % 1 != 0)
    if wrong.any():
        row = wrong.to_numpy().argmax()
        raise InputError(
            f"row {row}: {name} = {values[row]:g}, expected {low} to {high} or missing"
        )
    return values


def _indexer(rows: Rows) -> slice | np.ndarray:
    if isinstance(rows, slice):
        return rows
    rows = rows.cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
    return rows if rows.size else rows.astype(np.int64)
