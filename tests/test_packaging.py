"""What is installed: pinned, complete, and the same for pip and conda."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

from cfbook import paths
from cfcore import InputError
from cfcore.extras import EXTRAS

ROOT = Path(__file__).parent.parent
MODULES = [path for package in paths.PACKAGES for path in (ROOT / package).rglob("*.py")]


def lock() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line.split("==") for line in lines]
    return {canonicalize_name(name): version for name, version in pins}


def extras() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["optional-dependencies"]


def direct() -> list[Requirement]:
    """What pyproject.toml asks for, extras included but the one that is not in the lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = [text for extra, texts in extras().items() if extra != "lab" for text in texts]
    return [Requirement(text) for text in project["dependencies"] + locked]


def test_every_line_of_the_lock_is_one_exact_version() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()

    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in lines)
    assert len(lock()) == len(lines)


def test_torch_is_pinned_without_a_local_suffix_and_torchvision_is_absent() -> None:
    assert lock()["torch"] == "2.13.0"
    assert f"torch=={lock()['torch']} --index-url" in (ROOT / "book/rerun.md").read_text()
    assert "torchvision" not in lock()
    assert not [name for name in lock() if name.startswith(("nvidia", "cuda"))]


def test_the_lock_holds_all_that_the_project_asks_for() -> None:
    missing = [str(r) for r in direct() if canonicalize_name(r.name) not in lock()]
    assert missing == []
    unfit = [str(r) for r in direct() if lock()[canonicalize_name(r.name)] not in r.specifier]
    assert unfit == []


def test_jupyterlab_is_in_its_extra_and_on_binder_and_not_in_the_lock() -> None:
    lab = [Requirement(text) for text in extras()["lab"]]
    index, locked, *rest = (ROOT / "binder/requirements.txt").read_text().splitlines()

    assert not {canonicalize_name(r.name) for r in lab} & {*lock()}
    assert rest == extras()["lab"]
    assert index == "--extra-index-url https://download.pytorch.org/whl/cpu"
    assert (ROOT / "binder" / locked.removeprefix("-r ")).resolve() == ROOT / "requirements.lock"


def test_binder_and_make_write_the_same_worksheets(tmp_path: Path) -> None:
    (binder,) = re.findall("^cfcore .+$", (ROOT / "binder/postBuild").read_text(), re.MULTILINE)
    # The pages are there; nothing is installed, since both stamps are newer than what they need.
    for folder in ("notebooks", "book", ".venv"):
        (tmp_path / folder).mkdir()
    for name in ("notebooks/a.md", "book/lab_b.md", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    for name in ("stamp", "lab"):
        (tmp_path / ".venv" / name).touch()
    call = ["make", "-n", "-f", ROOT / "Makefile", "lab"]
    outside = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    made = subprocess.run(
        call, cwd=tmp_path, env=outside, capture_output=True, text=True, check=True
    ).stdout

    words = "cfcore worksheets notebooks/a.md book/lab_b.md runs/lab"
    assert binder.replace("*", "a", 1).replace("*", "b") == words
    assert f".venv/bin/{words}\n" in made
    assert "pip" not in made and "jupyter lab" in made


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
    above = re.compile(r"__file__.*(parent\.parent|parents\[)")
    found = [path for path in MODULES if above.search(path.read_text())]

    assert found == [ROOT / "cfbook/paths.py"]


def test_data_that_did_not_come_with_the_package_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths.data_file("nih/grey_levels.csv") == ROOT / "data/nih/grey_levels.csv"

    # As in a wheel, which has the tables of the paper and nothing else.
    monkeypatch.setattr(paths, "DATA", tmp_path / "data")
    monkeypatch.setattr(paths, "_PACKAGED", ROOT / "data")
    assert paths.data_file("paper/risk.csv").is_file()
    monkeypatch.setattr(paths, "_PACKAGED", tmp_path / "data")
    with pytest.raises(InputError, match=r"data/nih/grey_levels.csv needs a checkout"):
        paths.data_file("nih/grey_levels.csv")


def needed(*names: str) -> set[str]:
    """These distributions and all that they need, by their canonical names."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found.add(name)
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


def asked() -> set[str]:
    """The distributions that the package asks for without an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}


