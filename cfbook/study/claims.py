r"""Each claim of the paper, tested as ``data/claims.yml`` says, with an interval and a verdict.

The design was written down before the results were looked at; thresholds and directions are read
from it wherever a verdict is given. A test is a function of a claim, the studies and a setting that
returns statistics of the trainings at hand. :func:`verdicts` calls it on all trainings, and without
each of them, for an interval (:mod:`cfbook.study.rules`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy import stats

from cfbook.paths import data_file
from cfbook.printed_tables import METRICS, published
from cfbook.study.rules import rule, training_reach
from cfbook.study.runs import BETAS, SETTINGS, STRENGTHS, PredictorId
from cfbook.study.statistics import Study
from cfcore.checks import InputError
from cfcore.generator import Effect
from cfcore.intervals import Rule, interval
from cfcore.metrics.ranking import correlation

_RISES = "S_var rises"

COUNTED = ("supported", "inconclusive", "not supported")
TIED, CERTAIN = "no difference possible", "holds by construction"
VERDICTS = (*COUNTED, TIED, CERTAIN)
"""All verdicts. The last two count neither for a claim nor against it: metrics that are tied at the
ceiling in every training, and tests that hold by construction."""

_FALLING = ("S_rank", "tau_b")
STEPS = {"logit": BETAS, "sex": STRENGTHS, "age": STRENGTHS}
BIASED = [(family, strength) for family in ("sex", "age") for strength in STRENGTHS]
NETWORKS = [("basic", 0.0), *BIASED]
EVERYONE = [*NETWORKS, *(("logit", beta) for beta in BETAS)]
_COUNT, CORRELATION = Rule(0, 9), Rule(-1, 1)

_Claim = Mapping[str, object]
_Studies = Mapping[tuple[str, str, Effect], Study]
"""Studies by setting, test set and effect."""


@dataclass(frozen=True)
class Outcome:
    """What one test found in one setting.

    Attributes:
        item: What it is about, where a claim has several parts.
        values: The statistic, shape (1 + B,): the estimate, then its replicates.
        rule: How its interval is made.
        by_seed: The statistic for each training by itself, where that is possible.
        paper: What the paper prints, if it does.
        attainable: The largest value that it could have had, where that is less than its range.
    """

    item: str
    values: np.ndarray
    rule: Rule
    by_seed: Sequence[float] = ()
    paper: float = np.nan
    attainable: float = np.nan

    @classmethod
    def mean(cls, item: str, values: np.ndarray, rule: Rule, **more: float) -> "Outcome":
        """The mean over trainings of a statistic of each, shape (seeds, 1 + B)."""
        return cls(item, values.mean(axis=0), rule, values[:, 0].tolist(), **more)

    @property
    def tied(self) -> bool:
        """Whether two metrics were compared that both did as well as can be, in every training."""
        return self.attainable == 0 and self.values[0] == 0


def read_design(path: Path | None = None) -> dict[str, object]:
    """The design of the experiments, as it was written down."""
    import yaml

    return yaml.safe_load((path or data_file("claims.yml")).read_text(encoding="utf-8"))


def _criterion(claim: _Claim, item: str) -> tuple[float, bool]:
    """What a part of a claim is compared with: the threshold, and whether to be above it.

    Example:
        >>> claim = {"threshold": 0, "direction": "R_orig below, R_IE above"}
        >>> _criterion(claim, "R_orig, sex"), _criterion(claim, "R_IE, age")
        ((0, False), (0, True))
    """
    if item == _RISES:
        return claim["transitions"], True
    direction = claim.get("direction", "above")
    ways = dict(part.split() for part in direction.split(", ")) if " " in direction else {}
    return claim["threshold"], ways.get(item.split(",")[0], direction) == "above"


def verdict(claim: _Claim, item: str, low: float, high: float, *, tied: bool = False) -> str:
    """Supported if the whole interval is beyond the threshold, not if none of it is.

    The claim also says of which parts nothing else could have been found. Two metrics are tied if
    both did as well as can be.

    Example:
        >>> claim = {"threshold": 0}
        >>> [verdict(claim, "S_var", *ends) for ends in ((0.2, 0.6), (-0.1, 0.6), (-0.5, 0.0))]
        ['supported', 'inconclusive', 'not supported']
        >>> claim = {"threshold": 1, "direction": "below", "cannot_fail": {"ratio": "by algebra"}}
        >>> [verdict(claim, "ratio", 0.1, high) for high in (0.2, 2.0)]
        ['holds by construction', 'inconclusive']
    """
    threshold, above = _criterion(claim, item)
    if not above:
        low, high, threshold = -high, -low, -threshold
    if tied:
        return TIED
    if low > threshold:
        return CERTAIN if item in claim.get("cannot_fail", ()) else "supported"
    return "not supported" if high <= threshold else "inconclusive"


def correct_transitions(values: np.ndarray) -> np.ndarray:
    r"""Correct transition count (CTC): does a metric rise at every step towards more bias?

    .. math:: \sum_{c} \sum_{j} \mathbb{1}\big[ m_{c,j+1} > m_{c,j} \big]

    Each chain c starts at the unbiased predictor and goes to ever more biased ones; the paper has
    three chains of three steps, nine transitions. Only strict increases count. The count is taken
    for each training and then averaged. For metrics that should fall with bias (``S_rank``,
    ``tau_b``), pass the negative values.

    Worked by hand in :doc:`/notebooks/metrics`.

    Args:
        values: A metric along the chains, shape (..., chains, steps + 1); the leading axes are
            trainings and replicates. The counts are NaN where a value is.

    Example:
        >>> correct_transitions(np.array([[0.1, 0.2, 0.2, 0.4], [0.1, 0.0, 0.2, 0.3]])).item()
        4.0
    """
    steps = np.diff(values, axis=-1)
    undefined = np.isnan(steps).any(axis=(-2, -1))
    return np.where(undefined, np.nan, (steps > 0).sum(axis=(-2, -1)))


def _chain(study: Study, statistic: str, family: str) -> np.ndarray:
    """A statistic along a chain from ``basic`` to the strongest bias, (seeds, 1 + B, steps + 1)."""
    kinds = [("basic", 0.0), *((family, strength) for strength in STEPS[family])]
    return np.stack([study.column(statistic, *kind) for kind in kinds], axis=-1)


def transitions(study: Study, statistic: str, families: Sequence[str] = tuple(STEPS)) -> np.ndarray:
    """Correct transitions of each training, shape (seeds, 1 + B); NaN where undefined."""
    chains = np.stack([_chain(study, statistic, family) for family in families], axis=-2)
    return correct_transitions(-chains if statistic in _FALLING else chains)


def _printed_count(setting: str, statistic: str) -> float:
    """Correct transitions in the paper: as printed, or counted in the printed means."""
    kinds = [kind for kind, names in METRICS.items() if statistic in names]
    if not kinds:
        return np.nan
    means = published(setting, kinds[0])[statistic]
    if "ctc" in means:
        return float(means["ctc"].item())
    members = tuple(PredictorId(family, strength, 0) for family, strength in means.index)
    return transitions(Study(members, {statistic: means.to_numpy()[:, None]}), statistic).item()


def _main_study(studies: _Studies, setting: str, effect: Effect = "direct") -> Study:
    """The study of the test set of a setting."""
    return studies[setting, SETTINGS[setting].testset, effect]


def _counts(claim: _Claim, studies: _Studies, setting: str, statistic: str) -> np.ndarray:
    """Correct transitions out of nine, on the test set of a setting or on those it shares."""
    if claim.get("testset") != "shares":
        return transitions(_main_study(studies, setting), statistic)
    sex, age = (studies[setting, f"shares-{family}", "direct"] for family in ("sex", "age"))
    return transitions(sex, statistic, ("logit", "sex")) + transitions(age, statistic, ("age",))


def _ctc(claim: _Claim, studies: _Studies, setting: str) -> Iterator[Outcome]:
    """Correct transition counts against a threshold."""
    for name in claim["metrics"]:
        found, paper = _counts(claim, studies, setting, name), _printed_count(setting, name)
        yield Outcome.mean(name, found, _COUNT, paper=paper)


def _ctc_difference(claim: _Claim, studies: _Studies, setting: str) -> Iterator[Outcome]:
    """Correct transitions of one metric beyond those of another, and how many there could be."""
    other, kind = claim["against"], _COUNT.difference()
    reference = _counts(claim, studies, setting, other)
    room = _COUNT.most - reference[:, 0].mean()
    printed = np.nan if claim.get("testset") else _printed_count(setting, other)
    for name in claim["metrics"]:
        found = _counts(claim, studies, setting, name) - reference
        paper = _printed_count(setting, name) - printed
        yield Outcome.mean(f"{name} - {other}", found, kind, paper=paper, attainable=room)


def columns(study: Study, statistic: str, kinds: Sequence[tuple[str, float]]) -> np.ndarray:
    """A statistic of several predictors and all trainings, shape (kinds x seeds, 1 + B)."""
    return np.concatenate([study.column(statistic, *kind) for kind in kinds])


def pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson correlation along the first axis, in each replicate."""
    return torch.vmap(correlation, in_dims=1)(*map(torch.as_tensor, (x, y))).numpy()


