"""A finished shard is believed only if generator, predictors, data and grid are what they were."""

import functools
import logging
import os
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from cfchest.data import Dataset
from cfcore import InputError, Predictions
from cfcore.fingerprint import fingerprint
from cfcore.generator import Parents
from cfcore.interventions import Grid
from cfcore.marginalise import _AGREEMENT, marginalise

GRID = Grid.product({"sex": [0, 1]})
CHANGED = r"shards are of another job|when the shard was made"

net = nn.Linear(1, 1)  # a global, as in a notebook
shift = 0.0


class Still:
    """A generator that changes nothing, but for a global."""

    def abduct(
        self, x: Tensor, pa: Parents, *, index: Tensor | None = None, rng: object = None
    ) -> Tensor:
        return x

    def predict(self, noise: Tensor, pa: Parents) -> Tensor:
        return noise + shift


def mean(x: Tensor) -> Tensor:
    return x.mean(dim=(1, 2, 3))


def helper(x: Tensor) -> Tensor:
    return net(mean(x)[:, None]).squeeze(1)


class Fields:
    def __init__(self, network: nn.Module, bias: float) -> None:
        self.network, self.bias = network, bias

    def __call__(self, x: Tensor, pa: Parents) -> Tensor:
        return self.network(mean(x)[:, None]).squeeze(1) + self.bias


@dataclass(slots=True)
class Slots:
    bias: float

    def __call__(self, x: Tensor, pa: Parents) -> Tensor:
        return mean(x) + self.bias


class Private(nn.Module):
    """A network with a field of its own that begins with an underscore."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self._bias = bias

    def forward(self, x: Tensor) -> Tensor:
        return mean(x) + self._bias


def hooked(bias: float) -> nn.Module:
    network = Scaled(1.0)
    network.register_forward_hook(lambda module, inputs, out: out + bias)
    return network


def attributed(bias: float) -> Callable:
    def function(x: Tensor, pa: Parents) -> Tensor:
        return mean(x) + function.bias

    function.bias = bias
    return function


def spaced(bias: float) -> Callable:
    options = types.SimpleNamespace(network=linear(bias))
    return lambda x, pa: options.network(mean(x)[:, None])


class Scaled(nn.Module):
    """A network with a number that is no weight."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * mean(x)


def linear(bias: float) -> nn.Linear:
    made = nn.Linear(1, 1)
    nn.init.ones_(made.weight)
    nn.init.constant_(made.bias, bias)
    return made


@pytest.fixture
def data() -> Dataset:
    people = pd.DataFrame(
        {"patient": range(10), "sex": [0, 1] * 5, "age": 50, "effusion": [0, 1] * 5}
    )
    return Dataset(people, torch.rand(10, 8, 8, generator=torch.Generator().manual_seed(0)))


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["cfcore.marginalise"], "_SHARD", 4)


def run(data: Dataset, folder: Path | None, predictor: Callable, **options: object) -> Predictions:
    return marginalise(Still(), {"g": predictor}, data, GRID, resume_dir=folder, **options)["g"]


def shifted(bias: float) -> Callable:
    return lambda x, pa: mean(x) + bias


def biased(x: Tensor, pa: Parents, *, bias: float) -> Tensor:
    return mean(x) + bias


def traced(scale: float) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # old, and what people have
        return torch.jit.trace(Scaled(scale), torch.zeros(1, 1, 8, 8))


PAIRS = {
    "a closure": (shifted(1.0), shifted(2.0)),
    "other code": (lambda x, pa: mean(x), lambda x, pa: 2 * mean(x)),
    "a default": (lambda x, pa, b=1.0: mean(x) + b, lambda x, pa, b=2.0: mean(x) + b),
    "a partial": (functools.partial(biased, bias=1.0), functools.partial(biased, bias=2.0)),
    "a bias": (Fields(linear(0.0), 5.0), Fields(linear(0.0), 7.0)),
    "a network in a field": (Fields(linear(0.0), 0.0), Fields(linear(1.0), 0.0)),
    "a slot": (Slots(1.0), Slots(2.0)),
    "a number of a network": (Scaled(1.0), Scaled(2.0)),
    "a private number of a network": (Private(1.0), Private(2.0)),
    "a hook of a network": (hooked(1.0), hooked(2.0)),
    "an attribute of a function": (attributed(1.0), attributed(2.0)),
    "a network in a namespace": (spaced(1.0), spaced(1.0001)),
    "a TorchScript module": (traced(1.0), traced(2.0)),
    "a number of numpy": (Slots(np.float32(1.0)), Slots(np.float32(2.0))),
    "a bound method": (Fields(linear(0.0), 5.0).__call__, Fields(linear(0.0), 7.0).__call__),
}


