"""ChestX-ray14 in every shape that people have it in: what is read, counted and refused."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import small_audit
import torch
import yaml
from miniature import NIH_ROWS, pixels, replace, write_nih, write_nih_cache
from PIL import Image

from cfchest.data import LoadOptions, load_nih
from cfchest.data.check import inspect_data
from cfchest.data.dataset import FINDINGS
from cfchest.graph import CHEST, VIEWS
from cfcore.checks import InputError
from cfcore.cli import main
from cfcore.patients import decode
from cfscm.auditing import audit, read_plan, readers

ENTRIES = "Data_Entry_2017_v2020.csv"
PICTURE = pixels("x", (32, 32))


def flat(folder: Path) -> Path:
    """All images in one folder beside the table of the first edition."""
    root = write_nih(folder)
    (root / "images").rename(root / "images-224")
    (root / ENTRIES).rename(root / "Data_Entry_2017.csv")
    for part in ("train_val", "test"):
        (root / f"{part}_list.txt").rename(root / f"{part}_list_NIH.txt")
    return root


def nested(folder: Path) -> Path:
    """A folder in a folder of its name, as some archives unpack."""
    root = write_nih(folder)
    (root / "images").rename(root / "inner")
    (root / "images-256").mkdir()
    (root / "inner").rename(root / "images-256/images-256")
    return root


def beside(folder: Path) -> Path:
    """Images beside the table of a sample."""
    root = write_nih(folder)
    for image in (root / "images").iterdir():
        image.rename(root / image.name)
    (root / "images").rmdir()
    (root / ENTRIES).rename(root / "sample_labels.csv")
    return root


def jpegs(folder: Path) -> Path:
    """The same names with another ending; JPEG keeps what is smooth."""
    root = write_nih(folder)
    for image in (root / "images").iterdir():
        Image.open(image).convert("RGB").save(image.with_suffix(".jpg"), quality=100)
        image.unlink()
    return root


@pytest.mark.parametrize("make", [flat, nested, beside, jpegs])
def test_sets_resized_by_others_are_read_like_the_published_one(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    options = LoadOptions(size=8)
    published = load_nih(write_nih(tmp_path / "published"), options)
    root = make(tmp_path / "mirror")
    mirror = load_nih(root, options)

    columns = ["file", *FINDINGS, "sex", "age", "view", "patient", "split"]
    pd.testing.assert_frame_equal(mirror.table[columns], published.table[columns])
    torch.testing.assert_close(mirror[:], published[:], rtol=0, atol=0.02)
    assert ("5 images found: under another ending" in str(mirror.report)) == (make is jpegs)
    assert inspect_data("nih", root).ready


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    for name in ("published", "mirror"):
        (tmp_path / name).mkdir()


def test_all_findings_are_labels_of_0_and_1(tmp_path: Path) -> None:
    for data in (load_nih(write_nih(tmp_path)), load_nih(write_nih_cache(tmp_path / "mirror"))):
        assert sorted(data.labels) == sorted(FINDINGS)
        found = {name: y.tolist() for name, y in data.labels.items() if y.any()}
        assert found == {
            "cardiomegaly": [1, 1, 0, 0, 0], "effusion": [0, 1, 0, 1, 0],
            "hernia": [0, 0, 0, 0, 1], "infiltration": [0, 0, 0, 0, 1],
        }  # fmt: skip
        assert data.table.file.tolist() == [row[0] for row in NIH_ROWS]


def test_nothing_found_and_something_found_exclude_each_other(tmp_path: Path) -> None:
    root = write_nih(tmp_path)
    replace(root / ENTRIES, "No Finding", "No Finding|Mass")

    with pytest.raises(InputError, match=r"line 4: Finding Labels = .*, expected No Finding, or"):
        load_nih(root)


def test_patients_may_be_of_any_age_and_0_is_missing(tmp_path: Path) -> None:
    rows = [
        (f"{i:08d}_000.png", "Mass", 0, i, age, "F", "AP")
        for i, age in enumerate(["058Y", "006M", "000Y", "17", "101", "148", "13D"])
    ]
    data = load_nih(write_nih(tmp_path, rows=rows))

    expected = [58, 0.5, np.nan, 17, 101, np.nan, 13 / 365.25]
    np.testing.assert_allclose(data.table.age, expected, rtol=1e-3)
    assert "1 image set missing: age of 0" in str(data.report)
    assert "1 image set missing: age outside 0 to 120" in str(data.report)
    assert "minors: 3 images" in inspect_data("nih", tmp_path).lines


def test_parents_are_chosen_by_a_graph_and_labels_by_name(tmp_path: Path) -> None:
    data = load_nih(write_nih(tmp_path)).under(VIEWS, labels=["effusion", "hernia"])

    assert list(data.parents) == ["sex", "age", "view", "effusion"]
    assert data.parents["view"].tolist() == [0, 0, 1, 0, 0]
    assert list(data.labels) == ["effusion", "hernia"]
    assert data.take([1, 4]).labels["hernia"].tolist() == [0, 1]
    assert data.take([1]).parents["view"].tolist() == [0]
    with pytest.raises(InputError, match="has no column 'goitre'"):
        data.under(VIEWS, labels=["goitre"])
    assert set(CHEST.parents("image")) - set(VIEWS.parents("image")) == {"race", "lung_size"}


def rgba(path: Path) -> None:
    Image.fromarray(PICTURE).convert("RGBA").save(path)


def palette(path: Path) -> None:
    # Entry i of the palette is the grey 255 - i: the codes are the negative.
    image = Image.fromarray(255 - PICTURE, mode=None).convert("P")
    image.putpalette([255 - i for i in range(256) for _ in range(3)])
    image.save(path)


def deep(path: Path) -> None:
    Image.fromarray(PICTURE.astype(np.uint16) * 257).save(path)


def turned(path: Path) -> None:
    image = Image.fromarray(np.rot90(PICTURE).copy())  # stored a quarter turn to the left
    exif = image.getexif()
    exif[0x0112] = 6  # to be shown a quarter turn to the right
    image.save(path, exif=exif)


@pytest.mark.parametrize("write", [rgba, palette, deep, turned])
@pytest.mark.parametrize("size", [None, 8])
def test_the_same_picture_is_read_however_it_is_stored(
    write: Callable[[Path], None], size: int | None, tmp_path: Path
) -> None:
    root = write_nih(tmp_path)
    plain, path = root / "images" / NIH_ROWS[0][0], root / "images" / NIH_ROWS[1][0]
    Image.fromarray(PICTURE).save(plain)
    write(path)
    x = load_nih(root, LoadOptions(size=size))[[0, 1]]

    torch.testing.assert_close(x[1], x[0], rtol=0, atol=1 / 255)


def test_a_turned_jpeg_is_turned_back_as_well(tmp_path: Path) -> None:
    turned(tmp_path / "turned.jpg")

    read = decode(tmp_path / "turned.jpg", grey=True).astype(int)
    assert np.abs(read - PICTURE).mean() < 12
    assert np.abs(np.rot90(read) - PICTURE).mean() > 50


def test_a_transparent_image_is_refused_by_name_and_an_opaque_one_read(tmp_path: Path) -> None:
    root = write_nih(tmp_path)
    image = Image.fromarray(PICTURE).convert("RGBA")
    image.putalpha(200)
    image.save(root / "images" / NIH_ROWS[1][0])

    with pytest.raises(InputError, match=r"00000001_001\.png cannot be decoded \(pixels that are"):
        load_nih(root, LoadOptions(size=8))[:]
    rest = load_nih(root, LoadOptions(size=8, verify=True, unreadable="drop"))
    assert "1 image dropped: file broken" in str(rest.report)


@pytest.mark.parametrize("black", [PICTURE // 16, np.full((32, 32), 90, np.uint8)])
def test_images_that_show_nothing_are_counted_and_named(black: np.ndarray, tmp_path: Path) -> None:
    root, name = write_nih(tmp_path), NIH_ROWS[4][0]
    Image.fromarray(black).save(root / "images" / name)
    cache = write_nih_cache(tmp_path / "mirror")
    images = np.stack([*np.load(cache / "images_64.npz")["images"][:4], np.full((64, 64), 9)])
    np.savez(cache / "images_64.npz", images=images.astype(np.uint8))

    found = load_nih(root, LoadOptions(size=16, verify=True))
    for data in (found, load_nih(cache)):
        assert len(data) == 5
        assert "1 image kept: shows nothing" in str(data.report)
    assert f"{name}, listed in {ENTRIES} line 6" in str(found.report)
    assert f"1 of them show nothing, such as {name}" in inspect_data("nih", root).lines


def test_an_image_found_twice_is_read_once_if_the_files_are_alike(tmp_path: Path) -> None:
    root, name = write_nih(tmp_path), NIH_ROWS[0][0]
    shutil.copytree(root / "images", root / "sample/images")

    data = load_nih(root)
    assert len(data) == 5
    assert "5 images found: in two folders" in str(data.report)
    Image.fromarray(PICTURE).resize((80, 80)).save(root / "sample/images" / name)
    with pytest.raises(InputError, match=rf"has {name} twice, and they differ: images/{name} and"):
        load_nih(root)


def test_the_check_says_how_many_patients_each_finding_has(tmp_path: Path) -> None:
    lines = inspect_data("nih", write_nih(tmp_path)).lines

    assert "effusion: 2 images of 2 patients" in lines
    assert "cardiomegaly: 2 images of 1 patients" in lines
    assert "pneumonia: 0 images of 0 patients" in lines
    assert "view: AP 1, PA 4; 0 patients have both" in lines


ROWS = [
    (
        f"{i // 2:08d}_{i % 2:03d}.png", ("Effusion|Mass", "Mass", "No Finding", "Effusion")[i % 4],
        i % 2, i // 2, str(20 + i % 60), "MF"[i // 2 % 2], ("PA", "AP")[i // 3 % 2],
    )
    for i in range(160)
]  # fmt: skip


class _TwoFindings(small_audit.Corner):
    """A classifier of two findings."""

    def __init__(self) -> None:
        super().__init__(outputs=2)


@pytest.mark.parametrize("cache", [False, True])
def test_a_plan_is_made_of_the_folder_and_audits_it(
    cache: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_nih(tmp_path / "mirror", rows=ROWS)
    for part in ("train_val", "test"):
        (root / f"{part}_list.txt").unlink()
    for name in (row[0] for row in ROWS):
        Image.fromarray(pixels(name, (32, 32))).save(root / "images" / name)
    if cache:
        (root / ENTRIES).unlink()
        columns = ["image", "finding_labels", "followup", "patient", "age", "sex", "view"]
        pd.DataFrame(ROWS, columns=columns).to_csv(root / "metadata.csv", index=False)
        images = [pixels(row[0], (32, 32)) for row in ROWS]
        np.savez(root / "images_32.npz", images=images, image=[row[0] for row in ROWS])
    table, plan = tmp_path / "nih.csv", tmp_path / "plan.yml"
    place = root / "images_32.npz" if cache else root

    assert main(["check-data", "nih", str(root), "--table", str(table)]) == 0
    assert main(["plan", str(table), "--images", str(place), "--out", str(plan)]) == 0
    given = yaml.safe_load(plan.read_text())
    small_audit.script(_TwoFindings(), tmp_path / "two.pt")
    given |= {"labels": ["effusion", "mass"], "predictors": {"two": "two.pt"}, "source": "nih"}
    given |= {"rows": {"share": 0.5}, "generator": "small_audit:Bright", "replicates": 20}
    plan.write_text(yaml.safe_dump(given | ({} if cache else {"size": 32, "grey": True})))
    read = read_plan(plan)

    assert read.nuisances == {"view": [0, 1]}
    assert read.outputs["two"] == ["effusion", "mass"]
    assert len(read.data) == len(ROWS)
    assert read.data.restricted == ("nih",)
    monkeypatch.setattr(readers, "_STEPS", 1)
    findings = audit(plan, tmp_path / "report", say=lambda _: None)
    assert set(findings["predictors"]) == {"two:effusion", "two:mass"}
