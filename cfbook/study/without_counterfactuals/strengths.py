r"""Do you need a generator? Six estimators of one risk, as overlap vanishes and patients grow few.

**Design**, fixed before any result.

*Population.* Dropping diseased men and healthy women of the bank with probability ``strength``
(:func:`cfchest.cohorts.drop_sex`) makes the population of a test set: patient i belongs to it with
weight 1 - strength, or 1. N patients are drawn with these weights: of observed patients for what
needs no generator, none of them twice; of patients with worlds for what does, with replacement.

*Estimand.* :math:`R_\mathrm{IE}` with uniform q over the worlds of the paper's grid (``all`` ages),
and over those from 40 to 80 years, near which nine tenths of the patients are. Parents that are
held and labels are those of the population of the test set itself, since an average of
counterfactuals over the test set has no other target; weighting and standardisation are given the
same one. Its true value is the weighted mean of the oracle's losses over the patients with worlds.

*Estimators.* All see N patients and nothing else.

============= ==================================================================================
estimator     what it averages
============= ==================================================================================
observed      the losses of the observed images
IPW           the same, weighted to each world
AIPW          a regression on all parents and the label, corrected by the weights
transport     losses of scores moved by location and scale, without images; of sex .95 alone
oracle        losses of true counterfactuals, which nobody has
learned       losses of the counterfactuals of the committed generator
============= ==================================================================================

A world without any patient near it has no IPW and no AIPW: it is left out, and q made to sum to 1.

*Cells.* Strengths, sizes and predictors below; 12 test sets in each cell, by a seed for each, as
many as eight CPU-hours for the whole study leave; of the predictors as they were trained first it
was 20. 40 sets and more scores to move were planned, and given up for their cost before any cell
was seen.

A first run drew all patients with replacement, so that a patient could be in a test set several
times, which a regression took for agreement. It was discarded after its results had been seen, and
sets were drawn as above; cells, expectations and verdicts are the same.

*Verdicts.* In a cell, one estimator beats another if the 95 % interval of the ratio of their root
mean squared errors, by 1,000 bootstrap draws of the test sets, lies below 1. What was expected,
before any cell was computed, *holds* if the one beats the other in all cells named, *fails* if it
is beaten in any of them, and is *undecided* otherwise.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from cfbook.study.without_counterfactuals.bank import Bank
from cfbook.theory.simulation import break_even_size
from cfcore.standardise.estimate import Standardised, standardise
from cfcore.standardise.transport import transport

SHORTCUTS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0)
SIZES = (250, 500, 1_000, 2_000, 4_000, 8_000)
_REPLICATES = 12
_ESTIMATORS = ("observed", "IPW", "AIPW", "transport", "oracle", "learned")
AGES = {"all": (20, 90), "40 to 80": (40, 80)}
_JUDGED = ("basic 0 seed 0", "sex 0.8 seed 0", "sex 0.95 seed 0", "age 0.95 seed 0")
_MOVED, _DRAWN = "sex 0.95 seed 0", ("oracle", "learned")
_SEED = 1_800
_DRAWS = 1_000
_CELL = ["predictor", "ages", "strength", "N"]


class Expected(NamedTuple):
    """One estimator is expected to beat another in all cells of these."""

    winner: str
    loser: str
    predictors: tuple[str, ...]
    strengths: tuple[float, ...]
    sizes: tuple[int, ...]
    ages: str = "all"


_SEX = ("sex 0.8", "sex 0.95")
_EXPECTED = (
    Expected("IPW", "observed", _SEX, (0.8, 0.9), (4_000, 8_000)),
    Expected("AIPW", "observed", _SEX, (0.8, 0.9, 0.95), (1_000, 2_000, 4_000, 8_000)),
    Expected("AIPW", "IPW", _SEX, (0.9, 0.95, 0.99), SIZES[2:], "40 to 80"),
    Expected("learned", "observed", _SEX, SHORTCUTS[2:], SIZES),
    Expected("learned", "AIPW", _SEX, (0.95, 0.99, 1.0), SIZES[:3]),
    Expected("learned", "AIPW", ("basic 0", *_SEX), SHORTCUTS, SIZES[:2]),
    Expected("AIPW", "learned", ("age 0.95",), (0.0, 0.5), (8_000,), "40 to 80"),
    Expected("AIPW", "transport", ("sex 0.95",), (0.0, 0.5), (8_000,), "40 to 80"),
    Expected("learned", "transport", ("sex 0.95",), SHORTCUTS, (4_000, 8_000)),
)
"""What was expected, before any cell was computed."""


def membership(bank: Bank, strength: float) -> np.ndarray:
    """How likely each patient of the bank is to be drawn, shape (N,), summing to 1."""
    against = bank.table.sex.to_numpy() != bank.table.y.to_numpy()
    weight = 1 - strength * against
    return weight / weight.sum()


def estimates(
    bank: Bank, rows: np.ndarray, others: np.ndarray, judged: Sequence[str] = _JUDGED
) -> tuple[np.ndarray, np.ndarray]:
    """All estimates of the risk, shape (ages, estimators, predictors).

    From rows with worlds and from observed ones. And beside them the effective number of patients
    of the weights, shape (ages,).
    """
    at = [bank.predictors.index(name) for name in judged]
    observed = bank.losses(bank.observed[others][:, at].astype(float), others)
    known = standardise(observed, bank.pool(others), bank.worlds)
    moved = transport(bank.frame(others, _MOVED), bank.grid).logit_cf.double().numpy()
    drawn = {name: bank.logits(name, rows)[..., at].astype(float) for name in _DRAWN}
    means = {name: bank.losses(logits, rows).mean(axis=0) for name, logits in drawn.items()}
    means |= {"IPW": known.weighted, "AIPW": known.estimate}
    means["transport"] = np.full(known.weighted.shape, np.nan)
    means["transport"][:, list(judged).index(_MOVED)] = bank.losses(moved, others).mean(axis=0)
    means["observed"] = np.broadcast_to(observed.mean(axis=0), known.weighted.shape)
    found, effective = [], []
    for q in targets(bank):
        q = q * (known.near > 0)
        q /= q.sum()
        found.append([q @ np.where(q[:, None] > 0, means[name], 0) for name in _ESTIMATORS])
        effective.append(_effective(known, q))
    return np.array(found), np.array(effective)


def targets(bank: Bank) -> Iterator[np.ndarray]:
    """The probabilities of the worlds for each range of ages."""
    age = bank.worlds["age"]
    for low, high in AGES.values():
        inside = ((age >= low) & (age <= high)).astype(float)
        yield inside / inside.sum()


def _effective(known: Standardised, q: np.ndarray) -> float:
    """How many patients count in effect, by what each of them weighs in all worlds together."""
    share = known.weight / np.maximum(known.weight.sum(axis=0), 1e-300)
    weight = share @ q
    return float(weight.sum() ** 2 / (weight**2).sum())


def _true_risks(bank: Bank, strength: float, judged: Sequence[str] = _JUDGED) -> np.ndarray:
    """The true risk in the population of a strength, shape (ages, predictors)."""
    at = [bank.predictors.index(name) for name in judged]
    bank = bank.first(bank.count("oracle"))
    losses = bank.losses(bank.logits("oracle")[..., at].astype(float))
    means = np.tensordot(membership(bank, strength), losses, axes=1)
    return np.stack([q @ means for q in targets(bank)])


def _aims(bank: Bank, strength: float) -> np.ndarray:
    """What each estimator aims at, shape (ages, estimators, predictors).

    A generator's patients are fewer, and are themselves the population that they are drawn from.
    """
    whole, few = (_true_risks(each, strength) for each in (bank, _with_worlds(bank)))
    return np.stack([few if name in _DRAWN else whole for name in _ESTIMATORS], axis=1)


def _with_worlds(bank: Bank) -> Bank:
    return bank.first(min(map(bank.count, _DRAWN)))


def simulate_cell(
    bank: Bank, strength: float, size: int, *, replicates: int = _REPLICATES
) -> tuple[np.ndarray, np.ndarray]:
    """Estimates of all test sets of a cell, shape (replicates, ages, estimators, predictors)."""
    few, start, found = _with_worlds(bank), bank.count("oracle"), []
    chance, weight = membership(few, strength), membership(bank, strength)[start:]
    for replicate in range(replicates):
        rng = np.random.default_rng([_SEED, round(100 * strength), size, replicate])
        rows = rng.choice(len(few), size, p=chance)
        others = start + rng.choice(len(weight), size, replace=False, p=weight / weight.sum())
        found.append(estimates(bank, rows, others))
    every, effective = zip(*found, strict=True)
    return np.stack(every), np.stack(effective)


def cell_table(
    bank: Bank, strength: float, size: int, made: np.ndarray, effective: np.ndarray
) -> pd.DataFrame:
    """Bias, standard error and root mean squared error in one cell, for each estimator."""
    truth, rows = _aims(bank, strength), []
    for (a, ages), (p, name) in product(enumerate(AGES), enumerate(_JUDGED)):
        for e, estimator in enumerate(_ESTIMATORS):
            error = made[:, a, e, p] - truth[a, e, p]
            count = effective[:, a].mean() if estimator in ("IPW", "AIPW") else np.nan
            numbers = error.mean(), error.std(ddof=1), np.sqrt((error**2).mean()), count
            where = name.removesuffix(" seed 0"), ages, strength, size
            rows.append((*where, estimator, truth[a, e, p], *numbers))
    columns = [*_CELL, "estimator", "truth", "bias", "se", "rmse", "effective"]
    return pd.DataFrame(rows, columns=columns).dropna(subset="bias").round(5)


def ratio_table(bank: Bank, strength: float, size: int, made: np.ndarray) -> pd.DataFrame:
    """Ratios of root mean squared errors with intervals, of all pairs that are judged."""
    truth, rows = _aims(bank, strength), []
    draw = np.random.default_rng(_SEED).integers(len(made), size=(_DRAWS, len(made)))
    pairs = sorted({(one.winner, one.loser) for one in _EXPECTED})
    for (a, ages), (p, name) in product(enumerate(AGES), enumerate(_JUDGED)):
        square = (made[:, a, :, p] - truth[a, :, p]) ** 2
        for winner, loser in pairs:
            both = square[:, [_ESTIMATORS.index(winner), _ESTIMATORS.index(loser)]]
            ratio = np.sqrt(np.divide(*both.mean(axis=0)))
            drawn = np.sqrt(np.divide(*both[draw].mean(axis=1).T))
            where = name.removesuffix(" seed 0"), ages, strength, size
            rows.append((*where, winner, loser, ratio, *np.quantile(drawn, [0.025, 0.975])))
    columns = [*_CELL, "winner", "loser", "ratio", "low", "high"]
    return pd.DataFrame(rows, columns=columns).dropna(subset="ratio").round(4)


def judge(ratios: pd.DataFrame, expected: Sequence[Expected] = _EXPECTED) -> pd.DataFrame:
    """What became of each expectation: cells won, lost and open, and the verdict."""
    rows = []
    for one in expected:
        cells = ratios[(ratios.winner == one.winner) & (ratios.loser == one.loser)]
        cells = cells[cells.predictor.isin(one.predictors) & (cells.ages == one.ages)]
        cells = cells[cells.strength.isin(one.strengths) & cells.N.isin(one.sizes)]
        won, lost = int((cells.high < 1).sum()), int((cells.low > 1).sum())
        verdict = "fails" if lost else "holds" if won == len(cells) else "undecided"
        where = "; ".join(
            (", ".join(one.predictors), _span(one.strengths), f"N {_span(one.sizes)}", one.ages)
        )
        rows.append((one.winner, one.loser, where, len(cells), won, lost, verdict))
    return pd.DataFrame(
        rows, columns=["winner", "loser", "where", "cells", "won", "lost", "verdict"]
    )


def _span(values: Sequence[float]) -> str:
    """The ends of a range in print."""
    return " to ".join(f"{value:g}" for value in dict.fromkeys((values[0], values[-1])))


def break_even_table(bank: Bank, table: pd.DataFrame) -> pd.DataFrame:
    """The size from which a regression beats the learned generator, by theory and by simulation.

    Theory has the variance of a patient's mean loss, the learned generator's bias over the whole
    population, and the effective share of the patients at the largest size; simulation the smallest
    size of the cells from which the AIPW has the smaller root mean squared error.
    """
    rows, bank = [], _with_worlds(bank)
    cells = table[table.ages == "all"].set_index(["estimator", *_CELL[:1], "strength", "N"])
    for strength, name in product(SHORTCUTS, _JUDGED):
        at, short = bank.predictors.index(name), name.removesuffix(" seed 0")
        chance = membership(bank, strength)
        risks = {
            who: bank.losses(bank.logits(who)[..., at].astype(float)).mean(axis=1)
            for who in ("oracle", "learned")
        }
        mean = chance @ risks["oracle"]
        variance, bias = chance @ (risks["oracle"] - mean) ** 2, chance @ risks["learned"] - mean
        largest = cells.loc[("AIPW", short, strength)].effective
        share = largest.iloc[-1] / largest.index[-1]
        size = break_even_size(variance, share, bias).item()
        better = (
            cells.loc[("AIPW", short, strength)].rmse < cells.loc[("learned", short, strength)].rmse
        )
        wins = [n for n in better.index if better.loc[n:].all()]
        rows.append((short, strength, bias, share, size, min(wins, default=np.nan)))
    columns = ["predictor", "strength", "bias", "share", "theory", "simulated"]
    return pd.DataFrame(rows, columns=columns).round(4)