@pytest.mark.parametrize(("first", "second"), PAIRS.values(), ids=PAIRS)
def test_what_a_predictor_is_made_of_is_part_of_the_job(
    first: Callable, second: Callable, data: Dataset, tmp_path: Path
) -> None:
    before = run(data, tmp_path, first)
    assert torch.equal(run(data, tmp_path, first).logit_cf, before.logit_cf)

    with pytest.raises(InputError, match=CHANGED):
        run(data, tmp_path, second)


@pytest.mark.parametrize(
    "predictor",
    [lambda x, pa: net(mean(x)[:, None]).squeeze(1), lambda x, pa: helper(x)],
    ids=["a lambda over a global network", "a helper that reads a global network"],
)
def test_a_retrained_global_network_is_found_out(
    predictor: Callable, data: Dataset, tmp_path: Path
) -> None:
    run(data, tmp_path, predictor)
    with torch.no_grad():
        net.bias += 5

    with pytest.raises(InputError, match=CHANGED):
        run(data, tmp_path, predictor)


def test_a_generator_that_reads_another_global_is_found_out(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(data, tmp_path, shifted(0.0))
    monkeypatch.setattr(sys.modules[__name__], "shift", 0.3)

    with pytest.raises(InputError, match=CHANGED):
        run(data, tmp_path, shifted(0.0))


def test_a_file_that_a_predictor_reads_is_found_out_by_computing_again(
    data: Dataset, tmp_path: Path
) -> None:
    file = tmp_path / "bias.txt"

    def reading(x: Tensor, pa: Parents) -> Tensor:
        return mean(x) + float(file.read_text())

    file.write_text("1")
    before = run(data, tmp_path / "shards", reading)
    file.write_text("2")
    with pytest.raises(
        InputError,
        match=r"00000\.safetensors: predictor 'g' gives .* for patient '0', but gave .* when the",
    ):
        run(data, tmp_path / "shards", reading)

    file.write_text("1")
    assert torch.equal(run(data, tmp_path / "shards", reading).logit_cf, before.logit_cf)


@pytest.mark.parametrize(
    ("error", "kept"), [(_AGREEMENT[False] / 2, True), (3 * _AGREEMENT[False], False)]
)
def test_the_last_digits_of_another_machine_are_not_another_model(
    error: float, kept: bool, data: Dataset, tmp_path: Path
) -> None:
    file = tmp_path / "error.txt"

    def rounding(x: Tensor, pa: Parents) -> Tensor:
        return 10 * mean(x) * (1 + float(file.read_text()))

    file.write_text("0")
    run(data, tmp_path / "shards", rounding)
    file.write_text(str(error))
    if kept:
        run(data, tmp_path / "shards", rounding)
    else:
        with pytest.raises(InputError, match=CHANGED):
            run(data, tmp_path / "shards", rounding)


def test_images_that_a_function_draws_are_part_of_the_job(data: Dataset, tmp_path: Path) -> None:
    drawn = [data[:], data[:].clone()]
    drawn[1][3] += 0.5  # not a patient that is computed again
    first, second = (Dataset(data.table, lambda rows, x=x: x[rows]) for x in drawn)
    run(first, tmp_path, shifted(0.0))

    with pytest.raises(InputError, match=r"another job: data changed since"):
        run(second, tmp_path, shifted(0.0))


def test_a_first_run_that_failed_does_not_stand_in_the_way(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"predictor 'g' gives a tensor of shape \(\d+, 14\)"):
        run(data, tmp_path, lambda x, pa: torch.zeros(len(x), 14))

    mended = run(data, tmp_path, shifted(0.0))
    assert torch.equal(mended.logit_cf, run(data, None, shifted(0.0)).logit_cf)


def test_a_column_that_nothing_reads_and_a_logger_are_not_part_of_the_job(
    data: Dataset, tmp_path: Path
) -> None:
    log = logging.getLogger("of mine")

    def logging_predictor(x: Tensor, pa: Parents) -> Tensor:
        log.debug("%d images", len(x))
        return mean(x)

    run(data, tmp_path, logging_predictor)
    log.setLevel(logging.INFO)
    run(data.select(data.table.assign(note="x")), tmp_path, logging_predictor)


def test_a_predictor_that_is_random_is_found_out(data: Dataset, tmp_path: Path) -> None:
    def random(x: Tensor, pa: Parents) -> Tensor:
        return torch.randn(len(x))

    run(data, tmp_path, random)
    with pytest.raises(InputError, match="or are random"):
        run(data, tmp_path, random)


def test_what_a_function_counts_is_not_what_it_is(data: Dataset, tmp_path: Path) -> None:
    calls = 0

    def counting(x: Tensor, pa: Parents) -> Tensor:
        nonlocal calls
        calls += 1
        return mean(x)

    before = run(data, tmp_path, counting)
    assert torch.equal(run(data, tmp_path, counting).logit_cf, before.logit_cf)
    assert calls > 0


PLUGIN = """
from pathlib import Path

class Still:
    def abduct(self, x, pa, *, index=None, rng=None):
        return x
    def predict(self, noise, pa):
        return noise

def generator():
    return Still()

def predictor(x, pa):
    print("seen", tuple(x.shape[1:]), *sorted(pa))
    return x.mean(dim=(1, 2, 3)) + float(Path("bias.txt").read_text())
"""

WORDS = (
    *("-m", "cfcore.cli", "marginalise", "--out", "found", "--data", "mine.csv", "--do", "sex=0,1"),
    *("--generator", "plugin:generator", "--predictor", "mine=plugin:predictor"),
    *("--columns", "effusion=ill", "patient=id"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with images of 24 pixels, a table with names of its own, and a plug-in."""
    for row in range(4):
        Image.new("L", (24, 24), 50 * row).save(tmp_path / f"{row}.png")
    frame = pd.DataFrame({"image": [f"{row}.png" for row in range(4)], "id": range(4)})
    frame.assign(sex=[0, 1, 0, 1], ill=[0, 0, 1, 1]).to_csv(tmp_path / "mine.csv", index=False)
    (tmp_path / "plugin.py").write_text(PLUGIN)
    (tmp_path / "bias.txt").write_text("1")
    return tmp_path


def shell(folder: Path, *words: str) -> subprocess.CompletedProcess:
    """The command as a user types it, who has not set PYTHONPATH for the plug-in."""
    code = "import sys; sys.path.pop(0); from cfcore.cli import main; sys.exit(main(sys.argv[1:]))"
    given = [sys.executable, "-c", code, *WORDS[2:], *words]
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    return subprocess.run(given, cwd=folder, env=env, capture_output=True, text=True)


def test_from_the_shell_a_file_that_changed_is_found_out_and_images_keep_their_size(
    folder: Path,
) -> None:
    first = shell(folder)
    assert first.returncode == 0, first.stderr
    assert "seen (1, 24, 24) age effusion lung_size race sex" in first.stdout
    y = Predictions.load(folder / "found/mine.safetensors").y
    assert y.tolist() == [0, 0, 1, 1], "the label is the column that was named"

    (folder / "bias.txt").write_text("2")
    second = shell(folder)
    assert second.returncode == 2
    assert "when the shard was made" in second.stderr.splitlines()[-1]


def test_from_the_shell_images_are_resized_when_asked_to(folder: Path) -> None:
    process = shell(folder, "--size", "16")

    assert process.returncode == 0, process.stderr
    assert "seen (1, 16, 16)" in process.stdout


def test_a_fingerprint_is_the_same_in_another_process() -> None:
    code = (
        "import torch, test_resuming as t; from cfcore.fingerprint import fingerprint;"
        "torch.nn.init.zeros_(t.net.weight); torch.nn.init.zeros_(t.net.bias);"
        "print(fingerprint(t.Still(), t.helper, t.Fields(t.linear(1.0), 2.0), {'b', 'a', 'c'}))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    env["PYTHONPATH"] += os.pathsep + str(Path(__file__).parents[2])
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=env | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_a_fingerprint_of_things_that_refer_to_each_other_ends() -> None:
    first: dict[str, object] = {}
    first["itself"] = first

    assert fingerprint(first) == fingerprint(first)
