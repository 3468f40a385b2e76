"""A command for people who have predictions: do observed patients refute the generator?"""

import json as plain
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cfcore.checks import InputError, check_labels, check_probabilities, refuse_rows
from cfcore.files import write_atomically
from cfcore.report.cli import refuse_input

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from cfcore.cells import Cells
    from cfcore.graph import CausalGraph
    from cfcore.predictions import Predictions
    from cfcore.standardise.check import Check

_MEANING = (
    "Refuted means that the generator and the graph together disagree with the data.",
    "Not refuted never means right: a hidden common cause can hide an error, and what joins two "
    "worlds of a patient is not tested.",
)
_SHOWN = {"refuted": 8, "not refuted": 4, "cannot be checked": 20}


def check_generator(
    file: Path,
    *,
    observed: Path | None = None,
    predictor: str | None = None,
    graph: Path | None = None,
    follows: Sequence[str] = (),
    json: Path | None = None,
) -> Iterator[str]:
    """Do observed patients refute the generator behind predictions?

    World by world, the mean score of the counterfactuals is compared with what observed patients
    of that world score, standardised to the same population: see cfcore.check_generator.

    Args:
        file (FILE): Predictions (safetensors) of one or several predictors, with the recorded
            parents.
        observed (TABLE): Observed patients in place of the rows of FILE, from the same place (CSV
            with any separator, parquet, npz): logit or p of the same predictor, a column for each
            parent, y if the predictions have it, and patient.
        predictor (NAME): Only this predictor of FILE.
        graph (YAML): The causal graph: says which variables are numbers, what follows what worlds
            set, and the codes of categories that TABLE spells out.
        follows (NAME): Parents that follow what worlds set, under a total effect, without a graph.
        json (OUT): Also write a JSON file with every cell; null where undefined.
    """
    from cfcore.graph import CausalGraph
    from cfcore.predictions import load_all
    from cfcore.standardise import check

    refuse_input(json, file, observed, graph)
    known = None if graph is None else CausalGraph.from_yaml(graph)
    given = _chosen(load_all(file), file, predictor, observed)
    first = next(iter(given.values()))
    rows = None if observed is None else _rows(observed, first, known)
    against = "its own rows" if rows is None else f"{len(rows)} rows of {observed}"
    lines = [f"{file}: N = {len(first)}, K = {len(first.q)}, against {against}"]
    entries = {}
    for name, one in given.items():
        try:
            made = check.check_generator(one, rows, graph=known, follows=list(follows) or None)
        except InputError as error:
            files = f"{file}" if observed is None else f"{file} and {observed}"
            raise InputError(f"{files}: {error}") from None
        yield from [*lines, "", f"{name}: {made}", *_tables(made)]
        lines = []
        entries[name] = {"answer": made.answer, "text": str(made), "level": made.level}
        for part in ("cells", "bounds"):
            frame = getattr(made, part).replace([math.inf, -math.inf], math.nan).astype(object)
            entries[name][part] = frame.where(frame.notna(), None).to_dict("records")
    yield from ["", *_MEANING]
    if json is not None:
        text = plain.dumps({"predictors": entries}, indent=1, allow_nan=False) + "\n"
        write_atomically(json, text.encode())


def _chosen(
    given: Mapping[str, "Predictions"], file: Path, name: str | None, observed: Path | None
) -> dict[str, "Predictions"]:
    """The predictors to check, by names that can be shown."""
    called = {}
    for key, one in given.items():
        parts = (one.provenance.get(part) for part in ("predictor", "label"))
        called[key or ":".join(str(part) for part in parts if part) or "the score"] = one
    listed = ", ".join(called)
    if name is not None and name not in called:
        raise InputError(f"{file}: there is no predictor {name} (there are: {listed})")
    if name is None and observed is not None and len(called) > 1:
        problem = f"{file}: holds {len(called)} predictors ({listed})"
        raise InputError(f"{problem}; say with --predictor whose scores {observed} has")
    return called if name is None else {name: called[name]}


def _rows(path: Path, like: "Predictions", graph: "CausalGraph | None") -> "pd.DataFrame":
    """Observed patients from a table, every cell of them checked."""
    import pandas as pd
    import torch

    from cfcore.cells import read_cells, read_patients

    cells = read_cells(path)
    score = "p" if "p" in cells.header and "logit" not in cells.header else "logit"
    wanted = [score, *like.parents, *(["y"] if like.y is not None else [])]
    cells.require(*wanted)
    frame = pd.DataFrame({name: _numbers_of(cells, name, graph) for name in wanted})
    values = torch.from_numpy(frame[score].to_numpy(copy=True))
    with cells.blame():
        if score == "p":
            check_probabilities(values, "p")
            certain = (frame["p"] == 0) | (frame["p"] == 1)
            refuse_rows(certain, "a probability of 0 or 1 has no logit", "p")
            frame = frame.drop(columns="p").assign(logit=values.logit().numpy())
        if like.y is not None:
            check_labels(torch.from_numpy(frame["y"].to_numpy(copy=True)))
    who = read_patients(cells)[1]
    return frame if who is None else frame.assign(patient=who)


def _numbers_of(cells: "Cells", name: str, graph: "CausalGraph | None") -> "np.ndarray":
    """A column in which nothing is missing; categories that the graph names become codes."""
    import numpy as np

    from cfcore.graph import as_codes

    known = graph[name].categories if graph is not None and name in graph else ()
    with cells.blame():
        if cells.frame[name].isin(known).any():
            found = as_codes(cells.frame[name].tolist(), name, graph).astype(float)
        else:
            found = cells.numbers(name)
        refuse_rows(~np.isfinite(found), "the value is missing", name)
    return found


def _tables(check: "Check") -> Iterator[str]:
    """The cells that differ, or the farthest, or how many patients are in each; then bounds."""
    cells, columns, count = check.cells, list(check.cells), _SHOWN[check.answer]
    where = [name for name in columns[: columns.index("left_out")] if cells[name].notna().any()]
    if check.answer == "cannot be checked":
        shown = cells[[*where, "n", "effective"]]
    else:
        rows = cells[cells["checked"]].sort_values("difference", key=lambda each: -each.abs())
        rows = check.far if len(check.far) else rows
        shown = rows[[*where, "n", "drawn", "known", "difference", "low", "high"]]
    short = dict.fromkeys([*where, "effective"], "{:.4g}".format)
    yield shown[:count].to_string(index=False, float_format="{:.3f}".format, formatters=short)
    if len(shown) > count:
        yield f"and {len(shown) - count} more"
    if check.answer != "cannot be checked":
        names = {"drawn": "counterfactuals", "low": "at_least", "low_limit": "at_least_95"}
        known = check.bounds[check.bounds["metric"].str.startswith("S_var")]
        known = known[["metric", *names]].rename(columns=names)
        yield known.to_string(index=False, float_format="{:.4f}".format)
