"""Where the project's data are: beside the packages in a checkout, in part in a wheel."""

from pathlib import Path

from cfcore.checks import InputError

ROOT = Path(__file__).parents[1]
PACKAGES = ("cfcore", "cfscm", "cfchest", "cfbook")
DATA = ROOT / "data"
_PACKAGED = Path(__file__).parent / "data"  # a wheel has the paper's tables in it


def data_file(name: str) -> Path:
    """A file or folder of the project's data by its name below ``data``, wherever one works.

    Example:
        >>> data_file("paper/risk.csv").name
        'risk.csv'
        >>> data_file("paper/none.csv")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: data/paper/none.csv needs a checkout of the repository ...
    """
    found = [place / name for place in (_PACKAGED, DATA) if (place / name).exists()]
    if not found:
        raise InputError(
            f"data/{name} needs a checkout of the repository (pip install --editable . there); "
            "a wheel has data/paper only"
        )
    return found[0]
