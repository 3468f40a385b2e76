"""Audits by a plan, whole and small: findings, resuming, and what is refused on the way."""

import base64
import io
import itertools
import json
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import small_audit
import torch
import yaml
from PIL import Image
from torch import Tensor, nn

import cfscm
from cfcore.checks import InputError
from cfcore.cli import main
from cfcore.graph import CausalGraph, Variable
from cfcore.marks import marked, sources_in
from cfcore.patients import Patients
from cfcore.predictions import Predictions
from cfcore.resampling import check_resampling
from cfscm.auditing import audit, read_plan, readers, train_generator
from cfscm.cli import main as cfscm_main


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Readers that learn for a moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "_STEPS", 1)
        yield


def silent(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit") / "work"
    small_audit.make(folder)
    return folder


@pytest.fixture(scope="module")
def truth(work: Path) -> dict:
    """The findings with the true generator, by readers that learn for a second."""
    plan = small_audit.write(work, lambda plan: plan.update(subgroups=["view", "age"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "_STEPS", 100)
        return audit(plan, work / "truth", say=silent)


def test_the_findings_have_the_parts_that_a_report_shows(work: Path, truth: dict) -> None:
    assert json.loads(json.dumps(truth, allow_nan=False)) == truth
    assert list(truth)[:3] == ["schema", "asked", "generator"]
    asked = truth["asked"]
    assert asked["nuisances"]["view"] == {"values": [0, 1], "words": ["AP", "PA"], "unit": ""}
    assert (asked["rows_train"], asked["rows_audited"], asked["patients"]) == (120, 120, 60)
    assert asked["worlds"] == [[0], [1]]
    assert {"table_sha256", "plan_sha256", "minutes"} <= truth["provenance"].keys()
    assumed = truth["assumptions"]
    assert any("need not be the label that is audited" in text for text in assumed)
    assert len(set(assumed)) == len(assumed)
    support = truth["generator"]["support"]
    assert sum(world["rows"] for world in support) == 120
    for world in support:
        assert sum(world["rows_by_label"]["ill"]) == world["rows"]
    assert truth["generator"]["pictures"] == []
    assert len(Predictions.load(work / "truth/predictions-0.safetensors")) == 120
    assert (work / "truth/report.json").is_file()


def test_readers_see_what_the_true_generator_changes_and_nothing_else(truth: dict) -> None:
    found = truth["generator"]

    assert {one["variable"] for one in found["readers"]} == {"view", "age", "ill"}
    for one in found["readers"]:
        assert one["skill"]["estimate"] > 0.9
        assert one["skill"]["low"] <= one["skill"]["estimate"] <= one["skill"]["high"]
    for one in found["effectiveness"]:
        assert one["before"] < 0.1 < 0.9 < one["after"]
        assert one["low"] <= one["after"] <= one["high"]
        assert one["real"] > 0.9
    shifts = {one["reader"]: one["shift"] for one in found["amplification"]}
    assert shifts["view"] == pytest.approx(1, abs=0.15)
    assert max(shifts["age"], shifts["ill"]) < 0.3
    assert found["composition"]["by_construction"]
    assert found["composition"]["mae_decoded"] > 0.1 > found["composition"]["mae_null"]


def test_a_generator_that_changes_nothing_is_found_out(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cfcore.standardise.check.LEAST", 20)  # of 120 rows in four cells
    change = {"generator": "small_audit:Same", "title": "None", "tolerance": 0.2}
    change["predictors"] = {"mine": "mine.pt", "blind": "small_audit:blind"}
    small_audit.write(work, lambda plan: plan.update(change))

    found = audit(work / "plan.yml", work / "same", say=silent)

    assert found["asked"]["title"] == "None"
    assert found["asked"]["rules"]["tolerance"] == 0.2
    poor = [text for text in found["assumptions"] if "AUC on the audited images is only" in text]
    assert [text.partition(":")[0] for text in poor] == ["blind"]
    for one in found["generator"]["effectiveness"]:
        assert one["after"] == one["before"] < 0.1
    assert {one["shift"] for one in found["generator"]["amplification"]} == {0}
    assert found["generator"]["composition"]["psnr_decoded"] is None
    answers = {name: own["answer"] for name, own in found["generator"]["standardisation"].items()}
    assert answers == {"mine:ill": "refuted", "blind:ill": "not refuted"}
    far = [
        cell
        for cell in found["generator"]["standardisation"]["mine:ill"]["cells"]
        if cell["refuted"]
    ]
    words = {f"{view}, {ill} ill" for view in ("AP", "PA") for ill in ("with", "without")}
    assert far and {cell["words"] for cell in far} <= words


def test_with_few_patients_or_without_scikit_learn_the_report_says_that_nothing_is_known(
    work: Path, truth: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    (check,) = truth["generator"]["standardisation"].values()
    assert check["answer"] == "cannot be checked" and check["why"] is None
    shown = (work / "truth/report.html").read_text()
    assert "No world has enough observed patients to check the generator for mine:ill" in shown
    words = [f"{view}, {ill} ill" for ill in ("without", "with") for view in ("AP", "PA")]
    assert [cell["words"] for cell in check["cells"]] == words
    assert 90 < sum(cell["n"] for cell in check["cells"]) <= 120  # patients, once in each cell
    assert check["bounds"][0]["of"] == "S_var"

    monkeypatch.setitem(sys.modules, "sklearn", None)
    found = audit(small_audit.write(work), work / "truth", say=silent)

    (check,) = found["generator"]["standardisation"].values()
    assert check["answer"] == "not made" and check["cells"] == []
    assert check["why"].endswith("pip install 'cfcore[standardise]'")
    assert "sklearn is not installed" in (work / "truth/report.html").read_text()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads add up in another order than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained(work: Path) -> tuple[dict, Path]:
    """The findings with a generator that is trained for a moment, and pictures."""

    def change(plan: dict) -> None:
        plan |= {"generator": {"train": {"steps": 20}}, "pictures": "local", "device": "cpu"}
        plan |= {"nuisances": {"view": "all", "age": 2}, "title": "A trained one"}

    plan = shutil.copy(small_audit.write(work, change), work / "trained.yml")
    return audit(plan, work / "trained", say=silent), Path(plan)


def test_a_generator_is_trained_and_its_images_shown(trained: tuple[dict, Path]) -> None:
    found = trained[0]["generator"]

    assert found["trained"]["steps"] == 20
    assert found["trained"]["rows"] == 120
    assert any("same patients" in text for text in trained[0]["assumptions"])
    assert [one["kind"] for one in found["pictures"]] == ["median", "worst"]
    with Image.open(io.BytesIO(base64.b64decode(found["pictures"][0]["png"]))) as image:
        assert image.size == (5 * 32, 2 * 32)  # the observed one and four worlds
    ages = [one for one in found["effectiveness"] if one["variable"] == "age"]
    assert [one["wanted"] for one in ages] == [None, None]
    assert all(one["rows"] == 120 and one["after"] > 0 for one in ages)


def test_who_flips_is_known_by_recorded_nuisances_and_each_group_is_counted_once(
    trained: tuple[dict, Path], truth: dict
) -> None:
    for found in (trained[0], truth):  # the plan of the second names both as subgroups
        rows = found["predictors"]["mine:ill"]["subgroups"]
        flips = [row for row in rows if row["metric"] == "S_flip" and row["group"] != "gap"]
        groups = [row["group"] for row in flips]
        assert sorted(row["column"] for row in flips) == ["age"] * 3 + ["view"] * 2
        assert groups[:2] == ["AP", "PA"]
        assert any(group.startswith("up to ") for group in groups)
        assert sum(row["rows"] for row in flips) == 240


def test_a_finished_audit_is_not_done_again(
    trained: tuple[dict, Path], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(*_: object, **__: object) -> None:
        raise AssertionError("it is trained already")

    monkeypatch.setattr("cfscm.learning.fit", again)
    monkeypatch.setattr(readers, "train", again)
    monkeypatch.setattr(sys.modules["cfcore.marginalise"], "_new_shard", again)

    monkeypatch.chdir(work)

    found = cfscm.audit(yaml.safe_load(trained[1].read_text()), "trained", say=silent)

    same = {name for name in found if found[name] == trained[0][name]}
    assert same == set(found) - {"provenance"}


KILLED = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from cfscm.auditing import audit, readers
readers._STEPS = 1
stop = lambda line: line.startswith(sys.argv[3]) and os.kill(os.getpid(), signal.SIGKILL)
audit(*sys.argv[1:3], say=stop)
"""


def test_an_audit_that_is_killed_in_each_stage_goes_on_to_the_same_findings(
    trained: tuple[dict, Path], work: Path, tmp_path: Path
) -> None:
    out, lines = tmp_path / "out", []
    for line in ("generator: flow, step 10", "reader 2 of 3", "trust:"):
        child = [sys.executable, "-c", KILLED, trained[1], out, line]
        assert subprocess.run(child, stderr=subprocess.DEVNULL).returncode == -signal.SIGKILL
        assert (out / "generator.flow.checkpoint.safetensors").exists() == line.startswith("gen")
        assert not (out / "report.json").exists()

    found = audit(trained[1], out, say=lines.append)

    assert "generator: found trained, 20 steps" in lines
    assert "readers: found trained" in lines
    for name in ("generator", "reader-2", "predictions-0"):
        one, other = (folder / f"{name}.safetensors" for folder in (out, work / "trained"))
        assert one.read_bytes() == other.read_bytes(), name
    found["generator"]["trained"] = trained[0]["generator"]["trained"]  # of the last call
    assert {name for name in found if found[name] != trained[0][name]} == {"provenance"}
    names = {path.name for path in out.iterdir()}
    assert not any("checkpoint" in name or "pace" in name for name in names)


def test_a_training_that_takes_too_long_is_stopped(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = {"steps": 40, "minutes": 10}
    small_audit.write(work, lambda plan: plan.update(generator={"train": train}))
    monkeypatch.setattr("cfscm.learning._LATE", 0)

    trained = train_generator(work / "plan.yml", tmp_path / "out")

    assert trained["steps"] == 1  # of the autoencoder, when it is first looked at


def test_a_folder_of_something_else_is_refused(work: Path, tmp_path: Path, truth: dict) -> None:
    (tmp_path / "notes.txt").touch()
    plan = small_audit.write(work, lambda plan: plan.update(seed=1))

    with pytest.raises(InputError, match="is not empty and not of an audit"):
        audit(plan, tmp_path, say=silent)
    with pytest.raises(InputError, match=r"of another plan \(seed differs\)"):
        audit(plan, work / "truth", say=silent)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_plug_in_that_changed_is_noticed(work: Path) -> None:
    (work / "clf_of_mine.py").write_text("def clf(x, pa):\n    return 9 * x[:, 0, 0, 0]\n")
    plan = small_audit.write(work, lambda p: p["predictors"].update(mine="clf_of_mine:clf"))
    audit(plan, work / "plugged", say=silent)

    audit(plan, work / "plugged", say=silent)
    (work / "clf_of_mine.py").write_text("def clf(x, pa):\n    return -99 * x[:, 0, 0, 0]\n")

    with pytest.raises(InputError, match=r"plan \(the file of predictors.mine differs\)"):
        audit(plan, work / "plugged", say=silent)


def test_minutes_are_those_of_all_calls(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, ticks = small_audit.write(work), itertools.count(step=60)
    monkeypatch.setattr("cfscm.auditing.run.time", SimpleNamespace(monotonic=lambda: next(ticks)))

    once, twice = (audit(plan, work / "minutes", say=silent) for _ in range(2))

    stages = ("generator", "readers", "worlds", "trust")
    assert once["provenance"]["minutes"] == dict.fromkeys(stages, 1)
    assert twice["provenance"]["minutes"] == dict.fromkeys(stages, 2)


def test_what_is_made_of_real_patients_is_marked_and_kept_from_git(
    work: Path, tmp_path: Path
) -> None:
    def change(plan: dict) -> None:
        plan |= {"source": "ward-7", "generator": {"train": {"steps": 8}}, "pictures": "local"}

    plan, repository = small_audit.write(work, change), tmp_path / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    with pytest.raises(InputError, match="made from ward-7, which may not be shared"):
        audit(plan, repository / "out", say=silent)
    assert not (repository / "out").exists()

    out = tmp_path / "out"
    found = audit(plan, out, say=silent)

    assert found["provenance"]["restricted"] == marked(["ward-7"])["restricted"]
    names = ("report.html", "report.json", "audit.json", "generator.safetensors")
    names += (
        "generator.json",
        "reader-0.safetensors",
        "reader-0.json",
        "predictions-0.safetensors",
    )
    for name in names:
        assert sources_in((out / name).read_bytes()) == ["ward-7"], name
    for name in ("generator.safetensors", "generator.json"):
        shutil.copy(out / name, work / name.replace("generator", "marked"))
    plan = small_audit.write(work, lambda plan: plan.update(generator="marked.safetensors"))
    assert read_plan(plan).data.restricted == ("ward-7",)
    with pytest.raises(InputError, match="made from ward-7, which may not be shared"):
        audit(plan, repository / "out", say=silent)


def test_rows_of_one_group_are_audited_without_subgroups(work: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(work / "png", tmp_path / "png")).parent
    shutil.copy(work / "mine.pt", own)
    table = small_audit.table()
    table.loc[table.split == "test", "view"] = "AP"
    table.to_csv(own / "table.csv", index=False)

    found = audit(small_audit.write(own), own / "out", say=silent)

    assert (
        "The audited rows are all in one group by view: it makes no subgroups."
        in (found["assumptions"])
    )
    assert found["predictors"]["mine:ill"]["subgroups"] == []
    skill = {one["variable"]: one["skill"]["estimate"] for one in found["generator"]["readers"]}
    assert skill["view"] is None
    assert found["conclusions"][0]["verdict"] != "nothing"


def test_images_that_changed_are_noticed_and_a_tolerance_may_change(
    work: Path, tmp_path: Path, truth: dict
) -> None:
    small_audit.write(work)
    name = small_audit.table().query("split == 'train'").file.iloc[0]
    shutil.copy2(work / "png" / name, tmp_path)
    Image.new("L", (32, 32)).save(work / "png" / name)

    with pytest.raises(InputError, match=r"reader-0.safetensors: was trained on other rows, image"):
        audit(work / "plan.yml", work / "truth", say=silent)

    shutil.copy2(tmp_path / name, work / "png")
    plan = small_audit.write(work, lambda plan: plan.update(tolerance=0.4))
    found = audit(plan, work / "truth", say=silent)  # subgroups and tolerance may change
    assert truth["conclusions"][0]["verdict"] == "depends"
    assert found["conclusions"][0]["verdict"] == "none"


def test_names_of_columns_stay_what_they_are_in_the_findings(work: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(work, tmp_path / "own", ignore=shutil.ignore_patterns("truth")))
    hostile = {"view": "<script>alert(1)</script>", "ill": "../../ill: 'x'"}
    table = pd.read_csv(own / "table.csv").rename(columns=hostile)
    table.to_csv(own / "table.csv", index=False)

    def rename(plan: dict) -> None:
        plan["graph"] = {hostile.get(name, name): value for name, value in plan["graph"].items()}
        plan |= {"labels": [hostile["ill"]], "nuisances": {hostile["view"]: "all"}}
        plan |= {"generator": {"train": {"steps": 8}}, "subgroups": [hostile["view"]]}

    with pytest.raises(InputError, match="cannot name a variable of a network"):
        audit(small_audit.write(own, rename), own / "out", say=silent)
    plan = small_audit.write(own, lambda p: rename(p) or p.update(generator="small_audit:Same"))
    found = audit(plan, own / "out", say=silent)

    assert list(found["asked"]["nuisances"]) == [hostile["view"]]
    assert list(found["generator"]["composition"]["D_abs_null"]) == [f"mine:{hostile['ill']}"]
    names = {path.name for path in (own / "out").rglob("*")}
    assert not any("script" in name or "ill" in name for name in names)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    known = project["entry-points"]["cfcore.commands"]
    names = ("plan", "audit", "train-generator")
    made = [EntryPoint(name, known[name], "cfcore.commands") for name in names]
    monkeypatch.setattr("cfcore.cli.entry_points", lambda group: made)


@pytest.mark.usefixtures("commands")
def test_the_commands_say_what_they_do(
    work: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_audit.write(work, lambda plan: plan.update(generator={"train": {"steps": 8}}))
    plan, out = str(work / "plan.yml"), tmp_path / "generator"

    assert main(["plan", str(work / "table.csv")]) == 0
    assert "image: file" in capsys.readouterr().out
    assert main(["plan", str(work / "table.csv"), "--out", plan]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["audit", plan, "--check"]) == 0
    assert "will train a generator on 120 rows: about 8 steps" in capsys.readouterr().out
    assert main(["audit", plan]) == 2
    capsys.readouterr()
    for condition, message in (("S_flop > 0.1", "no metric S_flop"), ("S_flip", "of the form")):
        assert main(["audit", plan, "--out", str(out), "--fail-if", condition]) == 2
        assert message in capsys.readouterr().err
        assert not out.exists()
    assert main(["train-generator", plan, "--out", str(out)]) == 0
    assert "steps 8" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["cfscm", "train", plan, "--out", str(out)])
    assert cfscm_main() == 0
    assert "generator: found trained, 8 steps" in capsys.readouterr().err
    shutil.copy(out / "generator.safetensors", work / "g.safetensors")
    shutil.copy(out / "generator.json", work / "g.json")
    small_audit.write(work, lambda plan: plan.update(generator="g.safetensors"))
    assert main(["audit", plan, "--check"]) == 0
    assert main(["train-generator", plan, "--out", str(out)]) == 2


class Site:
    """Red shows one of three sites, green an age."""

    def abduct(self, x: Tensor, pa: dict, *, index: object = None, rng: object = None) -> Tensor:
        return x[:, 2:]

    def predict(self, noise: Tensor, pa: dict) -> Tensor:
        parts = (pa["site"] / 2, pa["age"] / 100)
        return torch.cat([*(p[:, None, None, None].expand_as(noise) for p in parts), noise], dim=1)


class Perfect(nn.Module):
    """Reads a variable off its colour without an error."""

    def __init__(self, variable: Variable, channel: int) -> None:
        super().__init__()
        self.variable, self.channel = variable, channel

    def forward(self, x: Tensor, pa: object = None) -> Tensor:
        shade = x[:, self.channel].mean(dim=(1, 2))
        if self.variable.kind == "continuous":
            return 100 * shade
        return -((2 * shade[:, None] - torch.arange(3)) ** 2)


def test_sites_and_ages_in_colour_are_judged_alike() -> None:
    rng = torch.Generator().manual_seed(0)
    site = torch.randint(3, (60,), generator=rng).float()
    age = torch.randint(20, 90, (60,), generator=rng).float()
    noise = torch.rand(60, 1, 16, 16, generator=rng)
    pa = {"site": site, "age": age}
    data = Patients(Site().predict(noise, pa), pa, patient=[i // 2 for i in range(60)])
    place = Variable("site", "categorical", categories=("a", "b", "c"))
    variables = {"site": place, "age": Variable("age", "continuous", range=(0.0, 100.0))}
    perfect = {name: Perfect(v, i) for i, (name, v) in enumerate(variables.items())}
    nuisances = {"site": [0.0, 1.0, 2.0], "age": [30.0, 80.0]}
    sampling = check_resampling(60, data.patient, 100)

    judged = readers.judge_images(Site(), data, nuisances, perfect, "direct")
    found = readers.effectiveness(*judged, data, variables, sampling)
    moved = readers.amplification(*judged, data, variables, sampling)
    skills = readers.skills(perfect, data, sampling)

    assert [one["after"] for one in found] == pytest.approx([1, 1, 1, 0, 0], abs=1e-4)
    assert [one["before"] for one in found[:3]] == [0, 0, 0]
    assert [one["real"] for one in found] == pytest.approx([1, 1, 1, 0, 0], abs=1e-4)
    shifts = {(one["do"], one["reader"]): one["shift"] for one in moved}
    assert shifts["site", "site"] == pytest.approx(1, abs=0.1)
    assert shifts["age", "age"] > 0.5
    assert max(shifts["site", "age"], shifts["age", "site"]) == pytest.approx(0, abs=1e-5)
    assert [one["skill"]["estimate"] for one in skills] == pytest.approx([1, 1], abs=1e-4)
    graph = CausalGraph(variables.values())
    assert readers.composition(Site(), data, graph)["mae_null"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("ages", [[20, 90], [90, 20], [20, 30, 90, 90, 90], [20, 20, 20, 90]])
def test_a_number_that_most_rows_share_has_groups(ages: list[float]) -> None:
    own = torch.tensor(ages)
    variable = Variable("age", "continuous", range=(0.0, 100.0))

    assert 60 <= readers._apart(variable, own[:, None].double(), own).item() <= 70


def test_readers_of_colour_are_trained(tmp_path: Path) -> None:
    site = torch.arange(72) % 3
    x = 0.1 * torch.rand(72, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    x[torch.arange(72), site] += 0.5
    data = Patients(x, {"site": site})
    place = {"site": Variable("site", "categorical", categories=("a", "b", "c"))}
    how = {"seed": 0, "made_of": "colour", "say": silent}

    made = readers.train_readers(place, data, tmp_path, **how)
    again = readers.train_readers(place, data, tmp_path, **how)

    assert torch.equal(made["site"](x), again["site"](x))
    skill = readers.skills(made, data, check_resampling(72, None, 20))[0]["skill"]
    assert 0.8 < skill["estimate"] <= 1
    assert skill["low"] <= skill["estimate"] <= skill["high"]
