"""Many predictors in one file."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cfchest.data import from_phantom
from cfchest.graph import CHEST
from cfchest.offsets import LogitOffset, offset
from cfchest.phantom import Phantom
from cfcore.checks import InputError
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise
from cfcore.predictions import Predictions, load_all, save_all
from cfscm.networks import PredictorConfig, build


@pytest.fixture(scope="module")
def found() -> dict[str, Predictions]:
    """A network and its offsets, really marginalised over a few patients of the phantom."""
    cohort = Phantom(32).sample(12, hospital="C", seed=2027)
    base = build(PredictorConfig("effusion", width=8), graph=CHEST, seed=0).eval()
    readers = {"base": base, "+0.5": LogitOffset(base, 0.5), "+2": LogitOffset(base, 2.0)}
    grid = Grid.product({"sex": [0, 1], "age": [30, 60]})
    return marginalise(cohort.oracle, readers, from_phantom(cohort), grid)


def test_a_bundle_comes_back_as_it_went(found: dict[str, Predictions], tmp_path: Path) -> None:
    back = load_all(save_all(found, tmp_path / "b.safetensors"))

    assert list(back) == list(found)
    for name, given in found.items():
        for part in ("logit_obs", "logit_null", "logit_cf", "q", "y"):
            assert torch.equal(getattr(back[name], part), getattr(given, part))
        assert back[name].patient == given.patient
        assert back[name].provenance == given.provenance
        assert back[name].evaluate() == given.evaluate()


def test_one_predictor_is_a_file_of_many_with_one(
    found: dict[str, Predictions], tmp_path: Path
) -> None:
    single = found["base"].save(tmp_path / "single.safetensors")
    both = save_all(found, tmp_path / "b.safetensors")

    (back,) = load_all(single).values()

    assert torch.equal(back.logit_cf, found["base"].logit_cf)
    with pytest.raises(InputError, match=r"b\.safetensors: there are 3 predictors in it"):
        Predictions.load(both)


def test_a_bundle_is_the_same_bytes_every_time(
    found: dict[str, Predictions], tmp_path: Path
) -> None:
    first = save_all(found, tmp_path / "a.safetensors").read_bytes()
    assert save_all(found, tmp_path / "b.safetensors").read_bytes() == first


@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_an_offset_is_derived_as_if_it_had_been_run(
    beta: float, found: dict[str, Predictions]
) -> None:
    derived, run = offset(found["base"], beta), found[f"+{beta:g}"]

    for part in ("logit_obs", "logit_null", "logit_cf"):
        ours, theirs = getattr(derived, part).float(), getattr(run, part)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": [0.4, 0.2, 0.2, 0.2]}, "probabilities of worlds"),
        ({"grid": {"sex": torch.zeros(4), "age": torch.zeros(4)}}, "another grid"),
        ({"y": torch.zeros(12, dtype=torch.long)}, "labels"),
        ({"patient": [str(i) for i in range(12)]}, "about"),
        ({"logit_null": None}, "different generators"),
        ({"parents": {"sex": torch.zeros(12)}}, "another parents"),
    ],
)
def test_predictions_about_other_things_are_refused(
    change: dict, message: str, found: dict[str, Predictions], tmp_path: Path
) -> None:
    other = replace(found["+2"], **change)
    with pytest.raises(InputError, match=message):
        save_all({"base": found["base"], "other": other}, tmp_path / "b.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_damaged_bundle_is_named(found: dict[str, Predictions], tmp_path: Path) -> None:
    path = save_all(found, tmp_path / "b.safetensors")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"b\.safetensors"):
        load_all(path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_all(tmp_path / "nowhere.safetensors")
    with pytest.raises(InputError, match="needs a predictor"):
        save_all({}, tmp_path / "empty.safetensors")


def test_half_precision_takes_half_the_space_and_keeps_three_digits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    many = Predictions(torch.randn(400) * 3, torch.randn(400, 16) * 3, {"sex": torch.arange(16.0)})
    paths = [save_all({"g": many}, tmp_path / f"{half}.st", half=half) for half in (False, True)]
    whole, rounded = (load_all(path)["g"] for path in paths)
    assert rounded.logit_cf.dtype == torch.float32
    torch.testing.assert_close(rounded.logit_cf, whole.logit_cf, rtol=5e-4, atol=1e-6)
    assert paths[1].stat().st_size < 0.6 * paths[0].stat().st_size
    for name, value in whole.evaluate().items():
        assert rounded.evaluate()[name] == pytest.approx(value, abs=2e-4, rel=2e-3), name


def test_a_null_intervention_that_changes_nothing_takes_no_space(tmp_path: Path) -> None:
    torch.manual_seed(0)
    observed, worlds = torch.randn(400), torch.randn(400, 2)
    grid, sizes = {"sex": torch.tensor([0.0, 1.0])}, {}
    for change in (0.0, 0.1):
        given = Predictions(observed, worlds, grid, logit_null=observed + change)
        path = save_all({"g": given}, tmp_path / f"{change}.st", half=True)
        back = load_all(path)["g"]
        assert torch.equal(back.logit_null, (observed + change).half().float())
        sizes[change] = path.stat().st_size
    assert sizes[0.1] - sizes[0.0] > 2 * len(observed)