def third_party() -> set[str]:
    """The modules of others that any file of the packages imports, by their first names."""
    modules: set[str] = set()
    for node in (node for path in MODULES for node in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.ImportFrom):
            modules.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            modules.update(name.name.split(".")[0] for name in node.names)
    return modules - set(sys.stdlib_module_names) - set(paths.PACKAGES)


def test_every_module_that_is_imported_comes_with_the_package_or_a_named_extra() -> None:
    homes = importlib.metadata.packages_distributions()
    bare = {
        name for name in third_party() if not {canonicalize_name(d) for d in homes[name]} & asked()
    }

    assert bare - set(EXTRAS) == set()
    for module, extra in EXTRAS.items():
        brought = needed(*(Requirement(text).name for text in extras()[extra]))
        assert {canonicalize_name(name) for name in homes[module]} & brought, module


BARE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.fixture(scope="module")
def bare() -> str:
    """The beginning of a script that sees nothing but what is installed without extras."""
    homes = importlib.metadata.packages_distributions()
    present = {*needed(*asked()), "cfcore"}
    absent = {n for n, d in homes.items() if not {canonicalize_name(each) for each in d} & present}
    assert set(EXTRAS) <= absent
    return BARE.format(absent=sorted(absent))


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("audit plan.yml --out out", "generator"),
        ("train --preset smoke --out out", "generator"),
        ("evaluate scores.parquet", "tables"),
        ("marginalise --preset smoke --out out", "generator"),
        (f"run {ROOT}/notebooks/metrics.md out.ipynb", "book"),
        (f"slides {ROOT}/notebooks/metrics.md out", "book"),
        ("check-data table table.csv", "datasets"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(
    words: str, extra: str, bare: str, tmp_path: Path
) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "table.csv").write_text("image,patient\na.png,p\n")

    shown = run(f"{bare}\nfrom cfcore.cli import main\nsys.exit(main({words.split()!r}))", tmp_path)

    assert (shown.returncode, shown.stderr.count("\n")) == (2, 1), shown.stderr
    assert f"pip install 'cfcore[{extra}]'" in shown.stderr


def test_without_extras_scores_are_evaluated(bare: str, tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("p_obs,y,p_cf_0\n0.9,1,0.8\n0.2,0,0.3\n")
    words = ["evaluate", "scores.csv", "--replicates", "9"]

    shown = run(f"{bare}\nfrom cfcore.cli import main\nsys.exit(main({words!r}))", tmp_path)

    assert (shown.returncode, shown.stderr) == (0, "")
    assert "S_flip" in shown.stdout


def test_an_import_names_the_extra_that_it_lacks(bare: str, tmp_path: Path) -> None:
    shown = run(f"{bare}\nimport cfbook.figures.ladders", tmp_path)

    last = shown.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: zuko is not installed")
    assert last.endswith("pip install 'cfcore[generator]'")


def test_the_wheel_holds_the_packages_and_says_that_they_are_typed(tmp_path: Path) -> None:
    call = f"{sys.executable} -m hatchling build --target wheel --directory {tmp_path}"
    subprocess.run(call.split(), cwd=ROOT, capture_output=True, check=True)

    (path,) = tmp_path.glob("cfcore-*.whl")
    names = set(zipfile.ZipFile(path).namelist())
    own = {str(path.relative_to(ROOT)) for path in MODULES}
    own |= {f"{package}/py.typed" for package in paths.PACKAGES}
    own |= {"cfbook/figures/book.mplstyle", "cfbook/data/paper/risk.csv", "cfcore/report/page.html"}
    assert own - names == set()
