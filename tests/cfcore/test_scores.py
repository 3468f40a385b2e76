"""Scores alone: frames, groups, weights, several labels, other files."""

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

import cfcore
from cfcore.checks import InputError
from cfcore.cli import main
from cfcore.marks import marked
from cfcore.predictions import Predictions

COLUMNS = ["p_obs", "p_cf_0", "p_cf_1", "p_cf_2"]


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(2028)
    made = pd.DataFrame(rng.random((80, 4)), columns=COLUMNS).round(3)
    made["y"] = rng.integers(2, size=80)
    made["site"] = np.where(made.p_obs > 0.6, "A", "B")
    made["patient"] = np.arange(80) // 2
    made["often"] = rng.integers(1, 4, size=80)
    return made


def arrays(frame: pd.DataFrame) -> tuple:
    return frame.p_obs, frame[COLUMNS[1:]], frame.y


def test_a_frame_is_its_columns(frame: pd.DataFrame) -> None:
    assert cfcore.evaluate(frame) == cfcore.evaluate(*arrays(frame))
    drawn = {"replicates": 30, "rank_replicates": 10}
    expected = cfcore.bootstrap(*arrays(frame), patient=frame.patient, **drawn)
    pd.testing.assert_frame_equal(cfcore.bootstrap(frame, **drawn), expected)


def test_a_weight_is_a_number_of_copies(frame: pd.DataFrame) -> None:
    copies = frame.loc[frame.index.repeat(frame.often)]

    with pytest.warns(cfcore.UndefinedMetricWarning, match="tau_b knows no weights"):
        weighted = cfcore.evaluate(frame, weight="often")

    expected = cfcore.evaluate(copies)
    assert np.isnan(weighted.pop("tau_b"))
    assert weighted == pytest.approx({name: expected[name] for name in weighted})


def test_weights_are_resampled_with_their_rows(frame: pd.DataFrame) -> None:
    asked = {"metrics": ["R_IE", "ECE_marg", "S_rank", "AUC_orig"], "replicates": 40}

    weighted = cfcore.bootstrap(frame, weight="often", **asked)

    copies = frame.loc[frame.index.repeat(frame.often)]
    expected = cfcore.bootstrap(copies, **asked)
    pd.testing.assert_frame_equal(weighted, expected)


def test_groups_are_what_they_are_alone_and_the_gap_is_between_two(frame: pd.DataFrame) -> None:
    found = cfcore.bootstrap(frame, by="site", replicates=40).set_index(["group", "metric"])

    for site, own in frame.groupby("site"):
        alone = cfcore.evaluate(own)
        assert found.loc[site].estimate.to_dict() == pytest.approx(alone)
        assert (found.loc[site].rows == len(own)).all()
    gaps = found.loc["gap"]
    assert gaps.loc["R_IE"].worst != gaps.loc["R_IE"].best
    ends = [found.loc[(gaps.loc["S_rank"][end], "S_rank")].estimate for end in ("worst", "best")]
    assert gaps.loc["S_rank"].estimate == pytest.approx(ends[0] - ends[1]) and ends[0] <= ends[1]
    assert (gaps.low <= gaps.high).all()


