r"""Variables and the directed acyclic graph that joins them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
import pandas as pd

from cfcore.checks import InputError, Numbers, as_array

Kind = Literal["binary", "categorical", "continuous"]


@dataclass(frozen=True)
class Variable:
    r"""One endogenous variable: its name, its kind and the values it may take.

    A binary variable takes 0 and 1, a categorical one the codes 0, 1, ... of its
    ``categories``, a continuous one any number of the closed interval ``range``. The range
    also fixes the scale on which networks see the variable, :math:`(v - lo) / (hi - lo)`.

    Args:
        name: The key of parents, and the column of tables.
        categories: The names of the codes; optional for binary variables.
        range: The smallest and the largest value; for continuous variables.
        units: The units, for axes and tables.

    Example:
        >>> age = Variable("age", "continuous", range=(20.0, 90.0), units="years")
        >>> age.values, age.units
        (None, 'years')
        >>> Variable("race", "categorical", categories=("white", "asian", "black")).values
        (0, 1, 2)
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    units: str = ""

    def __post_init__(self) -> None:
        kinds, ends, count = get_args(Kind), self.range, len(self.categories)
        binary, categorical, continuous = (self.kind == kind for kind in kinds)
        increasing = ends is not None and -math.inf < ends[0] < ends[1] < math.inf
        faults = {
            f"kind must be one of {kinds}, not {self.kind!r}": self.kind not in kinds,
            f"a finite, increasing range is needed, not {ends}": continuous and not increasing,
            f"a {self.kind} variable has no range": not continuous and ends is not None,
            "a continuous variable has no categories": continuous and count > 0,
            "a binary variable names 0 or 2 categories": binary and count not in (0, 2),
            "a categorical variable needs 2 categories or more": categorical and count < 2,
            f"categories repeat in {self.categories}": len(set(self.categories)) < count,
        }
        if not self.name:
            raise InputError("a variable needs a name")
        for fault, found in faults.items():
            if found:
                raise InputError(f"{self.name}: {fault}")

    @property
    def values(self) -> tuple[int, ...] | None:
        """The values of a discrete variable, ``None`` of a continuous one."""
        return None if self.kind == "continuous" else tuple(range(max(2, len(self.categories))))

    def check(self, value: float | str) -> float:
        """A value as a number, which is the code of a category; others are refused.

        Example:
            >>> sex = Variable("sex", "binary", categories=("male", "female"))
            >>> sex.check("female")
            1.0
            >>> sex.check(2)
            Traceback (most recent call last):
            ...
            cfcore.checks.InputError: sex takes one of (0, 1), not 2
        """
        text = isinstance(value, str)
        known = self.categories if text else self.values
        if known is None and not self.range[0] <= value <= self.range[1]:
            raise InputError(f"{self.name} lies in {list(self.range)}, not at {value}")
        if known is not None and value not in known:
            given = repr(value) if text else value
            raise InputError(f"{self.name} takes one of {known}, not {given}")
        return float(self.categories.index(value) if text else value)


