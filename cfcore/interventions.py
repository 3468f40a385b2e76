r"""The target distribution :math:`q(\tilde{\mathbf{a}})`: which worlds, and their weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cfcore.checks import InputError, Numbers, as_tensor, check_count, check_weights
from cfcore.graph import CausalGraph

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Grid:
    r"""K joint interventions and their probabilities.

    One table of predictions on a grid answers for every q on that grid, by reweighting.

    Args:
        values: What each intervention sets, one tensor of shape (K,) for each variable.
        q: Intervention probabilities, shape (K,); uniform by default.

    Example:
        >>> grid = Grid.product({"sex": [0, 1], "age": [20, 55, 90]})
        >>> len(grid), grid.values["sex"].tolist()
        (6, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    """

    values: Mapping[str, Tensor]
    q: Tensor | None = None

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.values.items()}
        if not lengths or len(set(lengths.values())) != 1:
            raise InputError(f"needs as many values of each variable, not {lengths}", column="grid")
        object.__setattr__(self, "q", check_weights(self.q, len(self)))

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    @classmethod
    def product(
        cls, values: Mapping[str, Sequence[float]], *, graph: CausalGraph | None = None
    ) -> "Grid":
        """Every combination of the given values, the last variable changing fastest.

        Args:
            values: The values of each variable; those that its range excludes are refused.
            graph: The graph that holds the variables.
        """
        for name, numbers in values.items() if graph is not None else ():
            if name not in graph:
                raise InputError(f"the graph has no variable {name!r}", column="grid")
            for number in numbers:
                graph[name].check(float(number))
        atoms = torch.tensor(list(product(*values.values())), dtype=torch.float32)
        return cls(dict(zip(values, atoms.unbind(dim=1), strict=True)))

    def weighted(self, q: Numbers) -> "Grid":
        """The same interventions under other probabilities."""
        return replace(self, q=check_weights(q, len(self)))

    def nearest(self, parents: Mapping[str, Numbers]) -> Tensor:
        """The intervention closest to each patient, in units of the spread of each variable.

        Args:
            parents: Values of the grid's variables, each of shape (N,).

        Returns:
            Indices in 0 ... K - 1, shape (N,).
        """
        distance = 0.0
        for name, atoms in self.values.items():
            if name not in parents:
                raise InputError(f"the patients have no {name!r}, only {', '.join(parents)}")
            values = as_tensor(parents[name], name, axes=1).double()
            scale = (atoms.max() - atoms.min()).double().clamp(min=1e-12)
            distance = distance + ((values[:, None] - atoms.double()) / scale) ** 2
        return distance.argmin(dim=1)

    def empirical(self, parents: Mapping[str, Numbers]) -> "Grid":
        """The grid weighted as patients are: each counts for the intervention closest to them.

        Example:
            >>> grid = Grid.product({"sex": [0, 1]})
            >>> grid.empirical({"sex": [0, 1, 1, 1]}).q.tolist()
            [0.25, 0.75]
        """
        counts = torch.bincount(self.nearest(parents), minlength=len(self))
        return self.weighted(counts / counts.sum())

    def external(self, population: "pd.DataFrame", *, count: str = "count") -> "Grid":
        """The grid weighted by counts of another population.

        Args:
            population: A column for each variable of the grid, and one of counts.
            count: The name of the column of counts.
        """
        missing = [name for name in (*self.values, count) if name not in population]
        if missing:
            raise InputError(f"the population has no column {missing[0]!r}", column="q")
        nearest = self.nearest({name: population[name].to_numpy() for name in self.values})
        weights = as_tensor(population[count], count, axes=1).double()
        total = torch.zeros(len(self), dtype=torch.float64).index_add_(0, nearest, weights)
        return self.weighted(total / total.sum())

    def draws(self, patients: int, count: int, *, seed: int) -> dict[str, Tensor]:
        """Monte Carlo draws from q, a set of its own for each patient.

        Args:
            patients: The number of patients, N.
            count: Draws for each of them, M.
            seed: The seed.

        Returns:
            Values of each variable, shape (N, M).
        """
        check_count(count, "draws")
        rng = np.random.default_rng(seed)
        chosen = torch.from_numpy(rng.choice(len(self), size=(patients, count), p=self.q.numpy()))
        return {name: values[chosen] for name, values in self.values.items()}


def parse_values(text: str) -> tuple[str, list[float]]:
    """Read an intervention as it is written on the command line.

    ``name=a,b,c`` lists values; ``name=low:high:count`` spaces them evenly.

    Example:
        >>> parse_values("sex=0,1")
        ('sex', [0.0, 1.0])
        >>> parse_values("age=20:90:8")
        ('age', [20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0])
    """
    name, _, values = text.partition("=")
    try:
        if ":" in values:
            low, high, count = values.split(":")
            return name, np.linspace(float(low), float(high), int(count)).tolist()
        return name, [float(value) for value in values.split(",")]
    except ValueError:
        example = "sex=0,1 or age=20:90:8"
        raise InputError(f"{text!r} is not an intervention like {example}", column="do") from None
