r"""The target distribution :math:`q(\tilde a)`: which worlds, and their weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cfcore.checks import InputError, Numbers, as_tensor, check_count, check_weights, shown
from cfcore.graph import CausalGraph, as_codes

if TYPE_CHECKING:
    import pandas as pd

    from cfcore.patients import Patients
    from cfcore.predictions import Predictions

    _People = Patients | Predictions | Mapping[str, Numbers]


@dataclass(frozen=True, eq=False)
class Grid:
    r"""K joint interventions and their probabilities.

    One table of predictions on a grid answers for every q on that grid, by reweighting.

    Args:
        values: What each intervention sets, one tensor of shape (K,) for each variable.
        q: Intervention probabilities, shape (K,); uniform by default.
        graph: The graph of the variables, which says what categories there are.

    Example:
        >>> grid = Grid.product({"sex": [0, 1], "age": [20, 55, 90]})
        >>> len(grid), grid.values["sex"].tolist()
        (6, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    """

    values: Mapping[str, Tensor]
    q: Tensor | None = None
    graph: CausalGraph | None = None

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.values.items()}
        if not lengths or len(set(lengths.values())) != 1:
            raise InputError(f"needs as many values of each variable, not {lengths}", column="grid")
        object.__setattr__(self, "q", check_weights(self.q, len(self)))

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    @classmethod
    def product(
        cls,
        values: Mapping[str, Sequence[float | str]],
        q: str | Numbers = "uniform",
        *,
        graph: CausalGraph | None = None,
    ) -> "Grid":
        """Every combination of the given values, the last variable changing fastest.

        Args:
            values: The values of each variable: numbers, or names of categories of the graph.
            q: ``"uniform"``, or K probabilities or counts, in the order of the combinations.
            graph: The graph of the variables; a value that one of them does not take is refused.

        Example:
            >>> from cfcore.graph import Variable
            >>> site = Variable("site", "categorical", categories=("Oxford", "Lyon", "Rome"))
            >>> grid = Grid.product({"site": ["Lyon", "Rome"]}, [3, 1], graph=CausalGraph([site]))
            >>> grid.values["site"].tolist(), grid.q.tolist()
            ([1.0, 2.0], [0.75, 0.25])
        """
        if graph is not None:
            values = {n: [graph[n].check(value) for value in own] for n, own in values.items()}
        codes = [as_codes(list(given), name, graph) for name, given in values.items()]
        atoms = torch.tensor(list(product(*codes)), dtype=torch.float32)
        if isinstance(q, str) and q != "uniform":
            raise InputError(f"is 'uniform' or {len(atoms)} numbers, not {q!r}", column="q")
        each = dict(zip(values, atoms.unbind(dim=1), strict=True))
        return cls(each, None if isinstance(q, str) else q, graph)

    def weighted(self, q: Numbers) -> "Grid":
        """The same interventions under other probabilities."""
        return replace(self, q=check_weights(q, len(self)))

    def nearest(self, parents: Mapping[str, Numbers]) -> Tensor:
        """The intervention closest to each patient, in units of the spread of each variable.

        Of values of the grid's variables, each of shape (N,), the result is indices in
        0 ... K - 1, shape (N,). A category that the grid lacks has no closest one, and is refused,
        as is a missing value.
        """
        distance = 0.0
        for name, atoms in self.values.items():
            values = self._known(parents, name)
            known = torch.isin(values, atoms.double())
            lacking = ~known if self._discrete(name) else values.isnan()
            if lacking.any():
                row = int(lacking.nonzero()[0])
                found = "missing" if values[row].isnan() else f"{shown(values[row].item())} is not"
                raise InputError(f"{found} on the grid", column=name, row=row)
            scale = (atoms.max() - atoms.min()).double().clamp(min=1e-12)
            distance = distance + ((values[:, None] - atoms.double()) / scale) ** 2
        return distance.argmin(dim=1)

    def near(self, parents: Mapping[str, Numbers]) -> Tensor:
        """The intervention near each patient, shape (N,), or -1 if there is none.

        It is the closest one, for those who have a category of the grid and are no more than half
        a step beyond the lowest or the highest value of a continuous variable.

        Example:
            >>> Grid.product({"age": [20, 30, 40]}).near({"age": [14, 16, 24, 44, 46]}).tolist()
            [-1, 0, 0, 2, -1]
        """
        inside = torch.tensor(True)
        for name in self.values:
            values, atoms = self._known(parents, name), self.values[name].double().unique()
            steps = atoms.diff() if len(atoms) > 1 else torch.zeros(1)
            within = (values >= atoms[0] - steps[0] / 2) & (values <= atoms[-1] + steps[-1] / 2)
            inside = inside & (torch.isin(values, atoms) if self._discrete(name) else within)
        found = torch.full(inside.shape, -1)
        some = {name: np.asarray(parents[name])[inside.numpy()] for name in self.values}
        found[inside] = self.nearest(some)
        return found

    def _discrete(self, name: str) -> bool:
        return self.graph is not None and self.graph[name].kind != "continuous"

    def _known(self, parents: Mapping[str, Numbers], name: str) -> Tensor:
        """The values that patients have of a variable of the grid, shape (N,)."""
        if name not in parents:
            raise InputError(f"the patients have no {name!r}, only {', '.join(parents)}")
        return as_tensor(as_codes(parents[name], name, self.graph), name, axes=1).double()

    def support(self, patients: "_People") -> Tensor:
        """How many patients are near each intervention, shape (K,).

        A patient with several rows counts once for each; without ``patient``, rows are counted.

        Example:
            >>> Grid.product({"sex": [0, 1]}).support({"sex": [0, 1, 1, 1]}).tolist()
            [1, 3]
        """
        near = self.near(getattr(patients, "parents", patients)).numpy()
        who = getattr(patients, "patient", None)
        who = np.arange(len(near)) if who is None else np.unique(who, return_inverse=True)[1]
        worlds, _ = np.unique(np.stack((near, who))[:, near >= 0], axis=1)
        return torch.from_numpy(np.bincount(worlds, minlength=len(self)))

    def supported(self, patients: "_People", *, least: int = 30) -> "Grid":
        """The grid with q cut off where patients are few: 0 there, elsewhere in proportion.

        The worst case and the variance often come from worlds in which nobody lives. A world needs
        ``least`` patients near it; if none has so many, that is refused.

        Example:
            >>> Grid.product({"age": [30, 60, 90]}).supported({"age": [28, 64]}, least=1).q.tolist()
            [0.5, 0.5, 0.0]
        """
        check_count(least, "least")
        counts = self.support(patients)
        q = torch.where(counts >= least, self.q, 0.0)
        if not q.any():
            most = f"the most near one is {int(counts.max())}"
            raise InputError(f"no world has {least} patients near it; {most}", column="q")
        return self.weighted(q / q.sum())

    def empirical(self, patients: "_People") -> "Grid":
        """The grid weighted as patients are: each counts for the intervention closest to them.

        Patients count by their weights, if they have any; parents alone will do.

        Example:
            >>> grid = Grid.product({"sex": [0, 1]})
            >>> grid.empirical({"sex": [0, 1, 1, 1]}).q.tolist()
            [0.25, 0.75]
        """
        parents, weight = getattr(patients, "parents", patients), getattr(patients, "weight", None)
        return self._counted(parents, weight)

    def external(self, population: "pd.DataFrame", *, count: str = "count") -> "Grid":
        """The grid weighted by another population: a table of its variables and of counts."""
        missing = [name for name in (*self.values, count) if name not in population]
        if missing:
            raise InputError(f"the population has no column {missing[0]!r}", column="q")
        return self._counted(population, as_tensor(population[count], count, axes=1))

    def _counted(self, parents: Mapping[str, Numbers], weight: Tensor | None) -> "Grid":
        weight = None if weight is None else weight.double()
        counts = torch.bincount(self.nearest(parents), weight, minlength=len(self)).double()
        return self.weighted(counts / counts.sum())

    def draws(self, patients: int, count: int, *, seed: int) -> dict[str, Tensor]:
        """Values of each variable drawn from q, M for each of N patients, shape (N, M)."""
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
