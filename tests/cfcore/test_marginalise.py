"""The expensive step: right, the same however it is cut, and safe against being killed."""

import copy
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from accelerator import NAME, Accelerator
from torch import Tensor

from cfchest.data import Dataset, from_phantom
from cfchest.graph import CHEST, paper_grid
from cfchest.offsets import LogitOffset
from cfchest.phantom import Cohort, Phantom
from cfcore import InputError, Patients, Predictions
from cfcore.generator import Parents
from cfcore.interventions import Grid, parse_values
from cfcore.marginalise import _chunk_logits, _Job, marginalise
from cfcore.predictor import Output
from cfscm.networks import PredictorConfig, build

COHORT = Phantom(16).sample(37, hospital="C", seed=2027)
GRID = Grid.product({"sex": [0, 1], "age": [20, 55, 90]}).weighted([0.1, 0.1, 0.2, 0.2, 0.2, 0.2])
READER = build(PredictorConfig("effusion", width=4), graph=CHEST, seed=0).eval()
PREDICTORS = {"basic": READER, "logit": LogitOffset(READER, 1.0)}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return from_phantom(COHORT)


@pytest.fixture(scope="module")
def result(data: Dataset) -> dict[str, Predictions]:
    return marginalise(COHORT.oracle, PREDICTORS, data, GRID)


def assert_same(first: Predictions, second: Predictions, tolerance: float = 0) -> None:
    for name in ("logit_obs", "logit_null", "logit_cf"):
        torch.testing.assert_close(
            getattr(first, name), getattr(second, name), rtol=0, atol=tolerance
        )


def test_every_logit_is_that_of_the_counterfactual_made_by_hand(
    data: Dataset, result: dict[str, Predictions]
) -> None:
    oracle, pa = COHORT.oracle, data.parents
    noise = oracle.abduct(data[:], pa, index=torch.arange(37))

    for k in range(len(GRID)):
        do = {name: values[k].item() for name, values in GRID.values.items()}
        acted = oracle.act(pa, do)
        x = oracle.predict(noise, acted)
        for name, predictor in PREDICTORS.items():
            with torch.no_grad():
                expected = predictor(x, acted)
            torch.testing.assert_close(result[name].logit_cf[:, k], expected, rtol=0, atol=1e-5)


def test_the_null_world_of_the_oracle_is_the_observed_one(result: dict[str, Predictions]) -> None:
    for predictions in result.values():
        torch.testing.assert_close(predictions.logit_null, predictions.logit_obs, rtol=0, atol=1e-5)


def test_an_offset_reads_the_intervened_sex(result: dict[str, Predictions]) -> None:
    shift = result["logit"].logit_cf - result["basic"].logit_cf

    torch.testing.assert_close(shift, GRID.values["sex"].expand(37, -1), rtol=0, atol=1e-5)


def test_predictions_know_what_they_are(data: Dataset, result: dict[str, Predictions]) -> None:
    given = result["basic"]

    assert given.patient == data.table.patient.tolist()
    assert given.y.tolist() == data.table.effusion.tolist()
    torch.testing.assert_close(given.q, GRID.q)
    assert given.provenance["effect"] == "direct"
    assert set(given.parents) == {"sex", "age", "race", "lung_size", "effusion"}


@pytest.mark.parametrize("max_images", [1, 5, 8, 500])
def test_the_chunk_size_does_not_change_the_result(
    max_images: int, data: Dataset, result: dict[str, Predictions]
) -> None:
    again = marginalise(COHORT.oracle, PREDICTORS, data, GRID, max_images=max_images)

    for name in PREDICTORS:
        assert_same(again[name], result[name], tolerance=1e-5)


def test_worker_processes_do_not_change_the_result(
    data: Dataset, result: dict[str, Predictions]
) -> None:
    stored = Dataset(data.table, data[:], name="stored")

    again = marginalise(COHORT.oracle, PREDICTORS, stored, GRID, workers=1)

    for name in PREDICTORS:
        assert_same(again[name], result[name])


def test_part_of_a_cohort_finds_its_own_noise(
    data: Dataset, result: dict[str, Predictions]
) -> None:
    rows = [30, 2, 17]

    again = marginalise(COHORT.oracle, PREDICTORS, data.take(rows), GRID)

    torch.testing.assert_close(
        again["basic"].logit_cf, result["basic"].logit_cf[rows], rtol=0, atol=1e-5
    )


