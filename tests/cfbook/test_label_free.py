"""Stability with the label hidden from the generator too."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from cfbook.study import missing_labels
from cfbook.study.cohorts import parts
from cfbook.study.learned import _ESTIMATES, LABEL_FREE, RESULTS
from cfbook.study.presets import preset
from cfbook.study.recipes import GeneratorRecipe, PredictorRecipe
from cfbook.study.runs import KEYS
from cfchest.graph import CHEST, paper_grid
from cfcore.cli import main
from cfcore.marginalise import marginalise
from cfscm.networks import ImageNetwork, PredictorConfig, build

SMOKE = replace(preset("smoke"), trainings=1)


def test_a_guess_stands_in_for_the_label_and_the_label_is_not_used() -> None:
    data = parts("C", SMOKE)["test"].take(range(12))
    hidden = data.select(data.table.assign(effusion=torch.nan))
    guessed = data.select(data.table.assign(effusion=1.0))
    model = GeneratorRecipe(SMOKE).untrained()
    guessing = missing_labels._Guessing(model, guess=lambda x: torch.ones(len(x)))
    reader = {"g": build(PredictorConfig("effusion", width=8), graph=CHEST, seed=0).eval()}

    def said(generator: object, rows: object) -> torch.Tensor:
        return marginalise(generator, reader, rows, paper_grid())["g"].logit_cf

    assert torch.equal(said(guessing, hidden), said(model, guessed))
    assert torch.equal(said(guessing, data), said(model, data))
    assert not torch.equal(said(model, data), said(model, guessed))
    assert missing_labels._share_right(guessing, hidden, data) == data.table.effusion.mean()


def untrained_reader(recipe: PredictorRecipe) -> ImageNetwork:
    return build(recipe.preset.network, graph=CHEST, seed=0).eval()


def test_the_table_keeps_other_presets_and_shows_all_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PredictorRecipe, "obtain", untrained_reader)
    pd.DataFrame({"preset": ["other", "smoke"], "labels": "old"}).to_csv(
        tmp_path / LABEL_FREE, index=False
    )
    words = ["missing", "--preset", "smoke", "--part", "label-free", "--out", str(tmp_path)]
    assert main(words) == 0

    table = pd.read_csv(tmp_path / LABEL_FREE)
    assert table.preset.value_counts().to_dict() == {"other": 1, "smoke": 63}
    assert table.labels.nunique() == 4
    assert table[table.preset == "smoke"].groupby(KEYS)["score_sex"].nunique().eq(1).all()


def test_the_kept_table_is_of_the_generator_and_predictors_of_the_experiments() -> None:
    """With recorded labels it repeats the estimates, but for rounding to half precision."""
    table = pd.read_csv(RESULTS / LABEL_FREE)
    ours = table[(table.preset == "book") & (table.labels == "recorded")].set_index(KEYS)
    known = pd.read_csv(RESULTS / _ESTIMATES).query(
        "generator == 'detailed-0' and setting == 'C->C' and testset == 'balanced'"
        " and effect == 'direct' and q == 'uniform'"
    )
    gap = (
        ours[missing_labels._RESPONSES]
        - known.set_index(KEYS).loc[ours.index, missing_labels._RESPONSES]
    )

    assert len(ours) == 55 and gap.abs().max(axis=None) < 2e-5


def test_the_claim_is_summed_up_by_source_of_the_label() -> None:
    found = missing_labels.label_free_table().set_index(["preset", "labels"])
    table = pd.read_csv(RESULTS / LABEL_FREE).set_index(["preset", "labels"])
    healthy = table.loc[("book", "everybody taken for healthy")]
    recorded = table.loc[("book", "recorded")]

    r = torch.corrcoef(
        torch.tensor([(healthy.S_var_age**0.5).tolist(), healthy.score_age.tolist()])
    )
    assert found.loc[("book", "everybody taken for healthy"), "r_age"] == pytest.approx(
        r[0, 1].item()
    )
    moved = healthy.S_var_age.to_numpy() / recorded.S_var_age.to_numpy() - 1
    assert found.loc[("book", "everybody taken for healthy"), "moved_age"] == pytest.approx(
        100 * moved[abs(moved).argmax()]
    )
    assert found.loc[("book", "recorded"), ["moved_sex", "moved_age"]].eq(0).all()
