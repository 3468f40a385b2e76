"""Which columns of a table are scores, labels and patients."""

import re

import numpy as np

from cfcore.cells import Cells
from cfcore.checks import InputError

COUNTERFACTUAL = re.compile(r"p_cf_(0|[1-9][0-9]{0,8})")
WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


def read_scores(cells: Cells) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Observed and counterfactual scores, (N,) and (N, K), and the labels if there are any.

    Args:
        cells: A table with the columns ``p_obs``, ``p_cf_0``, ``p_cf_1``, ... and perhaps ``y``.

    Returns:
        ``p_obs``, ``p_cf`` in the order of the numbers in the names, and ``y`` or None.

    Raises:
        InputError: If a column is missing, or a cell is not a number.

    Example:
        >>> from cfcore.cells import read_cells
        >>> path = getfixture("tmp_path") / "t.csv"
        >>> _ = path.write_text("p_cf_1,p_obs,p_cf_0\\n0.3,0.1,0.2\\n")
        >>> read_scores(read_cells(path))
        (array([0.1]), array([[0.2, 0.3]]), None)
    """
    cells.require("p_obs", "p_cf_0")
    names = [name for name in cells.header if name.startswith("p_cf")]
    for name in names:
        if not COUNTERFACTUAL.fullmatch(name):
            problem = f"column {name!r} is not of the form p_cf_0, p_cf_1, ..."
            raise InputError(f"{cells.path}, row 1: {problem}")
    names.sort(key=lambda name: int(name[5:]))
    for k, name in enumerate(names):
        if name != f"p_cf_{k}":
            gap = f"there is no column p_cf_{k}, but a column {name}"
            raise InputError(f"{cells.path}, row 1: {gap}")
    p_cf = np.stack([cells.numbers(name) for name in names], axis=1)
    y = cells.numbers("y", "a label, 0 or 1") if "y" in cells.header else None
    return cells.numbers("p_obs"), p_cf, y


def read_patients(
    cells: Cells, column: str | None = None
) -> tuple[str | None, list[int] | list[str] | None]:
    """The column that says which patient a row is of, and what it says.

    Args:
        cells: A table.
        column: The name of the column; by default ``patient`` if there is one, else None.

    Returns:
        The name and the identifiers, whole numbers if all are and otherwise text; None and None if
        there is no such column.
    """
    if column is not None:
        cells.require(column)
    elif "patient" not in cells.header:
        return None, None
    column = column or "patient"
    text = cells.filled(column)
    return column, [int(cell) for cell in text] if all(map(WHOLE.fullmatch, text)) else text
