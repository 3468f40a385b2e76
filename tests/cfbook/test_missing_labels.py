"""Training on partly labelled images, from the shell to the tables, at the smallest size."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from cfbook.study import missing_labels, partial
from cfbook.study.cohorts import parts
from cfbook.study.learned import RESULTS
from cfbook.study.partial import PartialRecipe
from cfbook.study.presets import preset as find_preset
from cfcore.checks import InputError
from cfcore.cli import main
from cfscm.consistency import ConsistencyConfig, Consistent, disagreement, intervention
from cfscm.model import DeepSCM
from cfscm.semisupervised import pack
from cfscm.stages import Stages
from cfscm.weights import read_manifest

SMOKE = replace(find_preset("smoke"), trainings=1)
RECIPE = PartialRecipe(SMOKE)
NAMES = ("sex", "race", "age", "lung_size", "effusion")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("generators")
    RECIPE.make(place / RECIPE.file)
    return place


@pytest.fixture(scope="module")
def model(folder: Path) -> DeepSCM:
    return RECIPE.obtain(committed=folder)


def test_labels_are_hidden_one_by_one_or_row_by_row() -> None:
    data = RECIPE.data()
    assert data.table[list(NAMES)].notna().sum().tolist() == [160] * 5
    assert len(data) == 800 and 0 < data.table[list(NAMES)].notna().all(axis=1).sum() + 1 < 20

    some = replace(RECIPE, unlabelled=False).data()
    assert len(some) == data.table[list(NAMES)].notna().any(axis=1).sum() < 800

    whole = replace(RECIPE, by="row", unlabelled=False).data()
    assert len(whole) == 160 and whole.table[list(NAMES)].notna().all(axis=None)


def test_generators_are_named_by_what_made_them() -> None:
    others = [
        replace(RECIPE, **change)
        for change in (
            {"fraction": 0.5},
            {"by": "row"},
            {"unlabelled": False},
            {"trust": "entropy"},
            {"seed": 1},
            {"preset": find_preset("curve")},
            {"consistency": ConsistencyConfig()},
            {"consistency": ConsistencyConfig(audited=True)},
        )
    ]
    assert len({recipe.file for recipe in (RECIPE, *others)}) == 9
    with pytest.raises(InputError, match=r"lies in \(0, 1\]"):
        replace(RECIPE, fraction=0)
    with pytest.raises(InputError, match="not 'some'"):
        replace(RECIPE, trust="some")
    with pytest.raises(InputError, match="preset novel has no schedule"):
        replace(RECIPE, preset=replace(SMOKE, name="novel"))


def test_every_generator_of_the_tables_is_one_that_the_workflow_makes() -> None:
    tables = {
        missing_labels.CURVE: missing_labels.curve_recipes,
        missing_labels.TRUST: missing_labels.trust_recipes,
        missing_labels.ABLATION: missing_labels.stage_recipes,
    }
    for name, recipes in tables.items():
        listed = pd.read_csv(RESULTS / name)["generator"].unique().tolist()
        assert listed == [one.file for one in recipes(find_preset("curve"), range(3))]
    kept = missing_labels.kept_recipe()
    assert (PartialRecipe.committed / kept.file).is_file() and kept.obtain().imputes


def test_training_learns_and_remembers_how(folder: Path) -> None:
    notes = read_manifest(folder / RECIPE.file)["notes"]
    assert notes["known"] == dict.fromkeys(NAMES, 160)
    for stage in ("start", "together"):
        losses = [sum(step["terms"].values()) for step in notes["history"][stage]]
        assert losses[-1] < losses[0]
    assert sorted(p.name for p in folder.iterdir() if "checkpoint" in p.name) == []


def test_a_training_that_was_stopped_ends_where_it_would_have(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stages, "centre", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        RECIPE.make(tmp_path / RECIPE.file)
    monkeypatch.undo()

    RECIPE.make(tmp_path / RECIPE.file)

    assert (tmp_path / RECIPE.file).read_bytes() == (folder / RECIPE.file).read_bytes()


def test_the_weight_of_imputed_labels_is_the_recipes() -> None:
    assert RECIPE.schedule.objective.trusting
    assert not replace(RECIPE, trust="entropy").schedule.objective.trusting


def test_the_mean_of_the_code_is_fitted_over_draws_of_what_is_missing(tmp_path: Path) -> None:
    """Likeliest labels are chosen by the image: the code would differ more between them."""
    regressed = replace(SMOKE, image=replace(SMOKE.image, latents=(0, 0), prior="regressed"))
    training = replace(RECIPE, preset=regressed).stages(tmp_path / "any")
    seen = []
    training.model.image.centre = lambda images, c, **_: seen.append((images[torch.arange(3)], c))
    training.centre()

    images, c = seen[0]
    draws = c.reshape(RECIPE.schedule.imputations, len(training.images), -1)
    assert torch.equal(images, training.images[torch.arange(3)])
    known = training.model.encode(
        {name: values.nan_to_num() for name, values in training.pa.items()}
    )
    every = torch.stack([v.isfinite() for v in training.pa.values()]).all(dim=0)
    assert torch.equal(draws[0, every], known[every])
    assert not torch.equal(draws[0], draws[1])


def test_the_predictors_survive_the_disk(folder: Path, model: DeepSCM) -> None:
    x = RECIPE.data()[:4]
    nan = {name: torch.full((4,), torch.nan) for name in NAMES}
    again = RECIPE.obtain(committed=folder)

    assert again.imputes
    assert all(torch.equal(again.impute(x, nan)[n], model.impute(x, nan)[n]) for n in NAMES)


def test_regularisation_begins_with_the_trained_generator(
    folder: Path, model: DeepSCM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stages, "start", None)
    recipe = replace(RECIPE, consistency=ConsistencyConfig(weight=0.1))
    changed = recipe.make(folder / recipe.file)

    assert set(read_manifest(folder / recipe.file)["notes"]["history"]) == {"regularised"}
    before, after = (m.image.state_dict()["decoder.out.weight"] for m in (model, changed))
    assert 0 < (before - after).abs().max() < 0.1


def rows(model: DeepSCM) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    data = parts("C", SMOKE)["train"].take(range(12))
    return data[:], {name: data.parents[name] for name in model.names}


def test_disagreement_teaches_the_generator_and_not_its_reader(model: DeepSCM) -> None:
    x, pa = rows(model)
    aim = Consistent.reading(model, ConsistencyConfig(), partial._SCHEDULES["smoke"].objective)
    do = intervention(model, pa, "age", torch.Generator().manual_seed(0))
    model.zero_grad(set_to_none=True)

    disagreement(model, aim.readers, x, pa, do, ("sex", "age", "lung_size")).mean().backward()

    reached = {n.split(".")[0] for n, p in model.named_parameters() if p.grad is not None}
    assert reached == {"image", "mechanisms"}
    assert model.mechanisms["lung_size"].conditioner.network[0].weight.grad.abs().sum() > 0
    assert all(p.grad is None for p in aim.readers.parameters())


def test_an_intervention_gives_other_values(model: DeepSCM) -> None:
    _, pa = rows(model)
    for name in ("sex", "race", "effusion"):
        other = intervention(model, pa, name, torch.Generator().manual_seed(0))[name]
        assert (other != pa[name]).all() and set(other.tolist()) <= set(model.graph[name].values)
    ages = intervention(model, pa, "age", torch.Generator().manual_seed(0))["age"]
    assert torch.equal(ages.sort().values, pa["age"].sort().values)


def test_the_target_under_audit_is_left_alone_by_default(
    model: DeepSCM, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, pa = rows(model)
    asked: list[tuple[str, tuple[str, ...]]] = []

    def spy(
        _: object, __: object, x: torch.Tensor, ___: object, do: dict, compared: tuple
    ) -> object:
        asked.append((next(iter(do)), compared))
        return x.new_zeros(len(x))

    monkeypatch.setattr("cfscm.consistency.disagreement", spy)
    for audited in (False, True):
        asked.clear()
        config = ConsistencyConfig(audited=audited)
        aim = Consistent.reading(model, config, partial._SCHEDULES["smoke"].objective)
        for seed in range(20):
            rng = torch.Generator().manual_seed(seed)
            aim(model, x, pack(pa, model.names), 0.5, rng)
        assert ("effusion" in {name for name, _ in asked}) is audited
        assert all(("effusion" in compared) is audited for _, compared in asked)


def test_without_a_weight_the_stage_is_more_of_the_same_training(model: DeepSCM) -> None:
    x, pa = rows(model)
    plain = partial._SCHEDULES["smoke"].objective
    aim = Consistent.reading(model, ConsistencyConfig(weight=0.0), plain)
    packed = pack(pa, model.names)

    ours = aim(model, x, packed, 0.5, torch.Generator().manual_seed(0))
    theirs = plain(model, x, packed, 1.0, torch.Generator().manual_seed(0))

    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_tables_grow_by_one_generator_at_a_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["missing", "--preset", "smoke", "--out", str(tmp_path), "--patients", "40"]
    words += ["--generators", str(folder)]
    assert main([*words, "--part", "trust"]) == 0

    table = pd.read_csv(tmp_path / missing_labels.TRUST)
    assert table.generator.nunique() == 2 and set(table.axiom) == {
        "effectiveness",
        "faithfulness",
        "stability",
    }
    monkeypatch.setattr(missing_labels, "_tried", None)
    assert main([*words, "--part", "trust"]) == 0

    assert main([*words, "--part", "model"]) == 0
    assert main([*words, "--part", "figure"]) == 0
    assert load_file(tmp_path / missing_labels.EXAMPLES)["learned"].shape == (4, 6, 32, 32)
    accuracy = pd.read_csv(tmp_path / missing_labels.IMPUTED)
    assert set(accuracy.variable) == set(NAMES) and accuracy.value.notna().all()
    changes = pd.read_csv(tmp_path / missing_labels.HIDDEN).set_index("metric")
    assert list(changes) == ["recorded", *NAMES, "all"]
    assert not (changes["recorded"] == changes["all"]).all()
    assert changes.loc["R_orig", "recorded"] == changes.loc["R_orig", "all"]


def test_the_examples_are_the_patients_of_the_captions() -> None:
    data = parts("C", find_preset("book"))["test"]
    found: list[int] = []
    for patient in missing_labels.SHOWN:
        found.append(missing_labels._alike(data, patient, besides=found))
        row = data.table.iloc[found[-1]]
        assert {name: row[name] for name in ("race", "sex", "effusion")} == {
            name: patient[name] for name in ("race", "sex", "effusion")
        }
        assert abs(row.age - patient["age"]) < 1
    assert len(set(found)) == 4
