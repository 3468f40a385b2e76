"""What a report says of predictors, as plain values: the numbers, their intervals, the verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cfcore.evaluation import Asked, check_options, labelled
from cfcore.metrics.calibration import bin_index
from cfcore.metrics.marginal import marginal_prediction
from cfcore.metrics.stability import attribute_variance, flip_rate
from cfcore.metrics.summary import Scores
from cfcore.predictions import Predictions
from cfcore.report.conclusions import RULES, conclude
from cfcore.resampling import (
    Resampling,
    bootstrap_scores,
    check_groups,
    check_resampling,
    mean_intervals,
)

if TYPE_CHECKING:
    import pandas as pd

_SCHEMA = 1
"""The version of ``report.json``; it grows when a key changes its meaning or goes."""
_ASSUMED = (
    "Counterfactual images are those of the causal graph that was given: an arrow that is missing "
    "there is missing in every number here.",
    "What is not changed is held, the label among it; the label that a generator holds need not be "
    "the label that is audited.",
    "Intervals are over patients from the same population; not over another training of the "
    "classifier, nor over another generator.",
    "A nuisance is one because somebody said so: whether the score may depend on it is no question "
    "of statistics.",
)
_SUBGROUP = ("R_orig", "R_IE", "ECE_orig", "S_var", "S_flip", "AUC_orig")


def records(frame: "pd.DataFrame") -> list[dict[str, object]]:
    """Rows as JSON values: what is missing becomes None, a doubtful interval is said to be."""
    if "metric" in frame:
        frame = frame.assign(doubtful=frame.metric.isin(frame.attrs.get("doubtful", ())))
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{name: getattr(v, "item", lambda v=v: v)() for name, v in row.items()} for row in rows]


@dataclass(frozen=True)
class Question:
    """How findings are made: of which groups, with which options and replicates.

    Attributes:
        groups: Columns of which subgroups are made, a value for each row.
        words: What the values of the nuisance variables are called.
        asked: Threshold, tail masses, bins and loss, as for :func:`cfcore.evaluate`.
        replicates, rank_replicates, seed: As for :func:`cfcore.bootstrap`.
    """

    groups: Mapping[str, Sequence[object]] = field(default_factory=dict)
    words: Mapping[str, Mapping[float, str]] = field(default_factory=dict)
    asked: Asked = field(default_factory=dict)
    replicates: int = 1000
    rank_replicates: int = 200
    seed: int = 0

    def sampling(self, rows: int, patient: Sequence | None) -> Resampling:
        """How patients are drawn."""
        return check_resampling(rows, patient, **self.drawn())

    def drawn(self) -> dict[str, int]:
        """The options that say how often patients are drawn."""
        return {name: getattr(self, name) for name in ("replicates", "rank_replicates", "seed")}


def judge(
    findings: Mapping[str, object],
    given: Mapping[str, Predictions],
    question: Question | None = None,
) -> dict[str, object]:
    """Findings with what there is to say of predictors, and what to conclude.

    Args:
        findings: What was asked, and what is known of the generator.
        given: Predictions by ``name:label``, all of the same rows.
        question: Groups, words and options.
    """
    question, found, pairs = question or Question(), {}, []
    for name, one in given.items():
        grid = {} if one.draws else one.grid
        sampling = question.sampling(len(one), one.patient)
        found[name] = score_findings(one.scores, sampling, question, grid, int(one.draws))
    for (first, one), (second, other) in combinations(given.items(), 2):
        (a, label), (b, same) = _named(first, one), _named(second, other)
        if label == same:
            frame = one.compare(other, **question.asked, **question.drawn())
            pairs.append({"label": label, "first": a, "second": b, "metrics": records(frame)})
    return concluded(findings, found, pairs)


def _named(key: str, given: Predictions) -> tuple[str, str]:
    """The names of a predictor and of its label, in which there may be a colon."""
    known = tuple(given.provenance.get(name) for name in ("predictor", "label"))
    return key.partition(":")[::2] if None in known else known


def judge_scores(
    title: str,
    scores: Mapping[str, Scores],
    patient: Sequence | None,
    question: Question,
    grids: Mapping[str, Mapping[str, Tensor]],
) -> dict[str, object]:
    """Findings about scores by label, of which no more is known than perhaps their worlds."""
    (rows, worlds), grid = next(iter(scores.values())).cf.shape, next(iter(grids.values()), {})
    sampling, found, nuisances = question.sampling(rows, patient), {}, {}
    for name, one in scores.items():
        found[name or "the score"] = score_findings(one, sampling, question, grids.get(name))
    for name, values in grid.items():
        levels = values.double().unique().tolist()
        nuisances[name] = {"values": levels, "words": [f"{v:g}" for v in levels], "unit": ""}
    set_to = [values.double().tolist() for values in grid.values()]
    asked = {"title": title, "rows": rows, "patients": sampling.patients, "nuisances": nuisances}
    q = next(iter(scores.values())).q
    q = "uniform" if len(q.unique()) == 1 else q.tolist()
    asked |= {"q": q, "worlds": [[own[k] for own in set_to] for k in range(worlds)]}
    asked |= {"labels": list(found), "predictors": ["as given"], "generator": "unknown"}
    asked |= {"effect": "unknown", "threshold": question.asked.get("threshold", 0.5)}
    return concluded({"asked": asked, "generator": None}, found, [])


def concluded(
    findings: Mapping[str, object], found: Mapping, pairs: Sequence[Mapping]
) -> dict[str, object]:
    """Findings in their order, with conclusions."""
    import cfcore

    rules = RULES | findings["asked"].get("rules", {})
    given = {"schema": _SCHEMA, "asked": {**findings["asked"], "rules": rules}}
    given |= {"generator": findings["generator"], "predictors": found, "comparisons": list(pairs)}
    given["conclusions"] = conclude(given)
    own = _ASSUMED if given["generator"] else _ASSUMED[1:]  # scores say nothing of a graph
    given["assumptions"] = [*findings.get("assumptions", ()), *own]
    made = {"cfcore": cfcore.__version__}
    return given | {"provenance": made | findings.get("provenance", {})}


def score_findings(
    scores: Scores,
    sampling: Resampling,
    question: Question,
    grid: Mapping[str, Tensor] | None = None,
    correction: int = 0,
) -> dict[str, object]:
    """All that a report says of scores; without a grid, nothing by attribute."""
    options = labelled(check_options(**question.asked, correction=correction), scores)
    if options.metrics:  # verdicts are about these
        options = replace(options, metrics=[*dict.fromkeys((*options.metrics, "S_var", "S_flip"))])
    few = [name for name in _SUBGROUP if scores.y is not None or name.startswith("S_")]
    subgroups = []
    for column, values in question.groups.items():
        frame = bootstrap_scores(scores, replace(options, metrics=few), sampling, values)
        subgroups += [{"column": column} | row for row in records(frame)]
    metrics = records(bootstrap_scores(scores, options, sampling))
    p_obs, p = (s.double().sigmoid() if scores.logits else s for s in (scores.obs, scores.cf))
    scores = replace(scores, obs=p_obs.double(), cf=p.double(), logits=False)
    return {
        "rows": len(scores.obs),
        "positive": None if scores.y is None else int((scores.y == 1).sum()),
        "metrics": metrics,
        "attributes": _attributes(scores, grid, sampling) if grid else [],
        "curves": _curves(scores, grid, sampling, question.words) if grid else [],
        "flips": _flips(scores, options.threshold, sampling, question.groups),
        "calibration": _calibration(scores, options.bins),
        "subgroups": subgroups,
    }


def _attributes(
    scores: Scores, grid: Mapping[str, Tensor], sampling: Resampling
) -> list[dict[str, object]]:
    """The part of the variance over worlds that each attribute alone causes."""
    parts = {n: attribute_variance.by_patient(scores.cf, scores.q, v) for n, v in grid.items()}
    frame = mean_intervals(parts, sampling, scores.weight)
    return [{"attribute": row.pop("name")} | row for row in records(frame)]


def _curves(
    scores: Scores,
    grid: Mapping[str, Tensor],
    sampling: Resampling,
    words: Mapping[str, Mapping[float, str]],
) -> list[dict[str, object]]:
    """The mean score where each attribute has each value, the others averaged out under q."""
    found = []
    for name, values in grid.items():
        parts = {}
        for level in values.unique().tolist():
            q = scores.q.double() * (values == level)
            if q.any():  # a value that q never takes has no mean
                parts[level] = marginal_prediction(scores.cf, q / q.sum())
        for row in records(mean_intervals(parts, sampling, scores.weight)):
            level = row.pop("name")
            said = words.get(name, {}).get(level, f"{level:g}")
            found.append({"attribute": name, "value": level, "words": said} | row)
    return found


def _flips(
    scores: Scores, threshold: float, sampling: Resampling, groups: Mapping[str, Sequence[object]]
) -> list[dict[str, object]]:
    """The share of decisions that flip, which way, of everyone and in every group."""
    flips = flip_rate.by_patient(scores.obs, scores.cf, scores.q, threshold).cpu()
    positive, members = scores.obs.cpu() > threshold, {("", "everyone"): torch.ones_like(flips)}
    for value in () if scores.y is None else scores.y.unique().tolist():
        known = ("negative", "positive")[int(value)]
        members["true label", known] = (scores.y.cpu() == value).to(flips)
    for column, values in groups.items():
        for group, rows in check_groups(values, len(flips), column).items():
            members[column, group] = torch.zeros_like(flips).index_fill(0, rows, 1.0)
    ways = {"": flips, "up": flips * ~positive, "down": flips * positive}
    weight = 1 if scores.weight is None else scores.weight.cpu()
    often = torch.stack([own * weight for own in members.values() for _ in ways], dim=1)
    parts = {(*who, way): each for who in members for way, each in ways.items()}
    rows = iter(records(mean_intervals(parts, sampling, often).drop(columns="name")))
    found = []
    for (column, group), own in members.items():
        every, up, down = islice(rows, 3)
        own = {"by": column, "group": group, "rows": int(own.sum())} | every
        found.append(own | {"up": up, "down": down})
    return found


def _calibration(scores: Scores, bins: int) -> list[dict[str, object]]:
    """For every bin that is not empty: its rows, their mean score, the share that is positive."""
    if scores.y is None:
        return []
    found, y = [], scores.y.double()
    often = torch.ones_like(y) if scores.weight is None else scores.weight
    p_bar = marginal_prediction(scores.cf, scores.q)
    for of, p in (("orig", scores.obs), ("marg", p_bar)):
        index = bin_index(p, bins)
        for i in index[often > 0].unique().tolist():
            own, total = index == i, often[index == i].sum()
            score, frequency = (((part * often)[own].sum() / total).item() for part in (p, y))
            row = {"of": of, "bin": i, "rows": int(own.sum())}
            found.append(row | {"score": score, "frequency": frequency})
    return found
