"""The pages of the book that are not notebooks: what they show works, and what they name exists."""

import contextlib
import io
import itertools
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from cfcore.cli import main, parser
from cfcore.predictions import Predictions

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


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The names that the program of the page leaves behind, run in an empty folder."""
    page, names = ROOT / "book/audit_your_model.md", {"__name__": "page"}
    printed = io.StringIO()
    folder = tmp_path_factory.mktemp("audit")
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        for name, code in python_blocks(page).items():
            exec(compile(code, name, "exec"), names)
    return names | {"printed": printed.getvalue(), "folder": folder}


def test_the_audit_begins_with_a_check_and_takes_few_lines() -> None:
    code = python_blocks(ROOT / "book/audit_your_model.md")

    parts = ("data", "graph", "models", "check", "lines", "scores")
    assert list(code) == [f"audit-{part}" for part in parts]
    both = code["audit-check"] + code["audit-lines"]
    assert len([line for line in both.splitlines() if line.strip()]) <= 22


class Unmoved:
    """A generator that knows nothing of the site."""

    def abduct(self, x: Tensor, pa: Mapping, *, index: object = None, rng: object = None) -> Tensor:
        return x

    def predict(self, noise: Tensor, pa: Mapping) -> Tensor:
        return noise


def test_a_generator_that_changes_nothing_fails_the_first_check(audited: dict) -> None:
    check = python_blocks(ROOT / "book/audit_your_model.md")["audit-check"]

    with contextlib.chdir(audited["folder"]), pytest.raises(AssertionError, match="mend it first"):
        exec(check, {**audited, "generator": Unmoved()})


def test_the_audit_finds_the_label_for_which_a_classifier_leans_on_the_site(audited: dict) -> None:
    found = {name: one.evaluate() for name, one in audited["found"].items()}
    assert list(found) == ["fair:rash", "fair:fever", "biased:rash", "biased:fever"]
    assert audited["found"]["fair:rash"].logit_cf.shape == (300, 3)

    for metric in ("S_var", "S_flip", "D_abs"):
        others = [found[name][metric] for name in found if name != "biased:rash"]
        assert found["biased:rash"][metric] > 4 * max(others)
    row = audited["change"].set_index("metric").loc["S_var"]
    assert row.low > 0 or row.high < 0


def test_the_generator_of_the_page_reproduces_the_images_and_moves_them(audited: dict) -> None:
    for predictions in audited["found"].values():
        floor = predictions.floor()
        assert floor["by_construction"]
        assert floor["D_abs"] == pytest.approx(0, abs=1e-6)
        assert floor["D_abs_decoded"] > 0.1
    biased = audited["found"]["biased:rash"]
    own = biased.logit_cf[torch.arange(300), audited["site"]]
    torch.testing.assert_close(own, biased.logit_obs, atol=1e-4, rtol=1e-4)


def test_the_audit_prints_what_it_found(audited: dict) -> None:
    printed = audited["printed"]

    for word in ("fair", "biased", "of which the generator alone", "R_IE", "S_rank"):
        assert word in printed
    # The last line is what cfcore.evaluate says of the same scores.
    expected = audited["found"]["biased:rash"].evaluate()["S_var"]
    assert f"'S_var': {expected:.6f}"[:14] in printed.splitlines()[-1]


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

    assert printed.getvalue() == f"{audited['site'].bincount()}\n"


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


def test_the_table_of_the_page_passes_the_check(
    audited: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-data", "table", str(audited["folder"] / "mine.csv")]) == 0

    assert "300 images of 300 patients" in capsys.readouterr().out
