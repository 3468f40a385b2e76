"""How often 95 % intervals hold the truth: percentile, pivotal, and what the rule chooses.

Writes the table from which `cfcore.intervals` and `cfbook.study.rules` take their choices. The
population is known: patients of the committed predictions of C->C, drawn again and again, whose
logits get normal noise, the same for all predictors and worlds of a patient, so that no two are
tied. The truth is the statistic on very many of them. Two parts:

- *metrics*: every statistic of one predictor, and of the difference of two, at two sizes;
- *trainings*: means over 3 and 5 simulated trainings, whose logits differ as those of real ones do.

    python benchmarks/coverage.py [--samples 500] [--out data/results/coverage.csv] [PART ...]

It takes about a quarter of an hour on one core, and is not part of the tests.
"""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from cfbook.study import presets, runs
from cfbook.study.learned import write_table
from cfbook.study.rules import rule, training_reach
from cfbook.study.runs import PredictorId
from cfbook.study.statistics import (
    Study,
    areas,
    padded,
    paper_metrics,
    responses,
    study_predictions,
)
from cfcore.intervals import LARGE, SMALL, Rule, interval
from cfcore.predictions import Predictions
from cfcore.resampling import check_resampling

OUT = Path(__file__).parent.parent / "data/results/coverage.csv"
POPULATION = 200_000
SMOOTH = 0.3  # of logits, whose standard deviation is 3
SHIFT, SCALE, RESPONSE, OWN = 0.5, 0.08, 0.35, 0.6  # how the logits of real trainings differ
RANKS = ("S_rank", "tau_b", "abs_rank_change")
KEYS = ["part", "statistic", "of", "N"]

Given = Mapping[PredictorId, Predictions]


def committed() -> dict[PredictorId, Predictions]:
    """What the predictors of C say of its balanced test set."""
    return runs.predictions(runs.Run(presets.preset("book"), "C->C", "balanced"))


def draw(given: Given, size: int, rng: np.random.Generator) -> dict[PredictorId, Predictions]:
    """So many patients of the population, as all predictors see them."""
    first = next(iter(given.values()))
    rows = torch.from_numpy(rng.integers(len(first), size=size))
    noise = torch.from_numpy(rng.normal(scale=SMOOTH, size=size))
    parents = {name: values[rows] for name, values in first.parents.items()}
    return {
        member: replace(
            p,
            logit_obs=p.logit_obs[rows].double() + noise,
            logit_null=p.logit_null[rows].double() + noise,
            logit_cf=p.logit_cf[rows].double() + noise[:, None],
            y=p.y[rows],
            parents=parents,
            patient=None,
        )
        for member, p in given.items()
    }


def trained(p: Predictions, rng: np.random.Generator) -> Predictions:
    """The same predictor, had its training gone otherwise."""
    shift, scale = SHIFT * rng.normal(), np.exp(SCALE * rng.normal())
    own = shift + OWN * torch.from_numpy(rng.normal(size=len(p)))
    response = RESPONSE * rng.normal()
    seen, set_to = (response * (sex.double() - 0.5) for sex in (p.parents["sex"], p.grid["sex"]))
    return replace(
        p,
        logit_obs=scale * p.logit_obs + own + seen,
        logit_null=scale * p.logit_null + own + seen,
        logit_cf=scale * p.logit_cf + own[:, None] + set_to,
    )


def hits(values: np.ndarray, truth: float, kind: Rule, left_out: Iterable[float] = ()) -> list:
    """Whether the percentile and the pivotal interval hold the truth."""
    reach = training_reach(list(left_out))
    both = [
        interval(values, rule=replace(kind, pivotal=pivotal), reach=reach)
        for pivotal in (False, True)
    ]
    return [low <= truth <= high for low, high in both]


def three(given: Given) -> dict[str, Predictions]:
    """A predictor that is nearly calibrated, one that is biased, and one that hardly responds."""
    basic = given[PredictorId("basic", 0.0, 0)]
    observed = basic.logit_obs[:, None]
    still = replace(basic, logit_cf=observed + 0.1 * (basic.logit_cf - observed))
    return {"basic": basic, "sex 0.95": given[PredictorId("sex", 0.95, 0)], "steady": still}


