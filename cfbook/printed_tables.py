r"""The published tables against what must hold between their cells.

Jensen's inequality, the shrinking tail and the geometry of ranks tie cells together. A cell with
:math:`d` decimals stands for :math:`v \pm h`, :math:`h = 10^{-d} / 2`; each tie is tested at the
most favourable point of these intervals, so that no finding is due to rounding. Averages over seeds
change nothing: a linear inequality that holds for each holds for the mean, and in
:math:`\mathrm{ECE}^2 \le \mathrm{Brier}` the square of a mean is at most the mean of the squares.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from cfbook.paths import data_file
from cfcore.checks import InputError

_RISKS = ("R_CM", "R_IE", "R_CVaR_0.50", "R_CVaR_0.25", "R_CVaR_0.10", "R_WC")
METRICS = {
    "risk": ["R_orig", *_RISKS],
    "calibration": ["Brier_marg", "ECE_marg", "MCE_marg", "Brier_orig", "ECE_orig", "MCE_orig"],
    "stability": ["S_var", "S_flip", "D_obs", "S_rank", "tau_b", "abs_rank_change"],
}
_KEY = ["where", "setting", "family", "strength"]
K = 16  # interventions: 2 sexes x 8 ages, uniform
TAIL = {"R_WC": 1 / K, "R_CVaR_0.10": 0.10, "R_CVaR_0.25": 0.25, "R_CVaR_0.50": 0.50, "R_IE": 1.0}
_BETA_GRID = (0.0, 0.5, 1.0, 2.0)
_NEGLIGIBLE = 1e-9  # float64 noise, far below any printed digit


@dataclass(frozen=True)
class _Identity:
    """A tie between cells, as an excess that is at most zero if the tie holds.

    The excess grows in the columns ``high`` and falls in the columns ``low``. There is one function
    of ``(*high, *low)`` for each reading of the definitions; the identity fails only if it fails
    under all. A failure is reported under ``metric``, in the words of ``statement``, where
    ``{0}, {1}, ...`` are the cells with their names, or, if it spans several rows and is about the
    logit row ``beta``, the cells alone.
    """

    name: str
    metric: str
    high: tuple[str, ...]
    low: tuple[str, ...]
    readings: tuple[Callable[..., pd.Series], ...]
    statement: str
    beta: float | None = None


@dataclass(frozen=True)
class Flaw:
    """Cells that cannot all be right, or that repeat or contradict other cells.

    ``excess`` is the failure that no rounding explains, in the units of the identity; for
    ``repeat`` the number of equal cells beyond two; for ``main-appendix`` the difference. It does
    not say which cell is wrong, nor why; and without any, a table may still be impossible.
    """

    setting: str
    family: str
    strength: float
    identity: str
    where: str
    metric: str
    values: dict[str, float]
    excess: float
    statement: str


def _at(point: tuple[str, float]) -> str:
    """The name of a metric at one logit offset."""
    return "{} at beta={:g}".format(*point)


def _linear(*weights: float) -> Callable[..., pd.Series]:
    """The weighted sum of its arguments, as a function."""
    return lambda *x: sum(w * v for w, v in zip(weights, x, strict=True))


def brier_constant() -> float:
    r"""The largest :math:`c` with :math:`-\log p \ge c (1 - p)^2` for all :math:`p`."""
    p = np.linspace(0.2, 0.4, 200_001)
    return float((-np.log(p) / (1 - p) ** 2).min())


def _risks() -> Iterator[_Identity]:
    r"""The ladder of risks, and the weight of their tails.

    Ladder: Jensen, then a shrinking tail. :math:`F(\alpha) = \alpha \mathrm{CVaR}_\alpha` adds up
    the losses from the largest on: it increases since losses are not negative, and is concave since
    they fall. Under a uniform q the worst of K = 16 interventions is the whole tail of mass 1/16,
    so R_WC is 16 F(1/16); R_IE is F(1). With the origin, concavity is the ladder again.

    At :math:`\alpha = 0.1` the tail holds 1.6 interventions. Read as a fraction its mass is 0.1; in
    whole interventions, rounded up, it is 2/16. The other levels are whole under both readings.
    """
    for a, b in pairwise(_RISKS):
        yield _Identity("ladder", b, (a,), (b,), (_linear(1, -1),), "{1} is below {0}")
    masses = (TAIL, {name: math.ceil(K * alpha) / K for name, alpha in TAIL.items()})
    for a, b in pairwise(TAIL):
        rises = tuple(_linear(m[a], -m[b]) for m in masses)
        yield _Identity("tail-increasing", a, (a,), (b,), rises, "{0} is more than {1} allows")
    names, text = list(TAIL), "{2} is less than {0} and {1} allow"
    for a, b, c in zip(names, names[1:], names[2:], strict=False):
        weights = [(m, (m[c] - m[b]) / (m[c] - m[a])) for m in masses]
        chords = tuple(_linear(w * m[a], (1 - w) * m[c], -m[b]) for m, w in weights)
        yield _Identity("tail-concave", b, (a, c), (b,), chords, text)


def _losses() -> Iterator[_Identity]:
    r"""Cross-entropy against squared error and variance, across the tables.

    :math:`-\log p` has a second derivative of at least one, so its Jensen gap is at least half the
    variance, here the population variance under q. It is at least :math:`c` times the squared error
    (:func:`brier_constant`), whose mean over the interventions is Brier_marg plus S_var.
    """
    c = brier_constant()
    text = f"{{1}} is below {c:.4f} times {{0}}"
    for r, b in (("R_orig", "Brier_orig"), ("R_CM", "Brier_marg")):
        yield _Identity("bce-brier", r, (b,), (r,), (_linear(c, -1),), text)
    r, text = "R_IE", f"{{2}} is below {c:.4f} times the sum of {{0}} and {{1}}"
    yield _Identity("bce-brier", r, ("Brier_marg", "S_var"), (r,), (_linear(c, c, -1),), text)
    text = "{2} exceeds {1} by less than half of {0}"
    yield _Identity("jensen-gap", r, ("S_var", "R_CM"), (r,), (_linear(0.5, 1, -1),), text)


def _calibration() -> Iterator[_Identity]:
    """A mean is at most the maximum, and its square at most the mean square of the residuals."""
    square = (lambda ece, brier: ece.clip(lower=0) ** 2 - brier,)
    for kind in ("orig", "marg"):
        ece, mce, brier = (f"{name}_{kind}" for name in ("ECE", "MCE", "Brier"))
        yield _Identity("ece-mce", ece, (ece,), (mce,), (_linear(1, -1),), "{0} is above {1}")
        yield _Identity("ece-brier", ece, (ece,), (brier,), square, "{0}, squared, is above {1}")


def _ranks() -> Iterator[_Identity]:
    r"""Three distances between two rankings of N patients, without ties.

    Daniels (1950): :math:`|3 N \tau - 2 (N+1) \rho| \le N - 2`, here divided by N (and often quoted
    with N + 2 for N, which equal rankings refute). Diaconis and Graham (1977): the footrule is one
    to two times the number of discordant pairs, :math:`(1 - \tau) N (N-1) / 4`.
    """
    t, r, d, n = "tau_b", "S_rank", "abs_rank_change", "n_test"
    above = (lambda t, r, n: 3 * t - (2 * (n + 1) * r + n - 2) / n,)
    below = (lambda r, t, n: (2 * (n + 1) * r - n + 2) / n - 3 * t,)
    yield _Identity("kendall-spearman", r, (t,), (r, n), above, "{1} is too low for {0}")
    yield _Identity("kendall-spearman", r, (r,), (t, n), below, "{0} is too high for {1}")
    above = (lambda d, t, n: d - (1 - t) * (n - 1) / 2,)
    below = (lambda d, t, n: (1 - t) * (n - 1) / 4 - d,)
    yield _Identity("footrule", d, (d, t), (n,), above, "{0} is too high for {1}")
    yield _Identity("footrule", d, (), (d, t, n), below, "{0} is too low for {1}")


def _offsets() -> Iterator[_Identity]:
    r"""Risks along the logit offsets :math:`\beta`, all triples from :math:`\beta = 0` on.

    The loss is convex in the logit and the logit is linear in :math:`\beta`, whether the offset
    reads the recorded or the intervened sex; means, tails and maxima keep convexity. R_CM, the loss
    of a mean, need not be convex. Assumed: the row at zero comes from the same networks.
    """
    for metric in ("R_orig", *_RISKS[1:]):
        for a, b, c in combinations(_BETA_GRID, 3):
            ends, w = (_at((metric, a)), _at((metric, c))), (c - b) / (c - a)
            text = f"{metric} {{0}} at offset {b:g} is above the chord from {{1}} at {a:g}"
            text, chord = f"{text} to {{2}} at {c:g}", (_linear(1, -w, w - 1),)
            yield _Identity("beta-convex", metric, (_at((metric, b)),), ends, chord, text, b)


IDENTITIES = (*_risks(), *_losses(), *_calibration(), *_ranks(), *_offsets())
NAMES = (*dict.fromkeys(identity.name for identity in IDENTITIES), "repeat", "main-appendix")


def read_tables(folder: Path | None = None) -> dict[str, pd.DataFrame]:
    """Read ``risk.csv``, ``calibration.csv`` and ``stability.csv``; by default the paper's own."""
    folder = Path(folder or data_file("paper"))
    return {name: _read_table(folder / f"{name}.csv", metrics) for name, metrics in METRICS.items()}


