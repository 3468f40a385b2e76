"""MIMIC-CXR: radiographs from Beth Israel Deaconess Medical Center, with MIMIC-IV demographics.

Johnson et al., *MIMIC-CXR-JPG, a large publicly available database of labeled chest
radiographs*, arXiv:1901.07042 (2019); Johnson et al., *MIMIC-IV, a freely accessible electronic
health record dataset*, Scientific Data 10, 1 (2023).
"""

from pathlib import Path

import pandas as pd

from cfchest.data.chexmask import lung_sizes
from cfchest.data.codes import LABEL, ages, labels, races, sexes, views
from cfchest.data.dataset import Dataset
from cfchest.data.layouts import LAYOUTS
from cfchest.data.ledger import Ledger
from cfchest.data.loading import DEFAULTS, LoadOptions, assemble, located
from cfchest.data.sheet import Sheet, read_sheet

_STUDY = ("subject_id", "study_id")


def load_mimic(root: str | Path, mimic_iv: str | Path, options: LoadOptions = DEFAULTS) -> Dataset:
    r"""Load the frontal (AP and PA) radiographs of MIMIC-CXR-JPG.

    ``root`` holds ``files/p10/...`` and the tables ``mimic-cxr-2.0.0-metadata.csv.gz``,
    ``-chexpert.csv.gz`` and ``-split.csv.gz``; ``mimic_iv`` holds ``hosp/`` (version 2 and
    later) or also ``core/`` (version 1). Tables may be unpacked. The age at the study is

    .. math:: \text{anchor age} + \text{year of the study} - \text{anchor year},

    not the anchor age, which belongs to another year of the (shifted) calendar. MIMIC-IV gives
    everyone older than 89 the anchor age 91. Race is stated at each admission, in the column
    ``ethnicity`` (version 1) or ``race``; those that are stated must agree.

    Dropped and counted: views other than AP and PA; labels whose policy is ``"drop"``. Set
    missing and counted: labels of studies that the labeller did not read; sex and age of
    patients that MIMIC-IV does not know, ages of 0 or impossible ones; races that are not
    white, asian or black, not stated, not recognised, that differ between admissions, or of
    patients never admitted; lung sizes without a trusted mask.

    Args:
        root: The folder of MIMIC-CXR-JPG.
        mimic_iv: The folder of MIMIC-IV.
        options: What is left to you.

    Returns:
        The data set; ``print(dataset.report)`` tells what was dropped or set missing.
    """
    root, ledger = Path(root), Ledger("MIMIC-CXR", source="mimic")
    sheet = _frontal(root, ledger)
    sheet, effusion = _effusion(root, sheet, ledger, options)
    subject, study, dicom = (sheet.frame[name] for name in (*_STUDY, "dicom_id"))
    folder = f"{root}/files/p" + subject.str[:2] + "/p" + subject + "/s" + study
    sex, age = _sex_and_age(Path(mimic_iv), sheet, ledger)
    known = {"sex": sex, "age": age, "effusion": effusion, "patient": subject, "study": study}
    table = located(
        sheet,
        image=folder + "/" + dicom + ".jpg",
        race=_admitted_races(Path(mimic_iv), subject, ledger),
        lung_size=lung_sizes(options.masks, dicom, ledger, column="dicom_id"),
        view=views(sheet, "ViewPosition", ledger),
        split=_splits(root, sheet, ledger),
        **known,
    )
    return assemble(table, ledger, options)


def _published(root: Path, part: str, *columns: str) -> Sheet:
    return read_sheet(LAYOUTS["mimic"][part].path(root), columns)


def _frontal(root: Path, ledger: Ledger) -> Sheet:
    sheet = _published(root, "metadata", "dicom_id", *_STUDY, "ViewPosition", "StudyDate")
    for column in ("dicom_id", *_STUDY):
        sheet.filled(column, "an identifier")
    sheet.unique("dicom_id")
    ledger.read = len(sheet.frame)
    frontal = sheet.frame["ViewPosition"].isin(("AP", "PA"))
    ledger.mark("dropped", "neither AP nor PA", sheet, ~frontal, "ViewPosition")
    return sheet.filtered(frontal)


def _effusion(
    root: Path, sheet: Sheet, ledger: Ledger, options: LoadOptions
) -> tuple[Sheet, pd.Series]:
    """The labels of the studies, one for each image, and the images that remain."""
    table = _published(root, "labels", *_STUDY, LABEL)
    table.unique(*_STUDY)
    studies, labelled = (
        each.frame["subject_id"] + "/" + each.frame["study_id"] for each in (sheet, table)
    )
    unread = ~studies.isin(labelled)
    ledger.mark("set missing", "study not in the label file", sheet, unread, "study_id")
    table = table.filtered(labelled.isin(studies))
    _, values = labels(table, LABEL, ledger, options, unit="study")
    keep = unread | studies.isin(labelled[values.index])
    effusion = studies.map(values.set_axis(labelled[values.index]))
    return sheet.filtered(keep), effusion[keep]


def _splits(root: Path, sheet: Sheet, ledger: Ledger) -> pd.Series:
    table = _published(root, "split", "dicom_id", "split")
    table.unique("dicom_id")
    splits = sheet.frame["dicom_id"].map(table.frame.set_index("dicom_id")["split"])
    ledger.mark("set missing", "split: not in the split file", sheet, splits.isna(), "dicom_id")
    return splits


def _sex_and_age(mimic_iv: Path, sheet: Sheet, ledger: Ledger) -> tuple[pd.Series, pd.Series]:
    columns = ("subject_id", "gender", "anchor_age", "anchor_year")
    patients = read_sheet(LAYOUTS["mimic_iv"]["patients"].path(mimic_iv), columns)
    patients.unique("subject_id")
    subject = sheet.frame["subject_id"]
    patients = patients.filtered(patients.frame["subject_id"].isin(subject))
    owner = patients.frame["subject_id"]
    unknown = ~subject.isin(owner)
    ledger.mark("set missing", "sex and age: not in MIMIC-IV", sheet, unknown, "subject_id")
    born = patients.numbers("anchor_year") - patients.numbers("anchor_age")
    years = sheet.numbers("StudyDate") // 10_000 - subject.map(born.set_axis(owner))
    sex = sexes(patients, "gender", ledger, unit="patient").set_axis(owner)
    age = ages(sheet.filtered(~unknown), "StudyDate", ledger, years[~unknown])
    return subject.map(sex), age.reindex(subject.index)


def _admitted_races(mimic_iv: Path, subject: pd.Series, ledger: Ledger) -> pd.Series:
    path = LAYOUTS["mimic_iv"]["admissions"].path(mimic_iv)
    column = "ethnicity" if path.parent.name == "core" else "race"
    sheet = read_sheet(path, ("subject_id", column))
    return races(sheet, column, "subject_id", subject, ledger, upper=True)
