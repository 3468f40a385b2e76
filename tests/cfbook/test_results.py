"""What learned generators do to the tables, at the smallest size."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cfbook.printed_tables import METRICS, published
from cfbook.study import learned, orders, runs, tables
from cfbook.study.claims import VERDICTS
from cfbook.study.cohorts import held_out, parts, phantom_cohort
from cfbook.study.learned import RESULTS, learned_studies, trial_terms
from cfbook.study.presets import preset
from cfbook.study.recipes import DetailedRecipe, probes
from cfbook.study.runs import Run, all_runs
from cfbook.study.studies import study_run
from cfchest.phantom.equations import fresh_detector
from cfcore.interventions import Grid
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
        runs = [r for r in all_runs(QUICK, "detailed-0") if r.setting == "C->M"]
        learned.collect(runs, place)
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
    run = next(r for r in all_runs(QUICK, "detailed-0") if r.is_main and r.setting == "C->M")
    seen = []
    for q in ("uniform", "empirical"):
        study = study_run(run, folder=folder / runs._FILLED, q=q, replicates=2)
        kept = learned_studies("C->M", q=q, folder=folder)["detailed-0"]
        assert kept.members == study.members and set(kept.values) == set(study.values)
        for name, values in study.values.items():
            assert np.allclose(kept.values[name], values[:, :1], atol=1e-6, equal_nan=True)
        seen.append(kept.values["S_var"].tolist())
    assert seen[0] != seen[1]


def test_each_choice_stands_beside_uniform_q_with_the_same_trainings() -> None:
    run, found = Run(preset("book"), "C->C", "balanced"), learned_studies("C->C")["detailed-0"]
    few = found.only([0])
    assert few.seeds == [0] and len(few.members) < len(found.members)

    empirical, total = tables.learned_variants(run, few, ["S_var"]).items()

    assert "Empirical q" in empirical[0] and empirical[0].endswith("predictors: 0.")
    assert "Total effect" in total[0] and total[0].endswith("predictors: 0.")
    both = [
        one.only([0]).column("S_var", "sex", 0.95)[0, 0] for one in learned_studies("C->C").values()
    ]
    assert empirical[1].loc["sex 0.95", ("S_var", "uniform q")] == f"{np.mean(both):.4f}"
    elsewhere = tables.learned_variants(replace(run, setting="M->M"), found, ["S_var"])
    assert [title.split(" beside")[0] for title in elsewhere] == ["Empirical q"]


def test_learned_generators_stand_beside_the_oracle_of_the_same_preset_alone() -> None:
    run, found = Run(preset("book"), "C->C", "balanced"), learned_studies("C->C")["detailed-0"]
    alone = found.only([1])

    assert [one.seeds for one in tables.learned_of(run, alone).values()] == [[1]] * 2
    assert list(tables.learned_of(replace(run, testset="shares-sex"), found)) == ["detailed-0"]
    assert tables.learned_of(replace(run, preset=preset("smoke")), found) == {}
    assert tables.learned_of(replace(run, generator="detailed-0"), found) == {}


def test_transitions_are_counted_for_learned_generators_too(folder: Path) -> None:
    study = learned_studies("C->M", folder=folder)["detailed-0"]
    table = tables.counted(study, ["R_IE"])
    assert table.loc["CTC"].item() == orders.transitions(study, "R_IE").mean()
    assert table.drop("CTC").equals(tables.means(study, ["R_IE"]))


def test_small_numbers_survive_a_table(tmp_path: Path) -> None:
    frame = pd.DataFrame({"threshold": [1e-12, 0.5], "share": [1 / 3, 123.456]})
    path = learned.write_table(frame, tmp_path / "table.csv")
    assert np.allclose(pd.read_csv(path), frame, rtol=1e-5, atol=0)


def test_soundness_tells_of_truth_and_noise(folder: Path) -> None:
    table = pd.read_csv(folder / learned.SOUNDNESS)
    errors = table[(table.axiom == "faithfulness") & (table.measure == "score difference")]
    assert set(errors.classifier) == {"basic", "strong"}
    assert (errors["oracle"] == 0).all() and (errors["identity"] > 0).any()
    noise = pd.read_csv(folder / learned.NOISE)
    assert {"sigma2_gen", "mse", "squared_bias"} <= set(noise.columns)


def test_probes_share_no_patient_with_the_experiments() -> None:
    probe = probes(QUICK)["sex"]
    ours = phantom_cohort("C", QUICK).pa["age"][:50].numpy()
    theirs = probe.data()[0].table.age.to_numpy()[:50]
    assert probe.cohort != QUICK.cohort and not np.isin(theirs, ours).any()
    assert len({probe.file for probe in probes(QUICK).values()}) == 4


def test_committed_weights_reproduce_the_committed_support() -> None:
    book = preset("book")
    made = {"oracle": phantom_cohort("C", book).oracle, "detailed-0": DetailedRecipe(book).obtain()}
    data, real = held_out("C", book, "balanced").take(range(300)), parts("C", book)["test"]
    young = Grid.product({"sex": [0, 1], "age": [20, 30]})
    found = support_table(made, data, real, young, probes(book)["effusion"].obtain())

    table = pd.read_csv(RESULTS / learned.SUPPORT).drop(columns="detailed-1")
    assert list(table) == list(found) and table["patients"].sum() == len(real)
    assert np.allclose(table[table.age <= 30], found, rtol=1e-3)


def test_committed_weights_reproduce_the_committed_soundness() -> None:
    book = preset("book")
    readers = {name: p.obtain() for name, p in probes(book).items()}
    truth = phantom_cohort("C", book).oracle
    found = soundness(
        DetailedRecipe(book, seed=0).obtain(),
        parts("C", book)["test"].take(range(300)),
        classifiers=readers,
        floor=Derived(truth, fresh_detector),
        axioms=["faithfulness", "effectiveness"],
        effects=["direct"],
        **trial_terms(book),
    )
    keys = ["axiom", "intervention", "effect", "measure", "classifier"]
    kept = pd.read_csv(RESULTS / learned.SOUNDNESS).fillna({"classifier": ""})
    kept = kept[kept.generator == "detailed-0"].set_index(keys)
    found = found.set_index(keys)
    assert len(found) > 20
    for column in ("value", "identity", "floor"):
        assert np.allclose(
            found[column], kept.loc[found.index, column], atol=1e-3, rtol=1e-3, equal_nan=True
        )


def test_what_comes_with_the_project_is_found() -> None:
    book = preset("book")
    for recipe in (DetailedRecipe(book), *probes(book).values()):
        assert (recipe.committed / recipe.file).is_file()
    assert len(learned_studies("C->M")["detailed-0"].kinds) >= 10
    assert list(learned_studies("C->M")) == ["detailed-0", "detailed-1"]
    assert list(learned_studies("C->C", effect="total")) == ["detailed-0"]
    assert list(learned_studies("C->M", q="empirical")) == ["detailed-0", "detailed-1"]


def test_claims_are_judged_with_each_learned_generator() -> None:
    found = learned.learned_claims().set_index(["claim", "setting", "item"])
    expected = [one.column("D_obs", "sex", 0.95) - one.column("D_obs", "control sex", 0.95)
                for one in learned_studies("C->C").values()]  # fmt: skip
    row = found.loc[("clinical-decisions", "C->C", "D_obs, sex, 0.95")]
    assert row["learned"] == pytest.approx(np.mean(expected), abs=1e-6)
    assert set(found["learned verdict"]) <= {*VERDICTS, "differ"}
    assert "unbiased-mean" not in found.index.levels[0]  # the total effect in C->M was not drawn
