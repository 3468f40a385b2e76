r"""Do intervals and bounds hold what is true? And what does the width of a kernel cost?

**Design**, fixed before any result. 100 test sets of 1,000 patients are drawn with replacement from
those whose true worlds are known, by a seed for each. ``own`` has these patients alone; ``pool``
has 8,000 further observed patients, drawn likewise from those of whom only the image is known, and
the test set says which population is meant. True values are the oracle's over all patients with
worlds.

*Intervals* of the level 95 %: the estimate (AIPW) plus and minus 1.96 standard errors, of the mean
score in each of the sixteen worlds and of :math:`R_\mathrm{IE}` over the ages of
``strengths.AGES``. Worlds with too few patients near them to be checked have none. *Bounds*
on what joins worlds: whether the true value is between the limits, which should hold it in at least
95 % of the sets; they cost more, and the first 40 sets have them. A share of 100 sets is known to
within 4 %: what is below 91 % is called too low.

*Width*: the mean score of worlds from 8,000 patients of the pool as their own population, 10 sets,
at four widths in years; the bias is the mean difference from the oracle, by age.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from cfbook.study.without_counterfactuals.bank import Bank
from cfbook.study.without_counterfactuals.strengths import AGES, targets
from cfcore.standardise.estimate import standardise
from cfcore.standardise.laws import LEAST, metric_bounds

TRIED = ("basic 0 seed 0", "sex 0.95 seed 0", "age 0.95 seed 0")
_BOUNDED = ("S_var", "S_flip", "R_CVaR_0.10", "R_WC")
_ENDS = ("low", "high", "low_limit", "high_limit")
_WIDTHS = (2.5, 5.0, 7.5, 10.0)
_SEED = 1_801


def _draw_set(
    bank: Bank, number: int, *, test: int = 1_000, pool: int = 8_000, seed: int = _SEED
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a test set, and those of a pool of further patients."""
    rng, known = np.random.default_rng([seed, number]), bank.count("oracle")
    return rng.integers(known, size=test), rng.integers(known, len(bank), size=pool)


def interval_rows(bank: Bank, number: int, **sizes: int) -> Iterator[dict[str, object]]:
    """Whether the intervals of one test set hold the truth."""
    test, pool = _draw_set(bank, number, **sizes)
    truth = _true_means(bank)
    for name, (rows, target) in {"own": (test, None), "pool": (pool, bank.pool(test))}.items():
        known = standardise(_functions(bank, rows), bank.pool(rows), bank.worlds, target=target)
        moved = known.influence()
        enough = (known.near >= LEAST) & (known.effective >= LEAST)
        for column, (kind, predictor) in enumerate(_names()):
            found = known.estimate[:, column], moved[..., column], truth[:, column]
            yield from (
                {"rows": name, "predictor": predictor} | one
                for one in _covered(bank, kind, enough, *found)
            )


def _names() -> list[tuple[str, str]]:
    return [(kind, name) for kind in ("score", "loss") for name in TRIED]


def _functions(bank: Bank, rows: np.ndarray) -> np.ndarray:
    """Scores and losses of the observed images of some rows, shape (N, F)."""
    logits = bank.observed[rows][:, [bank.predictors.index(name) for name in TRIED]].astype(float)
    return np.hstack([1 / (1 + np.exp(-logits)), bank.losses(logits, rows)])


def _true_means(bank: Bank) -> np.ndarray:
    """The same in each world, by the oracle, over all patients, shape (K, F)."""
    rows = np.arange(bank.count("oracle"))
    logits = bank.logits("oracle", rows)[..., [bank.predictors.index(name) for name in TRIED]]
    both = [1 / (1 + np.exp(-logits.astype(float))), bank.losses(logits.astype(float), rows)]
    return np.concatenate([each.mean(axis=0) for each in both], axis=1)


