r"""Each claim of the paper, tested as ``data/claims.yml`` says, with an interval and a verdict.

The design was written down before the results were looked at. A test is a function of a claim and
of the studies that returns statistics of the trainings at hand. :func:`judge` calls it on all
trainings, and without each of them, for an interval (:mod:`cfcore.intervals`); what it is compared
with, and what that says, is settled by :mod:`cfbook.study.design` alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from cfbook.paths import data_file
from cfbook.study.design import DESIGN, RISES, Claim, criterion, read_design, reported
from cfbook.study.runs import BETAS, SETTINGS, STRENGTHS
from cfbook.study.statistics import Study
from cfcore.checks import InputError
from cfcore.generator import Effect
from cfcore.intervals import Rule, interval, rule

PAPER = data_file("paper")

FALLING = ("S_rank", "tau_b")
STEPS = {"logit": BETAS, "sex": STRENGTHS, "age": STRENGTHS}
BIASED = [(family, strength) for family in ("sex", "age") for strength in STRENGTHS]
TRAINED = [("basic", 0.0), *BIASED]
EVERYONE = [*TRAINED, *(("logit", beta) for beta in BETAS)]

Studies = Mapping[tuple[str, str, Effect], Study]
"""Studies by setting, test set and effect."""


COUNT, CORRELATION = Rule(0, 9), Rule(-1, 1)


@dataclass(frozen=True)
class Outcome:
    """What one test found.

    Attributes:
        setting: The setting it was made in.
        item: What it is about, where a claim has several parts.
        values: The statistic, shape (1 + B,): the estimate, then its replicates.
        rule: How its interval is made.
        by_seed: The statistic for each training by itself, where that is possible.
        paper: What the paper prints, if it does.
        attainable: The largest value that it could have had, where that is less than its range.
    """

    setting: str
    item: str
    values: np.ndarray
    rule: Rule
    by_seed: Sequence[float] = ()
    paper: float = np.nan
    attainable: float = np.nan


def chain(study: Study, statistic: str, family: str) -> np.ndarray:
    """A statistic along a chain from ``basic`` to the strongest bias, (seeds, steps + 1, 1 + B)."""
    start = study.column(statistic, "basic")
    steps = [study.column(statistic, family, strength) for strength in STEPS[family]]
    return np.stack([start, *steps], axis=1)


def transitions(study: Study, statistic: str, families: Sequence[str]) -> np.ndarray:
    """Correct transitions of each training, shape (seeds, 1 + B); NaN where undefined."""
    sign = -1 if statistic in FALLING else 1
    values = np.concatenate(
        [sign * np.diff(chain(study, statistic, f), axis=1) for f in families], 1
    )
    return np.where(np.isnan(values).any(axis=1), np.nan, (values > 0).sum(axis=1))


def counts(claim: Claim, studies: Studies, setting: str, statistic: str) -> np.ndarray:
    """Correct transitions out of nine, on the test set of a setting or on those it shares."""
    if claim.get("testset") != "shares":
        main = studies[setting, SETTINGS[setting].testset, "direct"]
        return transitions(main, statistic, tuple(STEPS))
    sex, age = (studies[setting, f"shares-{family}", "direct"] for family in ("sex", "age"))
    return transitions(sex, statistic, ("logit", "sex")) + transitions(age, statistic, ("age",))


def averaged(values: np.ndarray) -> dict[str, object]:
    """The mean over trainings, (seeds, 1 + B) to (1 + B,), and each by itself."""
    return {"values": values.mean(axis=0), "by_seed": values[:, 0].tolist()}


def main_study(studies: Studies, setting: str, effect: Effect = "direct") -> Study:
    """The study of the test set of a setting."""
    return studies[setting, SETTINGS[setting].testset, effect]


def printed_count(setting: str, statistic: str, paper: Path = PAPER) -> float:
    """Correct transitions in the paper: as printed, or counted in the printed means.

    A table of the main text counts before its repetition in the appendix, which differs in a row.
    """
    for table, where in product(("risk", "calibration", "stability"), ("main", "appendix")):
        frame = pd.read_csv(paper / f"{table}.csv")
        rows = frame[(frame.setting == setting) & (frame["where"] == where)]
        if statistic not in rows or rows[statistic].isna().all():
            continue
        counted = rows[rows.family == "ctc"]
        if len(counted):
            return float(counted[statistic].item())
        means = rows.astype({"strength": float}).set_index(["family", "strength"])[statistic]
        sign = -1 if statistic in FALLING else 1
        steps = [
            np.diff([means["basic", 0.0], *(means[family, s] for s in STEPS[family])])
            for family in STEPS
        ]
        return float((sign * np.concatenate(steps) > 0).sum())
    return np.nan


def ctc(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """Correct transition counts against a threshold."""
    for setting in claim["settings"]:
        for name in claim["metrics"]:
            found = averaged(counts(claim, studies, setting, name))
            yield Outcome(setting, name, **found, rule=COUNT, paper=printed_count(setting, name))


def ctc_difference(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """Correct transitions of one metric beyond those of another, and how many there could be."""
    other = claim["against"]
    for setting in claim["settings"]:
        reference = counts(claim, studies, setting, other)
        room = COUNT.most - reference[:, 0].mean()
        for name in claim["metrics"]:
            found = averaged(counts(claim, studies, setting, name) - reference)
            paper = printed_count(setting, name) - printed_count(setting, other)
            paper = np.nan if claim.get("testset") else paper
            item, kind = f"{name} - {other}", COUNT.difference()
            yield Outcome(setting, item, **found, rule=kind, paper=paper, attainable=room)


def columns(study: Study, statistic: str, kinds: Sequence[tuple[str, float]]) -> np.ndarray:
    """A statistic of several predictors and all trainings, shape (kinds x seeds, 1 + B)."""
    return np.concatenate([study.column(statistic, *kind) for kind in kinds])


def pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson correlation along the first axis, in each replicate."""
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    return (x * y).sum(axis=0) / np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0))


