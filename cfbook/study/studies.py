"""The study of a run, which several notebooks and their tests ask for: computed once.

It is found again by everything that it is computed from: the predictions themselves, the options,
and the source of the packages. An edit of any of them computes it anew.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path

from safetensors.numpy import load_file, save

from cfbook.paths import PACKAGES, ROOT
from cfbook.study.presets import check_known
from cfbook.study.runs import PredictorId, Run, predictions
from cfbook.study.statistics import Study, reweighted, study_predictions
from cfcore.files import write_atomically
from cfcore.predictions import Predictions

_FOLDER = ROOT / "_build" / "studies"


def study_run(
    run: Run, *, folder: str | Path | None = None, q: str = "uniform", replicates: int = 1000
) -> Study:
    """Study the predictions of a run, which are read if they are there and computed if not.

    Of the phantom, and in a checkout, the study is kept below what ``make clean`` removes.

    Args:
        folder: Where predictions are looked for first, by default in the data of the project.
        q: ``"uniform"``; ``"empirical"``: each world is weighted by how many patients are nearest
            to it; or ``"supported"``: uniform over the worlds near which are 3 % of the patients
            or more.
    """
    check_known("q", q, ("uniform", "empirical", "supported"))
    given = predictions(run, folder=Path(folder) if folder else None)
    given = given if q == "uniform" else reweighted(given, q)
    if run.preset.folders is not None or not (ROOT / "pyproject.toml").is_file():
        return study_predictions(given, replicates=replicates)
    path = _FOLDER / f"{_identity(given, replicates)}.safetensors"
    if not path.is_file():
        _keep(study_predictions(given, replicates=replicates), path)
    return _read(path)


def _identity(given: Mapping[PredictorId, Predictions], replicates: int) -> str:
    """A hash of predictions, of the option, and of what computes with them."""
    found = hashlib.sha256(f"{replicates} {_sources()}".encode())
    for member, p in given.items():
        columns = {"obs": p.logit_obs, "null": p.logit_null, "cf": p.logit_cf, "y": p.y, "q": p.q}
        columns |= {f"grid {n}": v for n, v in p.grid.items()} | dict(p.parents)
        known = {name: values for name, values in columns.items() if values is not None}
        found.update(f"{member}{p.patient}{p.draws}{list(known)}".encode())
        for values in known.values():
            found.update(f"{values.dtype}{values.shape}".encode())
            found.update(values.contiguous().numpy().tobytes())
    return found.hexdigest()[:32]


@cache
def _sources() -> str:
    """A hash of the packages, and of the versions that they are used with."""
    files = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    texts = [path.read_bytes() for path in (*files, ROOT / "requirements.lock")]
    return hashlib.sha256(b"".join(texts)).hexdigest()


def _keep(study: Study, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "members": [asdict(member) for member in study.members],
        "patients": study.patients,
        "worlds": study.worlds,
    }
    write_atomically(path.with_suffix(".json"), json.dumps(about).encode())
    write_atomically(path, save(dict(study.values)))  # the last: who finds it finds both


def _read(path: Path) -> Study:
    about = json.loads(path.with_suffix(".json").read_text())
    members = tuple(PredictorId(**one) for one in about.pop("members"))
    return Study(members, load_file(path), **about)
