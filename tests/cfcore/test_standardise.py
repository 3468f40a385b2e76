"""What is known without counterfactuals, against truths that are known otherwise."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import linprog
from sklearn.linear_model import LinearRegression, LogisticRegression

import cfcore
from cfcore.checks import InputError
from cfcore.graph import CausalGraph, Variable
from cfcore.interventions import Grid
from cfcore.predictions import Predictions
from cfcore.standardise.bounds import flip_bounds, tail_bounds, variance_bounds
from cfcore.standardise.check import check_generator, observed_rows
from cfcore.standardise.estimate import Pool, folds_of, standardise
from cfcore.standardise.laws import law_of_scores, metric_bounds, variance_of_means
from cfcore.standardise.transport import transport

SEXES = {"sex": torch.tensor([0.0, 1.0])}


class Toy:
    """Patients with a sex that goes along with label and size, and true counterfactual logits."""

    def __init__(self, count: int, seed: int = 0, *, bias: float = 0.8) -> None:
        rng = np.random.default_rng(seed)
        self.y = rng.integers(2, size=count)
        self.sex = (rng.random(count) < 0.35 + 0.3 * self.y).astype(float)
        self.size = rng.normal(size=count) + 0.5 * self.sex
        self.noise = rng.normal(size=count) * (0.6 + 0.4 * self.y)
        self.bias = bias

    def logit(self, sex: np.ndarray | float) -> np.ndarray:
        return -1.5 + 2 * self.y + self.bias * sex + 0.4 * self.size + self.noise

    @property
    def predictions(self) -> Predictions:
        worlds = np.stack([self.logit(0.0), self.logit(1.0)], axis=1)
        parents = {"sex": torch.tensor(self.sex), "size": torch.tensor(self.size)}
        given = torch.tensor(self.logit(self.sex)), torch.tensor(worlds), SEXES
        return Predictions(*given, y=torch.tensor(self.y), parents=parents)

    @property
    def pool(self) -> Pool:
        return Pool.from_frame(observed_rows(self.predictions), ["sex"])


def sigmoid(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logit))


@pytest.fixture(scope="module")
def toy() -> Toy:
    return Toy(4000)


def test_means_of_each_world_are_found_and_observed_means_are_not(toy: Toy) -> None:
    score = sigmoid(toy.logit(toy.sex))
    found = standardise(score[:, None], toy.pool, {"sex": np.array([0.0, 1.0])})
    truth = np.array([sigmoid(toy.logit(sex)).mean() for sex in (0.0, 1.0)])
    naive = np.array([score[toy.sex == sex].mean() for sex in (0.0, 1.0)])

    for way in (found.estimate, found.g_formula, found.weighted):
        assert np.abs(way[:, 0] - truth).max() < 4 * found.error().max()
    assert np.abs(naive - truth).max() > 8 * found.error().max()
    assert (found.near == [(toy.sex == 0).sum(), (toy.sex == 1).sum()]).all()
    assert (found.effective < found.near).all()


def test_weights_mend_what_the_regression_cannot_fit() -> None:
    rng = np.random.default_rng(1)
    held = {name: rng.integers(2, size=8000) for name in "abc"}
    three = held["a"] * held["b"] * held["c"]  # products of pairs do not reach it
    sex = (rng.random(8000) < sigmoid(sum(held.values()) * 1.5 - 2.5)).astype(float)
    value = (three * sex)[:, None].astype(float)
    found = standardise(value, Pool({"sex": sex}, held, np.arange(8000)), {"sex": np.array([1.0])})

    truth = three.mean()
    assert abs(found.g_formula[0, 0] - truth) > 0.02
    assert abs(found.estimate[0, 0] - truth) < abs(found.g_formula[0, 0] - truth) / 3
    assert abs(found.weighted[0, 0] - truth) < abs(found.g_formula[0, 0] - truth) / 3


def test_a_number_is_found_at_its_value_not_over_its_window() -> None:
    rng = np.random.default_rng(2)
    age = rng.uniform(20, 90, 6000)
    pool = Pool({"age": age}, {"y": rng.integers(2, size=6000)}, np.arange(6000))
    score = (age / 100) ** 2 + rng.normal(size=6000) * 0.1
    worlds = {"age": np.array([30.0, 60.0, 90.0])}
    found = standardise(score[:, None], pool, worlds)

    window = np.abs(age - 90) < 15
    assert score[window].mean() < 0.81 - 0.1  # nobody is older than 90
    assert np.abs(found.estimate[:, 0] - [0.09, 0.36, 0.81]).max() < 4 * found.error().max()
    assert found.near[2] == window.sum()


def test_another_population_is_reached_by_what_it_holds(toy: Toy) -> None:
    other = Toy(3000, seed=5)
    ill = np.flatnonzero(other.y | (np.random.default_rng(0).random(3000) < 0.3))
    frame = observed_rows(other.predictions).iloc[ill].reset_index(drop=True)
    target = Pool.from_frame(frame, ["sex"], numbers=toy.pool.numbers)
    score = sigmoid(toy.logit(toy.sex))[:, None]
    found = standardise(score, toy.pool, {"sex": np.array([0.0, 1.0])}, target=target)

    truth = np.array([sigmoid(other.logit(sex))[ill].mean() for sex in (0.0, 1.0)])
    assert np.abs(found.estimate[:, 0] - truth).max() < 4 * found.error().max()
    assert np.abs(found.weighted[:, 0] - truth).max() < 4 * found.error().max()


def test_a_patient_twice_is_no_two_patients(toy: Toy) -> None:
    values = sigmoid(toy.logit(toy.sex))[:, None]
    twice = {name: np.repeat(v, 2) for name, v in toy.pool.held.items()}
    pair = Pool({"sex": np.repeat(toy.sex, 2)}, twice, np.repeat(np.arange(4000), 2))
    worlds = {"sex": np.array([0.0, 1.0])}
    once = standardise(values, toy.pool, worlds).error()

    assert standardise(np.repeat(values, 2, axis=0), pair, worlds).error() == pytest.approx(
        once, rel=0.1
    )


def test_doubleml_computes_the_same() -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(2, size=4000)
    sex = (rng.random(4000) < 0.3 + 0.4 * y).astype(float)
    value = 0.2 + 0.3 * y + 0.1 * sex * y + rng.normal(size=4000) * 0.1
    pool = Pool({"sex": sex}, {"y": y}, np.arange(4000))
    ours = standardise(value[:, None], pool, {"sex": np.array([1.0])}, seed=0)
    estimate, error = 0.396216, 0.00403807  # DoubleMLAPO of DoubleML 0.11.4, on the same folds

    assert ours.estimate[0, 0] == pytest.approx(estimate, abs=error / 50)
    by_patient = np.sqrt((ours.influence() ** 2).sum(axis=0))[0, 0]
    assert by_patient == pytest.approx(error, rel=0.01)

    doubleml = pytest.importorskip("doubleml", reason="what it computed was compared, as recorded")
    frame = pd.DataFrame({"value": value, "sex": sex, "y": y})
    data = doubleml.DoubleMLData(frame, "value", "sex", ["y"])
    learners = LinearRegression(), LogisticRegression(max_iter=500)
    theirs = doubleml.DoubleMLAPO(data, *learners, 1, normalize_ipw=True)
    theirs.set_sample_splitting([list(folds_of(pool.patient, 5, 0))])
    theirs.fit()
    assert (theirs.coef[0], theirs.se[0]) == pytest.approx((estimate, error), rel=1e-5)


def test_rows_that_cannot_be_read_are_named(toy: Toy) -> None:
    frame = observed_rows(toy.predictions)
    missing = frame.assign(size=frame["size"].where(frame.index != 7))
    with pytest.raises(InputError, match=r"size.*missing") as caught:
        Pool.from_frame(missing, ["sex"])
    assert "7" in str(caught.value)
    with pytest.raises(InputError, match="no column scanner"):
        Pool.from_frame(frame, ["scanner"])
    with pytest.raises(InputError, match="too few for 5 folds"):
        standardise(
            np.zeros((4, 1)), Pool({"a": np.zeros(4)}, {}, np.arange(4)), {"a": np.zeros(1)}
        )
    with pytest.raises(InputError, match="say the width"):
        standardise(
            np.zeros((4000, 1)),
            Pool({"size": toy.size}, {}, toy.pool.patient),
            {"size": np.zeros(1)},
        )
    with pytest.raises(InputError, match="finite"):
        standardise(np.full((4000, 1), np.nan), toy.pool, {"sex": np.zeros(1)})


def couplings(laws: np.ndarray) -> list[np.ndarray]:
    """All ways to join K laws of U equally likely values, each of shape (U, K)."""
    first, *others = laws
    ways = [list(itertools.permutations(law)) for law in others]
    return [np.column_stack([first, *way]) for way in itertools.product(*ways)]


def variance(worlds: np.ndarray, q: np.ndarray) -> float:
    return float((((worlds - (worlds @ q)[:, None]) ** 2) @ q).mean())


@pytest.mark.parametrize("seed", range(3))
def test_every_coupling_lies_between_the_ends(seed: int) -> None:
    rng = np.random.default_rng(seed)
    laws, q = np.sort(rng.random((3, 4)), axis=1), np.array([0.5, 0.3, 0.2])
    ways = couplings(laws)
    found = [variance(way, q) for way in ways]
    low, high = variance_bounds(laws, q)
    assert low == pytest.approx(min(found)) and max(found) <= high + 1e-12
    two = variance_bounds(laws[:2], np.array([0.5, 0.5]))[1]
    halves = np.array([0.5, 0.5])
    assert two == pytest.approx(max(variance(way, halves) for way in couplings(laws[:2])))

    for alpha in (0.0, 0.25, 0.5):
        tails = [tail(way, q, alpha) for way in ways]
        low, high = tail_bounds(laws, q, alpha)
        assert low == pytest.approx(min(tails)) and max(tails) <= high + 1e-9
    assert tail_bounds(laws, q, 0.0)[1] == pytest.approx(largest_maximum(laws), abs=0.01)  # sharp


def tail(worlds: np.ndarray, q: np.ndarray, alpha: float) -> float:
    """The mean over patients of the tail risk, by Rockafellar and Uryasev's minimum."""
    if not alpha:
        return float(worlds.max(axis=1).mean())
    return float(
        np.mean([min(c + (np.maximum(row - c, 0) @ q) / alpha for c in row) for row in worlds])
    )


