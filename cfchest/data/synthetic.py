"""Patients of the phantom under the schema of the real data sets."""

import numpy as np
import pandas as pd

from cfchest.data.dataset import PARENTS, Dataset
from cfchest.phantom import Cohort


def from_phantom(cohort: Cohort) -> Dataset:
    """A cohort of the phantom as a data set, one image for each patient.

    The column ``image`` holds the row of the patient in the cohort, which is what the oracle of the
    cohort looks the noise up by: ``cohort.oracle.abduct(x, pa, index=...)``.

    Args:
        cohort: What :meth:`cfchest.phantom.cohort.Phantom.sample` returned.

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
    return Dataset(table, cohort.images, name=f"phantom {cohort.hospital}")
