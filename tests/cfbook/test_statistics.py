"""Statistics of several predictors, by two routes each."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score

from cfbook.study import runs, statistics
from cfbook.study.orders import transitions
from cfbook.study.presets import preset
from cfbook.study.runs import BETAS, STRENGTHS, PredictorId
from cfbook.study.statistics import (
    Study,
    effective_number,
    inverse_weights,
    mean_score,
    reweighted,
    study_predictions,
    worst_worlds,
)
from cfbook.study.tables import rivals
from cfbook.theory import estimators
from cfchest.graph import paper_grid
from cfcore import metrics
from cfcore.predictions import Predictions

N, REPLICATES = 240, 40
STANDARD = ("R_orig", "R_IE", "R_WC", "ECE_marg", "S_var", "S_flip", "S_rank", "tau_b")


def made_up(member: PredictorId, bias: float) -> Predictions:
    """Scores that know the label, and answer to sex by ``bias`` and to age a little."""
    people = np.random.default_rng(5)
    y = people.random(N) < 0.35
    sex, age = people.integers(2, size=N), people.uniform(20, 90, N)
    race = people.integers(3, size=N)
    own = np.random.default_rng(100 + member.seed).normal(scale=1.2, size=N)
    grid = paper_grid()
    score = 2.5 * y - 1.5 + own + 0.3 * people.normal(size=N)

    def respond(s: np.ndarray, a: np.ndarray) -> np.ndarray:
        return bias * s + 0.01 * (a - 55)

    worlds = respond(grid.values["sex"].numpy(), grid.values["age"].numpy())
    observed = score + respond(sex, age)
    return Predictions(
        logit_obs=torch.tensor(observed),
        logit_null=torch.tensor(observed),
        logit_cf=torch.tensor(score[:, None] + worlds),
        grid=grid.values,
        y=torch.tensor(y.astype(int)),
        parents={
            "sex": torch.tensor(sex),
            "age": torch.tensor(age),
            "race": torch.tensor(race),
        },
        patient=list(range(N)),
    )


@pytest.fixture(scope="module")
def given() -> dict[PredictorId, Predictions]:
    kinds = [("basic", 0.0, 0.0), ("sex", 0.8, 1.0)]
    members = {PredictorId(f, s, seed): bias for f, s, bias in kinds for seed in range(3)}
    return {member: made_up(member, bias) for member, bias in members.items()}


@pytest.fixture(scope="module")
def found(given: dict[PredictorId, Predictions]) -> Study:
    return study_predictions(given, replicates=REPLICATES, rank_replicates=10)


def resampled(given: Predictions, which: int) -> Predictions:
    """The patients of one replicate, drawn as the bootstrap draws them."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(N, size=(REPLICATES, N))[which]
    rows = torch.from_numpy(np.sort(drawn))
    return replace(
        given,
        **{
            name: getattr(given, name)[rows]
            for name in ("logit_obs", "logit_null", "logit_cf", "y")
        },
        parents={name: values[rows] for name, values in given.parents.items()},
        patient=None,
    )


@pytest.mark.parametrize("name", STANDARD)
@pytest.mark.parametrize("which", [0, 7])
def test_a_replicate_is_the_metric_of_resampled_patients(
    name: str, which: int, given: dict[PredictorId, Predictions], found: Study
) -> None:
    for i, predictions in enumerate(given.values()):
        again = resampled(predictions, which).evaluate()[name]
        assert found.values[name][i, 1 + which] == pytest.approx(again, rel=1e-9)
        assert found.values[name][i, 0] == pytest.approx(predictions.evaluate()[name], rel=1e-9)