def largest_maximum(laws: np.ndarray) -> float:
    """The largest mean of the worst world over all joint laws, by a linear programme."""
    atoms = list(itertools.product(range(laws.shape[1]), repeat=len(laws)))
    cost = [-max(laws[k, u] for k, u in enumerate(atom)) for atom in atoms]
    pairs = itertools.product(range(len(laws)), range(laws.shape[1]))
    rows = [[float(atom[k] == u) for atom in atoms] for k, u in pairs]
    return -linprog(cost, A_eq=rows, b_eq=np.full(len(rows), 1 / laws.shape[1])).fun


def test_flips_lie_between_their_ends_and_reach_them() -> None:
    for mine, theirs in itertools.product(range(5), repeat=2):
        a = np.arange(4) < mine
        flips = [(a != np.array(b)).mean() for b in itertools.permutations(np.arange(4) < theirs)]
        low, high = flip_bounds(np.array(mine / 4), np.array([theirs / 4]))
        assert (low[0], high[0]) == (min(flips), max(flips))


def test_splitting_takes_away_what_noise_adds() -> None:
    rng = np.random.default_rng(0)
    q = np.full(4, 0.25)
    noisy = [
        np.sort(rng.random((500, 4, 40)), axis=-1) for _ in range(2)
    ]  # the same law, four times

    plain = variance_bounds(noisy[0], q)[0].mean()
    split = variance_bounds(noisy[0], q, noisy[1])[0]
    assert plain > 0.002
    assert abs(split.mean()) < 4 * split.std() / 500**0.5


