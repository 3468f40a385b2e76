"""The report: what it concludes, that it is one safe page, and that it gates."""

import copy
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
import torch
from jsonschema import Draft202012Validator
from playwright.sync_api import sync_playwright

import cfcore
from cfcore import InputError, Predictions, UndefinedMetricWarning
from cfcore.cli import main
from cfcore.report.conclusions import conclude, gate, trust
from cfcore.report.findings import Question, judge
from cfcore.report.page import write_report

HOSTILE = (
    """<script>alert(1)</script> & {{ 7 * 7 }} {0} {words} %s "a" 'b' \\ _ # ~ ^ $ é 中"""
    + "x" * 120
)
SCHEMA = Path(cfcore.__file__).parent / "report/schema.json"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = os.environ.get("CFCORE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def predictions(sex: float, rows: int = 300) -> Predictions:
    """Of a score that moves by so many logits with sex, and hardly with age."""
    rng = torch.Generator().manual_seed(2032)
    obs = torch.randn(rows, generator=rng)
    grid = {"sex": torch.tensor([0.0, 0, 1, 1]), "age": torch.tensor([20.0, 60, 20, 60])}
    cf = obs[:, None] + sex * grid["sex"] + 1e-4 * grid["age"]
    return Predictions(obs, cf, grid, y=(torch.rand(rows, generator=rng) < obs.sigmoid()).long())


def reader(variable: str, kind: str, skill: float) -> dict:
    of = {"metric": "AUC", "estimate": skill, "low": skill - 0.01, "high": skill + 0.01}
    return {"variable": variable, "kind": kind, "skill": of, "rows": 100}


def moved(variable: str, before: float, after: float, real: float | None = None) -> dict:
    row = {"variable": variable, "value": 1.0, "words": "1", "before": before, "after": after}
    row |= {"low": after - 0.01, "high": after + 0.01, "rows": 100, "real": real}
    return row | {"wanted": 1.0}


def shift(do: str, reader: str, far: float) -> dict:
    ends = {"low": max(far - 0.1, 0), "high": far + 0.1}
    return {"do": do, "reader": reader, "shift": far, **ends, "own": do == reader}


def check(answer: str, *differences: float, words: str = "1, 60", width: float = 0.1) -> dict:
    """What a check says, of as many cells; those whose intervals leave out 0 are refuted."""
    cells = []
    for k, far in enumerate(differences):
        cell = {"world": k, "words": words, "y": None, "n": 50, "effective": 40.5, "left_out": 0.0}
        cell |= {"drawn": 0.4 + far, "known": 0.4, "difference": far, "smallest": 0.15}
        cell |= {"low": far - width, "high": far + width, "checked": True}
        cell["refuted"] = abs(far) > width
        cells.append(cell)
    cells.append(cells[0] | {"n": 2, "checked": False, "refuted": False} if cells else {})
    bounds = [
        {"of": name, "least": 0.02, "low_limit": 0.01, "drawn": 0.009}
        for name in ("S_var", f"S_var_{words}")
    ]
    why = "sklearn is not installed" if answer == "not made" else None
    return {
        "answer": answer,
        "why": why,
        "cells": cells if differences else [],
        "bounds": bounds if differences else [],
    }


@pytest.fixture
def asked() -> dict:
    nuisances = {
        "sex": {"values": [0.0, 1.0], "words": ["men", HOSTILE], "unit": ""},
        "age": {"values": [20.0, 60.0], "words": ["20", "60"], "unit": "years"},
    }
    generator = {
        "name": "toy",
        "trained": None,
        "readers": [reader("sex", "binary", 0.97), reader("age", "continuous", 0.8)],
        "effectiveness": [moved("sex", 0.1, 0.95), moved("age", 20.0, 15.0)],
        "amplification": [
            shift("sex", "sex", 1.0),
            shift("sex", "age", 0.1),
            shift("age", "age", 0.3),
        ],
        "composition": {"psnr_decoded": 24.0, "D_abs_null": {"fair:ill": 0.0}},
        "support": [{"world": k, "rows": 9, "rows_by_label": {"ill": [4, 5]}} for k in range(4)],
        "standardisation": None,
        "pictures": [],
    }
    question = {"title": HOSTILE, "rows": 300, "patients": 300, "nuisances": nuisances}
    question |= {"q": "uniform", "worlds": [[0.0, 20.0], [0.0, 60.0], [1.0, 20.0], [1.0, 60.0]]}
    question |= {"labels": ["ill"], "predictors": ["fair", "biased"], "generator": "toy"}
    question |= {"effect": "direct", "threshold": 0.5}
    return {"asked": question, "generator": generator, "assumptions": [HOSTILE]}


def judged(asked: dict) -> dict:
    given = {"fair:ill": predictions(0.01), "biased:ill": predictions(1.5)}
    groups = {HOSTILE: ["a", HOSTILE] * 150}
    how = {"replicates": 30, "rank_replicates": 4}
    return judge(asked, given, Question(groups, {"sex": {0.0: "men", 1.0: HOSTILE}}, how))


def verdicts(findings: dict) -> list[str]:
    return [one["verdict"] for one in findings["conclusions"]]


def test_a_verdict_needs_an_interval_on_one_side_and_a_generator_that_moves(asked: dict) -> None:
    found = judged(asked)
    assert verdicts(found) == ["none", "warning", "depends", "warning"]
    assert [one["warning"] for one in found["conclusions"]] == [None] * 4
    loose = copy.deepcopy(asked)
    loose["asked"]["rules"] = {"tolerance": 0.2}
    assert verdicts(judged(loose))[2] == "none"
    between = copy.deepcopy(asked)
    variance = found["predictors"]["biased:ill"]["attributes"][0]["estimate"]
    between["asked"]["rules"] = {"tolerance": variance**0.5}
    assert verdicts(judged(between))[2] == "undecided"


def test_of_a_generator_that_changes_nothing_nothing_is_concluded(asked: dict) -> None:
    idle = copy.deepcopy(asked)
    idle["generator"]["effectiveness"] = [moved("sex", 0.1, 0.1), moved("age", 20.0, 20.0)]
    assert verdicts(judged(idle)) == ["nothing"] * 4

    blind = copy.deepcopy(asked)
    blind["generator"]["readers"] = [reader("sex", "binary", 0.55)]
    found = judged(blind)
    assert verdicts(found) == ["warning", "warning", "depends", "warning"]
    assert found["conclusions"][2]["warning"] == "what changes with sex in the images is unknown"
    for row in blind["generator"]["amplification"]:  # which a weak reader sees as well
        row["shift"] = 0.0
    assert verdicts(judged(blind)) == ["nothing"] * 4


def test_what_else_an_intervention_moves_is_a_warning(asked: dict) -> None:
    asked["generator"]["amplification"] += [shift("sex", "ill", 0.6), shift("sex", "lung", 3.0)]
    asked["generator"]["readers"] += [reader("ill", "binary", 0.8), reader("lung", "binary", 0.6)]

    warnings = [one["warning"] for one in judged(asked)["conclusions"]]

    for text in (warnings[0], warnings[2]):  # the reader of lungs is too weak to say so
        assert text.startswith("setting sex also moves the reading of ill (0.6), in units")
    assert [warnings[1], warnings[3]] == [None] * 2


def test_a_generator_that_moves_a_score_by_itself_acquits_nobody(asked: dict) -> None:
    asked["generator"]["composition"]["D_abs_null"] = {"fair:ill": 0.55, "biased:ill": 0.01}

    found = judged(asked)

    assert verdicts(found) == ["warning", "warning", "depends", "warning"]
    assert "moves by 0.55 when nothing is changed" in found["conclusions"][0]["because"]


def test_a_refuted_generator_acquits_nobody_and_is_named_in_every_verdict(asked: dict) -> None:
    asked["generator"]["standardisation"] = {
        "fair:ill": check("refuted", 0.11, -0.3, 0.01),
        "biased:ill": check("refuted", 0.2),
    }

    found = judged(asked)

    assert verdicts(found) == ["warning", "warning", "depends", "warning"]
    assert found["conclusions"][0]["text"].startswith(
        "fair:ill: no dependence on sex beyond 0.05 was seen, but observed patients refute the gen"
    )
    where = "observed patients refute the generator: at 1, 60 counterfactuals score"
    warnings = [one["warning"] for one in found["conclusions"]]
    assert warnings[:2] == [f"{where} 0.3 less on average than they do"] * 2
    assert warnings[2:] == [f"{where} 0.2 more on average than they do"] * 2
    asked["generator"]["standardisation"] = {"fair:ill": check("refuted", 0.003, width=0.0019)}
    found = judged(asked)
    assert verdicts(found) == ["none", "warning", "depends", "warning"]
    said = f"{where} 0.003 more on average than they do, which is tolerated"
    assert [one["warning"] for one in found["conclusions"]] == [said, said, None, None]
    asked["generator"]["standardisation"] = {"fair:ill": check("refuted", 0.03, width=0.021)}
    assert verdicts(judged(asked))[0] == "warning"  # it may be beyond the tolerance
    for answer in ("not refuted", "cannot be checked", "not made"):
        cells = [0.05] if answer == "not refuted" else []
        asked["generator"]["standardisation"] = {"fair:ill": check(answer, *cells)}
        assert verdicts(judged(asked)) == ["none", "warning", "depends", "warning"]


def test_whether_patients_refute_the_generator_stands_first(asked: dict, tmp_path: Path) -> None:
    unknown = check("cannot be checked", 0.3)
    for cell in unknown["cells"]:
        cell |= {"checked": False, "refuted": False, "n": 7, "known": None, "difference": None}
    asked["generator"]["standardisation"] = {
        "fair:ill": check("refuted", 0.01, -0.3, 0.2),
        "biased:ill": unknown,
        "third:ill": check("not made"),
    }

    page = write_report(judged(asked), tmp_path)[0].read_text()

    short, section = page.index("In short"), page.index('id="s2"')
    for answer, name in (
        ("refuted", "fair"),
        ("cannot be checked", "biased"),
        ("not made", "third"),
    ):
        said = re.search(rf">{answer}</span><a href=\"#s2\">[^<]*{name}:ill", page)
        assert short < said.start() < page.index("no dependence") < section
    table = page[page.index("Do observed patients refute") : page.index("Can the readers read?")]
    assert section < page.index("Do observed patients refute") < page.index("Effectiveness: do")
    text = " ".join(re.sub(r"<[^>]*>", " ", table).split())
    assert "2 of 3 cells differ, most at 1, 60: counterfactuals score 0.1" in text
    assert "refuted 3 of 4 0.150 to 0.150 0.0090 0.0200 limit 0.0100" in text
    assert "never means right" in text and "sklearn is not installed" in text
    assert "no world has enough observed patients" in text and "1, 60 7 " in text


def test_attributes_that_act_only_together_are_a_warning(asked: dict) -> None:
    grid = {"sex": torch.tensor([0.0, 0, 1, 1]), "age": torch.tensor([20.0, 60, 20, 60])}
    either = torch.tensor([0.2, 3.0, 3.0, 0.2]) + torch.linspace(0, 0.1, 100)[:, None]
    given = {"fair:ill": Predictions(either[:, 0], either, grid)}

    found = judge(asked, given, Question(asked={"replicates": 20, "rank_replicates": 0}))

    assert verdicts(found) == ["none", "warning"]
    assert all("attributes together move" in one["warning"] for one in found["conclusions"])


def test_a_value_that_q_never_takes_has_no_mean_score(asked: dict) -> None:
    given = {"fair:ill": predictions(1.0).reweight([0.5, 0.5, 0, 0])}

    found = judge(asked, given, Question(asked={"replicates": 20, "rank_replicates": 0}))

    curves = found["predictors"]["fair:ill"]["curves"]
    assert [row["value"] for row in curves if row["attribute"] == "sex"] == [0.0]


def test_flips_are_a_warning_where_no_score_moves_far(asked: dict) -> None:
    asked["asked"]["rules"] = {"tolerance": 0.2}
    findings = judged(asked)
    assert [one["warning"] for one in findings["conclusions"]] == [None] * 4

    for row in findings["predictors"]["biased:ill"]["metrics"]:
        row |= {"estimate": 0.3, "low": 0.25} if row["metric"] == "S_flip" else {}
    warnings = [one["warning"] for one in conclude(findings)]

    assert warnings[:2] == [None] * 2
    assert [text[:29] for text in warnings[2:]] == ["30 % of decisions flip over a"] * 2


def test_what_a_generator_is_trusted_with_is_said_with_its_reason(asked: dict) -> None:
    assert trust(None, "sex")[0] == "unknown"
    assert trust(asked["generator"], "view") == ("unknown", "no reader was trained for view")
    for rows, word, share in (
        ([moved("sex", 0.1, 0.95)], "well", 94),
        ([moved("sex", 0.1, 0.75, 0.85)], "well", 87),
        ([moved("sex", 0.1, 0.75)], "partly", 72),
        ([moved("sex", 0.0, 1.0)] * 9 + [moved("sex", 0.0, 0.4)], "partly", 94),
        ([moved("sex", 0.1, 0.15)], "hardly", 6),
        ([moved("age", 20.0, 15.0)], "partly", 25),
        ([moved("age", 40.0, 15.0, 10.0), moved("age", 20.0, 9.0, 10.0)], "well", 90),
    ):
        found = trust(asked["generator"] | {"effectiveness": rows}, rows[0]["variable"])
        assert found[0] == word and f" {share} % of the way" in found[1]
    same = asked["generator"] | {"effectiveness": [moved("sex", 0.9, 0.9, 0.95)]}
    assert trust(same, "sex")[0] == "unknown"
    weak = asked["generator"] | {"readers": [reader("age", "continuous", 0.4)]}
    assert trust(weak, "age") == (
        "unknown",
        "the reader of age is too weak to judge (AUC 0.4, 0.5 needed)",
    )


def test_flips_are_counted_by_direction_and_group() -> None:
    obs = torch.tensor([1.0, 1.0, -1.0, -1.0]).repeat(10)
    cf = torch.stack((obs, torch.tensor([-1.0, 1.0, 1.0, 1.0]).repeat(10)), dim=1)
    own = {"sex": torch.tensor([0.0, 1.0, 0.0, 1.0]).repeat(10)}
    grid, weight = {"sex": torch.tensor([0.0, 1.0])}, torch.tensor([1.0, 1.0, 2.0, 4.0]).repeat(10)
    given = Predictions(obs, cf, grid, y=1 - own["sex"].long(), parents=own, weight=weight)

    groups = {"site": ["A", "A", "B", "B"] * 10, "sex": ["men", "women"] * 20}
    question = Question(groups, asked={"metrics": ["R_IE"]})
    with pytest.warns(UndefinedMetricWarning, match="AUC"):  # all men are ill, and no woman is
        found = judge({"asked": {}, "generator": None}, {"one": given}, question)
    found = found["predictors"]["one"]["flips"]

    rows = {(row["by"], row["group"]): row for row in found}
    shares = {
        key: [one["estimate"] for one in (row, row["up"], row["down"])] for key, row in rows.items()
    }
    assert shares["", "everyone"] == pytest.approx([7 / 16, 6 / 16, 1 / 16])
    assert shares["true label", "positive"] == pytest.approx([1 / 2, 2 / 6, 1 / 6])
    assert shares["sex", "men"] == pytest.approx([1 / 2, 2 / 6, 1 / 6])
    assert shares["sex", "women"] == pytest.approx([2 / 5, 2 / 5, 0])
    assert shares["site", "B"] == pytest.approx([1 / 2, 1 / 2, 0])
    for row in found:
        assert row["low"] <= row["estimate"] <= row["high"] and row["rows"] in (40, 20)


@pytest.fixture
def hostile(asked: dict) -> dict:
    """Findings in which whatever a user can name is called something nasty."""
    asked["generator"]["pictures"] = [
        {"title": HOSTILE, "alt": HOSTILE, "png": "AAAA", "kind": "median"},
        {
            "title": "",
            "alt": HOSTILE,
            "png": "AAAA",
            "kind": "worst",
            "columns": [HOSTILE],
            "rows": [HOSTILE],
        },
    ]
    asked["generator"]["standardisation"] = {
        f"fair {HOSTILE}::ill {HOSTILE}": check("refuted", 0.01, -0.3, words=HOSTILE),
        "biased": check("not refuted", 0.01),
        "third": check("not made"),
    }
    text = json.dumps(asked)
    for name in ("ill", "sex", "toy"):
        text = text.replace(json.dumps(name), json.dumps(f"{name} {HOSTILE}"))
    given = {}
    for name, sex in (("fair", 0.01), ("biased", 1.5), ("third", 0.1)):
        one = predictions(sex)
        called = {"predictor": f"{name} {HOSTILE}:", "label": f"ill {HOSTILE}"}
        grid = {f"sex {HOSTILE}": one.grid["sex"], "age": one.grid["age"]}
        own = {name: values[torch.arange(len(one)) % 4] for name, values in grid.items()}
        given[":".join(called.values())] = replace(one, grid=grid, provenance=called, parents=own)
    how = {"replicates": 20, "rank_replicates": 4}
    question = Question({HOSTILE: ["a", HOSTILE] * 150}, asked=how)
    return judge(json.loads(text), given, question)


def test_the_page_is_whole_and_whatever_was_named_is_text(hostile: dict, tmp_path: Path) -> None:
    paths = write_report(hostile, tmp_path / "new")

    assert [path.name for path in paths] == ["report.html", "report.json", "tables.tex"]
    page = paths[0].read_text()
    assert (
        "<script" not in page and "alert(1)&lt;/script&gt; &amp; {{ 7 * 7 }} {0} {words} %s" in page
    )
    assert page.count("alert(1)") == page.count("alert(1)&lt;/script&gt; &amp; {{ 7")
    assert not re.search(r"(?:src|href)=[\"'](?!#|data:image/png;base64,)", page)
    assert "url(" not in page
    titles = re.findall(r"<h2[^>]*>([^<]+)", page)
    assert titles[:3] == ["In short", "What was asked", "Can the generator be trusted?"]
    assert set(re.findall(r'href="#(\w+)"', page)) <= set(re.findall(r'id="(\w+)"', page))
    assert json.loads(paths[1].read_text()) == hostile
    assert [(one["first"][:4], one["second"][:4]) for one in hostile["comparisons"]] == [
        ("fair", "bias"), ("fair", "thir"), ("bias", "thir"),
    ]  # fmt: skip
    assert len(page) < 3_000_000


def test_tables_for_latex_are_balanced_and_hold_no_command_of_a_user(
    hostile: dict, tmp_path: Path
) -> None:
    text = write_report(hostile, tmp_path)[2].read_text()

    tables = re.findall(
        r"\\begin{tabular}{lrr}\n\\toprule\n(.*?)\\bottomrule\n\\end{tabular}", text, re.DOTALL
    )
    assert len(tables) == text.count(r"\begin") == text.count(r"\end") == 6
    for line in "".join(tables).splitlines():
        if line != r"\midrule":
            assert line.endswith(r" \\")
            bare = re.sub(r"\\[&%$#_{}]|\\,|\\text[a-z]+{}", "", line.removesuffix(r"\\"))
            bare = re.sub(r"\\\((-?[\d,.]+|\[-?[\d,.]+, -?[\d,.]+\])\\\)", "", bare)
            assert bare.count("&") == 2 and not re.search(r"[\\%$#_~^<>]", bare)
            assert bare.count("{") == bare.count("}")


def test_the_findings_are_as_the_schema_says(hostile: dict, asked: dict) -> None:
    schema = json.loads(SCHEMA.read_text())
    Draft202012Validator.check_schema(schema)
    check = Draft202012Validator(schema)

    check.validate(hostile)
    check.validate(judged(asked))
    for path in (("conclusions", 0, "verdict"), ("predictors", "fair:ill", "flips", 0, "up")):
        broken = inner = judged(asked)
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = "?"
        assert not check.is_valid(broken)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install it, or set CFCORE_CHROMIUM")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_browser_shows_it_quietly_and_nothing_is_cut_off(
    hostile: dict, tmp_path: Path, width: int, scheme: str
) -> None:
    said, asked_for = [], []
    path = write_report(hostile, tmp_path)[0]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("console", lambda message: said.append(message.text))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked_for.append(request.url))
        page.goto(path.as_uri())
        closed = page.locator("table:visible").count()
        page.emulate_media(media="print")
        assert page.locator("table:visible").count() > closed  # folds are open on paper
        page.emulate_media(media="screen")
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        for figure in page.locator("svg").all():
            assert figure.get_attribute("aria-hidden") or figure.locator("title").count()
        browser.close()
    assert said == []
    assert [url for url in asked_for if not url.startswith(("data:", path.as_uri()))] == []


