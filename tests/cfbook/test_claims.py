"""The claims: their design, their tests, their verdicts."""

import subprocess
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import yaml

from cfbook.figures import ladders
from cfbook.paths import data_file
from cfbook.printed_tables import METRICS, published
from cfbook.study import claims, orders, settings, tables
from cfbook.study.presets import preset
from cfbook.study.runs import SETTINGS, PredictorId, Run
from cfbook.study.statistics import MEAN_AGES, Study
from cfcore.checks import InputError

STATISTICS = (
    *METRICS["risk"], *METRICS["calibration"], *METRICS["stability"],
    "D_abs", "S_var_sex", "S_var_age", "AUC", "AUC_men", "AUC_women", "gap_sex", "gap_race",
    "gap_age", "gap_coin", "score_sex", "score_age", "R_w_sex", "R_w_age", "ECE_q", "null_abs",
    "variance_ratio", "variance_women", "variance_everyone", "null_flip", "marginal_accuracy",
    *(f"{name}_{age}" for name in ("mean", "ill") for age in MEAN_AGES),
    *(f"mean_{age}_{label}" for age in MEAN_AGES for label in ("ill", "well")),
)  # fmt: skip
LADDERS = [(family, s) for family, strengths in orders.LADDERS.items() for s in strengths]
KINDS = [("basic", 0.0), *LADDERS, *tables._CONTROLS]
TRAININGS = 5


def made_up(response: dict[str, float], *, noise: float = 0.01) -> Study:
    """Statistics that rise with the bias at a given rate; rate 0 by default."""
    rng = np.random.default_rng(0)
    members = tuple(PredictorId(*kind, seed) for kind in KINDS for seed in range(TRAININGS))
    bias = np.array([0 if "control" in m.family else m.strength for m in members])
    jitter = noise * rng.normal(size=(len(members), 101))
    values = {
        name: 9 + response.get(name, 0.0) * bias[:, None] + jitter[rng.permutation(len(members))]
        for name in STATISTICS
    }
    return Study(members, values)


def everywhere(study: Study) -> dict[tuple[str, str, str], Study]:
    return {
        (name, testset, effect): study
        for name, setting in SETTINGS.items()
        for testset in (setting.testset, *setting.shared)
        for effect in ("direct", "total", "observed", "hidden")
    }


def rows(study: Study, claim: str) -> pd.DataFrame:
    return claims.verdicts(everywhere(study), only=claim)


def primary(study: Study, claim: str) -> pd.Series:
    return rows(study, claim).query("primary").iloc[0]


def test_every_claim_says_what_is_tested_and_by_which_test() -> None:
    read = claims.read_design()
    needed = {"id", "where", "says", "estimand", "primary", "also", "threshold", "margin"}
    for claim in read["claims"]:
        assert claim["test"] in claims._TESTS
        assert needed | {"attainable", "control"} <= claim.keys(), claim["id"]
        assert {"setting", *claim["primary"]} == claim["primary"].keys()
    assert len({claim["id"] for claim in read["claims"]}) == len(read["claims"])
    assert set(read["design"]["settings"]) == set(SETTINGS)
    assert {claim["test"] for claim in read["claims"]} == set(claims._TESTS)
    assert set(read["design"]["verdicts"]) == set(claims.VERDICTS)


def test_the_design_is_that_of_its_first_commit() -> None:
    now = claims.read_design()
    call = ["git", "show", f"{now['first_commit']}:data/claims_v2.yml"]
    shown = subprocess.run(call, cwd=data_file("paper"), capture_output=True, text=True)
    if shown.returncode:
        pytest.skip("the history of the project is not here")
    first = yaml.safe_load(shown.stdout)
    assert first["design"] == now["design"]
    added = {"when", "so_what"}
    for before, claim in zip(first["claims"], now["claims"], strict=True):
        assert before == {key: claim[key] for key in claim if key not in added}, claim["id"]


def test_the_first_version_stays_readable() -> None:
    first = claims.read_design(data_file("claims_v1.yml"))
    found = pd.read_csv(data_file("results/claims_v1.csv"))
    assert {claim["id"] for claim in first["claims"]} == set(found.claim) and len(found) == 120


