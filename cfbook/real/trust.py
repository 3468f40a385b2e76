"""Can the generator be trusted on real radiographs? By readers, support and standardisation."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from cfbook.real.drawing import generator, mean_shift, scores_in_worlds, worlds_of
from cfbook.real.planted import LABEL, network_of
from cfbook.real.work import FOLDS, Work
from cfchest.data.dataset import FINDINGS
from cfchest.graph import VIEWS
from cfcore import check_generator
from cfcore.generator import Generator
from cfcore.graph import Variable
from cfcore.patients import Patients
from cfcore.resampling import Resampling, check_resampling
from cfscm.auditing import readers as reading
from cfscm.learning import in_memory
from cfscm.networks import ImageNetwork
from cfscm.soundness.baselines import Identity
from cfscm.soundness.support import support_table

_SET = {"sex": (0, 1), "view": (0, 1), "age": (35, 65), LABEL: (0, 1)}
"""What is set when readers judge: one variable at a time, all others as they are."""


def readable(work: Work) -> list[str]:
    """What gets a reader: parents, and findings with enough images to learn from and to test."""
    table, fewest = work.data.table, work.sizes.fewest
    rows = [table.loc[work.rows[part].index] for part in ("fit", "test")]
    many = [name for name in FINDINGS if all(part[name].sum() >= fewest for part in rows)]
    return list(dict.fromkeys((*VIEWS.parents("image"), *many)))


def reader(work: Work, name: str) -> ImageNetwork:
    """A reader of one variable, trained on the training patients with a seed of its own.

    It shares its patients with the generator and the predictors, and nothing else.
    """
    variable = VIEWS[name] if name in VIEWS else Variable(name, "binary")
    path = work.made / "readers" / f"{name}.safetensors"
    labels = (LABEL,) if name in VIEWS else (LABEL, name)
    parts = work.part("fit", labels=labels), work.part("stop", labels=labels)
    return network_of(work, path, variable, parts, seed=1000)


def _patients(work: Work) -> tuple[Patients, Resampling]:
    data = work.part("test", labels=tuple(dict.fromkeys((LABEL, *readable(work)[4:]))))
    kept = in_memory(data)
    return kept, check_resampling(len(kept), kept.patient, work.sizes.replicates)


def skill_table(work: Work) -> pd.DataFrame:
    """How well each reader reads the test patients: AUC or R2 with an interval over patients."""
    data, sampling = _patients(work)
    rows = []
    for name in readable(work):
        (said,) = reading.skills({name: reader(work, name)}, data, sampling)
        known = {**data.labels, **data.parents}[name]
        discrete = said["kind"] != "continuous"
        row = {"variable": name, **said["skill"], "images": len(data)}
        row["ill"] = int(known.sum()) if discrete else None
        who = np.array(data.patient)[(known > 0).numpy()]
        row["ill_patients"] = len(set(who)) if discrete else None
        rows.append(row)
    return pd.DataFrame(rows)


def judged(work: Work) -> dict[str, Generator]:
    """The generators that are judged: the one with a flow, the baseline, and doing nothing."""
    flow = generator(work)
    return {"flow": flow, "mean shift": mean_shift(work), "identity": Identity(flow)}


def readings_table(work: Work) -> pd.DataFrame:
    """What readers see in counterfactuals of the test patients, of each generator.

    ``effectiveness`` of a value: the share of images which had another one that are read as having
    it, beside what is read of them before and of real images that have it; of age, the distance in
    years. ``amplification``: how far each reader is moved, in units of the distance between real
    groups.
    """
    data, sampling = _patients(work)
    variables = {name: VIEWS[name] for name in VIEWS.parents("image")}
    readers = {name: reader(work, name) for name in variables}
    rows = []
    for name, made in judged(work).items():
        seen = reading.judge_images(made, data, _SET, readers, "direct", work.device)
        given = *seen, data, variables, sampling
        for axiom, found in (
            ("effectiveness", reading.effectiveness(*given)),
            ("amplification", reading.amplification(*given)),
        ):
            rows += [{"generator": name, "axiom": axiom} | row for row in found]
    return pd.DataFrame(rows)


def support_of_worlds(work: Work) -> pd.DataFrame:
    """How near counterfactuals are to real images of their world, in the features of a reader."""
    data, real = (in_memory(work.part(part)) for part in ("test", "fit"))
    return support_table(
        judged(work), data, real, worlds_of(), reader(work, "view"), device=work.device
    )


def check_table(work: Work) -> pd.DataFrame:
    """Whether standardisation refutes the generator: cell by cell, in the test and in the folds.

    In the folds every image is judged by a generator and predictors that never saw its patient.
    """
    rows = [row for part in ("", *FOLDS) for row in _checked(work, part)]
    return pd.concat(rows, ignore_index=True)


def _checked(work: Work, part: str) -> Iterator[pd.DataFrame]:
    for name, given in scores_in_worlds(work, part).items():
        if name.startswith("basic") or (part and not name.startswith("control")):
            check = check_generator(given, graph=VIEWS)
            about = {"part": part or "test", "predictor": name, "answer": check.answer}
            yield check.cells.assign(**about)


def answers(cells: pd.DataFrame) -> Mapping[tuple[str, str], str]:
    """The answer of each part and predictor."""
    return cells.groupby(["part", "predictor"]).answer.first().to_dict()
