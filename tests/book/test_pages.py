"""The pages of the book that are not notebooks: what they show works, and what they name exists."""

import contextlib
import io
import itertools
import json
import re
import shlex
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from cfcore.cli import main, parser
from cfcore.predictions import Predictions
from cfscm.auditing.plan import _KEYS

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "book").glob("*.md"))
FENCE = re.compile(r"^(`{3,})([^\n]*)\n(.*?)^\1$", flags=re.MULTILINE | re.DOTALL)


def stem(path: Path) -> str:
    return path.stem


def blocks(path: Path) -> list[tuple[str, dict[str, str], str]]:
    """Kind, options and text of every fenced block of a page."""
    found = []
    for _, kind, text in FENCE.findall(path.read_text()):
        options = dict(re.findall(r"^:(\w+): (.+)$", text, flags=re.MULTILINE))
        body = re.sub(r"\A(:\w+:.*\n)+\n?", "", text)
        found.append((kind.strip(), options, body))
    return found


def python_blocks(path: Path) -> dict[str, str]:
    code = [(o["name"], text) for kind, o, text in blocks(path) if kind == "{code-block} python"]
    return dict(code)


AUDIT = ROOT / "book/audit_your_model.md"


def session(page: Path, folder: Path) -> dict:
    """The names that the blocks of a page leave behind, run one after the other in a folder."""
    names, printed = {"__name__": "page"}, io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript
        for kind, options, text in blocks(page):
            if kind == "bash":
                for line in text.splitlines():
                    assert main(shlex.split(line)[1:]) == 0, line
            elif kind == "{code-block} yaml":
                names["draft"] = yaml.safe_load(Path("plan.yml").read_text())
                Path("plan.yml").write_text(text)
            else:
                exec(compile(text, options["name"], "exec"), names)
    return names | {"printed": printed.getvalue(), "folder": folder}


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return session(AUDIT, tmp_path_factory.mktemp("audit"))


def test_whoever_has_only_scores_gets_by_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = session(ROOT / "book/scores.md", tmp_path)

    groups = ("Lyon", "Oxford", "gap between the worst group and the best")
    assert [line for line in names["printed"].splitlines() if line in groups] == list(groups)
    assert "nan" not in names["printed"]
    assert {"AUC_marg", "S_var"} <= names["some"].keys() != names["every"].keys()
    assert set(names["sites"].group) == {"Lyon", "Oxford", "gap"}
    assert json.loads((tmp_path / "report/report.json").read_text())["schema"] == 1
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="3"):
        main(["report", "old.csv", "--out", "old", "--fail-if", "S_flip > 0.1"])
    assert "S_flip > 0.1" in capsys.readouterr().out


def test_only_a_plan_is_written_by_hand_and_most_of_it_is_guessed(audited: dict) -> None:
    text = (audited["folder"] / "plan.yml").read_text()
    plan, draft = yaml.safe_load(text), audited["draft"]

    assert len(text.splitlines()) <= 25
    for key in ("table", "image", "patient", "labels", "nuisances", "rows"):
        assert draft[key] == plan[key]
    assert sorted(draft["graph"]["site"]["categories"]) == sorted(audited["sites"])


def test_the_page_names_every_key_of_a_plan() -> None:
    rows = [line for line in AUDIT.read_text().splitlines() if line.startswith("| `")]
    named = {key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])}

    assert named == set(_KEYS)


def test_the_audit_finds_the_label_for_which_a_classifier_leans_on_the_site(audited: dict) -> None:
    found = {one["about"]: one["verdict"] for one in audited["findings"]["conclusions"]}
    assert found.pop("biased:rash") == "depends"
    assert found == dict.fromkeys(("fair:rash", "fair:fever", "biased:fever"), "none")

    for one in audited["findings"]["conclusions"]:
        assert audited["printed"].count(one["text"]) == 2  # by the command, and from Python
    assert audited["scores"].logit_cf.shape == (300, 3)
    for name in ("report.html", "report.json", "tables.tex", "generator.safetensors"):
        assert (audited["folder"] / "report" / name).is_file()


def test_the_page_on_reports_follows_a_report(audited: dict) -> None:
    page = (ROOT / "book/report.md").read_text()
    report = (audited["folder"] / "report/report.html").read_text()
    sections = re.findall(r"^## (.+)$", page, flags=re.MULTILINE)

    for name in sections[: sections.index("What to conclude") + 1]:
        assert re.search(rf"<h2[^>]*>{re.escape(name)}", report), name
    table = page.split("\n## For programs\n")[1]
    assert re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE) == [*audited["findings"]]


def test_the_generator_of_the_page_finds_it_too(audited: dict) -> None:
    found = {name: one.evaluate() for name, one in audited["found"].items()}
    assert list(found) == ["fair:rash", "fair:fever", "biased:rash", "biased:fever"]

    for metric in ("S_var", "S_flip", "D_abs"):
        others = [found[name][metric] for name in found if name != "biased:rash"]
        assert found["biased:rash"][metric] > 4 * max(others)
    row = audited["change"].set_index("metric").loc["S_var"]
    assert row.low > 0
    for predictions in audited["found"].values():
        floor = predictions.floor()
        assert floor["by_construction"]
        assert floor["D_abs"] == pytest.approx(0, abs=1e-6)
        assert floor["D_abs_decoded"] > 0.1


