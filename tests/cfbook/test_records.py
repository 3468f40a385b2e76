"""Records of runs: complete, true, and beside the notebook, which stays as it is."""

import hashlib
import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import notebook

from cfbook.production.notebooks import run_notebook
from cfbook.production.records import _content_hash, _read_records, page
from cfcore.checks import InputError
from cfcore.cli import main

NOTEBOOK = notebook(
    'megabytes: int = 1  # to take\nseed: int = 7  # of nothing\nwords: str = "a"  # to print',
    'import time\n\nblock = b"1" * (megabytes * 1_000_000)\nassert megabytes, words\n'
    "time.sleep(2)  # long enough to be looked at, also where others compute",
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "small.md"
    path.write_text(NOTEBOOK)
    return path


def recorded(source: Path, name: str, *words: str) -> dict:
    """Run the notebook in a process of its own, and read its record."""
    out = source.with_name(f"{name}.ipynb")
    beside = source.with_name(f"{name}.provenance.json")
    call = [sys.executable, "-m", "cfcore.cli", "run", str(source), str(out)]
    call += ["--provenance", str(beside), *words]
    subprocess.run(call, check=True, capture_output=True)
    return json.loads(beside.read_text())


def test_a_record_holds_what_made_the_notebook_and_what_it_took(source: Path) -> None:
    small = recorded(source, "a")
    large = recorded(source, "b", "-p", "megabytes", "400")

    executed = source.with_name("a.ipynb").read_bytes()
    assert small["executed"] == hashlib.sha256(executed).hexdigest()
    assert small["source"] == hashlib.sha256(NOTEBOOK.encode()).hexdigest()
    assert small["parameters"] == {"megabytes": 1, "seed": 7, "words": "a"}
    assert large["parameters"]["megabytes"] == 400
    assert (small["status"], small["seeds"]) == ("passed", {"seed": 7})
    assert small["versions"]["torch"].startswith("2.")
    assert 0 < small["minutes"] < 5
    assert 300 < large["megabytes"] - small["megabytes"] < 600
    for name in ("code", "data", "commit", "versions", "changed"):
        assert small[name] == large[name]


def test_the_notebook_is_the_same_with_a_record_and_without(source: Path) -> None:
    outs = [source.with_name(f"{name}.ipynb") for name in "ab"]
    run_notebook(source, outs[0], progress=False)
    run_notebook(source, outs[1], progress=False, provenance=source.with_name("new") / "b.json")

    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert not source.with_name("a.provenance.json").exists()
    assert json.loads((source.with_name("new") / "b.json").read_text())["status"] == "passed"


def test_a_run_that_failed_is_recorded_as_failed(source: Path) -> None:
    out, beside = source.with_suffix(".ipynb"), source.with_suffix(".provenance.json")

    with pytest.raises(InputError):
        run_notebook(source, out, {"megabytes": 0}, progress=False, provenance=beside)

    facts = json.loads(beside.read_text())
    assert (facts["status"], facts["executed"]) == ("failed", None)
    assert "AssertionError" in facts["error"]


def test_any_change_of_data_changes_its_hash(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.csv").write_text("1")
    (tmp_path / "sub/b.csv").write_text("2")
    hashes = [_content_hash(tmp_path)]
    (tmp_path / "sub/b.csv").write_text("3")
    hashes.append(_content_hash(tmp_path))
    (tmp_path / "sub/b.csv").rename(tmp_path / "sub/c.csv")
    hashes.append(_content_hash(tmp_path))

    assert len(set(hashes)) == 3
    assert _content_hash(tmp_path) == hashes[-1]


def test_the_page_tells_runs_that_passed_from_others_and_escapes_all(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = '<script>alert(1)</script> ``` | & "quoted"'
    for name in ("good", "later"):
        out = source.with_name(f"{name}.ipynb")
        record = source.with_name(f"{name}.provenance.json")
        run_notebook(source, out, {"words": wild}, progress=False, provenance=record)
    with source.with_name("later.ipynb").open("a") as file:
        file.write("\n")
    source.with_name("alone.ipynb").write_text("{}")
    source.with_name("gone.failed.ipynb").write_text("{}")

    assert main(["provenance", str(source.parent)]) == 0

    shown = capsys.readouterr().out
    assert shown.startswith("```{raw} html\n") and shown.endswith("```\n\n")
    assert shown.count("```") == 2
    assert "<script" not in shown
    assert json.dumps(wild) in html.unescape(shown)
    first, *rows = table(shown, 0)
    assert first[:2] == ["chapter", "status"]
    assert [row[:2] for row in rows] == [
        ["alone", "not recorded"],
        ["good", "passed"],
        ["later", "outdated"],
    ]
    assert '<a href="../notebooks/good.html">good</a>' in shown


def table(page: str, number: int) -> list[list[str]]:
    """The cells of a table of the page, row by row."""
    rows = re.findall(r"<tr.*?</tr>", page.split("</table>")[number], flags=re.DOTALL)
    cells = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row, flags=re.DOTALL) for row in rows]
    return [[re.sub(r"<[^>]+>", "", cell) for cell in row] for row in cells]


def test_what_differs_between_runs_has_a_column_and_the_rest_is_told_once(source: Path) -> None:
    for name in "ab":
        record = source.with_name(f"{name}.provenance.json")
        run_notebook(source, source.with_name(f"{name}.ipynb"), progress=False, provenance=record)
    header, *_ = table(page(source.parent), 0)
    facts = json.loads(record.read_text())
    record.write_text(json.dumps(facts | {"data": "f" * 64}))

    assert "data" not in header and "code" not in header
    (header, *rows), common = table(page(source.parent), 0), table(page(source.parent), 1)
    assert "data" in header and "code" not in header
    assert rows[1][header.index("data")] == "f" * 10
    assert ["code", facts["code"][:10]] in common


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no executed notebook"):
        page(tmp_path)
    (tmp_path / "a.ipynb").write_text("{}")
    assert table(page(tmp_path), 0)[1:] == [["a", "not recorded"]]
    (tmp_path / "a.provenance.json").write_text("[1]")
    with pytest.raises(InputError, match=r"a\.provenance\.json is not a record"):
        _read_records(tmp_path)
