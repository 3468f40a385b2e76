"""Parents that were not recorded: counted, filled in by a generator that can, or refused."""

import logging

from torch import Tensor

from cfchest.data import Dataset
from cfchest.data.dataset import PARENTS
from cfcore.checks import InputError
from cfcore.generator import Generator, Parents

LOG = logging.getLogger(__name__)


def count_imputed(generator: Generator, data: Dataset) -> dict[str, int]:
    """How many values of each parent a generator has to fill in.

    A generator says by ``names`` which parents it needs and by ``imputes`` whether it can fill
    them in from the image. One that says nothing is given what is recorded, NaN and all: an oracle,
    or a generator that reads no parents.

    Args:
        generator: The generator.
        data: The patients.

    Returns:
        The number of values to be filled in, of those parents that miss some.

    Raises:
        InputError: If a parent that is needed is missing and cannot be filled in.
    """
    needed = [name for name in getattr(generator, "names", ()) if name in PARENTS]
    table = data.table[needed].isna()
    counts = {name: int(count) for name, count in table.sum().items() if count}
    if counts and not getattr(generator, "imputes", False):
        row = int(table.any(axis=1).to_numpy().argmax())
        raise InputError(
            f"parents are missing ({tell(counts)}; the first for patient "
            f"{data.table.patient.iloc[row]!r}), and {type(generator).__name__} cannot impute "
            "them: leave such rows out, or use a generator trained on partly labelled images",
            column=next(iter(counts)),
            row=row,
        )
    return counts


def tell(counts: dict[str, int]) -> str:
    """Counts in words.

    Example:
        >>> tell({"sex": 3, "age": 1})
        'sex of 3 rows, age of 1 row'
    """
    parts = (f"{name} of {n:,} row{'s' * (n != 1)}" for name, n in counts.items())
    return ", ".join(parts)


def fill_in(generator: Generator, x: Tensor, pa: Parents) -> Parents:
    """The parents, with missing ones filled in by a generator that imputes.

    Args:
        generator: The generator.
        x: The images, shape (B, 1, H, W).
        pa: Their parents, each of shape (B,), NaN where missing.

    Returns:
        The parents, each of shape (B,).
    """
    names = [name for name in getattr(generator, "names", ()) if name in pa]
    if not getattr(generator, "imputes", False) or not any(pa[n].isnan().any() for n in names):
        return pa
    return {**pa, **generator.impute(x, {name: pa[name] for name in names})}
