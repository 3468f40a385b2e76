"""Means over one world at a time, from observed patients: g-formula, weighting, and both."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import TypeVar

import numpy as np
import pandas as pd

from cfcore.checks import InputError, refuse_rows
from cfcore.extras import needs

_FEW_VALUES, _MANY_VALUES = 12, 50
_KNOTS = 4
_LEAST = 0.1
PENALTIES = np.logspace(-1, 4, 6)
"""Of ridge regressions, which choose among them."""

_Function = TypeVar("_Function", bound=Callable)
Arrays = Mapping[str, np.ndarray]
"""Values by name, each of shape (N,)."""


@dataclass(frozen=True)
class Pool:
    """Observed patients: what worlds set, what is held, and whose the rows are.

    Attributes:
        attributes: The variables that worlds set.
        held: The other parents and the label; without what follows the attributes, for a total
            effect.
        patient: Whose each row is, shape (N,).
        numbers: Which of them are numbers; by default those with more than 12 values. Of all
            others, each value is a category.
    """

    attributes: Arrays
    held: Arrays
    patient: np.ndarray
    numbers: Collection[str] | None = None

    def __post_init__(self) -> None:
        for name, values in self.columns.items():
            if values.shape != (len(self),):
                raise InputError(f"has {len(values)} values, not {len(self)}", column=name)
            refuse_rows(pd.isna(values), "the value is missing", name)
        if not self.held:
            object.__setattr__(self, "held", {"everyone": np.zeros(len(self))})
        if self.numbers is None:
            numbers = frozenset(n for n, values in self.columns.items() if is_number(values))
            object.__setattr__(self, "numbers", numbers)
        for name, values in self.columns.items():
            if name not in self.numbers and (count := len(np.unique(values))) > _MANY_VALUES:
                raise InputError(f"has {count} values, too many for a category", column=name)

    def __len__(self) -> int:
        return len(self.patient)

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """What worlds set, and what is held."""
        return {**self.attributes, **self.held}

    def take(self, rows: np.ndarray) -> "Pool":
        """Some of the rows."""
        parts = (self.attributes, self.held)
        own = ({name: values[rows] for name, values in part.items()} for part in parts)
        return Pool(*own, self.patient[rows], self.numbers)

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        attributes: Sequence[str],
        *,
        follows: Collection[str] = (),
        numbers: Collection[str] | None = None,
    ) -> "Pool":
        """Take the columns of a table of ``logit``, the parents, ``y`` and ``patient``."""
        for name in [*attributes, *follows]:
            if name not in frame:
                raise InputError(f"there is no column {name} (found: {', '.join(frame)})")
        others = frame.columns.difference([*attributes, *follows, "logit", "patient"], sort=False)
        held = {name: frame[name].to_numpy() for name in others}
        patient = np.array([f"row {i}" for i in range(len(frame))])
        if "patient" in frame:
            refuse_rows(frame["patient"].isna(), "the value is missing", "patient")
            patient = frame["patient"].to_numpy().astype(str)
        return cls({n: frame[n].to_numpy() for n in attributes}, held, patient, numbers)


def is_number(values: np.ndarray) -> bool:
    """Whether values are numbers rather than codes of a few categories."""
    return values.dtype.kind in "fiu" and len(np.unique(values)) > _FEW_VALUES


@dataclass(frozen=True)
class Standardised:
    r"""Means of F functions in K worlds, and what every row contributes to them.

    Attributes:
        values: The functions of the N observed rows, shape (N, F).
        outcome: What the regression expects of the M rows of the population, shape (M, K, F).
        residual: The functions minus what the regression expects of the observed rows, (N, F).
        variance: What the square of the residual is expected to be, shape (N, F).
        weight: What an observed row counts in a world, 0 far from it, shape (N, K).
        counts: Whether a row of the population counts in a world, shape (M, K).
        overlap: Whether patients like the rows of the population, and like the observed rows, are
            near a world at least a tenth as often as all patients are, shapes (M, K) and (N, K).
        patient: Whose the rows of the population and the observed rows are, (M,) and (N,), as
            numbers below ``people``.
    """

    values: np.ndarray
    outcome: np.ndarray
    residual: np.ndarray
    variance: np.ndarray
    weight: np.ndarray
    counts: np.ndarray
    overlap: tuple[np.ndarray, np.ndarray]
    patient: tuple[np.ndarray, np.ndarray]
    people: int

    @property
    def near(self) -> np.ndarray:
        """How many observed patients are near each world, shape (K,)."""
        return (self._by_patient > 0).sum(axis=0)

    @property
    def _by_patient(self) -> np.ndarray:
        """What observed patients count in each world, all their rows together, shape (P, K)."""
        found = np.zeros((self.people, self.weight.shape[1]))
        np.add.at(found, self.patient[1], self.weight)
        return found

    @property
    def scarce(self) -> np.ndarray:
        """The share of the population without overlap in each world, shape (K,)."""
        return 1 - self.overlap[0].mean(axis=0)

    @property
    def effective(self) -> np.ndarray:
        """The effective number of observed patients of each world, shape (K,)."""
        weight = self._by_patient
        return weight.sum(axis=0) ** 2 / np.maximum((weight**2).sum(axis=0), 1e-300)

    @property
    def g_formula(self) -> np.ndarray:
        """Means by the regression alone, shape (K, F)."""
        return self.mean(self.outcome)

    def mean(self, values: np.ndarray) -> np.ndarray:
        """The mean over those of the population who count, shape (K, F)."""
        return np.einsum("mk,mkf->kf", _shares(self.counts), values)

    @property
    def weighted(self) -> np.ndarray:
        """Means by the weights alone (IPW), shape (K, F); NaN where no row is near."""
        return _shares(self.weight).T @ self.values

    @property
    def estimate(self) -> np.ndarray:
        """Means by both (AIPW), shape (K, F); NaN where no row is near.

        Right if the regression is, or if the weights are and none was cut.
        """
        return self.g_formula + _shares(self.weight).T @ self.residual

    def influence(self, drawn: np.ndarray | None = None) -> np.ndarray:
        """What each patient moves the estimate by, shape (P, K, F); the mean over P is 0.

        Args:
            drawn: Counterfactual values of the population, shape (M, K, F); then it is what they
                move the estimate minus the mean of these by.
        """
        outcome = self.outcome if drawn is None else self.outcome - drawn
        here, there = _shares(self.counts), _shares(self.weight)
        far = self.residual[:, None] - there.T @ self.residual
        parts = here[:, :, None] * (outcome - self.mean(outcome)), there[:, :, None] * far
        moved = np.zeros((self.people, *self.outcome.shape[1:]))
        for part, who in zip(parts, self.patient, strict=True):
            np.add.at(moved, who, part)
        return moved

    def error(self, drawn: np.ndarray | None = None) -> np.ndarray:
        """Standard errors of :attr:`estimate`, or of its difference to ``drawn``, shape (K, F).

        The larger of two: by what each patient moves it, and by the variance that rows like those
        near the world have. If few rows are near and most scores are low, the rare high ones may
        all be missing by chance, and the first error is then far too small.
        """
        outcome = self.outcome if drawn is None else self.outcome - drawn
        far = (outcome - self.mean(outcome)) ** 2
        expected = np.einsum("mk,mkf->kf", _shares(self.counts) ** 2, far)
        expected += (_shares(self.weight) ** 2).T @ self.variance
        found = np.maximum((self.influence(drawn) ** 2).sum(axis=0), expected)
        return np.sqrt(np.maximum(found, 1e-18))  # of rounding, where nothing varies

    def by_label(
        self, population: Pool, observed: Pool
    ) -> "Iterator[tuple[float | None, np.ndarray, Standardised]]":
        """Each label, which rows of the population have it, and the same for these alone."""
        for label in np.unique(population.held["y"]) if "y" in population.held else [None]:
            here, there = (
                np.full(len(each), True) if label is None else each.held["y"] == label
                for each in (population, observed)
            )
            names = ("values", "residual", "variance", "weight")
            own = {name: getattr(self, name)[there] for name in names}
            own |= {name: getattr(self, name)[here] for name in ("outcome", "counts")}
            for name in ("overlap", "patient"):
                mine, theirs = getattr(self, name)
                own[name] = mine[here], theirs[there]
            yield label, here, replace(self, **own)

    def only(self, function: int) -> "Standardised":
        """One of the functions, which is then the only one."""
        one, names = slice(function, function + 1), ("values", "outcome", "residual", "variance")
        return replace(self, **{name: getattr(self, name)[..., one] for name in names})

    def trimmed(self) -> "Standardised":
        """The same means over those of the population who have overlap, world by world."""
        here, there = self.overlap
        return replace(self, counts=self.counts * here, weight=self.weight * there)


def _shares(weight: np.ndarray) -> np.ndarray:
    """The weights of each world as shares of one."""
    with np.errstate(invalid="ignore"):
        return weight / weight.sum(axis=0)


def on_one_core(function: _Function) -> _Function:
    """Many small regressions are faster in one thread, and give the same digits every time."""

    @wraps(function)
    def call(*given: object, **named: object) -> object:
        needs("sklearn")
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1):
            return function(*given, **named)

    return call


@on_one_core
def standardise(
    values: np.ndarray,
    pool: Pool,
    worlds: Arrays,
    *,
    target: Pool | None = None,
    width: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Standardised:
    r"""Means of functions of the score in each world, from observed patients.

    .. math:: \hat\psi_k = \frac{1}{M} \sum_j \hat m(a_k, c_j, y_j)
        + \sum_i w_{ik} \big( f_i - \hat m(a_i, c_i, y_i) \big) \Big/ \sum_i w_{ik}

    The regression :math:`\hat m` has splines of numbers, indicators of categories and all their
    products, under a ridge penalty. The weight of a row near the world, 0 for all others, is
    P(near :math:`a_k`) / P(near :math:`a_k` | c, y) by logistic regression, at most 10. With a
    ``target`` it is multiplied by how much more often the target holds what the row holds. Near
    is the same category and, of a number, closer than ``width``. Regressions are fitted to other
    patients than those they are used on.

    Args:
        values: Functions of the observed scores and labels, shape (N, F).
        pool: The observed rows.
        worlds: What each world sets, each of shape (K,).
        target: The population whose mean is wanted, if it is not the observed rows: theirs are
            then weighted to what it holds.
        width: How far a number may be from that of the world; by default half the distance of the
            two nearest worlds.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> ill = rng.integers(2, size=2000)
        >>> female = rng.random(2000) < np.where(ill, 0.8, 0.2)
        >>> pool = Pool({"sex": female * 1.0}, {"y": ill}, np.arange(2000))
        >>> score = 0.2 + 0.4 * ill + 0.1 * female
        >>> found = standardise(score[:, None], pool, {"sex": np.array([0.0, 1.0])})
        >>> [round(each, 3) for each in (found.estimate[:, 0] - 0.4 * ill.mean()).tolist()]
        [0.2, 0.3]
    """
    values = np.asarray(values, float)
    if values.ndim != 2 or len(values) != len(pool) or not np.isfinite(values).all():
        raise InputError(f"values must be finite numbers of shape ({len(pool)}, F)")
    inside, own = _near(pool, worlds, width or {}), target is None
    population = pool if own else target
    outcome = np.zeros((len(population), inside.shape[1], values.shape[1]))
    often, times = np.zeros((len(population), inside.shape[1])), np.zeros(len(population))
    residual, weight, overlap = np.zeros(values.shape), *np.zeros((2, *inside.shape))
    for learn, test in folds_of(pool.patient, seed=seed):
        expect, frequency = _outcome(pool, values, learn), _frequency(pool, inside, learn)
        residual[test] = values[test] - expect(pool.attributes, pool.held, test)
        rows = test if own else np.arange(len(population))
        for k in range(inside.shape[1]):
            here = {name: np.full(len(population), v[k]) for name, v in worlds.items()}
            outcome[rows, k] += expect(here, population.held, rows)
        often[rows] += frequency(population.held, rows)
        times[rows] += 1
        found = frequency(pool.held, test)
        overlap[test] = found >= _LEAST
        weight[test] = inside[test] / np.maximum(found, _LEAST)
        if not own:
            weight[test] *= _ratio(pool, population, learn, test)[:, None]
    both = often / times[:, None] >= _LEAST, overlap > 0
    outcome /= times[:, None, None]
    names, code = np.unique([*population.patient, *pool.patient], return_inverse=True)
    who = code[: len(population)], code[len(population) :]
    counts = np.ones(outcome.shape[:2])
    found = values, outcome, residual, _variance(pool, residual), weight
    return Standardised(*found, counts, both, who, len(names))


def _near(pool: Pool, worlds: Arrays, width: Mapping[str, float]) -> np.ndarray:
    """Whether each row is near each world, shape (N, K)."""
    for name, half in width.items():
        if name not in worlds or name not in pool.numbers or not half > 0:
            raise InputError(f"the width {half} is of no number that worlds set", column=name)
    inside = np.ones((len(pool), 1), bool)
    for name, values in worlds.items():
        own, known = pool.attributes[name][:, None], np.unique(values)
        if name not in pool.numbers:
            inside = inside & (own == values)
            continue
        if name not in width and len(known) < 2:
            raise InputError("all worlds set the same value: say the width", column=name)
        half = width.get(name) or np.diff(known).min() / 2
        inside = inside & (np.abs(own - values) <= half)
    return inside


def folds_of(
    patient: np.ndarray, folds: int = 5, seed: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows to learn from and rows to judge, which share no patient."""
    known, code = np.unique(patient, return_inverse=True)
    if folds > len(known):
        raise InputError(f"{len(known)} patients are too few for {folds} folds")
    part = np.random.default_rng(seed).permutation(len(known)) % folds
    for fold in range(folds):
        test = part[code] == fold
        yield np.flatnonzero(~test), np.flatnonzero(test)