def commands() -> list[tuple[str, str]]:
    """Every line of a page that calls cfcore."""
    lines = []
    for path in [*PAGES, ROOT / "README.md"]:
        for kind, _, text in blocks(path):
            if kind in ("", "bash", "sh"):
                joined = text.replace("\\\n", " ")
                lines += [
                    (path.name, line)
                    for line in joined.splitlines()
                    if re.search(r"cfcore(\.cli)? [a-z]", line)
                ]
    return lines


def test_there_are_commands_to_test() -> None:
    assert len(commands()) >= 10


@pytest.mark.parametrize(("page", "line"), commands())
def test_every_command_that_a_page_shows_is_understood(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    words = words[[word in ("cfcore", "cfcore.cli") for word in words].index(True) + 1 :]
    arguments = parser().parse_args(words)

    assert callable(arguments.command)
    if hasattr(arguments, "source"):
        assert (ROOT / arguments.source).is_file(), page


TOTAL = ("phantom", "method", "theory", "setting_1", "setting_2", "setting_3")


@pytest.mark.parametrize("name", TOTAL)
def test_a_chapter_that_speaks_of_the_total_effect_says_that_the_label_is_held(name: str) -> None:
    page = re.sub(r"\s+", " ", (ROOT / f"notebooks/{name}.md").read_text())
    sentences = [s for s in page.split(". ") if re.search(r"\btotal\b", s)]

    held = r"\blabel\b.*\b(held|does not)\b|\bholds?\b.*\blabel\b"
    assert sentences and any(re.search(held, sentence) for sentence in sentences)


@pytest.mark.parametrize("path", [*PAGES, *(ROOT / "notebooks").glob("*.md")], ids=stem)
def test_no_page_says_that_the_audit_needs_no_label(path: Path) -> None:
    page = re.sub(r"\s+", " ", path.read_text())

    said = r"[Nn]o label is needed|None of \w+ needs a label|needs neither the label"
    assert not re.search(said, page)


def listed(row: str) -> set[str]:
    """The metrics that a row of the page on assumptions names."""
    page = (ROOT / "book/assumptions.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {row} |")]
    return set(re.findall(r"`(\w[\w.]*)`", line))


def test_the_page_on_assumptions_says_which_metrics_depend_on_the_pairing_of_worlds() -> None:
    rng = torch.Generator().manual_seed(2027)
    y = torch.arange(60) % 2
    own_noise = 2 * torch.randn(60, 1, generator=rng)
    logit = torch.randn(60, 5, generator=rng) + own_noise + y[:, None]
    given = Predictions(logit[:, 0], logit[:, 1:], {"age": torch.arange(4.0)}, y=y)
    # Pair the worlds anew among patients of one label: the law of every world stays as it was.
    other = given.logit_cf.clone()
    for world, label in itertools.product(range(4), (0, 1)):
        own = (y == label).nonzero()[:, 0]
        other[own, world] = other[own[torch.randperm(len(own), generator=rng)], world]

    before, after = given.evaluate(), replace(given, logit_cf=other).evaluate()

    changed = {name for name in before if before[name] != pytest.approx(after[name], abs=1e-6)}
    assert changed == listed("the pairing of worlds")
    assert set(before) - changed == listed("no world") | listed("each world by itself")


def test_the_page_on_assumptions_counts_the_patients_near_each_world(audited: dict) -> None:
    (code,) = [text for kind, _, text in blocks(ROOT / "book/assumptions.md") if kind == "python"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {"predictions": audited["found"]["fair:rash"]})

    assert printed.getvalue() == f"{audited['site'][300:].bincount()}\n"


def test_the_citations_agree() -> None:
    given = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    paper = given["preferred-citation"]
    names = [(a["family-names"], a["given-names"]) for a in paper["authors"]]
    page = (ROOT / "book/cite.md").read_text()

    assert page.count(paper["title"]) == 2
    assert " and ".join(f"{last}, {first}" for last, first in names) in page
    assert all(f"{first} {last}" in page for last, first in names)
    assert f"*{given['title']}*, version {given['version']}. {given['license']} licence" in page
    entry = next(text for kind, _, text in blocks(ROOT / "book/cite.md") if kind == "bibtex")
    own = (ROOT / "book/references.bib").read_text()
    assert entry.removesuffix("\n}\n") in own


def test_every_page_is_in_the_contents_and_the_other_way_round() -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    listed = [toc["root"]] + [c["file"] for part in toc["parts"] for c in part["chapters"]]

    found = [f"{path.parent.name}/{path.stem}" for path in PAGES]
    found += [f"notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("*.md")]
    assert sorted(listed) == sorted(found)
