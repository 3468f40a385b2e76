"""Findings of an audit as plain values: what was asked, what it rests on, what it was made of."""

import base64
import hashlib
import io
import json
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cfcore import __version__, check_generator
from cfcore.checks import InputError
from cfcore.generator import counterfactuals
from cfcore.marks import marked
from cfcore.metrics import auc
from cfcore.patients import Patients
from cfcore.predictions import Predictions
from cfcore.report.findings import records
from cfscm.auditing.adapters import on_device
from cfscm.auditing.plan import AuditPlan

_SHOWN = 6  # worlds in a picture
_POOR = 0.6  # AUC of a predictor that may not see what it should
_FEW = 20  # audited rows near a world, below which it is an extrapolation


def what_was_asked(plan: AuditPlan, audited: Patients) -> dict[str, Any]:
    """The question, in the words of the plan."""
    nuisances, q = {}, plan.get("q")
    for name, values in plan.nuisances.items():
        words = [plan.words(name, value) for value in values]
        nuisances[name] = {"values": values, "words": words, "unit": plan.graph[name].units}
    split = "; ".join(f"{key}: {value}" for key, value in plan.given["rows"].items())
    return {
        "title": plan.get("title") or f"Audit by {plan.place}", "rows": len(audited),
        "patients": len(set(audited.patient)), "nuisances": nuisances,
        "q": q if q == "uniform" else plan.grid.q.tolist(),
        "worlds": torch.stack(list(plan.grid.values.values()), dim=1).double().tolist(),
        "labels": list(audited.labels), "predictors": list(plan.predictors),
        "generator": generator_words(plan),
        **{key: plan.get(key) for key in ("effect", "threshold", "replicates")},
        "rules": {key: value for key, value in plan.given.items() if key == "tolerance"},
        "rows_train": len(plan.train), "rows_audited": len(audited), "split": split,
    }  # fmt: skip


def generator_words(plan: AuditPlan) -> str:
    """What the generator is."""
    given = plan.given["generator"]
    return given if isinstance(given, str) else "DeepSCM, trained for this audit"


def groups(plan: AuditPlan, audited: Patients) -> dict[str, list[str]]:
    """What subgroups are made by: each nuisance as recorded, and what else the plan names.

    All in words; a continuous one in thirds. If all rows are in one group, there is no other.
    """
    made = {}
    for name in dict.fromkeys((*plan.nuisances, *plan.get("subgroups"))):
        values, variable = audited.columns[name], plan.variables.get(name)
        if variable is None:
            made[name] = values.astype(str).tolist()
        elif variable.kind == "continuous":
            a, b = np.quantile(values, [1 / 3, 2 / 3])
            bands = [f"up to {a:.4g}", f"{a:.4g} to {b:.4g}", f"above {b:.4g}"]
            codes = np.searchsorted([a, b], values)
            made[name] = pd.Categorical.from_codes(codes, bands)
        else:
            made[name] = [plan.words(name, value) for value in values]
    return {name: own for name, own in made.items() if len(set(own)) > 1}


def support(plan: AuditPlan, audited: Patients) -> list[dict[str, Any]]:
    """How many audited rows are near each world, and how many of them have each label."""
    near, found = plan.grid.near(audited.parents).numpy(), []
    for world in range(len(plan.grid)):
        own, labels = near == world, {}
        for name, y in audited.labels.items():
            labels[name] = np.bincount(y.numpy()[own].astype(int), minlength=2).tolist()
        found.append({"world": world, "rows": int(own.sum()), "rows_by_label": labels})
    return found


def standardised(plan: AuditPlan, found: Mapping[str, Predictions]) -> dict[str, dict[str, Any]]:
    """Whether the audited patients refute the generator, by ``predictor:label``; or why not known.

    The verdict of a cell holds for all cells of a predictor together.
    """
    made = {}
    for key, own in found.items():
        try:
            check = check_generator(own, graph=plan.graph)
        except (InputError, ModuleNotFoundError) as error:
            if getattr(error, "name", "sklearn") != "sklearn":
                raise
            made[key] = {"answer": "not made", "why": str(error), "cells": [], "bounds": []}
            continue
        cells = check.cells.assign(refuted=check.cells.index.isin(check.far.index))
        cells = records(cells.drop(columns=[*plan.nuisances]))
        for i, cell in enumerate(cells):
            cell["world"] = i % len(plan.grid)
            cell["words"] = _words_of(plan, cell, own.provenance["label"])
        bounds = records(check.bounds.rename(columns={"metric": "of", "low": "least"}))
        made[key] = {"answer": check.answer, "why": None, "cells": cells, "bounds": bounds}
    return made


def _words_of(plan: AuditPlan, cell: Mapping[str, Any], label: str) -> str:
    """What a cell is called: the values of its world, and whom of its patients it is about."""
    values = {name: own[cell["world"]].item() for name, own in plan.grid.values.items()}
    words = [plan.words(name, value) for name, value in values.items()]
    whom = [] if cell["y"] is None else [f"{'with' if cell['y'] else 'without'} {label}"]
    return ", ".join(words + whom)


