"""What can be wrong with a data set on disk; every message names the file and the place in it."""

from cfcore.checks import InputError


class MissingFile(InputError, FileNotFoundError):
    """A file that the layout of the data set promises is not there."""


class MissingColumn(InputError):
    """A table lacks a column that is needed."""


class BadValue(InputError):
    """A cell of a table holds something that cannot be meant."""


class BrokenImage(InputError):
    """An image file exists but cannot be decoded."""


class Leakage(InputError):
    """A patient is in two splits."""