def test_total_effects_let_the_lungs_follow(data: Dataset, result: dict[str, Predictions]) -> None:
    total = marginalise(COHORT.oracle, PREDICTORS, data, GRID, effect="total")["basic"]

    assert (total.logit_cf - result["basic"].logit_cf).abs().max() > 1e-3
    torch.testing.assert_close(total.logit_null, result["basic"].logit_null, rtol=0, atol=1e-5)


def test_draws_are_every_patients_own_and_follow_q(
    data: Dataset, result: dict[str, Predictions]
) -> None:
    drawn = marginalise(COHORT.oracle, PREDICTORS, data, GRID, draws=9, seed=3)["basic"]

    assert drawn.draws
    assert drawn.logit_cf.shape == (37, 9)
    codes = GRID.nearest({name: v.flatten() for name, v in drawn.grid.items()}).view(37, 9)
    expected = result["basic"].logit_cf.gather(1, codes)
    torch.testing.assert_close(drawn.logit_cf, expected, rtol=0, atol=1e-5)


def test_draws_follow_q() -> None:
    drawn = GRID.draws(20_000, 3, seed=0)

    codes = GRID.nearest({name: values.flatten() for name, values in drawn.items()})
    shares = torch.bincount(codes, minlength=6) / codes.numel()
    torch.testing.assert_close(shares.double(), GRID.q, rtol=0, atol=0.01)


class Plain:
    """A generator without a causal model of its own: it can only act directly."""

    def abduct(
        self, x: Tensor, pa: Parents, *, index: Tensor | None = None, rng: object = None
    ) -> Tensor:
        return x.mean(dim=(1, 2, 3)) - pa["sex"]

    def predict(self, noise: Tensor, pa: Parents) -> Tensor:
        return (noise + pa["sex"])[:, None, None, None].expand(-1, 1, 16, 16)


def mean(x: Tensor, pa: Parents) -> Tensor:
    return x.mean(dim=(1, 2, 3))


def test_any_generator_that_abducts_and_predicts_will_do(data: Dataset) -> None:
    given = marginalise(Plain(), {"mean": mean}, data, Grid.product({"sex": [0, 1]}))["mean"]

    step = given.logit_cf[:, 1] - given.logit_cf[:, 0]
    torch.testing.assert_close(step, torch.ones(37), rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="Plain has no act"):
        marginalise(Plain(), {"mean": mean}, data, GRID, effect="total")


def test_a_logit_that_is_no_number_names_predictor_and_patient(data: Dataset) -> None:
    def broken(x: Tensor, pa: Parents) -> Tensor:
        return torch.where(pa["age"] == data.parents["age"][5], torch.nan, 0.0)

    patient = data.table.patient[5]
    with pytest.raises(InputError, match=f"predictor 'bad' gives nan for patient '{patient}'"):
        marginalise(COHORT.oracle, {"bad": broken}, data, GRID)


def test_running_out_of_memory_halves_the_chunk(
    data: Dataset, result: dict[str, Predictions]
) -> None:
    sizes = []

    def hungry(x: Tensor, pa: Parents) -> Tensor:
        sizes.append(len(x))
        if len(x) > 10:
            raise torch.OutOfMemoryError("pretended")
        return READER(x, pa)

    again = marginalise(COHORT.oracle, {"basic": hungry}, data, GRID, max_images=64)

    assert_same(again["basic"], result["basic"], tolerance=1e-5)
    assert max(sizes) > 10 >= sizes[-1]


# Being stopped


def test_a_second_run_reads_the_shards_of_the_first(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["cfcore.marginalise"], "_SHARD", 10)
    images = 0

    def counting(x: Tensor, pa: Parents) -> Tensor:
        nonlocal images
        images += len(x)
        return READER(x, pa)

    def once() -> Predictions:
        return marginalise(COHORT.oracle, {"g": counting}, data, GRID, resume_dir=tmp_path)["g"]

    def seen() -> int:
        nonlocal images
        before, images = images, 0
        return before // (2 + len(GRID))

    first, patients, shards = once(), seen(), len(list(tmp_path.glob("shard-*")))
    assert (patients, shards) == (len(data), 4)
    assert_same(once(), first)
    assert seen() == 3 * shards, "three patients of each shard are computed again"

    (tmp_path / "shard-0-of-1-00002.safetensors").unlink()
    assert_same(once(), first)
    assert seen() == 3 * (shards - 1) + 10