def test_the_law_of_scores_is_that_of_the_counterfactuals(toy: Toy) -> None:
    worlds = {"sex": np.array([0.0, 1.0])}
    laws = law_of_scores(toy.logit(toy.sex), toy.pool, worlds)

    levels = (np.arange(128) + 0.5) / 128
    for law, sex in zip(laws, worlds["sex"], strict=True):
        assert np.abs(law - np.quantile(toy.logit(sex), levels))[8:-8].max() < 0.25
    assert np.abs(laws[0] - np.quantile(toy.logit(toy.sex), levels)).max() > 0.3


def test_the_bounds_hold_the_truth(toy: Toy) -> None:
    worlds, q = {"sex": np.array([0.0, 1.0])}, np.array([0.5, 0.5])
    found = metric_bounds(toy.logit(toy.sex), toy.pool, worlds, q).set_index("metric")
    truth = toy.predictions.evaluate()

    assert list(found.index) == [
        "S_var",
        "S_flip",
        *(f"R_CVaR_{a}" for a in ("0.50", "0.25", "0.10")),
        "R_WC",
    ]
    for name, row in found.iterrows():
        assert row.low_limit <= truth[name] <= row.high_limit, name
        assert row.low_limit < row.low < row.high < row.high_limit, name
    means = variance_of_means(sigmoid(toy.logit(toy.sex)), toy.pool, worlds, q)
    assert 0.7 * truth["S_var"] < means < truth["S_var"]


