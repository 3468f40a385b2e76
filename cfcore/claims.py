r"""Each claim of the paper, tested as ``data/claims.yml`` says, with an interval and a verdict.

The design was written down before the results were looked at. A test is a function of a claim and
of the studies that returns rows; what a row says is settled by :func:`verdict` alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from cfcore.checks import InputError
from cfcore.files import DATA, data_file
from cfcore.generator import Effect
from cfcore.settings import BETAS, SETTINGS, STRENGTHS
from cfcore.study import Study, interval

DESIGN = DATA / "claims.yml"
PAPER = data_file("paper")

FALLING = ("S_rank", "tau_b")
STEPS = {"logit": BETAS, "sex": STRENGTHS, "age": STRENGTHS}
BIASED = [(family, strength) for family in ("sex", "age") for strength in STRENGTHS]
TRAINED = [("basic", 0.0), *BIASED]
EVERYONE = [*TRAINED, *(("logit", beta) for beta in BETAS)]

Claim = Mapping[str, object]
Studies = Mapping[tuple[str, str, Effect], Study]
"""Studies by setting, test set and effect."""


@dataclass(frozen=True)
class Outcome:
    """What one test found.

    Attributes:
        setting: The setting it was made in.
        item: What it is about, where a claim has several parts.
        values: The statistic, shape (1 + B,): the estimate, then its replicates.
        threshold: What it is compared with.
        above: Whether the claim is that it is above the threshold, or below.
        by_seed: The statistic for each training by itself, where that is possible.
        paper: What the paper prints, if it does.
    """

    setting: str
    item: str
    values: np.ndarray
    threshold: float
    above: bool = True
    by_seed: Sequence[float] = ()
    paper: float = np.nan


def read_design(path: Path = DESIGN) -> dict[str, object]:
    """The design of the experiments, as it was written down."""
    import yaml

    return yaml.safe_load(path.read_text(encoding="utf-8"))


def verdict(low: float, high: float, threshold: float, *, above: bool) -> str:
    """Supported if the whole interval is beyond the threshold, not if none of it is.

    Example:
        >>> verdict(0.2, 0.6, 0.0, above=True), verdict(-0.1, 0.6, 0.0, above=True)
        ('supported', 'inconclusive')
        >>> verdict(-0.5, 0.0, 0.0, above=True)
        'not supported'
    """
    if not above:
        low, high, threshold = -high, -low, -threshold
    if np.isnan(low) or np.isnan(high):
        return "inconclusive"
    if low > threshold:
        return "supported"
    return "inconclusive" if high > threshold else "not supported"


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


def averaged(study: Study, values: np.ndarray) -> dict[str, object]:
    """The mean over trainings, (seeds, 1 + B) to (1 + B,), and each by itself."""
    mean = study.resampled_seeds(values).mean(axis=0)
    return {"values": mean, "by_seed": values[:, 0].tolist()}


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
    above = claim.get("direction", "above") == "above"
    for setting in claim["settings"]:
        for name in claim["metrics"]:
            found = averaged(main_study(studies, setting), counts(claim, studies, setting, name))
            paper = printed_count(setting, name)
            yield Outcome(
                setting, name, **found, threshold=claim["threshold"], above=above, paper=paper
            )


def ctc_difference(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """Correct transitions of one metric beyond those of another."""
    other = claim["against"]
    for setting in claim["settings"]:
        reference = counts(claim, studies, setting, other)
        for name in claim["metrics"]:
            gain = counts(claim, studies, setting, name) - reference
            paper = printed_count(setting, name) - printed_count(setting, other)
            paper = np.nan if claim.get("testset") else paper
            found = averaged(main_study(studies, setting), gain)
            item = f"{name} - {other}"
            yield Outcome(setting, item, **found, threshold=claim["threshold"], paper=paper)


def columns(study: Study, statistic: str, kinds: Sequence[tuple[str, float]]) -> np.ndarray:
    """A statistic of several predictors with trainings resampled, (kinds x seeds, 1 + B)."""
    values = np.stack([study.column(statistic, *kind) for kind in kinds], axis=1)
    return study.resampled_seeds(values).reshape(-1, values.shape[-1])


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
                yield Outcome(setting, f"{name}, {attribute}", r, claim["threshold"])


def score_gap_correlation(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """Stability of an attribute against the gap of mean scores within a label."""
    for setting in claim["settings"]:
        study = main_study(studies, setting)
        for attribute in claim["attributes"]:
            spread = np.sqrt(columns(study, f"S_var_{attribute}", TRAINED))
            r = pearson(spread, columns(study, f"score_{attribute}", TRAINED))
            yield Outcome(setting, attribute, r, claim["threshold"])


def calibration_truth(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """Which calibration error follows that of the target population more closely?"""
    for setting in claim["settings"]:
        study = main_study(studies, setting)
        truth = columns(study, "ECE_q", EVERYONE)
        ours, theirs = (
            spearman(columns(study, f"ECE_{kind}", EVERYONE), truth) for kind in ("marg", "orig")
        )
        yield Outcome(setting, "ECE_marg - ECE_orig", ours - theirs, claim["threshold"])


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
            gain = worse_pairs(study, "S_var_{}") - worse_pairs(study, names[other])
            found = averaged(study, gain)
            yield Outcome(setting, f"S_var - {other}", **found, threshold=claim["threshold"])


def blind_spot(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """The strongest bias against its control where the test set shares the shortcut."""
    for setting in claim["settings"]:
        for family in claim["families"]:
            study = studies[setting, f"shares-{family}", "direct"]
            for name in claim["metrics"]:
                gain = study.column(name, family, max(STRENGTHS)) - study.column(
                    name, f"control {family}", max(STRENGTHS)
                )
                found = averaged(study, gain)
                item, above = f"{name}, {family}", name != "R_orig"
                yield Outcome(setting, item, **found, threshold=claim["threshold"], above=above)


def offset_areas(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """What offsets of the logit do to the AUC within a sex, and to S_var."""
    for setting in claim["settings"]:
        study = main_study(studies, setting)
        areas = np.stack([chain(study, name, "logit") for name in ("AUC_men", "AUC_women")])
        change = np.abs(areas - areas[:, :, :1]).max(axis=(0, 2))
        found = averaged(study, change)
        yield Outcome(
            setting, "AUC within a sex", **found, threshold=claim["threshold"], above=False
        )
        found = averaged(study, transitions(study, "S_var", ("logit",)))
        yield Outcome(setting, "S_var rises", **found, threshold=claim["transitions"])


def variance_ratio(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """Counterfactual over observed variance of subgroup means, at worst."""
    for setting in claim["settings"]:
        study = main_study(studies, setting, "total")
        found = averaged(study, study.column("variance_ratio", "basic"))
        yield Outcome(setting, "largest ratio", **found, threshold=claim["threshold"], above=False)


def null_floor(claim: Claim, studies: Studies) -> Iterator[Outcome]:
    """What the null intervention does to the score, against what interventions do."""
    for setting in claim["settings"]:
        study = main_study(studies, setting)
        ratio = study.column("null_abs", "basic") / study.column("D_abs", "basic")
        found = averaged(study, ratio)
        yield Outcome(setting, "null / D_abs", **found, threshold=claim["threshold"], above=False)


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
        by_seed, threshold, direction, verdict``.
    """
    rows = []
    for claim in read_design(design)["claims"]:
        if only not in (None, claim["id"]):
            continue
        if claim["test"] not in TESTS:
            raise InputError(f"{design}: claim {claim['id']!r} has no test {claim['test']!r}")
        for outcome in TESTS[claim["test"]](claim, studies):
            low, high = interval(outcome.values, level)
            rows.append(
                {
                    "claim": claim["id"],
                    "setting": outcome.setting,
                    "item": outcome.item,
                    "paper": outcome.paper,
                    "estimate": float(outcome.values[0]),
                    "low": low,
                    "high": high,
                    "by_seed": tuple(outcome.by_seed),
                    "threshold": outcome.threshold,
                    "direction": "above" if outcome.above else "below",
                    "verdict": verdict(low, high, outcome.threshold, above=outcome.above),
                }
            )
    return pd.DataFrame(rows)
