"""Designs of generators are tried without the truth, and then beside it once."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from cfbook.study.cohorts import parts
from cfbook.study.designs import _variants, collect_designs
from cfbook.study.faithful import collect_fresh
from cfbook.study.presets import preset
from cfbook.study.recipes import DetailedRecipe, probes
from cfcore.checks import InputError


def test_each_design_changes_something() -> None:
    made = _variants(preset("book"))

    assert len({(design.recipe.file, design.change) for design in made.values()}) == len(made)
    first = made["autoencoder, training patients"].recipe
    assert first.file.startswith("book-learned-C-seed0-81f3c89e68")


def test_flows_are_tried_on_the_autoencoder_of_the_whole_training(tmp_path: Path) -> None:
    small, names = preset("smoke"), ["flow", "flow, sex at no level", "autoencoder, code held"]
    table = pd.read_csv(collect_designs(small, tmp_path, only=names, patients=60))

    made = _variants(small)
    images = [made[name].recipe.obtain().image for name in ("flow", "flow, whole training")]
    coders = [dict(image.first.named_parameters()) for image in images]
    assert all(torch.equal(value, coders[1][name]) for name, value in coders[0].items())
    assert torch.equal(*(image.means for image in images)) and images[0].means.abs().sum() > 0
    assert not torch.equal(*(image.flow.denoiser.out.weight for image in images))
    read = table[(table.intervention == "sex") & (table.measure == "moved")]
    read = read.pivot(index="design", columns="reader", values="value")
    assert (read.loc["flow"] != read.loc["flow, sex at no level"]).all()


def test_designs_are_tried_once_and_added_to_the_table(tmp_path: Path) -> None:
    small = preset("smoke")
    names = ["doing nothing", "mean shift"]
    first = pd.read_csv(collect_designs(small, tmp_path, only=names[:1], patients=60))
    both = pd.read_csv(collect_designs(small, tmp_path, only=names[1:], patients=60))

    assert list(dict.fromkeys(both.design)) == names
    pd.testing.assert_frame_equal(both[both.design == names[0]][first.columns], first)
    found = both.set_index(["design", "measure", "intervention", "reader"])["value"].sort_index()
    assert (found["doing nothing", "slope"] == 0).all()
    law = (found[name, "law"]["sex", "sex"] for name in names)
    assert next(law) > 1.5 * next(law), "a mean shift changes the sex that is read"


def test_an_unknown_design_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="design must be one of doing nothing, mean shift"):
        collect_designs(preset("smoke"), tmp_path, only=["magic"])


def test_the_truth_is_looked_at_on_patients_drawn_anew(tmp_path: Path) -> None:
    terms = {"cohort": 99, "seeds": [0], "patients": 24, "draws": 2, "replicates": 50}
    table, targets = map(pd.read_csv, collect_fresh(preset("smoke"), tmp_path, **terms))
    found = table[table.classifier == "basic"].set_index(["generator", "measure", "about"])
    found = found["value"].sort_index()

    assert (found["oracle", "score error"] < 1e-6).all()
    assert np.allclose(found["oracle", "S_var"], 1)
    assert np.allclose(found["doing nothing", "S_var"], 0)
    for name in ("mean shift", "autoencoder", "flow 0", "flow, drawn"):
        assert found[name, "regret"].notna().any() and (found[name, "S_var"] > 0).all()
    drawn, mean = (found[name, "score error"] for name in ("flow, drawn", "flow 0"))
    assert not np.allclose(drawn, mean)
    for name in ("transport of scores", "oracle"):
        assert found[name, "S_flip", "all worlds"] > 0 and found[name, "R_IE", "all worlds"] > 0

    targets = targets.set_index(["generator", "measure", "classifier", "about"]).sort_index()
    assert (targets.low <= targets.high).all() or targets.low.isna().any()
    assert np.allclose(targets.loc["oracle", "share"].estimate, 0, atol=1e-6)
    assert np.allclose(targets.loc["doing nothing", "gain"].estimate, 0)
    assert np.allclose(targets.loc["oracle", "S_var"].estimate, 1)
    for about in ("sex", "age"):
        by_hand = found["flow 0", "S_var", about]
        told = targets.loc[("flow 0", "S_var", "basic", about), "estimate"]
        assert told == pytest.approx(by_hand, rel=1e-4)
    errors = (found[name, "score error", "sex"] for name in ("flow 0", "doing nothing"))
    told = targets.loc[("flow 0", "share", "basic", "sex"), "estimate"]
    assert told == pytest.approx(next(errors) / next(errors), rel=1e-4)


def test_the_committed_flow_draws_disease() -> None:
    book = preset("book")
    data, strong = parts("C", book)["validation"].take(range(300, 340)), probes(book)["effusion"]
    x, pa, reader = data[:], data.parents, strong.obtain()
    ill, model = 1 - pa["effusion"], DetailedRecipe(book).obtain()
    with torch.inference_mode():
        noise = model.abduct(x, pa)
        assert torch.allclose(model.predict(noise, pa), x, atol=1e-4)
        out = reader(model.predict(noise, {**pa, "effusion": ill}), pa)
    assert ((out > 0) == ill.bool()).double().mean() > 0.6  # the autoencoder alone: a third
