"""Laws of readings: the truth agrees with observed patients, doing nothing does not."""

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from cfchest.data import from_phantom
from cfchest.graph import CHEST
from cfchest.phantom import Phantom
from cfcore.checks import InputError
from cfcore.generator import counterfactuals
from cfscm.soundness import interventions_of
from cfscm.soundness.baselines import Identity, MeanShift
from cfscm.soundness.laws import laws_table

NAMES = ("sex", "race", "age", "lung_size", "effusion")
TRIED = ("sex", "age", "effusion")
COHORT = Phantom(16).sample(600, hospital="C", seed=5)
DATA, OTHERS = (
    from_phantom(cohort) for cohort in (COHORT, Phantom(16).sample(20_000, hospital="C", seed=6))
)


class _Brightness(nn.Module):
    """Reads how bright a part of the image is, as a logit."""

    variable = CHEST["effusion"]

    def __init__(self, rows: slice, columns: slice) -> None:
        super().__init__()
        self.part = (slice(None), 0, rows, columns)

    def forward(self, x: Tensor) -> Tensor:
        return 4 * (x[self.part].mean(dim=(1, 2)) - 0.5)


READERS = {
    "whole": _Brightness(slice(None), slice(None)),
    "low": _Brightness(slice(9, 13), slice(None)),
}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    generators = {
        "oracle": COHORT.oracle,
        "nothing": Identity(COHORT.oracle),
        "mean": MeanShift.fit(CHEST, NAMES, OTHERS),
    }
    asked = interventions_of(DATA.parents, TRIED, graph=CHEST)
    terms = {"graph": CHEST, "interventions": asked, "label": "effusion"}
    found = laws_table(generators, DATA, OTHERS, READERS, **terms)
    return found.set_index(["measure", "generator", "intervention", "reader"]).sort_index()


@pytest.mark.parametrize("do", TRIED)
@pytest.mark.parametrize("reader", READERS)
def test_true_counterfactuals_move_as_observed_patients_differ(
    table: pd.DataFrame, do: str, reader: str
) -> None:
    slope = table.loc["slope"]["value"]

    assert slope["oracle", do, reader] == pytest.approx(1, abs=0.25)
    assert slope["nothing", do, reader] == 0
    if do != "age":  # a shift of the mean image is right for what is nearly linear in the image
        assert slope["mean", do, reader] == pytest.approx(slope["oracle", do, reader], abs=0.25)


def test_true_counterfactuals_have_the_law_of_observed_patients(table: pd.DataFrame) -> None:
    law = table.loc["law"]

    for (do, reader), floor in law.loc["oracle"]["floor"].items():
        assert law["value"]["oracle", do, reader] < 2 * floor
    assert law["value"]["nothing", "sex", "low"] > 2 * law["floor"]["nothing", "sex", "low"]


def test_doing_nothing_moves_nothing(table: pd.DataFrame) -> None:
    assert (table.loc["moved"]["value"].loc["nothing"] == 0).all()
    assert (table.loc["moved"]["value"].loc["oracle"] > 0).all()


def test_patients_without_a_match_are_named() -> None:
    few = OTHERS.take(range(20))

    with pytest.raises(InputError, match="fewer than 6 observed patients have"):
        laws_table({"a": COHORT.oracle}, DATA, few, READERS, graph=CHEST)
    with pytest.raises(InputError, match="have no 'site'"):
        laws_table({"a": COHORT.oracle}, DATA, few, READERS, graph=CHEST, label="site")


def test_the_mean_shift_moves_every_patient_by_the_same_attenuation() -> None:
    shift, x, pa = MeanShift.fit(CHEST, NAMES, OTHERS), DATA[:20], DATA.parents
    pa = {name: values[:20] for name, values in pa.items()}
    same = {name: torch.full_like(values, values[0].item()) for name, values in pa.items()}

    again = counterfactuals(shift, x, pa, {})
    moved = shift.scale.apply(counterfactuals(shift, x, same, {"sex": 1 - same["sex"]}))
    change = (moved - shift.scale.apply(x))[:, 0, 4:12, 4:12]

    assert torch.allclose(again, x, atol=1e-5)
    assert torch.allclose(change, change[:1].expand_as(change), atol=0.02)
