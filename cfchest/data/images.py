"""Where pixels come from: files, an array in memory, an array on disk."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader
from tqdm import tqdm

from cfcore.checks import InputError
from cfcore.extras import needs

Source = Callable[[np.ndarray], Tensor]
"""Rows, shape (B,), to images, float32 in [0, 1], shape (B, 1, H, W)."""


def decode(path: Path, size: int | None = None) -> np.ndarray:
    """Decode one radiograph to 8-bit grey, resized to a square.

    Colour is reduced to luminance and 16-bit images to their high byte; nothing is cropped,
    padded or equalised, so a radiograph that is not square is stretched and every fraction of
    its area stays what it was. Resizing averages over boxes (Pillow's ``BOX``), without
    ringing. Large JPEGs are decoded at a half, a quarter or an eighth of their size where that
    is still twice ``size``, several times faster.

    Args:
        path: A file that Pillow can read.
        size: The side in pixels; by default the file's own height and width.

    Returns:
        The image, uint8, shape (H, W).

    Raises:
        InputError: If the pixels are fractions or have 32 bits, whose range is anyone's guess, or
            if there are far too many of them.
    """
    needs("PIL")
    from PIL import Image

    try:
        opened = Image.open(path)
    except Image.DecompressionBombError as error:
        raise InputError(str(error)) from error
    with opened as image:
        # Some editions of Pillow call a PNG of 16 bits I.
        deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")
        if image.mode[0] in "FI" and not deep:
            raise InputError(f"pixels of mode {image.mode!r}, expected 8 or 16 bits")
        if size is not None:
            image.draft("L", (2 * size, 2 * size))
        grey = image.convert("F" if deep else "L")
        if size is not None:
            grey = grey.resize((size, size), Image.Resampling.BOX)
        pixels = np.asarray(grey)
    return (pixels / 257).round().clip(0, 255).astype(np.uint8) if deep else pixels


@dataclass(frozen=True)
class Files:
    """Images that are decoded when they are asked for.

    Args:
        paths: One file for each row.
        size: The side to resize to, or the files' own size.
        place: Row to the place where the file is listed, for messages.
    """

    paths: Sequence[str]
    size: int | None
    place: Callable[[int], str]

    def __call__(self, rows: np.ndarray) -> Tensor:
        if not len(rows):
            return torch.zeros(0, 1, self.size or 0, self.size or 0)
        images = [self.pixels(row) for row in rows]
        for row, image in zip(rows, images, strict=True):
            if image.shape != images[0].shape:
                raise InputError(
                    f"{self.paths[row]} has shape {image.shape}, {self.paths[rows[0]]} has "
                    f"{images[0].shape}: load with size=... to make them equal"
                )
        return as_images(np.stack(images))

    def pixels(self, row: int) -> np.ndarray:
        """One decoded image, uint8, shape (H, W); a failure names the file and its place."""
        path = Path(self.paths[row])
        try:
            return decode(path, self.size)
        except FileNotFoundError as error:
            raise InputError(f"{path} is missing; it is listed in {self.place(row)}.") from error
        except (OSError, SyntaxError, ValueError) as error:
            raise InputError(
                f"{path} cannot be decoded ({error}); it is listed in {self.place(row)}. Fetch the "
                "file again, or load with verify=True, unreadable='drop'."
            ) from error

    def fingerprint(self, rows: np.ndarray) -> str:
        """A hash of names, sizes and modification times of the files and of the target size."""
        digest = hashlib.sha256(repr(self.size).encode())
        for row in rows:
            status = Path(self.paths[row]).stat()
            digest.update(f"{self.paths[row]}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Stored:
    """Images that are in memory already.

    Args:
        images: uint8, or floating point in [0, 1]; shape (N, H, W) or (N, 1, H, W).
        size: The side to average down to, or the images' own size.
    """

    images: Tensor
    size: int | None = None

    def __post_init__(self) -> None:
        if self.images.dtype == torch.uint8 or not self.images.numel():
            return
        found = str(self.images.dtype)
        if self.images.is_floating_point():
            low, high = self.images.min().item(), self.images.max().item()
            if 0 <= low <= high <= 1:
                return
            found += f" from {low:g} to {high:g}"
        raise InputError(f"images are {found}; give uint8, or floating point from 0 to 1")

    def __call__(self, rows: np.ndarray) -> Tensor:
        x = as_images(self._rows(rows))
        if self.size is None or x.shape[-2:] == (self.size, self.size):
            return x
        if not len(x):
            return x.new_zeros(0, 1, self.size, self.size)
        return interpolate(x, size=(self.size, self.size), mode="area")

    def fingerprint(self, rows: np.ndarray) -> str:
        """A hash of the images and of the target size."""
        x = torch.as_tensor(self._rows(rows)).cpu().contiguous()
        digest = hashlib.sha256(f"{self.size} {x.dtype} {tuple(x.shape)}".encode())
        digest.update(x.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _rows(self, rows: np.ndarray) -> np.ndarray | Tensor:
        # NumPy, where it can: for a small batch torch wakes threads, 50 times slower on busy cores.
        if self.images.device.type == "cpu":
            return self.images.numpy()[rows]
        return self.images[torch.as_tensor(rows, device=self.images.device)]


@dataclass(frozen=True)
class Memmap:
    """Images in a ``.npy`` file, uint8, shape (N, H, W), of which only the rows asked for are read.

    The file is opened at each call: worker processes then share nothing but its name.
    """

    path: Path

    def __call__(self, rows: np.ndarray) -> Tensor:
        return as_images(np.load(self.path, mmap_mode="r")[rows])

    def fingerprint(self, rows: np.ndarray) -> str:
        """A hash of the file's name, which itself is one of what it holds, and of the rows."""
        return hashlib.sha256(self.path.name.encode() + rows.tobytes()).hexdigest()


def as_images(pixels: np.ndarray | Tensor) -> Tensor:
    """Bytes or fractions, shape (B, H, W) or (B, 1, H, W), as float32 in [0, 1], (B, 1, H, W)."""
    if isinstance(pixels, np.ndarray):
        pixels = pixels.astype(np.float32) / 255 if pixels.dtype == np.uint8 else pixels
    x = torch.as_tensor(pixels)
    x = x.unsqueeze(1) if x.ndim == 3 else x
    if x.ndim != 4 or x.shape[1] != 1:
        raise InputError(f"images have shape {tuple(x.shape)}, expected (B, H, W) or (B, 1, H, W)")
    return x.float() / 255 if x.dtype == torch.uint8 else x.float()


def failures(source: Files, *, workers: int = 0, progress: str | None = None) -> dict[int, str]:
    """Decode every file once and say which ones cannot be.

    Args:
        source: The files.
        workers: Worker processes.
        progress: The title of a progress bar.

    Returns:
        For each row that fails, the message.
    """
    loader = DataLoader(
        _Checked(source), batch_size=None, num_workers=workers, generator=torch.Generator()
    )
    total = len(source.paths)
    messages = tqdm(loader, total=total, desc=progress, disable=None if progress else True)
    return {row: message for row, message in enumerate(messages) if message}


@dataclass(frozen=True)
class _Checked:
    source: Files

    def __len__(self) -> int:
        return len(self.source.paths)

    def __getitem__(self, row: int) -> str:
        try:
            self.source.pixels(row)
        except InputError as error:
            return str(error)
        return ""

    def __iter__(self) -> Iterator[str]:
        return (self[row] for row in range(len(self)))
