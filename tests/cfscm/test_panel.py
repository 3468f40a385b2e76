"""The panel: known distances on scores made by hand, and the file that the chapter reads."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from cfbook.study import faithful, learned
from cfbook.study.presets import preset
from cfcore.checks import InputError
from cfcore.predictions import Predictions
from cfscm.soundness.panel import panel, regret

WHO = {"doing nothing", "mean shift", "autoencoder", "flow 0", "flow 1", "flow, drawn"}
WHO |= {"posterior sampler", "posterior-mean image", "oracle", "transport of scores"}
P = torch.rand(40, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.5 + 0.2
GRID = {"sex": torch.tensor([0.0, 0.0, 1.0, 1.0]), "age": torch.tensor([20.0, 90.0, 20.0, 90.0])}


def said(p: Tensor) -> dict[str, Predictions]:
    return {"basic": Predictions(P[:, 0].logit(), p.logit(), GRID)}


def error(value: float) -> pd.DataFrame:
    row = ("faithfulness", "age", "direct", "score difference", "basic", value)
    other = ("effectiveness", "age", "direct", "error", "age", 10 * value)
    total = ("faithfulness", "age", "total", "score difference", "basic", 99.0)
    columns = ["axiom", "intervention", "effect", "measure", "classifier", "value"]
    return pd.DataFrame([row, other, total], columns=columns)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    flipped = P.flip(0)  # the same laws in every world, by other patients
    scores = {"doing nothing": P[:, :1].expand(-1, 4), "learned": P + 0.1, "sampler": flipped}
    found = {name: said(p) for name, p in (scores | {"oracle": P}).items()}
    errors = {"doing nothing": 0.5, "learned": 0.4, "sampler": 0.1, "oracle": 0.0}
    sound = {name: error(value) for name, value in errors.items()}
    laws = P.logit().T.sort(dim=1).values
    laws[0] = -100.0
    observed = {"basic": laws.numpy()}
    return panel(found, sound, limits={"learned": "sampler"}, observed=observed)


def value(table: pd.DataFrame, generator: str, measure: str, about: str) -> float:
    for name, label in (("generator", generator), ("measure", measure), ("about", about)):
        table = table[table[name] == label]
    return table["value"].item()


@pytest.mark.parametrize("world", ["sex = 0, age = 20", "sex = 1, age = 90"])
def test_a_shift_is_a_distance_and_other_patients_with_the_same_law_are_none(
    table: pd.DataFrame, world: str
) -> None:
    assert value(table, "learned", "law of scores", world) == pytest.approx(0.1)
    assert value(table, "learned", "paired difference", world) == pytest.approx(0.1)
    assert value(table, "sampler", "law of scores", world) == pytest.approx(0)
    shift = [value(table, name, "mean score", world) for name in ("learned", "oracle")]
    assert shift[0] - shift[1] == pytest.approx(0.1)


def test_paired_differences_see_that_the_patients_are_others(table: pd.DataFrame) -> None:
    assert value(table, "sampler", "paired difference", "sex = 0, age = 20") > 0.1
    assert value(table, "oracle", "paired difference", "sex = 0, age = 20") == 0


def test_variance_due_to_an_attribute_is_a_share_of_the_truths(table: pd.DataFrame) -> None:
    shares = [value(table, name, "S_var", "age") for name in ("doing nothing", "learned", "oracle")]

    assert shares == pytest.approx([0, 1, 1])


def test_laws_of_observed_patients_are_compared_by_world(table: pd.DataFrame) -> None:
    first = value(table, "oracle", "law, standardised", "sex = 0, age = 20")
    second = value(table, "oracle", "law, standardised", "sex = 0, age = 90")

    assert first == pytest.approx(P[:, 0].mean().item()) and second == pytest.approx(0, abs=1e-6)
    shift = value(table, "learned", "mean, standardised", "sex = 0, age = 90")
    assert shift == pytest.approx(0.1, abs=1e-6)


def test_regret_is_of_the_direct_error_against_the_limit_that_was_named(
    table: pd.DataFrame,
) -> None:
    assert value(table, "learned", "regret", "age") == pytest.approx((0.4 - 0.1) / (0.5 - 0.1))
    assert value(table, "learned", "error", "age") == pytest.approx(4)
    assert set(table[table.measure == "regret"].generator) == {"learned"}


def test_nothing_to_gain_gives_no_regret() -> None:
    error, limit, nothing = (pd.Series(v) for v in ([0.2, 0.1, 0.1], [0.2, 0.3, 0.0], [0.2] * 3))

    first, second, third = regret(error, limit, nothing)

    assert math.isnan(first) and math.isnan(second) and third == pytest.approx(0.5)


def test_a_limit_that_is_not_there_is_refused() -> None:
    found, sound = {"oracle": said(P)}, {"oracle": error(0)}

    with pytest.raises(InputError, match="'doing nothing', 'ideal'"):
        panel(found, sound, limits={"oracle": "ideal"})


# The files of the project


@pytest.fixture(scope="module")
def kept() -> pd.DataFrame:
    return pd.read_csv(learned.RESULTS / faithful.PANEL)


@pytest.fixture(scope="module")
def targets() -> pd.Series:
    table = pd.read_csv(learned.RESULTS / faithful.TARGETS).fillna({"classifier": ""})
    return table.set_index(["generator", "measure", "about", "classifier"]).sort_index()["estimate"]


def errors_of(kept: pd.DataFrame) -> pd.Series:
    rows = kept[kept.measure == "score error"]
    return rows.set_index(["generator", "about", "classifier"]).sort_index()["value"]


def test_the_kept_panel_is_whole_and_of_the_same_patients(kept: pd.DataFrame) -> None:
    assert set(kept.generator) == WHO and set(kept.patients) == {600} and kept.cohort.nunique() == 1
    one = kept[kept.measure == "law of scores"].groupby(["generator", "classifier"]).size()
    assert len(one) == len(WHO) * 4 and set(one) == {16}
    assert not kept.duplicated(["generator", "classifier", "measure", "about"]).any()
    assert kept["value"].notna().all()


def test_the_kept_regret_follows_from_the_kept_errors(kept: pd.DataFrame) -> None:
    errors = errors_of(kept)
    nothing, ideal = errors["doing nothing"], errors["posterior-mean image"]
    regrets = kept[kept.measure == "regret"]
    regrets = regrets.set_index(["generator", "about", "classifier"]).sort_index()
    for name in ("mean shift", "autoencoder", "flow 0", "flow 1"):
        found = regrets.loc[name, "value"]
        expected = (errors[name] - ideal) / (nothing - ideal)
        assert len(found) == 16
        np.testing.assert_allclose(found, expected.loc[found.index], rtol=1e-3, atol=1e-5)


def test_the_kept_targets_are_those_of_the_panel(kept: pd.DataFrame, targets: pd.Series) -> None:
    errors = errors_of(kept)
    for name in ("mean shift", "flow 1", "flow, drawn"):
        share = targets[name, "share"]
        expected = errors[name] / errors["doing nothing"]
        np.testing.assert_allclose(share, expected.loc[share.index], rtol=1e-3)
    own = kept[kept.measure == "S_var"].set_index(["generator", "about", "classifier"])
    own = own.sort_index()["value"]
    for name in ("autoencoder", "transport of scores", "flow 1"):
        found = targets[name, "S_var"]
        np.testing.assert_allclose(found, own[name].loc[found.index], rtol=1e-3)
    seeds = [name for name in kept.generator.unique() if name.startswith("flow ")]
    flows = pd.concat([targets[name, "share"] for name in seeds], axis=1)
    np.testing.assert_allclose(targets["flow", "share"], flows.mean(axis=1), rtol=1e-3)


def test_a_few_rows_of_the_kept_panel_can_be_computed_again(kept: pd.DataFrame) -> None:
    """Errors of the first flow on the kept patients, through the kept classifier."""
    from cfbook.study.recipes import DetailedRecipe, PredictorRecipe
    from cfchest.data import from_phantom
    from cfchest.graph import CHEST
    from cfchest.phantom import Phantom
    from cfscm.soundness import soundness

    book = preset("book")
    drawn = Phantom(book.size).sample(600, hospital="C", seed=int(kept.cohort.iloc[0]))
    again = soundness(
        DetailedRecipe(book).obtain(),
        from_phantom(drawn),
        graph=CHEST,
        classifiers={},
        audited={"basic": PredictorRecipe(book).obtain()},
        truth=drawn.oracle,
        interventions=("sex", "race", "age", "effusion"),
        axioms=["faithfulness"],
        effects=["direct"],
        beside=(),
    )
    again = again[again.measure == "score difference"].set_index("intervention")["value"]
    rows = errors_of(kept)["flow 0"].xs("basic", level="classifier")
    np.testing.assert_allclose(again, rows.loc[again.index], atol=1e-5)
