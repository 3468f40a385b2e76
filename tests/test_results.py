"""What learned generators do to the tables, at the smallest size."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cfcore import generators, judges, recipes, results, settings, tables
from cfcore.checks import InputError
from cfcore.learned import learned_studies
from cfcore.scm.fitting import FittingConfig
from cfcore.settings import all_runs
from cfcore.soundness import soundness
from cfcore.study import study_run
from cfcore.training import TrainingConfig

QUICK = recipes.preset(
    "smoke",
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
        results.collect(runs, place, replicates=20)
        results.collect_soundness(QUICK, [0], place, patients=16, noise_patients=16, draws=2)
    return place


def test_estimates_stand_in_the_rows_of_the_paper(folder: Path) -> None:
    columns = [*tables.COLUMNS["stability"], "null_flip", "null_abs"]
    learned = tables.learned_means("C->M", "natural", columns, folder=folder)
    assert list(learned.index) == list(tables.published("C->M", "stability").index)
    assert (learned["null_abs"] < 1e-3).all()  # the residual is held
    assert tables.learned_means("C->C", "balanced", columns, folder=folder).empty
    assert tables.learned_means("C->M", "natural", columns, folder=folder / "none").empty


def test_estimates_read_back_are_those_of_the_predictions(folder: Path) -> None:
    run = next(
        r for r in all_runs(QUICK, "learned-0") if results.is_main(r) and r.setting == "C->M"
    )
    for q in ("uniform", "empirical"):
        study = study_run(run, folder=folder / settings.FILLED, q=q, replicates=2)
        kept = learned_studies("C->M", q=q, folder=folder)["learned-0"]
        assert kept.members == study.members and set(kept.values) == set(study.values)
        for name, values in study.values.items():
            assert np.allclose(kept.values[name], values[:, :1], atol=1e-6, equal_nan=True)
    both = [learned_studies("C->M", q=q, folder=folder) for q in ("uniform", "empirical")]
    assert (
        both[0]["learned-0"].values["S_var"].tolist()
        != both[1]["learned-0"].values["S_var"].tolist()
    )


def test_transitions_are_counted_for_learned_generators_too(folder: Path) -> None:
    study = learned_studies("C->M", folder=folder)["learned-0"]
    counted = tables.learned_means("C->M", None, ["R_IE"], counts=True, folder=folder)
    assert counted.equals(tables.with_counts(study, tables.means(study, ["R_IE"])))


def test_claims_without_studies_are_left_out(folder: Path) -> None:
    found = results.learned_claims(folder=folder)
    assert set(found.setting) == {"C->M"}
    assert "variance-reduction" in set(found.claim)
    assert "blind-spot" not in set(found.claim)
    with pytest.raises(InputError, match="no studies"):
        results.judge_known({})


def test_the_widest_interval_decides(tmp_path: Path) -> None:
    rows = {"claim": "a", "setting": "s", "item": "i", "threshold": 0.0, "direction": "above"}
    ends = [(0.5, 0.1, 0.9), (0.3, -0.1, 0.7)]
    frame = pd.DataFrame([rows | {"estimate": e, "low": a, "high": b} for e, a, b in ends])
    results.write_table(frame, tmp_path / results.CLAIMS)
    found = results.learned_claims(folder=tmp_path).iloc[0]
    assert (found["learned"], found["learned low"], found["learned high"]) == (0.4, -0.1, 0.9)
    assert found["learned verdict"] == "inconclusive"


def test_soundness_tells_of_truth_and_noise(folder: Path) -> None:
    table = pd.read_csv(folder / results.SOUNDNESS)
    errors = table[(table.axiom == "faithfulness") & (table.measure == "score difference")]
    assert set(errors.classifier) == {"basic", "strong"}
    assert (errors["oracle"] == 0).all() and (errors["identity"] > 0).any()
    noise = pd.read_csv(folder / results.NOISE)
    assert {"sigma2_gen", "mse", "squared_bias"} <= set(noise.columns)


def test_judges_share_no_patient_with_the_experiments() -> None:
    judge = judges.judges(QUICK)["sex"]
    ours = recipes.patients("C", QUICK).pa["age"][:50].numpy()
    theirs = judge.data()[0].table.age.to_numpy()[:50]
    assert judge.cohort != QUICK.cohort and not np.isin(theirs, ours).any()
    assert len({judge.file for judge in judges.judges(QUICK).values()}) == 4


def test_committed_weights_reproduce_the_committed_soundness() -> None:
    book = recipes.preset("book")
    readers = {name: judges.obtain_judge(j) for name, j in judges.judges(book).items()}
    found = soundness(
        generators.obtain_generator(generators.GeneratorRecipe(book, seed=0)),
        recipes.parts("C", book)["test"].take(range(300)),
        classifiers=readers,
        audited={"basic": recipes.obtain(recipes.Recipe(book)), "strong": readers["effusion"]},
        truth=recipes.patients("C", book).oracle,
        axioms=["faithfulness", "effectiveness"],
        effects=["direct"],
    )
    keys = ["axiom", "intervention", "effect", "measure", "classifier"]
    kept = pd.read_csv(tables.RESULTS / results.SOUNDNESS).fillna({"classifier": ""})
    kept = kept[kept.generator == "learned-0"].set_index(keys)
    found = found.set_index(keys)
    assert len(found) > 20
    for column in ("value", "identity", "floor"):
        assert np.allclose(
            found[column], kept.loc[found.index, column], atol=1e-3, rtol=1e-3, equal_nan=True
        )


def test_what_comes_with_the_project_is_found() -> None:
    book = recipes.preset("book")
    assert (generators.COMMITTED / generators.GeneratorRecipe(book).file).is_file()
    for judge in judges.judges(book).values():
        assert (judges.COMMITTED / judge.file).is_file()
    assert len(tables.learned_means("C->M", "natural", ["S_var", "null_abs"])) == 10
    assert list(learned_studies("C->M")) == ["learned-0", "learned-1", "learned-2"]
