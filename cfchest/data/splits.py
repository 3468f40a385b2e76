"""Patients kept apart: no split is of use if a patient is on both sides of it."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from cfchest.data.sheet import line_number
from cfcore.checks import InputError


def assert_disjoint(parts: Mapping[str, pd.DataFrame]) -> None:
    """Raise :class:`InputError` if a patient is in two of the parts, or if one is not named.

    Args:
        parts: Tables, by name.
    """
    seen: dict[str, str] = {}
    for name, part in parts.items():
        if part.patient.isna().any():
            row = part.index[part.patient.isna().to_numpy().argmax()]
            raise InputError(f"row {row} of {name!r} has no patient: it may be in any part")
        for patient in part.patient.unique():
            if patient in seen:
                raise InputError(f"patient {patient!r} is in {seen[patient]!r} and in {name!r}")
            seen[patient] = name


def check_published(table: pd.DataFrame) -> None:
    """Raise :class:`InputError` if the publisher's split, where there is one, shares a patient.

    Images in no split are in none, and share nothing.

    Args:
        table: Columns ``patient``, ``file``, ``record`` and perhaps ``split``.
    """
    if "split" not in table:
        return
    rows = table[table.split.notna()].drop_duplicates(["patient", "split"])
    shared = rows.patient.duplicated().to_numpy()
    if shared.any():
        patient = rows.patient.iloc[shared.argmax()]
        one, two = list(rows[rows.patient == patient].itertuples())[:2]
        raise InputError(
            f"patient {patient!r} is in {one.split!r} ({_place(one.file, one.record)}) and in "
            f"{two.split!r} ({_place(two.file, two.record)}). Correct the split or drop it."
        )


def _place(file: str, record: int) -> str:
    return f"{Path(file).name} line {line_number(Path(file), record)}"