class Features:
    """Columns as features of a regression: splines, indicators, and the products of pairs.

    All are centred and scaled as those that they are made from.
    """

    def __init__(self, columns: Arrays, numbers: Collection[str], *, pairs: bool = True) -> None:
        from sklearn.preprocessing import SplineTransformer

        self.pairs, self.splines, self.levels = pairs, {}, {}
        for name, values in columns.items():
            if name in numbers:
                spline = SplineTransformer(_KNOTS, knots="quantile", include_bias=False)
                spline.set_params(extrapolation="linear")
                self.splines[name] = spline.fit(values[:, None].astype(float))
            else:
                levels = np.unique(values)
                self.levels[name] = levels[1:] if len(levels) == 2 else levels
        raw = self._raw(columns, slice(None))
        self.mean, spread = raw.mean(axis=0), raw.std(axis=0)
        self.scale = np.where(spread > 1e-9, spread, 1.0)

    def _raw(self, columns: Arrays, rows: np.ndarray | slice) -> np.ndarray:
        parts = [
            spline.transform(columns[name][rows, None].astype(float))
            for name, spline in self.splines.items()
        ]
        parts += [columns[name][rows, None] == levels for name, levels in self.levels.items()]
        found = np.hstack(parts).astype(float)
        if not self.pairs:
            return found
        first, second = np.triu_indices(found.shape[1], 1)
        return np.hstack([found, found[:, first] * found[:, second]])

    def __call__(self, columns: Arrays, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        return (self._raw(columns, rows) - self.mean) / self.scale


def _outcome(pool: Pool, values: np.ndarray, learn: np.ndarray) -> Callable:
    from sklearn.linear_model import RidgeCV

    known = pool.take(learn).columns
    features = Features(known, pool.numbers)
    model = RidgeCV(PENALTIES, alpha_per_target=True).fit(features(known), values[learn])

    def expect(attributes: Arrays, held: Arrays, rows: np.ndarray) -> np.ndarray:
        found = model.predict(features({**attributes, **held}, rows))
        return found.reshape(len(rows), -1)

    return expect


def _variance(pool: Pool, residual: np.ndarray) -> np.ndarray:
    """Squares of residuals as rows like each have them, at least a quarter of what all have."""
    from sklearn.linear_model import RidgeCV

    known, square = pool.columns, residual**2
    features = Features(known, pool.numbers, pairs=False)(known)
    found = RidgeCV(PENALTIES, alpha_per_target=True).fit(features, square).predict(features)
    return np.maximum(found.reshape(square.shape), square.mean(axis=0) / 4)


def _frequency(pool: Pool, inside: np.ndarray, learn: np.ndarray) -> Callable:
    """How often rows are near each world given what they hold, over how often all are."""
    from sklearn.linear_model import LogisticRegression

    known = pool.take(learn).held
    features = Features(known, pool.numbers)
    given, models = features(known), []
    for near in inside[learn].T:
        model = LogisticRegression(solver="newton-cholesky")
        models.append((near.mean(), model.fit(given, near) if 0 < near.mean() < 1 else None))

    def frequency(held: Arrays, rows: np.ndarray) -> np.ndarray:
        x = features(held, rows)
        found = [m.predict_proba(x)[:, 1] / n if m else np.ones(len(x)) for n, m in models]
        return np.stack(found, axis=1)

    return frequency


def _ratio(pool: Pool, population: Pool, learn: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """How much more often a population holds what each of some observed rows holds."""
    from sklearn.linear_model import LogisticRegression

    both = {n: np.concatenate([pool.held[n][learn], population.held[n]]) for n in pool.held}
    features = Features(both, pool.numbers)
    theirs = np.arange(len(learn) + len(population)) >= len(learn)
    model = LogisticRegression(solver="newton-cholesky").fit(features(both), theirs)
    share = model.predict_proba(features(pool.held, rows))[:, 1]
    return share / (1 - share)
