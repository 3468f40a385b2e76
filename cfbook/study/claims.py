r"""Each claim of the paper, tested as ``data/claims.yml`` says, with an interval and a verdict.

A test computes one statistic in each training. Its mean has a standard error from the trainings and
one from the patients, who are resampled (:func:`estimate`). One test of each claim is its primary
one, named before the results; Holm's correction is over these, and they alone decide.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy import stats

from cfbook.paths import data_file
from cfbook.study.orders import LADDERS, attribute, steps, trend
from cfbook.study.runs import BETAS, SETTINGS, STRENGTHS
from cfbook.study.statistics import Study
from cfcore.checks import InputError
from cfcore.metrics.ranking import correlation

VERDICTS = ("supported", "not supported", "tie", "identity", "inconclusive (power)")
_LEVEL = 0.05
_REPLICATES = 200  # samples of patients
_MANY = 1e6  # degrees of freedom, as good as infinite
_STRONGEST = max(STRENGTHS)
BIASED = [(family, strength) for family in ("sex", "age") for strength in STRENGTHS]
NETWORKS = [("basic", 0.0), *((family, s) for family in ("sex", "age") for s in LADDERS[family])]
EVERYONE = [*NETWORKS, *(("logit", beta) for beta in BETAS)]
_UNBIASED = [("basic", 0.0), *((f"control {family}", strength) for family, strength in BIASED)]
_PLURALS = {
    "settings": "setting", "metrics": "metric", "against": "against", "attributes": "attribute",
    "families": "family", "strengths": "strength", "subgroups": "subgroup", "ages": "age",
}  # fmt: skip

_Claim = Mapping[str, object]
Studies = Mapping[tuple[str, str, str], Study]
"""Studies by setting, test set, and effect; ``"observed"`` of further patients in place of an
effect, and ``"hidden"`` where the generator was told imputed labels."""


class Found(NamedTuple):
    """What one test found, each array of shape (seeds, 1 + B), the estimate first.

    Attributes:
        values: The statistic of each training.
        control: The same where the claim has no reason to hold.
        attainable: The largest value that it could have had.
        tried: Of how many statistics it is the most extreme one.
    """

    values: np.ndarray
    control: np.ndarray | None = None
    attainable: float = np.nan
    tried: int = 1


@dataclass(frozen=True)
class _Mean:
    """A mean over trainings with its standard error, on the scale on which it is judged.

    Attributes:
        value, error, freedom: The mean, its standard error, and its degrees of freedom.
        scale: ``"plain"``, ``"fisher"`` of correlations, or ``"log"`` of ratios.
    """

    value: float
    error: float
    freedom: float
    scale: str = "plain"

    def interval(self, level: float = 1 - _LEVEL) -> tuple[float, float]:
        """Its t interval, on the scale of the statistic."""
        reach = stats.t.ppf((1 + level) / 2, self.freedom) * self.error
        back = _BACK[self.scale]
        return float(back(self.value - reach)), float(back(self.value + reach))

    @property
    def plain(self) -> float:
        """The mean, on the scale of the statistic."""
        return float(_BACK[self.scale](self.value))

    def t(self, threshold: float) -> float:
        """How many standard errors it lies above a threshold."""
        distance = self.value - float(_FORTH[self.scale](threshold))
        if self.error > 0:
            return distance / self.error
        return math.copysign(math.inf, distance) if distance else 0.0

    def p(self, threshold: float) -> float:
        """The two-sided p-value."""
        return float(2 * stats.t.sf(abs(self.t(threshold)), self.freedom))

    def p_within(self, threshold: float, margin: float) -> float:
        """Twice the larger p-value of two one-sided tests: that it is not within a margin."""
        sides = self.t(threshold - margin), -self.t(threshold + margin)
        return float(min(1, 2 * max(stats.t.sf(side, self.freedom) for side in sides)))

    def power(self, threshold: float, margin: float) -> float:
        """The chance of a significant test if the truth were the margin above the threshold."""
        forth = _FORTH[self.scale]
        shift = abs(float(forth(threshold + margin) - forth(threshold)))
        if self.error == 0:
            return 1.0
        limit = stats.t.ppf(1 - _LEVEL / 2, self.freedom)
        return float(stats.nct.sf(limit, self.freedom, shift / self.error))


def _fisher(r: np.ndarray) -> np.ndarray:
    return np.arctanh(np.clip(r, -0.999999, 0.999999))


_FORTH = {"plain": np.asarray, "fisher": _fisher, "log": np.log}
_BACK = {"plain": np.asarray, "fisher": np.tanh, "log": np.exp}


def estimate(values: np.ndarray, scale: str = "plain") -> _Mean:
    r"""The mean of a statistic over trainings, with a standard error from two sources.

    .. math:: s^2 = \frac{s_\text{trainings}^2}{S} + s_\text{patients}^2, \qquad
        \nu = (S - 1) \frac{s^4}{(s_\text{trainings}^2 / S)^2}

    The trainings vary by their standard deviation; the patients by that of the replicates of the
    mean, if there are any. The degrees of freedom are Satterthwaite's.

    Args:
        values: The statistic of each training, shape (S, 1 + B): the estimate, then replicates.

    Example:
        >>> found = estimate(np.array([[1.0], [2.0], [3.0]]))
        >>> found.value, round(found.error, 3), found.freedom
        (2.0, 0.577, 2.0)
        >>> [round(end, 2) for end in found.interval()]
        [-0.48, 4.48]
    """
    forth = _FORTH[scale](values[:, : 1 + _REPLICATES])
    trained, count = forth[:, 0], len(forth)
    between = trained.std(ddof=1) ** 2 / count if count > 1 else 0.0
    drawn = forth[:, 1:].mean(axis=0)
    drawn = drawn[np.isfinite(drawn)]
    patients = drawn.var(ddof=1) if len(drawn) > 1 else 0.0
    total = between + patients
    freedom = min((count - 1) * (total / between) ** 2, _MANY) if between > 0 else _MANY
    return _Mean(float(trained.mean()), float(np.sqrt(total)), float(freedom), scale)


def holm(p: np.ndarray) -> np.ndarray:
    """P-values after Holm's correction.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
        [0.03, 0.06, 0.06]
    """
    order, count = np.argsort(p), len(p)
    raised = np.maximum.accumulate(p[order] * np.arange(count, 0, -1))
    found = np.empty(count)
    found[order] = np.minimum(raised, 1)
    return found


def verdict(claim: _Claim, found: _Mean, p: float, item: str = "") -> str:
    """What the design says of an estimate with a p-value; see ``verdicts`` in it.

    Example:
        >>> claim = {"threshold": 0, "margin": 0.1}
        >>> [verdict(claim, _Mean(x, s, 4), p) for x, s, p in ((1, 0.1, 0.01), (-1, 0.1, 0.01))]
        ['supported', 'not supported']
        >>> [verdict(claim, _Mean(0, s, 4), 1.0) for s in (0.01, 0.5)]
        ['tie', 'inconclusive (power)']
    """
    if item in claim.get("identity", {}):
        return "identity"
    threshold, margin = claim["threshold"], claim["margin"]
    low, high = (end - threshold for end in found.interval())
    if not low <= high:
        raise InputError(f"{claim.get('id', 'claim')}, {item}: no interval, [{low}, {high}]")
    inside = -margin < low and high < margin
    if (direction := claim.get("direction", "above")) == "within":
        outside = low > margin or high < -margin
        return "supported" if p <= _LEVEL else "not supported" if outside else VERDICTS[-1]
    if p <= _LEVEL:
        return "supported" if (found.plain > threshold) == (direction == "above") else VERDICTS[1]
    return "tie" if inside else VERDICTS[-1]


def read_design(path: Path | None = None) -> dict[str, object]:
    """The design of the experiments, as it was written down."""
    import yaml

    return yaml.safe_load((path or data_file("claims.yml")).read_text(encoding="utf-8"))


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


def columns(study: Study, statistic: str, kinds: list[tuple[str, float]]) -> np.ndarray:
    """A statistic of several predictors, shape (kinds, seeds, 1 + B)."""
    return np.stack([study.column(statistic, *kind) for kind in kinds])


def by_training(correlate: Callable[..., np.ndarray], *statistics: np.ndarray) -> np.ndarray:
    """A correlation over predictors in each training, shape (seeds, 1 + B) of the shortest."""
    length = min(each.shape[-1] for each in statistics)
    cut = [each[..., :length] for each in statistics]
    return np.stack([correlate(*(each[:, s] for each in cut)) for s in range(cut[0].shape[1])])


class _Tests:
    """The tests, by the names that the design gives them; each returns what it :class:`Found`."""

    def __init__(self, studies: Studies) -> None:
        self.studies = studies

    def _main(self, setting: str, effect: str = "direct") -> Study:
        return self.studies[setting, SETTINGS[setting].testset, effect]

    def _observed(self, setting: str) -> Study:
        return self._main(setting, "observed")

    def _where(self, claim: _Claim, setting: str) -> dict[str, Study]:
        """The studies in which families by sex and by age are judged."""
        if claim.get("testset") != "shares":
            return dict.fromkeys(("sex", "age"), self._main(setting))
        return {a: self.studies[setting, f"shares-{a}", "direct"] for a in ("sex", "age")}

    def trend_difference(self, claim: _Claim, setting: str, metric: str, against: str) -> Found:
        """The trend of one metric less that of another."""
        where = self._where(claim, setting)
        ours, theirs = (trend(where, name) for name in (metric, against))
        control = None
        if claim.get("testset") != "shares":
            control = trend(where, metric, controls=True) - trend(where, against, controls=True)
        elif against == "R_orig":
            control = ours - trend(dict.fromkeys(where, self._main(setting)), metric)
        return Found(ours - theirs, control, 1 - theirs[:, 0].mean())

    def trend(self, claim: _Claim, setting: str, metric: str) -> Found:
        """The trend of a metric."""
        where = self._where(claim, setting)
        return Found(trend(where, metric), trend(where, metric, controls=True), 1.0)

    def lowest_step(self, claim: _Claim, setting: str, metric: str) -> Found:
        """The step towards more bias that adds least, in standard errors."""
        known = metric in ("R_orig", "ECE_orig")
        study = self._observed(setting) if known else self._main(setting)
        families = claim.get("families", tuple(LADDERS))
        every = steps(dict.fromkeys(("sex", "age"), study), metric, families)
        lowest = min(every.values(), key=lambda values: estimate(values).t(0))
        below = claim.get("direction") == "below"  # else all steps have to be above
        return Found(lowest, tried=len(every) if below else 1)

    def calibration_truth(self, claim: _Claim, setting: str) -> Found:
        """Which calibration error follows that of the target population more closely?"""

        def difference(kinds: list[tuple[str, float]]) -> tuple[np.ndarray, np.ndarray]:
            truth, *errors = (
                columns(self._main(setting), name, kinds)
                for name in ("ECE_q", "ECE_marg", "ECE_orig")
            )
            ours, theirs = (by_training(spearman, error, truth) for error in errors)
            return ours - theirs, theirs

        (found, theirs), (control, _) = difference(EVERYONE), difference(_UNBIASED)
        return Found(found, control, 1 - theirs[:, 0].mean())

    def against_control(
        self, claim: _Claim, setting: str, metric: str, family: str, strength: float = _STRONGEST
    ) -> Found:
        """A biased predictor less its control, which was trained on as many images."""
        study = self._observed(setting) if metric == "ECE_orig" else self._main(setting)
        sign = -1 if metric == "S_rank" else 1
        kinds = (family, strength), (f"control {family}", strength), ("basic", 0.0)
        biased, control, basic = (sign * study.column(metric, *kind) for kind in kinds)
        return Found(biased - control, control - basic)

    def gap_correlation(self, claim: _Claim, setting: str, attribute: str, metric: str) -> Found:
        """A metric against the worst gap of the AUC, over the predictors of a training."""
        main, observed = self._main(setting), self._observed(setting)
        own = f"score_{attribute}" if metric == "score" else metric
        x = columns(observed if own.startswith(("score", "R_orig")) else main, own, NETWORKS)
        given = [columns(observed, "AUC", NETWORKS)] if "given" in claim else []
        correlate = partial_correlation if given else pearson
        gaps = (columns(observed, f"gap_{name}", NETWORKS) for name in (attribute, "coin"))
        found, control = (by_training(correlate, x, gap, *given) for gap in gaps)
        return Found(found, control, 1.0)

    def label_free(self, claim: _Claim, setting: str, attribute: str) -> Found:
        """The response to an attribute without labels against the gap of scores, with them."""
        hidden, observed = self._main(setting, "hidden"), self._observed(setting)
        x = np.sqrt(columns(hidden, f"S_var_{attribute}", NETWORKS))
        other = {"sex": "age", "age": "sex"}[attribute]
        gaps = (columns(observed, f"score_{name}", NETWORKS) for name in (attribute, other))
        found, control = (by_training(pearson, x, gap) for gap in gaps)
        return Found(found, control, 1.0)

    def exposure(
        self, claim: _Claim, setting: str, strength: float, metric: str, against: str
    ) -> Found:
        """How much more surely one metric is higher with a weak bias than without any."""
        study = self._main(setting)
        ours, theirs = (_exceeds(study, name, ("sex", strength)) for name in (metric, against))
        control = _exceeds(study, metric, ("control sex", _STRONGEST)) - 0.5
        return Found(ours - theirs, control, 1 - theirs[:, 0].mean())

    def blind_spot(self, claim: _Claim, setting: str, family: str) -> Found:
        """The strongest bias less its control: the observed risk falls, the expected one rises."""
        study = self.studies[setting, f"shares-{family}", "direct"]
        kinds = (family, _STRONGEST), (f"control {family}", _STRONGEST), ("basic", 0.0)
        pairs = []
        for name, sign in (("R_orig", -1), ("R_IE", 1)):
            biased, control, basic = (sign * study.column(name, *kind) for kind in kinds)
            pairs.append((biased - control, control - basic))
        return Found(*min(pairs, key=lambda pair: estimate(pair[0]).t(0)))

    def variance_ratio(self, claim: _Claim, setting: str, subgroup: str) -> Found:
        """The variance of a counterfactual over that of an observed subgroup mean."""
        name = {"women": "variance_women"}.get(subgroup, "variance_ratio")
        study = self._main(setting, "total")
        return Found(study.column(name, "basic"), study.column("variance_everyone", "basic"))

    def subgroup_bias(self, claim: _Claim, setting: str, age: int) -> Found:
        """The mean score of everyone at an age less that of observed patients of that age."""
        total, observed = self._main(setting, "total"), self._observed(setting)
        own, ill = (observed.column(f"{name}_{age}", "basic") for name in ("mean", "ill"))
        length = min(own.shape[1], total.column("mean_80", "basic").shape[1])
        everyone, sick, well = (
            total.column(f"mean_{age}{which}", "basic")[:, :length]
            for which in ("", "_ill", "_well")
        )
        own, ill = own[:, :length], ill[:, :length]
        return Found(everyone - own, ill * sick + (1 - ill) * well - own)

    def null_floor(self, claim: _Claim, setting: str) -> Found:
        """What the null intervention does to the score, against what interventions do."""
        study = self._main(setting)
        return Found(study.column("null_abs", "basic") / study.column("D_abs", "basic"))


def _exceeds(study: Study, statistic: str, kind: tuple[str, float]) -> np.ndarray:
    """The share of predictors without bias that one exceeds, in each training, (seeds, 1 + B)."""
    own = study.column(statistic, *kind)
    others = columns(study, statistic, [each for each in _UNBIASED if each != kind])
    others = others.reshape(-1, own.shape[1])
    share = (own[:, None] > others).mean(axis=1)
    return np.where(np.isnan(own) | np.isnan(others).any(axis=0), np.nan, share)


_SCALES = {"gap_correlation": "fisher", "label_free": "fisher", "variance_ratio": "log"}
_TESTS = [name for name in vars(_Tests) if not name.startswith("_")]


def _asked(claim: _Claim) -> Iterator[dict[str, object]]:
    """What a claim is asked about: its primary test first, then all others."""
    yield dict(claim["primary"])
    named = {_PLURALS[name]: values for name, values in claim["also"].items()}
    for values in product(*named.values()):
        spec = dict(zip(named, values, strict=True))
        known = {name: claim["primary"][name] for name in spec}
        if known != spec and spec.get("metric") != spec.get("against", ""):
            yield spec


def _item(spec: Mapping[str, object], claim: _Claim) -> str:
    """What a test is about, in few words.

    Example:
        >>> _item({"setting": "C->C", "metric": "R_IE", "against": "R_orig"}, {})
        'R_IE - R_orig'
    """
    words = [str(value) for name, value in spec.items() if name not in ("setting", "against")]
    said = ", ".join(words)
    said = f"{said} - {spec['against']}" if "against" in spec else said
    return said or next(iter(claim.get("identity", {})), claim["test"].replace("_", " "))


def verdicts(
    studies: Studies, *, design: Path | None = None, only: str | None = None
) -> pd.DataFrame:
    """Test every claim of the design, or only one, as far as there are studies.

    Returns:
        A row for each test: ``claim, setting, item, primary, estimate, low, high, p, power,
        threshold, direction, margin, attainable, control, control low, control high, by_seed,
        verdict``. P-values of primary tests are after Holm's correction, others plain.
    """
    rows, estimates, tests = [], [], _Tests(studies)
    for claim in read_design(design)["claims"]:
        if only not in (None, claim["id"]):
            continue
        if claim["test"] not in _TESTS:
            raise InputError(f"{design}: claim {claim['id']!r} has no test {claim['test']!r}")
        scale = _SCALES.get(claim["test"], "plain")
        for number, spec in enumerate(_asked(claim)):
            try:
                found = getattr(tests, claim["test"])(claim, **spec)
            except KeyError:  # of a study that is not there
                continue
            own = estimate(found.values, scale)
            threshold, margin = claim["threshold"], claim["margin"]
            low, high = own.interval()
            row = {"claim": claim["id"], "setting": spec["setting"], "item": _item(spec, claim)}
            row |= {"primary": number == 0, "estimate": own.plain, "low": low, "high": high}
            within = claim.get("direction") == "within"
            p = own.p_within(threshold, margin) if within else own.p(threshold)
            row |= {"p": min(1.0, p * found.tried)}
            row |= {"power": own.power(threshold, margin), "threshold": threshold}
            row |= {"direction": claim.get("direction", "above"), "margin": margin}
            row |= {"attainable": found.attainable, **_control(found, scale)}
            row |= {"by_seed": tuple(found.values[:, 0].tolist())}
            rows.append(row)
            estimates.append((claim, own))
    frame = pd.DataFrame(rows)
    sure = [
        item in claim.get("identity", {})
        for item, (claim, _) in zip(frame["item"], estimates, strict=True)
    ]
    counted = frame.primary & ~np.array(sure)
    frame.loc[counted, "p"] = holm(frame.p[counted].to_numpy())
    frame["verdict"] = [
        verdict(claim, own, p, item)
        for (claim, own), p, item in zip(estimates, frame.p, frame["item"], strict=True)
    ]
    return frame


def _control(found: Found, scale: str) -> dict[str, float]:
    if found.control is None:
        return dict.fromkeys(("control", "control low", "control high"), np.nan)
    own = estimate(found.control, scale)
    low, high = own.interval()
    return {"control": own.plain, "control low": low, "control high": high}


def worse_pairs(study: Study, statistic: str) -> np.ndarray:
    """The share of biased predictors that score worse than their control, (seeds, 1 + B).

    ``{}`` in the name of the statistic stands for the attribute of the bias.
    """
    worse = []
    for family, strength in BIASED:
        name = statistic.format(attribute(family))
        biased, control = (study.column(name, f, strength) for f in (family, f"control {family}"))
        worse.append(np.where(np.isnan(biased - control), np.nan, biased > control))
    return np.mean(worse, axis=0)
