"""A finished report of ``cfcore audit`` on real radiographs: aggregates only, without a picture."""

import shutil
from pathlib import Path

import yaml

from cfbook.real.drawing import generator
from cfbook.real.planted import LABEL, Planted, predictor, predictor_path
from cfbook.real.work import Work
from cfchest.data.plain import write_plain_table
from cfchest.graph import VIEWS
from cfscm.auditing import audit

_AUDITED = {"without_bias": Planted(), "biased_by_view": Planted("view", 0.8)}
"""The predictors that are audited: the first training of each."""


def audit_report(work: Work) -> Path:
    """The report of two predictors, by a plan as any reader would write it."""
    folder = work.made / "audit"
    report = folder / "report"
    if (report / "report.json").is_file():
        return report
    folder.mkdir(parents=True, exist_ok=True)
    generator(work)
    write_plain_table(work.data, work.archive, folder / "nih.csv")
    for name, planted in _AUDITED.items():
        predictor(work, planted)
        for path in predictor_path(work, planted).parent.glob(f"{planted.name}.*"):
            shutil.copyfile(path, folder / f"{name}{path.suffix}")
    plan = folder / "plan.yml"
    plan.write_text(yaml.safe_dump(_plan(work, folder), sort_keys=False))
    audit(plan, report, say=lambda line: None)
    return report


def _plan(work: Work, folder: Path) -> dict[str, object]:
    variables: dict[str, dict[str, object]] = {}
    for name in VIEWS.parents("image"):
        variable = VIEWS[name]
        variables[name] = {"kind": variable.kind, "parents": list(VIEWS.parents(name))}
        if variable.kind == "continuous":
            variables[name] |= {"range": list(variable.range), "units": variable.units}
        elif name != LABEL:
            variables[name]["categories"] = list(variable.categories)
    weights = work.made / "generators/flow-train/generator.safetensors"
    return {
        "title": "Effusion on NIH ChestX-ray14, first archive",
        "source": "nih",
        "table": "nih.csv",
        "images": str(work.archive.resolve()),
        "image": "image",
        "patient": "patient",
        "graph": variables,
        "labels": [LABEL],
        "nuisances": {"view": "all", "sex": "all"},
        "predictors": {name: f"{name}.safetensors" for name in _AUDITED},
        "generator": str(weights.resolve()),
        "rows": {"train": "split == train"},
        "threshold": 0.1,  # near the prevalence
        "replicates": work.sizes.replicates,
    }
