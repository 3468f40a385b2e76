"""Each published layout, in miniature: what is read, and what is said about the rest."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from miniature import (
    CHEXPERT_ROWS,
    MIMIC_ROWS,
    NIH_ROWS,
    pixels,
    replace,
    write_broken_jpeg,
    write_chexmask,
    write_chexpert,
    write_csv,
    write_mimic,
    write_nih,
    write_nih_cache,
    write_table,
)

from cfchest.cohorts import _assert_disjoint, split
from cfchest.data import (
    COLUMNS,
    Dataset,
    LoadOptions,
    load_chexpert,
    load_mimic,
    load_nih,
    load_table,
)
from cfchest.data.dataset import FINDINGS
from cfchest.data.ledger import Ledger
from cfchest.data.sheet import read_sheet
from cfcore.checks import InputError

NAN = float("nan")


def chexpert(folder: Path) -> Dataset:
    return load_chexpert(write_chexpert(folder), LoadOptions(size=8))


def mimic_1(folder: Path) -> Dataset:
    return load_mimic(*write_mimic(folder, "core"), LoadOptions(size=8))


def mimic_2(folder: Path) -> Dataset:
    return load_mimic(*write_mimic(folder, "hosp"), LoadOptions(size=8))


def nih_published(folder: Path) -> Dataset:
    return load_nih(write_nih(folder), LoadOptions(size=8))


def nih_archives(folder: Path) -> Dataset:
    return load_nih(write_nih(folder, archives=True), LoadOptions(size=8))


def nih_cache(folder: Path) -> Dataset:
    return load_nih(write_nih_cache(folder), LoadOptions(size=8))


def plain(folder: Path) -> Dataset:
    return load_table(write_table(folder), LoadOptions(size=8))


LOADERS = [chexpert, mimic_1, mimic_2, nih_published, nih_archives, nih_cache, plain]


def column(data: Dataset, name: str) -> list:
    return data.table[name].tolist()


def count(report: Ledger, reason: str) -> int:
    return sum(entry.count for entry in report.entries if entry.reason == reason)


@pytest.mark.parametrize("load", LOADERS)
def test_every_data_set_has_one_schema(load: Callable[[Path], Dataset], tmp_path: Path) -> None:
    data = load(tmp_path)
    published = ["split"] if load is not plain else []
    further = set(data.table) - {*COLUMNS, *published}

    assert list(data.table)[: len(COLUMNS)] == list(COLUMNS)
    assert set(published) <= set(data.table)
    assert further == ({*FINDINGS, "file"} - {*COLUMNS} if "nih" in load.__name__ else set())
    assert data[:].shape == (len(data), 1, 8, 8)
    assert data[:].dtype == torch.float32
    assert 0 <= data[:].min() < data[:].max() <= 1
    assert data.report.kept == len(data)
    assert data.report.read == len(data) + sum(
        entry.count for entry in data.report.entries if entry.effect == "dropped"
    )
    parts = split(data.table, {"train": 0.4, "val": 0.3, "test": 0.3}, seed=0)
    assert sorted(row for part in parts.values() for row in part.index) == list(range(len(data)))
    if published:
        _assert_disjoint(dict(list(data.table.groupby("split"))))


def test_chexpert_is_read_as_published(tmp_path: Path) -> None:
    data = chexpert(tmp_path)

    assert column(data, "sex")[:3] == [1, 0, 0]
    assert np.isnan(column(data, "sex")[3])
    assert column(data, "age")[:4] == [68, 87, 88, 41]
    np.testing.assert_equal(column(data, "race"), [0, 1, 1, 0, NAN, NAN, NAN, 2, NAN])
    assert column(data, "effusion") == [1, 0, 0, 0, 0, 1, 0, 1, 0]
    assert column(data, "study")[2] == "patient00002/study2"
    assert column(data, "split") == ["train"] * 7 + ["valid"] * 2
    assert not any("lateral" in image for image in column(data, "image"))


def test_chexpert_reports_what_it_dropped_or_set_missing(tmp_path: Path) -> None:
    report = chexpert(tmp_path).report

    assert count(report, "not a frontal view") == 1
    assert count(report, "age of 0") == 1
    assert count(report, "sex not stated") == 1
    assert count(report, "race not recognised") == 1
    assert count(report, "race: no record") == 1
    for line in (
        "CheXpert: 9 of 10 images kept",
        "train.csv line 5: Frontal/Lateral = 'Lateral'",
        "train.csv line 7: Age = '0'",
        "CHEXPERT DEMO.xlsx line 6: PRIMARY_RACE = 'Martian'",
        "patient64542 is not in CHEXPERT DEMO.xlsx",
    ):
        assert line in str(report)


@pytest.mark.parametrize(("policy", "value"), [("zero", 0), ("one", 1), ("missing", NAN)])
def test_an_unclear_label_becomes_what_the_policy_says(
    policy: str, value: float, tmp_path: Path
) -> None:
    root = write_chexpert(tmp_path)
    for options, expected in (
        (LoadOptions(uncertain=policy), [value, 0]),
        (LoadOptions(blank=policy), [0, value]),
    ):
        np.testing.assert_equal(column(load_chexpert(root, options), "effusion")[2:4], expected)


def test_labels_may_be_dropped(tmp_path: Path) -> None:
    data = load_chexpert(write_chexpert(tmp_path), LoadOptions(uncertain="drop", blank="drop"))

    assert len(data) == 7
    assert count(data.report, "Pleural Effusion uncertain") == 1
    assert count(data.report, "Pleural Effusion blank") == 1


@pytest.mark.parametrize("name", ["uncertain", "blank", "unreadable"])
def test_an_unknown_policy_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} is one of .*'drop'\), not 'maybe'"):
        LoadOptions(**{name: "maybe"})


def test_chexpert_without_demographics_says_so(tmp_path: Path) -> None:
    root = write_chexpert(tmp_path)
    (tmp_path / "CHEXPERT DEMO.xlsx").unlink()
    data = load_chexpert(root)

    assert data.table.race.isna().all()
    assert "8 patients set missing: race\n    no 'CHEXPERT DEMO.xlsx'" in str(data.report)


def test_chexmask_gives_the_lung_size(tmp_path: Path) -> None:
    root = write_chexpert(tmp_path)
    names = [f"CheXpert-v1.0/{'/'.join(row[:4])}.jpg" for row in CHEXPERT_ROWS[:6]]
    masks = write_chexmask(tmp_path / "CheXpert.csv", "Path", names)
    data = load_chexpert(root, LoadOptions(masks=masks))

    np.testing.assert_allclose(column(data, "lung_size"), [0.2, 0.2, NAN, 0.2] + [NAN] * 5)
    assert count(data.report, "lung size: Dice estimate of the mask below 0.7") == 2
    assert count(data.report, "lung size: no mask") == 4
    # Each record spans two lines, because its landmarks do.
    assert "CheXpert.csv line 6: Dice RCA (Mean) = '0.5'" in str(data.report)


@pytest.mark.parametrize("runs", ["11 4 21", "11 four", "1 81"])
def test_a_mask_that_cannot_be_is_named(runs: str, tmp_path: Path) -> None:
    names = [row[0] for row in NIH_ROWS]
    masks = write_chexmask(tmp_path / "ChestX-Ray8.csv.gz", "Image Index", names)
    replace(masks, "11 4 21 2", runs)

    with pytest.raises(InputError, match=rf"csv\.gz line 2: Left Lung = '{runs}'"):
        load_nih(write_nih(tmp_path), LoadOptions(masks=masks))


@pytest.mark.parametrize("load", [mimic_1, mimic_2])
def test_mimic_is_read_as_published(load: Callable[[Path], Dataset], tmp_path: Path) -> None:
    data = load(tmp_path)

    np.testing.assert_equal(column(data, "sex"), [1, 1, 0, 1, 1, 0, NAN])
    np.testing.assert_equal(column(data, "race"), [0, 0, NAN, 2, NAN, NAN, NAN])
    np.testing.assert_equal(column(data, "effusion"), [1, 0, 0, 0, 1, 0, NAN])
    assert column(data, "patient")[:2] == ["10000032", "10000032"]
    assert column(data, "study")[1] == "53189527"
    assert set(column(data, "split")) == {"train", "validate", "test"}
    # Ages belong to the study: patient 10000032 is 52 in 2180 and comes back in 2183; 12000935 is
    # 45 in 2187 and was seen in 2182.
    np.testing.assert_equal(column(data, "age"), [52, 55, 86, 79, 40, NAN, NAN])


def test_mimic_reports_what_it_dropped_or_set_missing(tmp_path: Path) -> None:
    report = mimic_1(tmp_path).report

    for reason in (
        "neither AP nor PA",
        "study not in the label file",
        "sex and age: not in MIMIC-IV",
        "age of 0",
        "race differs between records",
        "race of another group",
    ):
        assert count(report, reason) == 1, reason
    assert count(report, "race: no record") == 2
    # Someone else's admission is not our concern.
    assert count(report, "race not recognised") == 0
    assert "admissions.csv.gz line 5: ethnicity = 'ASIAN - CHINESE'" in str(report)


def test_mimic_reads_unpacked_tables(tmp_path: Path) -> None:
    root, mimic_iv = write_mimic(tmp_path)
    for path in [*root.glob("*.gz"), *mimic_iv.rglob("*.gz")]:
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()

    assert len(load_mimic(root, mimic_iv)) == 7


def test_mimic_masks_are_found_by_dicom(tmp_path: Path) -> None:
    masks = write_chexmask(tmp_path / "MIMIC.csv", "dicom_id", [row[0] for row in MIMIC_ROWS])
    sizes = load_mimic(*write_mimic(tmp_path), LoadOptions(masks=masks)).table.lung_size

    # The third and the sixth record are not to be trusted.
    np.testing.assert_allclose(sizes, [0.2, NAN, 0.2, 0.2, NAN, 0.2, 0.2])


def test_a_mimic_iv_of_no_known_layout_is_refused(tmp_path: Path) -> None:
    root, mimic_iv = write_mimic(tmp_path)
    (mimic_iv / "hosp").rename(mimic_iv / "hospital")

    with pytest.raises(InputError, match=r"none of 'hosp/patients\.csv\.gz', .*'core/"):
        load_mimic(root, mimic_iv)


@pytest.mark.parametrize("load", [nih_published, nih_archives, nih_cache])
def test_nih_is_read_as_published_and_from_a_cache(
    load: Callable[[Path], Dataset], tmp_path: Path
) -> None:
    data = load(tmp_path)

    assert column(data, "sex") == [0, 0, 1, 1, 0]
    np.testing.assert_equal(column(data, "age"), [57, 58, 80, NAN, NAN])
    assert column(data, "effusion") == [0, 1, 0, 1, 0]
    assert column(data, "patient")[1:3] == ["00000001", "00000002"]
    assert column(data, "study")[:3] == ["00000001/0", "00000001/1", "00000002/0"]
    assert column(data, "view") == ["PA", "PA", "AP", "PA", "PA"]
    assert count(data.report, "age of 0") == 1
    assert count(data.report, "age outside 0 to 120") == 1


def test_the_first_edition_of_nih_is_read(tmp_path: Path) -> None:
    root = write_nih(tmp_path)
    path = root / "Data_Entry_2017_v2020.csv"
    replace(path, ",57,", ",057Y,")
    replace(path, "Patient Gender", "Patient Sex")
    path.write_text("".join(f"{line},\n" for line in path.read_text().splitlines()))
    path.rename(root / "Data_Entry_2017.csv")
    data = load_nih(root)

    assert column(data, "age")[0] == 57
    assert column(data, "sex") == [0, 0, 1, 1, 0]


def test_an_unknown_finding_is_refused(tmp_path: Path) -> None:
    root = write_nih(tmp_path)
    replace(root / "Data_Entry_2017_v2020.csv", "Cardiomegaly|Effusion", "Cardiomegaly|effusion")

    with pytest.raises(InputError, match=r"line 3: Finding Labels = 'Cardiomegaly\|effusion'"):
        load_nih(root)


def test_a_cache_in_another_order_than_its_table_is_refused(tmp_path: Path) -> None:
    root = write_nih_cache(tmp_path)
    with np.load(root / "images_64.npz") as archive:
        images, names = archive["images"], archive["image"]
    np.savez(root / "images_64.npz", images=images[::-1], image=names[::-1])

    with pytest.raises(InputError, match=r"row 0 is '00000004_000.png', but metadata\.csv line 2"):
        load_nih(root)


def test_a_cache_is_resized_by_averaging(tmp_path: Path) -> None:
    data = load_nih(write_nih_cache(tmp_path), LoadOptions(size=16))
    expected = pixels(NIH_ROWS[0][0], (64, 64)).reshape(16, 4, 16, 4).mean(axis=(1, 3)) / 255

    np.testing.assert_allclose(data[0][0, 0], expected, rtol=1e-5)


def test_a_plain_table_is_read(tmp_path: Path) -> None:
    data = plain(tmp_path)

    np.testing.assert_equal(column(data, "sex"), [0, 0, 1, NAN])
    np.testing.assert_equal(column(data, "age"), [40, 41.5, NAN, NAN])
    np.testing.assert_equal(column(data, "race"), [0, 0, 2, NAN])
    np.testing.assert_equal(column(data, "lung_size"), [0.2, NAN, 0.25, 0.3])
    np.testing.assert_equal(column(data, "effusion"), [1, 0, NAN, NAN])
    assert count(data.report, "age of 0") == 1
    assert count(data.report, "race of another group") == 1


def test_a_plain_table_may_use_other_names(tmp_path: Path) -> None:
    path = write_table(tmp_path)
    replace(path, "sex,", "Gender,")
    data = load_table(path, LoadOptions(size=8), columns={"sex": "Gender", "patient": "image"})

    np.testing.assert_equal(column(data, "sex"), [0, 0, 1, NAN])
    assert column(data, "patient") == ["0.png", "1.png", "2.png", "3.png"]
    replace(path, "male", "2")
    with pytest.raises(InputError, match=r"mine\.csv line 3: Gender = '2', expected 0, M, male"):
        load_table(path, columns={"sex": "Gender"})
    with pytest.raises(ValueError, match="colour"):
        load_table(path, columns={"colour": "Gender"})


def test_a_plain_table_may_come_with_an_array(tmp_path: Path) -> None:
    path = write_table(tmp_path)
    images = np.stack([pixels(f"{number}.png") for number in range(4)])
    np.savez(tmp_path / "mine.npz", images=images)
    data = load_table(path, LoadOptions(uncertain="drop"), images=tmp_path / "mine.npz")

    assert column(data, "image") == [0, 1, 3]
    assert torch.equal(data[:], torch.as_tensor(images[[0, 1, 3]]).unsqueeze(1).float() / 255)
    assert torch.equal(data[:], load_table(path, LoadOptions(uncertain="drop"))[:])


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        ("sex", ["M", "2", "F", "F"], 3),
        ("race", ["white", "black", "asian", "Martian"], 5),
        ("age", ["40", "old", "1", "2"], 3),
        ("lung_size", ["0.1", "0.2", "20", "0.1"], 4),
        ("effusion", ["0", "1", "1", "3"], 5),
        ("view", ["AP", "PA", "lateral", "AP"], 4),
        ("patient", ["", "a", "b", "c"], 2),
        ("image", ["0.png", "1.png", "1.png", "2.png"], 4),
    ],
)
def test_a_cell_that_cannot_be_is_named(
    name: str, values: list[str], line: int, tmp_path: Path
) -> None:
    path = write_table(tmp_path, **{name: values})
    value = repr(values[line - 2]) if values[line - 2] else "blank"

    with pytest.raises(InputError, match=rf"mine\.csv line {line}: {name} = {value}, expected"):
        load_table(path)


@pytest.mark.parametrize("load", [chexpert, mimic_2, nih_published, plain])
def test_a_missing_image_is_named_or_counted(
    load: Callable[[Path], Dataset], tmp_path: Path
) -> None:
    image = Path(load(tmp_path).table.image[1])
    arguments = {
        chexpert: (load_chexpert, tmp_path / "CheXpert-v1.0-small"),
        mimic_2: (load_mimic, tmp_path / "mimic-cxr-jpg", tmp_path / "mimic-iv"),
        nih_published: (load_nih, tmp_path),
        plain: (load_table, tmp_path / "mine.csv"),
    }
    (again, *where), line = arguments[load], 4 if load is mimic_2 else 3
    whole = again(*where)
    image.unlink()

    with pytest.raises(InputError, match=rf"{image.name}, listed in .* line {line}"):
        again(*where)
    with pytest.raises(InputError, match=rf"{image.name} is missing; .* line {line}"):
        whole[1]
    rest = again(*where, LoadOptions(unreadable="drop"))
    assert len(rest) == len(whole) - 1
    assert count(rest.report, "file missing") == 1
    assert f"{image.name}, listed in" in str(rest.report)


def test_verifying_finds_broken_images_up_front(tmp_path: Path) -> None:
    root = write_chexpert(tmp_path)
    whole = load_chexpert(root, LoadOptions(size=8))
    broken = Path(whole.table.image[5])
    write_broken_jpeg(broken)

    assert len(load_chexpert(root, LoadOptions(size=8))) == 9
    with pytest.raises(InputError, match=r"view1_frontal\.jpg cannot be decoded.*line 8"):
        load_chexpert(root, LoadOptions(size=8, verify=True))
    rest = load_chexpert(root, LoadOptions(size=8, verify=True, unreadable="drop"))
    assert len(rest) == 8
    assert "patient00005" not in set(rest.table.patient)
    assert torch.equal(rest[:], whole[[0, 1, 2, 3, 4, 6, 7, 8]])
    assert "file broken" in str(rest.report)


def test_a_data_set_without_images_is_refused_with_its_report(tmp_path: Path) -> None:
    root = write_chexpert(tmp_path)
    for image in root.rglob("*.jpg"):
        image.unlink()

    with pytest.raises(ValueError, match=r"no image is left\.\nCheXpert: 0 of 10"):
        load_chexpert(root, LoadOptions(unreadable="drop"))


@pytest.mark.parametrize(
    ("part", "column"),
    [
        ("train.csv", "Pleural Effusion"),
        ("valid.csv", "AP/PA"),
        ("../CHEXPERT DEMO.xlsx", "PRIMARY_RACE"),
    ],
)
def test_a_missing_column_of_chexpert_is_named(part: str, column: str, tmp_path: Path) -> None:
    path = write_chexpert(tmp_path) / part
    if path.suffix == ".xlsx":
        pd.read_excel(path).drop(columns=column).to_excel(path, index=False)
    else:
        pd.read_csv(path).drop(columns=column).to_csv(path, index=False)

    with pytest.raises(InputError, match=rf"{path.name} line 1 lacks the column '{column}'"):
        load_chexpert(tmp_path / "CheXpert-v1.0-small")


@pytest.mark.parametrize("part", ["metadata", "chexpert", "split"])
def test_a_missing_table_of_mimic_is_named(part: str, tmp_path: Path) -> None:
    root, mimic_iv = write_mimic(tmp_path)
    (root / f"mimic-cxr-2.0.0-{part}.csv.gz").unlink()

    with pytest.raises(InputError, match=rf"none of 'mimic-cxr-2\.0\.0-{part}\.csv\.gz'"):
        load_mimic(root, mimic_iv)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",68,", ",sixty,", r"train\.csv line 2: Age = 'sixty', expected a number"),
        ("train/patient00001", "patient1", r"train\.csv line 2: Path = "),
        ("patient00006", "patient00005", r"train\.csv line 9: Path = .* one record for each"),
        ("1.0,,,1.0\n", "2.0,,,1.0\n", r"line 2: Pleural Effusion = '2.0', expected 1, 0, -1"),
    ],
)
def test_a_bad_cell_of_chexpert_is_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    root = write_chexpert(tmp_path)
    replace(root / "train.csv", old, new)

    with pytest.raises(InputError, match=message):
        load_chexpert(root)


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('name,note\n\na,"two\nlines"\n  \nb,"a ""quoted"" word"\nc,\n')

    assert read_sheet(path, ["name"]).frame.name.to_dict() == {3: "a", 6: "b", 7: "c"}


def test_records_read_twice_are_refused(tmp_path: Path) -> None:
    root, mimic_iv = write_mimic(tmp_path)
    rows = [{"subject_id": "10000032", "gender": "F", "anchor_age": 5, "anchor_year": 2100}] * 2
    write_csv(mimic_iv / "hosp/patients.csv.gz", list(rows[0]), rows)

    with pytest.raises(InputError, match=r"patients\.csv\.gz line 3: subject_id = '10000032'"):
        load_mimic(root, mimic_iv)
