"""The table of a data set as a plain CSV: what an audit by a plan starts from."""

from pathlib import Path

import numpy as np
import pandas as pd

from cfchest.cohorts import labelled
from cfchest.data.dataset import FINDINGS, RACES, Dataset
from cfchest.data.sheet import readable
from cfcore.files import write_atomically
from cfcore.marks import check_place

_SEXES = ("male", "female")


def archive_of(folder: Path) -> Path | None:
    """The one array of images in a folder with a cache, None without a cache."""
    found = sorted(folder.glob("images_*.npz")) if (folder / "metadata.csv").is_file() else []
    return found[0] if found else None


def _plain_table(data: Dataset, images: Path) -> pd.DataFrame:
    """The rows of which sex, age, view and label are known, under words that a plan can read.

    Args:
        data: The data set.
        images: The folder to which images are relative; or their archive, by names if it has any,
            else by rows.
    """
    table = labelled(data.table).dropna(subset="view" if data.table.view.notna().any() else [])
    named = {"image": _named(table, images), "patient": table.patient}
    named["sex"] = table.sex.map(dict(enumerate(_SEXES)))
    named["race"] = table.race.map(dict(enumerate(RACES)))
    rest = [name for name in (*FINDINGS, "split") if name in table]
    codes = {name: table[name].astype("int64" if name != "split" else "str") for name in rest}
    codes = {"effusion": table.effusion.astype("int64")} | codes
    frame = pd.DataFrame({**named, "age": table.age, "view": table.view, **codes})
    return frame.dropna(axis="columns", how="all")


def write_plain_table(data: Dataset, images: Path, path: Path) -> str:
    """Write that table, and say what is in it and what comes next."""
    table = _plain_table(data, images)
    check_place(path, data.restricted)
    write_atomically(path, table.to_csv(index=False).encode())
    left = f"{len(table):,} of {len(data):,} images, with sex, age, view and label"
    return f"written: {path}, {left}; next: cfcore plan {path} --images {images}"


def _named(table: pd.DataFrame, images: Path) -> pd.Series:
    if images.suffix != ".npz":
        relative = [Path(image).relative_to(images).as_posix() for image in table.image]
        return pd.Series(relative, table.index)
    with readable(images), np.load(images, allow_pickle=False) as archive:
        names = archive["image"] if "image" in archive else np.arange(len(archive["images"]))
    return pd.Series(names.astype(str)[table.image.to_numpy()], table.index)