def test_a_world_without_patients_leaves_the_ends_open(toy: Toy) -> None:
    worlds, q = {"sex": np.array([0.0, 1.0, 2.0])}, np.full(3, 1 / 3)
    found = metric_bounds(toy.logit(toy.sex), toy.pool, worlds, q, replicates=50).set_index(
        "metric"
    )

    assert found.high["R_WC"] == np.inf
    assert found.high["S_flip"] > 1 / 3 and found.high["S_var"] > 2 / 9


@pytest.mark.parametrize("how", ["location-scale", "quantiles"])
def test_transport_moves_every_score_as_the_truth_does(toy: Toy, how: str) -> None:
    moved = transport(observed_rows(toy.predictions), Grid(SEXES), how=how)
    truth = toy.predictions

    assert (moved.logit_cf - truth.logit_cf).abs().mean() < 0.12
    assert (truth.logit_obs[:, None] - truth.logit_cf).abs().mean() > 0.3
    assert moved.evaluate()["S_var"] == pytest.approx(truth.evaluate()["S_var"], rel=0.25)
    with pytest.raises(InputError, match="how must be one of"):
        transport(observed_rows(truth), Grid(SEXES), how="magic")


def test_transport_learns_from_others_and_knows_total_effects(toy: Toy) -> None:
    few = Toy(200, seed=9)
    rows, more = observed_rows(few.predictions), observed_rows(toy.predictions)
    direct = transport(rows, Grid(SEXES), observed=more)
    total = transport(rows, Grid(SEXES), observed=more, follows=["size"])

    gaps = [(one.logit_cf[:, 1] - one.logit_cf[:, 0]).mean().item() for one in (direct, total)]
    assert gaps[0] == pytest.approx(0.8, abs=0.15)
    assert gaps[1] == pytest.approx(0.8 + 0.4 * 0.5, abs=0.15)


def test_transport_may_have_nothing_to_hold(toy: Toy) -> None:
    rows = observed_rows(toy.predictions)[["logit", "sex"]]

    for observed in (None, rows):
        moved = transport(rows, Grid(SEXES), observed=observed)
        assert list(moved.parents) == ["sex"] and moved.y is None
        own = moved.logit_cf.gather(1, moved.parents["sex"].long()[:, None])[:, 0]
        assert torch.allclose(own, moved.logit_obs, atol=1e-6)


def doctored(given: Predictions, logit_cf: torch.Tensor, **facts: object) -> Predictions:
    known = {"y": given.y, "parents": given.parents, "provenance": facts}
    return Predictions(given.logit_obs, logit_cf, given.grid, **known)


def test_the_truth_is_not_refuted_and_errors_are(toy: Toy) -> None:
    truth = toy.predictions
    right = cfcore.check_generator(truth)
    assert right.answer == "not refuted" and "none differs" in str(right)
    assert right.cells["checked"].all() and (right.cells["n"] > 300).all()

    nothing = check_generator(doctored(truth, truth.logit_obs[:, None].repeat(1, 2)))
    assert nothing.answer == "refuted" and str(nothing).startswith("refuted: at sex = ")
    assert (nothing.far["difference"].abs() > nothing.far["error"]).all()
    assert nothing.bounds["drawn"][0] == 0 < nothing.bounds["low_limit"][0]

    swapped = check_generator(doctored(truth, truth.logit_cf.flip(1)))
    assert len(swapped.far) == 4


def test_without_labels_worlds_are_compared_as_a_whole(toy: Toy) -> None:
    truth = replace(toy.predictions, y=None)
    nothing = replace(truth, logit_cf=truth.logit_obs[:, None].repeat(1, 2))
    found = check_generator(nothing)

    assert found.answer == "refuted" and len(found.cells) == 2
    assert str(found).startswith("refuted: at sex = ") and "y =" not in str(found)


def test_more_observed_patients_find_a_smaller_error(toy: Toy) -> None:
    few = Toy(300, seed=3).predictions
    wrong = doctored(few, few.logit_cf + torch.tensor([0.0, 0.15]))
    assert check_generator(wrong).answer == "not refuted"

    sure = check_generator(wrong, observed_rows(Toy(20_000, seed=4).predictions))
    assert sure.answer == "refuted"
    assert set(sure.far["sex"]) == {1.0}


