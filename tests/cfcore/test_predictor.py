"""What users pass to marginalise: predictors, labels, effects, devices and interventions."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from cfchest.data import Dataset
from cfchest.graph import CHEST
from cfchest.offsets import LogitOffset
from cfcore import InputError
from cfcore.generator import Parents
from cfcore.graph import CausalGraph, Variable
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise
from cfcore.patients import Patients
from cfscm.networks import PredictorConfig, build

GRID = Grid.product({"sex": [0, 1]})
N = 12


class Shaded:
    """A generator that explains the mean of each sex, and holds the rest as a residual."""

    def abduct(
        self, x: Tensor, pa: Parents, *, index: Tensor | None = None, rng: object = None
    ) -> dict[str, Tensor]:
        return {"residual": x - self.mean(pa)}

    def predict(self, noise: dict[str, Tensor], pa: Parents) -> Tensor:
        return self.mean(pa) + noise["residual"]

    def mean(self, pa: Parents) -> Tensor:
        return 0.4 + 0.2 * pa["sex"][:, None, None, None]


class Acting(Shaded):
    def act(self, pa: Parents, do: Parents, *, effect: str) -> Parents:
        return {**pa, **do}


def logit(x: Tensor, pa: Parents) -> Tensor:
    return 20 * (x.mean(dim=(1, 2, 3)) - 0.5)


def head(outputs: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs)).eval()


@pytest.fixture
def data() -> Dataset:
    people = pd.DataFrame({"patient": range(N), "sex": [0, 1] * 6, "age": 50})
    people = people.assign(effusion=[0, 0, 1, 1] * 3, enlarged_heart=[1, 0, 0] * 4)
    return Dataset(people, torch.rand(N, 8, 8, generator=torch.Generator().manual_seed(0)))


def run(data: Dataset, predictor: object, generator: object = None, **options: object):  # noqa: ANN201
    given = {"mine": predictor}
    return marginalise(generator or Shaded(), given, data, GRID, **options)["mine"]


# Predictors


def test_a_plain_module_and_one_with_a_column_of_logits_work(data: Dataset) -> None:
    network = head(1)
    expected = run(data, lambda x, pa: network(x).squeeze(1))

    assert torch.equal(run(data, network).logit_cf, expected.logit_cf)
    assert torch.equal(run(data, lambda x, pa: network(x)).logit_cf, expected.logit_cf)


def test_an_option_of_a_module_is_not_taken_for_the_parents(data: Dataset) -> None:
    class Optional(nn.Module):
        def forward(self, x: Tensor, negate: bool = False) -> Tensor:
            return -logit(x, {}) if negate else logit(x, {})

    assert torch.equal(run(data, Optional()).logit_cf, run(data, logit).logit_cf)


def test_a_network_in_training_mode_drops_nothing_out_and_is_given_back_as_it_was(
    data: Dataset,
) -> None:
    torch.manual_seed(0)  # by chance all logits may lie in [0, 1], which gives a warning
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 1))
    network[2].eval()

    first, second = run(data, network), run(data, network)

    assert torch.equal(first.logit_cf, second.logit_cf)
    assert [part.training for part in network] == [True, True, False]


@pytest.mark.parametrize(
    ("predictor", "message"),
    [
        (head(14), r"predictor 'mine' gives a tensor of shape \(\d+, 14\) for \d+ images, not one"),
        (lambda x, pa: logit(x, pa)[:1], r"predictor 'mine' gives a tensor of shape \(1,\)"),
        (lambda x, pa: np.zeros(len(x)), "predictor 'mine' gives a ndarray, not a tensor"),
        (
            lambda x: x,
            r"predictor 'mine' must take images and parents: wrap it, lambda x, pa: mine",
        ),
        (None, "predictor 'mine' is a NoneType, not a function"),
    ],
)
def test_a_predictor_that_cannot_be_used_is_named(
    predictor: object, message: str, data: Dataset
) -> None:
    with pytest.raises(InputError, match=message):
        run(data, predictor)


@pytest.mark.parametrize(
    ("predictors", "message"),
    [
        ({}, "there are no predictors"),
        (logit, r'by name, \{"mine": predictor\}, not as a function'),
    ],
)
def test_predictors_come_by_name(predictors: object, message: str, data: Dataset) -> None:
    with pytest.raises(InputError, match=message):
        marginalise(Shaded(), predictors, data, GRID)


def test_weights_of_patients_count_in_the_metrics() -> None:
    images, labels = torch.rand(3, 1, 8, 8), {"ill": [0, 1, 1]}
    data = Patients(images, {"sex": [0, 1, 1]}, labels, weight=[2, 1, 0])
    again = Patients(images[[0, 0, 1]], {"sex": [0, 0, 1]}, {"ill": [0, 0, 1]})

    weighted, repeated = run(data, logit), run(again, logit)

    metrics = ["R_IE", "S_var", "ECE_marg", "abs_rank_change"]
    found = weighted.evaluate(metrics=metrics)
    assert found == pytest.approx(repeated.evaluate(metrics=metrics))


# Effects, devices, interventions


@pytest.mark.parametrize("generator", [Shaded(), Acting()], ids=["without act", "with act"])
def test_a_misspelt_effect_is_refused(generator: Shaded, data: Dataset) -> None:
    with pytest.raises(InputError, match="effect: is 'direct' or 'total', not 'indirect'"):
        run(data, logit, generator, effect="indirect")


def test_a_device_that_is_not_there_is_refused(data: Dataset) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InputError, match="device: 'cuda' cannot be used here"):
        run(data, logit, device="cuda")


def test_an_intervention_on_what_is_not_recorded_is_refused(data: Dataset) -> None:
    graph = CausalGraph([Variable("view", "binary")], {})
    grid = Grid.product({"view": [0, 1]}, graph=graph)

    with pytest.raises(
        InputError, match=r"grid\.view: the data have no such parent, only sex, age"
    ):
        marginalise(Shaded(), {"mine": logit}, data, grid)


def test_an_intervention_on_what_nobody_has_recorded_is_refused(data: Dataset) -> None:
    for column, message in (
        ([float("nan")] * N, "grid.age: the data have no such parent, only sex, effusion"),
        ([50.0] * (N - 1) + [float("nan")], r"age\[11\]: .*age of 1 row; the first .* '11'"),
    ):
        rows = Dataset(data.table.assign(age=column), data[:])
        with pytest.raises(InputError, match=message):
            marginalise(Shaded(), {"mine": logit}, rows, Grid.product({"age": [30, 80]}))


class Smaller(Shaded):
    """Draws images of half the size."""

    def predict(self, noise: dict[str, Tensor], pa: Parents) -> Tensor:
        return super().predict(noise, pa)[..., ::2, ::2]


class Wrong(Shaded):
    """A generator that draws one image too few."""

    def predict(self, noise: dict[str, Tensor], pa: Parents) -> Tensor:
        return super().predict(noise, pa)[1:]


@pytest.mark.parametrize(
    ("generator", "message"),
    [
        (object(), r"generator: object has no method abduct\(\)"),
        (Shaded, r"generator: is the class Shaded; make one"),
        (Wrong(), r"Wrong.predict\(\) gives \(\d+, 1, 8, 8\) for \d+ rows"),
        (Smaller(), r"Smaller.predict\(\) draws \(1, 4, 4\) for images of \(1, 8, 8\)"),
    ],
)
def test_a_generator_that_cannot_be_used_is_named(
    generator: object, message: str, data: Dataset
) -> None:
    with pytest.raises(InputError, match=message):
        marginalise(generator, {"mine": logit}, data, GRID)


def test_a_predictor_that_fails_is_named_with_what_it_was_shown(data: Dataset) -> None:
    network = nn.Conv2d(3, 1, 8)

    with pytest.raises(
        InputError, match=r"predictor 'mine' fails on \(\d+, 1, 8, 8\): RuntimeError"
    ):
        run(data, network)


@pytest.mark.parametrize(("name", "value"), [("data", {}), ("grid", {"sex": [0, 1]})])
def test_data_and_grid_are_what_they_are_called(name: str, value: object, data: Dataset) -> None:
    given = {"data": data, "grid": GRID} | {name: value}

    with pytest.raises(InputError, match=rf"{name}: must be a (Patients|Grid), not a dict"):
        marginalise(Shaded(), {"mine": logit}, **given)


# Labels


def test_a_predictor_of_another_variable_is_refused_unless_its_labels_are_passed(
    data: Dataset,
) -> None:
    reader = build(PredictorConfig("sex"), graph=CHEST, seed=0).eval()

    def saying(x: Tensor, pa: Parents) -> Tensor:
        return logit(x, pa)

    saying.variable = "sex"
    for predictor in (reader, LogitOffset(reader, 1.0), saying):
        with pytest.raises(InputError, match="'mine' predicts 'sex', but would be judged by 'effu"):
            run(data, predictor)

    given = run(data, reader, labels={"mine": "sex"})
    assert given.y.tolist() == [0, 1] * 6
    assert given.provenance["label"] == "sex"


def test_every_predictor_is_judged_by_its_own_labels(data: Dataset) -> None:
    given = marginalise(
        Shaded(),
        {"eff": logit, "card": logit, "array": logit, "none": logit},
        data,
        GRID,
        labels={"card": "enlarged_heart", "array": np.ones(N), "none": None},
    )

    assert given["eff"].y.tolist() == [0, 0, 1, 1] * 3
    assert given["card"].y.tolist() == [1, 0, 0] * 4
    assert given["array"].y.tolist() == [1] * N
    assert given["none"].y is None
    assert [p.provenance["label"] for p in given.values()] == [
        "effusion",
        "enlarged_heart",
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("sex", "labels: are given by predictor"),
        ({"other": "sex"}, "labels: there is no predictor 'other'"),
        ({"mine": "edema"}, r"labels\['mine'\]: the data have no column 'edema'"),
        ({"mine": [0, 1]}, r"labels\['mine'\]: has 2 rows, but there are 12"),
        ({"mine": "age"}, r"labels\['mine'\]\[0\]: 50 is not a label, 0 or 1"),
    ],
)
def test_labels_that_cannot_be_right_are_refused(labels: dict, message: str, data: Dataset) -> None:
    with pytest.raises(InputError, match=message):
        run(data, logit, labels=labels)


def two_labels(x: Tensor, pa: Parents) -> Tensor:
    return torch.stack((logit(x, pa), -logit(x, pa)), dim=1)


@pytest.fixture
def several(data: Dataset) -> Patients:
    ill = {"ill": [0, 1] * 6, "worse": [0, 0, 1] * 4}
    return Patients(data[:], {"sex": data.parents["sex"]}, ill)


def test_a_predictor_of_several_labels_is_decoded_once_and_keyed_by_them(
    several: Patients, tmp_path: Path
) -> None:
    seen = []

    def watched(x: Tensor, pa: Parents) -> Tensor:
        seen.append(len(x))
        return two_labels(x, pa)

    given = {"both": watched, "one": logit}
    found = marginalise(Shaded(), given, several, GRID, labels={"one": "worse"})

    assert list(found) == ["both:ill", "both:worse", "one"]
    assert sum(seen) == N * (3 + len(GRID))
    assert torch.equal(found["both:worse"].logit_cf, -found["one"].logit_cf)
    assert torch.equal(found["both:worse"].y, found["one"].y)
    assert found["both:ill"].y.tolist() == [0, 1] * 6
    named = marginalise(Shaded(), {"b": two_labels}, several, GRID, labels={"b": ["worse", "sex"]})
    assert named["b:sex"].provenance["outputs"] == ["worse", "sex"]
    marginalise(Shaded(), {"b": two_labels}, several, GRID, resume_dir=tmp_path)
    with pytest.raises(InputError, match="another job: predictors changed"):
        given = {"labels": {"b": ["worse", "ill"]}, "resume_dir": tmp_path}
        marginalise(Shaded(), {"b": two_labels}, several, GRID, **given)


@pytest.mark.parametrize(
    ("predictor", "labels", "message"),
    [
        (logit, None, r"'mine' gives .* \(\d+,\) .* not one for each of 2 labels; .*labels="),
        (two_labels, {"mine": "ill"}, r"'mine' gives .* \(\d+, 2\) .* not one logit for each; cho"),
        (two_labels, {"mine": ["ill", "ill"]}, r"labels\['mine'\]: a label is named twice"),
        (head(3), None, r"shape \(\d+, 3\) for \d+ images, not one for each of 2 labels"),
        (
            build(PredictorConfig("sex"), graph=CHEST, seed=0),
            None,
            "predicts 'sex', but .* 'ill' and 'worse'",
        ),
    ],
)
def test_outputs_that_are_not_the_labels_are_refused(
    predictor: object, labels: dict | None, message: str, several: Patients
) -> None:
    with pytest.raises(InputError, match=message):
        run(several, predictor, labels=labels)


class Following(Shaded):
    """A generator whose total effect carries the sex over to everything else."""

    def act(self, pa: Parents, do: Parents, *, effect: str) -> Parents:
        return {name: do.get(name, do["sex"] if effect == "total" else pa[name]) for name in pa}


def test_a_label_is_held_under_the_total_effect_unless_it_is_intervened_on(data: Dataset) -> None:
    def ill(x: Tensor, pa: Parents) -> Tensor:
        return pa["effusion"] + 10 * pa["age"]

    held = run(data, ill, Following(), effect="total")
    own = data.labels["effusion"][:, None]
    assert torch.equal(held.logit_cf, own + 10 * GRID.values["sex"])

    grid = Grid.product({"sex": [1], "effusion": [1]})
    given = marginalise(Following(), {"mine": ill}, data, grid, effect="total")["mine"]
    assert given.logit_cf.unique().tolist() == [11]


# The floor


def test_a_held_residual_makes_the_floor_zero_and_the_figure_without_it_tells(
    data: Dataset,
) -> None:
    given = run(data, logit)
    floor = given.floor()

    assert floor["by_construction"] is True
    assert floor["D_abs"] < 1e-6
    mean = logit(Shaded().mean(data.parents), {})  # all that the generator explains
    torch.testing.assert_close(given.logit_decoded, mean, rtol=1e-5, atol=1e-5)
    change = given.logit_obs.double().sigmoid() - mean.double().sigmoid()
    assert floor["D_abs_decoded"] == pytest.approx(change.abs().mean().item(), abs=1e-6)
    assert floor["D_abs_decoded"] > 0.01


def test_predictions_keep_what_was_decoded_without_the_residual(
    data: Dataset, tmp_path: Path
) -> None:
    given = run(data, logit)

    again = type(given).load(given.save(tmp_path / "p.safetensors"))

    assert torch.equal(again.logit_decoded, given.logit_decoded)
