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
from cfbook.study import claims, settings, tables
from cfbook.study.presets import preset
from cfbook.study.runs import SETTINGS, PredictorId, Run
from cfbook.study.statistics import Study
from cfcore.checks import InputError

STATISTICS = (
    *METRICS["risk"], *METRICS["calibration"], *METRICS["stability"],
    "D_abs", "S_var_sex", "S_var_age", "AUC", "AUC_men", "AUC_women", "gap_sex", "gap_race",
    "gap_age", "score_sex", "score_age", "ECE_q", "variance_ratio", "null_abs", "null_flip",
)  # fmt: skip
KINDS = [*tables.ROWS, *tables._CONTROLS]


def made_up(response: dict[str, float], *, noise: float = 0.01) -> Study:
    """Statistics that rise with the bias at a given rate; rate 0 by default."""
    rng = np.random.default_rng(0)
    members = tuple(PredictorId(*kind, seed) for kind in KINDS for seed in range(3))
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
        for effect in ("direct", "total")
    }


def rows(study: Study, claim: str):  # noqa: ANN201
    return claims.verdicts(everywhere(study), only=claim)


def test_every_claim_has_a_test_and_says_where_it_stands() -> None:
    read = claims.read_design()
    for claim in read["claims"]:
        assert claim["test"] in claims.TESTS
        assert {"id", "where", "claim", "settings", "threshold"} <= claim.keys()
    assert len({claim["id"] for claim in read["claims"]}) == len(read["claims"])
    assert set(read["design"]["settings"]) == set(SETTINGS)
    assert {claim["test"] for claim in read["claims"]} == set(claims.TESTS)


def test_claims_and_thresholds_are_those_of_the_first_commit() -> None:
    now = claims.read_design()
    call = ["git", "show", f"{now['first_commit']}:data/claims.yml"]
    shown = subprocess.run(call, cwd=data_file("paper"), capture_output=True, text=True)
    if shown.returncode:
        pytest.skip("the history of the project is not here")
    first = {claim["id"]: claim for claim in yaml.safe_load(shown.stdout)["claims"]}
    assert first.keys() == {claim["id"] for claim in now["claims"]}
    for claim in now["claims"]:
        for key in ("threshold", "direction", "test", "settings", "metrics", "against"):
            assert claim.get(key) == first[claim["id"]].get(key), (claim["id"], key)


def test_risks_that_rise_with_bias_are_supported() -> None:
    good = rows(made_up({"R_IE": 1.0, "R_orig": -1.0}), "risk-order")
    good = good[good["item"] == "R_IE - R_orig"]
    assert (good.estimate == 9).all() and (good.verdict == "supported").all()


def test_risks_that_fall_with_bias_are_not_supported() -> None:
    bad = rows(made_up({"R_IE": -1.0, "R_orig": 1.0}), "risk-order")
    bad = bad[bad["item"] == "R_IE - R_orig"]
    assert (bad.estimate == -9).all() and (bad.verdict == "not supported").all()


def test_a_falling_rank_stability_counts_as_correct() -> None:
    found = rows(made_up({"S_rank": -1.0}), "stability-order")
    assert (found[found["item"] == "S_rank"].estimate == 9).all()


def test_noise_alone_supports_nothing_about_order() -> None:
    found = claims.verdicts(everywhere(made_up({}, noise=1.0)))
    order = found[found.claim.isin(["risk-order", "calibration-order", "stability-gaps"])]
    assert (order.verdict != "supported").mean() > 0.9


def test_exposure_compares_with_the_control_of_the_same_size() -> None:
    study = made_up({"S_var_sex": 1.0, "S_var_age": 1.0})
    share = claims.worse_pairs(study, "S_var_{}")
    assert (share == 1).all()
    assert 0.2 < claims.worse_pairs(study, "gap_{}").mean() < 0.8


def test_replicates_that_were_not_computed_do_not_count() -> None:
    study = made_up({})
    for name in ("gap_sex", "gap_age", "S_rank"):
        study.values[name][:, 21:] = np.nan
    assert np.isnan(claims.worse_pairs(study, "gap_{}")[:, 21:]).all()
    assert np.isnan(claims.transitions(study, "S_rank", ("sex",))[:, 21:]).all()
    assert not np.isnan(claims.worse_pairs(study, "gap_{}")[:, :21]).any()


