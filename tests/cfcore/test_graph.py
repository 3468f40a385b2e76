import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfchest.graph import CHEST
from cfcore.checks import InputError
from cfcore.graph import CausalGraph, Variable


def binary(*names: str) -> list[Variable]:
    return [Variable(name, "binary") for name in names]


@st.composite
def dags(draw: st.DrawFn) -> tuple[list[Variable], dict[str, tuple[str, ...]]]:
    """Any finite DAG: edges run along a hidden order, variables are given in another."""
    hidden = [f"v{i}" for i in range(draw(st.integers(1, 8)))]
    parents = {
        name: tuple(draw(st.lists(st.sampled_from(hidden[:i]), unique=True))) if i else ()
        for i, name in enumerate(hidden)
    }
    return binary(*draw(st.permutations(hidden))), parents


@given(dags())
def test_every_variable_comes_after_its_parents(
    dag: tuple[list[Variable], dict[str, tuple[str, ...]]],
) -> None:
    variables, parents = dag
    order = tuple(CausalGraph(variables, parents))

    assert sorted(order) == sorted(v.name for v in variables)
    assert all(order.index(p) < order.index(child) for child in order for p in parents[child])


@given(dags())
def test_a_variable_descends_from_its_causes_and_not_from_itself(
    dag: tuple[list[Variable], dict[str, tuple[str, ...]]],
) -> None:
    graph = CausalGraph(*dag)

    for a in graph:
        assert all({a, *graph.descendants(a)} & set(graph.parents(b)) for b in graph.descendants(a))
        assert a not in graph.descendants(a)


def test_chest_graph_is_that_of_the_design() -> None:
    assert set(CHEST.roots) == {"sex", "race", "age"}
    assert CHEST.parents("lung_size") == ("sex", "age")
    assert CHEST.parents("effusion") == ("age",)
    assert set(CHEST.parents("image")) == {"sex", "race", "age", "lung_size", "effusion"}
    assert CHEST.descendants("age") == ("lung_size", "effusion", "image")
    assert CHEST.descendants("sex", "lung_size") == ("lung_size", "image")
    assert CHEST.descendants("race") == ("image",)


@pytest.mark.parametrize(
    ("names", "parents", "message"),
    [
        ("ab", {"a": ("b",), "b": ("a",)}, "cycle: .*a.*b"),
        ("a", {"a": ("a",)}, "cycle"),
        ("ab", {"a": ("c",)}, "'a' has an unknown parent 'c'"),
        ("ab", {"c": ("a",)}, "unknown variable 'c'"),
        ("aa", {}, "duplicate variable 'a'"),
        ("ab", {"a": ("b", "b")}, "duplicate parent"),
    ],
)
def test_a_graph_that_is_none_is_refused(names: str, parents: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CausalGraph(binary(*names), parents)


def test_parents_given_as_a_string_are_refused() -> None:
    with pytest.raises(InputError, match="not a string"):
        CausalGraph(binary("a", "b"), {"a": "b"})


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'weight'.*lung_size"):
        CHEST["weight"]
    with pytest.raises(InputError, match="weight"):
        CHEST.descendants("weight")


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "ordinal"},
        {"kind": "continuous"},
        {"kind": "continuous", "range": (1.0, 1.0)},
        {"kind": "continuous", "range": (0.0, float("inf"))},
        {"kind": "continuous", "range": (0.0, 1.0), "categories": ("a", "b")},
        {"kind": "categorical"},
        {"kind": "categorical", "categories": ("a", "a")},
        {"kind": "binary", "categories": ("a", "b", "c")},
        {"kind": "binary", "range": (0.0, 1.0)},
    ],
)
def test_a_variable_that_is_none_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="v: "):
        Variable("v", **wrong)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [("sex", 1, 0.5), ("race", 2, 3), ("age", 90, 91), ("age", 20.5, float("nan"))],
)
def test_values_are_checked_against_the_variable(name: str, good: float, bad: float) -> None:
    CHEST[name].check(good)
    with pytest.raises(ValueError, match=name):
        CHEST[name].check(bad)


def test_graphs_are_equal_when_variables_and_edges_are() -> None:
    chain, fork = {"b": ("a",), "c": ("b",)}, {"b": ("a",), "c": ("a",)}
    one, same, other = (CausalGraph(binary("a", "b", "c"), p) for p in (chain, chain, fork))

    assert one == same and hash(one) == hash(same)
    assert one != other
    assert repr(one) == "CausalGraph(a; b <- a; c <- b)"


def test_a_graph_written_as_yaml_is_the_same_graph(tmp_path: Path) -> None:
    text = "age: {kind: continuous, range: [20, 90], units: years, parents: [sex]}\n"
    text += "sex: {kind: binary, categories: [male, female]}\n"
    (tmp_path / "graph.yml").write_text(text)
    age = Variable("age", "continuous", range=(20, 90), units="years")
    sex = Variable("sex", "binary", ("male", "female"))

    assert CausalGraph.from_yaml(tmp_path / "graph.yml") == CausalGraph.from_yaml(text)
    assert CausalGraph.from_yaml(text) == CausalGraph([age, sex], {"age": ["sex"]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "a mapping of names"),
        ("a: [", "while parsing"),
        ("a: binary", "a: its kind is needed, such as {kind: binary}, not 'binary'"),
        ("a: {knd: binary}", "a: unknown key 'knd'; a variable has categories, kind"),
        ("a: {units: years}", "a: no kind"),
        ("a: {kind: ordinal}", "a: kind must be one of"),
        ("a: {kind: binary, categories: [no, yes]}", "a: the category False is not text"),
        ("a: {kind: binary, parents: b}", "a: parents is a list, not 'b'"),
        ("a: {kind: continuous, range: [low, 1]}", "a: range is two numbers, not"),
        ("a: {kind: binary, parents: [b]}", "'a' has an unknown parent 'b'"),
        ("a: {kind: binary}\na: {kind: binary}", "duplicate variable 'a'"),
    ],
)
def test_yaml_that_is_no_graph_is_refused_by_file_and_key(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "graph.yml"
    path.write_text(text)

    with pytest.raises(InputError, match=re.escape("graph.yml: ") + ".*" + re.escape(message)):
        CausalGraph.from_yaml(path)
