"""Predictions survive the disk, and nothing else does."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cfcore import InputError, Predictions, evaluate


def example(n: int = 40, **changes: object) -> Predictions:
    rng = torch.Generator().manual_seed(0)
    logit = torch.randn(n, 6, generator=rng)
    fields = {
        "logit_obs": logit[:, 0],
        "logit_null": logit[:, 0] + 0.1 * logit[:, 1],
        "logit_cf": logit[:, 2:],
        "grid": {"sex": torch.tensor([0, 0, 1, 1]), "age": torch.tensor([20.0, 90.0, 20.0, 90.0])},
        "q": torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64),
        "y": (torch.rand(n, generator=rng) < 0.5).long(),
        "parents": {"age": 20 + 70 * torch.rand(n, generator=rng)},
        "patient": [f"p{i // 2}" for i in range(n)],
        "provenance": {"seed": 0, "versions": {"torch": torch.__version__}},
    }
    return Predictions(**(fields | changes))


def assert_equal(first: Predictions, second: Predictions) -> None:
    for name in ("logit_obs", "logit_null", "logit_cf", "q", "y"):
        torch.testing.assert_close(getattr(first, name), getattr(second, name), rtol=0, atol=0)
    for name in ("grid", "parents"):
        torch.testing.assert_close(getattr(first, name), getattr(second, name), rtol=0, atol=0)
    assert np.array_equal(first.patient, second.patient)
    assert first.provenance == second.provenance


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"patient": list(range(40)), "y": None},
        {"patient": np.arange(40), "parents": {}},
        {"patient": None, "q": None, "provenance": {}},
        {"patient": ["Zoë", "李"] * 20},
        {"grid": {"age": torch.rand(40, 4)}},
    ],
)
def test_what_is_saved_is_what_is_loaded(tmp_path: Path, changes: dict) -> None:
    before = example(**changes)

    after = Predictions.load(before.save(tmp_path / "basic.safetensors"))

    assert_equal(before, after)
    assert before.evaluate() == after.evaluate()
    assert [file.name for file in tmp_path.iterdir()] == ["basic.safetensors"]


def test_the_same_predictions_are_the_same_bytes(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_predictions import example;"
        "example().save(sys.argv[2])"
    )
    for name in ("first", "second"):
        subprocess.run(
            [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path / name)],
            check=True,
        )

    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = example().save(tmp_path / "basic.safetensors")
    before = path.read_bytes()

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        example(n=50, patient=None).save(path)

    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_an_unwritable_provenance_is_refused_before_writing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        example(provenance={"loss": float("nan")}).save(tmp_path / "basic")
    assert list(tmp_path.iterdir()) == []


def damaged(path: Path) -> None:
    path.write_bytes(example().save(path).read_bytes()[:200])


def foreign(path: Path) -> None:
    save_file({"weight": torch.ones(2)}, path)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"logit_obs": [1.0]}))


def newer(path: Path) -> None:
    save_file({"logit_obs": torch.ones(2)}, path, metadata={"cfcore": '{"format": 99}'})


def empty(path: Path) -> None:
    path.write_bytes(b"")


def partial(path: Path) -> None:
    header = '{"format": 1, "patient": null, "provenance": {}}'
    save_file({"logit_obs": torch.ones(2)}, path, metadata={"cfcore": header})


@pytest.mark.parametrize("spoil", [damaged, foreign, pickled, newer, empty, partial])
def test_a_file_that_is_not_predictions_is_refused_by_name(tmp_path: Path, spoil: object) -> None:
    path = tmp_path / "basic.safetensors"
    spoil(path)

    with pytest.raises(InputError, match=r"basic\.safetensors"):
        Predictions.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        Predictions.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logit_obs": torch.zeros(3)}, r"logit_obs: has shape \(3,\), not \(40,\)"),
        ({"logit_null": torch.zeros(3)}, "logit_null"),
        ({"logit_cf": torch.zeros(40)}, "logit_cf: needs 2 axes"),
        ({"y": torch.full((40,), 2)}, r"y\[0\]: 2 is not a label"),
        ({"grid": {"age": torch.zeros(5)}}, r"grid.age: has shape \(5,\), not \(4,\)"),
        ({"parents": {"age": torch.zeros(5)}}, "parents.age"),
        ({"patient": ["a"]}, "patient: has 1 rows, not 40"),
        ({"q": torch.ones(4)}, "q: the weights sum to 4"),
    ],
)
def test_predictions_that_do_not_fit_together_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        example(**changes)


def test_a_logit_that_is_not_finite_is_refused_with_its_row() -> None:
    logit = example().logit_cf.clone()
    logit[7, 2] = torch.nan
    with pytest.raises(InputError, match=r"logit_cf_2\[7\]: nan is not a finite logit"):
        example(logit_cf=logit).evaluate()


def test_the_floor_is_the_null_intervention_against_the_observed_score() -> None:
    given = example()
    p_obs, p_null = given.logit_obs.sigmoid(), given.logit_null.sigmoid()

    floor = given.floor(threshold=0.4)

    report = evaluate(p_obs, p_null[:, None], threshold=0.4)
    assert floor == pytest.approx({name: report[name] for name in ("S_flip", "D_abs")})
    assert floor["D_abs"] > 0


def test_one_table_answers_for_every_q() -> None:
    given = example()
    only = torch.tensor([0.0, 0.0, 1.0, 0.0])

    again = given.reweight(only)

    alone = evaluate(given.logit_obs.sigmoid(), given.logit_cf[:, 2:3].sigmoid(), given.y)
    assert again.evaluate() == pytest.approx(alone)
    with pytest.raises(InputError, match="Monte Carlo"):
        example(grid={"age": torch.rand(40, 4)}).reweight(only)


def test_only_the_same_patients_can_be_compared() -> None:
    first = example()
    with pytest.raises(InputError, match="40 and 39 rows"):
        first.compare(example(n=39))
    with pytest.raises(InputError, match=r"patient\[1\]: the predictions are about 'p0' and 'x'"):
        first.compare(example(patient=["p0", "x", *first.patient[2:]]))
    with pytest.raises(InputError, match="labels"):
        first.compare(example(y=1 - first.y))
    with pytest.raises(InputError, match="only one"):
        first.compare(example(y=None))
