"""The shape of the package: imports point one way, every equation has one home."""

import ast
import csv
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cfcore

PACKAGE = Path(cfcore.__file__).parent
ROOT = PACKAGE.parent

# Each may import only from those before it.
ORDER = [
    "metrics",
    "checks",
    "restricted",
    "files",
    "evaluate",
    "resampling",
    "bootstrap",
    "predictions",
    "bundle",
    "graph",
    "generator",
    "phantom",
    "datasets",
    "cohorts",
    "balance",
    "artefacts",
    "predictors",
    "training",
    "sources",
    "scm",
    "presets",
    "recipes",
    "generators",
    "missing",
    "judges",
    "testsets",
    "interventions",
    "fingerprint",
    "scoring",
    "shards",
    "imputation",
    "marginalise",
    "theory",
    "subgroups",
    "soundness",
    "settings",
    "study",
    "learned",
    "claims",
    "tables",
    "results",
    "shortage",
    "last_figure",
    "plots",
    "theory_plots",
    "diagrams",
    "prose",
    "interactive",
    "job",
    "table",
    "report",
    "audit",
    "provenance",
    "notebook",
    "pieces",
    "repository",
    "guard",
    "student",
    "slides",
    "publishing",
    "commands",
    "generating",
    "cli",
]


def imported(path: Path) -> set[str]:
    """The modules of the package that a file imports, wherever in the file."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules.update(name.name for name in node.names)
    return {name.split(".")[1] for name in modules if name.startswith("cfcore.")}


def noun(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    allowed = set(ORDER[: ORDER.index(noun(path))]) | {noun(path)}

    assert imported(path) <= allowed


def test_metrics_import_nothing_else_of_the_package() -> None:
    assert ORDER[0] == "metrics"
    for path in (PACKAGE / "metrics").glob("*.py"):
        assert imported(path) <= {"metrics"}


def test_importing_the_package_loads_torch_and_numpy_only() -> None:
    script = (
        "import sys, torch, numpy; before = set(sys.modules); import cfcore;"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    call = [sys.executable, "-c", script]
    loaded = set(subprocess.run(call, capture_output=True, text=True, check=True).stdout.split())

    assert {name for name in loaded if name not in sys.stdlib_module_names} <= {"cfcore", "numpy"}


def docstrings() -> dict[str, str]:
    """Every docstring of a function in the package, by where it stands."""
    found = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                found[f"{path.relative_to(PACKAGE)}:{node.name}"] = ast.get_docstring(node) or ""
    return found


def equations() -> list[dict[str, str]]:
    with (ROOT / "data/paper/equations.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def by_label(row: dict[str, str]) -> str:
    return row["label"]


@pytest.mark.parametrize("row", equations(), ids=by_label)
def test_every_equation_is_cited_by_its_function_alone(row: dict[str, str]) -> None:
    module, name = row["function"].removeprefix("cfcore.").rsplit(".", 1)
    citing = [where for where, text in docstrings().items() if f"``{row['label']}``" in text]

    assert citing == [f"{module.replace('.', '/')}.py:{name}"]


@pytest.mark.parametrize("row", equations(), ids=by_label)
def test_every_equation_has_a_test_that_calls_its_function(row: dict[str, str]) -> None:
    file, test = row["test"].split("::")
    tree = ast.parse((ROOT / file).read_text())
    body = next(node for node in tree.body if getattr(node, "name", "") == test)
    used = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}
    tables = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and {ast.unparse(name) for name in node.targets} & used
    ]

    name = row["function"].rsplit(".", 1)[1]
    assert any(name in ast.unparse(node) for node in (body, *tables))


@pytest.mark.parametrize("row", equations(), ids=by_label)
def test_every_equation_has_one_place_in_the_book(row: dict[str, str]) -> None:
    chapters = {path.stem: path.read_text() for path in (ROOT / "notebooks").glob("*.md")}
    line = re.compile(rf"^:label: {re.escape(row['label'])}$", flags=re.MULTILINE)
    places = [name for name, text in chapters.items() for _ in line.findall(text)]

    assert places == [row["place"]]
    assert f"{row['function']}`" in chapters[row["place"]]
    assert f":`{row['label']}`" in docstrings_of(row["function"])


def docstrings_of(function: str) -> str:
    module, name = function.removeprefix("cfcore.").rsplit(".", 1)
    return docstrings()[f"{module.replace('.', '/')}.py:{name}"]


@pytest.mark.parametrize("name", cfcore.metrics.__all__)
def test_every_metric_explains_itself(name: str) -> None:
    text = inspect.getdoc(getattr(cfcore.metrics, name))

    parts = ["Args:", "Returns:", "Example:", ">>> "]
    assert [part for part in parts if part not in text] == []


def test_files_and_functions_stay_small() -> None:
    for path in MODULES:
        text = path.read_text()
        assert text.count("\n") <= 450, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                assert lines <= 50, f"{path}:{node.name}"
