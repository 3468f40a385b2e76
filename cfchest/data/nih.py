"""NIH ChestX-ray14: radiographs from the NIH Clinical Center, unrestricted with attribution.

Wang et al., *ChestX-ray8: hospital-scale chest X-ray database and benchmarks on
weakly-supervised classification and localization of common thorax diseases*, CVPR 2017,
pp. 3462-3471; https://nihcc.app.box.com/v/ChestXray-NIHCC.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from cfchest.data.assembly import OnFailure, assemble, located, read_archive
from cfchest.data.cells import ages, sexes, views
from cfchest.data.chexmask import lung_sizes
from cfchest.data.dataset import Dataset
from cfchest.data.images import Stored
from cfchest.data.ledger import Ledger
from cfchest.data.sheet import Sheet, find_file, read_sheet, readable
from cfchest.data.splits import check_published
from cfcore.checks import InputError

FINDINGS = frozenset(
    (
        "Atelectasis",
        "Cardiomegaly",
        "Consolidation",
        "Edema",
        "Effusion",
        "Emphysema",
        "Fibrosis",
        "Hernia",
        "Infiltration",
        "Mass",
        "No Finding",
        "Nodule",
        "Pleural_Thickening",
        "Pneumonia",
        "Pneumothorax",
    )
)

PUBLISHED = {
    "image": "Image Index",
    "patient": "Patient ID",
    "followup": "Follow-up #",
    "age": "Patient Age",
    "view": "View Position",
    "findings": "Finding Labels",
}
"""The columns of the published table; the sex is called Patient Gender or Patient Sex."""

CACHE = {
    "image": "image",
    "patient": "patient",
    "followup": "followup",
    "age": "age",
    "view": "view",
    "findings": "finding_labels",
}
"""The columns of the table of a cache, which calls the sex sex and may have a split."""


def load_nih(
    root: str | Path,
    *,
    size: int | None = None,
    masks: str | Path | None = None,
    dice: float = 0.7,
    unreadable: OnFailure = "raise",
    verify: bool = False,
    workers: int = 0,
) -> Dataset:
    """Load NIH ChestX-ray14, as published or from a cache of small images.

    As published, ``root`` holds ``Data_Entry_2017_v2020.csv`` and the images in ``images/`` or
    in ``images_001/images/`` to ``images_012/images/``; ``train_val_list.txt`` and
    ``test_list.txt``, where present, give the column ``split``. A cache holds ``metadata.csv``
    and ``images_<side>.npz``, whose row i is row i of the table.

    All views are frontal. The labels are mined from text and are never uncertain: a finding
    that is not listed is absent. There is no race. Set missing and counted: an age of 0 or
    above 120 (the first edition has some of 400 years), a sex that is not stated, all races,
    lung sizes without a trusted mask, the split of images in neither list. A finding that is
    none of the published ones raises.

    Args:
        root: The folder.
        size: The side to which images are resized; by default they keep their own.
        masks: The CSV of CheXmask for ChestX-ray8.
        dice: The least Dice estimate of a mask that is trusted.
        unreadable: Whether a missing file, or with ``verify`` a broken one, raises or is dropped
            and counted.
        verify: Whether to decode every file now. Otherwise a broken file raises when it is
            first decoded; either way the message names it and the line that lists it.
        workers: Worker processes for ``verify``.

    Returns:
        The data set; ``print(dataset.report)`` tells what was dropped or set missing.
    """
    root, ledger = Path(root), Ledger("NIH ChestX-ray14", source="nih")
    if (root / "metadata.csv").is_file():
        return _load_cache(root, ledger, size=size, masks=masks, dice=dice)

    path = find_file(root, "Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv")
    sheet = read_sheet(path, PUBLISHED.values(), optional=("Patient Gender", "Patient Sex"))
    sex = "Patient Sex" if sheet.frame["Patient Gender"].isna().all() else "Patient Gender"
    table = _table(sheet, {**PUBLISHED, "sex": sex}, ledger, masks, dice)
    splits = _listed_splits(root)
    if splits:
        table["split"] = table.image.map(splits)
        unlisted, image = table.split.isna(), PUBLISHED["image"]
        ledger.mark("set missing", "split: in no list", sheet, unlisted, image)
    table["image"] = _paths(root, table.image)
    return assemble(table, ledger, size=size, unreadable=unreadable, verify=verify, workers=workers)


def _load_cache(
    root: Path, ledger: Ledger, *, size: int | None, masks: str | Path | None, dice: float
) -> Dataset:
    sheet = read_sheet(root / "metadata.csv", (*CACHE.values(), "sex"), optional=("split",))
    table = _table(sheet, {**CACHE, "sex": "sex"}, ledger, masks, dice)
    if sheet.frame.split.notna().any():
        table["split"] = sheet.frame.split
    check_published(table)
    table = table.drop(columns=["file", "record"]).assign(image=np.arange(len(table)))
    ledger.kept = len(table)
    archives = sorted(root.glob("images_*.npz"))
    if len(archives) != 1:
        raise InputError(f"{root} should hold one 'images_<side>.npz' but has {len(archives)}")
    images = read_archive(archives[0], sheet, CACHE["image"])
    return Dataset(table, Stored(images, size), name=ledger.name, report=ledger)


def _table(
    sheet: Sheet, names: Mapping[str, str], ledger: Ledger, masks: str | Path | None, dice: float
) -> pd.DataFrame:
    sheet.filled(names["image"], "a file name")
    sheet.unique([names["image"]])
    ledger.read = len(sheet.frame)
    # The first edition writes an age of 58 years as 058Y.
    years = sheet.frame[names["age"]].str.replace(r"^(\d+)Y$", r"\1", regex=True)
    sheet = Sheet(sheet.path, sheet.frame.assign(**{names["age"]: years}))
    image = sheet.frame[names["image"]]
    patient = _patients(sheet, names["patient"])
    ledger.add("set missing", "race", ["not published"], count=patient.nunique(), unit="patient")
    return located(
        sheet,
        image=image,
        sex=sexes(sheet, names["sex"], ledger),
        age=ages(sheet, names["age"], ledger),
        lung_size=lung_sizes(masks, image, ledger, column="Image Index", dice=dice),
        effusion=_effusion(sheet, names["findings"]),
        patient=patient,
        study=patient + "/" + sheet.filled(names["followup"], "a number"),
        view=views(sheet, names["view"], ledger),
    )


def _patients(sheet: Sheet, column: str) -> pd.Series:
    """Patients as eight digits; ``1``, ``1.0`` and ``00000001`` are one and the same."""
    text = sheet.filled(column, "a whole number")
    sheet.refuse(~text.str.fullmatch(r"\d+(\.0*)?").astype(bool), column, "a whole number")
    return text.map(lambda number: f"{int(number.split('.')[0]):08d}")


def _effusion(sheet: Sheet, column: str) -> pd.Series:
    listed = sheet.frame[column].fillna("").str.split("|")
    strange = ~listed.map(FINDINGS.issuperset).astype(bool)
    sheet.refuse(strange, column, f"findings among {', '.join(sorted(FINDINGS))}")
    return listed.map(lambda findings: float("Effusion" in findings))


def _paths(root: Path, names: pd.Series) -> list[str]:
    patterns = ("images", "images_*/images", "images_*")
    folders = [path for pattern in patterns for path in root.glob(pattern) if path.is_dir()]
    found = {path.name: str(path) for folder in folders for path in folder.iterdir()}
    return [found.get(name, str(root / "images" / name)) for name in names]


def _listed_splits(root: Path) -> dict[str, str]:
    splits: dict[str, str] = {}
    for split, listing in (("train", "train_val_list.txt"), ("test", "test_list.txt")):
        if (root / listing).is_file():
            with readable(root / listing):
                names = (root / listing).read_text(encoding="utf-8").split()
            twice = next((name for name in names if splits.get(name, split) != split), None)
            if twice is not None:
                raise InputError(f"{twice} is in train_val_list.txt and in {root / listing}")
            splits |= dict.fromkeys(names, split)
    return splits