def partial_correlation(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Correlation of x and y given z, along the first axis, in each replicate."""
    xy, xz, yz = pearson(x, y), pearson(x, z), pearson(y, z)
    return (xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2))


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman correlation along the first axis, in each replicate."""
    return pearson(stats.rankdata(x, axis=0), stats.rankdata(y, axis=0))


def _gap_correlation(claim: _Claim, studies: _Studies, setting: str) -> Iterator[Outcome]:
    """Stability against the worst gap of the AUC, over trained predictors and trainings."""
    study = _main_study(studies, setting)
    given = [columns(study, "AUC", NETWORKS)] if "given" in claim else []
    correlate = partial_correlation if given else pearson
    for attribute, name in product(claim["attributes"], claim["metrics"]):
        both = (columns(study, one, NETWORKS) for one in (name, f"gap_{attribute}"))
        yield Outcome(f"{name}, {attribute}", correlate(*both, *given), CORRELATION)


def _score_gap_correlation(claim: _Claim, studies: _Studies, setting: str) -> Iterator[Outcome]:
    """Stability of an attribute against the gap of mean scores within a label."""
    study = _main_study(studies, setting)
    for attribute in claim["attributes"]:
        spread = np.sqrt(columns(study, f"S_var_{attribute}", NETWORKS))
        r = pearson(spread, columns(study, f"score_{attribute}", NETWORKS))
        yield Outcome(attribute, r, CORRELATION)


def _calibration_truth(claim: _Claim, studies: _Studies, setting: str) -> Iterator[Outcome]:
    """Which calibration error follows that of the target population more closely?"""
    study = _main_study(studies, setting)
    truth, errors = columns(study, "ECE_q", EVERYONE), ("ECE_marg", "ECE_orig")
    ours, theirs = (spearman(columns(study, name, EVERYONE), truth) for name in errors)
    yield Outcome(" - ".join(errors), ours - theirs, CORRELATION.difference())


def _pair(study: Study, statistic: str, family: str, strength: float) -> list[np.ndarray]:
    """A statistic of a biased predictor and of its control, both of shape (seeds, 1 + B)."""
    return [study.column(statistic, name, strength) for name in (family, f"control {family}")]


def worse_pairs(study: Study, statistic: str) -> np.ndarray:
    """The share of biased predictors that score worse than their control, (seeds, 1 + B).

    ``{}`` in the name of the statistic stands for the attribute of the bias.
    """
    every = [_pair(study, statistic.format(family), family, s) for family, s in BIASED]
    worse = [np.where(np.isnan(b - control), np.nan, b > control) for b, control in every]
    return np.mean(worse, axis=0)


def _exposure_difference(claim: _Claim, studies: _Studies, setting: str) -> Iterator[Outcome]:
    """How much more often S_var of the attribute tells a biased predictor from its control."""
    names = {"R_orig": "R_orig", "AUC gap": "gap_{}"}
    study, kind = _main_study(studies, setting), Rule(0, 1).difference()
    for other in claim["against"]:
        ours, theirs = (worse_pairs(study, one) for one in ("S_var_{}", names[other]))
        room = 1 - theirs[:, 0].mean()
        yield Outcome.mean(f"S_var - {other}", ours - theirs, kind, attainable=room)


def _blind_spot(claim: _Claim, studies: _Studies, setting: str) -> Iterator[Outcome]:
    """The strongest bias against its control where the test set shares the shortcut."""
    for family, name in product(claim["families"], claim["metrics"]):
        study = studies[setting, f"shares-{family}", "direct"]
        biased, control = _pair(study, name, family, max(STRENGTHS))
        yield Outcome.mean(f"{name}, {family}", biased - control, rule(name).difference())


def _offset_areas(claim: _Claim, studies: _Studies, setting: str) -> Iterator[Outcome]:
    """What offsets of the logit do to the AUC within a sex, and to S_var."""
    study = _main_study(studies, setting)
    areas = np.stack([_chain(study, name, "logit") for name in ("AUC_men", "AUC_women")])
    change = np.abs(areas - areas[..., :1]).max(axis=(0, -1))
    yield Outcome.mean("AUC within a sex", change, rule("AUC"))
    rises = transitions(study, "S_var", ("logit",))
    yield Outcome.mean(_RISES, rises, Rule(0, len(BETAS)))


def _variance_ratio(claim: _Claim, studies: _Studies, setting: str) -> Iterator[Outcome]:
    """Counterfactual over observed variance of subgroup means, at worst."""
    found = _main_study(studies, setting, "total").column("variance_ratio", "basic")
    yield Outcome.mean("largest ratio", found, rule("variance_ratio"))


def _null_floor(claim: _Claim, studies: _Studies, setting: str) -> Iterator[Outcome]:
    """What the null intervention does to the score, against what interventions do."""
    study = _main_study(studies, setting)
    ratio = study.column("null_abs", "basic") / study.column("D_abs", "basic")
    yield Outcome.mean("null / D_abs", ratio, Rule(0))


TESTS: Mapping[str, Callable[[_Claim, _Studies, str], Iterator[Outcome]]] = {
    test.__name__.removeprefix("_"): test
    for test in (
        _ctc, _ctc_difference, _gap_correlation, _score_gap_correlation, _calibration_truth,
        _exposure_difference, _blind_spot, _offset_areas, _variance_ratio, _null_floor,
    )
}  # fmt: skip


def outcomes(claim: _Claim, studies: _Studies) -> Iterator[tuple[str, Outcome, list[float]]]:
    """What a test found in each setting, and what it finds without each training in turn."""
    test, seeds = TESTS[claim["test"]], {seed for study in studies.values() for seed in study.seeds}
    fewer = [{key: s.without(seed) for key, s in studies.items()} for seed in sorted(seeds)]
    for setting in claim["settings"]:
        others = [list(test(claim, some, setting)) for some in fewer] if len(seeds) > 1 else []
        for i, outcome in enumerate(test(claim, studies, setting)):
            yield setting, outcome, [float(found[i].values[0]) for found in others]


def verdicts(
    studies: _Studies, *, design: Path | None = None, only: str | None = None
) -> pd.DataFrame:
    """Test every claim of the design, or only one.

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
        for setting, found, left_out in outcomes(claim, studies):
            reach = training_reach(left_out)
            low, high = interval(found.values, rule=found.rule, reach=reach)
            threshold, above = _criterion(claim, found.item)
            row = {"claim": claim["id"], "setting": setting, "item": found.item}
            row |= {"paper": found.paper, "estimate": float(found.values[0]), "low": low}
            row |= {"high": high, "attainable": found.attainable, "by_seed": tuple(found.by_seed)}
            row |= {"threshold": threshold, "direction": "above" if above else "below"}
            rows.append(row | {"verdict": verdict(claim, found.item, low, high, tied=found.tied)})
    return pd.DataFrame(rows)
