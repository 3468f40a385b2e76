"""CheXpert: radiographs from Stanford Hospital.

Irvin et al., *CheXpert: a large chest radiograph dataset with uncertainty labels and expert
comparison*, AAAI 2019. Races come from the demographic table that Stanford publishes beside it.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from cfchest.data.assembly import OnFailure, assemble, located
from cfchest.data.cells import Policy, ages, labels, races, sexes, views
from cfchest.data.chexmask import lung_sizes
from cfchest.data.dataset import Dataset
from cfchest.data.ledger import Ledger
from cfchest.data.sheet import Sheet, find_file, read_sheet
from cfcore.checks import InputError

DEMOGRAPHICS = "CHEXPERT DEMO.xlsx"
LABEL = "Pleural Effusion"
PATH = r"(?P<image>(?P<split>train|valid|test)/(?P<patient>patient\d+)/(?P<study>study\d+)/.+)$"


def load_chexpert(
    root: str | Path,
    *,
    size: int | None = 224,
    splits: Sequence[str] = ("train", "valid"),
    demographics: str | Path | None = None,
    masks: str | Path | None = None,
    dice: float = 0.7,
    uncertain: Policy = "zero",
    blank: Policy = "zero",
    unreadable: OnFailure = "raise",
    verify: bool = False,
    workers: int = 0,
) -> Dataset:
    """Load the frontal radiographs of CheXpert.

    ``root`` is the folder that holds ``train.csv``, ``valid.csv`` and the images, whatever it
    is called and in either resolution. Sex and age come from these files; race from
    ``CHEXPERT DEMO.xlsx``, joined on the patient in the path. A label that the report does not
    mention (blank) is read as absent, as most of the literature does; what becomes of uncertain
    ones (-1) differs between projects, so state your choice.

    Dropped and counted: lateral views; labels whose policy is ``"drop"``. Set missing and
    counted: an age of 0, which stands for unknown; a sex that is not stated; a race that is
    not white, asian or black, or not stated, or not recognised (matched with its capitals:
    "Caucasian" contains "asian"), or of a patient not in the demographic table; lung sizes
    without a trusted mask. Without the demographic table all races are missing; without
    ``masks`` all lung sizes are; the report says so.

    Args:
        root: The folder as published.
        size: The side to which images are resized; ``None`` leaves them.
        splits: Which of the CSV files to read.
        demographics: The demographic table, by default ``CHEXPERT DEMO.xlsx`` in ``root`` or
            beside it.
        masks: The CSV of CheXmask for CheXpert.
        dice: The least Dice estimate of a mask that is trusted.
        uncertain: What a label of -1 becomes: ``"zero"``, ``"one"``, ``"missing"``, ``"drop"``.
        blank: What an empty label becomes.
        unreadable: Whether a missing file, or with ``verify`` a broken one, raises or is dropped
            and counted.
        verify: Whether to decode every file now. Otherwise a broken file raises when it is
            first decoded; either way the message names it and the line that lists it.
        workers: Worker processes for ``verify``.

    Returns:
        The data set; ``print(dataset.report)`` tells what was dropped or set missing.
    """
    if isinstance(splits, str) or not splits or len(set(splits)) < len(splits):
        raise InputError(f"splits={splits!r} should name one or more files, each once")
    root, ledger = Path(root), Ledger("CheXpert", source="chexpert")
    sheets = [_read(find_file(root, f"{split}.csv"), ledger) for split in splits]
    tables = [_table(sheet, ledger, uncertain=uncertain, blank=blank) for sheet in sheets]
    table = pd.concat(tables, ignore_index=True)
    table["race"] = _races(root, demographics, table.patient, ledger)
    table["lung_size"] = lung_sizes(
        masks, table.image, ledger, column="Path", key=_relative, dice=dice
    )
    table["image"] = f"{root}/" + table.image
    return assemble(table, ledger, size=size, unreadable=unreadable, verify=verify, workers=workers)


def _read(path: Path, ledger: Ledger) -> Sheet:
    sheet = read_sheet(path, ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", LABEL))
    sheet.unique(["Path"])
    ledger.read += len(sheet.frame)
    frontal = sheet.frame["Frontal/Lateral"] == "Frontal"
    ledger.mark("dropped", "not a frontal view", sheet, ~frontal, "Frontal/Lateral")
    return sheet.filtered(frontal)


def _table(sheet: Sheet, ledger: Ledger, *, uncertain: Policy, blank: Policy) -> pd.DataFrame:
    effusion = labels(sheet, LABEL, ledger, uncertain=uncertain, blank=blank)
    sheet = sheet.filtered(sheet.frame.index.isin(effusion.index))
    parts = sheet.frame["Path"].str.extract(PATH)
    sheet.refuse(parts.image.isna(), "Path", "<folder>/train/patient00001/study1/<file>")
    return located(
        sheet,
        image=parts.image,
        sex=sexes(sheet, "Sex", ledger),
        age=ages(sheet, "Age", ledger),
        effusion=effusion,
        patient=parts.patient,
        study=parts.patient + "/" + parts.study,
        view=views(sheet, "AP/PA", ledger),
        split=parts.split,
    )


def _races(
    root: Path, path: str | Path | None, patients: pd.Series, ledger: Ledger
) -> pd.Series | float:
    nearby = (root / DEMOGRAPHICS, root.parent / DEMOGRAPHICS)
    path = path or next((path for path in nearby if path.is_file()), None)
    if path is None:
        places = [f"no {DEMOGRAPHICS!r} in {root} or beside it"]
        ledger.add("set missing", "race", places, count=patients.nunique(), unit="patient")
        return float("nan")
    sheet = read_sheet(Path(path), ("PATIENT", "PRIMARY_RACE"))
    return races(sheet, "PRIMARY_RACE", "PATIENT", patients, ledger)


def _relative(names: pd.Series) -> pd.Series:
    return names.str.extract(PATH).image