def test_rows_of_two_tables_are_the_same_patient_only_if_both_say_so() -> None:
    few, more = Toy(300, seed=3).predictions, observed_rows(Toy(1000, seed=4).predictions)
    plain = check_generator(few, more).cells["error"]
    named = replace(few, patient=[f"row {i}" for i in range(300)])
    assert check_generator(named, more).cells["error"].equals(plain)

    shared = check_generator(named, more.assign(patient=[f"row {i}" for i in range(1000)]))
    assert not shared.cells["error"].equals(plain)


def test_errors_that_cancel_are_found_within_labels(toy: Toy) -> None:
    truth = toy.predictions
    p = truth.logit_cf.sigmoid()
    sign = torch.where(truth.y == 1, -0.08, 0.08 * toy.y.mean() / (1 - toy.y.mean()))
    found = check_generator(doctored(truth, (p + sign[:, None]).clamp(1e-4, 1 - 1e-4).logit()))

    assert found.answer == "refuted" and len(found.far) == 4


def test_what_nobody_is_like_cannot_be_checked() -> None:
    toy = Toy(400)
    lonely = doctored(toy.predictions, toy.predictions.logit_cf)
    sexes = {"sex": torch.tensor([2.0, 3.0])}
    given = Predictions(
        lonely.logit_obs, lonely.logit_cf, sexes, y=lonely.y, parents=lonely.parents
    )
    found = check_generator(given)

    assert found.answer == "cannot be checked" and "50 observed patients" in str(found)


def test_patients_without_overlap_are_left_out_of_both_sides() -> None:
    toy = Toy(4000)
    alone = np.arange(4000) < 800
    toy.sex[alone] = 0.0  # nobody like these 800 is of the other sex
    parents = {"sex": torch.tensor(toy.sex), "ward": torch.tensor(alone * 1.0)}
    wild = torch.tensor(np.stack([toy.logit(0.0), np.where(alone, 9.0, toy.logit(1.0))], axis=1))
    given = torch.tensor(toy.logit(toy.sex)), wild, SEXES
    found = check_generator(Predictions(*given, y=torch.tensor(toy.y), parents=parents))

    assert found.cells["left_out"][[1, 3]].mean() == pytest.approx(0.2, abs=0.01)
    assert found.cells["difference"].abs().max() < 0.08


def test_total_effects_ask_what_follows(toy: Toy) -> None:
    truth = toy.predictions
    logits = np.stack([toy.logit(s) + 0.2 * (s - toy.sex) for s in (0.0, 1.0)], axis=1)
    total = doctored(truth, torch.tensor(logits), effect="total", label="ill")
    with pytest.raises(InputError, match="total effects"):
        check_generator(total)

    kinds = {"sex": "binary", "size": "continuous", "ill": "binary"}
    variables = [
        Variable(name, kind) if kind == "binary" else Variable(name, kind, range=(-9, 9))
        for name, kind in kinds.items()
    ]
    graph = CausalGraph(variables, {"size": ("sex",)})
    assert check_generator(total, graph=graph).answer == "not refuted"
    assert check_generator(total, follows=["size"]).answer == "not refuted"
    assert check_generator(doctored(truth, truth.logit_cf), follows=["size"]).answer == "refuted"
    with pytest.raises(InputError, match="not identified"):
        later = CausalGraph(variables, {"size": ("sex",), "ill": ("size",)})
        check_generator(total, graph=later)


def test_what_cannot_be_right_is_refused(toy: Toy) -> None:
    truth = toy.predictions
    draws = {"sex": torch.zeros(4000, 2)}
    with pytest.raises(InputError, match="draws"):
        check_generator(Predictions(truth.logit_obs, truth.logit_cf, draws))
    with pytest.raises(InputError, match="lack 'sex'"):
        check_generator(Predictions(truth.logit_obs, truth.logit_cf, SEXES))
    with pytest.raises(InputError, match="no column size among the observed"):
        check_generator(truth, observed_rows(truth).drop(columns="size"))


def test_a_name_of_a_parent_does_not_decide(toy: Toy) -> None:
    renamed = {"sex": toy.predictions.parents["sex"], "weight": toy.predictions.parents["size"]}
    found = check_generator(replace(toy.predictions, parents=renamed))
    assert found.cells.equals(check_generator(toy.predictions).cells)

    for name in ("logit", "y", "patient"):
        with pytest.raises(InputError, match="a meaning of its own"):
            check_generator(replace(toy.predictions, parents=renamed | {name: toy.predictions.y}))
    for name in ("n", "known"):
        grid = {name: toy.predictions.grid["sex"]}
        with pytest.raises(InputError, match="rename it"):
            check_generator(replace(toy.predictions, grid=grid))


