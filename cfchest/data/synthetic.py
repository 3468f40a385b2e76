"""Patients of the phantom under the schema of the real data sets."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cfchest import phantom
from cfchest.data.dataset import PARENTS, Dataset
from cfchest.phantom import Cohort


@dataclass(frozen=True)
class Rendered:
    """The images of a cohort, rendered when they are asked for.

    Args:
        cohort: The cohort.
    """

    cohort: Cohort

    def __call__(self, rows: np.ndarray) -> Tensor:
        return self.cohort.images[torch.as_tensor(rows)].cpu()

    def fingerprint(self, rows: np.ndarray) -> str:
        """A hash of all that decides how the rows look, by which a cache is named."""
        cohort = self.cohort
        facts = [phantom_digest(), cohort.hospital, cohort.seed, cohort.phantom.shape]
        digest = hashlib.sha256(json.dumps(facts).encode())
        digest.update(cohort.rows[torch.as_tensor(rows)].numpy().tobytes())
        return digest.hexdigest()


@cache
def phantom_digest() -> str:
    """A hash of the phantom: of its coefficients, and of the source code that draws with them."""
    folder = Path(phantom.__file__).parent
    return hashlib.sha256(b"".join(p.read_bytes() for p in sorted(folder.glob("*.py")))).hexdigest()


def from_phantom(cohort: Cohort) -> Dataset:
    """A cohort of the phantom as a data set, one image for each patient.

    The column ``image`` holds the row of the patient in the cohort, which is what the oracle of the
    cohort looks the noise up by: ``cohort.oracle.abduct(x, pa, index=...)``.

    Args:
        cohort: What :meth:`cfchest.phantom.cohort.Phantom.sample` returned.

    Returns:
        The data set; images are rendered when they are asked for.

    Example:
        >>> from cfchest.phantom import Phantom
        >>> data = from_phantom(Phantom(32).sample(3, hospital="C", seed=2026))
        >>> data, data[1:].shape
        (Dataset('phantom C', 3 images of 3 patients), torch.Size([2, 1, 32, 32]))
        >>> data.table.patient[0]
        'C-2026-000000'
    """
    table = pd.DataFrame({name: cohort.pa[name].cpu().numpy() for name in PARENTS})
    names = [f"{cohort.hospital}-{cohort.seed}-{row:06d}" for row in cohort.rows.tolist()]
    table = table.assign(image=np.arange(len(cohort)), patient=names, study=names, view="PA")
    return Dataset(table, Rendered(cohort), name=f"phantom {cohort.hospital}")
