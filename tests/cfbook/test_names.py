"""Artefacts are named by facts alone: nobody is drawn and no image is decoded to find one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_real_patients import TREES

from cfbook import paths
from cfbook.study import runs
from cfbook.study.cohorts import parts
from cfbook.study.partial import PartialRecipe
from cfbook.study.presets import Preset, preset
from cfbook.study.recipes import DetailedRecipe, GeneratorRecipe, PredictorRecipe, probes
from cfbook.study.runs import Run, all_recipes, all_runs, predictions
from cfchest.data import Dataset
from cfchest.folders import Folders
from cfchest.phantom import Phantom
from cfcore import InputError

ROOT = Path(__file__).parents[2]
BOOK = preset("book")


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can be drawn and no image seen."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a patient was drawn, or an image decoded, to find a name")

    monkeypatch.setattr(Phantom, "sample", refuse)
    for name in ("__getitem__", "cached", "batches"):
        monkeypatch.setattr(Dataset, name, refuse)


def names(sizes: Preset, generator: str = "oracle") -> list[str]:
    """The names of everything that the experiments make."""
    learned = [GeneratorRecipe(sizes).file]
    return [*all_recipes(sizes), *(run.file for run in all_runs(sizes, generator)), *learned]


@pytest.mark.usefixtures("blind")
def test_everything_of_the_phantom_is_named_without_drawing_anybody() -> None:
    # Seeds that no other test asks for, so that no cache can help.
    fresh = [replace(preset(name), cohort=90_909) for name in ("smoke", "curve", "book")]
    found = [name for sizes in fresh for name in names(sizes)]
    found += [PartialRecipe(fresh[1], fraction=0.2).file]
    found += [probe.file for probe in probes(fresh[0]).values()]

    assert len(set(found)) == len(found) > 3 * 80


@pytest.mark.usefixtures("blind")
def test_everything_that_comes_with_the_project_is_found_without_drawing_anybody() -> None:
    folder = ROOT / "data"
    here = [folder / "predictions" / run.file for run in all_runs(BOOK)]
    here += [folder / "generators" / DetailedRecipe(BOOK, seed=seed).file for seed in (0, 1)]
    here += [folder / "judges" / probe.file for probe in probes(BOOK).values()]
    kept = {path.name for path in (folder / "predictors").glob("*.safetensors")}

    assert [path for path in here if not path.is_file()] == []
    assert kept == set(all_recipes(BOOK)) and len(kept) == 2 * 5 * 17
    assert {path.name for path in (folder / "predictions").iterdir()} == {p.name for p in here[:10]}


@pytest.mark.usefixtures("blind")
def test_predictors_of_real_patients_are_named_without_decoding_an_image(tmp_path: Path) -> None:
    trees: dict[str, Callable[[Path], Folders]] = TREES
    given = [make(tmp_path / hospital) for hospital, make in trees.items()]
    both = replace(given[0], mimic=given[1].mimic, mimic_iv=given[1].mimic_iv)

    found = names(replace(preset("smoke"), folders=both, trainings=1), "learned-0")

    assert len(set(found)) == len(found)


def test_a_control_is_trained_on_as_many_images_as_its_bias_leaves() -> None:
    sizes = replace(preset("smoke"), trainings=1)
    table = parts("C", sizes)["train"].table
    for family in ("sex", "age"):
        biased = PredictorRecipe(sizes, "C", family, 0.9, 1).training_table(table)
        control = PredictorRecipe(sizes, "C", f"control {family}", 0.9, 1).training_table(table)
        plain = PredictorRecipe(sizes, "C", seed=1, images=len(biased)).training_table(table)
        assert len(control) == len(biased) < len(table)
        assert control.equals(plain)


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("trainings", [1, 2])
def test_fewer_trainings_are_the_first_of_those_that_are_kept(
    trainings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "fill", None)
    for run in all_runs(replace(BOOK, trainings=trainings)):
        every = predictions(replace(run, preset=BOOK))
        found = predictions(run)
        assert {member.seed for member in found} == set(range(trainings))
        assert list(found) == [member for member in every if member.seed < trainings]
        for member, given in found.items():
            assert torch.equal(given.logit_cf, every[member].logit_cf)


def test_a_table_of_other_facts_is_not_taken(tmp_path: Path) -> None:
    for other in (replace(BOOK, trainings=6), replace(BOOK, patients=999)):
        assert runs.kept_file(Run(other, "C->C", "balanced"), [runs._COMMITTED]) is None
    run = Run(BOOK, "C->C", "balanced")
    exact, more = (replace(run, preset=replace(BOOK, trainings=n)).file for n in (2, 3))
    for file in (exact, more):
        (tmp_path / file).touch()
    less = replace(run, preset=replace(BOOK, trainings=2))
    assert runs.kept_file(less, [tmp_path]) == tmp_path / exact


def test_without_the_data_of_the_project_a_run_of_the_book_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "DATA", tmp_path)
    monkeypatch.setattr(runs, "_COMMITTED", tmp_path / "predictions")
    monkeypatch.setattr(runs, "fill", None)

    with pytest.raises(InputError, match=r"data/predictions needs a checkout"):
        predictions(Run(BOOK, "C->C", "balanced"))
