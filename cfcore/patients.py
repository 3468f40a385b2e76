"""What is audited: rows with an image each, their parents and labels, read in batches."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader
from tqdm import tqdm

from cfcore import checks
from cfcore.checks import InputError, Numbers, as_tensor, refuse_rows, shown
from cfcore.extras import needs
from cfcore.graph import CausalGraph, as_codes

Rows = int | slice | Sequence[int] | np.ndarray | Tensor | pd.Index
_Map, _Ids, _Weight = Mapping[str, Numbers], Sequence[object] | None, Numbers | None
Columns = Mapping[str, Sequence[object]] | pd.DataFrame | None
Source = Callable[[np.ndarray], Tensor]
"""Rows, shape (B,), to images, float32 in [0, 1], shape (B, C, H, W) or (B, C, D, H, W)."""


class Batch(NamedTuple):
    """Some rows of the data: their numbers, shape (B,), images and parents."""

    rows: np.ndarray
    x: Tensor
    pa: dict[str, Tensor]


class Patients:
    """N rows to be audited, each an image with its parents and labels.

    Args:
        images: A tensor or array of shape (N, C, H, W), (N, C, D, H, W), or (N, H, W) for one
            channel, uint8 or in [0, 1]; or a function of row numbers (B,) that returns float32
            images. If it has a method ``fingerprint(rows)``, that says when images have changed.
        parents: The parents of the image by name, each of shape (N,), NaN where missing.
        labels: What predictors are judged by, each of shape (N,), 0 or 1, NaN where missing. A name
            that is a parent too must agree with it, and is held under every effect.
        patient: An identifier for each row; several rows may be of one patient. By default every
            row is a patient of its own, called by its number.
        weight: How much each row counts in q and in metrics, shape (N,), not negative.
        columns: Further columns by name, to group by or to take labels from.

    Attributes:
        parents: float32 tensors, each of shape (N,); so are ``labels``.
        patient: The identifiers, as text.
        columns: A frame with the index 0, ..., N - 1.
        restricted: The sources that may not be shared (:mod:`cfcore.marks`).

    Example:
        >>> data = Patients(torch.rand(3, 3, 8, 8), {"site": [0, 1, 1]}, {"ill": [0, 1, 0]})
        >>> data
        Patients(3 rows of 3 patients; parents: site; labels: ill)
        >>> data[1:].shape, data.take([2, 0]).patient
        (torch.Size([2, 3, 8, 8]), ['2', '0'])
    """

    restricted: tuple[str, ...] = ()

    def __init__(
        self,
        images: Tensor | np.ndarray | Source,
        parents: _Map,
        labels: _Map | None = None,
        patient: _Ids = None,
        *,
        weight: _Weight = None,
        columns: Columns = None,
    ) -> None:
        self._source = images if callable(images) else Stored(torch.as_tensor(images))
        self._describe(parents, labels or {}, patient, columns, weight)
        self._rows = np.arange(len(self))
        if isinstance(self._source, Stored) and len(self._source.images) != len(self):
            raise InputError(f"{len(self._source.images)} images for {len(self)} rows")

    def _describe(
        self, parents: _Map, labels: _Map, patient: _Ids, columns: Columns, weight: _Weight = None
    ) -> None:
        """Check and keep all but the images."""
        self.parents = {name: as_tensor(v, name, axes=1).float() for name, v in parents.items()}
        self.labels = {name: as_tensor(v, name, axes=1).float() for name, v in labels.items()}
        columns = {} if columns is None else columns
        rows = {**self.labels, **self.parents, "weight": weight, "patient": patient} | dict(columns)
        counts = {name: len(values) for name, values in rows.items() if values is not None}
        if not counts:
            raise InputError("a parent, a label or the patients are needed, to count the rows")
        (first, count), *others = counts.items()
        for name, found in others:
            if found != count:
                raise InputError(f"has {found} rows, but {first} has {count}", column=name)
        for name, y in self.labels.items():
            checks.check_labels(y.nan_to_num(0), name)
            parent = self.parents.get(name, y)
            for row in ((y != parent) & ~(y.isnan() & parent.isnan())).nonzero().flatten().tolist():
                one, other = (shown(values[row].item()) for values in (y, parent))
                raise InputError(f"{one} as a label, but {other} as a parent", column=name, row=row)
        self.patient = [str(name) for name in (range(count) if patient is None else patient)]
        self.weight = None if weight is None else as_tensor(weight, "weight", axes=1).double()
        if weight is not None:
            what = "a weight: finite and not negative"
            checks.check_range(self.weight, "weight", 0, np.inf, what)
        if not isinstance(columns, pd.DataFrame):
            columns = pd.DataFrame({n: list(v) for n, v in columns.items()}, index=range(count))
        self.columns = columns.reset_index(drop=True)

    @classmethod
    def from_table(
        cls,
        table: pd.DataFrame | str | Path,
        *,
        image: str,
        parents: Sequence[str],
        labels: Sequence[str] = (),
        patient: str | None = None,
        root: str | Path | None = None,
        size: int | None = None,
        grey: bool = False,
        graph: CausalGraph | None = None,
    ) -> Self:
        """Read a table with one row for each image; nothing is dropped, renamed or guessed, and
        all columns are kept as ``columns``.

        Args:
            table: A frame, or the path of a CSV.
            image: The column that names the images: files, or rows or names in the archive.
            parents, labels, patient: The columns of parents, of labels, 0 or 1, and of patients.
            root: The folder of the files, by default that of the CSV; or an ``.npz`` with an array
                ``images``, and with their names as ``image`` unless the table has row numbers.
            size: The side to which images are resized; without it they must be of one size.
            grey: Whether colour of files is reduced to luminance.
            graph: The graph that lists the categories of columns with text.
        """
        path = None if isinstance(table, pd.DataFrame) else Path(table)
        names, place = [image, patient] if patient else [image], path or "the table"
        texts = dict.fromkeys(names, str)
        frame = table.reset_index(drop=True) if path is None else pd.read_csv(path, dtype=texts)
        for name in (*names, *parents, *labels):
            if name not in frame:
                raise InputError(f"{place} has no column {name!r}, but {list(frame)}")
        for name in names:
            refuse_rows(frame[name].isna(), "is missing", name)
        root = Path(root or (path.parent if path else "."))
        if root.suffix == ".npz":
            source = _archived(root, frame[image], size)
        else:
            files = [str(root / str(name)) for name in frame[image]]
            source = Files(files, size, lambda row: f"{place} row {row}", grey)
        codes = {name: as_codes(frame[name], name, graph) for name in (*parents, *labels)}
        given = ({name: codes[name] for name in part} for part in (parents, labels))
        return cls(source, *given, frame[patient] if patient else None, columns=frame)

    def __len__(self) -> int:
        return len(self.patient)

    def __repr__(self) -> str:
        parts = [f"{len(self):,} rows of {len(set(self.patient)):,} patients"]
        parts += [f"parents: {', '.join(self.parents)}", f"labels: {', '.join(self.labels)}"]
        return f"{type(self).__name__}({'; '.join(parts)})"

    def __getitem__(self, rows: Rows) -> Tensor:
        """The images of some rows, float32 in [0, 1], shape (B, C, ...); B = 1 for an integer."""
        return self._source(self._rows[self._numbers(rows)])

    def _numbers(self, rows: Rows) -> np.ndarray:
        if not isinstance(rows, slice):
            rows = rows.cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
            rows = rows if rows.size else rows.astype(np.int64)
        return np.atleast_1d(np.arange(len(self))[rows])

    def take(self, rows: Rows) -> Self:
        """The patients of some rows, in the order given; nothing is read."""
        chosen, data = self._numbers(rows), copy(self)
        data._rows = self._rows[chosen]
        for part in ("parents", "labels"):
            setattr(data, part, {n: values[chosen] for n, values in getattr(self, part).items()})
        data.patient = [self.patient[row] for row in chosen]
        data.weight = None if self.weight is None else self.weight[chosen]
        data.columns = self.columns.iloc[chosen].reset_index(drop=True)
        return data

    @property
    def index(self) -> Tensor:
        """The rows by which an oracle looks noise up, shape (N,); those before :meth:`take`."""
        return torch.as_tensor(self._rows)

    @property
    def drawn_by(self) -> Source | None:
        """The function that draws the images, unless it can tell what they are made of."""
        return None if hasattr(self._source, "fingerprint") else self._source

    def fingerprint(self) -> str:
        """A hash of the images by what they are made of, "" if their source cannot tell.

        Images in memory are hashed by their pixels, files by their names, sizes and modification
        times. Nothing is decoded.
        """
        return "" if self.drawn_by else self._source.fingerprint(self._rows)

    def batches(
        self, size: int = 64, *, workers: int = 0, progress: str | None = None
    ) -> Iterator[Batch]:
        """Go through the rows once and in order, reading ahead in worker processes, or here.

        The last batch may be smaller; ``progress`` is the title of a bar, shown on a terminal.
        """
        chunks = [rows.numpy() for rows in torch.arange(len(self)).split(size)] if len(self) else []
        options = {"sampler": chunks, "num_workers": workers}
        # With a generator of its own the loader leaves the global random state alone.
        loader = DataLoader(self, batch_size=None, generator=torch.Generator(), **options)
        with tqdm(total=len(self), desc=progress, disable=None if progress else True) as bar:
            for rows, x in zip(chunks, loader, strict=True):
                yield Batch(rows, x, {name: values[rows] for name, values in self.parents.items()})
                bar.update(len(rows))


@dataclass(frozen=True)
class Stored:
    """Images that are in memory already, averaged down to a side of ``size`` if there is one.

    They are uint8, or floating point in [0, 1], of shape (N, H, W), (N, C, H, W), (N, C, D, H, W).
    """

    images: Tensor
    size: int | None = None

    def __post_init__(self) -> None:
        x, kind = self.images, str(self.images.dtype)
        if x.ndim not in (3, 4, 5):
            raise InputError(f"images have shape {tuple(x.shape)}, expected (N, C, H, W)")
        good = x.dtype == torch.uint8 or not x.numel()
        if x.is_floating_point() and x.numel():
            low, high = x.min().item(), x.max().item()
            good, kind = 0 <= low <= high <= 1, f"{kind} from {low:g} to {high:g}"
        if not good:
            raise InputError(f"images are {kind}; give uint8, or floating point from 0 to 1")

    def __call__(self, rows: np.ndarray) -> Tensor:
        x = as_images(self._taken(rows))
        size = x.shape[2:] if self.size is None else (self.size,) * (x.ndim - 2)
        if not len(x):
            return x.new_zeros(0, x.shape[1], *size)
        return x if x.shape[2:] == size else interpolate(x, size=size, mode="area")

    def fingerprint(self, rows: np.ndarray) -> str:
        """A hash of the images and of the target size."""
        x = torch.as_tensor(self._taken(rows)).cpu().contiguous()
        digest = hashlib.sha256(f"{self.size} {x.dtype} {tuple(x.shape)}".encode())
        digest.update(x.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _taken(self, rows: np.ndarray) -> np.ndarray | Tensor:
        # NumPy, where it can: for a small batch torch wakes threads, 50 times slower on busy cores.
        if self.images.device.type == "cpu":
            return self.images.numpy()[rows]
        return self.images[torch.as_tensor(rows, device=self.images.device)]


@dataclass(frozen=True)
class Files:
    """Images that are decoded when they are asked for, one file for each row, by :func:`decode`.

    Messages name the place where a row is listed.
    """

    paths: Sequence[str]
    size: int | None
    place: Callable[[int], str]
    grey: bool = False
    advice: ClassVar[str] = "Fetch the file again."

    def __call__(self, rows: np.ndarray) -> Tensor:
        if not len(rows):
            return torch.zeros(0, 1, self.size or 0, self.size or 0)
        images = [self.pixels(row) for row in rows]
        first, same = self.paths[rows[0]], images[0].shape
        for row, image in zip(rows, images, strict=True):
            if image.shape != same:
                shapes = f"{self.paths[row]} has shape {image.shape}, {first} has {same}"
                raise InputError(f"{shapes}: load with size=... to make them equal")
        return as_images(np.stack(images))

    def pixels(self, row: int) -> np.ndarray:
        """One image, uint8, shape (H, W) or (3, H, W); a failure names the file and its place."""
        path = Path(self.paths[row])
        try:
            return decode(path, self.size, grey=self.grey)
        except FileNotFoundError as error:
            raise InputError(f"{path} is missing; it is listed in {self.place(row)}.") from error
        except (OSError, SyntaxError, ValueError) as error:
            place = f"it is listed in {self.place(row)}. {self.advice}"
            raise InputError(f"{path} cannot be decoded ({error}); {place}") from error

    def fingerprint(self, rows: np.ndarray) -> str:
        """A hash of names, sizes and modification times of the files and of the target size."""
        files = ((path.name, path.stat()) for path in (Path(self.paths[row]) for row in rows))
        lines = [f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n" for name, stat in files]
        return hashlib.sha256("".join((repr(self.size), *lines)).encode()).hexdigest()


def decode(path: Path, size: int | None = None, *, grey: bool = False) -> np.ndarray:
    """Decode one image to 8 bits, resized to a square.

    16-bit images are reduced to their high byte; nothing is cropped, padded or equalised, so an
    image that is not square is stretched and every fraction of its area stays what it was. An image
    that says which way up it is (EXIF) is turned so. Resizing averages over boxes (Pillow's
    ``BOX``), without ringing. Large JPEGs are decoded at a half, a quarter or an eighth of their
    size where that is still twice ``size``, several times faster.

    Args:
        path: A file that Pillow can read. Pixels that are fractions or have 32 bits, whose range is
            anyone's guess, are refused, and so are transparent ones and far too many of them.
        size: The side in pixels; by default the file's own height and width.
        grey: Whether colour is reduced to luminance; otherwise it is kept, and images that are
            neither grey nor RGB are refused.

    Returns:
        The image, uint8, shape (H, W), or (3, H, W) in colour.
    """
    needs("PIL")
    from PIL import Image, ImageOps

    try:
        opened = Image.open(path)
    except Image.DecompressionBombError as error:
        raise InputError(str(error)) from error
    with opened as image:
        # Some editions of Pillow call a PNG of 16 bits I.
        deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")
        if image.mode[0] in "FI" and not deep:
            raise InputError(f"pixels of mode {image.mode!r}, expected 8 or 16 bits")
        if not (grey or deep or image.mode in ("1", "L", "RGB")):
            raise InputError(f"pixels of mode {image.mode!r}, expected grey or RGB")
        mode = "RGB" if image.mode == "RGB" and not grey else "L"
        if image.has_transparency_data and image.convert("RGBA").getextrema()[3][0] < 255:
            raise InputError("pixels that are transparent: what is behind them?")
        if size is not None:
            image.draft(mode, (2 * size, 2 * size))
        shades = image.convert("F" if deep else mode)
        if size is not None:
            shades = shades.resize((size, size), Image.Resampling.BOX)
        pixels = np.asarray(ImageOps.exif_transpose(shades))
    pixels = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels
    return (pixels / 257).round().clip(0, 255).astype(np.uint8) if deep else pixels


def as_images(pixels: np.ndarray | Tensor) -> Tensor:
    """Bytes or fractions as float32 in [0, 1]; (B, H, W) becomes one channel, (B, 1, H, W)."""
    if isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8:
        pixels = pixels.astype(np.float32) / 255
    x = torch.as_tensor(pixels)
    x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    return x.unsqueeze(1) if x.ndim == 3 else x


def _archived(path: Path, image: pd.Series, size: int | None) -> Stored:
    """The images of an ``.npz``, found by their names, or by their rows if it has no names."""
    with np.load(path, allow_pickle=False) as archive:
        if "images" not in archive:
            raise InputError(f"{path} has no array 'images' but {', '.join(archive.files)}")
        images = archive["images"]
        names = archive["image"] if "image" in archive else np.arange(len(images))
    names = pd.Index(names.astype(str))
    if not names.is_unique:
        raise InputError(f"{path} has two images called {names[names.duplicated()][0]!r}")
    rows = names.get_indexer(image.astype(str))
    if (rows < 0).any():
        row = int((rows < 0).argmax())
        raise InputError(f"{path} has no image {image[row]!r}", column=image.name, row=row)
    return Stored(torch.as_tensor(images[rows]), size)
