"""The phantom is frozen: how it looks, and how difficult it is, may not change any more."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from cfbook.study.cohorts import parts, phantom_cohort
from cfbook.study.presets import preset
from cfbook.study.recipes import PredictorRecipe
from cfchest.data import Dataset
from cfchest.phantom import Cohort, Phantom
from cfcore.metrics import auc
from cfscm.networks import ImageNetwork
from cfscm.training import outputs

FROZEN = Path(__file__).parents[2] / "data" / "phantom" / "frozen.safetensors"
BOOK = preset("book")


@pytest.mark.parametrize("hospital", ["C", "M"])
def test_patients_look_as_they_did(hospital: str) -> None:
    cohort = Phantom().sample(6, hospital=hospital, seed=BOOK.cohort)
    frozen = load_file(FROZEN)

    levels = cohort.images[:][:, 0] * 255

    assert (levels - frozen[f"{hospital}.images"].float()).abs().max() <= 0.51
    for name, values in cohort.pa.items():
        torch.testing.assert_close(values, frozen[f"{hospital}.{name}"], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def reader() -> ImageNetwork:
    return PredictorRecipe(BOOK).obtain()


@pytest.fixture(scope="module")
def test_part() -> Dataset:
    return parts("C", BOOK)["test"].take(slice(1500))


@pytest.fixture(scope="module")
def score(reader: ImageNetwork, test_part: Dataset) -> Tensor:
    return outputs(reader, test_part[:]).sigmoid()


def counterfactual(
    reader: ImageNetwork, data: Dataset, do: dict, noise: dict | None = None
) -> Tensor:
    """Scores of the true counterfactuals, perhaps under other noise."""
    cohort: Cohort = phantom_cohort("C", BOOK)
    pa = data.parents
    index = torch.tensor(data.table.image.to_numpy())
    held = {name: value[index] for name, value in cohort.noise.items()} | (noise or {})
    x = cohort.phantom.predict(held, cohort.phantom.act(pa, do))
    return outputs(reader, x).sigmoid()


def test_effusion_is_as_difficult_as_intended(score: Tensor, test_part: Dataset) -> None:
    area = auc(score, test_part.parents["effusion"]).item()

    assert 0.91 <= area <= 0.955


def test_detector_noise_matters_little_beside_sex_and_age(
    reader: ImageNetwork, score: Tensor, test_part: Dataset
) -> None:
    cohort, pa = phantom_cohort("C", BOOK), test_part.parents
    index = torch.tensor(test_part.table.image.to_numpy())
    fresh = {"detector": cohort.noise["detector"][index] + 1}
    older = (pa["age"] + 30).clamp(max=90)
    younger = (pa["age"] - 30).clamp(min=20)

    noise = (counterfactual(reader, test_part, {}, fresh) - score).abs().mean().item()
    moved = [
        (counterfactual(reader, test_part, do) - score).abs().mean().item()
        for do in ({"sex": 1 - pa["sex"]}, {"age": older}, {"age": younger})
    ]

    assert noise <= 0.03
    assert noise <= min(moved) / 3


def test_the_other_sex_changes_the_image_by_21_to_27_decibels(test_part: Dataset) -> None:
    cohort, pa = phantom_cohort("C", BOOK), test_part.parents
    index = torch.tensor(test_part.table.image.to_numpy())
    noise = {name: value[index] for name, value in cohort.noise.items()}
    acted = cohort.phantom.act(pa, {"sex": 1 - pa["sex"]}, effect="total")

    change = cohort.phantom.predict(noise, acted) - test_part[:]
    decibels = -10 * (change**2).mean(dim=(1, 2, 3)).log10()

    assert 21 <= decibels.mean() <= 27


def test_effusion_rises_with_age_by_half_a_logit_in_20_years() -> None:
    pa = Phantom().sample(200_000, hospital="C", seed=BOOK.cohort).pa
    age, label = (pa["age"][:, None] / 20).numpy(), pa["effusion"].numpy()

    slope = LogisticRegression(C=1e6).fit(age, label).coef_.item()

    assert slope == pytest.approx(0.5, abs=0.03)