class CausalGraph(Mapping[str, Variable]):
    r"""A finite directed acyclic graph over named variables.

    The graph is a read-only mapping from names to variables, in topological order, so that
    iterating over it visits every variable after its parents. Ties are broken by the order in
    which the variables were given: the same graph always has the same order.

    Args:
        variables: The variables, each name once.
        parents: The names of the parents of a variable; roots may be left out.

    Example:
        >>> cause, effect = (Variable(name, "binary") for name in ("cause", "effect"))
        >>> graph = CausalGraph([effect, cause], {"effect": ("cause",)})
        >>> list(graph), graph.roots, graph.descendants("cause")
        (['cause', 'effect'], ('cause',), ('effect',))
    """

    def __init__(
        self, variables: Iterable[Variable], parents: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        variables, parents = list(variables), parents or {}
        names = [variable.name for variable in variables]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"duplicate variable {name!r}")
        for child, causes in parents.items():
            if isinstance(causes, str):
                problem = "must be a sequence of names, not a string"
                raise InputError(f"the parents of {child!r} {problem}")
            if child not in names:
                raise InputError(f"parents are given for an unknown variable {child!r}")
            for cause in causes:
                if cause not in names:
                    raise InputError(f"{child!r} has an unknown parent {cause!r}")
            if len(set(causes)) < len(causes):
                raise InputError(f"{child!r} has a duplicate parent in {tuple(causes)}")
        self._parents = {name: tuple(parents.get(name, ())) for name in names}
        try:
            TopologicalSorter(self._parents).prepare()
        except CycleError as error:
            raise InputError(f"the graph has a cycle: {' -> '.join(error.args[1])}") from None
        given, self._variables = dict(zip(names, variables, strict=True)), {}
        while len(self._variables) < len(given):  # ties are broken by the order of the variables
            free = (n for n in given if self._variables.keys() >= set(self._parents[n]))
            name = next(n for n in free if n not in self._variables)
            self._variables[name] = given[name]

    def __getitem__(self, name: str) -> Variable:
        if name not in self._variables:
            raise InputError(f"unknown variable {name!r}; the graph has {list(self._variables)}")
        return self._variables[name]

    def __contains__(self, name: object) -> bool:
        return name in self._variables

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, CausalGraph) and self._variables == other._variables
        return same and self._parents == other._parents

    def __hash__(self) -> int:
        return hash((tuple(self._variables.values()), frozenset(self._parents.items())))

    def __repr__(self) -> str:
        arrows = (f"{name} <- {', '.join(self._parents[name])}".rstrip(" <-") for name in self)
        return f"CausalGraph({'; '.join(arrows)})"

    @property
    def roots(self) -> tuple[str, ...]:
        """The names of the variables without parents."""
        return tuple(name for name in self if not self._parents[name])

    @property
    def edges(self) -> Mapping[str, tuple[str, ...]]:
        """The parents of every variable."""
        return MappingProxyType(self._parents)

    def parents(self, name: str) -> tuple[str, ...]:
        """The direct causes of a variable, in the order in which they were given."""
        return self._parents[self[name].name]

    def descendants(self, *names: str) -> tuple[str, ...]:
        """The variables that any of ``names`` causes, directly or not, in topological order.

        A named variable is among them only if another named one causes it.
        """
        sources, reached = {self[name].name for name in names}, []
        for name in self:
            if sources.union(reached).intersection(self._parents[name]):
                reached.append(name)
        return tuple(reached)

    @classmethod
    def from_yaml(cls, source: str | Path) -> "CausalGraph":
        """Read the fields of each variable, and its parents, by its name, from a file, or from the
        text itself if it has several lines or braces.

        Example:
            >>> graph = CausalGraph.from_yaml('''
            ... site: {kind: categorical, categories: [Oxford, Lyon]}
            ... image: {kind: continuous, range: [0, 1], parents: [site]}
            ... ''')
            >>> graph
            CausalGraph(site; image <- site)
        """
        import yaml

        given = isinstance(source, str) and ("\n" in source or "{" in source)
        place = "the graph" if given else str(source)
        try:
            text = source if given else Path(source).read_text(encoding="utf-8")
            root, found = yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
            if not isinstance(found, dict):
                raise InputError("a mapping of names to variables is needed")
            variables = [_variable(key.value, found.get(key.value)) for key, _ in root.value]
            return cls(variables, {n: f["parents"] for n, f in found.items() if "parents" in f})
        except (yaml.YAMLError, UnicodeDecodeError, InputError) as error:
            raise InputError(f"{place}: {error}") from None


def as_codes(values: Numbers, name: str, graph: CausalGraph | None) -> np.ndarray:
    """Values of a variable, shape (N,), as numbers: categories become codes, missing ones NaN.

    The graph lists the categories; text is refused without one, and a value that a discrete
    variable does not take is refused by its row.

    Example:
        >>> site = Variable("site", "categorical", categories=("Oxford", "Lyon"))
        >>> as_codes(["Lyon", None], "site", CausalGraph([site]))
        array([ 1., nan])
    """
    variable = graph[name] if graph is not None and name in graph else None
    discrete = variable is not None and variable.kind != "continuous"
    codes = np.asarray(values)
    if codes.dtype.kind in "biuf" and not discrete:
        return codes
    codes = np.where(pd.isna(codes), math.nan, codes.astype(object))
    for place, value in np.ndenumerate(codes):
        try:
            if isinstance(value, str) and variable is None:
                raise InputError(f"{value!r} is text: pass graph=, which lists its categories")
            if isinstance(value, str) or (discrete and value == value):
                codes[place] = variable.check(value)
        except InputError as error:
            raise InputError(error.problem, column=name, row=place[0]) from None
    return as_array(codes, name)


def _variable(name: str, fields: object) -> Variable:
    """A variable from what YAML says of it."""
    known = ("categories", "kind", "parents", "range", "units")
    if not isinstance(fields, dict):
        raise InputError(f"{name}: its kind is needed, such as {{kind: binary}}, not {fields!r}")
    strange = [f"unknown key {key!r}" for key in fields if key not in known]
    for fault in strange + ["no kind"] * ("kind" not in fields):
        raise InputError(f"{name}: {fault}; a variable has {', '.join(known)}")
    for key in ("categories", "range", "parents"):
        if not isinstance(fields.get(key, []), list):
            raise InputError(f"{name}: {key} is a list, not {fields[key]!r}")
    for category in fields.get("categories", ()):
        if not isinstance(category, str):
            raise InputError(f"{name}: the category {category!r} is not text: put it in quotes")
    ends = fields.get("range", [0, 1])
    if [isinstance(end, int | float) for end in ends] != [True, True]:
        raise InputError(f"{name}: range is two numbers, not {ends}")
    ends = tuple(map(float, ends)) if "range" in fields else None
    categories, units = tuple(fields.get("categories", ())), fields.get("units", "")
    return Variable(name, fields["kind"], categories, ends, units)
