"""What a report says of predictors, as plain values: the numbers, their intervals, the verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from cfcore import resampling
from cfcore.metrics.calibration import bin_index
from cfcore.metrics.marginal import marginal_prediction
from cfcore.metrics.stability import attribute_variance, flip_rate
from cfcore.metrics.summary import Scores
from cfcore.predictions import Predictions
from cfcore.report.conclusions import RULES, conclude
from cfcore.resampling import Resampling, Sampled

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
_Rows = list[dict[str, object]]
_Groups = Mapping[str, Sequence[object]]
_Words = Mapping[str, Mapping[float, str]]
_SUBGROUP = ("R_orig", "R_IE", "ECE_orig", "S_var", "S_flip", "AUC_orig")


def records(frame: pd.DataFrame) -> _Rows:
    """Rows as JSON values: what is missing becomes None, a doubtful interval is said to be."""
    if "metric" in frame:
        frame = frame.assign(doubtful=frame.metric.isin(frame.attrs.get("doubtful", ())))
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{name: getattr(v, "item", lambda v=v: v)() for name, v in row.items()} for row in rows]


class Subject(NamedTuple):
    """What is judged, as far as it is known: :class:`Predictions` are one, scores make one."""

    scores: Scores
    grid: Mapping[str, Tensor]
    provenance: Mapping[str, object]


@dataclass(frozen=True)
class Question:
    """How findings are made: of which groups, and with which options.

    Attributes:
        groups: Columns of which subgroups are made, a value for each row.
        words: What the values of the nuisance variables are called.
        asked: As for :func:`cfcore.bootstrap`.
        thresholds: Those of labels that have their own.
    """

    groups: _Groups = field(default_factory=dict)
    words: _Words = field(default_factory=dict)
    asked: Sampled = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def of(self, label: str) -> Sampled:
        """The options for a label."""
        own = {"threshold": self.thresholds[label]} if label in self.thresholds else {}
        return self.asked | own


def judge(
    findings: Mapping[str, object], given: Mapping[str, Predictions | Subject], question: Question
) -> dict[str, object]:
    """Findings with what there is to say of predictors, and what to conclude.

    At first they say what was asked, and what is known of the generator. Predictors are given by
    ``name:label``, all of the same rows.
    """
    import cfcore

    found, pairs = {}, []
    called = {key: _named(key, one) for key, one in given.items()}
    for key, one in given.items():
        found[key] = score_findings(one, question, question.of(called[key][1]))
    for first, second in combinations(given, 2):
        (a, label), (b, same) = called[first], called[second]
        if label == same:
            pair = {"": given[first].scores}, {"": given[second].scores}
            frame = resampling.compare_all(*pair, question.of(label))
            pairs.append({"label": label, "first": a, "second": b, "metrics": records(frame)})
    rules = RULES | findings["asked"].get("rules", {})
    made = {"schema": _SCHEMA, "asked": {**findings["asked"], "rules": rules}}
    made |= {"generator": findings["generator"], "predictors": found, "comparisons": pairs}
    made["conclusions"] = conclude(made)
    own = _ASSUMED if made["generator"] else _ASSUMED[1:]  # scores say nothing of a graph
    made["assumptions"] = [*findings.get("assumptions", ()), *own]
    facts = {"cfcore": cfcore.__version__} | findings.get("provenance", {})
    return made | {"provenance": facts}


def _named(key: str, given: Predictions | Subject) -> tuple[str, str]:
    """The names of a predictor and of its label, in which there may be a colon."""
    known = tuple(given.provenance.get(name) for name in ("predictor", "label"))
    return key.partition(":")[::2] if None in known else known


def score_findings(
    given: Predictions | Subject, question: Question, asked: Sampled
) -> dict[str, object]:
    """All that a report says of scores; without a common grid, nothing by attribute."""
    scores, grid = given.scores, given.grid
    options, sampling = resampling.prepare({"": scores}, asked)
    if options.metrics:  # verdicts are about these
        options = replace(options, metrics=[*dict.fromkeys((*options.metrics, "S_var", "S_flip"))])
    few = [name for name in _SUBGROUP if scores.y is not None or name.startswith("S_")]
    subgroups = []
    for column, values in question.groups.items():
        frame = resampling.bootstrap_scores(scores, replace(options, metrics=few), sampling, values)
        subgroups += [{"column": column} | row for row in records(frame)]
    metrics = records(resampling.bootstrap_scores(scores, options, sampling))
    shared = grid and not scores.draws
    p_obs, p = (s.double().sigmoid() if scores.logits else s for s in (scores.obs, scores.cf))
    scores = replace(scores, obs=p_obs.double(), cf=p.double(), logits=False)
    return {
        "rows": len(scores.obs),
        "positive": None if scores.y is None else int((scores.y == 1).sum()),
        "metrics": metrics,
        "attributes": _attributes(scores, grid, sampling) if shared else [],
        "curves": _curves(scores, grid, sampling, question.words) if shared else [],
        "flips": _flips(scores, options.threshold, sampling, question.groups),
        "calibration": _calibration(scores, options.bins),
        "subgroups": subgroups,
    }


def _attributes(scores: Scores, grid: Mapping[str, Tensor], sampling: Resampling) -> _Rows:
    """The part of the variance over worlds that each attribute alone causes."""
    parts = {n: attribute_variance.by_patient(scores.cf, scores.q, v) for n, v in grid.items()}
    frame = resampling.mean_intervals(parts, sampling, scores.weight)
    return records(frame.rename(columns={"name": "attribute"}))


def _curves(
    scores: Scores, grid: Mapping[str, Tensor], sampling: Resampling, words: _Words
) -> _Rows:
    """The mean score where each attribute has each value, the others averaged out under q."""
    found = []
    for name, values in grid.items():
        parts = {}
        for level in values.unique().tolist():
            q = scores.q.double() * (values == level)
            if q.any():  # a value that q never takes has no mean
                parts[level] = marginal_prediction(scores.cf, q / q.sum())
        for row in records(resampling.mean_intervals(parts, sampling, scores.weight)):
            level = row.pop("name")
            said = words.get(name, {}).get(level, f"{level:g}")
            found.append({"attribute": name, "value": level, "words": said} | row)
    return found


def _flips(scores: Scores, threshold: float, sampling: Resampling, groups: _Groups) -> _Rows:
    """The share of decisions that flip, which way, of everyone and in every group."""
    flips = flip_rate.by_patient(scores.obs, scores.cf, scores.q, threshold).cpu()
    positive, members = scores.obs.cpu() > threshold, {("", "everyone"): torch.ones_like(flips)}
    for value in () if scores.y is None else scores.y.unique().tolist():
        known = ("negative", "positive")[int(value)]
        members["true label", known] = (scores.y.cpu() == value).to(flips)
    for column, values in groups.items():
        for group, rows in resampling.check_groups(values, len(flips), column).items():
            members[column, group] = torch.zeros_like(flips).index_fill(0, rows, 1.0)
    ways = {"": flips, "up": flips * ~positive, "down": flips * positive}
    weight = 1 if scores.weight is None else scores.weight.cpu()
    often = torch.stack([own * weight for own in members.values() for _ in ways], dim=1)
    parts = {(*who, way): each for who in members for way, each in ways.items()}
    rows = iter(records(resampling.mean_intervals(parts, sampling, often).drop(columns="name")))
    found = []
    for (column, group), own in members.items():
        every, up, down = islice(rows, 3)
        own = {"by": column, "group": group, "rows": int(own.sum())} | every
        found.append(own | {"up": up, "down": down})
    return found


def _calibration(scores: Scores, bins: int) -> _Rows:
    """For every bin that is not empty: its rows, their mean score, the share that is positive."""
    if scores.y is None:
        return []
    found, y = [], scores.y.double()
    often = torch.ones_like(y) if scores.weight is None else scores.weight
    for of, p in (("orig", scores.obs), ("marg", marginal_prediction(scores.cf, scores.q))):
        index = bin_index(p, bins)
        for i in index[often > 0].unique().tolist():
            own, total = index == i, often[index == i].sum()
            score, frequency = (((part * often)[own].sum() / total).item() for part in (p, y))
            row = {"of": of, "bin": i, "rows": int(own.sum())}
            found.append(row | {"score": score, "frequency": frequency})
    return found
