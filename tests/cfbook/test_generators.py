"""The learned generator, from the shell to the tables, at the smallest size."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cfbook.study import runs
from cfbook.study.presets import PRESETS, preset
from cfbook.study.recipes import GeneratorRecipe, PredictorRecipe
from cfbook.study.runs import PredictorId, Run
from cfcore.checks import InputError
from cfcore.cli import main
from cfscm.image import ImageMechanism
from cfscm.training import FittingConfig, shifted
from cfscm.weights import read_manifest

SMOKE = replace(preset("smoke"), trainings=1)
RECIPE = GeneratorRecipe(SMOKE)
TRAIN = ["train", "--preset", "smoke", "--design", "learned"]


def shell(out: Path) -> subprocess.Popen:
    words = [sys.executable, "-m", "cfcore.cli", *TRAIN, "--out", str(out)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(words, env=os.environ | {"OMP_NUM_THREADS": "1"}, **quiet)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("generators")
    assert shell(place).wait() == 0
    return place


def test_a_killed_training_goes_on_to_the_same_weights(folder: Path, tmp_path: Path) -> None:
    process = shell(tmp_path)
    checkpoint = tmp_path / RECIPE.file.replace(".safetensors", ".checkpoint.safetensors")
    while process.poll() is None and not checkpoint.exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert checkpoint.exists() and not (tmp_path / RECIPE.file).exists()

    assert shell(tmp_path).wait() == 0

    assert (tmp_path / RECIPE.file).read_bytes() == (folder / RECIPE.file).read_bytes()
    assert not checkpoint.exists()


def test_training_learns_and_remembers_how(folder: Path) -> None:
    notes = read_manifest(folder / RECIPE.file)["notes"]
    losses = [sum(step["terms"].values()) for step in notes["history"]]
    assert losses[-1] < losses[0]
    assert set(notes["negative log-likelihood"]) == {"sex", "race", "age", "lung_size", "effusion"}


def test_what_is_there_is_not_trained_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GeneratorRecipe, "make", None)
    found = RECIPE.obtain(committed=folder)
    assert not found.training
    assert main([*TRAIN, "--out", str(folder)]) == 0


def test_generators_are_named_by_what_made_them() -> None:
    changed = replace(preset("smoke"), fitting=FittingConfig(steps=10))
    others = [GeneratorRecipe(SMOKE, seed=1), GeneratorRecipe(SMOKE, "M"), GeneratorRecipe(changed)]
    assert len({recipe.digest for recipe in (RECIPE, *others)}) == 4
    assert GeneratorRecipe(replace(preset("smoke"), trainings=2)).digest == RECIPE.digest
    assert PredictorRecipe(changed).digest == PredictorRecipe(SMOKE).digest


def test_a_learned_generator_fills_the_same_tables(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GeneratorRecipe, "committed", folder)
    run = Run(SMOKE, "C->C", "shares-age", generator="learned-0")
    runs.fill(run, tmp_path / run.file, predictors=tmp_path)
    given = runs.predictions(run, folder=tmp_path)[PredictorId("basic", 0.0, 0)]

    assert (given.logit_null - given.logit_obs).abs().max() < 1e-3  # the residual is held
    assert given.evaluate()["S_var"] > 0
    assert given.provenance["generator"] == "DeepSCM"
    assert run.file != Run(SMOKE, "C->C", "shares-age").file
    with pytest.raises(InputError, match="neither oracle nor detailed"):
        runs.find_generator(Run(SMOKE, "C->C", "shares-age", generator="magic"))


@pytest.mark.parametrize("words", [["--device", "nowhere"], ["--out", "/proc/none"]])
def test_training_that_cannot_work_is_refused_at_once(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--preset", "smoke", "--out", str(tmp_path), *words]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_shifted_images_are_moved_as_a_whole() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.arange(64.0).view(1, 1, 8, 8).repeat(40, 1, 1, 1)
    moved = shifted(x, 2, rng, count=40)
    assert torch.equal(shifted(x, 0, rng), x)
    steps = {(int(m[0, 3, 3]) - int(x[0, 0, 3, 3])) for m in moved}
    assert steps <= {8 * i + j for i in range(-2, 3) for j in range(-2, 3)} and len(steps) > 10
    inner = moved[:, 0, 2:6, 2:6]
    assert torch.equal(inner - inner[:, :1, :1], (x[:, 0, 2:6, 2:6] - x[:, 0, 2:3, 2:3]))


@pytest.mark.parametrize("name", PRESETS)
def test_the_generator_of_every_preset_draws_images_of_its_size(name: str) -> None:
    sizes = preset(name)
    with torch.device("meta"):
        image = ImageMechanism(sizes.image)
        x, c = torch.empty(2, 1, sizes.size, sizes.size), torch.empty(2, 7)
    assert image.predict(image.abduct(x, c), c).shape == x.shape