def test_a_damaged_shard_and_another_job_are_refused_by_name(data: Dataset, tmp_path: Path) -> None:
    marginalise(COHORT.oracle, PREDICTORS, data, GRID, resume_dir=tmp_path)

    with pytest.raises(InputError, match=r"job\.json: the shards are of another job"):
        marginalise(COHORT.oracle, {"basic": READER}, data, GRID, resume_dir=tmp_path)
    with pytest.raises(InputError, match=r"job\.json"):
        marginalise(COHORT.oracle, PREDICTORS, data, paper_grid(), resume_dir=tmp_path)
    shard = tmp_path / "shard-0-of-1-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(InputError, match=r"00000\.safetensors: the shard is damaged"):
        marginalise(COHORT.oracle, PREDICTORS, data, GRID, resume_dir=tmp_path)


SCRIPT = """
import os, sys, time, torch
torch.set_num_threads(1)
sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
import cfcore.marginalise
sys.modules["cfcore.marginalise"]._SHARD = 4
from test_marginalise import COHORT, GRID, PREDICTORS
from cfchest.data import from_phantom

def slow(x, pa):
    time.sleep(float(sys.argv[4]))
    return PREDICTORS["basic"](x, pa)

found = cfcore.marginalise(
    COHORT.oracle, {"basic": slow}, from_phantom(COHORT), GRID, resume_dir=sys.argv[2]
)
found["basic"].save(sys.argv[3])
"""


def start(tmp_path: Path, out: str, pause: float, launcher: list[str]) -> subprocess.Popen:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [str(Path(__file__).parent), str(tmp_path / "shards"), str(tmp_path / out), str(pause)]
    with (tmp_path / "log").open("w") as log:
        return subprocess.Popen([*launcher, str(script), *words], stdout=log, stderr=log)


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole = start(tmp_path, "whole", 0, [sys.executable])
    assert whole.wait() == 0, (tmp_path / "log").read_text()
    for file in (tmp_path / "shards").iterdir():
        file.unlink()

    for finished in (1, 4):  # killed twice, at different moments
        process = start(tmp_path, "resumed", 0.05, [sys.executable])
        while len(list((tmp_path / "shards").glob("shard-*.safetensors"))) < finished:
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "resumed").exists()

    last = start(tmp_path, "resumed", 0, [sys.executable])
    assert last.wait() == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()


def test_two_processes_give_the_result_of_one(
    tmp_path: Path, result: dict[str, Predictions]
) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    process = start(tmp_path, "two", 0, launcher)

    assert process.wait() == 0, (tmp_path / "log").read_text()
    assert_same(Predictions.load(tmp_path / "two"), result["basic"], tolerance=1e-5)
    names = sorted(path.name for path in (tmp_path / "shards").glob("shard-*"))
    assert {name.split("-")[1] for name in names} == {"0", "1"}


# Devices


def device_job(device: str, cohort: Cohort, reader: torch.nn.Module) -> tuple[_Job, list]:
    data = from_phantom(cohort)
    oracle = replace(cohort.oracle, noise={name: v.to(device) for name, v in cohort.noise.items()})
    job = _Job(
        oracle,
        {"basic": reader},
        [Output("basic", "basic")],
        data,
        dict(GRID.values),
        "direct",
        torch.device(device),
        max_images=14,
    )
    inputs = [
        data[:4].to(device),
        {name: v[:4].to(device) for name, v in data.parents.items()},
        data.index[:4].to(device),
        {name: v.expand(4, -1).to(device) for name, v in GRID.values.items()},
    ]
    return job, inputs


def test_a_chunk_never_waits_for_an_accelerator() -> None:
    job, inputs = device_job("cpu", COHORT, READER)
    with torch.no_grad():
        expected = _chunk_logits(job, *inputs)

    with Accelerator() as log, torch.no_grad():
        job, inputs = device_job(NAME, COHORT, copy.deepcopy(READER).to(NAME))
        log.clear()
        found = _chunk_logits(job, *inputs)
        assert log.quiet, log
        assert found.device.type == NAME
        found = found.cpu()

    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5, equal_nan=True)


def test_a_chunk_runs_on_the_meta_device() -> None:
    job, inputs = device_job("meta", COHORT, copy.deepcopy(READER).to("meta"))

    with torch.no_grad():
        found = _chunk_logits(job, *inputs)

    assert found.is_meta
    assert found.shape == (1, 4, 3 + len(GRID))


