"""Can a generator be refuted? What its counterfactuals score, and what observed patients say."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from cfcore import checks
from cfcore.checks import InputError
from cfcore.graph import CausalGraph
from cfcore.metrics.stability import attribute_variance
from cfcore.predictions import Predictions
from cfcore.standardise.estimate import Pool, Standardised, is_number, on_one_core, standardise
from cfcore.standardise.laws import LEAST, MOST, metric_bounds

_EIGHTY = 0.8416  # the normal quantile of a chance of 80 per cent


@dataclass(frozen=True)
class Check:
    """What was found.

    Attributes:
        cells: A row for each world and label ``y``, if there are labels: ``n`` observed
            patients near it and their ``effective`` number; the ``rows`` of the predictions that
            are compared, without those who have no overlap, a share ``left_out``; the mean score
            of the counterfactuals, ``drawn``, and of observed patients, ``known``; their
            ``difference``, its ``error``, and an interval ``low`` to ``high`` that holds for all
            cells together; whether the cell was ``checked``, and the ``smallest`` difference that
            would have been found with a chance of 80 per cent.
        bounds: Between which ends the metrics that join worlds lie, as
            :func:`~cfcore.standardise.laws.metric_bounds` gives them, beside the metrics of the
            counterfactuals, ``drawn``. They add evidence and do not decide the answer.
        level: About how probably a right generator, under a right graph, is not refuted.
    """

    cells: pd.DataFrame
    bounds: pd.DataFrame
    level: float

    @property
    def answer(self) -> str:
        """*refuted*, *not refuted* or *cannot be checked*; never *right*."""
        if not self.cells["checked"].any():
            return "cannot be checked"
        return "refuted" if len(self.far) else "not refuted"

    @property
    def far(self) -> pd.DataFrame:
        """The cells that differ, the farthest first."""
        cells = self.cells[self.cells["checked"]]
        far = cells[(cells["low"] > 0) | (cells["high"] < 0)]
        return far.sort_values("difference", key=lambda each: -each.abs())

    def __str__(self) -> str:
        """The answer in plain words."""
        checked = self.cells[self.cells["checked"]]
        count = f"{len(checked)} of {len(self.cells)} cells"
        if not len(checked):
            few = f"no cell has {LEAST} observed patients near it and as many with overlap"
            return f"cannot be checked: {few}"
        if (most := checked["left_out"].max()) > 0.01:
            count += f" (without up to {most:.0%} of their patients, who have no overlap)"
        if not len(self.far):
            smallest = checked["smallest"]
            ends = f"{smallest.min():.3f} to {smallest.max():.3f}"
            seen = f"A difference of {ends}, by cell, would have been found with a chance of 80 %."
            return f"not refuted: {count} could be checked, and none differs. {seen}"
        worst = self.far.iloc[0]
        names = self.cells.columns[: self.cells.columns.get_loc("left_out")]
        known = [name for name in names if worst[name] is not None]
        where = ", ".join(f"{name} = {worst[name]:g}" for name in known)
        drawn, seen = (f"{worst[name]:.3f}" for name in ("drawn", "known"))
        scores = f"counterfactuals score {drawn}, observed patients {seen}"
        many = f"{len(self.far)} of the {len(checked)} cells that could be checked differ"
        return f"refuted: at {where} {scores}; {many}"


@on_one_core
def check_generator(
    predictions: Predictions,
    observed: pd.DataFrame | None = None,
    *,
    graph: CausalGraph | None = None,
    follows: Collection[str] | None = None,
    width: Mapping[str, float] | None = None,
    level: float = 0.95,
    replicates: int = 2000,
    seed: int = 0,
) -> Check:
    r"""Compare what counterfactuals score with what standardisation says, world by world.

    The mean score of every world, within each label, is estimated from observed patients
    (:func:`~cfcore.standardise.estimate.standardise`). One test over all cells: the largest
    difference in standard errors, against its law under a right generator, by a multiplier
    bootstrap of what each patient contributes, without fitting anything again; limits are those of
    Student's law with the effective number of patients.

    *Refuted* means that generator and graph together disagree with the data. *Not refuted* does
    not mean right: a hidden common cause of attribute and image can hide an error, and what joins
    two worlds of one patient is not tested at all. A cell is checked if at least 50 observed
    patients are near it, in number and in effect, and as many rows are compared with them, which
    are at least half of all.

    Args:
        predictions: Observed and counterfactual logits, with the recorded parents.
        observed: Observed patients in place of the rows of the predictions, from the same place:
            ``logit`` (of the same predictor), the parents, ``y`` if the predictions have it, and
            ``patient``.
        graph: Says what follows the attributes, and which variables are numbers.
        follows: What follows the attributes under a total effect, in place of a graph.
        width: As for :func:`~cfcore.standardise.estimate.standardise`.
        level: How surely a right generator is not refuted.
    """
    checks.check_fraction(level, "level")
    if predictions.draws or predictions.weight is not None:
        raise InputError("predictions on Monte Carlo draws, or with weights, cannot be checked")
    rows, worlds = observed_rows(predictions), _worlds(predictions)
    known = rows if observed is None else _same_columns(observed, rows)
    how = {"follows": _followers(predictions, graph, follows)}
    how["numbers"] = _numbers(graph, rows, known)
    pool = target = Pool.from_frame(rows, list(worlds), **how)
    if observed is not None:
        pool = Pool.from_frame(known, list(worlds), **how)
        _check_codes(pool, target)
    other = {"target": None if observed is None else target, "width": width, "seed": seed}
    logit, drawn = known["logit"].to_numpy(float), predictions.logit_cf.double().sigmoid().numpy()
    scores = standardise(1 / (1 + np.exp(-logit[:, None])), pool, worlds, **other)
    asked = {"level": level, "replicates": replicates, "seed": seed}
    cells = compare_worlds(scores, drawn, (target, pool), worlds, **asked)
    own, q = predictions.logit_obs.double().numpy(), predictions.q.double().numpy()
    more = {} if observed is None else {"target_logit": own}
    ends = metric_bounds(logit, pool, worlds, q, **more, **other)
    said = ends[(ends["low"] != 0) | np.isfinite(ends["high"])].reset_index(drop=True)
    plain = [name for name in said["metric"] if not name.startswith("S_var_")]
    made, p = predictions.evaluate(metrics=plain), torch.from_numpy(drawn)
    for name, values in predictions.grid.items():
        made[f"S_var_{name}"] = attribute_variance(p, predictions.q, values).item()
    return Check(cells, said.assign(drawn=said["metric"].map(made)), level)


def observed_rows(predictions: Predictions) -> pd.DataFrame:
    """What was observed of the rows of predictions: ``logit``, parents, ``y``, ``patient``.

    A parent that is the label itself is left out.
    """
    for name in predictions.parents:
        if name in ("logit", "y", "patient"):
            raise InputError(f"a parent is called {name!r}, which has a meaning of its own")
    frame, same = {"logit": predictions.logit_obs.double().numpy()}, None
    if predictions.y is not None:
        frame["y"], same = _plain(predictions.y.numpy()), _label(predictions)
    known = {name: v for name, v in predictions.parents.items() if name != same}
    frame |= {name: _plain(v.numpy()) for name, v in known.items()}
    if predictions.patient is not None:
        frame["patient"] = np.asarray(predictions.patient)
    return pd.DataFrame(frame)


def _plain(values: np.ndarray) -> np.ndarray:
    """Numbers as a file of predictions has them, so that equal values are equal."""
    return values.astype(np.float32).astype(float) if values.dtype.kind in "fiub" else values


def _label(predictions: Predictions) -> str | None:
    """The name of the label: as recorded, or that of the parent that equals it."""
    if predictions.y is None:
        return None
    same = [n for n, v in predictions.parents.items() if v.double().equal(predictions.y.double())]
    return next(iter(same), predictions.provenance.get("label"))


def _worlds(predictions: Predictions) -> dict[str, np.ndarray]:
    taken = {"y", "left_out", "rows", "n", "effective", "drawn", "known", "error", "difference"}
    for name in predictions.grid:
        if name in taken:
            raise InputError(f"worlds set {name!r}, which is a column of the answer: rename it")
        if name not in predictions.parents:
            raise InputError(f"the recorded parents lack {name!r}, which worlds set")
    return {name: _plain(values.numpy()) for name, values in predictions.grid.items()}


def _numbers(graph: CausalGraph | None, *tables: pd.DataFrame) -> set[str]:
    """Which columns are numbers: as the graph says, or with many values in one of the tables."""
    names = tables[0].columns.difference(["logit", "patient", "y"])
    known = [name for name in names if graph is not None and name in graph]
    found = {name for name in known if graph[name].kind == "continuous"}
    many = (n for n in names if any(is_number(table[n].to_numpy()) for table in tables))
    return found | (set(many) - set(known))


def _check_codes(pool: Pool, target: Pool) -> None:
    """Refuse categories that are coded otherwise in the two tables."""
    for name, values in target.columns.items():
        own = pool.columns[name]
        if name not in pool.numbers and np.isin(values, own).mean() < 0.5:
            mine, theirs = (", ".join(map(str, np.unique(v)[:5])) for v in (values, own))
            problem = f"is {mine} in the predictions and {theirs} among the observed"
            raise InputError(f"{problem}: use the same codes", column=name)


def _followers(
    predictions: Predictions, graph: CausalGraph | None, follows: Collection[str] | None
) -> Collection[str]:
    """What is not held: what follows the attributes under a total effect."""
    label = _label(predictions)
    if follows is None and predictions.provenance.get("effect") == "total":
        if graph is None or (label is not None and label not in graph):
            what = "a graph that has the label" if graph is not None else "the graph"
            problem = f"these are total effects: pass {what}, or what follows the attributes"
            raise InputError(problem)
        later = set(graph.descendants(*predictions.grid)) - {*predictions.grid, label}
        follows = [name for name in predictions.parents if name in later]
    for name in follows or ():
        if graph is not None and name in graph and label in graph.descendants(name):
            problem = f"the label {label} follows {name}, which follows what worlds set"
            raise InputError(f"{problem}: this total effect is not identified by standardisation")
    return follows or ()


def _same_columns(observed: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The columns of the predictions' own rows, whatever else the table has, checked."""
    wanted = [name for name in rows if name != "patient"]
    for name in wanted:
        if name not in observed:
            found = ", ".join(map(str, observed.columns[:8]))
            raise InputError(f"there is no column {name} among the observed (found: {found})")
        if observed[name].dtype.kind not in "fiub":
            raise InputError("holds text, not numbers as the predictions do", column=name)
    known = observed[wanted].reset_index(drop=True).apply(lambda each: _plain(each.to_numpy()))
    logit = torch.tensor(observed["logit"].to_numpy(float))
    checks.check_logits(logit, "logit")
    checks.warn_of_probabilities(logit, name="logit of the observed")
    if "y" in known:
        checks.check_labels(torch.tensor(known["y"].to_numpy()))
    others = [f"observed {number}" for number in range(len(observed))]
    known["logit"] = logit.numpy()
    return known.assign(patient=observed["patient"].to_numpy() if "patient" in observed else others)