def test_a_group_of_one_patient_has_no_interval(frame: pd.DataFrame) -> None:
    alone = frame.assign(site=np.where(frame.patient == 0, "A", "B"))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = cfcore.bootstrap(alone, by="site", replicates=20).set_index(["group", "metric"])

    assert np.isnan(found.loc[("A", "S_var")].low)
    assert np.isfinite(found.loc[("B", "S_var")].low)


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (["a"] * 80, "there are 1 groups: group by something that differs"),
        (list(range(80)), "there are 80 groups: cut it into bands first"),
        (["a", "b"], "by: has 2 rows, not 80"),
        ([None, *["a", "b"] * 39, "a"], r"by\[0\]: the group is missing"),
        ("ward", "there is no column ward"),
    ],
)
def test_groups_that_are_none_are_refused(frame: pd.DataFrame, by: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        cfcore.bootstrap(frame, by=by, replicates=5)


def test_auc_and_average_precision_are_those_of_scikit_learn(frame: pd.DataFrame) -> None:
    asked = ["AP_orig", "AUC_orig", "AUC_marg", "S_var"]

    found = cfcore.evaluate(frame.assign(p_obs=frame.p_obs.round(1)), metrics=asked)

    marginal = frame[COLUMNS[1:]].mean(axis=1)
    expected = {
        "AP_orig": average_precision_score(frame.y, frame.p_obs.round(1)),
        "AUC_orig": roc_auc_score(frame.y, frame.p_obs.round(1)),
        "AUC_marg": roc_auc_score(frame.y, marginal.round(12)),
        "S_var": cfcore.evaluate(frame)["S_var"],
    }
    assert list(found) == asked and found == pytest.approx(expected)


def test_metrics_that_are_unknown_or_need_labels_are_refused(frame: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="metrics: 'AUC' is none of R_orig"):
        cfcore.evaluate(frame, metrics=["AUC"])
    with pytest.raises(InputError, match="metrics: AUC_orig needs labels"):
        cfcore.evaluate(frame.drop(columns="y"), metrics=["AUC_orig"])


def test_classes_and_labels_are_taken_one_by_one(frame: pd.DataFrame) -> None:
    p_obs, p_cf, y = (np.asarray(part) for part in arrays(frame))
    both, worlds = np.stack([1 - p_obs, p_obs], 1), np.stack([1 - p_cf, p_cf], 2)
    names = np.array(["no", "yes"])[y]

    by_name = cfcore.evaluate(both, worlds, names, labels=["no", "yes"])
    by_number = cfcore.evaluate(torch.tensor(both), torch.tensor(worlds), torch.tensor(y))
    columns = cfcore.evaluate(both, worlds, np.stack([1 - y, y], 1))

    assert by_name["yes"] == by_number["1"] == columns["1"] == cfcore.evaluate(p_obs, p_cf, y)
    assert by_name["no"]["S_var"] == pytest.approx(by_name["yes"]["S_var"])
    wide = {f"ill:{name}": frame[name] for name in [*COLUMNS, "y"]}
    wide |= {f"well:{name}": frame[name] for name in COLUMNS}
    named = cfcore.bootstrap(pd.DataFrame(wide), replicates=10)
    assert named.groupby("label", sort=False).size().to_dict() == {"ill": 20, "well": 7}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([[0.1, 0.9]], [[[0.1, 0.9]]], ["maybe"]), r"y\[0\]: 'maybe' is none of the classes"),
        (([[0.1, 0.9]], [[[0.1, 0.9]]], [2]), r"y\[0\]: '2' is none of the classes no, yes"),
        (([[0.1, 0.9]], [[[0.1, 0.9]]], [[1, 0, 0]]), "y: has 3 columns, and there are 2 labels"),
        (([[0.1, 0.9]], [[[0.1]]], [0]), r"p_cf: has shape \(1, 1, 1\)"),
        (([[0.1, 1.9]], [[[0.1, 0.9]]], [1]), r"yes:p_obs\[0\]: 1.9 is not a probability"),
    ],
)
def test_classes_that_do_not_fit_are_refused(given: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        cfcore.evaluate(*given, labels=["no", "yes"])


def test_two_frames_are_compared_if_they_agree(frame: pd.DataFrame) -> None:
    other = frame.assign(p_obs=1 - frame.p_obs)
    asked = {"replicates": 20, "rank_replicates": 5}
    pair, patient = [arrays(one)[:2] for one in (frame, other)], frame.patient
    expected = cfcore.compare(*pair, frame.y, patient=patient, **asked)
    pd.testing.assert_frame_equal(cfcore.compare(frame, other, **asked), expected)
    with pytest.raises(InputError, match=r"y\[0\]: the two disagree"):
        cfcore.compare(frame, frame.assign(y=1 - frame.y), **asked)


def test_what_is_not_resampled_needs_no_patients(frame: pd.DataFrame) -> None:
    unknown = frame.assign(patient=None)

    assert cfcore.evaluate(unknown) == cfcore.evaluate(frame)
    with pytest.raises(InputError, match=r"patient\[0\]: None is neither text nor"):
        cfcore.bootstrap(unknown)


def test_predictions_go_to_a_frame_and_back(frame: pd.DataFrame) -> None:
    logit = torch.randn(6, 3, generator=torch.Generator().manual_seed(2031))
    rows = {"y": torch.tensor([0, 1] * 3), "patient": list("aabbcc"), "weight": torch.arange(6.0)}
    rows["parents"] = {"sex": torch.tensor([0, 1] * 3)}
    given = Predictions(logit[:, 0], logit[:, 1:], {"sex": [0, 1]}, **rows)

    frame_of, known = given.to_frame(), {"parents": ["sex"], "weight": "weight"}
    again = Predictions.from_frame(frame_of, {"sex": [0, 1]}, **known)

    assert Predictions.from_frame(frame_of, {"sex": [0, 1]}).weight is None
    assert given.evaluate(metrics=["R_IE"]) == pytest.approx(again.evaluate(metrics=["R_IE"]))
    assert again.patient == given.patient
    by_sex = given.bootstrap(by="sex", metrics=["S_var"], replicates=5)
    assert list(by_sex.group) == ["0", "1", "gap"]
    with pytest.raises(InputError, match="has no logit"):
        Predictions.from_frame(frame.assign(p_obs=1.0), {"sex": [0, 1, 2]})
    with pytest.raises(InputError, match="no column p_obs, but of a: take one"):
        Predictions.from_frame(frame.add_prefix("a:"), {"sex": [0, 1, 2]})


@pytest.mark.parametrize("kind", ["csv", "tsv", "semicolons", "bars", "parquet", "npz", "gz"])
def test_every_file_gives_the_same_numbers(
    kind: str, frame: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    separators = {"tsv": "\t", "semicolons": ";", "bars": "|"}
    path = tmp_path / {"parquet": "s.parquet", "npz": "s.npz", "gz": "s.csv.gz"}.get(kind, "s.csv")
    if kind == "parquet":
        frame.to_parquet(path)
    elif kind == "npz":
        given = {name: frame[name].to_numpy() for name in ("p_obs", "y", "patient")}
        np.savez(path, p_cf=frame[COLUMNS[1:]], site=frame.site.to_numpy(str), **given)
    else:
        frame.to_csv(path, index=False, sep=separators.get(kind, ","))

    assert main(["evaluate", str(path), "--replicates", "10", "--by", "site"]) == 0

    shown = capsys.readouterr().out
    assert "10 samples of 40 patients (column patient)" in shown
    expected = cfcore.evaluate(frame[frame.site == "A"])
    assert f"R_IE                {expected['R_IE']:.4f}" in shown


def test_two_files_are_compared(
    frame: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    frame.to_csv(first, index=False)
    frame.assign(p_obs=1 - frame.p_obs).to_csv(second, index=False)

    assert main(["compare", str(first), str(second), "--replicates", "10"]) == 0
    assert "b.csv minus" in capsys.readouterr().out
    frame.assign(patient=7).to_csv(second, index=False)
    assert main(["compare", str(first), str(second)]) == 2
    assert "the two are about 0 and 7" in capsys.readouterr().err


def test_two_frames_in_another_order_are_not_compared(frame: pd.DataFrame) -> None:
    with pytest.raises(InputError, match=r"patient\[0\]: the two are about 0 and 39"):
        cfcore.compare(frame, frame[::-1])


@pytest.mark.parametrize(
    ("y", "labels"),
    [
        (np.array([False, True, True]), ["no", "yes"]),
        (np.array(["no", "yes", "yes"], dtype=object), ["no", "yes"]),
        ([3, 7, 7.0], [3, 7]),
        (torch.tensor([0.0, 1.0, 1.0]), None),
    ],
)
def test_a_class_is_found_by_its_name_or_its_number(y: object, labels: list | None) -> None:
    p = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])
    first, second = cfcore.evaluate(p, p[:, None], y, labels=labels, metrics=["R_orig"]).values()

    expected = -np.log([0.9, 0.6, 0.8]).mean()
    assert first["R_orig"] == pytest.approx(expected)
    assert second["R_orig"] == pytest.approx(expected)


def test_a_label_that_is_there_twice_is_refused() -> None:
    with pytest.raises(InputError, match="labels: one of a, a is there twice"):
        cfcore.evaluate([[0.1, 0.9]], [[[0.1, 0.9]]], labels=["a", "a"])


@pytest.mark.parametrize("odd", ["A", "Z"])
def test_a_group_without_a_value_has_no_part_in_the_gap(frame: pd.DataFrame, odd: str) -> None:
    frame["y"] = np.where(frame.index < 10, 1, frame.y)
    by = np.where(frame.index < 10, odd, np.where(frame.index % 2, "M", "N"))

    with pytest.warns(cfcore.UndefinedMetricWarning, match="AUC"):
        found = cfcore.bootstrap(frame, by=by, metrics=["AUC_orig"], replicates=10)

    gap = found[found.group == "gap"].iloc[0]
    known = found[found.group.isin(["M", "N"])].estimate
    assert gap.estimate == pytest.approx(known.min() - known.max())
    assert {gap.worst, gap.best} == {"M", "N"}


def test_groups_that_look_the_same_are_refused(frame: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="by: two groups look the same"):
        cfcore.bootstrap(frame, by=[1, "1"] * 40, replicates=10)


def test_an_undefined_metric_that_was_asked_for_alone_is_said() -> None:
    with pytest.warns(cfcore.UndefinedMetricWarning, match="S_rank undefined"):
        found = cfcore.evaluate([0.5, 0.5], [[0.5], [0.5]], metrics=["S_rank"])
    assert np.isnan(found["S_rank"])


def test_a_gate_on_no_metric_is_refused_before_anything_is_written(
    frame: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "a.csv", tmp_path / "report"
    frame.to_csv(path, index=False)

    assert main(["report", str(path), "--out", str(out), "--fail-if", "S_flipp > 0.1"]) == 2
    assert "there is no metric S_flipp" in capsys.readouterr().err
    assert not out.exists()


def test_a_report_of_predictions_says_whose_they_are_and_how_they_count(tmp_path: Path) -> None:
    logit = torch.randn(40, 3, generator=torch.Generator().manual_seed(2035))
    facts = {"predictor": "mine", "label": "ill"} | marked(["ward-7"])
    given = Predictions(logit[:, 0], logit[:, 1:], {"sex": [0, 1]}, [3, 1], provenance=facts)
    path = given.save(tmp_path / "p.safetensors")

    assert main(["report", str(path), "--out", str(tmp_path / "out"), "--replicates", "20"]) == 0

    found = json.loads((tmp_path / "out/report.json").read_text())
    assert list(found["predictors"]) == ["mine:ill"]
    assert found["asked"]["q"] == [0.75, 0.25]
    assert found["provenance"]["restricted"] == facts["restricted"]
    assert not any("causal graph that was given" in text for text in found["assumptions"])


def test_groups_keep_the_order_of_their_categories(frame: pd.DataFrame) -> None:
    bands = pd.cut(frame.p_obs, [0, 0.1, 0.6, 1], labels=["up to .1", ".1 to .6", "above .6"])

    found = cfcore.bootstrap(frame, by=bands.array, metrics=["S_var"], replicates=5)

    assert list(found.group) == ["up to .1", ".1 to .6", "above .6", "gap"]
