"""Checking a folder: what is there, what is missing, and what to do about it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from miniature import (
    CHEXPERT_ROWS,
    NIH_ROWS,
    replace,
    write_broken_jpeg,
    write_chexmask,
    write_chexpert,
    write_mimic,
    write_nih,
    write_nih_cache,
    write_table,
)

from cfchest.data import load_chexpert, load_mimic, load_nih, load_table
from cfchest.data.check import inspect_data
from cfcore.cli import main

MASKED = [f"CheXpert-v1.0/{row[0]}/{row[1]}/{row[2]}/{row[3]}.jpg" for row in CHEXPERT_ROWS]


def whole(kind: str, folder: Path) -> tuple[list[str], int, int]:
    """The words that check a complete miniature, and its images and patients by its loader."""
    if kind == "chexpert":
        root = write_chexpert(folder)
        masks = write_chexmask(folder / "masks.csv", "Path", MASKED)
        words, data = [root, "--masks", masks], load_chexpert(root)
    elif kind == "mimic":
        root, mimic_iv = write_mimic(folder)
        words, data = [root, "--mimic-iv", mimic_iv], load_mimic(root, mimic_iv)
    elif kind == "table":
        path = write_table(folder)
        words, data = [path], load_table(path)
    else:
        root = {"nih": write_nih, "nih cache": write_nih_cache}[kind](folder)
        words, data = [root], load_nih(root)
    words = ["check-data", kind.removesuffix(" cache"), *map(str, words)]
    return words, len(data), data.table.patient.nunique()


@pytest.mark.parametrize("kind", ["chexpert", "mimic", "nih", "nih cache", "table"])
def test_a_complete_folder_is_ready_and_counted_as_its_loader_counts(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, images, patients = whole(kind, tmp_path)

    assert main(words) == 0

    shown = capsys.readouterr()
    assert f"{images} images of {patients} patients" in shown.out
    assert f"{images} of {images} images tried can be opened" in shown.out
    assert shown.out.endswith("Ready.\n") and not shown.err
    assert "missing  " not in shown.out


def test_a_parent_folder_is_pointed_down_and_a_part_pointed_up(tmp_path: Path) -> None:
    root = write_chexpert(tmp_path)
    cxr, mimic_iv = write_mimic(tmp_path)

    for given in (tmp_path, root / "train"):
        assert inspect_data("chexpert", given).problems == [
            f"{given} is not the folder itself: give {root}"
        ]
    assert inspect_data("mimic", cxr / "files", mimic_iv=mimic_iv / "hosp").problems == [
        f"{cxr / 'files'} is not the folder itself: give {cxr}",
        f"{mimic_iv / 'hosp'} is not the folder itself: give {mimic_iv}",
    ]


def test_of_an_empty_folder_every_file_is_named_with_its_use_and_origin(tmp_path: Path) -> None:
    found = inspect_data("mimic", tmp_path, mimic_iv=tmp_path)

    parts = ["-metadata.csv.gz", "-chexpert.csv.gz", "-split.csv.gz", "files", "patients.csv.gz"]
    for part, problem in zip([*parts, "admissions.csv.gz"], found.problems, strict=True):
        assert part in problem
        assert ", from https://physionet.org/content/mimic" in problem
    assert "(sexes and ages)" in found.problems[4]


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("chexpert", "nowhere is missing"),
        ("nih", "file is a file"),
        ("table", "no.csv is missing"),
        ("chexmask", "no.csv is missing"),
    ],
)
def test_a_path_that_leads_nowhere_is_named(kind: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    (found,) = inspect_data(kind, tmp_path / problem.split()[0]).problems

    assert f"{tmp_path}/{problem}" in found


def test_what_is_not_needed_may_be_missing_and_is_said_to_be(tmp_path: Path) -> None:
    root = write_chexpert(tmp_path)
    (tmp_path / "CHEXPERT DEMO.xlsx").unlink()

    found = inspect_data("chexpert", root)

    assert found.ready
    (line,) = [line for line in found.lines if line.startswith("missing")]
    assert line.startswith("missing  CHEXPERT DEMO.xlsx (races), from https://")
    assert "race: known for 0 of 9 images, white 0, asian 0, black 0" in found.lines


IMAGE = "train/patient00005/study1/view1_frontal.jpg"


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (
            lambda root: (root / "valid.csv").unlink(),
            ["has no valid.csv (sexes, ages and labels", "from https://stanfordml"],
        ),
        (
            lambda root: replace(root / "train.csv", "Pleural Effusion", "Effusion"),
            ["train.csv line 1 lacks the column 'Pleural Effusion'", "'Effusion'"],
        ),
        (
            lambda root: replace(root / "train.csv", "68,", "sixty-eight,"),
            ["train.csv line 2: Age = 'sixty-eight', expected a number"],
        ),
        (
            lambda root: (root / IMAGE).unlink(),
            ["1 of 9 images are missing", "patient00005", "train.csv line 8"],
        ),
        (
            lambda root: write_broken_jpeg(root / IMAGE),
            ["patient00005", "cannot be decoded", "train.csv line 8"],
        ),
    ],
)
def test_a_broken_folder_is_not_ready_and_the_place_is_named(
    harm: Callable[[Path], None],
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = write_chexpert(tmp_path)
    harm(root)

    assert main(["check-data", "chexpert", str(root)]) == 2

    shown = capsys.readouterr()
    mend = shown.out.split("To be mended:\n")[1]
    assert [word for word in words if word not in mend] == []
    assert mend.count("  - ") == 1
    assert shown.err == f"cfcore: {root} cannot be used yet; to be mended: 1\n"


def test_the_more_images_are_opened_the_more_broken_ones_are_found(tmp_path: Path) -> None:
    root = write_nih(tmp_path)
    write_broken_jpeg(root / "images" / NIH_ROWS[1][0])

    assert inspect_data("nih", root, opened=1).ready
    assert not inspect_data("nih", root, opened=None).ready
    assert "4 of 5 images tried" in "\n".join(inspect_data("nih", root).lines)


def test_masks_are_counted_and_those_of_another_data_set_refused(tmp_path: Path) -> None:
    root = write_chexpert(tmp_path)
    own = write_chexmask(tmp_path / "own.csv", "Path", MASKED)
    other = write_chexmask(tmp_path / "other.csv", "dicom_id", ["a", "b", "c"])

    assert inspect_data("chexmask", own).lines[:2] == [
        "about images of CheXpert, named in column 'Path'",
        "10 masks, 7 of them with a Dice estimate from 0.7 on",
    ]
    assert inspect_data("chexmask", other).ready
    lungs = "lung_size: known for 6 of 9 images, 0.2 to 0.2"
    assert lungs in inspect_data("chexpert", root, masks=own).lines
    (problem,) = inspect_data("chexpert", root, masks=other).problems
    assert "other.csv line 1 lacks the column 'Path'" in problem


def test_a_file_that_holds_no_masks_is_refused(tmp_path: Path) -> None:
    (problem,) = inspect_data("chexmask", write_table(tmp_path)).problems
    assert "names no image" in problem

    poor = write_chexmask(tmp_path / "poor.csv", "Path", ["a"])
    replace(poor, "0.7", "0.2")
    assert inspect_data("chexmask", poor).problems == [f"{poor} holds no mask that can be trusted"]

    replace(poor, "0.2", "0.8")
    replace(poor, "11 4 21 2", "11 4 21")
    (problem,) = inspect_data("chexmask", poor).problems
    assert "expected pairs 'start length'" in problem


def test_mimic_without_its_demographics_ends_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-data", "mimic", str(tmp_path)]) == 2

    assert "--mimic-iv FOLDER" in capsys.readouterr().err
