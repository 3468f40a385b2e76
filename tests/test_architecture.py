"""The shape of the package: imports point one way, every equation has one home."""

import ast
import csv
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import cfcore
from cfbook.production.notebooks import read_value
from cfchest.data import load_nih
from cfchest.graph import CHEST, paper_grid
from cfchest.phantom import Phantom
from cfcore.graph import CausalGraph, Variable
from cfcore.scores import read_columns, weight_column
from cfscm.encoding import encode
from cfscm.networks import PredictorConfig

PACKAGE = Path(cfcore.__file__).parent
ROOT = PACKAGE.parent

# Each may import only from those before it.
ORDER = [
    "metrics",
    "checks",
    "extras",
    "restricted",
    "files",
    "evaluate",
    "resampling",
    "intervals",
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
    "predictor",
    "shards",
    "imputation",
    "marginalise",
    "theory",
    "subgroups",
    "soundness",
    "settings",
    "study",
    "learned",
    "design",
    "claims",
    "tables",
    "results",
    "shortage",
    "label_free",
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
    "scoring",
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


def printed(script: str) -> list[str]:
    """The words that a script prints in a Python of its own."""
    call = [sys.executable, "-c", script]
    return subprocess.run(call, capture_output=True, text=True, check=True).stdout.split()


NEW = "print(*{name.split('.')[0] for name in set(sys.modules) - before})"


def test_importing_the_package_loads_nothing_else() -> None:
    loaded = printed(f"import sys; before = set(sys.modules); import cfcore; dir(cfcore); {NEW}")

    assert {name for name in loaded if name not in sys.stdlib_module_names} == {"cfcore"}


def test_using_the_package_loads_torch_and_numpy_only() -> None:
    loaded = printed(
        "import sys, torch, numpy; before = set(sys.modules);"
        f"import cfcore; [getattr(cfcore, name) for name in cfcore.__all__]; {NEW}"
    )

    assert "cfcore" in loaded
    assert {name for name in loaded if name not in sys.stdlib_module_names} <= {"cfcore", "numpy"}


@pytest.mark.parametrize(
    "before",
    [
        "import cfcore",
        "import cfcore.evaluate, cfcore.bootstrap",
        "from cfcore.evaluate import check_table; from cfcore.bootstrap import interval",
        "from cfcore import evaluate, bootstrap; import cfcore.evaluate, cfcore.bootstrap",
        "import cfcore; cfcore.evaluate; cfcore.bootstrap; import cfcore.predictions",
        "from cfcore import *; import cfcore.evaluate",
    ],
)
def test_the_functions_of_the_package_are_never_hidden_by_their_files(before: str) -> None:
    kinds = "type(cfcore.evaluate).__name__, type(cfcore.bootstrap).__name__"
    again = "from cfcore import evaluate, bootstrap"
    same = "evaluate is cfcore.evaluate is sys.modules['cfcore.evaluate'].evaluate"

    words = printed(f"import sys; {before}; import cfcore; {again}; print({kinds}, {same})")

    assert words == ["function", "function", "True"]


def test_what_the_package_lists_is_there_and_nothing_else_is_promised() -> None:
    assert set(cfcore.__all__) < set(dir(cfcore))
    assert all(getattr(cfcore, name).__module__.startswith("cfcore.") for name in cfcore.__all__)
    with pytest.raises(AttributeError, match="module 'cfcore' has no attribute 'evaluat'"):
        cfcore.evaluat  # noqa: B018


def raised(path: Path) -> set[str]:
    """The names of the exceptions that a file raises."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)]
    calls = [node.exc.func if isinstance(node.exc, ast.Call) else node.exc for node in nodes]
    return {ast.unparse(call) for call in calls if call is not None}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_bad_input_is_always_an_input_error(path: Path) -> None:
    # The metrics know nothing else of the package; whoever calls them checks first.
    if noun(path) == "metrics":
        assert raised(path) <= {"ValueError"}
    else:
        assert raised(path) & {"ValueError", "TypeError", "KeyError", "RuntimeError"} == set()


def test_every_error_of_the_package_is_an_input_error() -> None:
    errors = [
        getattr(import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)), node.name)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        if any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)
    ]

    assert {kind.__name__ for kind in errors} > {"InputError", "FileError", "NotebookError"}
    assert [kind for kind in errors if not issubclass(kind, cfcore.InputError)] == []


BAD_INPUT = {
    "a graph": (lambda: CausalGraph([Variable("a", "binary")], {"a": "a"}), "not a string"),
    "a name": (lambda: CHEST["weight"], "unknown variable 'weight'"),
    "parents": (lambda: encode(CHEST, {"sex": torch.ones(1)}, ["age"]), "have no 'age', only sex"),
    "a population": (lambda: paper_grid().empirical({"sex": [0, 1]}), "have no 'age', only sex"),
    "a phantom": (lambda: Phantom(size=4), "8 pixels a side or more"),
    "a network": (lambda: PredictorConfig(architecture="resnet"), "architecture must be one of"),
    "a folder": (lambda: load_nih("nowhere"), "nowhere"),
    "a table": (lambda: read_columns("nowhere.csv", weight_column), "No such file"),
    "a notebook": (lambda: read_value("alpha", "["), "not a value in YAML"),
    "a loss": (lambda: cfcore.evaluate([0.5], [[0.5]], loss="mse"), "one of .*not 'mse'"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_one_class_catches_all_bad_input(name: str) -> None:
    call, message = BAD_INPUT[name]
    with pytest.raises(cfcore.InputError, match=message) as caught:
        call()

    assert not str(caught.value).startswith(("'", '"'))  # as a KeyError would


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
        assert text.count("\n") <= 500, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                assert lines <= 50, f"{path}:{node.name}"
