"""Writers of miniature data sets: the folders, headers and files as published, but tiny."""

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

CHEXPERT = [
    "No Finding",
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
]

METADATA = [
    "dicom_id",
    "subject_id",
    "study_id",
    "PerformedProcedureStepDescription",
    "ViewPosition",
    "Rows",
    "Columns",
    "StudyDate",
    "StudyTime",
    "ProcedureCodeSequence_CodeMeaning",
    "ViewCodeSequence_CodeMeaning",
    "PatientOrientationCodeSequence_CodeMeaning",
]

ADMISSIONS = (
    "subject_id,hadm_id,admittime,dischtime,deathtime,admission_type,admission_location,"
    "discharge_location,insurance,language,marital_status,{race},edregtime,edouttime,"
    "hospital_expire_flag"
)

NIH = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y]"
)

CHEXPERT_ROWS = [
    # split, patient, study, view, sex, age, AP/PA, effusion
    ("train", "patient00001", "study1", "view1_frontal", "Female", 68, "AP", "1.0"),
    ("train", "patient00002", "study1", "view1_frontal", "Male", 87, "PA", "0.0"),
    ("train", "patient00002", "study2", "view1_frontal", "Male", 88, "AP", "-1.0"),
    ("train", "patient00002", "study2", "view2_lateral", "Male", 88, "", "-1.0"),
    ("train", "patient00003", "study1", "view1_frontal", "Unknown", 41, "AP", ""),
    ("train", "patient00004", "study1", "view1_frontal", "Female", 0, "LL", "0.0"),
    ("train", "patient00005", "study1", "view1_frontal", "Male", 55, "PA", "1.0"),
    ("train", "patient00006", "study1", "view1_frontal", "Male", 33, "PA", "0.0"),
    ("valid", "patient64541", "study1", "view1_frontal", "Male", 73, "AP", "1.0"),
    ("valid", "patient64542", "study1", "view1_frontal", "Female", 70, "PA", "0.0"),
]

CHEXPERT_RACES = {
    "patient00001": "White, non-Hispanic",
    "patient00002": "Asian",
    "patient00003": "White or Caucasian",
    "patient00004": "Other",
    "patient00005": "Martian",
    "patient00006": "Unknown",
    "patient64541": "Black or African American",
}

MIMIC_ROWS = [
    # dicom, subject, study, view, date, split
    ("02aa804e-bde0afdd", "10000032", "50414267", "PA", "21800506", "train"),
    ("174413ec-4ec4c1f7", "10000032", "50414267", "LATERAL", "21800506", "train"),
    ("2a2277a9-b0ded155", "10000032", "53189527", "AP", "21830626", "train"),
    ("68b5c4b1-227d0485", "10000764", "57375967", "AP", "21321015", "validate"),
    ("096052b7-d256dc40", "11000898", "50771383", "PA", "21880331", "test"),
    ("8959e402-2175d68d", "12000935", "50578979", "AP", "21820102", "train"),
    ("3c1a2d4e-00000006", "13000980", "51967283", "PA", "21910311", "train"),
    ("3c1a2d4e-00000007", "14000001", "51967284", "PA", "21910311", "train"),
]

MIMIC_LABELS = {
    ("10000032", "50414267"): "1.0",
    ("10000032", "53189527"): "-1.0",
    ("10000764", "57375967"): "",
    ("11000898", "50771383"): "0.0",
    ("12000935", "50578979"): "1.0",
    ("13000980", "51967283"): "0.0",
}

MIMIC_PATIENTS = [
    # subject, gender, anchor age, anchor year
    ("10000032", "F", 52, 2180),
    ("10000764", "M", 86, 2132),
    ("11000898", "F", 79, 2188),
    ("12000935", "F", 45, 2187),
    ("13000980", "M", 0, 2191),
]

MIMIC_RACES = [
    ("10000032", "WHITE"),
    ("10000032", "UNKNOWN"),
    ("10000032", "WHITE - RUSSIAN"),
    ("10000764", "ASIAN - CHINESE"),
    ("10000764", "OTHER"),
    ("11000898", "BLACK/CAPE VERDEAN"),
    ("12000935", "HISPANIC/LATINO - CUBAN"),
    ("99999999", "JOVIAN"),
]