def test_every_claim_has_one_primary_test_and_every_test_a_verdict() -> None:
    found = claims.verdicts(everywhere(made_up({})))
    assert found.groupby("claim").primary.sum().eq(1).all()
    assert found.verdict.isin(claims.VERDICTS).all()
    assert set(found.claim) == {claim["id"] for claim in claims.read_design()["claims"]}
    assert not found.duplicated(["claim", "setting", "item"]).any()


def test_risks_that_follow_the_bias_are_supported() -> None:
    good = primary(made_up({"R_IE": 1.0, "R_orig": -1.0}), "risk-order")
    assert good.estimate == pytest.approx(2) and good.verdict == "supported"
    assert good.attainable == pytest.approx(2)
    bad = primary(made_up({"R_IE": -1.0, "R_orig": 1.0}), "risk-order")
    assert bad.estimate == pytest.approx(-2) and bad.verdict == "not supported"


def test_two_metrics_at_the_ceiling_tie() -> None:
    both = primary(made_up({"R_IE": 1.0, "R_orig": 1.0}, noise=1e-6), "risk-order")
    assert both.estimate == 0 and both.attainable == 0 and both.verdict == "tie"


def test_a_falling_rank_stability_follows_the_bias() -> None:
    found = rows(made_up({"S_rank": -1.0}), "stability-order")
    assert (found[found["item"] == "S_rank"].estimate > 0.9).all()


def test_noise_alone_supports_nothing() -> None:
    found = claims.verdicts(everywhere(made_up({}, noise=1.0)))
    order = found[found.claim.isin(["risk-order", "calibration-order", "stability-gaps"])]
    assert (order.verdict != "supported").mean() > 0.9
    primary = found[found.primary & ~found.claim.isin(["null-floor", "unbiased-mean"])]
    assert (primary.verdict == "supported").sum() == 0


def test_a_step_that_falls_is_found_among_all_and_pays_for_the_search() -> None:
    study = made_up({"R_orig": 1.0}, noise=1e-4)
    assert primary(study, "observed-risk-errs").verdict == "not supported"
    at = [i for i, m in enumerate(study.members) if (m.family, m.strength) == ("sex", 0.6)]
    study.values["R_orig"][at] -= 0.5
    fell = primary(study, "observed-risk-errs")
    assert fell.verdict == "supported" and fell.estimate == pytest.approx(-0.3, abs=0.01)


def test_exposure_asks_how_many_without_bias_are_exceeded() -> None:
    found = primary(made_up({"S_var_sex": 10.0}), "exposes-bias")
    assert found.estimate == pytest.approx(0.5, abs=0.3) and found.attainable < 0.8
    assert abs(found.control) < 0.5
    share = claims.worse_pairs(made_up({"S_var_sex": 1.0, "S_var_age": 1.0}), "S_var_{}")
    assert (share == 1).all()
    assert 0.2 < claims.worse_pairs(made_up({}), "gap_{}").mean() < 0.8


def test_the_weaker_half_of_a_claim_decides() -> None:
    assert primary(made_up({"R_orig": -1.0, "R_IE": 1.0}), "blind-spot").verdict == "supported"
    half = primary(made_up({"R_orig": 1.0, "R_IE": 1.0}), "blind-spot")
    assert half.verdict == "not supported" and half.estimate == pytest.approx(-0.95, abs=0.02)


def test_a_claim_of_equality_needs_a_narrow_interval() -> None:
    study, rng = made_up({}, noise=1e-3), np.random.default_rng(1)
    for bias, noise, expected in (
        (0.0, 1e-3, "supported"), (0.0, 0.5, "inconclusive (power)"), (0.1, 1e-3, "not supported"),
    ):  # fmt: skip
        own = study.values["mean_80"]
        moved = own + bias + noise * rng.normal(size=own.shape)
        studies = everywhere(study)
        total = replace(study, values={**study.values, "mean_80": moved})
        studies["C->M", "natural", "total"] = total
        found = claims.verdicts(studies, only="unbiased-mean").query("primary").iloc[0]
        assert found.verdict == expected


def test_an_identity_is_no_finding() -> None:
    assert primary(made_up({}), "null-floor").verdict == "identity"