def _covered(
    bank: Bank,
    kind: str,
    enough: np.ndarray,
    estimate: np.ndarray,
    moved: np.ndarray,
    truth: np.ndarray,
) -> Iterator[dict[str, object]]:
    """Intervals of one function: of the mean score in each world, or of the risk over worlds."""
    if kind == "score":
        weights = dict(zip(_world_names(bank), np.eye(len(truth)), strict=True))
    else:
        weights = {f"R_IE, ages {ages}": q for ages, q in zip(AGES, targets(bank), strict=True)}
    for name, q in weights.items():
        if enough[q > 0].all():
            error, value = np.sqrt(((np.nan_to_num(moved) @ q) ** 2).sum()), truth @ q
            off = np.where(q > 0, estimate, 0) @ q - value
            found = {"statistic": name, "truth": value, "off": off, "error": error}
            yield found | {"covered": abs(off) <= 1.96 * error}


def _world_names(bank: Bank) -> list[str]:
    sex, age = bank.worlds["sex"], bank.worlds["age"]
    return [f"score, {'woman' if s else 'man'} of {a:g}" for s, a in zip(sex, age, strict=True)]


def bound_rows(
    bank: Bank, number: int, predictor: str, **sizes: int
) -> Iterator[dict[str, object]]:
    """Whether the bounds of one test set and one predictor hold the truth."""
    test, pool = _draw_set(bank, number, **sizes)
    truth, q = _true_metrics(bank, predictor), bank.grid.q.double().numpy()
    own, more = bank.frame(test, predictor).logit.to_numpy(), bank.frame(pool, predictor)
    target = {"target": bank.pool(test), "target_logit": own}
    given = {"own": (own, bank.pool(test), {})}
    given["pool"] = more.logit.to_numpy(), bank.pool(pool), target
    for name, (logit, rows, how) in given.items():
        found = metric_bounds(logit, rows, bank.worlds, q, seed=number, **how)
        for one in found[found.metric.isin(_BOUNDED)].itertuples():
            value = truth[one.metric]
            about = {"rows": name, "predictor": predictor, "statistic": one.metric, "truth": value}
            ends = {each: getattr(one, each) for each in _ENDS}
            yield about | ends | {"covered": one.low_limit <= value <= one.high_limit}


def _true_metrics(bank: Bank, predictor: str) -> Mapping[str, float]:
    """Every metric of a predictor by the oracle, over all patients."""
    rows = np.arange(bank.count("oracle"))
    return bank.predictions("oracle", rows, predictor).evaluate()


def covered_shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Shares of the sets whose intervals hold the truth, with the mean of whatever was found."""
    by = rows.groupby(["rows", "predictor", "statistic"], sort=False)
    means = by.mean(numeric_only=True).drop(columns="covered", errors="ignore")
    found = means.assign(sets=by.size(), covered=by["covered"].mean()).reset_index()
    return found.assign(predictor=found.predictor.str.removesuffix(" seed 0")).round(4)


def width_table(bank: Bank, *, sets: int = 10, pool: int = 8_000) -> pd.DataFrame:
    """The bias of the mean score by age, at each width of the kernel, and how much it varies."""
    count, frames = len(TRIED), []
    truth = _true_means(bank)[:, :count]
    for number in range(sets):
        _, chosen = _draw_set(bank, number, pool=pool)
        values = _functions(bank, chosen)[:, :count]
        for width in _WIDTHS:
            known = standardise(values, bank.pool(chosen), bank.worlds, width={"age": width})
            off = pd.DataFrame(known.estimate - truth, columns=list(TRIED))
            off = off.assign(width=width, age=bank.worlds["age"], set=number)
            frames.append(off.melt(["width", "age", "set"], var_name="predictor", value_name="off"))
    by = pd.concat(frames).groupby(["predictor", "age", "width"], sort=False)
    found = by["off"].agg(bias="mean", spread="std").reset_index()
    return found.assign(predictor=found.predictor.str.removesuffix(" seed 0")).round(4)
