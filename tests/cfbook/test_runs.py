"""The experiments, from training to tables, at the smallest size."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cfbook.study import runs, studies
from cfbook.study.cohorts import phantom_cohort
from cfbook.study.presets import preset
from cfbook.study.recipes import PredictorRecipe
from cfbook.study.runs import PredictorId, Run
from cfbook.study.statistics import study_predictions
from cfbook.study.studies import study_run
from cfcore.checks import InputError
from cfcore.cli import main
from cfcore.predictions import load_all
from cfscm import training
from cfscm.weights import read_manifest

SMOKE = replace(preset("smoke"), training=training.TrainingConfig(epochs=1), trainings=1)
RUN = Run(SMOKE, "C->C", "shares-sex")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One test set, with its predictors really trained and really marginalised."""
    place = tmp_path_factory.mktemp("runs")
    runs.fill(RUN, place / RUN.file, predictors=place / "predictors")
    return place


def test_a_run_holds_its_chains_and_their_offsets(folder: Path) -> None:
    found = runs.predictions(RUN, folder=folder)
    families = {(m.family, m.strength) for m in found}
    assert families == {
        ("basic", 0.0), ("control sex", 0.95), *(("sex", s) for s in runs.STRENGTHS),
        *(("logit", b) for b in runs.BETAS),
    }  # fmt: skip
    basic, offset = found[PredictorId("basic", 0.0, 0)], found[PredictorId("logit", 2.0, 0)]
    women = basic.grid["sex"] == 1
    moved = offset.logit_cf - basic.logit_cf.double()
    assert torch.allclose(moved[:, women], torch.tensor(2.0, dtype=torch.float64))
    assert moved[:, ~women].abs().max() == 0


def test_the_oracle_changes_nothing_under_the_null_intervention(folder: Path) -> None:
    for given in runs.predictions(RUN, folder=folder).values():
        assert torch.equal(given.logit_null, given.logit_obs)


def test_a_run_that_is_there_is_not_computed_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "fill", None)
    result = study_run(RUN, folder=folder, replicates=20)
    assert result.column("S_var", "sex", 0.95).shape == (1, 21)
    assert study_run(RUN, folder=folder, q="empirical", replicates=2).seeds == [0]
    with pytest.raises(InputError, match="one of uniform, empirical"):
        study_run(RUN, folder=folder, q="flat")


def test_a_study_is_kept_and_found_by_what_it_is_computed_from(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "_FOLDER", tmp_path)
    fresh = study_run(RUN, folder=folder, replicates=5)
    counted: list[int] = []
    monkeypatch.setattr(
        studies,
        "study_predictions",
        lambda *a, **k: counted.append(1) or study_predictions(*a, **k),
    )

    again = study_run(RUN, folder=folder, replicates=5)
    assert not counted and again.members == fresh.members and again.patients == fresh.patients
    for name, values in fresh.values.items():
        np.testing.assert_array_equal(again.values[name], values)

    study_run(RUN, folder=folder, replicates=5, q="empirical")
    study_run(RUN, folder=folder, replicates=6)
    monkeypatch.setattr(studies, "_sources", lambda: "edited")
    study_run(RUN, folder=folder, replicates=5)
    assert len(counted) == 3