def test_areas_are_those_of_scikit_learn(
    given: dict[PredictorId, Predictions], found: Study
) -> None:
    for i, predictions in enumerate(given.values()):
        for column, rows in ((0, predictions), (4, resampled(predictions, 3))):
            y, score, sex = rows.y.numpy(), rows.logit_obs.numpy(), rows.parents["sex"].numpy()
            by_sex = [roc_auc_score(y[sex == s], score[sex == s]) for s in (0, 1)]
            assert found.values["AUC"][i, column] == pytest.approx(roc_auc_score(y, score))
            assert found.values["AUC_women"][i, column] == pytest.approx(by_sex[1])
            assert found.values["gap_sex"][i, column] == pytest.approx(abs(np.subtract(*by_sex)))


def test_calibration_in_the_target_population_pools_all_worlds(
    given: dict[PredictorId, Predictions], found: Study
) -> None:
    for i, rows in enumerate(given.values()):
        p, y = rows.logit_cf.sigmoid(), rows.y[:, None].expand(-1, 16)
        pooled = metrics.expected_calibration_error(p.flatten(), y.flatten(), 10)
        assert found.values["ECE_q"][i, 0] == pytest.approx(pooled.item())


def test_attributes_and_interaction_add_up_to_the_variance(found: Study) -> None:
    parts = [found.values[f"S_var_{name}"][:, 0] for name in ("sex", "age")]
    rest = found.values["S_var"][:, 0] - sum(parts)
    assert (rest > -1e-12).all() and (rest < parts[1]).all()


def test_an_attribute_that_is_ignored_has_no_variance(found: Study) -> None:
    assert found.column("S_var_sex", "basic").max() < 1e-20
    assert (found.column("S_var_sex", "sex", 0.8) > 1e-3).all()


def test_subgroup_variances_agree_with_the_estimators(
    given: dict[PredictorId, Predictions], found: Study
) -> None:
    rows = next(iter(given.values()))
    nearest = paper_grid().nearest({name: rows.parents[name] for name in ("sex", "age")})
    p, observed = rows.logit_cf.sigmoid(), rows.logit_obs.sigmoid()
    ratios = [
        estimators.counterfactual_mean(p[:, k]).variance
        / estimators.observational_mean(observed, nearest == k).variance
        for k in range(16)
        if (nearest == k).sum() >= 10
    ]
    assert found.values["variance_ratio"][0, 0] == pytest.approx(max(ratios).item())


def test_score_gaps_are_within_a_label(given: dict[PredictorId, Predictions], found: Study) -> None:
    rows = list(given.values())[-1]
    score, sex, y = rows.logit_obs.sigmoid(), rows.parents["sex"], rows.y
    gaps = [
        score[(sex == 1) & (y == label)].mean() - score[(sex == 0) & (y == label)].mean()
        for label in (0, 1)
    ]
    assert found.values["score_sex"][-1, 0] == pytest.approx(abs(sum(gaps).item() / 2))


def cell_means(rows: Predictions, group: torch.Tensor, groups: int) -> float:
    """The mean loss of each group within a label, averaged over groups, then over patients."""
    loss, total = metrics.cross_entropy_from_logits(rows.logit_obs, rows.y), 0.0
    for label in (0, 1):
        cells = [loss[(rows.y == label) & (group == k)].mean() for k in range(groups)]
        total += (rows.y == label).double().mean() * sum(cells) / groups
    return total.item()


def test_the_weighted_risk_is_a_mean_of_cell_means(
    given: dict[PredictorId, Predictions], found: Study
) -> None:
    for i, rows in enumerate(given.values()):
        for column, some in ((0, rows), (4, resampled(rows, 3))):
            age = some.parents["age"]
            thirds = (age >= 45).long() + (age > 65).long()
            by_sex = cell_means(some, some.parents["sex"], 2)
            assert found.values["R_w_sex"][i, column] == pytest.approx(by_sex)
            assert found.values["R_w_age"][i, column] == pytest.approx(cell_means(some, thirds, 3))


