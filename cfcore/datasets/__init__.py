"""Chest radiographs, each data set brought to one schema: a table, and images on demand.

>>> from cfcore.datasets import load_nih
>>> data = load_nih("/data/nih_cxr14")  # doctest: +SKIP
>>> print(data.report)  # doctest: +SKIP
>>> data[:8].shape, data.parents()["age"].shape  # doctest: +SKIP
"""

from cfcore.datasets.chexpert import load_chexpert
from cfcore.datasets.dataset import COLUMNS, PARENTS, RACES, Batch, Dataset, schema
from cfcore.datasets.errors import BadValue, BrokenImage, Leakage, MissingColumn, MissingFile
from cfcore.datasets.mimic import load_mimic
from cfcore.datasets.nih import load_nih
from cfcore.datasets.synthetic import from_phantom
from cfcore.datasets.table import load_table

__all__ = [
    "COLUMNS",
    "PARENTS",
    "RACES",
    "BadValue",
    "Batch",
    "BrokenImage",
    "Dataset",
    "Leakage",
    "MissingColumn",
    "MissingFile",
    "from_phantom",
    "load_chexpert",
    "load_mimic",
    "load_nih",
    "load_table",
    "schema",
]
