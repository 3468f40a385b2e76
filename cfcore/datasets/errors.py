"""What can be wrong with a data set on disk; every message names the file and the place in it."""


class MissingFile(FileNotFoundError):
    """A file that the layout of the data set promises is not there."""


class MissingColumn(ValueError):
    """A table lacks a column that is needed."""


class BadValue(ValueError):
    """A cell of a table holds something that cannot be meant."""


class BrokenImage(ValueError):
    """An image file exists but cannot be decoded."""


class Leakage(ValueError):
    """A patient is in two splits."""
