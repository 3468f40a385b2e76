"""Chest radiographs, each data set brought to one schema: a table, and images on demand.

>>> from cfchest.data import LoadOptions, load_nih
>>> data = load_nih("/data/nih_cxr14", LoadOptions(size=64))  # doctest: +SKIP
>>> print(data.report)  # doctest: +SKIP
>>> data[:8].shape, data.parents["age"].shape  # doctest: +SKIP
"""

from cfchest.data.chexpert import load_chexpert
from cfchest.data.dataset import COLUMNS, PARENTS, RACES, SOURCES, Dataset, schema
from cfchest.data.loading import LoadOptions
from cfchest.data.mimic import load_mimic
from cfchest.data.nih import load_nih
from cfchest.data.own import load_table
from cfchest.data.synthetic import from_phantom

__all__ = [
    "COLUMNS", "PARENTS", "RACES", "SOURCES", "Dataset", "LoadOptions", "from_phantom",
    "load_chexpert", "load_mimic", "load_nih", "load_table", "schema",
]  # fmt: skip
