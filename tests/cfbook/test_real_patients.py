"""The experiments on real patients: trees as published, in miniature, from table to predictor."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from shutil import copyfile, copytree

import pandas as pd
import pytest
import torch
from miniature import write_chexpert, write_csv, write_mimic
from torch import Tensor

from cfbook.study import cohorts
from cfbook.study.cohorts import parts, phantom_cohort
from cfbook.study.partial import PartialRecipe
from cfbook.study.presets import Preset, preset
from cfbook.study.recipes import GeneratorRecipe, PredictorRecipe
from cfchest.cohorts import _assert_disjoint, age_group
from cfchest.data import Dataset
from cfchest.folders import Folders, check_given, identity, radiographs
from cfcore import InputError
from cfcore.cli import main
from cfcore.predictions import Predictions
from cfscm.networks import ImageNetwork, PredictorConfig
from cfscm.training import TrainingConfig, outputs
from cfscm.weights import read_manifest

DEMOGRAPHICS = "CHEXPERT DEMO.xlsx"
AGES = (30, 50, 80)
PATIENTS = [(number, number % 2, AGES[number // 2 % 3]) for number in range(36)]
"""Number, sex and age; each has a study without effusion and one with it, each of two images."""


def real_chexpert(folder: Path) -> Folders:
    """These patients, and two of whom sex or age is not known."""
    rows: list[tuple] = []
    for number, sex, age in PATIENTS:
        who = ("train", f"patient{number:05d}")
        rest = (("Male", "Female")[sex], age, "AP")
        for study, view in product((1, 2), (1, 2)):
            label = f"{study - 1}.0"
            rows.append((*who, f"study{study}", f"view{view}_frontal", *rest, label))
    rows.append(("valid", "patient90000", "study1", "view1_frontal", "Unknown", 50, "AP", "1.0"))
    rows.append(("valid", "patient90001", "study1", "view1_frontal", "Male", 0, "AP", "1.0"))
    return Folders(chexpert=write_chexpert(folder, rows))


def real_mimic(folder: Path) -> Folders:
    """The same patients elsewhere, and one who is not in MIMIC-IV."""
    rows, labels = [], {}
    for number, _, _ in [*PATIENTS, (99, 0, 50)]:
        subject = str(10_000_000 + number)
        for label, image in product((0, 1), (0, 1)):
            study = str(50_000_000 + 2 * number + label)
            name = f"{number:08x}-{label}{image}"
            rows.append((name, subject, study, "PA", "21800506", "train"))
            labels[subject, study] = f"{label}.0"
    known = [(str(10_000_000 + number), "MF"[sex], age, 2180) for number, sex, age in PATIENTS]
    mimic, mimic_iv = write_mimic(folder, rows=rows, labels=labels, patients=known)
    return Folders(mimic=mimic, mimic_iv=mimic_iv)


TREES = {"C": real_chexpert, "M": real_mimic}
both = pytest.mark.parametrize("hospital", list(TREES))


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folders]:
    return {hospital: write(tmp_path_factory.mktemp(hospital)) for hospital, write in TREES.items()}


@pytest.fixture
def tiny(
    trees: dict[str, Folders], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Preset]:
    """Presets on real patients, the smallest that have all of it, run in a new folder."""
    monkeypatch.chdir(tmp_path)
    return {
        hospital: replace(
            preset("paper"),
            size=32,
            train=3,
            validation=1,
            test=4,
            network=PredictorConfig("effusion", width=4),
            training=TrainingConfig(epochs=1, batch=16),
            folders=folders,
        )
        for hospital, folders in trees.items()
    }


def copied(folders: Folders, to: Path) -> Folders:
    """The same tree in another folder."""
    given = {name: path for name, path in asdict(folders).items() if path is not None}
    return Folders(**{name: copytree(path, to / path.name) for name, path in given.items()})


@both
def test_a_predictor_of_real_patients_is_trained_once_and_then_found(
    hospital: str, tiny: dict[str, Preset], tmp_path: Path
) -> None:
    sizes = tiny[hospital]
    recipe = PredictorRecipe(sizes, hospital, "sex", 0.5)

    first = recipe.obtain()
    file = tmp_path / "runs/predictors" / recipe.file
    changed = file.stat().st_mtime_ns
    second = recipe.obtain()

    assert file.stat().st_mtime_ns == changed
    test = parts(hospital, sizes)["test"]
    assert torch.equal(outputs(first, test), outputs(second, test))
    assert str(tmp_path) not in file.with_suffix(".json").read_text()
    assert 0 < read_manifest(file)["notes"]["images"] < len(parts(hospital, sizes)["train"])


@pytest.mark.parametrize("kind", [PredictorRecipe, GeneratorRecipe, PartialRecipe])
def test_weights_made_of_real_patients_stay_where_git_does_not_look(
    kind: type, trees: dict[str, Folders], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "_trained", None)
    recipe = kind(replace(preset("smoke"), folders=trees["C"]))

    with pytest.raises(InputError, match=r"made from chexpert, .* git would track it there"):
        recipe.obtain(cache=Path(__file__).parent)


@both
def test_real_patients_are_in_one_part_each_and_known(
    hospital: str, tiny: dict[str, Preset]
) -> None:
    tables = {name: part.table for name, part in parts(hospital, tiny[hospital]).items()}

    _assert_disjoint(tables)
    counts = {name: table.patient.nunique() for name, table in tables.items()}
    assert counts == pytest.approx({"train": 13.5, "validation": 4.5, "test": 18}, abs=1)
    assert sum(counts.values()) == len(PATIENTS)
    for table in tables.values():
        assert table[["sex", "age", "effusion"]].notna().all(axis=None)


def change_a_label(path: Path) -> None:
    table = pd.read_csv(path, dtype=str)
    table.loc[0, "Pleural Effusion"] = "1.0"
    write_csv(path, table.columns, table.to_dict("records"))


@both
def test_a_predictor_is_found_by_what_its_table_says_and_not_by_where_it_is(
    hospital: str, trees: dict[str, Folders], tmp_path: Path
) -> None:
    moved, changed = (copied(trees[hospital], tmp_path / name) for name in ("moved", "changed"))
    if hospital == "C":  # which has no table of races beside it any more
        for folders in (moved, changed):
            copyfile(
                trees["C"].chexpert.parent / DEMOGRAPHICS, folders.chexpert.parent / DEMOGRAPHICS
            )
        change_a_label(changed.chexpert / "train.csv")
    else:
        change_a_label(changed.mimic / "mimic-cxr-2.0.0-chexpert.csv.gz")

    files = [
        PredictorRecipe(replace(preset("smoke"), folders=folders), hospital).file
        for folders in (trees[hospital], moved, changed)
    ]

    assert files[0] == files[1] != files[2]
    assert PredictorRecipe(preset("smoke"), hospital).file not in files


def test_the_two_resolutions_of_a_table_are_two(trees: dict[str, Folders], tmp_path: Path) -> None:
    other = copied(trees["M"], tmp_path)
    image = Path(radiographs("M", other, 32).table.image[0])
    image.write_bytes(image.read_bytes() + b"more")

    assert identity("M", other, 32) != identity("M", trees["M"], 32)


def test_training_reads_real_images_from_one_file_when_it_needs_them(
    tiny: dict[str, Preset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    def record(reader: ImageNetwork, images: Dataset, target: Tensor, **options: object) -> list:
        seen.update(options, images=images, target=target)
        return []

    monkeypatch.setattr("cfbook.study.recipes.train", record)
    sizes = replace(tiny["C"], cohort=1)
    PredictorRecipe(sizes).make(tmp_path / "reader.safetensors")

    assert isinstance(seen["images"], Dataset)
    assert isinstance(seen["validation"][0], Dataset)
    assert len(list((tmp_path / "runs/cache").iterdir())) == 1
    files = radiographs("C", sizes.folders, 32)
    train = parts("C", sizes)["train"]
    rows = files.table.image.isin(train.table.image).to_numpy().nonzero()[0]
    assert torch.equal(seen["images"][:], files[rows])
    assert torch.equal(seen["target"], files.take(rows).parents["effusion"])


@both
def test_test_sets_of_real_patients_have_one_image_of_each_study(
    hospital: str, tiny: dict[str, Preset]
) -> None:
    sizes = tiny[hospital]
    sets = {kind: cohorts.held_out(hospital, sizes, kind).table for kind in KINDS}
    known = set(parts(hospital, sizes)["test"].table.image)

    for table in sets.values():
        assert set(table.image) <= known
        assert not table.duplicated(["patient", "study"]).any()
        assert len(table) <= len(sets["balanced"])
    check_balance(sets["balanced"], sizes, hospital)


KINDS: Sequence[cohorts.Kind] = ("balanced", "natural", "shares-sex", "shares-age")


def check_balance(table: pd.DataFrame, sizes: Preset, hospital: str) -> None:
    """As many women as men, and one prevalence, that of training."""
    prevalence = table.groupby(["sex", age_group(table.age)]).effusion.mean()
    trained = parts(hospital, sizes)["train"].table.effusion.mean()
    assert (table.sex == 1).mean() == 0.5
    assert len(prevalence) == 6
    assert prevalence.nunique() == 1
    assert abs(prevalence.iloc[0] - trained) <= cohorts._TOLERANCE


@both
def test_test_sets_of_the_phantom_are_of_the_size_that_was_asked_for(hospital: str) -> None:
    sizes = preset("smoke")
    sets = {kind: cohorts.held_out(hospital, sizes, kind).table for kind in KINDS}

    check_balance(sets["balanced"], sizes, hospital)
    assert {len(table) for table in sets.values()} == {200}
    by_sex = {kind: table.groupby("sex").effusion.mean() for kind, table in sets.items()}
    assert by_sex["shares-sex"][1] - by_sex["shares-sex"][0] > 0.5
    assert abs(by_sex["natural"][1] - by_sex["natural"][0]) < 0.2
    gap = {
        kind: table.age[table.effusion == 1].mean() - table.age[table.effusion == 0].mean()
        for kind, table in sets.items()
    }
    assert gap["shares-age"] > gap["natural"] + 5 > gap["balanced"]


def test_a_test_set_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="kind must be one of balanced, natural"):
        cohorts.held_out("C", preset("smoke"), "biased")


@pytest.mark.parametrize(
    ("hospital", "folders", "message"),
    [
        ("C", Folders(), "hospital C need --chexpert FOLDER, .* folders=Folders"),
        ("C", Folders(mimic="m", mimic_iv="iv"), "--chexpert FOLDER"),
        ("M", Folders(mimic="m"), "hospital M need --mimic-iv FOLDER"),
        ("M", Folders(), "--mimic FOLDER and --mimic-iv FOLDER"),
        ("X", Folders(), "hospital must be one of"),
    ],
)
def test_folders_that_are_not_given_are_asked_for(
    hospital: str, folders: Folders, message: str
) -> None:
    for call in (check_given, lambda *given: radiographs(*given, 32)):
        with pytest.raises(InputError, match=message):
            call(hospital, folders)


def test_the_paper_is_about_real_patients() -> None:
    with pytest.raises(InputError, match="--chexpert FOLDER"):
        _ = PredictorRecipe(preset("paper")).file
    with pytest.raises(InputError, match="--chexpert FOLDER"):
        parts("C", preset("paper"))
    with pytest.raises(InputError, match="are real and have no oracle"):
        phantom_cohort("C", preset("paper"))


PLUGIN = """
class Darker:
    def abduct(self, x, pa, *, index=None, rng=None):
        return x
    def predict(self, noise, pa):
        return noise * (1 - 0.1 * pa["sex"][:, None, None, None])
"""


def test_real_patients_can_be_marginalised_from_the_shell(
    trees: dict[str, Folders], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "darker_plugin.py").write_text(PLUGIN)
    folders = trees["M"]
    words = f"marginalise --preset smoke --hospital M --mimic {folders.mimic} --do sex=0,1"
    words += f" --mimic-iv {folders.mimic_iv} --generator darker_plugin:Darker --out found"

    assert main(words.split()) == 0

    basic = Predictions.load("found/basic.safetensors")
    assert basic.logit_cf.shape == (len(basic.y), 2)
    assert basic.y.float().mean() == 0.5
    assert basic.provenance["table"] == identity("M", folders, 32)
