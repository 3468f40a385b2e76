"""What a data set consists of on disk: each file, what it is for and where it comes from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

AIMI = "https://stanfordaimi.azurewebsites.net"
STANFORD = "https://stanfordmlgroup.github.io/competitions/chexpert"
PHYSIONET = "https://physionet.org/content"
BOX = "https://nihcc.app.box.com/v/ChestXray-NIHCC"
CXR = f"{PHYSIONET}/mimic-cxr-jpg"
IV = f"{PHYSIONET}/mimiciv"


@dataclass(frozen=True)
class Part:
    """One file or folder of a data set.

    Args:
        names: Its name, or several under one of which it may be found; patterns are allowed.
        purpose: What it is needed for.
        origin: Where it is published.
        needed: Whether nothing can be loaded without it.
        beside: Whether it may also lie beside the folder.

    Example:
        >>> Part(("train.csv",), "labels", "...").find(Path("/nowhere")) is None
        True
    """

    names: tuple[str, ...]
    purpose: str
    origin: str
    needed: bool = True
    beside: bool = False

    def find(self, folder: Path) -> Path | None:
        """Where it is, or None."""
        places = (folder, folder.parent) if self.beside else (folder,)
        found = (path for place in places for name in self.names for path in place.glob(name))
        return next(found, None)


def mimic_table(part: str, purpose: str) -> Part:
    """A table of MIMIC-CXR-JPG, packed or not."""
    name = f"mimic-cxr-2.0.0-{part}.csv"
    return Part((f"{name}.gz", name), purpose, CXR)


def mimic_iv_table(name: str, purpose: str) -> Part:
    """A table of MIMIC-IV, in the folder of its version, packed or not."""
    folders, endings = ("hosp", "core"), ("csv.gz", "csv")
    return Part(tuple(f"{f}/{name}.{end}" for f in folders for end in endings), purpose, IV)


LAYOUTS: Mapping[str, tuple[Part, ...]] = {
    "chexpert": (
        Part(("train.csv",), "sexes, ages and labels of the training images", STANFORD),
        Part(("valid.csv",), "sexes, ages and labels of the validation images", STANFORD),
        Part(("train",), "the training images", STANFORD),
        Part(("valid",), "the validation images", STANFORD),
        Part(
            ("CHEXPERT DEMO.xlsx",),
            "races",
            f"{AIMI}/datasets/192ada7c-4d43-466e-b8bb-b81992bb80cf",
            needed=False,
            beside=True,
        ),
    ),
    "mimic": (
        mimic_table("metadata", "which images there are, their views and dates"),
        mimic_table("chexpert", "labels"),
        mimic_table("split", "the publisher's split"),
        Part(("files",), "the images", CXR),
    ),
    "mimic_iv": (
        mimic_iv_table("patients", "sexes and ages"),
        mimic_iv_table("admissions", "races"),
    ),
    "nih": (
        Part(
            ("Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv"),
            "patients, sexes, ages, views and labels",
            BOX,
        ),
        Part(("images", "images_*"), "the images", BOX),
        Part(("train_val_list.txt",), "the publisher's split: training", BOX, needed=False),
        Part(("test_list.txt",), "the publisher's split: test", BOX, needed=False),
    ),
    "nih cache": (
        Part(("metadata.csv",), "patients, sexes, ages, views and labels", "your own cache"),
        Part(("images_*.npz",), "the images", "your own cache"),
    ),
}
"""The files of each folder that the loaders read.

:meta hide-value:
"""


def elsewhere(kind: str, folder: Path) -> Path | None:
    """The folder that was probably meant: one above or up to two below that has the first file."""
    first = LAYOUTS[kind][0]
    below = sorted(path for depth in ("*", "*/*") for path in folder.glob(depth) if path.is_dir())
    return next((path for path in (folder.parent, *below) if first.find(path)), None)