def test_codes_that_differ_between_two_tables_are_refused(toy: Toy) -> None:
    few = Toy(300, seed=3)
    dose = torch.tensor(np.where(few.size > 0, 0.1, 0.7), dtype=torch.float32)
    given = replace(few.predictions, parents=dict(few.predictions.parents) | {"dose": dose})
    more = observed_rows(toy.predictions)
    more["dose"] = np.where(toy.size > 0, 0.1, 0.7)  # as wide as numpy has them
    assert check_generator(given, more).answer == "not refuted"

    for name, wrong, told in (
        ("dose", more["dose"] + 1, "use the same codes"),
        ("y", more["y"] + 1, "y"),
        ("sex", more["sex"].map({0.0: "m", 1.0: "f"}), "holds text"),
        ("logit", more["logit"].astype(str), "holds text"),
        ("logit", more["logit"].where(more.index != 7, np.inf), "logit"),
    ):
        with pytest.raises(InputError, match=told):
            check_generator(given, more.assign(**{name: wrong}))
    with pytest.warns(cfcore.ScoreWarning):
        check_generator(given, more.assign(logit=sigmoid(more["logit"])))


def test_few_rows_of_a_label_are_not_compared(toy: Toy) -> None:
    few = Toy(300, seed=6)
    keep = np.flatnonzero((few.y == 0) | (np.cumsum(few.y) <= 2))
    one = few.predictions
    parents = {name: values[keep] for name, values in one.parents.items()}
    given = Predictions(
        one.logit_obs[keep], one.logit_cf[keep], SEXES, y=one.y[keep], parents=parents
    )
    cells = check_generator(given, observed_rows(toy.predictions)).cells

    assert cells[cells.y == 0].checked.all() and not cells[cells.y == 1].checked.any()


def test_images_of_few_patients_are_few_patients() -> None:
    pool = Toy(2000)
    whose = np.arange(2000) % 20
    frame = observed_rows(pool.predictions).assign(patient=whose)
    found = check_generator(Toy(400, seed=1).predictions, frame)

    assert found.answer == "cannot be checked" and found.cells["n"].max() <= 20


def test_what_most_patients_are_not_near_is_not_judged() -> None:
    toy = Toy(4000)
    alone = np.arange(4000) < 3600
    toy.sex[alone] = 0.0
    parents = {"sex": torch.tensor(toy.sex), "ward": torch.tensor(alone * 1.0)}
    logits = np.stack([toy.logit(0.0), np.where(alone, toy.logit(0.0), toy.logit(1.0))], axis=1)
    given = torch.tensor(toy.logit(toy.sex)), torch.tensor(logits), SEXES
    truth = Predictions(*given, y=torch.tensor(toy.y), parents=parents)
    found = check_generator(truth)

    assert (found.cells["checked"] == (found.cells["sex"] == 0)).all()
    assert (found.bounds["low_limit"] <= found.bounds["drawn"]).all()


def test_a_score_that_never_varies_is_not_refuted(toy: Toy) -> None:
    flat = torch.full((4000,), 1.3, dtype=torch.float64)
    given = replace(toy.predictions, logit_obs=flat, logit_cf=flat[:, None].repeat(1, 2))
    assert check_generator(given).answer == "not refuted"


def test_scores_with_two_values_have_right_bounds(toy: Toy) -> None:
    few = {"logit_obs": toy.predictions.logit_obs, "logit_cf": toy.predictions.logit_cf}
    two = {name: torch.where(logits > 0, 3.0, -3.0) for name, logits in few.items()}
    found = check_generator(replace(toy.predictions, **two)).bounds.set_index("metric")

    assert (found.low_limit <= found.drawn).all()
    assert found.low["R_WC"] > 0.5 * found.drawn["R_WC"]


def test_rare_labels_and_worlds_of_no_weight_leave_no_gap() -> None:
    toy = Toy(600)
    toy.y[np.flatnonzero(toy.y)[3:]] = 0
    q = torch.tensor([1.0, 0.0])
    found = check_generator(replace(toy.predictions, q=q))

    assert not found.bounds.isna().any(axis=None)
