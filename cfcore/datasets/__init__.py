"""Chest radiographs, each data set brought to one schema: a table, and images on demand."""

from cfcore.datasets.dataset import COLUMNS, PARENTS, RACES, Batch, Dataset, schema
from cfcore.datasets.errors import BadValue, BrokenImage, Leakage, MissingColumn, MissingFile

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
    "schema",
]
