"""Radiographs in files and in a cache; other sources of images are in :mod:`cfcore.patients`."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import Tensor
from tqdm import tqdm

from cfcore import patients
from cfcore.checks import InputError
from cfcore.patients import as_images


@dataclass(frozen=True)
class Files(patients.Files):
    """Radiographs that are decoded when they are asked for; colour is reduced to luminance."""

    grey: bool = True
    advice: ClassVar[str] = "Fetch the file again, or load with verify=True, unreadable='drop'."


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


def failures(source: Files, *, progress: str | None = None) -> dict[int, str]:
    """Decode every file once: for each row that fails, the message."""
    broken = {}
    for row in tqdm(range(len(source.paths)), desc=progress, disable=None if progress else True):
        try:
            source.pixels(row)
        except InputError as error:
            broken[row] = str(error)
    return broken
