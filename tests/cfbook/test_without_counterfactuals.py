"""The studies of what is known without counterfactuals, in miniature, and what their tables say."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from cfbook.study.learned import RESULTS
from cfbook.study.presets import preset
from cfbook.study.runs import BETAS
from cfbook.study.without_counterfactuals import bank as banks
from cfbook.study.without_counterfactuals import coverage, refuted, size, strengths
from cfbook.study.without_counterfactuals.bank import Bank
from cfchest.graph import paper_grid
from cfchest.offsets import offset

NAMES = [f"{name} seed 0" for name in ("basic 0", "sex 0.8", "sex 0.95", "age 0.95")]
SLOPES = np.array([[0.1, 0.5, 2.0, 0.1], [0.1, 0.1, 0.1, 1.0]])  # of sex and of age


def toy(count: int = 6_000, known: int = 3_000) -> Bank:
    """A bank without images: logits are linear in the parents, with noise of each patient."""
    rng = np.random.default_rng(0)
    sex, age = rng.integers(2, size=count) * 1.0, rng.uniform(20, 90, count)
    y = (rng.random(count) < 0.2 + 0.004 * age) * 1.0
    lung, race = 0.3 - 0.02 * sex + 0.02 * rng.standard_normal(count), rng.integers(3, size=count)
    parents = {"sex": sex, "age": age, "race": race * 1.0, "lung_size": lung, "y": y}
    table = pd.DataFrame({**parents, "patient": np.arange(count).astype(str)})
    own = (2 * y - 1)[:, None] + 10 * (lung - 0.3)[:, None] + rng.standard_normal((count, 4))
    worlds = {name: values.numpy() for name, values in paper_grid().values.items()}
    moved = [np.stack([values[..., None] for values in (s, (a - 55) / 35)]) for s, a in
             ((sex, age), (worlds["sex"], worlds["age"]))]  # fmt: skip
    observed, effect = (np.einsum("avi,ap->vp", each, SLOPES) for each in moved)
    oracle = (own[:, None] + effect)[:known]
    return Bank(table, NAMES, own + observed, {"oracle": oracle, "learned": oracle}, paper_grid())


@pytest.fixture(scope="module")
def bank() -> Bank:
    """One for all tests."""
    return toy()


def test_a_bank_is_filled_and_read_back(tmp_path: Path) -> None:
    small = replace(preset("smoke"), patients=20)
    banks.fill_bank(small, most=20, folder=tmp_path)
    banks.fill_observed(small, count=30, folder=tmp_path)

    found = banks.read_bank(tmp_path)

    assert len(found) == 50
    assert found.count("oracle") == found.count("wrong graph") == 20
    # The oracle's own world is the observed image; drawing twice no difference changes nothing.
    gap = {name: np.abs(found.logits(name) - found.observed[:20, None]) for name in found.made}
    assert (gap["overdrawn"].mean() > 1.2 * gap["oracle"].mean()) and gap["wrong graph"].max() > 0
    assert np.array_equal(found.logits("nothing", np.array([3]))[0, 5], found.observed[3])


def test_true_risks_are_of_the_population_of_the_strength(bank: Bank) -> None:
    known = bank.first(bank.count("oracle"))
    agree = (known.table.sex == known.table.y).to_numpy()
    losses = known.losses(known.logits("oracle")).mean(axis=1)

    assert strengths._true_risks(known, 0.0, NAMES)[0] == pytest.approx(losses.mean(axis=0))
    assert strengths._true_risks(known, 1.0, NAMES)[0] == pytest.approx(losses[agree].mean(axis=0))


def test_estimates_without_counterfactuals_find_what_the_observed_risk_misses(bank: Bank) -> None:
    made, effective = strengths.simulate_cell(bank, 0.8, 1_500, replicates=3)
    table = strengths.cell_table(bank, 0.8, 1_500, made, effective)

    found = table[table.ages == "40 to 80"].pivot(
        index="predictor", columns="estimator", values="bias"
    )

    assert found.observed["sex 0.95"] < -0.2
    assert (found[["IPW", "AIPW", "transport", "oracle"]].abs().max(axis=1) < 0.1).all()
    assert table[table.estimator == "AIPW"].effective.between(50, 1_500).all()


def test_an_expectation_holds_fails_or_stays_open() -> None:
    rows = [("sex 0.8", "all", 0.8, n, "IPW", "observed", 1.0) for n in (250, 500)]
    ratios = pd.DataFrame(
        rows, columns=["predictor", "ages", "strength", "N", "winner", "loser", "ratio"]
    )
    expected = [strengths.Expected("IPW", "observed", ("sex 0.8",), (0.8,), (250, 500))]
    ends = {"holds": ([0.2, 0.3], [0.9, 0.8]), "fails": ([0.2, 1.1], [0.9, 1.2])}
    ends["undecided"] = [0.2, 0.3], [0.9, 1.2]

    for verdict, (low, high) in ends.items():
        found = strengths.judge(ratios.assign(low=low, high=high), expected)
        assert found.verdict.tolist() == [verdict]


def test_intervals_and_bounds_hold_the_truth_of_a_toy(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "TRIED", (NAMES[2],))
    sizes = {"test": 800, "pool": 2_000}
    rows = [one for number in range(3) for one in coverage.interval_rows(bank, number, **sizes)]
    bounds = [
        one for number in range(1) for one in coverage.bound_rows(bank, number, NAMES[2], **sizes)
    ]

    found = coverage.covered_shares(pd.DataFrame(rows))
    assert (found.covered * found.sets).sum() / found.sets.sum() > 0.75
    assert pd.DataFrame(bounds).covered.all()


def test_nearly_all_right_generators_of_a_toy_pass(bank: Bank) -> None:
    how = {"test": 800, "pool": 2_500}
    gens = ["oracle", "nothing"]
    rows = [one for number in range(3) for one in size.set_answers(bank, number, gens, **how)]

    found = size.shares(pd.DataFrame(rows)).set_index(["generator", "predictor"]).refuted

    assert found["oracle"].sum() <= 2  # of 12
    assert found["nothing", "sex 0.95"] == found["nothing", "age 0.95"] == 3


def read(name: str) -> pd.DataFrame:
    """A table that comes with the project."""
    return pd.read_csv(RESULTS / name)


def test_the_oracle_is_refuted_no_more_often_than_a_right_test_would() -> None:
    table = read("without_size.csv")

    assert set(table.sets) == {200}
    assert len(table) == 7 and table.refuted.max() <= 16


def test_doing_nothing_and_overdrawing_are_refuted_nearly_always() -> None:
    table = read("without_power.csv").set_index(["generator", "predictor"]).share

    assert table[["nothing", "overdrawn"]].min() >= 0.9
    assert table["learned", "age 0.95"] < 0.2 < 0.4 < table["learned", "sex 0.95"]


def test_every_stored_verdict_of_the_contest_follows_from_its_ratios() -> None:
    found, kept = strengths.judge(read("without_ratios.csv")), read("without_verdicts.csv")

    assert found.verdict.tolist() == kept.verdict.tolist()
    assert found.cells.tolist() == kept.cells.tolist()
    parts = read("without_strengths.csv")[["bias", "se", "rmse"]].to_numpy() ** 2
    share = (strengths._REPLICATES - 1) / strengths._REPLICATES
    assert parts[:, 2] == pytest.approx(parts[:, 0] + share * parts[:, 1], abs=1e-4, rel=1e-3)


def test_the_kept_example_is_of_patients_of_the_tables() -> None:
    made, observed = banks.read_example()

    assert list(made) == ["oracle", "learned"] and list(made["oracle"]) == list(observed)
    one, other = (made[name]["age 0.95 seed 0"] for name in made)
    assert one.logit_obs.equal(other.logit_obs) and not one.logit_cf.equal(other.logit_cf)
    assert len(one) == 1_000 and len(observed["basic 0 seed 0"]) == 8_000


def test_offsets_of_the_first_predictor_join_a_bank(bank: Bank) -> None:
    more = refuted._with_offsets(bank)
    rows = np.arange(20)
    said = more.predictions("oracle", rows, more.predictors[-1])
    base = bank.predictions("oracle", rows, bank.predictors[0])

    other = offset(base, BETAS[-1])
    assert len(more.predictors) == len(bank.predictors) + 3
    assert torch.allclose(said.logit_cf.double(), other.logit_cf, atol=1e-5)
    assert torch.allclose(said.logit_obs.double(), other.logit_obs, atol=1e-5)


def test_generators_are_refuted_on_patients_of_their_own(tmp_path: Path) -> None:
    sizes = {"patients": 300, "observed": 700, "sets": 2, "test": 250, "pool": 600}
    path = refuted.collect_refuted(preset("smoke"), tmp_path, cohort=98, seeds=[0], **sizes)

    found = pd.read_csv(path)
    assert set(found.generator) == {"oracle", "autoencoder", "flow 0"}
    assert found.groupby("generator").predictor.nunique().eq(10).all()
    assert found.share.between(0, 1).all() and (found.sets == 2).all()