def _read_table(path: Path, metrics: list[str]) -> pd.DataFrame:
    """Read one table; check its columns, its numbers and that no row is there twice."""
    if not path.is_file():
        raise FileNotFoundError(f"the table {path} is missing")
    numbers = dict.fromkeys(["strength", "n_test", *metrics], float)
    try:
        table = pd.read_csv(path, dtype=numbers)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    if missing := [name for name in {**dict.fromkeys(_KEY), **numbers} if name not in table]:
        raise InputError(f"{path} has no column {', '.join(missing)}")
    if (twice := table.duplicated(_KEY)).any():
        raise InputError(f"{path} has two rows for {table.loc[twice, _KEY].iloc[0].to_dict()}")
    return table


def published(setting: str, name: str) -> pd.DataFrame:
    """One of the paper's tables in one setting, a row for each family and strength.

    A cell of the main text counts before its repetition in the appendix, which differs in a row.
    Correct transitions are the row ``ctc``, where there is one.

    Example:
        >>> published("C->M", "stability").loc[("basic", 0.0), ["S_var", "tau_b"]].tolist()
        [0.0198, 0.765]
    """
    frame = _read_table(data_file(f"paper/{name}.csv"), METRICS[name])
    frame = frame[frame["setting"] == setting].set_index(_KEY[2:])
    main, table = (frame.loc[frame["where"] == w, METRICS[name]] for w in ("main", "appendix"))
    return main.reindex(table.index).fillna(table)


