"""What a data set consists of on disk: each file, what it is for and where it comes from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cfcore.checks import InputError

_STANFORD = "https://stanfordmlgroup.github.io/competitions/chexpert"
_AIMI = "https://stanfordaimi.azurewebsites.net/datasets/192ada7c-4d43-466e-b8bb-b81992bb80cf"
_CXR = "https://physionet.org/content/mimic-cxr-jpg"
_IV = "https://physionet.org/content/mimiciv"
_BOX = "https://nihcc.app.box.com/v/ChestXray-NIHCC"
_TABLE = "patients, sexes, ages, views and labels"
CHEXMASK = "https://physionet.org/content/chexmask-cxr-segmentation-data"


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
        >>> labels = Part(("train.csv",), "labels", "https://example.org")
        >>> print(labels, labels.find(Path("/nowhere")))
        train.csv (labels), from https://example.org None
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

    def path(self, folder: Path) -> Path:
        """Where it is, or :class:`InputError` naming what was looked for."""
        found = self.find(folder)
        if found is None:
            names = ", ".join(map(repr, self.names))
            raise InputError(f"{folder} holds none of {names}; is it the folder as published?")
        return found

    def __str__(self) -> str:
        return f"{' or '.join(self.names)} ({self.purpose}), from {self.origin}"


def _mimic(part: str, purpose: str) -> Part:
    """A table of MIMIC-CXR-JPG, packed or not."""
    name = f"mimic-cxr-2.0.0-{part}.csv"
    return Part((f"{name}.gz", name), purpose, _CXR)


def _mimic_iv(name: str, purpose: str) -> Part:
    """A table in ``hosp`` (version 2 and later) or in ``core``: version 1 has both folders."""
    folders, endings = ("hosp", "core"), ("csv.gz", "csv")
    return Part(tuple(f"{f}/{name}.{end}" for f in folders for end in endings), purpose, _IV)


_ENTRIES = ("Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv", "sample_labels.csv")
_ANYWHERE = (
    "images",
    "images[_-]*",
    *(f"{at}*.{end}" for at in ("", "*/", "*/*/") for end in ("png", "jpg", "jpeg")),
)


def _lists(part: str) -> tuple[str, ...]:
    """What a list of the publisher's split is called, by the publisher and by others."""
    return f"{part}_list.txt", f"{part}_list_NIH.txt"


LAYOUTS: Mapping[str, Mapping[str, Part]] = {
    "chexpert": {
        "train": Part(("train.csv",), "sexes, ages and labels of the training images", _STANFORD),
        "valid": Part(("valid.csv",), "sexes, ages and labels of the validation images", _STANFORD),
        "training images": Part(("train",), "the training images", _STANFORD),
        "validation images": Part(("valid",), "the validation images", _STANFORD),
        "races": Part(("CHEXPERT DEMO.xlsx",), "races", _AIMI, needed=False, beside=True),
    },
    "mimic": {
        "metadata": _mimic("metadata", "which images there are, their views and dates"),
        "labels": _mimic("chexpert", "labels"),
        "split": _mimic("split", "the publisher's split"),
        "images": Part(("files",), "the images", _CXR),
    },
    "mimic_iv": {
        "patients": _mimic_iv("patients", "sexes and ages"),
        "admissions": _mimic_iv("admissions", "races"),
    },
    "nih": {
        "table": Part(_ENTRIES, _TABLE, _BOX),
        "images": Part(_ANYWHERE, "the images", _BOX),
        "train": Part(_lists("train_val"), "the publisher's split: training", _BOX, False),
        "test": Part(_lists("test"), "the publisher's split: test", _BOX, False),
    },
    "nih cache": {
        "table": Part(("metadata.csv",), _TABLE, "your cache"),
        "images": Part(("images_*.npz",), "the images", "your cache"),
    },
}
"""The files of each folder that the loaders read.

:meta hide-value:
"""


def elsewhere(kind: str, folder: Path) -> Path | None:
    """The folder that was probably meant: one above or up to two below that has the first file."""
    first = next(iter(LAYOUTS[kind].values()))
    below = sorted(path for depth in ("*", "*/*") for path in folder.glob(depth) if path.is_dir())
    return next((path for path in (folder.parent, *below) if first.find(path)), None)