def test_replicates_that_were_not_computed_do_not_count() -> None:
    study = made_up({})
    for name in ("gap_sex", "gap_age", "S_rank"):
        study.values[name][:, 21:] = np.nan
    assert np.isnan(claims.worse_pairs(study, "gap_{}")[:, 21:]).all()
    assert np.isnan(orders.transitions(study, "S_rank", ("sex",))[:, 21:]).all()
    assert not np.isnan(claims.worse_pairs(study, "gap_{}")[:, :21]).any()
    assert np.isfinite(claims.estimate(study.column("gap_sex", "basic")).error)


def test_partial_correlation_removes_what_is_shared(rng_seed: int = 3) -> None:
    rng = np.random.default_rng(rng_seed)
    z = rng.normal(size=(4000, 1))
    x, y = z + 0.5 * rng.normal(size=z.shape), z + 0.5 * rng.normal(size=z.shape)
    assert claims.pearson(x, y).item() > 0.7
    assert abs(claims.partial_correlation(x, y, z).item()) < 0.06
    assert claims.spearman(x, x**3).item() == pytest.approx(1)


@pytest.mark.parametrize("scale", ["plain", "fisher", "log"])
def test_intervals_hold_the_truth_as_often_as_they_say(scale: str) -> None:
    rng, truth, held = np.random.default_rng(0), 0.4, 0
    centre = claims._FORTH[scale](truth)
    for _ in range(400):
        trained = centre + 0.1 * rng.normal(size=(5, 1))
        patients = 0.1 * rng.normal(size=(1, 201))
        patients[:, 1:] += patients[:, :1]  # a sample, and resamples of it
        low, high = claims.estimate(claims._BACK[scale](trained + patients), scale).interval()
        held += low < truth < high
    assert 0.92 < held / 400 < 0.99


def test_power_is_the_share_of_tests_that_find_the_margin() -> None:
    rng, found, powers = np.random.default_rng(1), [], []
    for _ in range(600):
        own = claims.estimate(0.1 + 0.08 * rng.normal(size=(5, 1)))
        found.append(own.p(0) <= 0.05)
        powers.append(own.power(0, 0.1))
    assert abs(np.mean(found) - np.mean(powers)) < 0.08


def test_holm_is_that_of_a_library() -> None:
    p = np.random.default_rng(0).uniform(size=12) ** 3
    expected = np.empty(12)
    order = np.argsort(p)
    worst = 0.0
    for place, i in enumerate(order):  # by its definition, one by one
        worst = max(worst, min(1.0, (12 - place) * p[i]))
        expected[i] = worst
    assert claims.holm(p) == pytest.approx(expected)


def test_the_spread_between_trainings_is_in_the_interval() -> None:
    study = made_up({"D_obs": 1.0}, noise=0.0)
    at = [i for i, m in enumerate(study.members) if m == PredictorId("sex", 0.95, 2)]
    study.values["D_obs"][at] += 0.5
    gain = primary(study, "clinical-decisions")
    # Gains of .95, four times, and 1.45: 1.05, of standard error .1, and t of four degrees.
    assert gain.high == pytest.approx(1.05 + 2.7764 * 0.1, rel=1e-4)
    assert gain.low == pytest.approx(1.05 - 2.7764 * 0.1, rel=1e-4)


def test_claims_without_studies_are_left_out() -> None:
    some = {key: s for key, s in everywhere(made_up({})).items() if key[2] == "direct"}
    found = claims.verdicts(some)
    assert "label-free" not in set(found.claim) and "risk-order" in set(found.claim)


def test_an_unknown_test_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "claims.yml"
    path.write_text("claims: [{id: x, test: magic, primary: {}, also: {}, threshold: 0}]")
    with pytest.raises(InputError, match=r"claims\.yml.*'x'.*'magic'"):
        claims.verdicts({}, design=path)


@pytest.mark.parametrize("kind", list(METRICS))
@pytest.mark.parametrize("setting", list(SETTINGS))
def test_our_tables_have_the_rows_and_columns_of_the_paper(setting: str, kind: str) -> None:
    printed = published(setting, kind)
    table = tables.counted if kind == "risk" else tables.means
    ours = table(made_up({}), METRICS[kind])
    assert [tables.row_label(*each) for each in printed.index] == list(ours.index)
    assert list(printed.columns) == list(ours.columns)


