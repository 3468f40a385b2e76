"""The labs: their cells run in order, in small, and find what the pages say."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from cfbook.production.notebooks import check_given, read
from cfbook.theory.estimators import tolerable_generator_noise
from cfscm.auditing import readers

ROOT = Path(__file__).parents[2]
LABS = sorted((ROOT / "book").glob("lab_*.md"))


def run_lab(name: str, folder: Path, **given: object) -> dict:
    """The names that the cells of a lab leave behind, run as a script with other parameters."""
    path, names = ROOT / f"book/lab_{name}.md", {"__name__": "lab"}
    notebook, printed = read(path), io.StringIO()
    check_given(path, notebook, given)
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            exec(compile(cell.source, path.name, "exec"), names)
            if "parameters" in cell.metadata.get("tags", []):
                names.update(given)
    return names | {"printed": printed.getvalue()}


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_the_steps_of_a_lab_take_ninety_minutes(path: Path) -> None:
    page = path.read_text()
    steps = [int(minutes) for minutes in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]

    assert re.findall(r"^## .+ \((\d+) minutes\)$", page, re.MULTILINE) == [*map(str, steps)]
    assert sum(steps) == 90 and "(90 minutes)" in page
    for step in page.split("\n## ")[1:]:
        assert "{exercise}" in step and "{solution}" in step, "a step has a task and a finding"


def test_the_lab_on_variance_finds_what_it_says(tmp_path: Path) -> None:
    names = run_lab("variance", tmp_path, runs=600, patients=600)

    assert [names[name].mean.item() for name in ("few", "many")] == pytest.approx([0.4, 0.4])
    assert names["answer_1"].item() == pytest.approx(0.04 / (0.056 / 6))
    assert names["printed"].count("right\n") == 3

    # A correct model: 1 in every row, whatever the noise.
    correct = names["correct"].query("estimator == 'counterfactual'")
    assert correct.scaled.between(0.8, 1.25).all()
    # Noise on top: two gains, of which the proposition promises the first, and a loss.
    wide = names["scattered"].pivot(index="noise", columns="estimator", values="scaled")
    assert (wide.counterfactual < wide.observational).tolist() == [True, True, False]
    promised = tolerable_generator_noise(1.0, n_z=50, n=200).item()
    assert (promised, names["answer_3"].item()) == (0.75, 3)
    assert (wide.index <= promised).tolist() == [True, False, False]

    # On the phantom the rare subgroup gains more, and held lungs are a bias.
    gains = names["gains"]
    assert gains.share["race 2"] < 0.25 < gains.share["women, total"]
    assert gains.ratio["race 2"] < gains.ratio["women, total"] < 1
    assert names["bias"].low * names["bias"].high > 0
    assert names["answer_7"].item() == pytest.approx(1125)


def test_the_lab_on_auditing_finds_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_STEPS", 60)
    names = run_lab("audit", tmp_path, replicates=60, rows=500)

    observed, moved = names["observed"], names["moved"]
    assert observed.loc["R_orig", "A"] < observed.loc["R_orig", "B"]
    assert observed.loc["AUC_orig", "A"] > observed.loc["AUC_orig", "B"]
    for metric in ("R_IE", "S_var", "S_flip"):
        assert moved.loc[metric, "A"] > moved.loc[metric, "B"], metric
    flips = {
        k: t.query("metric == 'S_flip'").set_index("group") for k, t in names["groups"].items()
    }
    for group in ("woman", "man"):
        assert flips["A"].low[group] > flips["B"].high[group]
    assert flips["A"].low["gap"] > 0 and flips["A"].worst["gap"] == "man"
    change = names["change"].set_index("metric")
    assert change.low["R_orig"] < 0 < change.high["R_orig"], "the page says it contains zero"
    assert max(change.high["R_IE"], change.high["S_var"]) < 0

    said = {k: {one["about"]: one["verdict"] for one in found["conclusions"]}
            for k, found in names["audits"].items()}  # fmt: skip
    assert said["truth"]["sex-biased:effusion"] == "depends"
    assert said["truth"]["unbiased:effusion"] != "depends"
    assert set(said["identity"].values()) == {"nothing"}
    for name in names["audits"]:
        assert (tmp_path / "audit" / name / "report.html").is_file()
