"""What learned generators do to the tables, at the smallest size."""

import shutil
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cfbook.printed_tables import METRICS, published
from cfbook.study import claims, learned, runs, tables
from cfbook.study.claims import _criterion, read_design, verdict
from cfbook.study.cohorts import held_out, parts, phantom_cohort
from cfbook.study.learned import RESULTS, learned_studies, trial_terms
from cfbook.study.presets import preset
from cfbook.study.recipes import GeneratorRecipe, PredictorRecipe, probes
from cfbook.study.runs import PredictorId, Run, all_runs
from cfbook.study.statistics import study_predictions, study_run
from cfchest.graph import paper_grid
from cfchest.phantom.equations import fresh_detector
from cfcore.checks import InputError
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise
from cfscm.soundness import soundness
from cfscm.soundness.baselines import Derived
from cfscm.soundness.support import support_table
from cfscm.training import FittingConfig, TrainingConfig

QUICK = replace(
    preset("smoke"),
    trainings=1,
    train=200,
    training=TrainingConfig(epochs=1),
    fitting=FittingConfig(steps=20, report=10),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of one generator, from nothing, in a folder of its own."""
    place = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        runs = [r for r in all_runs(QUICK, "learned-0") if r.setting == "C->M"]
        learned.collect(runs, place, replicates=20)
        learned.collect_soundness(QUICK, [0], place, patients=16, noise_patients=16, draws=2)
    return place


def test_estimates_stand_in_the_rows_of_the_paper(folder: Path) -> None:
    columns = [*METRICS["stability"], "null_flip", "null_abs"]
    found = learned_studies("C->M", folder=folder)
    learned = tables.averaged(found, lambda study: tables.means(study, columns))
    printed = published("C->M", "stability").index
    assert list(learned.index) == [tables.row_label(*each) for each in printed]
    assert (learned["null_abs"] < 1e-3).all()  # the residual is held
    assert learned_studies("C->C", folder=folder) == {}
    assert learned_studies("C->M", folder=folder / "none") == {}


def test_estimates_read_back_are_those_of_the_predictions(folder: Path) -> None:
    run = next(r for r in all_runs(QUICK, "learned-0") if r.is_main and r.setting == "C->M")
    seen = []
    for q in ("uniform", "empirical"):
        study = study_run(run, folder=folder / runs._FILLED, q=q, replicates=2)
        kept = learned_studies("C->M", q=q, folder=folder)["learned-0"]
        assert kept.members == study.members and set(kept.values) == set(study.values)
        for name, values in study.values.items():
            assert np.allclose(kept.values[name], values[:, :1], atol=1e-6, equal_nan=True)
        seen.append(kept.values["S_var"].tolist())
    assert seen[0] != seen[1]


def test_kept_weights_suffice_for_the_empirical_q(tmp_path: Path, folder: Path) -> None:
    table = pd.read_csv(folder / learned._ESTIMATES)
    whole = table[table.q == "empirical"].reset_index(drop=True)
    biased = ~whole.family.isin(["basic", "logit"])
    learned.write_table(table[table.q == "uniform"], tmp_path / learned._ESTIMATES)
    weights = tmp_path / "weights"
    weights.mkdir()
    for path in (folder / PredictorRecipe.cache).glob("C-basic-seed0-*"):
        shutil.copy(path, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(learned, "all_runs", lambda *a: [r for r in all_runs(*a) if "M" in r.setting])
        learned.collect_kept(QUICK, tmp_path, folder=weights)
    kept = pd.read_csv(tmp_path / learned._ESTIMATES)
    kept = kept[kept.q == "empirical"].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, whole[~biased].reset_index(drop=True), atol=1e-5)


def test_each_choice_stands_beside_uniform_q_with_the_same_trainings() -> None:
    run, found = Run(preset("book"), "C->C", "balanced"), learned_studies("C->C")["learned-0"]
    few = found.only([0])
    assert few.seeds == [0] and len(few.members) < len(found.members)

    empirical, total = tables.learned_variants(run, found, ["S_var"]).items()

    assert "Empirical q" in empirical[0] and empirical[0].endswith("predictors: 0.")
    assert "Total effect" in total[0] and total[0].endswith("predictors: 0, 1, 2.")
    shown = empirical[1].loc["sex 0.95", ("S_var", "uniform q")]
    assert shown == f"{few.column('S_var', 'sex', 0.95)[0, 0]:.4f}"
    elsewhere = tables.learned_variants(replace(run, setting="M->M"), found, ["S_var"])
    assert [title.split(" beside")[0] for title in elsewhere] == ["Total effect"]


def test_learned_generators_stand_beside_the_oracle_of_the_same_preset_alone() -> None:
    run, found = Run(preset("book"), "C->C", "balanced"), learned_studies("C->C")["learned-0"]
    alone = found.only([1])

    assert [one.seeds for one in tables.learned_of(run, alone).values()] == [[1]] * 3
    assert list(tables.learned_of(replace(run, testset="shares-sex"), found)) == ["learned-0"]
    assert tables.learned_of(replace(run, preset=preset("smoke")), found) == {}
    assert tables.learned_of(replace(run, generator="learned-0"), found) == {}


def test_transitions_are_counted_for_learned_generators_too(folder: Path) -> None:
    study = learned_studies("C->M", folder=folder)["learned-0"]
    table = tables.counted(study, ["R_IE"])
    assert table.loc["CTC"].item() == claims.transitions(study, "R_IE").mean()
    assert table.drop("CTC").equals(tables.means(study, ["R_IE"]))


def test_claims_without_studies_are_left_out(folder: Path) -> None:
    found = learned.learned_claims(folder=folder)
    assert set(found.setting) == {"C->M"}
    assert "variance-reduction" in set(found.claim)
    assert "blind-spot" not in set(found.claim)
    with pytest.raises(InputError, match="no studies"):
        learned._judge_known({})


def test_the_widest_interval_decides(tmp_path: Path) -> None:
    rows = {"claim": "risk-order", "setting": "C->C", "item": "R_IE - R_orig", "verdict": "any"}
    ends = [(0.5, 0.1, 0.9), (0.3, -0.1, 0.7)]
    frame = pd.DataFrame([rows | {"estimate": e, "low": a, "high": b} for e, a, b in ends])
    learned.write_table(frame, tmp_path / learned._CLAIMS)
    found = learned.learned_claims(folder=tmp_path).iloc[0]
    assert (found["learned"], found["learned low"], found["learned high"]) == (0.4, -0.1, 0.9)
    assert found["learned verdict"] == "inconclusive"


def test_small_numbers_survive_a_table(tmp_path: Path) -> None:
    frame = pd.DataFrame({"threshold": [1e-12, 0.5], "share": [1 / 3, 123.456]})
    path = learned.write_table(frame, tmp_path / "table.csv")
    assert np.allclose(pd.read_csv(path), frame, rtol=1e-5, atol=0)


def ties() -> set[tuple[str, str, str, str]]:
    """Generator, claim, setting and item of comparisons in which both metrics are at their best."""
    studies: dict[str, dict] = {}
    for name, setting in runs.SETTINGS.items():
        for testset, effect in product((setting.testset, *setting.shared), ("direct", "total")):
            for who, found in learned_studies(name, testset, effect=effect).items():
                studies.setdefault(who, {})[name, testset, effect] = found
    every = set()
    for (who, known), claim in product(studies.items(), read_design()["claims"]):
        with suppress(KeyError):
            outcomes = claims.outcomes(claim, known)
            every |= {(who, claim["id"], where, o.item) for where, o, _ in outcomes if o.tied}
    return every


def test_every_stored_verdict_follows_from_its_interval_and_the_design() -> None:
    table = pd.read_csv(RESULTS / learned._CLAIMS)
    by_name, tied = {claim["id"]: claim for claim in read_design()["claims"]}, ties()
    assert len(table) > 300 and len(tied) > 0
    for row in table.itertuples():
        claim = by_name[row.claim]
        threshold, above = _criterion(claim, row.item)
        assert (row.threshold, row.direction == "above") == (threshold, above), row
        same = (row.generator, row.claim, row.setting, row.item) in tied
        assert row.verdict == verdict(claim, row.item, row.low, row.high, tied=same), row


def test_verdicts_read_back_are_those_that_were_stored() -> None:
    table = pd.read_csv(RESULTS / learned._CLAIMS)
    read = learned.learned_claims().set_index(["claim", "setting", "item"])["learned verdict"]
    stored = table.groupby(["claim", "setting", "item"], sort=False).verdict.agg(set)
    agreed = stored[stored.str.len() == 1].str.join("")
    assert len(agreed) > 80
    assert read[agreed.index].to_dict() == agreed.to_dict()


def test_soundness_tells_of_truth_and_noise(folder: Path) -> None:
    table = pd.read_csv(folder / learned.SOUNDNESS)
    errors = table[(table.axiom == "faithfulness") & (table.measure == "score difference")]
    assert set(errors.classifier) == {"basic", "strong"}
    assert (errors["oracle"] == 0).all() and (errors["identity"] > 0).any()
    noise = pd.read_csv(folder / learned.NOISE)
    assert {"sigma2_gen", "mse", "squared_bias"} <= set(noise.columns)


def test_readings_of_the_noise_are_compared_on_the_same_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = replace(QUICK, image=replace(QUICK.image, latents=(0, 0), prior="regressed"))
    path = learned.collect_readings(small, [0], tmp_path, patients=12)

    table = pd.read_csv(path)
    scores = table[table.measure == "score difference"].pivot_table(
        index=["intervention", "classifier"], columns="reading", values=["value", "identity"]
    )
    assert set(scores.columns.levels[1]) == {"exogenous", "regressed", "conditional"}
    assert (scores["identity"].nunique(axis=1) == 1).all()
    assert (scores["value"].nunique(axis=1) > 1).all()
    made = {path.name for path in (tmp_path / GeneratorRecipe.cache).glob("*.safetensors")}
    assert len(made) == 2  # exogenous and regressed are one training


def test_probes_share_no_patient_with_the_experiments() -> None:
    probe = probes(QUICK)["sex"]
    ours = phantom_cohort("C", QUICK).pa["age"][:50].numpy()
    theirs = probe.data()[0].table.age.to_numpy()[:50]
    assert probe.cohort != QUICK.cohort and not np.isin(theirs, ours).any()
    assert len({probe.file for probe in probes(QUICK).values()}) == 4


def test_committed_weights_reproduce_the_committed_support() -> None:
    book = preset("book")
    made = {"oracle": phantom_cohort("C", book).oracle, "learned-0": GeneratorRecipe(book).obtain()}
    data, real = held_out("C", book, "balanced").take(range(300)), parts("C", book)["test"]
    young = Grid.product({"sex": [0, 1], "age": [20, 30]})
    found = support_table(made, data, real, young, probes(book)["effusion"].obtain())

    table = pd.read_csv(RESULTS / learned.SUPPORT)
    assert list(table) == list(found) and table["patients"].sum() == len(real)
    assert np.allclose(table[table.age <= 30], found, rtol=1e-3)


def test_committed_weights_reproduce_the_committed_soundness() -> None:
    book = preset("book")
    readers = {name: p.obtain() for name, p in probes(book).items()}
    truth = phantom_cohort("C", book).oracle
    found = soundness(
        GeneratorRecipe(book, seed=0).obtain(),
        parts("C", book)["test"].take(range(300)),
        classifiers=readers,
        floor=Derived(truth, fresh_detector),
        axioms=["faithfulness", "effectiveness"],
        effects=["direct"],
        **trial_terms(book),
    )
    keys = ["axiom", "intervention", "effect", "measure", "classifier"]
    kept = pd.read_csv(RESULTS / learned.SOUNDNESS).fillna({"classifier": ""})
    kept = kept[kept.generator == "learned-0"].set_index(keys)
    found = found.set_index(keys)
    assert len(found) > 20
    for column in ("value", "identity", "floor"):
        assert np.allclose(
            found[column], kept.loc[found.index, column], atol=1e-3, rtol=1e-3, equal_nan=True
        )


def test_what_comes_with_the_project_is_found() -> None:
    book = preset("book")
    for recipe in (GeneratorRecipe(book), *probes(book).values()):
        assert (recipe.committed / recipe.file).is_file()
    assert len(learned_studies("C->M")["learned-0"].kinds) >= 10
    assert list(learned_studies("C->M")) == ["learned-0", "learned-1", "learned-2"]
    assert list(learned_studies("C->M", effect="total")) == ["learned-0"]
    assert list(learned_studies("C->M", q="empirical")) == ["learned-0"]


def test_committed_weights_reproduce_the_committed_estimates() -> None:
    book = preset("book")
    run = Run(book, "C->C", "balanced", generator="learned-0")
    data = held_out("C", book, "balanced")
    made = {m.name: r for m, r in run.recipes().items() if m == PredictorId("basic", 0.0, 0)}
    readers = {name: recipe.obtain() for name, recipe in made.items()}
    said = marginalise(runs.find_generator(run), readers, data, paper_grid())
    found = study_predictions({PredictorId("basic", 0.0, 0): said["basic 0 seed 0"]}, replicates=2)
    kept = learned_studies("C->C")["learned-0"]
    row = kept.members.index(PredictorId("basic", 0.0, 0))
    assert set(found.values) == set(kept.values)
    for name, values in found.values.items():
        assert values[0, 0] == pytest.approx(kept.values[name][row, 0], abs=1e-3, rel=1e-2), name