# Interventions


def test_the_papers_grid_is_sixteen_worlds() -> None:
    grid = paper_grid()

    assert len(grid) == 16
    assert sorted(set(grid.values["age"].tolist())) == [20, 30, 40, 50, 60, 70, 80, 90]
    torch.testing.assert_close(grid.q, torch.full((16,), 1 / 16, dtype=torch.float64))


def test_external_and_empirical_weights_count_the_nearest_world() -> None:
    grid = Grid.product({"sex": [0, 1], "age": [20, 90]})
    people = {"sex": np.array([0, 0, 1, 1]), "age": np.array([30, 80, 88, 21])}

    assert grid.empirical(people).q.tolist() == [0.25, 0.25, 0.25, 0.25]
    table = pd.DataFrame(people).assign(count=[1, 2, 3, 4])
    assert grid.external(table).q.tolist() == pytest.approx([0.1, 0.2, 0.4, 0.3])
    with pytest.raises(InputError, match="no column 'age'"):
        grid.external(table.drop(columns="age"))


@pytest.mark.parametrize("text", ["sex", "sex=a", "age=20:90", "age=20:90:x", "=1,,2"])
def test_an_intervention_that_cannot_be_read_is_quoted(text: str) -> None:
    with pytest.raises(InputError, match="is not an intervention"):
        parse_values(text)


def test_an_impossible_intervention_is_refused() -> None:
    with pytest.raises(InputError, match="sex"):
        Grid.product({"sex": [0, 2]}, graph=CHEST)
    with pytest.raises(InputError, match="unknown variable 'height'"):
        Grid.product({"height": [1]}, graph=CHEST)


# Worlds in which nobody lives


def test_near_is_the_same_category_within_half_a_step() -> None:
    grid = Grid.product({"sex": [1], "age": [20, 30, 50]}, graph=CHEST)
    people = {"sex": [1, 1, 1, 0, 1, 1, 1], "age": [14.9, 15, 24, 30, 60, 60.1, np.nan]}

    assert grid.near(people).tolist() == [-1, 0, 0, -1, 2, -1, -1]
    assert grid.near({"sex": [0], "age": [20]}).tolist() == [-1]
    races = Grid.product({"race": ["white", "black"]}, graph=CHEST)
    assert races.near({"race": ["white", "asian", "black"]}).tolist() == [0, -1, 1]
    assert grid.support(people).tolist() == [2, 0, 1]


def test_a_patient_counts_once_near_a_world() -> None:
    ages = {"age": [20, 21, 22, 50]}
    data = Patients(torch.zeros(4, 1, 8, 8), ages, patient=["a", "a", "b", "a"])

    grid = Grid.product({"age": [20, 50]})
    assert grid.support(ages).tolist() == [3, 1]
    assert grid.support(data).tolist() == [2, 1]
    assert grid.supported(data, least=2).q.tolist() == [1, 0]


def test_a_supported_q_keeps_its_proportions_and_leaves_the_worst_world_out() -> None:
    grid = Grid.product({"age": [20, 50, 80]}, [1, 2, 3])
    people = {"age": [20, 20, 50, 50, 80]}
    cut = grid.supported(people, least=2)
    logits = [[0.0, 0.0, -9.0], [0.0, 0.1, 9.0]]
    given = Predictions([0.0, 1.0], logits, grid.values, grid.q, y=[1, 0])

    assert cut.q.tolist() == pytest.approx([1 / 3, 2 / 3, 0])
    assert grid.supported(people, least=1).q.tolist() == grid.q.tolist()
    assert given.evaluate()["R_WC"] > 9
    inside = given.reweight(cut.q).evaluate()["R_WC"]
    assert inside == pytest.approx((np.log(2) + np.log1p(np.exp(0.1))) / 2)


@pytest.mark.parametrize("least", [0, -1, 2.5])
def test_the_least_number_of_patients_is_a_positive_whole_number(least: float) -> None:
    with pytest.raises(InputError, match="least"):
        Grid.product({"age": [20, 50]}).supported({"age": [20]}, least=least)


def test_a_grid_without_any_support_is_refused() -> None:
    with pytest.raises(InputError, match="no world has 3 patients near it; the most near one is 2"):
        Grid.product({"age": [20, 50]}).supported({"age": [20, 21, 50]}, least=3)