def _half_unit(column: pd.Series) -> float:
    """Half the unit of the last digit, which is the last that any cell of the column needs.

    Example:
        >>> _half_unit(pd.Series([0.61, 1.991, 2.0])), _half_unit(pd.Series([2143.0, 2059.0]))
        (0.0005, 0.5)
    """
    exponents = (Decimal(repr(float(v))).normalize().as_tuple().exponent for v in column.dropna())
    return 0.5 * 10.0 ** min((int(e) for e in exponents if e < 0), default=0)


def _appendix(frame: pd.DataFrame) -> pd.DataFrame:
    """For each row, the appendix row of the same predictor."""
    appendix = frame[frame.index.get_level_values("where") == "appendix"].droplevel("where")
    return appendix.reindex(frame.index.droplevel("where")).set_axis(frame.index)


def _along_beta(frame: pd.DataFrame) -> pd.DataFrame:
    """Add to each row what its setting prints along the logit offsets."""
    rows = frame[frame.index.get_level_values("family").isin(["basic", "logit"])]
    points = pd.MultiIndex.from_product([METRICS["risk"], _BETA_GRID])
    path = rows[METRICS["risk"]].droplevel("family").unstack("strength").reindex(columns=points)
    return frame.join(path.set_axis(points.map(_at), axis=1), on=["where", "setting"])


