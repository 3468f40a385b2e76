"""Marginalising over patients of whom something was not recorded."""

import logging

import pytest
import torch

from cfchest.cohorts import mask_labels
from cfchest.data import Dataset, from_phantom
from cfchest.graph import CHEST
from cfchest.phantom import Phantom
from cfcore.checks import InputError
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise
from cfscm.image import ImageConfig, ImageMechanism
from cfscm.inference import InferenceConfig
from cfscm.model import DeepSCM

GRID = Grid.product({"sex": [0, 1], "age": [30.0, 60.0]})


def darkness(x: torch.Tensor, pa: dict[str, torch.Tensor]) -> torch.Tensor:
    return -x.mean(dim=(1, 2, 3)) + 0.1 * pa["race"] + 0.01 * pa["effusion"]


def model(*, imputing: bool) -> DeepSCM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        image = ImageMechanism(ImageConfig(size=32, widths=(8, 8), latents=(0, 0), code=4))
        inference = InferenceConfig(width=4) if imputing else None
        return DeepSCM(image, graph=CHEST, target="effusion", inference=inference).eval()


@pytest.fixture(scope="module")
def data() -> Dataset:
    return from_phantom(Phantom(32).sample(30, hospital="C", seed=2027))


@pytest.fixture(scope="module")
def masked(data: Dataset) -> Dataset:
    return data.select(mask_labels(data.table, 0.6, seed=9))


def test_missing_parents_are_imputed_and_counted(
    data: Dataset, masked: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    generator = model(imputing=True)
    with caplog.at_level(logging.INFO, logger="cfcore"):
        ours = marginalise(generator, {"g": darkness}, masked, GRID)["g"]

    assert ours.provenance["imputed"] == dict.fromkeys(generator.names, 12)
    assert "sex of 12 rows" in caplog.text
    assert ours.logit_cf.isfinite().all() and ours.y is None
    assert ours.parents["sex"].isnan().sum() == 12

    filled = generator.impute(masked[:], {n: masked.parents[n] for n in generator.names})
    table = data.table.assign(**{name: values.numpy() for name, values in filled.items()})
    given = marginalise(generator, {"g": darkness}, data.select(table), GRID)["g"]
    assert "imputed" not in given.provenance
    assert torch.allclose(ours.logit_cf, given.logit_cf, atol=1e-6)


def test_what_is_recorded_is_not_touched(data: Dataset, masked: Dataset) -> None:
    whole, partly = (
        marginalise(model(imputing=True), {"g": darkness}, rows, GRID)["g"].logit_cf
        for rows in (data, masked)
    )
    same = masked.table[list(model(imputing=True).names)].notna().all(axis=1)

    same = torch.tensor(same.tolist())
    assert same.any() and not same.all()
    assert torch.equal(whole[same], partly[same])
    assert not torch.allclose(whole[~same], partly[~same])


def test_a_generator_that_cannot_impute_says_what_is_missing(masked: Dataset) -> None:
    with pytest.raises(InputError, match=r"sex of 12 rows.*patient 'C.*' ?\).*DeepSCM cannot imp"):
        marginalise(model(imputing=False), {"g": darkness}, masked, GRID)
