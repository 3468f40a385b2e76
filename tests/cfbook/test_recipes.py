"""Predictors are found by what made them, and trained only when they are not found."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cfbook.study.cohorts import parts, phantom_cohort
from cfbook.study.presets import preset
from cfbook.study.recipes import PredictorRecipe
from cfchest.cohorts import _assert_disjoint, drop_age
from cfchest.data import from_phantom
from cfchest.graph import CHEST
from cfchest.phantom import COEFFICIENTS, HOSPITALS, Phantom
from cfcore import InputError
from cfscm.networks import ImageNetwork, build, save
from cfscm.training import TrainingConfig, outputs
from cfscm.weights import read_manifest

TINY = replace(
    preset("smoke"), train=160, validation=60, test=60, training=TrainingConfig(epochs=1)
)


def test_a_recipe_is_trained_once_and_then_found(tmp_path: Path) -> None:
    recipe = PredictorRecipe(TINY, "M", "sex", 0.8)
    nowhere = tmp_path / "committed"

    first = recipe.obtain(committed=nowhere, cache=tmp_path)
    changed = (tmp_path / recipe.file).stat().st_mtime_ns
    second = recipe.obtain(committed=nowhere, cache=tmp_path)

    assert (tmp_path / recipe.file).stat().st_mtime_ns == changed
    x = parts("M", TINY)["test"][:]
    assert torch.equal(outputs(first, x), outputs(second, x))
    notes = read_manifest(tmp_path / recipe.file)["notes"]
    assert notes["recipe"]["strength"] == 0.8
    assert notes["images"] < 160
    assert len(notes["history"]) == 1


def test_the_same_recipe_gives_the_same_weights(tmp_path: Path) -> None:
    recipe = PredictorRecipe(TINY)
    for name in ("a", "b"):
        recipe.obtain(committed=tmp_path / "none", cache=tmp_path / name)

    files = [tmp_path / name / recipe.file for name in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_size_of_test_sets_is_no_part_of_a_predictor() -> None:
    assert PredictorRecipe(replace(TINY, patients=7)).file == PredictorRecipe(TINY).file


def test_whatever_changes_has_another_file() -> None:
    recipe = PredictorRecipe(TINY)
    others = [
        replace(recipe, seed=1),
        replace(recipe, hospital="M"),
        replace(recipe, images=100),
        replace(recipe, family="age", strength=0.9),
        replace(recipe, preset=replace(TINY, train=161)),
        replace(recipe, preset=replace(TINY, training=TrainingConfig(epochs=2))),
    ]

    files = {other.file for other in others}

    assert len(files) == len(others)
    assert recipe.file not in files


@pytest.mark.parametrize("hospital", ["C", "M"])
def test_no_patient_is_in_two_parts(hospital: str) -> None:
    _assert_disjoint({name: part.table for name, part in parts(hospital, TINY).items()})


def test_recipes_keep_what_they_should() -> None:
    table = parts("C", TINY)["train"].table
    sex = PredictorRecipe(TINY, family="sex", strength=1.0).training_table(table)
    age = PredictorRecipe(TINY, family="age", strength=0.95).training_table(table)
    control = PredictorRecipe(TINY, images=len(sex)).training_table(table)

    assert (sex.sex == sex.effusion).all()
    assert len(age) < len(table)
    assert len(control) == len(sex)
    assert PredictorRecipe(TINY).training_table(table) is table


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"family": "race"}, "family must be one of"),
        ({"hospital": "X"}, "hospital must be one of"),
        ({"strength": 0.5}, "a basic predictor has no bias"),
        ({"family": "age"}, "bias by age needs a strength"),
        ({"family": "sex", "strength": 1.5}, "bias by sex needs a strength"),
        ({"family": "sex", "strength": 0.5, "images": 5}, "only basic predictors"),
    ],
)
def test_impossible_recipes_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PredictorRecipe(TINY, **fields)


def test_the_phantom_as_a_data_set_is_the_phantom(tmp_path: Path) -> None:
    cohort = Phantom(32).sample(20, hospital="C", seed=2027)

    data = from_phantom(cohort)

    assert torch.equal(data[[3, 1]], cohort.images[torch.tensor([3, 1])])
    for name, values in data.parents.items():
        assert torch.equal(values, cohort.pa[name])
    chosen = data.take([5, 2]).take([1])
    assert chosen.table.image.tolist() == [2]
    assert torch.equal(chosen[:], cohort.images[2:3])
    cached = data.cached(tmp_path)
    assert (cached[:] - data[:]).abs().max() <= 0.5 / 255 + 1e-6


def test_a_cache_of_another_cohort_is_not_read(tmp_path: Path) -> None:
    first, second = (Phantom(32).sample(4, hospital="C", seed=seed) for seed in (2027, 2028))

    for cohort in (first, second):
        from_phantom(cohort).cached(tmp_path)

    assert len(list(tmp_path.glob("*.npy"))) == 2


def test_the_oracle_finds_the_patients_of_a_part() -> None:
    test = parts("C", TINY)["test"]
    cohort = phantom_cohort("C", TINY)
    index = torch.tensor(test.table.image.to_numpy(np.int64))

    noise = cohort.oracle.abduct(test[:], test.parents, index=index)

    assert torch.equal(cohort.oracle.predict(noise, test.parents), test[:])


def test_training_sees_the_training_part_stops_on_validation_and_uses_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    def record(reader: ImageNetwork, images: Tensor, target: Tensor, **options: object) -> list:
        weights = {name: value.clone() for name, value in reader.state_dict().items()}
        seen.update(options, images=images, target=target, weights=weights)
        return []

    monkeypatch.setattr("cfbook.study.recipes.train", record)
    recipe = PredictorRecipe(TINY, "C", "age", 0.95, seed=3)
    recipe.make(tmp_path / recipe.file)

    data = parts("C", TINY)
    kept = data["train"].select(drop_age(data["train"].table, 0.95, seed=3))
    assert torch.equal(seen["images"], kept[:])
    assert torch.equal(seen["validation"][0], data["validation"][:])
    assert torch.equal(seen["target"], kept.parents["effusion"])
    assert seen["seed"] == 3
    fresh = build(TINY.network, graph=CHEST, seed=3).state_dict()
    assert all(torch.equal(seen["weights"][name], value) for name, value in fresh.items())


def test_the_digest_depends_on_the_phantom(monkeypatch: pytest.MonkeyPatch) -> None:
    before = PredictorRecipe(TINY).file
    monkeypatch.setattr("cfbook.study.cohorts.COEFFICIENTS", replace(COEFFICIENTS, scar=0.05))
    assert PredictorRecipe(TINY).file != before
    monkeypatch.undo()
    other = {**HOSPITALS, "C": replace(HOSPITALS["C"], grain=0.02)}
    monkeypatch.setattr("cfbook.study.cohorts.HOSPITALS", other)
    assert PredictorRecipe(TINY).file != before


def test_committed_predictors_come_first_and_must_be_whole(tmp_path: Path) -> None:
    recipe = PredictorRecipe(TINY)
    committed, cache = tmp_path / "committed", tmp_path / "cache"
    first = recipe.obtain(committed=tmp_path / "none", cache=committed)
    other = build(TINY.network, graph=CHEST, seed=9)
    save(other, cache / recipe.file, seed=9)

    found = recipe.obtain(committed=committed, cache=cache)

    name = "network.0.weight"
    assert torch.equal(found.state_dict()[name], first.state_dict()[name])
    (committed / recipe.file).write_bytes(b"damaged")
    with pytest.raises(InputError, match="is not the file that its manifest describes"):
        recipe.obtain(committed=committed, cache=cache)


@pytest.mark.parametrize("damage", ["no manifest", "no JSON", "no config", "other weights"])
def test_a_half_written_cache_is_made_again(tmp_path: Path, damage: str) -> None:
    recipe = PredictorRecipe(TINY)
    recipe.obtain(committed=tmp_path / "none", cache=tmp_path)
    weights = tmp_path / recipe.file
    before, manifest = weights.read_bytes(), weights.with_suffix(".json")
    if damage == "no manifest":
        manifest.unlink()
    elif damage == "no JSON":
        manifest.write_text("{")
    elif damage == "no config":
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"config": {"depth": 3}}))
    else:
        weights.write_bytes(before[:-1])

    recipe.obtain(committed=tmp_path / "none", cache=tmp_path)

    assert weights.read_bytes() == before
    assert read_manifest(weights)["notes"]["images"] == 160


def test_part_of_a_cohort_keeps_its_names_and_its_own_cache(tmp_path: Path) -> None:
    cohort = Phantom(32).sample(8, hospital="C", seed=2027)
    first, second = (from_phantom(cohort.take(torch.tensor(r))) for r in ([0, 1], [3, 2]))

    first.cached(tmp_path)

    assert (second.cached(tmp_path)[:] - second[:]).abs().max() <= 0.5 / 255 + 1e-6
    assert second.table.patient.tolist() == ["C-2027-000003", "C-2027-000002"]
