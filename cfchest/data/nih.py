"""NIH ChestX-ray14: radiographs from the NIH Clinical Center, unrestricted with attribution.

Wang et al., *ChestX-ray8: hospital-scale chest X-ray database and benchmarks on
weakly-supervised classification and localization of common thorax diseases*, CVPR 2017,
pp. 3462-3471; https://nihcc.app.box.com/v/ChestXray-NIHCC.
"""

from pathlib import Path

import pandas as pd

from cfchest.data.chexmask import lung_sizes
from cfchest.data.codes import ages, sexes, views
from cfchest.data.dataset import Dataset
from cfchest.data.layouts import LAYOUTS
from cfchest.data.ledger import Ledger
from cfchest.data.loading import DEFAULTS, LoadOptions, assemble, assemble_stored, located
from cfchest.data.sheet import Sheet, read_sheet, readable
from cfcore.checks import InputError

_FINDINGS = (
    "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Emphysema", "Fibrosis",
    "Hernia", "Infiltration", "Mass", "No Finding", "Nodule", "Pleural_Thickening", "Pneumonia",
    "Pneumothorax",
)  # fmt: skip
_PUBLISHED = {
    "image": "Image Index", "patient": "Patient ID", "followup": "Follow-up #",
    "age": "Patient Age", "view": "View Position", "findings": "Finding Labels",
}  # fmt: skip  # the sex is called Patient Gender or Patient Sex
_CACHE = {name: name for name in (*_PUBLISHED, "sex")} | {"findings": "finding_labels"}


def load_nih(root: str | Path, options: LoadOptions = DEFAULTS) -> Dataset:
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
        options: What is left to you; no label is uncertain or blank.

    Returns:
        The data set; ``print(dataset.report)`` tells what was dropped or set missing.
    """
    root, ledger = Path(root), Ledger("NIH ChestX-ray14", source="nih")
    if (root / "metadata.csv").is_file():
        return _load_cache(root, ledger, options)
    path = LAYOUTS["nih"]["table"].path(root)
    sheet = read_sheet(path, _PUBLISHED.values(), optional=("Patient Gender", "Patient Sex"))
    sex = "Patient Sex" if sheet.frame["Patient Gender"].isna().all() else "Patient Gender"
    sheet = sheet.renamed({**_PUBLISHED, "sex": sex})
    table, splits = _records(sheet, ledger, options), _listed_splits(root)
    if splits:
        table["split"] = table.image.map(splits)
        ledger.mark("set missing", "split: in no list", sheet, table.split.isna(), "image")
    table["image"] = _paths(root, table.image)
    return assemble(table, ledger, options)


def _load_cache(root: Path, ledger: Ledger, options: LoadOptions) -> Dataset:
    sheet = read_sheet(root / "metadata.csv", _CACHE.values(), optional=("split",))
    split, sheet = sheet.frame.split, sheet.renamed(_CACHE)
    table = _records(sheet, ledger, options)
    if split.notna().any():
        table["split"] = split
    archives = sorted(root.glob("images_*.npz"))
    if len(archives) != 1:
        raise InputError(f"{root} should hold one 'images_<side>.npz' but has {len(archives)}")
    return assemble_stored(table, ledger, options, archives[0], sheet)


def _records(sheet: Sheet, ledger: Ledger, options: LoadOptions) -> pd.DataFrame:
    sheet.filled("image", "a file name")
    sheet.unique("image")
    ledger.read = len(sheet.frame)
    # The first edition writes an age of 58 years as 058Y.
    years = sheet.frame.age.str.replace(r"^(\d+)Y$", r"\1", regex=True)
    sheet = Sheet(sheet.path, sheet.frame.assign(age=years), sheet.titles)
    image, patient = sheet.frame.image, _patients(sheet)
    ledger.add("set missing", "race", ["not published"], patient.nunique(), "patient")
    known = {"sex": sexes(sheet, "sex", ledger), "age": ages(sheet, "age", ledger)}
    known |= {"image": image, "patient": patient}
    return located(
        sheet,
        lung_size=lung_sizes(options.masks, image, ledger, column="Image Index"),
        effusion=_listed_effusion(sheet),
        study=patient + "/" + sheet.filled("followup", "a number"),
        view=views(sheet, "view", ledger),
        **known,
    )


def _patients(sheet: Sheet) -> pd.Series:
    """Patients as eight digits; ``1``, ``1.0`` and ``00000001`` are one and the same."""
    text = sheet.filled("patient", "a whole number")
    sheet.refuse(~text.str.fullmatch(r"\d+(\.0*)?").astype(bool), "patient", "a whole number")
    return text.map(lambda number: f"{int(number.split('.')[0]):08d}")


def _listed_effusion(sheet: Sheet) -> pd.Series:
    listed = sheet.frame.findings.fillna("").str.split("|")
    strange = ~listed.map(set(_FINDINGS).issuperset).astype(bool)
    sheet.refuse(strange, "findings", f"findings among {', '.join(_FINDINGS)}")
    return listed.map(lambda findings: float("Effusion" in findings))


def _paths(root: Path, names: pd.Series) -> list[str]:
    patterns = ("images", "images_*/images", "images_*")
    folders = [path for pattern in patterns for path in root.glob(pattern) if path.is_dir()]
    found = {path.name: str(path) for folder in folders for path in folder.iterdir()}
    return [found.get(name, str(root / "images" / name)) for name in names]


def _listed_splits(root: Path) -> dict[str, str]:
    splits: dict[str, str] = {}
    for split, listing in (("train", "train_val_list.txt"), ("test", "test_list.txt")):
        path = root / listing
        if path.is_file():
            with readable(path):
                names = path.read_text(encoding="utf-8").split()
            twice = next((name for name in names if splits.get(name, split) != split), None)
            if twice is not None:
                raise InputError(f"{twice} is in train_val_list.txt and in {path}")
            splits |= dict.fromkeys(names, split)
    return splits
