"""What is installed: pinned, complete, and the same for pip and conda."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cfcore import InputError, files

ROOT = Path(__file__).parent.parent


def lock() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line.split("==") for line in lines]
    return {canonicalize_name(name): version for name, version in pins}


def direct() -> list[Requirement]:
    """What pyproject.toml asks for, extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    return [Requirement(text) for text in project["dependencies"] + extras]


def test_every_line_of_the_lock_is_one_exact_version() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()

    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in lines)
    assert len(lock()) == len(lines)


def test_torch_is_pinned_without_a_local_suffix_and_torchvision_is_absent() -> None:
    assert lock()["torch"] == "2.13.0"
    assert "torchvision" not in lock()
    assert not [name for name in lock() if name.startswith(("nvidia", "cuda"))]


def test_the_lock_holds_all_that_the_project_asks_for() -> None:
    missing = [str(r) for r in direct() if canonicalize_name(r.name) not in lock()]
    assert missing == []
    unfit = [str(r) for r in direct() if lock()[canonicalize_name(r.name)] not in r.specifier]
    assert unfit == []


def test_what_is_installed_is_the_lock() -> None:
    different = {
        name: importlib.metadata.version(name)
        for name, version in lock().items()
        if importlib.metadata.version(name).split("+")[0] != version
    }
    assert different == {}


@pytest.fixture
def environment() -> list[str]:
    """The pip part of environment.yml: exact pins, then options and paths."""
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    return next(part["pip"] for part in dependencies if isinstance(part, dict))


def test_the_conda_environment_agrees_with_the_lock(environment: list[str]) -> None:
    pins = dict(line.split("==") for line in environment if "==" in line)
    rest = [line for line in environment if "==" not in line]

    assert {name: lock()[canonicalize_name(name)] for name in pins} == pins
    assert {canonicalize_name(r.name) for r in direct()} == {canonicalize_name(n) for n in pins}
    assert rest == ["--constraint requirements.lock", "--editable ."]


def test_pip_finds_the_conda_environment_satisfied(environment: list[str], tmp_path: Path) -> None:
    (tmp_path / "requirements.lock").write_text((ROOT / "requirements.lock").read_text())
    path = tmp_path / "environment.txt"
    path.write_text("\n".join(line for line in environment if "--editable" not in line))
    call = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "-r", path]

    shown = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert "Would install" not in shown.stdout


def test_every_module_finds_the_data_of_the_project_in_one_way() -> None:
    own = {"files.py", "provenance.py"}  # the second hashes all of the project
    modules = [path for path in (ROOT / "cfcore").rglob("*.py") if path.name not in own]
    found = [
        p for p in modules if re.search(r"__file__.*(parent\.parent|parents\[)", p.read_text())
    ]
    assert found == []


def test_data_that_did_not_come_with_the_package_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert files.data_file("nih/grey_levels.csv") == ROOT / "data/nih/grey_levels.csv"

    # As in a wheel, which has the tables of the paper and nothing else.
    monkeypatch.setattr(files, "DATA", tmp_path / "data")
    monkeypatch.setattr(files, "PACKAGED", ROOT / "data")
    assert files.data_file("paper/risk.csv").is_file()
    monkeypatch.setattr(files, "PACKAGED", tmp_path / "data")
    with pytest.raises(InputError, match=r"data/nih/grey_levels.csv did not come .* checkout"):
        files.data_file("nih/grey_levels.csv")