def test_undefined_numbers_are_said_to_be(asked: dict, tmp_path: Path) -> None:
    constant = Predictions(torch.zeros(5), torch.zeros(5, 2), {"sex": torch.tensor([0.0, 1.0])})
    asked["asked"] |= {
        "worlds": [[0.0], [1.0]],
        "nuisances": {"sex": asked["asked"]["nuisances"]["sex"]},
    }
    asked["generator"]["support"] = []
    with pytest.warns(UserWarning, match="undefined"):
        how = Question(asked={"replicates": 5, "rank_replicates": 2})
        findings = judge(asked, {"flat": constant}, how)

    page = write_report(findings, tmp_path)[0].read_text()

    assert {r["metric"]: r["estimate"] for r in findings["predictors"]["flat"]["metrics"]}[
        "S_rank"
    ] is None
    assert ">undefined<" in page and "nan" not in re.sub(r"<[^>]*>", "", page).lower().split()


def test_a_condition_that_holds_is_a_reason_to_fail(asked: dict) -> None:
    findings = judged(asked)

    (reason,) = gate(findings, ["S_var > 0.01"])
    assert reason.startswith("biased:ill: S_var = 0.0")
    assert gate(findings, ["S_var > 1"]) == []
    for wrong, message in (
        ("S_var", "is not of the form"),
        ("S_var > 1e", "is not of the form"),
        ("S_vat > 1", "there is no metric S_vat"),
    ):
        with pytest.raises(InputError, match=message):
            gate(findings, [wrong])