def test_partial_correlation_removes_what_is_shared(rng_seed: int = 3) -> None:
    rng = np.random.default_rng(rng_seed)
    z = rng.normal(size=(4000, 1))
    x, y = z + 0.5 * rng.normal(size=z.shape), z + 0.5 * rng.normal(size=z.shape)
    assert claims.pearson(x, y).item() > 0.7
    assert abs(claims.partial_correlation(x, y, z).item()) < 0.06
    assert claims.spearman(x, x**3).item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("low", "high", "threshold", "above", "expected"),
    [
        (0.1, 0.2, 0.0, True, "supported"),
        (0.0, 0.2, 0.0, True, "inconclusive"),
        (-0.2, 0.0, 0.0, True, "not supported"),
        (5.0, 8.0, 9.0, False, "supported"),
        (5.0, 9.0, 9.0, False, "inconclusive"),
        (9.0, 9.0, 9.0, False, "not supported"),
        (np.nan, np.nan, 0.0, True, "inconclusive"),
    ],
)
def test_verdicts(low: float, high: float, threshold: float, above: bool, expected: str) -> None:
    claim = {"threshold": threshold, "direction": "above" if above else "below"}
    assert claims.verdict(claim, "S_var", low, high) == expected


def test_thresholds_and_directions_are_those_of_the_design() -> None:
    found = claims.verdicts(everywhere(made_up({}))).set_index(["claim", "item"])
    areas, rises = (found.loc[("offset-invisible", i)] for i in ("AUC within a sex", "S_var rises"))
    assert set(areas.threshold) == {1e-12} and set(areas.direction) == {"below"}
    assert set(rises.threshold) == {2.5} and set(rises.direction) == {"above"}
    assert set(found.loc[("blind-spot", "R_orig, sex")].direction) == {"below"}
    assert set(found.loc[("blind-spot", "R_IE, age")].direction) == {"above"}


def test_what_cannot_fail_is_marked_and_only_where_it_holds() -> None:
    marked = {
        (claim["id"], item)
        for claim in claims.read_design()["claims"]
        for item in claim.get("cannot_fail", ())
    }
    still = made_up({}, noise=0.0)
    found = pd.concat([rows(still, claim) for claim in {claim for claim, _ in marked}])
    items = set(zip(found.claim, found["item"], strict=True))
    certain = found[found.verdict == claims.CERTAIN]
    assert marked <= items
    # Nothing moves here, so the areas do not; the made-up ratios are 9 and 1, which are not below.
    assert set(zip(certain.claim, certain["item"], strict=True)) == {
        ("offset-invisible", "AUC within a sex")
    }
    assert found[found.claim == "null-floor"].verdict.eq("not supported").all()


def test_metrics_that_both_tell_all_pairs_apart_cannot_differ() -> None:
    rising = {"S_var_sex": 1.0, "S_var_age": 1.0}
    both = rows(made_up(rising | {"R_orig": 1.0}), "exposes-bias").set_index("item")
    assert (both.loc["S_var - R_orig", "verdict"] == claims.TIED).all()
    assert (both.loc["S_var - AUC gap", "verdict"] != claims.TIED).all()
    worse = rows(made_up({"S_var_sex": -1.0, "S_var_age": -1.0, "R_orig": 1.0}), "exposes-bias")
    worse = worse[worse["item"] == "S_var - R_orig"]  # at the ceiling, but we are not
    assert (worse.estimate == -1).all() and (worse.verdict == "not supported").all()


def test_what_could_be_gained_stands_beside_a_difference_of_counts() -> None:
    found = rows(made_up({"R_orig": -1.0, "R_IE": 1.0}), "risk-order")
    assert (found.attainable == 9).all()
    assert rows(made_up({}), "stability-order").attainable.isna().all()


def test_the_spread_between_trainings_is_in_the_interval() -> None:
    study = made_up({"R_IE": 1.0}, noise=0.0)
    rows_ = [i for i, m in enumerate(study.members) if m == PredictorId("sex", 0.95, 2)]
    study.values["R_IE"][rows_] += 0.3
    gain = claims.verdicts(everywhere(study), only="blind-spot").set_index("item").loc["R_IE, sex"]
    # Gains of .95, .95 and 1.25: 1.05, of standard error .1, and t of two degrees of freedom.
    assert gain.high.to_numpy() == pytest.approx(1.05 + 4.3027 * 0.1, rel=1e-4)
    assert gain.low.to_numpy() == pytest.approx(1.05 - 4.3027 * 0.1, rel=1e-4)


def test_the_papers_counts_are_printed_or_counted() -> None:
    assert claims._printed_count("C->C", "R_orig") == 6.33
    assert claims._printed_count("C->C", "ECE_marg") == 9
    assert claims._printed_count("C->C", "ECE_orig") == 4
    assert np.isnan(claims._printed_count("C->C", "D_abs"))


def test_the_table_of_the_main_text_counts_before_its_repetition() -> None:
    assert claims._printed_count("C->M", "S_var") == 8  # 5 with the row of the appendix
    assert claims._printed_count("C->M", "S_flip") == 9
    assert claims._printed_count("C->M", "tau_b") == 9  # in the appendix alone


def test_an_unknown_test_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "claims.yml"
    path.write_text("claims: [{id: x, test: magic, settings: [], threshold: 0}]")
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