def assumptions(
    plan: AuditPlan, near: list[dict[str, Any]], found: Mapping[str, Predictions]
) -> Iterator[str]:
    """What the findings of this plan rest on, beside what those of every plan do."""
    arrows = "; ".join(f"{n} <- {', '.join(c)}" for n, c in plan.graph.edges.items() if c)
    yield f"Nothing outside the graph ({arrows}) causes two of its variables."
    yield "The table records all of them, and the labels, correctly."
    if plan.get("effect") == "total":
        yield "The effect is total: what a nuisance causes follows it, unless it is a label."
    for name in plan.data.labels:
        if name not in plan.data.parents:
            yield f"{name} is no parent of the image: the generator may change it with a nuisance."
    if "patient" not in plan.given:
        yield "Every row is a patient of its own: the plan names no column of patients."
    models = "the predictors" if plan.budget else "the predictors, or the generator,"
    yield f"No audited patient was among those on whom {models} were trained."
    if plan.budget and len(plan.learners[0]) == len(plan.learners[1]):
        yield "Readers and generator learnt from the same patients: there are few."
    thin, rows = sum(entry["rows"] < _FEW for entry in near), sum(e["rows"] for e in near)
    if thin:
        few = f"fewer than {_FEW} audited rows near them: extrapolation"
        yield f"{thin} of {len(near)} worlds have {few}."
    known = groups(plan, plan.data.take(plan.audited))
    for name in dict.fromkeys((*plan.nuisances, *plan.get("subgroups"))):
        if name not in known:
            yield f"The audited rows are all in one group by {name}: it makes no subgroups."
    if rows < len(plan.audited):
        yield f"{len(plan.audited) - rows} audited rows are near no world."
    for key, own in found.items():
        threshold = plan.threshold(own.provenance["label"])
        above = (own.logit_obs.sigmoid() > threshold).unique().tolist()
        if len(above) == 1:
            which = "every" if above[0] else "no"
            yield f"{key}: {which} observed score is above {threshold:g}, so flips say little."
        area = auc(own.logit_obs, own.y).item()
        if area < _POOR:
            asked = "did it get the input that it was trained with, as the plan says?"
            yield f"{key}: its AUC on the audited images is only {area:.2f}; {asked}"


def provenance(plan: AuditPlan, minutes: Mapping[str, float]) -> dict[str, Any]:
    """What the findings were made of, and by what."""
    text = json.dumps(plan.given, sort_keys=True, default=str)
    return {
        "cfcore": __version__, "python": platform.python_version(), "torch": torch.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "plan_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "table_sha256": plan.digests["table"],
        "predictors": {name: plan.digests[f"predictors.{name}"] for name in plan.predictors},
        "generator": plan.digests.get("generator", "trained for this audit"),
        "seed": plan.get("seed"), "minutes": dict(minutes), **marked(plan.data.restricted),
    }  # fmt: skip


def pictures(
    plan: AuditPlan, generator: object, audited: Patients, found: Mapping[str, Predictions]
) -> Iterator[dict[str, str]]:
    """The patients whose scores move as usual and most: observed, in worlds, and the difference."""
    moved = torch.stack([own.logit_cf.sigmoid().std(dim=1, correction=0) for own in found.values()])
    order = moved.mean(dim=0).argsort()
    worlds = np.unique(np.linspace(0, len(plan.grid) - 1, _SHOWN).astype(int))
    for kind, row in (("median", order[len(order) // 2].item()), ("worst", order[-1].item())):
        x, pa, index = on_device(audited.take([row]), plan.get("device"))
        held = {n: pa[n] for n in audited.labels if n in pa and plan.get("effect") == "total"}
        how, drawn, names = {"effect": plan.get("effect"), "index": index}, [], []
        for world in worlds:
            do = {n: values[world] for n, values in plan.grid.values.items()}
            names.append(", ".join(f"{n} {plan.words(n, v.item())}" for n, v in do.items()))
            with torch.inference_mode():
                drawn.append(counterfactuals(generator, x, pa, held | do, **how))
        shown = torch.cat((x, *drawn), dim=3)
        gaps = 0.5 + 2 * (shown - x.repeat(1, 1, 1, 1 + len(drawn)))
        title = f"The {kind} patient: observed; {'; '.join(names)}; below, twice the difference"
        png = _png(torch.cat((shown, gaps), dim=2)[0].cpu())
        around = {"columns": ["observed", *names], "rows": ["image", "twice the difference"]}
        yield {"title": title, "alt": title, "png": png, "kind": kind} | around


def _png(x: Tensor) -> str:
    """An image, shape (C, H, W), as PNG in base64."""
    from PIL import Image

    pixels, file = (255 * x.clamp(0, 1)).round().byte().movedim(0, 2).numpy(), io.BytesIO()
    Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()