def test_the_weighted_risk_is_the_mean_under_inverse_weights(rng: torch.Generator) -> None:
    y, group = (torch.randint(high, (300,), generator=rng) for high in (2, 3))
    weight = torch.randint(4, (20, 300), generator=rng).double()
    weight[0, (y == 1) & (group == 2)] = 0  # in this sample nobody of the group is ill
    loss = torch.rand(300, generator=rng).double()

    found = statistics._weighted_risk(loss, y, group, 3, weight)
    own = inverse_weights(group, y, 3, weight)

    assert found[0].isnan()
    torch.testing.assert_close(found[1:], mean_score(own, loss)[1:])


def test_inverse_weights_by_hand() -> None:
    sex, y = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 0, 0, 0, 1, 1])
    assert inverse_weights(sex, y).isnan().all()  # no man is ill

    sex[5] = 0
    weight = inverse_weights(sex, y)
    assert weight.tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2, 1, 1])
    assert effective_number(weight) == pytest.approx(36 / (4 / 3 + 4 + 2))
    thirds = inverse_weights(
        torch.tensor([0, 1, 2, 0, 1, 2, 2]), torch.tensor([0] * 3 + [1] * 4), 3
    )
    assert thirds.tolist() == pytest.approx([1, 1, 1, 4 / 3, 4 / 3, 2 / 3, 2 / 3])

    # Of two samples, the second has no healthy woman; the first has the ill man twice.
    drawn = torch.tensor([[1, 1, 1, 1, 1, 2], [1, 1, 2, 0, 1, 1]]).double()
    first, second = inverse_weights(sex, y, 2, drawn)
    assert first.tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2, 3 / 2, 2 * 3 / 4])
    assert second.isnan().all()


def test_each_patient_has_one_worst_world(given: dict[PredictorId, Predictions]) -> None:
    rows = given[PredictorId("sex", 0.8, 0)]  # answers to sex by 1 and to age by 0.7 at most
    share = worst_worlds(rows)

    # The ill lose most as young men, the healthy as old women.
    ends = [(rows.grid["sex"] == s) & (rows.grid["age"] == a) for s, a in ((0, 20), (1, 90))]
    ill = rows.y.double().mean().item()
    assert [share[end].item() for end in ends] == pytest.approx([ill, 1 - ill])


def test_a_supported_q_is_that_of_the_worlds_with_patients(
    given: dict[PredictorId, Predictions],
) -> None:
    rows = next(iter(given.values()))
    counts = torch.bincount(paper_grid().near(rows.parents), minlength=16)
    cut = next(iter(reweighted(given, "supported").values()))

    assert 0 < (counts < 8).sum() < 16  # 3 % of 240 patients are 7.2
    assert torch.equal(cut.q > 0, counts >= 8) and cut.q[cut.q > 0].unique().numel() == 1


@pytest.mark.parametrize(("setting", "steps", "worth"), [("C->C", 6.0, 292), ("M->M", 6.0, 344)])
def test_the_front_page_tells_how_often_the_weighted_risk_rises(
    setting: str, steps: float, worth: int
) -> None:
    given = runs.predictions(runs.Run(preset("book"), setting, "shares-sex"))
    risks, observed = {}, {}
    for member, p in given.items():
        frame = pd.DataFrame({"y": p.y, "sex": p.parents["sex"], "logit": p.logit_obs.double()})
        frame["loss"] = np.logaddexp(0, -np.where(frame.y == 1, 1, -1) * frame.logit)
        by_label = frame.groupby(["y", "sex"]).loss.mean().groupby("y").mean()
        risks[member] = (by_label * frame.y.value_counts(normalize=True)).sum()
        observed[member] = frame.loss.mean()

    def rises(values: dict[PredictorId, float]) -> float:
        chains = [("logit", BETAS), ("sex", STRENGTHS)]
        kinds = [[("basic", 0.0), *((family, s) for s in own)] for family, own in chains]
        return sum(
            values[PredictorId(*after, seed)] > values[PredictorId(*before, seed)]
            for seed in range(5) for chain in kinds for before, after in pairwise(chain)
        ) / 5  # fmt: skip

    found = transitions(study_predictions(given, replicates=2), "R_w_sex", ["logit", "sex"])
    assert found[:, 0].mean() == pytest.approx(rises(risks)) == pytest.approx(steps)
    assert rises(observed) < 2
    first = next(iter(given.values()))
    weight = inverse_weights(first.parents["sex"], first.y)
    assert round(effective_number(weight)) == worth