def _failures(value: pd.DataFrame, half: pd.DataFrame, changed: pd.DataFrame) -> Iterator[Flaw]:
    """The identities that fail, among those of which a row prints all cells or changes one.

    A main-text row is completed by its appendix row where it is silent.
    """
    printed, changed = (_along_beta(f.astype(float)).eq(1) for f in (value.notna(), changed))
    value, half = (_along_beta(f.fillna(_appendix(f))) for f in (value, half))
    digits = np.log10(1 / (2 * half).where(half > 0, 1).clip(lower=1e-6))
    for tie in IDENTITIES:
        columns = [*tie.high, *tie.low]
        ends = [value[c] - half[c] for c in tie.high] + [value[c] + half[c] for c in tie.low]
        excess = pd.concat([reading(*ends) for reading in tie.readings], axis=1).min(axis=1)
        tested = printed[columns].all(axis=1) | changed[columns].any(axis=1)
        for row, amount in excess[tested & excess.gt(_NEGLIGIBLE)].items():
            if tie.beta is None or row[2:] == ("logit", tie.beta):
                cells = value.loc[row, columns].to_dict()
                name = {c: f"{c} " if tie.beta is None else "" for c in columns}
                text = [f"{name[c]}{v:.{digits.loc[row, c]:.0f}f}" for c, v in cells.items()]
                words = tie.statement.format(*text)
                yield Flaw(*row[1:], tie.name, row[0], tie.metric, cells, amount, words)


def _repeats(value: pd.DataFrame, changed: pd.DataFrame) -> Iterator[Flaw]:
    """Three or more equal cells in the same columns of two predictors; copies are left out."""
    for columns in METRICS.values():
        own = changed[columns].any(axis=1) | _appendix(value)[columns].isna().all(axis=1)
        rows = value.loc[own | (value.index.get_level_values("where") == "appendix"), columns]
        for (i, a), (j, b) in combinations(rows.iterrows(), 2):
            cells = b[a == b].to_dict()
            if len(cells) > 2 and i[1:] != j[1:]:
                names, excess = ", ".join(cells), len(cells) - 2.0
                words = f"{names} equal those of {i[1]} {i[2]} {i[3]:g} ({i[0]})"
                yield Flaw(*j[1:], "repeat", j[0], names, cells, excess, words)


def _disagreements(value: pd.DataFrame, changed: pd.DataFrame) -> Iterator[Flaw]:
    """Cells of the main text that differ from the appendix."""
    pair = {"main": value[changed].stack(), "appendix": _appendix(value)[changed].stack()}
    for (where, *row, name), (own, other) in pd.DataFrame(pair).dropna().iterrows():
        words = f"{name} is {own:g} in the main text and {other:g} in the appendix"
        values, excess = {"main": float(own), "appendix": float(other)}, float(abs(own - other))
        yield Flaw(*row, "main-appendix", where, name, values, excess, words)


def audit(tables: dict[str, pd.DataFrame]) -> list[Flaw]:
    """Every printed row but CTC against the identities, other rows, and the appendix."""
    frames = {name: t[t["family"] != "ctc"].set_index(_KEY) for name, t in tables.items()}
    value = pd.concat([frame[METRICS[name]] for name, frame in frames.items()], axis=1)
    value = value.sort_index(level="where", sort_remaining=False)
    half = value.groupby(level=_KEY[:2]).transform(_half_unit)
    half = half.where(value.notna()).assign(n_test=0.0)
    value["n_test"] = pd.concat([f["n_test"] for f in frames.values()]).groupby(level=_KEY).first()
    gap = (value - _appendix(value)).abs()
    changed = gap.gt(_NEGLIGIBLE) & gap.gt(half + _appendix(half) - _NEGLIGIBLE)
    worst: dict[tuple, Flaw] = {}
    for f in _failures(value, half, changed):
        key = (f.where, f.setting, f.family, f.strength, f.identity, f.metric)
        worst[key] = max(f, worst.get(key, f), key=lambda g: g.excess)
    return [*worst.values(), *_repeats(value, changed), *_disagreements(value, changed)]


def as_frame(findings: Iterable[Flaw]) -> pd.DataFrame:
    """The findings, one row each."""
    return pd.DataFrame([asdict(f) for f in findings], columns=[f.name for f in fields(Flaw)])


def summary(findings: Iterable[Flaw]) -> pd.DataFrame:
    """How often each identity fails in each setting."""
    frame = as_frame(findings)
    settings = [*dict.fromkeys(["C->C", "M->M", "C->M", *frame["setting"]])]
    counts = pd.crosstab(frame["identity"], frame["setting"])
    return counts.reindex(index=list(NAMES), columns=settings, fill_value=0)