def test_a_cell_of_the_main_text_is_shown_before_that_of_the_appendix() -> None:
    basic = published("C->M", "stability").loc[("basic", 0.0)]

    # The main text and the appendix differ in these two; the last is in the appendix alone.
    assert basic[["S_var", "S_flip", "tau_b"]].tolist() == [0.0198, 0.143, 0.765]


def test_tables_hold_means_spreads_and_intervals() -> None:
    study = made_up({"S_var": 1.0})
    means = tables.means(study, ["S_var"], controls=True)
    assert means.loc["sex 0.95", "S_var"] == pytest.approx(9.95, abs=0.05)
    assert means.loc["control sex 0.95", "S_var"] == pytest.approx(9, abs=0.05)
    assert (study.summary(["S_var"]).spread < 0.05).all()
    assert tables.intervals(study, ["S_var"]).loc["basic", "S_var"].count(",") == 1


def test_tables_mark_intervals_that_cover_too_seldom() -> None:
    shown = tables.intervals(made_up({}), ["R_orig", "ECE_orig"])
    assert shown["ECE_orig"].str.endswith("]†").all()
    assert shown["R_orig"].str.endswith("]").all()
    many = replace(made_up({}), patients=1500)
    assert many.summary().set_index("metric").doubtful["S_flip"].eq(False).all()
    few = replace(made_up({}), patients=1499)
    assert few.summary().set_index("metric").doubtful["S_flip"].all()


def test_of_one_training_the_spread_is_unknown_and_the_caption_says_so() -> None:
    three = made_up({})
    alone = three.only([0])
    run = Run(preset("smoke"), "C->C", "balanced")
    assert alone.summary(["S_var"]).spread.isna().all()
    assert three.summary(["S_var"]).spread.notna().all()
    assert "how trainings" in tables.caption({run: alone}).replace("\n", " ")
    assert "unknown" not in tables.caption({run: three})
    found = claims.verdicts(everywhere(alone), only="blind-spot")
    assert (found.low < found.high).all()  # over patients


def test_doubtful_intervals_are_dotted_in_figures() -> None:
    fig, ax = plt.subplots()
    ladders.ladder(ax, made_up({}).summary(), "ECE_orig")
    ladders.ladder(ax, made_up({}).summary(), "R_orig")
    styles = [bars.get_linestyle() for bars in ax.collections]
    plt.close(fig)
    assert len(styles) == 6
    assert all(offsets for style in styles[:3] for _, offsets in style)
    assert not any(offsets for style in styles[3:] for _, offsets in style)


@pytest.mark.parametrize("kind", list(METRICS))
def test_a_setting_shows_every_column_of_the_paper_beside_ours(
    kind: str, capsys: pytest.CaptureFixture
) -> None:
    study, run = replace(made_up({}), patients=1500), Run(preset("book"), "C->M", "natural")

    settings.show_metrics(run, study, kind, "It says so.", note="Made up.")

    first, *others = capsys.readouterr().out.split("Table ")[1:]
    assert "It says so." in first and "Made up." in first and len(others) == 3
    assert all(name in first + others[0] for name in METRICS[kind])
    paper, ours = published("C->M", kind)[METRICS[kind][0]].iloc[1], "9.0"
    assert f"{paper:.3f}" in first + others[0] and ours in first
    assert "learned generators" in others[2] and "faithful" in others[2]


def test_learned_generators_are_open_marks_and_a_unit_is_one_scale() -> None:
    run = Run(preset("book"), "C->C", "balanced")
    for where, unit, marks in ((run, "nats", 6), (replace(run, preset=preset("smoke")), "", 3)):
        ladders.panels({where: made_up({})}, ["R_orig", "R_IE"], unit=unit)
        fig = plt.gcf()
        left, right = fig.axes
        plt.close(fig)
        lines = [
            [line for line in ax.lines if line.get_linestyle() != "None"] for ax in (left, right)
        ]
        assert [len(some) for some in lines] == [3, marks]
        assert (left.get_ylim() == right.get_ylim()) == bool(unit)
        assert all(ax.get_title() for ax in (left, right))
        assert len(right.get_xticks()) == 12