def test_scores_alone_give_a_report_that_can_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "scores.csv", tmp_path / "out"
    lines = [f"{i % 9 / 10},{i % 2},{i % 5 / 10},{i % 7 / 10},{'AB'[i % 2]}" for i in range(60)]
    path.write_text("\n".join(["p_obs;y;p_cf_0;p_cf_1;site".replace(";", ","), *lines]))
    words = ["report", str(path), "--out", str(out), "--replicates", "20", "--by", "site"]

    with pytest.raises(SystemExit) as stop:
        main([*words, "--fail-if", "S_flip > 0.001"])
    assert stop.value.code == 3
    assert "S_flip" in capsys.readouterr().out
    assert "Only scores were given" in (out / "report.html").read_text()
    found = json.loads((out / "report.json").read_text())
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(found)
    assert found["conclusions"][0]["text"].startswith("the score depends on the world. Changing")
    assert main([*words, "--fail-if", "S_flip > 0.99"]) == 0
    assert main([*words, "--by", "ward"]) == 2
    assert "there is no column ward" in capsys.readouterr().err


def test_pictures_draw_what_the_findings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matplotlib, "get_backend", lambda: "agg")
    given = predictions(1.5)

    curve = given.plot_curves("sex", replicates=10)
    mean = given.logit_cf.double().sigmoid().mean(dim=0)
    drawn = curve.lines[0].get_ydata()
    assert list(drawn) == pytest.approx([mean[:2].mean().item(), mean[2:].mean().item()])
    assert given.plot_calibration().get_xlabel() == "mean score"
    assert len(given.plot_spread().collections) == 1
    with pytest.warns(UndefinedMetricWarning, match="intervals undefined"):
        assert (
            len(predictions(1.5, rows=1).plot_curves("sex", replicates=4).lines[0].get_ydata()) == 2
        )
    with pytest.raises(InputError, match="the grid has no 'race', only sex, age"):
        given.plot_curves("race")