def test_rivals_count_the_steps_of_each_chain_by_its_attribute() -> None:
    kinds = [("basic", 0.0), *((f, s) for f in ("sex", "age") for s in (0.8, 0.9, 0.95))]
    kinds += [("logit", beta) for beta in (0.5, 1.0, 2.0)]
    members = tuple(PredictorId(*kind, seed) for kind in kinds for seed in (0, 1))
    rise = np.array([member.strength for member in members])
    of_age = np.array([member.family == "age" for member in members])
    names = ("R_orig", "R_IE", "S_var")
    values = dict.fromkeys(names, rise) | {"score_sex": -rise, "score_age": -rise}
    values |= {f"{name}_sex": np.where(of_age, -1, rise) for name in ("R_w", "S_var")}
    values |= {f"{name}_age": np.where(of_age, rise, 0) for name in ("R_w", "S_var")}
    one = Study(members, {name: np.tile(v[:, None], 4) for name, v in values.items()})
    table = rivals({"sex": one, "age": one})

    assert table.loc["weighted risk"].tolist() == [
        "labels",
        "6.00",
        "3.00",
        "9.00 [9.0, 9.0]",
    ]
    assert table.loc["score gap", ["sex", "both"]].tolist() == ["0.00", "0.00 [0.0, 0.0]"]
    assert list(table.columns) == ["needs", "sex", "age", "both"]


def test_a_training_is_left_out_whole(found: Study) -> None:
    fewer = found.without(1)

    assert fewer.seeds == [0, 2] and len(fewer.members) == 4
    for name in found.values:
        both = found.column(name, "sex", 0.8)[[0, 2], :1]
        assert np.array_equal(fewer.column(name, "sex", 0.8), both, equal_nan=True)


def test_the_interval_of_the_mean_holds_patients_and_trainings(found: Study) -> None:
    row = found.summary().set_index(["metric", "family"]).loc["R_orig", "basic"]
    values = found.column("R_orig", "basic")

    low, high = np.quantile(values.mean(axis=0)[1:], [0.025, 0.975])  # of patients
    reach = stats.t.ppf(0.975, 2) * values[:, 0].std(ddof=1) / 3**0.5  # of trainings
    mean = values[:, 0].mean()
    assert row.low == pytest.approx(mean - np.hypot(mean - low, reach))
    assert row.high == pytest.approx(mean + np.hypot(high - mean, reach))


def test_of_one_training_the_interval_is_that_of_its_patients(
    given: dict[PredictorId, Predictions],
) -> None:
    member = next(iter(given))
    one = {member: given[member]}
    alone = study_predictions(one, replicates=REPLICATES, rank_replicates=10).summary()

    plain = given[member].bootstrap(replicates=REPLICATES, rank_replicates=10).set_index("metric")
    ends = alone.set_index("metric").loc[plain.index, ["low", "high"]]
    np.testing.assert_allclose(ends, plain[["low", "high"]], rtol=1e-9)
    assert alone.spread.isna().all()
    assert set(alone.metric) == set(study_predictions(one, replicates=2).values)


def test_studies_and_reports_take_the_bias_of_resampling_off_alike(found: Study) -> None:
    summary = found.summary().set_index(["metric", "family"])
    values = found.column("ECE_orig", "basic").mean(axis=0)

    # Resampled errors are larger; the interval lies on the other side of the estimate.
    assert values[1:].mean() > values[0]
    row = summary.loc["ECE_orig", "basic"]
    assert (row.low + row.high) / 2 < values[0]
