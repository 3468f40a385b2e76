"""Predictions survive the disk, and nothing else does."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cfcore import InputError, Predictions, ScoreWarning, evaluate
from cfcore.predictions import load_all


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
        {"logit_null": None},
    ],
)
def test_what_is_saved_is_what_is_loaded(tmp_path: Path, changes: dict) -> None:
    before = example(**changes)

    after = Predictions.load(before.save(tmp_path / "basic.safetensors"))

    assert_equal(before, after)
    assert before.evaluate() == after.evaluate()
    assert [file.name for file in tmp_path.iterdir()] == ["basic.safetensors"]


@pytest.mark.parametrize("many", [False, True])
def test_files_of_the_first_format_are_read(tmp_path: Path, many: bool) -> None:
    given = example()
    logits = {name: getattr(given, name) for name in ("logit_obs", "logit_null", "logit_cf")}
    tensors = {"q": given.q, "y": given.y, "parents.age": given.parents["age"]}
    tensors |= {f"grid.{name}": values for name, values in given.grid.items()}
    header = {"format": 1, "patient": given.patient}
    if many:
        tensors |= {name: torch.stack([-values, values]) for name, values in logits.items()}
        header |= {"predictors": {"z": {}, "a": given.provenance}}
    else:
        tensors |= {name: values.contiguous() for name, values in logits.items()}
        header |= {"provenance": given.provenance}
    key = "cfcore-bundle" if many else "cfcore"
    save_file(tensors, tmp_path / "old", metadata={key: json.dumps(header)})

    found = load_all(tmp_path / "old")

    assert list(found) == (["z", "a"] if many else [""])
    assert_equal(given, list(found.values())[-1])
    if not many:
        assert_equal(given, Predictions.load(tmp_path / "old"))


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
        ({"q": torch.full((4,), 0.3)}, "q: the weights sum to 1.2"),
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
    assert floor.pop("by_construction") is False
    assert floor == pytest.approx({name: report[name] for name in ("S_flip", "D_abs")})
    assert floor["D_abs"] > 0


def test_a_floor_that_is_zero_by_construction_says_so_and_shows_what_the_residual_hides() -> None:
    given = example()
    exact = replace(given, logit_null=given.logit_obs + 1e-6, logit_decoded=given.logit_null)

    floor = exact.floor(threshold=0.4)

    assert floor["by_construction"] is True
    honest = given.floor(threshold=0.4)
    assert {name: floor[f"{name}_decoded"] for name in ("S_flip", "D_abs")} == {
        name: honest[name] for name in ("S_flip", "D_abs")
    }


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
    with pytest.raises(InputError, match=r"patient\[1\]: the two are about 'p0' and 'x'"):
        first.compare(example(patient=["p0", "x", *first.patient[2:]]))
    with pytest.raises(InputError, match="labels"):
        first.compare(example(y=1 - first.y))
    with pytest.raises(InputError, match="y: the two differ: not both have these labels"):
        first.compare(example(y=None))
    with pytest.raises(InputError, match="q: the two disagree about the probabilities"):
        first.compare(first.reweight([4, 3, 2, 1]))
    weighted = example(weight=torch.arange(40.0))
    with pytest.raises(InputError, match="weight: the two differ"):
        first.compare(weighted)
    with pytest.raises(InputError, match=r"weight\[0\]: the two disagree about the weights"):
        weighted.compare(example(weight=torch.ones(40)))


def test_shared_memory_survives_the_disk(tmp_path: Path) -> None:
    zeros = torch.zeros(5)
    grid = {"a": torch.arange(2.0)}
    given = Predictions(zeros, torch.zeros(5, 2), grid, logit_null=zeros, parents={"b": zeros})

    again = Predictions.load(given.save(tmp_path / "shared"))

    assert torch.equal(again.logit_null, zeros)


def test_arrays_and_lists_become_tensors(tmp_path: Path) -> None:
    given = Predictions(
        np.zeros(3),
        np.ones((3, 2)),
        {"a": np.arange(2.0)},
        logit_null=[0.0, 1.0, 2.0],
        y=[0, 1, 1],
    )

    again = Predictions.load(given.save(tmp_path / "arrays"))

    assert again.logit_null.tolist() == [0, 1, 2]
    assert again.y.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logit_cf": torch.zeros(40, 0), "grid": {}, "q": None}, "0 worlds are too few"),
        (
            {"logit_cf": torch.zeros(40, 1), "grid": {"a": torch.zeros(40, 1)}, "q": None},
            "1 worlds",
        ),
        ({"patient": [1, "a"] * 20}, r"patient\[1\]: 'a' is of another type than 1"),
        ({"patient": [None] * 40}, r"patient\[0\]: None is neither"),
    ],
)
def test_what_cannot_be_evaluated_or_saved_is_refused_at_once(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        example(**changes)


def test_the_floor_refuses_what_is_not_a_number() -> None:
    null = example().logit_null.clone()
    null[3] = torch.nan
    with pytest.raises(InputError, match=r"logit_null\[3\]: nan"):
        example(logit_null=null).floor()
    with pytest.raises(InputError, match="threshold: 2 is outside"):
        example().floor(threshold=2)
    with pytest.raises(InputError, match="logit_null: a floor needs the scores under the null"):
        example(logit_null=None).floor()


def test_logits_that_look_like_probabilities_are_warned_of() -> None:
    given = example()
    p_obs, p_cf = given.logit_obs.sigmoid(), given.logit_cf.sigmoid()

    with pytest.warns(ScoreWarning, match=r"all 200 lie in \[0, 1\]; are these prob") as caught:
        example(logit_obs=p_obs, logit_cf=p_cf)

    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(ScoreWarning):  # a rare finding
        example(logit_obs=p_obs / 3, logit_cf=p_cf / 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda logit: logit,
        lambda logit: logit.abs(),
        lambda logit: -logit.sigmoid(),
        lambda logit: 0.01 + 0.06 * logit.sigmoid(),  # a network that has learnt little
        lambda logit: 0.01 + 0.06 * logit.sigmoid() + 0.5 * (logit > 0),  # with an offset
        lambda logit: logit.sigmoid().where(logit < 1, torch.nan),
        lambda logit: torch.zeros_like(logit),
    ],
)
def test_other_logits_are_not_warned_of(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    given = example()

    example(logit_obs=change(given.logit_obs), logit_cf=change(given.logit_cf))


def test_a_few_logits_may_all_be_fractions() -> None:
    Predictions(torch.rand(3), torch.rand(3, 4), grid={"age": torch.arange(4)})


def test_options_reach_every_method() -> None:
    given = example()
    p_obs, p_cf = given.logit_obs.double().sigmoid(), given.logit_cf.double().sigmoid()
    options = {"threshold": 0.3, "alphas": (0.7,), "bins": 3, "loss": "brier"}

    plain = evaluate(p_obs, p_cf, given.y, q=given.q, **options)

    assert given.evaluate(**options) == pytest.approx(plain)
    frame = given.bootstrap(**options, replicates=20, rank_replicates=3)
    assert dict(zip(frame.metric, frame.estimate, strict=True)) == pytest.approx(plain)
    other = example(logit_cf=given.logit_cf.flip(1))
    change = given.compare(other, **options, replicates=20, rank_replicates=3)
    theirs = other.evaluate(**options)
    assert dict(zip(change.metric, change["first"], strict=True)) == pytest.approx(plain)
    assert dict(zip(change.metric, change["second"], strict=True)) == pytest.approx(theirs)


@pytest.mark.parametrize("method", ["evaluate", "bootstrap"])
def test_an_option_that_there_is_not_is_refused(method: str) -> None:
    with pytest.raises(TypeError, match="treshold"):
        getattr(example(), method)(treshold=0.3)


def test_draws_are_compared_with_draws_only() -> None:
    with pytest.raises(InputError, match="only one of the predictions is on Monte Carlo draws"):
        example().compare(example(grid={"age": torch.rand(40, 4)}, q=None))


def test_patients_of_either_side_are_kept_together() -> None:
    first, second = example(patient=None), example(logit_cf=example().logit_cf + 1)

    forth = first.compare(second, replicates=50, rank_replicates=0)
    back = second.compare(first, replicates=50, rank_replicates=0)

    row, mirrored = (frame.set_index("metric").loc["R_CM"] for frame in (forth, back))
    assert row.low == pytest.approx(-mirrored.high)
