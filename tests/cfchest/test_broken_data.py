"""Files that are not what they should be: each is refused by name, nothing is read askew."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from miniature import (
    NIH_ROWS,
    replace,
    write_chexmask,
    write_chexpert,
    write_csv,
    write_mimic,
    write_nih,
    write_nih_cache,
    write_table,
)

from cfchest.data import LoadOptions, load_chexpert, load_mimic, load_nih, load_table
from cfcore.checks import InputError

ENTRIES = "Data_Entry_2017_v2020.csv"


def test_mimic_iv_1_has_its_patients_in_core_and_its_labs_in_hosp(tmp_path: Path) -> None:
    root, mimic_iv = write_mimic(tmp_path, "core")

    assert (mimic_iv / "hosp/labevents.csv.gz").is_file()
    assert load_mimic(root, mimic_iv).table.sex.notna().sum() == 6
    (mimic_iv / "core/admissions.csv.gz").unlink()
    with pytest.raises(InputError, match=r"'hosp/admissions\.csv\.gz'"):
        load_mimic(root, mimic_iv)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",0,1,57,", ",0,,57,", "line 2: Patient ID = blank, expected a whole number"),
        (",0,1,57,", ",0, ,57,", "line 2: Patient ID = ' ', expected a whole number"),
        (",0,1,57,", ",0,1.4,57,", r"line 2: Patient ID = '1\.4', expected a whole number"),
        (",0,1,57,", ",0,-1,57,", "line 2: Patient ID = '-1', expected a whole number"),
        (",0,1,57,", ",,1,57,", "line 2: Follow-up # = blank, expected a number"),
        ("\n00000001_000.png,", "\n,", "line 2: Image Index = blank, expected a file name"),
        ("\n00000001_001.png,", "\n00000001_000.png,", "line 3: Image Index = .* one record"),
    ],
)
def test_an_nih_record_of_nobody_is_refused(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    root = write_nih(tmp_path)
    replace(root / ENTRIES, old, new)

    with pytest.raises(InputError, match=rf"Data_Entry_2017_v2020\.csv {message}"):
        load_nih(root)


def test_an_nih_patient_may_be_written_in_many_ways(tmp_path: Path) -> None:
    root = write_nih(tmp_path)
    replace(root / ENTRIES, ",0,1,57,", ",0,00000001.0,57,")

    assert load_nih(root).table.patient[0] == "00000001"


@pytest.mark.parametrize("packed", [False, True])
def test_a_record_with_too_many_fields_is_refused(packed: bool, tmp_path: Path) -> None:
    path = write_table(tmp_path, note=["", "two\nlines", "", ""])
    replace(path, "2.png,b,", "2.png,b,b,")
    if packed:
        path = path.rename(tmp_path / "mine.csv.gz")
        path.write_bytes(gzip.compress(path.read_bytes()))
    replace(path, ",-1,,\n", ",-1,,x\n")

    with pytest.raises(
        InputError, match=rf"{path.name}, row 5: 10 cells, but the header has 9.*'x'"
    ):
        load_table(path)


def test_empty_fields_at_the_end_and_long_cells_are_no_matter(tmp_path: Path) -> None:
    path = write_table(tmp_path, note=["x" * 200_000, "", "", ""])
    replace(path, ",-1,,\n", ",-1,,,,\n")

    assert len(load_table(path)) == 4


def leaky_chexpert(folder: Path) -> None:
    root = write_chexpert(folder)
    (root / "valid/patient64541").rename(root / "valid/patient00001")
    replace(root / "valid.csv", "patient64541", "patient00001")
    load_chexpert(root)


def leaky_mimic(folder: Path) -> None:
    root, mimic_iv = write_mimic(folder)
    replace(root / "mimic-cxr-2.0.0-split.csv.gz", "53189527,10000032,train", "5,1,test")
    load_mimic(root, mimic_iv)


def leaky_nih(folder: Path) -> None:
    root = write_nih(folder)
    replace(root / "train_val_list.txt", "00000001_001.png\n", "")
    replace(root / "test_list.txt", "\n", "\n00000001_001.png\n")
    load_nih(root)


def leaky_cache(folder: Path) -> None:
    root = write_nih_cache(folder)
    table = pd.read_csv(root / "metadata.csv")
    table.assign(split=["train", "val", "val", "val", "val"]).to_csv(
        root / "metadata.csv", index=False
    )
    load_nih(root)


def leaky_table(folder: Path) -> None:
    load_table(write_table(folder, split=["train", "test", "test", "test"]))


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (leaky_chexpert, r"'train' \(train\.csv line 2\) and in 'valid' \(valid\.csv line 2\)"),
        (leaky_mimic, r"'10000032' is in 'train' .* line 2\) and in 'test' .* line 4\)"),
        (leaky_nih, r"'00000001' is in 'train' .* line 2\) and in 'test' .* line 3\)"),
        (leaky_cache, r"'00000001' is in 'train' .* line 2\) and in 'val' .* line 3\)"),
        (leaky_table, r"'a' is in 'train' .* line 2\) and in 'test' \(mine\.csv line 3\)"),
    ],
)
def test_a_published_split_that_shares_a_patient_is_refused(
    load: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path)


def test_nih_images_in_no_list_have_no_split_and_in_both_are_refused(tmp_path: Path) -> None:
    root = write_nih(tmp_path)
    replace(root / "train_val_list.txt", "00000001_001.png\n", "")
    data = load_nih(root)

    assert data.table.split.isna().tolist() == [False, True, False, False, False]
    assert "1 image set missing: split: in no list" in str(data.report)
    assert f"{ENTRIES} line 3: Image Index = '00000001_001.png'" in str(data.report)
    replace(root / "test_list.txt", "\n", "\n00000001_000.png\n")
    with pytest.raises(InputError, match=r"00000001_000\.png is in train_val_list.*/test_list"):
        load_nih(root)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"", "mine.csv"),
        ("image,patient\nn\u00e9.png,a\n".encode("latin-1"), "mine.csv"),
        (b'image,patient\n0.png,"a\n', "mine.csv"),
        (gzip.compress(b"image,patient\n0.png,a\n" * 99)[:-12], "mine.csv.gz"),
        (b"image,patient\n0.png,a\n", "mine.csv.gz"),
        (b"image,patient\n0.png,a\n", "mine.xlsx"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(content: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(InputError, match=rf"{name}(, row 2:|:| cannot be read:) "):
        load_table(tmp_path / name)


def test_masks_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    names = [row[0] for row in NIH_ROWS]
    masks = write_chexmask(tmp_path / "ChestX-Ray8.csv.gz", "Image Index", names)
    whole = masks.read_bytes()
    masks.write_bytes(whole[:-12])

    with pytest.raises(InputError, match=r"ChestX-Ray8\.csv\.gz: "):
        load_nih(write_nih(tmp_path), LoadOptions(masks=masks))
    masks.write_bytes(gzip.compress(gzip.decompress(whole).splitlines(keepends=True)[0]))
    assert load_nih(write_nih(tmp_path), LoadOptions(masks=masks)).table.lung_size.isna().all()


def save_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros((4, 8, 8)))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(b"junk"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PK\x03\x04 junk"),
        lambda path: np.savez(path, images=np.array([{}] * 4, dtype=object)),
        save_array,
    ],
)
def test_an_archive_that_cannot_be_read_is_named(
    write: Callable[[Path], object], tmp_path: Path
) -> None:
    write(tmp_path / "x.npz")

    with pytest.raises(InputError, match=r"x\.npz cannot be read: ") as caught:
        load_table(write_table(tmp_path), images=tmp_path / "x.npz")
    assert "pickle" not in str(caught.value)


def test_an_archive_of_other_pixels_is_refused(tmp_path: Path) -> None:
    path, archive = write_table(tmp_path), tmp_path / "x.npz"
    np.savez(archive, images=np.zeros((4, 8, 8), np.uint16))
    with pytest.raises(InputError, match=r"x\.npz has images of uint16; give uint8"):
        load_table(path, images=archive)
    np.savez(archive, images=np.zeros((4, 64), np.uint8))
    with pytest.raises(InputError, match=r"x\.npz has images of shape \(4, 64\)"):
        load_table(path, images=archive)


def test_an_archive_obeys_the_rules_of_files(tmp_path: Path) -> None:
    path, archive = write_table(tmp_path, effusion=["", "", "", ""]), tmp_path / "x.npz"
    np.savez(archive, images=np.zeros((4, 8, 8), np.uint8))

    with pytest.raises(ValueError, match=r"no image is left\.\nmine: 0 of 4 images kept"):
        load_table(path, LoadOptions(blank="drop"), images=archive)


def test_blanks_around_identifiers_are_none_of_them(tmp_path: Path) -> None:
    studies = {"study": ["s", "s ", " ", ""], "split": ["train", "train ", " test", "test"]}
    table = load_table(write_table(tmp_path, patient=["a", " a", "b ", "c"], **studies)).table

    assert table.patient.tolist() == ["a", "a", "b", "c"]
    assert table.study.tolist() == ["s", "s", "2.png", "3.png"]
    assert table.split.tolist() == ["train", "train", "test", "test"]
    with pytest.raises(InputError, match=r"mine\.csv line 3: patient = "):
        load_table(write_table(tmp_path, patient=["a", " ", "b", "c"]))


@pytest.mark.parametrize("part", ["train.csv", "valid.csv"])
def test_a_table_without_records_is_one_of_none(part: str, tmp_path: Path) -> None:
    root = write_chexpert(tmp_path)
    header = (root / part).read_text().splitlines(keepends=True)[0]
    (root / part).write_text(header)

    assert len(load_chexpert(root)) == {"train.csv": 2, "valid.csv": 7}[part]


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("metadata", "dicom_id = '02aa804e-bde0afdd'"),
        ("split", "dicom_id = '02aa804e-bde0afdd'"),
        ("chexpert", "study_id = '50414267'"),
    ],
)
def test_a_mimic_record_listed_twice_is_refused(part: str, value: str, tmp_path: Path) -> None:
    root, mimic_iv = write_mimic(tmp_path)
    path = root / f"mimic-cxr-2.0.0-{part}.csv.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
    path.write_bytes(gzip.compress("".join([*lines[:2], lines[1], *lines[2:]]).encode()))

    with pytest.raises(InputError, match=rf"{path.name} line 3: {value}, expected one record"):
        load_mimic(root, mimic_iv)


def test_a_mimic_image_of_nobody_is_refused(tmp_path: Path) -> None:
    root, mimic_iv = write_mimic(tmp_path)
    rows = [{"dicom_id": "x", "study_id": "1", "ViewPosition": "AP", "StudyDate": "21800101"}]
    columns = ["dicom_id", "subject_id", "study_id", "ViewPosition", "StudyDate"]
    write_csv(root / "mimic-cxr-2.0.0-metadata.csv.gz", columns, rows)

    with pytest.raises(InputError, match=r"metadata\.csv\.gz line 2: subject_id = blank"):
        load_mimic(root, mimic_iv)


def test_a_table_has_its_lung_sizes_in_a_column_and_may_say_na(tmp_path: Path) -> None:
    path = write_table(tmp_path, age=["NA", "41", "nan", ""])

    assert load_table(path).table.age.isna().tolist() == [True, False, True, True]
    with pytest.raises(InputError, match=r"masks='x\.csv': a table has its lung sizes in a column"):
        load_table(path, LoadOptions(masks="x.csv"))
