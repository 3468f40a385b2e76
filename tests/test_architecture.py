"""The shape of the packages: imports point left, names are said once, equations have one home."""

import ast
import csv
import inspect
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import torch

import cfcore
from cfbook.production.notebooks import read_value
from cfchest.data import load_nih
from cfchest.graph import CHEST, paper_grid
from cfchest.phantom import Phantom
from cfcore.graph import CausalGraph, Variable
from cfscm.encoding import encode
from cfscm.networks import PredictorConfig

ROOT = Path(cfcore.__file__).parents[1]
PACKAGES = ["cfcore", "cfscm", "cfchest", "cfbook"]
MODULES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
CHEST_WORDS = (
    r"(?i)effusion|lung|chest|pleural|radiograph|x-ray|chexpert|mimic|\bnih\b|phantom|hospital"
)


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> Iterator[str]:
    """The modules of ours that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            both = [f"{node.module}.{name.name}" for name in node.names]
            names = [both_ if both_ in KNOWN else node.module for both_ in both]
        elif isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] in PACKAGES)


KNOWN = {dotted(path) for path in MODULES}


def of_package(name: str) -> list[Path]:
    return [path for path in MODULES if dotted(path).partition(".")[0] == name]


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_packages_import_only_what_is_left_of_them(path: Path) -> None:
    own = dotted(path).partition(".")[0]
    allowed = PACKAGES[: PACKAGES.index(own) + 1]

    assert {name.partition(".")[0] for name in imported(path)} <= set(allowed)


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_import_one_another_in_one_direction(package: str) -> None:
    graph = {dotted(path): set(imported(path)) - {dotted(path)} for path in of_package(package)}

    TopologicalSorter(graph).prepare()  # raises on a cycle


def test_the_metrics_import_nothing_else_of_the_package() -> None:
    for path in (ROOT / "cfcore/metrics").glob("*.py"):
        assert all(name.startswith("cfcore.metrics") for name in imported(path))


@pytest.mark.parametrize("path", of_package("cfcore") + of_package("cfscm"), ids=place)
def test_the_method_holds_no_word_of_a_chest(path: Path) -> None:
    assert re.findall(CHEST_WORDS, path.read_text()) == []


def test_only_the_book_finds_files_beside_the_packages() -> None:
    outside = [path for path in MODULES if not place(path).startswith("cfbook/")]
    beside = re.compile(r"__file__\)?\.?(parent\.parent|parents\[)|data_file|\"data/")

    assert [place(path) for path in outside if beside.search(path.read_text())] == []


def test_a_folder_holds_few_modules_and_a_function_few_lines() -> None:
    folders = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    assert max(folders.values()) <= 19, folders.most_common(1)

    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                assert lines <= 50, f"{place(path)}:{node.name}"


def test_the_core_stays_small() -> None:
    lines = sum(path.read_text().count("\n") for path in of_package("cfcore"))

    assert lines <= 7_500


def defined(path: Path) -> list[str]:
    """The public names that a file defines at its top level."""
    names = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [
                name.id for t in targets for name in ast.walk(t) if isinstance(name, ast.Name)
            ]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_defined_twice_in_a_package(package: str) -> None:
    # A command bears the name of what it does.
    modules = [path for path in of_package(package) if path.name != "cli.py"]
    counts = Counter(name for path in modules for name in defined(path))

    assert {name: count for name, count in counts.items() if count > 1} == {}


def texts() -> dict[Path, str]:
    """What may use a name: the packages, the chapters, the pages, and what runs them."""
    others = [ROOT / name for name in ("README.md", "Snakefile", "Makefile", "pyproject.toml")]
    for folder, ending in (("notebooks", "md"), ("book", "md"), ("benchmarks", "py")):
        others += (ROOT / folder).rglob(f"*.{ending}")
    return {path: path.read_text() for path in (*MODULES, *others)}


def test_what_only_its_own_file_uses_has_an_underscore() -> None:
    words = {path: set(re.findall(r"\w+", text)) for path, text in texts().items()}
    idle = [
        f"{place(path)}:{name}"
        for path in MODULES
        for name in defined(path)
        if not any(name in used for other, used in words.items() if other != path)
    ]

    assert idle == []


def printed(script: str) -> list[str]:
    """The words that a script prints in a Python of its own."""
    call = [sys.executable, "-c", script]
    return subprocess.run(call, capture_output=True, text=True, check=True).stdout.split()


NEW = "print(*{name.split('.')[0] for name in set(sys.modules) - before})"


def test_importing_the_package_loads_nothing_else() -> None:
    loaded = printed(f"import sys; before = set(sys.modules); import cfcore; dir(cfcore); {NEW}")

    assert {name for name in loaded if name not in sys.stdlib_module_names} == {"cfcore"}


@pytest.mark.parametrize(
    ("use", "first"),
    [
        ("cfcore.evaluate([0.9, 0.2], [[0.8], [0.3]], [1, 0])", "torch, scipy"),
        ("[getattr(cfcore, name) for name in cfcore.__all__]", "torch, scipy, pandas, tqdm"),
    ],
)
def test_using_the_package_loads_no_more_than_it_needs(use: str, first: str) -> None:
    loaded = printed(f"import sys, {first}; before = set(sys.modules); import cfcore; {use}; {NEW}")

    assert "cfcore" in loaded
    others = {name for name in loaded if name not in sys.stdlib_module_names}
    assert others <= {"cfcore", "numpy", "scipy"}


@pytest.mark.parametrize(
    "before",
    [
        "import cfcore",
        "from cfcore import evaluate, bootstrap, marginalise; import cfcore.marginalise",
        "import cfcore; cfcore.evaluate; cfcore.bootstrap; import cfcore.predictions",
        "import cfcore.marginalise; from cfcore import *",
    ],
)
def test_the_functions_of_the_package_are_never_hidden_by_their_files(before: str) -> None:
    functions = "cfcore.evaluate, cfcore.bootstrap, cfcore.compare, cfcore.marginalise"

    words = printed(f"{before}; import cfcore; print(*(type(f).__name__ for f in ({functions})))")

    assert words == ["function"] * 4


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


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_bad_input_is_always_an_input_error(path: Path) -> None:
    # The metrics know nothing else of the package; whoever calls them checks first.
    if place(path).startswith("cfcore/metrics/"):
        assert raised(path) <= {"ValueError"}
    else:
        assert raised(path) & {"ValueError", "TypeError", "KeyError", "RuntimeError"} == set()


def test_there_is_one_class_of_error() -> None:
    errors = [
        node.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        if any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)
    ]

    assert errors == ["InputError"]


BAD_INPUT = {
    "a graph": (lambda: CausalGraph([Variable("a", "binary")], {"a": "a"}), "not a string"),
    "a name": (lambda: CHEST["weight"], "unknown variable 'weight'"),
    "parents": (lambda: encode(CHEST, {"sex": torch.ones(1)}, ["age"]), "have no 'age', only sex"),
    "a population": (lambda: paper_grid().empirical({"sex": [0, 1]}), "have no 'age', only sex"),
    "a phantom": (lambda: Phantom(size=4), "8 pixels a side or more"),
    "a network": (lambda: PredictorConfig("sex", architecture="resnet"), "must be one of"),
    "a folder": (lambda: load_nih("nowhere"), "nowhere"),
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
    """Every docstring of a function, by its name with that of its module."""
    return {
        f"{dotted(path)}.{node.name}": ast.get_docstring(node) or ""
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }


def equations() -> list[dict[str, str]]:
    with (ROOT / "data/paper/equations.csv").open(newline="") as file:
        return list(csv.DictReader(file))


every_equation = pytest.mark.parametrize("row", equations(), ids=lambda row: row["label"])


@every_equation
def test_every_equation_is_cited_by_its_function_alone(row: dict[str, str]) -> None:
    citing = [where for where, text in docstrings().items() if f"``{row['label']}``" in text]

    assert citing == [row["function"]]


@every_equation
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


@every_equation
def test_every_equation_has_one_place_in_the_book(row: dict[str, str]) -> None:
    chapters = {path.stem: path.read_text() for path in (ROOT / "notebooks").glob("*.md")}
    line = re.compile(rf"^:label: {re.escape(row['label'])}$", flags=re.MULTILINE)
    places = [name for name, text in chapters.items() for _ in line.findall(text)]

    assert places == [row["place"]]
    assert f"{row['function']}`" in chapters[row["place"]]
    assert f":`{row['label']}`" in docstrings()[row["function"]]


@pytest.mark.parametrize("name", cfcore.metrics.__all__)
def test_every_metric_explains_itself(name: str) -> None:
    text = inspect.getdoc(getattr(cfcore.metrics, name))

    parts = ["Args:", "Returns:", "Example:", ">>> "]
    assert [part for part in parts if part not in text] == []
