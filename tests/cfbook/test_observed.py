"""What needs observed images only, on further patients."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cfbook.study import observed
from cfbook.study.cohorts import further, held_out
from cfbook.study.presets import preset
from cfbook.study.recipes import PredictorRecipe
from cfbook.study.runs import PredictorId, Run
from cfbook.study.statistics import Study
from cfchest.graph import CHEST
from cfcore.metrics import auc
from cfscm.networks import ImageNetwork, build

SMOKE = replace(preset("smoke"), trainings=2, observed=150)
RUN = Run(SMOKE, "C->C", "balanced")


def untrained(recipe: PredictorRecipe) -> ImageNetwork:
    return build(recipe.preset.network, graph=CHEST, seed=recipe.seed).eval()


@pytest.fixture(scope="module")
def study() -> Study:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PredictorRecipe, "obtain", untrained)
        return observed._observed_study(RUN, 20)


def test_further_patients_are_others_and_chosen_alike() -> None:
    more, test = further("C", SMOKE, "balanced"), held_out("C", SMOKE, "balanced")
    assert len(more) == 150
    assert not set(more.table.age) & set(test.table.age)
    both = [data.table.groupby("sex").effusion.mean() for data in (more, test)]
    assert all(abs(rates[0] - rates[1]) < 0.02 for rates in both)
    assert len(further("C", SMOKE, "shares-sex")) == 150


def test_statistics_are_those_of_the_logits(study: Study) -> None:
    data = further("C", SMOKE, "balanced")
    with torch.inference_mode():
        logit = untrained(PredictorRecipe(SMOKE, seed=1))(data[:]).double()
    y = data.parents["effusion"].long()
    assert study.column("AUC", "basic")[1, 0] == pytest.approx(auc(logit, y).item())
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, y.double())
    assert study.column("R_orig", "basic")[1, 0] == pytest.approx(loss.item())
    old = (data.parents["age"] - 80).abs() <= 5
    assert study.column("mean_80", "basic")[1, 0] == pytest.approx(
        logit[old].sigmoid().mean().item()
    )
    assert study.patients == 150 and {"logit", "sex", "control age"} <= {
        m.family for m in study.members
    }


def test_offsets_leave_the_area_within_a_sex(study: Study) -> None:
    assert study.column("gap_sex", "logit", 2.0)[:, 0] == pytest.approx(
        study.column("gap_sex", "basic")[:, 0]
    )
    assert (study.column("score_sex", "logit", 2.0) > study.column("score_sex", "basic")).all()


def test_a_study_is_read_back_as_it_was(study: Study, tmp_path: Path) -> None:
    path = observed._write_study(study, tmp_path / observed.observed_file(RUN))
    back = observed.read_observed(RUN, folder=tmp_path)
    assert back.members == study.members and back.patients == study.patients
    for name, values in study.values.items():
        assert np.allclose(back.values[name][:, 0], values[:, 0], rtol=1e-6, equal_nan=True), name
        assert np.allclose(back.values[name], values, atol=1e-3, rtol=1e-3, equal_nan=True), name
    assert path.read_bytes() == observed._write_study(study, tmp_path / "again").read_bytes()


def test_what_needs_no_world_comes_from_the_further_patients(study: Study) -> None:
    rng = np.random.default_rng(0)
    members = tuple(reversed(study.members))
    names = ("S_var", "AUC")
    main = Study(members, {name: rng.normal(size=(len(members), 31)) for name in names}, 99, 16)
    both = observed.joined(main, study)
    assert np.array_equal(both.values["S_var"], main.values["S_var"])
    row = members.index(PredictorId("sex", 0.9, 1))
    assert both.values["AUC"][row, 0] == study.column("AUC", "sex", 0.9)[1, 0]
    assert np.isnan(both.values["AUC"][:, 21:]).all() and both.patients == 99


def test_what_is_kept_serves_fewer_trainings_and_any_generator() -> None:
    whole = Run(preset("book"), "C->C", "balanced")
    assert observed.read_observed(whole).seeds == [0, 1, 2, 3, 4]
    few = Run(replace(preset("book"), trainings=2), "C->C", "balanced", generator="detailed-0")
    found = observed.read_observed(few)
    assert found.seeds == [0, 1]
    column = observed.read_observed(whole).column("AUC", "sex", 0.9)
    assert np.array_equal(found.column("AUC", "sex", 0.9), column[:2])
