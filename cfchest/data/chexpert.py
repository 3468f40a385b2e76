"""CheXpert: radiographs from Stanford Hospital.

Irvin et al., *CheXpert: a large chest radiograph dataset with uncertainty labels and expert
comparison*, AAAI 2019. Races come from the demographic table that Stanford publishes beside it.
"""

from pathlib import Path

import pandas as pd

from cfchest.data.chexmask import lung_sizes
from cfchest.data.codes import LABEL, ages, labels, races, sexes, views
from cfchest.data.dataset import Dataset
from cfchest.data.layouts import LAYOUTS
from cfchest.data.ledger import Ledger
from cfchest.data.loading import DEFAULTS, LoadOptions, assemble, located
from cfchest.data.sheet import read_sheet

_PATH = r"(?P<image>(?P<split>train|valid)/(?P<patient>patient\d+)/(?P<study>study\d+)/.+)$"


def load_chexpert(root: str | Path, options: LoadOptions = DEFAULTS) -> Dataset:
    """Load the frontal radiographs of CheXpert.

    ``root`` is the folder that holds ``train.csv``, ``valid.csv`` and the images, whatever it
    is called and in either resolution. Sex and age come from these files; race from
    ``CHEXPERT DEMO.xlsx`` in the folder or beside it, joined on the patient in the path. A label
    that the report does not mention (blank) is read as absent, as most of the literature does,
    and so are uncertain ones (-1) unless the options say otherwise.

    Dropped and counted: lateral views; labels whose policy is ``"drop"``. Set missing and
    counted: an age of 0, which stands for unknown; a sex that is not stated; a race that is
    not white, asian or black, or not stated, or not recognised (matched with its capitals:
    "Caucasian" contains "asian"), or of a patient not in the demographic table; lung sizes
    without a trusted mask. Without the demographic table all races are missing; without
    masks all lung sizes are; the report says so.

    Args:
        root: The folder as published.
        options: What is left to you.

    Returns:
        The data set; ``print(dataset.report)`` tells what was dropped or set missing.
    """
    root, ledger = Path(root), Ledger("CheXpert", source="chexpert")
    files = [LAYOUTS["chexpert"][split].path(root) for split in ("train", "valid")]
    table = pd.concat([_images(path, ledger, options) for path in files], ignore_index=True)
    table["race"] = _stated_races(root, table.patient, ledger)
    masks = {"column": "Path", "key": lambda names: names.str.extract(_PATH).image}
    table["lung_size"] = lung_sizes(options.masks, table.image, ledger, **masks)
    table["image"] = f"{root}/" + table.image
    return assemble(table, ledger, options)


def _images(path: Path, ledger: Ledger, options: LoadOptions) -> pd.DataFrame:
    sheet = read_sheet(path, ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", LABEL))
    sheet.unique("Path")
    ledger.read += len(sheet.frame)
    frontal = sheet.frame["Frontal/Lateral"] == "Frontal"
    ledger.mark("dropped", "not a frontal view", sheet, ~frontal, "Frontal/Lateral")
    sheet, effusion = labels(sheet.filtered(frontal), LABEL, ledger, options)
    parts = sheet.frame["Path"].str.extract(_PATH)
    sheet.refuse(parts.image.isna(), "Path", "<folder>/train/patient00001/study1/<file>")
    sex, age = sexes(sheet, "Sex", ledger), ages(sheet, "Age", ledger)
    parts["study"] = parts.patient + "/" + parts.study
    view = views(sheet, "AP/PA", ledger)
    return located(sheet, **parts, sex=sex, age=age, effusion=effusion, view=view)


def _stated_races(root: Path, patients: pd.Series, ledger: Ledger) -> pd.Series | float:
    part = LAYOUTS["chexpert"]["races"]
    path = part.find(root)
    if path is None:
        places = [f"no {part.names[0]!r} in {root} or beside it"]
        ledger.add("set missing", "race", places, patients.nunique(), "patient")
        return float("nan")
    sheet = read_sheet(path, ("PATIENT", "PRIMARY_RACE"))
    return races(sheet, "PRIMARY_RACE", "PATIENT", patients, ledger)
