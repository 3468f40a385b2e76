"""Plans: what is wrong is said by its key or its cell, before anything is computed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import small_audit
import torch
import yaml
from PIL import Image

from cfcore.checks import InputError
from cfcore.interventions import Grid
from cfscm.auditing import audit, describe, read_plan
from cfscm.auditing.adapters import imported
from cfscm.auditing.draft import draft_plan


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "work"
    small_audit.make(folder)
    return folder


@pytest.fixture
def work(original: Path, tmp_path: Path) -> Path:
    """A folder with a table, images, a classifier and a plan, to be spoilt."""
    folder = Path(shutil.copytree(original, tmp_path / "work"))
    small_audit.write(folder)
    return folder


def put(*keys: str, value: object) -> Callable[[dict], None]:
    """A change of a plan: a value under nested keys."""

    def change(plan: dict) -> None:
        for key in keys[:-1]:
            plan = plan[key]
        plan[keys[-1]] = value

    return change


def drop(key: str) -> Callable[[dict], None]:
    return lambda plan: plan.pop(key)


SEX = {"kind": "binary"}
TRAIN = {"train": {"minutes": 1}}
BAD_PLANS = {
    "a misspelt key": (put("lables", value="ill"), "plan.yml, lables: .*did you mean 'labels'"),
    "a missing key": (drop("generator"), "plan.yml, generator: is missing; `cfcore plan TABLE`"),
    "a number for text": (put("image", value=3), "plan.yml, image: is text, not 3"),
    "a missing table": (put("table", value="no.csv"), "plan.yml, table: there is no .*no.csv"),
    "a missing folder": (put("images", value="jpg"), "plan.yml, images: there is no .*jpg"),
    "a column": (put("patient", value="patent"), "plan.yml, patient: table.csv .*mean 'patient'"),
    "a parent": (put("graph", "sex", value=SEX), "plan.yml, graph.sex: table.csv has no column"),
    "a kind": (put("graph", "age", "kind", value="real"), "plan.yml, graph: .*age: kind must"),
    "no file of a graph": (put("graph", value=".."), "plan.yml, graph: .*: Is a directory"),
    "a cycle": (put("graph", "age", "parents", value=["ill"]), "plan.yml, graph: .*cycle"),
    "a range": (put("graph", "age", "range", value=[20, 60]), r"table.csv, row \d+, column age: "),
    "categories": (
        put("graph", "view", "categories", value=["AP", "LL"]),
        r"table.csv, row \d+, column view: 'PA' is not one of AP, LL",
    ),
    "no labels": (put("labels", value=[]), "plan.yml, labels: is a column or a list"),
    "a label": (put("labels", value=["age"]), "plan.yml, labels: 'age' is not binary"),
    "a label of text": (
        put("labels", value=["split"]),
        "table.csv, row 2, column split: 'test' is not one of 0, 1",
    ),
    "its own nuisance": (put("nuisances", "ill", value="all"), "nuisances.ill: is a label too"),
    "a nuisance": (put("nuisances", "veiw", value="all"), "nuisances.veiw: .*mean 'view'"),
    "a level": (put("nuisances", "view", value=["AP", "LL"]), "nuisances.view: view takes one of"),
    "a value": (put("nuisances", "age", value=[30, 99]), "nuisances.age: age lies in"),
    "one world": (put("nuisances", "view", value=["AP"]), "nuisances.view: needs two values"),
    "a count": (put("nuisances", "view", value=3), "nuisances.view: is a list of values, or all"),
    "many worlds": (
        put("nuisances", "age", value=[20 + i / 10 for i in range(600)]),
        "plan.yml, nuisances: make 1200 worlds, more than 1000",
    ),
    "q": (put("q", value=[1, 1, 1]), "plan.yml, q: .*3 weights, but there are 2"),
    "a word for q": (put("q", value="even"), "plan.yml, q: is uniform, empirical or 2 numbers"),
    "no weight": (put("q", value=[1, 0]), "plan.yml, q: no world in which view is PA has a weight"),
    "no row near": (
        lambda plan: plan.update(q="empirical", nuisances={"age": [20, 89.6, 90]}),
        "plan.yml, q: no world in which age is 90 has a weight; .*say uniform",
    ),
    "a source": (put("source", value="Ward 7"), "plan.yml, source: 'Ward 7' cannot name a source"),
    "an effect": (put("effect", value="indirect"), "plan.yml, effect: is direct or total"),
    "total without act": (put("effect", value="total"), "plan.yml, generator: Bright has no act"),
    "a threshold": (put("threshold", value=1.5), "plan.yml, threshold: 1.5 is outside"),
    "a tolerance": (put("tolerance", value=5), "plan.yml, tolerance: 5 is outside"),
    "one threshold": (put("threshold", value={"ill": "x"}), "threshold.ill: must be a number"),
    "thresholds": (put("threshold", value={"sick": 0.5}), "plan.yml, threshold: is for .'sick'."),
    "a subgroup": (put("subgroups", value=["file"]), "plan.yml, subgroups: 'file' has 120 values"),
    "pictures": (put("pictures", value="all"), "plan.yml, pictures: is none or local"),
    "replicates": (put("replicates", value=1), "plan.yml, replicates: 1 is less than 2"),
    "a size": (put("size", value=True), "plan.yml, size: is a whole number, not True"),
    "both splits": (put("rows", "share", value=0.5), "plan.yml, rows: needs train: COLUMN"),
    "a column of rows": (put("rows", "train", value="slit == a"), "rows.train: .*mean 'split'"),
    "a value of rows": (put("rows", "train", value="split == a"), "rows.train: no 'split' is 'a'"),
    "shared patients": (
        put("rows", "train", value="view == AP"),
        r"plan.yml, rows: \d+ patients are in training and in audited rows, such as 'p\d+' \(rows",
    ),
    "few rows": (put("rows", value={"share": 0.1}), "plan.yml, rows: 24 rows to train, and 60"),
    "no predictor": (put("predictors", value={}), "plan.yml, predictors: name one"),
    "a file": (put("predictors", "mine", value="my.pt"), "predictors.mine: there is no file"),
    "a module": (put("predictors", "mine", value="nowhere:net"), "mine: 'nowhere:net' cannot be"),
    "neither": (put("predictors", "mine", value="net"), "predictors.mine: 'net' is neither"),
    "not callable": (put("predictors", "mine", value="math:pi"), "mine: 'math:pi' is a float"),
    "its key": (put("predictors", "mine", value={"lode": "mine.pt"}), "mine.lode: .*mean 'load'"),
    "an output": (
        put("predictors", "mine", value={"load": "mine.pt", "outputs": {"ill": 3}}),
        r"predictors.mine: gives \(2, 1\) for 2 images, not an output number 3",
    ),
    "another label": (
        put("predictors", "mine", value={"load": "mine.pt", "outputs": ["fever"]}),
        "predictors.mine.outputs: 'fever' is none of",
    ),
    "an input": (
        put("predictors", "mine", value={"load": "mine.pt", "input": {"mean": [1, 2, 3]}}),
        "predictors.mine.input: mean has 3 numbers for 1 channels",
    ),
    "one class": (
        put("predictors", "mine", value={"load": "mine.pt", "scores": "softmax"}),
        "predictors.mine: gives one output, and a softmax needs two",
    ),
    "unknown scores": (
        put("predictors", "mine", value={"load": "mine.pt", "scores": "odds"}),
        "predictors.mine: scores are logits, probabilities, softmax, not 'odds'",
    ),
    "scores": (
        put("predictors", "mine", value={"load": "mine.pt", "scores": "probabilities"}),
        "predictors.mine: gives .* not probabilities",
    ),
    "a device": (put("device", value="cuda:99"), "plan.yml, device: 'cuda:99' cannot be used"),
    "needs arguments": (
        put("generator", value="small_audit:Needy"),
        "generator: 'small_audit:Needy', called without arguments, fails: TypeError: .*weights",
    ),
    "another size": (
        put("generator", value="small_audit:Half"),
        r"generator: draws \(2, 1, 16, 16\) for images \(2, 1, 32, 32\)",
    ),
    "no noise": (
        put("generator", value="small_audit:Named"),
        "generator: repeating the noise, which must be tensors",
    ),
    "no generator": (put("generator", value="math:pi"), "plan.yml, generator: float has no method"),
    "a budget": (put("generator", value={"train": {}}), "generator.train: needs minutes"),
    "a time": (put("generator", value={"train": {"minute": 1}}), "train.minute: .*'minutes'"),
    "no time": (
        put("generator", value={"train": {"minutes": 0}}),
        "generator.train: needs minutes",
    ),
    "weights": (put("generator", value="mine.safetensors"), "generator: there is no file"),
    "a side": (
        lambda plan: plan.update(size=30, generator=TRAIN),
        "generator.train: the images have 30 x 30 pixels",
    ),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_a_bad_plan_is_refused_by_its_key_and_nothing_is_written(name: str, original: Path) -> None:
    change, message = BAD_PLANS[name]
    small_audit.write(original, change)
    before = sorted(original.rglob("*"))

    with pytest.raises(InputError, match=message):
        audit(original / "plan.yml", original / "out")

    assert sorted(original.rglob("*")) == before


def cell(row: int, column: str, value: object) -> Callable[[Path], None]:
    def spoil(work: Path) -> None:
        table = pd.read_csv(work / "table.csv", dtype=str)
        table.loc[row, column] = value
        table.to_csv(work / "table.csv", index=False)

    return spoil


def file(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda work: (work / name).write_bytes(content)


def resize(work: Path) -> None:
    Image.new("L", (16, 16)).save(work / "png/004.png")


def colour(work: Path) -> None:
    Image.new("RGB", (32, 32)).save(work / "png/004.png")


def coloured_archive(work: Path) -> None:
    names = [f"{i:03}.png" for i in range(240)]
    np.savez(work / "png.npz", images=np.zeros((240, 3, 32, 32), np.uint8), image=names)
    small_audit.write(work, lambda plan: plan.update(images="png.npz", grey=True))


def pickled(work: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), work / "mine.pt")


def coloured(work: Path) -> None:
    script = torch.nn.Sequential(torch.nn.Conv2d(3, 1, 32), torch.nn.Flatten())
    script.channels = 3
    small_audit.script(script, work / "mine.pt")


def bounded(work: Path) -> None:
    script = torch.nn.Sequential(small_audit.Corner(), torch.nn.Sigmoid())
    script.channels = 1
    small_audit.script(script, work / "mine.pt")


def twice(work: Path) -> None:
    table = pd.read_csv(work / "table.csv")
    rows = [table.index[table.split == name][0] for name in ("train", "test")]
    table.loc[rows[1], "file"] = table.file[rows[0]]
    table.to_csv(work / "table.csv", index=False)


def one_patient(work: Path) -> None:
    table = pd.read_csv(work / "table.csv")
    table.loc[table.split == "train", "patient"] = "everybody"
    table.to_csv(work / "table.csv", index=False)


def archived(work: Path) -> None:
    names = [f"{i:03}.png" for i in range(200)]
    np.savez(work / "png.npz", images=np.zeros((200, 32, 32), np.uint8), image=names)
    small_audit.write(work, put("images", value="png.npz"))


def reserved(work: Path) -> None:
    table = pd.read_csv(work / "table.csv").rename(columns={"view": "items"})
    table.to_csv(work / "table.csv", index=False)

    def change(plan: dict) -> None:
        plan["graph"]["items"] = plan["graph"].pop("view")
        plan |= {"nuisances": {"items": "all"}, "generator": TRAIN}

    small_audit.write(work, change)


def column(name: str, audited: Callable[[int], str]) -> Callable[[Path], None]:
    """Another column of the table, with a value for each audited row; the graph may know it."""

    def spoil(work: Path) -> None:
        table = pd.read_csv(work / "table.csv")
        table[name] = [
            audited(i) if s == "test" else f"v{i // 4}" for i, s in enumerate(table.split)
        ]
        table.to_csv(work / "table.csv", index=False)

    return spoil


def many_sites(work: Path) -> None:
    column("site", lambda i: f"v{i // 4}")(work)

    def change(plan: dict) -> None:
        codes = [f"v{i}" for i in range(60)]
        plan["graph"]["site"] = {"kind": "categorical", "categories": codes}
        plan["nuisances"] = {"site": ["v2", "v3"]}

    small_audit.write(work, change)


def one_ward(work: Path) -> None:
    column("ward", lambda i: "A")(work)
    small_audit.write(work, put("subgroups", value=["ward"]))


def parquet(name: str) -> Callable[[Path], None]:
    """The table as parquet, in which a cell is missing."""

    def spoil(work: Path) -> None:
        table = pd.read_csv(work / "table.csv", dtype={"patient": str})
        table.loc[7, name] = None
        table.to_parquet(work / "table.parquet")
        small_audit.write(work, put("table", value="table.parquet"))

    return spoil


BAD_FILES = {
    "many groups": (many_sites, "plan.yml, nuisances.site: 'site' has 60 values, more than 50"),
    "one group": (one_ward, "plan.yml, subgroups: 'ward' has one value only in the rows to audit"),
    "no name of an image": (parquet("file"), "parquet, row 7, column file: the cell is empty"),
    "a missing patient": (parquet("patient"), "parquet, row 7, column patient: the cell is empty"),
    "a missing view": (parquet("view"), "parquet, row 7, column view: the cell is empty"),
    "a word of torch": (reserved, "generator.train: 'items' cannot name a variable of a network"),
    "an empty cell": (cell(7, "view", ""), "table.csv, row 9, column view: the cell is empty"),
    "a label": (cell(7, "ill", "2"), "table.csv, row 9, column ill: '2' is not one of 0, 1"),
    "a number": (cell(7, "age", "old"), "table.csv, row 9, column age: 'old' is not a finite"),
    "a patient": (cell(7, "patient", ""), "table.csv, row 9, column patient: the cell is empty"),
    "no file": (cell(7, "file", "x.png"), "row 9, column file: .*x.png: there is no such file"),
    "no image": (file("png/004.png", b"GIF"), "row 6, column file: .*no image that can be read"),
    "a size": (resize, r"row 6, column file: .*004.png: \(16, 16\) pixels, others \(32, 32\)"),
    "colour": (colour, r"row 6, column file: .*004.png: \(3, 32, 32\) pixels, others \(32, 32\)"),
    "an archive": (coloured_archive, "plan.yml, grey: is for files; store grey images"),
    "a pickle": (pickled, "predictors.mine: .*mine.pt is not TorchScript .*nothing is unpickled"),
    "channels": (
        coloured,
        r"^plan.yml, predictors.mine: fails on images \(1, 32, 32\): .{,20}Given .*channels: 3",
    ),
    "probabilities": (bounded, "predictors.mine: gives 0.* to 0.* say scores: probabilities"),
    "an image twice": (twice, "row 2, column file: the image is in a training row too"),
    "one patient": (one_patient, "plan.yml, rows: 120 rows to train, and 60 of 12 patients are"),
    "no script": (file("mine.pt", b"PK"), "predictors.mine: .*mine.pt is not TorchScript"),
    "no name": (archived, "row 202, column file: .*png.npz has no image '200.png'"),
    "no YAML": (file("plan.yml", b"table: ["), "plan.yml: cannot be read as YAML"),
    "a list": (file("plan.yml", b"- table"), "plan.yml: needs keys and values"),
    "a key twice": (file("plan.yml", b"seed: 1\nseed: 2\n"), "line 2: the key 'seed' is there twi"),
    "no table": (file("table.csv", b""), "table.csv: the file is empty"),
    "ragged": (file("table.csv", b"a,b\n1\n"), "table.csv, row 2: 1 cells"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_by_its_place(name: str, work: Path) -> None:
    spoil, message = BAD_FILES[name]
    spoil(work)

    with pytest.raises(InputError, match=message):
        audit(work / "plan.yml", work / "out")

    assert not (work / "out").exists()


def test_a_plan_is_read_and_described(work: Path) -> None:
    plan = read_plan(small_audit.write(work, put("nuisances", "age", value={"quantiles": 3})))

    assert len(plan.train) == len(plan.audited) == 120
    assert list(plan.nuisances) == ["view", "age"]
    assert isinstance(plan.grid, Grid)
    assert len(plan.grid) == 6
    ages = plan.data.parents["age"][plan.audited].double().numpy()
    assert plan.nuisances["age"] == np.quantile(ages, [1 / 6, 1 / 2, 5 / 6]).tolist()
    text = "\n".join(describe(plan))
    assert "audits 120 rows of 60 patients; 120 rows of 60 others train" in text
    assert "view to AP, PA; age to" in text
    assert "minutes" in text


def test_rows_of_a_parquet_are_patients_of_their_own_whatever_its_index_says(work: Path) -> None:
    table = pd.read_csv(work / "table.csv").set_axis([i % 5 for i in range(240)])
    table.to_parquet(work / "table.parquet")

    def change(plan: dict) -> None:
        del plan["patient"]
        plan |= {"table": "table.parquet", "rows": {"share": 0.5}}

    plan = read_plan(small_audit.write(work, change))

    assert len(set(plan.data.patient)) == 240
    assert len(plan.train) == len(plan.audited) == 120


def test_each_plan_has_the_modules_beside_it(work: Path, original: Path) -> None:
    scores = {}
    for folder, factor in ((work, 1), (original, 10), (work, 100)):
        (folder / "clf_beside.py").write_text("from net_beside import net\nclf = net\n")
        text = f"def net(x, pa):\n    return {factor} * (x.mean(dim=(1, 2, 3)) - 9)\n"
        (folder / "net_beside.py").write_text(text)
        plan = read_plan(
            small_audit.write(folder, put("predictors", "mine", value="clf_beside:clf"))
        )
        scores[factor] = plan.predictors["mine"](plan.data[[0]], {}).item()
        assert plan.digests["predictors.mine"].startswith("clf_beside:clf ")

    assert scores[10] == pytest.approx(10 * scores[1])
    assert scores[100] == pytest.approx(100 * scores[1])
    (work / "json.py").write_text("loads = None\n")
    with pytest.raises(
        InputError, match=r"predictors.mine: 'json:loads': a module 'json' of .*before"
    ):
        read_plan(small_audit.write(work, put("predictors", "mine", value="json:loads")))


def test_colour_is_reduced_if_the_plan_says_so(work: Path) -> None:
    colour(work)

    plan = read_plan(small_audit.write(work, put("grey", value=True)))

    assert plan.data[[3, 4]].shape == (2, 1, 32, 32)


def test_q_may_be_that_of_the_audited_rows(work: Path) -> None:
    plan = read_plan(small_audit.write(work, put("q", value="empirical")))

    share = (plan.data.parents["view"][plan.audited] == 1).double().mean().item()
    assert plan.grid.q.tolist() == pytest.approx([1 - share, share])


def test_a_share_of_the_patients_leaves_no_patient_on_both_sides(work: Path) -> None:
    plan = read_plan(small_audit.write(work, put("rows", value={"share": 0.6})))

    train, audited = ({plan.data.patient[i] for i in r} for r in (plan.train, plan.audited))
    assert (len(train), len(audited), train & audited) == (72, 48, set())


def test_a_classifier_gets_the_input_and_gives_the_outputs_that_the_plan_says(work: Path) -> None:
    net = small_audit.Corner(outputs=14, channels=3)
    small_audit.script(net, work / "wide.pt")
    wide = {"load": "wide.pt", "outputs": {"ill": 5}, "input": {"channels": 3, "size": 64}}
    wide["input"] |= {"mean": 0.5, "std": [0.25, 0.25, 0.25]}
    plan = read_plan(small_audit.write(work, put("predictors", "wide", value=wide)))
    x = plan.data[[0, 1]]

    found = plan.predictors["wide"](x, {})

    # The script was traced for 32 pixels, where its corners are.
    large = torch.nn.functional.interpolate(x, size=(64, 64), mode="bilinear").expand(-1, 3, -1, -1)
    assert torch.allclose(found, net((large - 0.5) / 0.25)[:, :1], atol=1e-5)


def test_classes_of_which_one_is_right_become_log_odds(work: Path) -> None:
    small_audit.script(small_audit.Classes(), work / "two.pt")
    two = {"load": "two.pt", "outputs": {"ill": 1}, "scores": "softmax"}
    plan = read_plan(small_audit.write(work, put("predictors", "two", value=two)))
    x = plan.data[[0, 1]]

    healthy, ill = small_audit.Classes()(x).T

    assert torch.allclose(plan.predictors["two"](x, {})[:, 0], ill - healthy, atol=1e-4)
    network = torch.nn.Sequential(small_audit.Classes(), torch.nn.Softmax(dim=1))
    small_audit.script(network, work / "two.pt")
    with pytest.raises(InputError, match=r"predictors\.two: ends in a softmax already"):
        read_plan(work / "plan.yml")


def test_names_of_columns_may_be_anything(work: Path) -> None:
    hostile = {"view": "<b>v</b>: 'x'", "ill": 'a"; DROP\nTABLE', "split": "a == b"}
    table = pd.read_csv(work / "table.csv").rename(columns=hostile)
    table.to_csv(work / "table.csv", index=False)

    def rename(plan: dict) -> None:
        plan["graph"] = {hostile.get(name, name): value for name, value in plan["graph"].items()}
        plan |= {"labels": [hostile["ill"]], "nuisances": {hostile["view"]: "all"}}
        plan["rows"] = {"train": "a == b == train"}
        plan["subgroups"] = [hostile["view"]]
        plan["generator"] = "small_audit:Same"

    plan = read_plan(small_audit.write(work, rename))

    assert list(plan.nuisances) == [hostile["view"]]
    assert list(plan.data.labels) == [hostile["ill"]]
    assert len(plan.train) == 120


def test_a_plan_is_drafted_from_a_table_and_needs_few_changes(work: Path) -> None:
    (work / "plan.yml").write_text(draft_plan(work / "table.csv"))
    drafted = yaml.safe_load((work / "plan.yml").read_text())
    assert (drafted["image"], drafted["patient"], drafted["labels"]) == ("file", "patient", ["ill"])
    assert drafted["graph"]["view"] == {"kind": "binary", "categories": ["AP", "PA"]}
    assert drafted["rows"] == {"train": "split == test"}

    assert (drafted["images"], drafted["nuisances"]) == ("png", {"view": "all"})

    text = (work / "plan.yml").read_text()
    (work / "plan.yml").write_text(text.replace("classifier.pt", "mine.pt"))

    assert len(read_plan(work / "plan.yml").grid) == 2
    pd.read_csv(work / "table.csv").to_parquet(work / "table.parquet")
    again = draft_plan(work / "table.parquet").replace("parquet", "csv")
    assert again == draft_plan(work / "table.csv")


def test_a_draft_quotes_whatever_a_table_holds(tmp_path: Path) -> None:
    odd = {"a: [b": ["no", "yes"], "#x\ny": ["0", "1"], "f": ["a b.png", "c.png"], "null": "1.5 2"}
    odd["null"] = ["-", "~"]
    pd.DataFrame(odd).to_csv(tmp_path / "t.csv", index=False)

    drafted = yaml.safe_load(draft_plan(tmp_path / "t.csv"))

    assert drafted["graph"]["a: [b"] == {"kind": "binary", "categories": ["no", "yes"]}
    assert drafted["graph"]["null"]["categories"] == ["-", "~"]
    assert drafted["labels"] == ["#x\ny"]
    assert drafted["image"] == "f"


def test_a_plug_in_beside_the_user_is_found_and_what_makes_one_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin_beside_the_user.py").write_text(
        "class Generator: pass\n"
        "def generator(size=64): return Generator()\n"
        "def predictor(x, pa): return x\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in __import__("sys").path if p not in ("", ".")])

    assert type(imported("plugin_beside_the_user:generator")).__name__ == "Generator"
    assert type(imported("plugin_beside_the_user:Generator")).__name__ == "Generator"
    assert imported("plugin_beside_the_user:predictor")(3, {}) == 3