def partial(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Correlation of x and y given z, along the first axis, in each replicate."""
    xy, xz, yz = pearson(x, y), pearson(x, z), pearson(y, z)
    return (xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2))


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman correlation along the first axis, in each replicate."""
    return pearson(stats.rankdata(x, axis=0), stats.rankdata(y, axis=0))


def gap_correlation(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """Stability against the worst gap of the AUC, over trained predictors and trainings."""
    for setting in claim["settings"]:
        study = main_study(studies, setting)
        area = columns(study, "AUC", TRAINED)
        for attribute in claim["attributes"]:
            gap = columns(study, f"gap_{attribute}", TRAINED)
            for name in claim["metrics"]:
                metric = columns(study, name, TRAINED)
                r = partial(metric, gap, area) if "given" in claim else pearson(metric, gap)
                yield Outcome(setting, f"{name}, {attribute}", r, CORRELATION)


def score_gap_correlation(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """Stability of an attribute against the gap of mean scores within a label."""
    for setting in claim["settings"]:
        study = main_study(studies, setting)
        for attribute in claim["attributes"]:
            spread = np.sqrt(columns(study, f"S_var_{attribute}", TRAINED))
            r = pearson(spread, columns(study, f"score_{attribute}", TRAINED))
            yield Outcome(setting, attribute, r, CORRELATION)


def calibration_truth(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """Which calibration error follows that of the target population more closely?"""
    for setting in claim["settings"]:
        study = main_study(studies, setting)
        truth = columns(study, "ECE_q", EVERYONE)
        ours, theirs = (
            spearman(columns(study, f"ECE_{kind}", EVERYONE), truth) for kind in ("marg", "orig")
        )
        kind = CORRELATION.difference()
        yield Outcome(setting, "ECE_marg - ECE_orig", ours - theirs, kind)


def worse_pairs(study: Study, statistic: str) -> np.ndarray:
    """The share of biased predictors that score worse than their control, (seeds, 1 + B).

    ``{}`` in the name of the statistic stands for the attribute of the bias.
    """
    pairs = []
    for family, strength in BIASED:
        name = statistic.format(family)
        biased, control = (study.column(name, f, strength) for f in (family, f"control {family}"))
        pairs.append(np.where(np.isnan(biased - control), np.nan, biased > control))
    return np.mean(pairs, axis=0)


def exposure_difference(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """How much more often S_var of the attribute tells a biased predictor from its control."""
    names = {"R_orig": "R_orig", "AUC gap": "gap_{}"}
    for setting in claim["settings"]:
        study = main_study(studies, setting)
        for other in claim["against"]:
            ours, theirs = (worse_pairs(study, one) for one in ("S_var_{}", names[other]))
            item, room = f"S_var - {other}", 1 - theirs[:, 0].mean()
            kind = Rule(0, 1).difference()
            yield Outcome(setting, item, **averaged(ours - theirs), rule=kind, attainable=room)


def blind_spot(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """The strongest bias against its control where the test set shares the shortcut."""
    for setting in claim["settings"]:
        for family in claim["families"]:
            study = studies[setting, f"shares-{family}", "direct"]
            for name in claim["metrics"]:
                gain = study.column(name, family, max(STRENGTHS)) - study.column(
                    name, f"control {family}", max(STRENGTHS)
                )
                kind = rule(name).difference()
                yield Outcome(setting, f"{name}, {family}", **averaged(gain), rule=kind)


def offset_areas(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """What offsets of the logit do to the AUC within a sex, and to S_var."""
    for setting in claim["settings"]:
        study = main_study(studies, setting)
        areas = np.stack([chain(study, name, "logit") for name in ("AUC_men", "AUC_women")])
        change = np.abs(areas - areas[:, :, :1]).max(axis=(0, 2))
        yield Outcome(setting, "AUC within a sex", **averaged(change), rule=rule("AUC"))
        rises = transitions(study, "S_var", ("logit",))
        yield Outcome(setting, RISES, **averaged(rises), rule=Rule(0, len(BETAS)))


def variance_ratio(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """Counterfactual over observed variance of subgroup means, at worst."""
    for setting in claim["settings"]:
        study = main_study(studies, setting, "total")
        found = averaged(study.column("variance_ratio", "basic"))
        yield Outcome(setting, "largest ratio", **found, rule=rule("variance_ratio"))


def null_floor(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """What the null intervention does to the score, against what interventions do."""
    for setting in claim["settings"]:
        study = main_study(studies, setting)
        ratio = study.column("null_abs", "basic") / study.column("D_abs", "basic")
        yield Outcome(setting, "null / D_abs", **averaged(ratio), rule=Rule(0))


TESTS: Mapping[str, Callable[[Claim, Studies], Iterator[Outcome]]] = {
    test.__name__: test
    for test in (
        ctc,
        ctc_difference,
        gap_correlation,
        score_gap_correlation,
        calibration_truth,
        exposure_difference,
        blind_spot,
        offset_areas,
        variance_ratio,
        null_floor,
    )
}


def judge(
    studies: Studies, *, design: Path = DESIGN, only: str | None = None, level: float = 0.95
) -> pd.DataFrame:
    """Test every claim of the design.

    Args:
        studies: The studies by setting, test set and effect.
        design: The file of the design.
        only: One claim by its name; by default all.
        level: The coverage aimed at by the intervals.

    Returns:
        A row for each part of each claim: ``claim, setting, item, paper, estimate, low, high,
        attainable, by_seed, threshold, direction, verdict``.
    """
    rows = []
    for claim in read_design(design)["claims"]:
        if only not in (None, claim["id"]):
            continue
        if claim["test"] not in TESTS:
            raise InputError(f"{design}: claim {claim['id']!r} has no test {claim['test']!r}")
        for outcome, left_out in outcomes(claim, studies):
            low, high = interval(outcome.values, left_out, rule=outcome.rule, level=level)
            threshold, above = criterion(claim, outcome.item)
            rows.append(
                {
                    "claim": claim["id"],
                    "setting": outcome.setting,
                    "item": outcome.item,
                    "paper": outcome.paper,
                    "estimate": float(outcome.values[0]),
                    "low": low,
                    "high": high,
                    "attainable": outcome.attainable,
                    "by_seed": tuple(outcome.by_seed),
                    "threshold": threshold,
                    "direction": "above" if above else "below",
                    "verdict": reported(claim, outcome.item, low, high, tied=tied(outcome)),
                }
            )
    return pd.DataFrame(rows)


def tied(outcome: Outcome) -> bool:
    """Whether two metrics were compared that both did as well as can be, in every training."""
    return outcome.attainable == 0 and outcome.values[0] == 0


def outcomes(claim: Claim, studies: Studies) -> list[tuple[Outcome, list[float]]]:
    """What a test found, and the estimates that it finds without each training in turn."""
    test = TESTS[claim["test"]]
    seeds = sorted({seed for study in studies.values() for seed in study.seeds})
    fewer = [{key: s.without(seed) for key, s in studies.items()} for seed in seeds]
    others = [list(test(claim, some)) for some in fewer] if len(seeds) > 1 else []
    return [
        (outcome, [float(found[i].values[0]) for found in others])
        for i, outcome in enumerate(test(claim, studies))
    ]