def compare_worlds(
    known: Standardised,
    drawn: np.ndarray,
    rows: tuple[Pool, Pool],
    worlds: Mapping[str, np.ndarray],
    *,
    level: float = 0.95,
    replicates: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """The cells of a :class:`Check`, from standardised scores, of which F = 1, and counterfactual
    ones of the population, shape (M, K); ``rows`` are the population and the observed patients.
    """
    from scipy import special

    frames, moved, drawn = [], [], drawn[:, :, None]
    for label, here, part in known.by_label(*rows):
        frame = pd.DataFrame(worlds).assign(y=label, left_out=part.scarce)
        part, own = part.trimmed(), drawn[here]
        frame["rows"], frame["n"] = part.counts.sum(axis=0), part.near
        frame["effective"] = part.effective
        frame["drawn"], frame["known"] = part.mean(own)[:, 0], part.estimate[:, 0]
        frames.append(frame.assign(error=part.error(own)[:, 0]))
        moved.append(part.influence(own)[:, :, 0])
    cells, moved = pd.concat(frames, ignore_index=True), np.concatenate(moved, axis=1)
    cells["difference"] = cells["drawn"] - cells["known"]
    fewest = cells[["n", "effective", "rows"]].min(axis=1)
    cells["checked"] = (fewest >= LEAST) & (cells["left_out"] <= MOST)
    limit = _limit(moved[:, cells["checked"]], level, replicates, seed)
    half = special.stdtrit(fewest - 1, special.ndtr(limit)) * cells["error"]
    cells["low"], cells["high"] = cells["difference"] - half, cells["difference"] + half
    return cells.assign(smallest=half + _EIGHTY * cells["error"])


def _limit(moved: np.ndarray, level: float, replicates: int, seed: int) -> float:
    """How many standard errors the largest of all differences has by chance.

    Sums of what patients move, each with a normal multiplier, are normal with a known covariance:
    they are drawn from it, which is the same and faster.
    """
    if not moved.shape[1]:
        return np.nan
    moved = moved / np.maximum(np.sqrt((moved**2).sum(axis=0)), 1e-9)
    values, vectors = np.linalg.eigh(moved.T @ moved)
    normal = np.random.default_rng(seed).standard_normal((replicates, len(values)))
    far = np.abs(normal * np.sqrt(values.clip(0)) @ vectors.T).max(axis=1)
    return max(float(np.quantile(far, level)), 1.0)  # also where nothing varies