NIH_ROWS = [
    # name, findings, follow-up, patient, age, sex, view
    ("00000001_000.png", "Cardiomegaly", 0, 1, "57", "M", "PA"),
    ("00000001_001.png", "Cardiomegaly|Effusion", 1, 1, "58", "M", "PA"),
    ("00000002_000.png", "No Finding", 0, 2, "80", "F", "AP"),
    ("00000003_000.png", "Effusion", 0, 3, "0", "F", "PA"),
    ("00000004_000.png", "Hernia|Infiltration", 0, 4, "414", "M", "PA"),
]


def pixels(name: str, shape: tuple[int, int] = (24, 20)) -> np.ndarray:
    """A random grey image that depends on its name alone, smooth enough to survive JPEG."""
    rng = np.random.default_rng(list(name.encode()))
    coarse = rng.integers(0, 256, (shape[0] // 4, shape[1] // 4), dtype=np.uint8)
    return coarse.repeat(4, axis=0).repeat(4, axis=1)


def write_image(path: Path, mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(path.name)).convert(mode).save(path)


def write_broken_jpeg(path: Path) -> None:
    """Cut a JPEG in the middle, as an interrupted download does."""
    write_image(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Write a table with only some cells filled; gzipped if its name says so."""
    text = pd.DataFrame(list(rows), columns=list(header), dtype=object).to_csv(index=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def replace(path: Path, old: str, new: str) -> None:
    """Replace the first occurrence of a text in a table, gzipped or not."""
    packed = path.suffix == ".gz"
    text = gzip.decompress(path.read_bytes()).decode() if packed else path.read_text()
    assert old in text
    text = text.replace(old, new, 1)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())


def write_chexpert(folder: Path, rows: Sequence[tuple] = CHEXPERT_ROWS) -> Path:
    """CheXpert-v1.0-small with its demographic table beside it; returns its folder."""
    root = folder / "CheXpert-v1.0-small"
    records = {"train": [], "valid": []}
    for split, patient, study, view, sex, age, position, effusion in rows:
        path = f"{split}/{patient}/{study}/{view}.jpg"
        write_image(root / path)
        records[split].append(
            {
                "Path": f"CheXpert-v1.0-small/{path}",
                "Sex": sex,
                "Age": age,
                "Frontal/Lateral": "Lateral" if "lateral" in view else "Frontal",
                "AP/PA": position,
                "Support Devices": "1.0",
                "Pleural Effusion": effusion,
            }
        )
    header = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *CHEXPERT]
    for split, listed in records.items():
        write_csv(root / f"{split}.csv", header, listed)
    write_demographics(folder / "CHEXPERT DEMO.xlsx", CHEXPERT_RACES)
    return root


def write_demographics(path: Path, races: Mapping[str, str]) -> None:
    columns = ["PATIENT", "GENDER", "AGE_AT_CXR", "PRIMARY_RACE", "ETHNICITY"]
    rows = [
        (patient, "Female", 50, race, "Non-Hispanic/Non-Latino") for patient, race in races.items()
    ]
    pd.DataFrame(rows, columns=columns).to_excel(path, index=False)


def write_mimic(
    folder: Path,
    layout: str = "hosp",
    *,
    rows: Sequence[tuple] = MIMIC_ROWS,
    labels: Mapping[tuple[str, str], str] = MIMIC_LABELS,
    patients: Sequence[tuple] = MIMIC_PATIENTS,
) -> tuple[Path, Path]:
    """MIMIC-CXR-JPG 2 and MIMIC-IV in the layout of version 1 (core) or 2 (hosp)."""
    root, mimic_iv = folder / "mimic-cxr-jpg", folder / "mimic-iv"
    metadata, splits = [], []
    for dicom, subject, study, view, date, split in rows:
        write_image(root / f"files/p{subject[:2]}/p{subject}/s{study}/{dicom}.jpg")
        key = {"dicom_id": dicom, "subject_id": subject, "study_id": study}
        metadata.append({**key, "ViewPosition": view, "StudyDate": date, "Rows": 24})
        splits.append({**key, "split": split})
    listed = [
        {"subject_id": subject, "study_id": study, "Pleural Effusion": label, "Edema": "0.0"}
        for (subject, study), label in labels.items()
    ]
    name = "mimic-cxr-2.0.0-{}.csv.gz".format
    write_csv(root / name("metadata"), METADATA, metadata)
    write_csv(root / name("chexpert"), ["subject_id", "study_id", *sorted(CHEXPERT)], listed)
    write_csv(root / name("split"), ["dicom_id", "study_id", "subject_id", "split"], splits)
    write_mimic_iv(mimic_iv, layout, patients)
    return root, mimic_iv


def write_mimic_iv(mimic_iv: Path, layout: str, patients: Sequence[tuple] = MIMIC_PATIENTS) -> None:
    columns = ["subject_id", "gender", "anchor_age", "anchor_year", "anchor_year_group", "dod"]
    listed = [dict(zip(columns, patient, strict=False)) for patient in patients]
    race = {"core": "ethnicity", "hosp": "race"}[layout]
    admissions = [{"subject_id": subject, race: value} for subject, value in MIMIC_RACES]
    write_csv(mimic_iv / layout / "patients.csv.gz", columns, listed)
    header = ADMISSIONS.format(race=race).split(",")
    write_csv(mimic_iv / layout / "admissions.csv.gz", header, admissions)
    # Both versions have hosp; that of version 1 holds no patients.
    labs = ["labevent_id", "subject_id", "itemid", "value"]
    write_csv(mimic_iv / "hosp/labevents.csv.gz", labs, [])


def write_nih(folder: Path, *, archives: bool = False, rows: Sequence[tuple] = NIH_ROWS) -> Path:
    """ChestX-ray14, unpacked into images/ or into one folder for each archive."""
    lines = [NIH]
    for number, (name, findings, followup, patient, age, sex, view) in enumerate(rows):
        where = f"images_{number % 2 + 1:03d}/images" if archives else "images"
        write_image(folder / where / name, mode="RGBA" if number == 2 else "L")
        lines.append(
            f"{name},{findings},{followup},{patient},{age},{sex},{view},2682,2749,0.143,0.143"
        )
    (folder / "Data_Entry_2017_v2020.csv").write_text("\n".join(lines) + "\n")
    (folder / "train_val_list.txt").write_text("\n".join(row[0] for row in rows[:3]) + "\n")
    (folder / "test_list.txt").write_text("\n".join(row[0] for row in rows[3:]) + "\n")
    return folder


def write_nih_cache(folder: Path) -> Path:
    """Small images in one array, beside a table of the same order."""
    columns = ["image", "finding_labels", "followup", "patient", "age", "sex", "view"]
    table = pd.DataFrame(NIH_ROWS, columns=columns)
    table["split"] = ["train", "train", "train", "val", "val"]
    table.to_csv(folder / "metadata.csv", index=False)
    images = np.stack([pixels(name, (64, 64)) for name in table.image])
    np.savez_compressed(folder / "images_64.npz", images=images, image=table.image.to_numpy(str))
    return folder


def write_chexmask(path: Path, column: str, names: Sequence[str]) -> Path:
    """Masks of a 10 x 8 image: 6 and 10 pixels of lung; every third is not to be trusted."""
    rows = [
        {
            column: name,
            "Dice RCA (Max)": 0.95,
            "Dice RCA (Mean)": 0.5 if number % 3 == 2 else 0.7,
            "Landmarks": "[[1 2]\n [3 4]]",
            "Left Lung": "11 4 21 2",
            "Right Lung": "15 4 25 6",
            "Heart": "40 3",
            "Height": 10,
            "Width": 8,
        }
        for number, name in enumerate(names)
    ]
    write_csv(path, list(rows[0]), rows)
    return path


def write_table(folder: Path, **columns: list) -> Path:
    """Four images of three patients, with columns added or replaced."""
    names = [f"{number}.png" for number in range(4)]
    for name in names:
        write_image(folder / name)
    table = {
        "image": names,
        "patient": ["a", "a", "b", "c"],
        "sex": ["M", "male", "F", ""],
        "age": ["40", "41.5", "0", ""],
        "race": ["white", "0", "Black", "other"],
        "lung_size": ["0.2", "", "0.25", "0.3"],
        "effusion": ["1", "0", "-1", ""],
        "view": ["AP", "PA", "", "AP"],
    } | columns
    pd.DataFrame(table).to_csv(folder / "mine.csv", index=False)
    return folder / "mine.csv"