def test_files_are_named_by_what_made_them() -> None:
    files = {run.file for run in runs.all_runs(SMOKE)}
    others = [
        Run(replace(preset("smoke"), cohort=7), "C->C", "balanced"),
        Run(replace(preset("smoke"), patients=50), "C->C", "balanced"),
        Run(replace(preset("smoke"), trainings=2), "C->C", "balanced"),
        Run(SMOKE, "C->C", "balanced", generator="other"),
    ]
    assert len(files) == 10
    assert not files & {run.file for run in others}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("M->C", "balanced"), "no setting"),
        (("C->M", "balanced"), "is tested on natural"),
        (("C->C", "balanced", "sideways"), "effect"),
    ],
)
def test_impossible_runs_are_refused(words: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Run(SMOKE, *words)


def test_the_shell_trains_and_fills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--preset", "smoke", "--out", str(tmp_path)]
    assert main(["predictor", *words, "--family", "sex", "--strength", "0.9", "--seed", "1"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert read_manifest(path)["notes"]["recipe"]["strength"] == 0.9
    before = path.stat().st_mtime_ns
    assert main(["predictor", *words, "--family", "sex", "--strength", "0.9", "--seed", "1"]) == 0
    assert path.stat().st_mtime_ns == before
    assert main(["setting", *words, "--setting", "M->C"]) == 2
    assert "M->C" in capsys.readouterr().err
    assert main(["predictor", *words, "--family", "sex"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "-1"], "seed is 0 or more"),
        (["--images", "100000"], "100000 training images asked for, 800 are there"),
        (["--device", "nonsense"], "'nonsense' cannot be used here"),
    ],
)
def test_the_shell_refuses_a_predictor_that_cannot_be_trained(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predictor", "--preset", "smoke", "--out", str(tmp_path / "new"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "new").glob("*"))


def test_the_shell_fills_a_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["setting", "--preset", "smoke", "--testset", "shares-age", "--trainings", "1"]
    words += ["--predictors", str(tmp_path), "--out", str(tmp_path)]
    assert main(words) == 0
    path = Path(capsys.readouterr().out.strip().splitlines()[-1])
    assert len(load_all(path)) == 5


def test_a_failed_training_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([0.7])
    judged = training._judged

    def twice(*arguments: object) -> tuple[float, float]:
        loss, score = judged(*arguments)
        return (loss if next(losses, None) else float("nan")), score

    monkeypatch.setattr(training, "_judged", twice)
    recipe = PredictorRecipe(preset("smoke"))
    with pytest.raises(FloatingPointError, match="epoch 2"):
        recipe.make(tmp_path / recipe.file)
    kept = next(tmp_path.glob("*.failed.safetensors"))
    notes = read_manifest(kept)["notes"]
    assert len(notes["history"]) == 1 and "epoch 2" in notes["error"]
    assert not (tmp_path / recipe.file).exists()


def test_the_workflow_knows_every_job() -> None:
    root = Path(__file__).parents[2]
    words = [sys.executable, "-m", "snakemake", "--cores", "1", "--dry-run", "--quiet", "rules"]
    words += ["--config", "preset=smoke", "trainings=1"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


BOOK = list(runs.all_runs(preset("book")))


@pytest.mark.parametrize("run", BOOK, ids=lambda run: run.name)
def test_the_predictions_of_the_book_are_committed(run: Run) -> None:
    path = runs._COMMITTED / run.file
    assert path.is_file(), "the book preset has changed: run the experiments again"
    assert path.stat().st_size < 5_000_000
    bundle = load_all(path)
    assert list(bundle) == [member.name for member in run.recipes()]
    for given in bundle.values():
        assert len(given) == 1000
        assert torch.equal(given.logit_null, given.logit_obs)
        assert {"commit", "table", "versions", "recipe"} <= given.provenance.keys()


def test_committed_data_stay_small() -> None:
    files = [path for path in (runs._COMMITTED.parent).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 45_000_000
    assert sum(path.stat().st_size for path in runs._COMMITTED.iterdir()) < 20_000_000
    assert max(path.stat().st_size for path in files) < 5_000_000


def test_committed_weights_give_the_committed_predictions() -> None:
    run = BOOK[0]
    member = PredictorId("sex", 0.95, 0)
    given = runs.predictions(run)[member]
    data = runs.held_out("C", run.preset, run.testset).take(range(12))
    again = runs.marginalise(
        phantom_cohort("C", run.preset).oracle,
        {"again": run.recipes()[member].obtain()},
        data,
        runs.paper_grid(),
    )["again"]
    assert again.patient == given.patient[:12]
    torch.testing.assert_close(again.logit_cf, given.logit_cf[:12], atol=1e-3, rtol=1e-3)