def metrics_part(samples: int) -> pd.DataFrame:
    """One training: every statistic of three predictors, and a difference, at both sizes."""
    given = {PredictorId(name, 0.0, 0): p for name, p in three(committed()).items()}
    everyone = draw(given, POPULATION, np.random.default_rng(0))
    truth = study_predictions(everyone, replicates=2, rank_replicates=1).values
    rows = []
    for size, sample in product((SMALL, LARGE), range(samples)):
        rng = np.random.default_rng([size, sample])
        sampled = draw(given, size, rng)
        found = study_predictions(sampled, replicates=400, rank_replicates=200, seed=sample)
        for name, values in found.values.items():
            true = truth[name][:, 0] * (size / POPULATION if name == "abs_rank_change" else 1)
            with np.errstate(invalid="ignore"):  # of ratios, some of which are infinite
                both = {"difference": (values[1] - values[0], true[1] - true[0])}
            each = {m.family: pair for m, *pair in zip(given, values, true, strict=True)}
            for of, (drawn, right) in (each | both).items():
                kind = rule(name).difference() if of == "difference" else rule(name)
                rows.append(("metrics", name, of, size, right, *hits(drawn, right, kind)))
    return counted(rows)


def statistics(given: Given, *, replicates: int = 300, few: int = 200, seed: int = 0) -> Study:
    """A study without ranks, which cost most."""
    first = next(iter(given.values()))
    sampling = check_resampling(len(first), None, replicates, 0, 0.95, seed=seed)
    weight = torch.cat(list(sampling.counts())).double()
    weight = torch.cat((torch.ones_like(weight[:1]), weight))
    every = [
        paper_metrics(p, sampling)
        | areas(p.logit_obs, p.y, p.parents, weight[: 1 + few])
        | responses(p, weight)
        for p in given.values()
    ]
    names = [name for name in every[0] if name not in RANKS]
    found = {name: np.stack([padded(v[name], replicates) for v in every]) for name in names}
    return Study(tuple(given), found)


def trainings_part(samples: int) -> pd.DataFrame:
    """Several trainings: the mean of a statistic over them, by the whole rule; no ranks."""
    member, size = PredictorId("sex", 0.8, 0), 1000
    given = {member: committed()[member]}
    rng = np.random.default_rng(1)
    every = {}
    for i in range(200):
        p = draw(given, POPULATION // 10, rng)[member]
        every[PredictorId("sex", 0.8, i)] = trained(p, rng)
    said = [statistics({m: p}, replicates=2, few=1).values for m, p in every.items()]
    truth = {name: np.mean([values[name][0, 0] for values in said]) for name in said[0]}
    rows = []
    for sample in range(samples):
        rng = np.random.default_rng([2, sample])
        p = draw(given, size, rng)[member]
        made = {PredictorId("sex", 0.8, i): trained(p, rng) for i in range(5)}
        found = statistics(made, seed=sample)
        for count in (3, 5):
            for name, values in found.values.items():
                own = values[:count]
                left = [np.delete(own[:, 0], i).mean() for i in range(count)]
                held = hits(own.mean(axis=0), truth[name], rule(name), left)
                rows.append(("trainings", name, f"{count} trainings", size, truth[name], *held))
    return counted(rows)


def counted(rows: list[tuple]) -> pd.DataFrame:
    """How often each interval held the truth, and what the rule chooses."""
    frame = pd.DataFrame(rows, columns=[*KEYS, "truth", "percentile", "pivotal"])
    table = frame.groupby(KEYS, sort=False).agg(
        truth=("truth", "first"),
        percentile=("percentile", "mean"),
        pivotal=("pivotal", "mean"),
        samples=("pivotal", "size"),
    )
    return table.reset_index()


PARTS = {"metrics": metrics_part, "trainings": trainings_part}


def main() -> None:
    """Compute the parts that were asked for, and keep the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    asked = arguments.parts or list(PARTS)
    kept = pd.read_csv(arguments.out) if arguments.out.exists() else pd.DataFrame(columns=KEYS)
    made = [kept[~kept.part.isin(asked)], *(PARTS[name](arguments.samples) for name in asked)]
    write_table(pd.concat(made), arguments.out)


if __name__ == "__main__":
    main()
