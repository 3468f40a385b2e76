"""The study of real radiographs, whole and small, on a folder drawn at random."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save
from small_radiographs import write_radiographs

from cfbook.guard import _Allowed, inspect
from cfbook.real import averages, make, pairs
from cfbook.real.bias import shares_found
from cfbook.real.planted import Planted, planned, predictor
from cfbook.real.questions import _judged_by, answered, read_questions
from cfbook.real.sizes import sizes_of
from cfbook.real.weights import patient_weights, weighted_mean
from cfbook.real.work import FOLDS, Work, _check_apart
from cfbook.shareable import unshareable
from cfcore.checks import InputError
from cfcore.marks import marked, sources_in
from cfcore.predictions import Predictions, load_all
from cfscm.auditing import readers

pytestmark = pytest.mark.filterwarnings("ignore::cfcore.checks.ScoreWarning")
LIST = Path(__file__).parents[2] / ".guard.yml"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """The whole study, made once."""
    folder = tmp_path_factory.mktemp("real")
    made = Work(write_radiographs(folder / "nih"), sizes_of("smoke"), folder / "runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "_STEPS", 1)
        for _ in make._run_all(made):
            pass
    return made


def test_every_table_is_made_and_a_second_call_makes_nothing(work: Work) -> None:
    files = {path: path.stat().st_mtime_ns for path in work.made.rglob("*") if path.is_file()}
    tables = {path.stem for path in (work.made / "tables").glob("*.csv")}
    again = Work(work.folder, work.sizes, work.out)

    said = list(make._run_all(again))

    assert tables == set(make._TABLES)
    assert again.made == work.made
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert set(work.made.rglob("*.safetensors")) <= set(files)
    assert "bias: 30 rows" in said


def test_no_patient_is_where_they_should_not_be(work: Work) -> None:
    rows = work.rows
    for parts in (("fit", "stop", "test"), FOLDS, *((f, f"{f} fit", f"{f} stop") for f in FOLDS)):
        _check_apart(*(rows[part] for part in parts))
        assert sum(len(rows[part]) for part in parts) == len(work.data)
    assert set(rows["test"].split) == {"test"}
    with pytest.raises(InputError, match=r"patients are in two parts, such as 0000"):
        _check_apart(rows["fit"], rows["fold-0"], rows["fold-1"])


def test_images_that_cannot_be_used_are_counted(work: Work) -> None:
    counts = work.left_out

    assert {why: n for why, n in counts.items() if n} == {"age not stated": 1, "shows nothing": 1}
    assert len(work.data) == 358
    cohort = pd.read_csv(work.made / "tables/cohort.csv").set_index("part")
    assert cohort.images["left out: shows nothing"] == 1
    assert cohort.minors["all"] == (work.data.table.age < 18).sum() > 0


def test_a_bias_by_view_is_planted_and_its_control_is_as_large(work: Work) -> None:
    rows = work.rows["fit"]
    biased = Planted("view", 0.8).kept(rows)
    control = Planted("view", 0.8, control=True).kept(rows)

    def gap(table: pd.DataFrame) -> float:
        views = table.groupby("view").effusion.mean()
        return views["AP"] - views["PA"]

    assert len(biased) == len(control) < len(rows)
    assert gap(biased) > gap(rows) + 0.2
    assert abs(gap(control) - gap(rows)) < 0.2
    names = [planted.name for planted in planned(work.sizes)]
    assert len(set(names)) == len(names) == 2 * (1 + 3 * 2)


def test_predictions_are_of_the_test_patients_and_carry_the_mark(work: Work) -> None:
    path = work.made / "predictions/test.safetensors"
    found, table = load_all(path), work.rows["test"]
    own = predictor(work, Planted(seed=1))
    with torch.inference_mode():
        logit = own(work.part("test")[:8])

    assert list(found["basic-1"].patient) == table.patient.tolist()
    torch.testing.assert_close(found["basic-1"].logit_obs[:8].float(), logit, rtol=1e-2, atol=1e-3)
    assert sources_in(path.read_bytes()) == ["nih"]
    assert len(found["basic-0"].grid["sex"]) == 12


def frame(*rows: tuple) -> pd.DataFrame:
    columns = ["patient", "visit", "view", "effusion", "age"]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(study=table.patient + "/" + table.visit.astype(str))


def test_neighbours_share_patient_and_label_and_are_turned_to_start_with_pa() -> None:
    table = frame(
        ("a", 2, "AP", 0, 50), ("a", 1, "PA", 0, 50), ("a", 3, "PA", 0, 50), ("a", 4, "PA", 1, 50),
        ("b", 1, "AP", 1, 40), ("b", 10, "AP", 1, 41), ("b", 11, "AP", 1, 49),
    )  # fmt: skip

    found = pairs.neighbours(table)

    rows = set(found[["one", "other", "kind"]].itertuples(index=False, name=None))
    assert rows == {(1, 0, "PA-AP"), (2, 0, "PA-AP"), (4, 5, "AP-AP")}


def pair_of(real: float, cf: float) -> Predictions:
    """Ten patients with a visit in each view and two more; the scores are shifted by the view."""
    view, sex = torch.tensor([0.0, 1.0, 0.0, 1.0] * 10), torch.zeros(40)
    logit = torch.logit(0.3 + real * view)
    turned = torch.logit(
        0.3 + real * view[:, None] + cf * (torch.tensor([0.0, 1.0]) - view[:, None])
    )
    grid = {"sex": torch.zeros(2), "view": torch.tensor([0.0, 1.0])}
    parents = {"sex": sex, "view": view}
    return Predictions(logit, turned, grid=grid, parents=parents)


@pytest.mark.parametrize(("cf", "removed"), [(0.2, 1.0), (0.0, 0.0), (0.1, 0.5)])
def test_a_right_do_view_removes_all_of_the_excess_and_none_does_nothing(
    cf: float, removed: float
) -> None:
    rows = [(str(i), j, ("PA", "AP", "AP", "PA")[j], 0, 50) for i in range(10) for j in range(4)]
    table = frame(*rows)
    given = pair_of(0.2, cf)
    # Visits 2 and 3 lie the other way round.
    table["view"] = ["AP" if v else "PA" for v in given.parents["view"]]
    found = pairs.scored(pairs.neighbours(table), given)
    found.loc[len(found)] = found.iloc[0].to_dict() | {"kind": "PA-PA", "p_other": 0.3}
    found.loc[len(found)] = found.iloc[0].to_dict() | {"kind": "AP-AP", "p_other": 0.3}
    said = pairs._pair_statistics(found, patient_weights(found.patient, 5))

    assert said["real"][0] == pytest.approx(0.2)
    assert said["drawn"][0] == pytest.approx(cf)
    assert said["excess removed"][0] == pytest.approx(removed)


def test_weights_draw_patients_whole() -> None:
    weights = patient_weights(["a", "b", "a"], 50)

    assert (weights[:, 0] == weights[:, 2]).all()
    assert (weights[1:, 0] + weights[1:, 1] == 2).all()
    assert weighted_mean(weights, np.array([1.0, np.nan, 3.0]))[0] == 2


def test_shares_count_what_is_found() -> None:
    table = pd.DataFrame(
        {
            "statistic": ["S_var"] * 4,
            "compared": ["biased"] * 3 + ["control"],
            "found": [1, 1, 0, 0],
        }
    )

    row = shares_found(table).iloc[0]
    assert (row.planted, row.found, row.false_alarms) == (3, 2, 0)


def test_every_question_is_answered_by_the_tables(work: Work) -> None:
    tables = {name: pd.read_csv(work.made / f"tables/{name}.csv") for name in make._TABLES}
    tables["bias"] = tables["bias"].assign(strength=0.95)  # the smoke sizes have one strength

    found = answered(tables)

    assert found.id.tolist() == [each["id"] for each in read_questions()["questions"]]
    assert set(found.verdict) <= {"supported", "not supported", "inconclusive"}
    assert _judged_by(
        {"side": "within", "threshold": 0, "margin": 1}, {"low": -2, "high": 0.5}
    ) == ("inconclusive")


# What may be shared.


def allowed() -> _Allowed:
    return _Allowed.read(LIST)


def wrong(path: str, content: bytes) -> list[str]:
    return [finding.what for finding in inspect([(path, content)], allowed())]


def test_scores_and_averages_of_many_pass_where_they_are_listed(work: Work, tmp_path: Path) -> None:
    list(make.publish(work, tmp_path))
    scores = (tmp_path / "predictions/test.safetensors").read_bytes()

    assert wrong("data/real/predictions/test.safetensors", scores) == []
    assert set(wrong("data/predictions/test.safetensors", scores)) == {"carries the mark of nih"}
    weights = (work.made / "readers/sex.safetensors").read_bytes()
    assert wrong("data/real/weights/sex.safetensors", weights) == []
    assert wrong("data/real/averages.safetensors", average(200)) == []
    assert (tmp_path / "tables/bias.csv").is_file()
    page = (tmp_path / "report/report.html").read_bytes()
    assert [what for what in wrong("data/real/report/report.html", page) if "mark" in what] == []
    with pytest.raises(InputError, match="say --to"):
        list(make.publish(work))


def average(patients: int, **arrays: torch.Tensor) -> bytes:
    arrays = arrays or {"do": torch.zeros(1, 32, 32)}
    header = {"averages": [{"name": name, "patients": patients} for name in arrays]}
    return save(arrays, metadata={"cfcore": json.dumps(header | marked(["nih"]))})


def images() -> Iterator[tuple[str, bytes]]:
    stack, mark = torch.rand(40, 1, 32, 32), {"cfcore": json.dumps(marked(["nih"]))}
    scores = {"format": 1, "patient": ["1"] * 40, "predictors": {"a": {}}} | marked(["nih"])
    yield "weights", save({"x": stack}, metadata=mark)
    yield "predictions", save({"x": stack}, metadata={"cfcore": json.dumps(scores)})
    yield "predictions", save({"logit_cf": stack}, metadata={"cfcore": json.dumps(scores)})


def test_an_image_of_a_patient_never_passes_whatever_it_is_called() -> None:
    assert "average over 199" in wrong("data/real/averages.safetensors", average(199))[0]
    two = average(200, do=torch.zeros(2, 32, 32))
    assert "2 images" in wrong("data/real/averages.safetensors", two)[0]
    for folder, content in images():
        assert wrong(f"data/real/{folder}/x.safetensors", content) != []
    assert unshareable("pictures", average(200)).startswith("is listed as 'pictures'")


def test_averages_over_too_few_are_not_made_read_or_published(work: Work, tmp_path: Path) -> None:
    path = work.made / "averages.safetensors"
    assert averages.read_averages(path) == {}  # 90 patients are too few
    path.unlink()

    averages.mean_changes(work, least=20)

    try:
        with pytest.raises(InputError, match=r"is an average over \d\d patients only"):
            averages.read_averages(path)
        with pytest.raises(InputError, match=r"an average over \d\d patients"):
            list(make.publish(work, tmp_path))
    finally:
        path.unlink()
        averages.mean_changes(work)
