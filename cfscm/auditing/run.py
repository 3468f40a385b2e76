"""An audit by a plan: from images to findings, in stages that are not done twice."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cfcore.checks import InputError
from cfcore.files import check_writable, write_atomically
from cfcore.fingerprint import fingerprint
from cfcore.marginalise import marginalise
from cfcore.patients import Patients
from cfcore.predictions import Predictions
from cfcore.report.findings import Question, concluded, judge
from cfcore.report.page import write_report
from cfscm.auditing import findings as told
from cfscm.auditing import readers as reading
from cfscm.auditing.plan import IMAGE, AuditPlan, read_plan
from cfscm.learning import learn, untrained
from cfscm.networks import ImageNetwork

_LATE = ("title", "threshold", "subgroups", "pictures", "replicates")  # change no stage before
_APART = 6_000  # training rows that are enough for readers and generator, each with its own
_JUDGED, _SKILLED = 600, 5_000  # rows on which a generator is judged, and readers are
_Say = Callable[[str], None]


def audit(
    plan: AuditPlan | Path | str | Mapping[str, Any], out: Path | str, *, say: _Say | None = None
) -> dict[str, Any]:
    """Do what a plan says, or go on with it, and write the findings.

    Args:
        plan: The plan, its file, or what would be in the file.
        out: The folder of the findings: a new one, or one of the same plan, in which finished
            stages are found again.
        say: Told what is done; by default lines on stderr.

    Returns:
        The findings, as ``report.json`` has them.

    Raises:
        InputError: If the plan cannot be used, before anything is written.
    """
    say, minutes = say or _tell, {}
    plan = plan if isinstance(plan, AuditPlan) else read_plan(plan)
    folder, lines = _claim(plan, Path(out)), describe(plan)
    for line in lines:
        say(line)
    with _timed(minutes, "generator"):
        generator, trained = _generator(plan, folder, say)
    with _timed(minutes, "readers"):
        rows = _rows(plan)[1]
        how = {"seed": plan.get("seed"), "made_of": _made_of(plan, rows), "progress": _shown()}
        own = plan.variables, plan.data.take(rows), folder
        readers = reading.train_readers(*own, **how, say=say)
    audited = plan.data.take(plan.audited)
    with _timed(minutes, "worlds"):
        say(f"worlds: {len(audited)} rows x {len(plan.grid)}, each decoded once for all predictors")
        how = {"labels": plan.outputs, "effect": plan.get("effect"), "progress": _shown()}
        how["resume_dir"] = folder / "shards"
        found = marginalise(generator, plan.predictors, audited, plan.grid, **how)
    found = {f"{p.provenance['predictor']}:{p.provenance['label']}": p for p in found.values()}
    with _timed(minutes, "trust"):
        say("trust: what the readers see in the counterfactuals")
        trust = _trust(plan, generator, readers, audited, found) | {"trained": trained}
        if plan.get("pictures") == "local":
            trust["pictures"] = list(told.pictures(plan, generator, audited, found))
    findings = {"schema": 1, "asked": told.what_was_asked(plan, audited), "generator": trust}
    findings |= {"predictors": {}, "comparisons": [], "conclusions": []}
    findings["assumptions"] = list(told.assumptions(plan, trust["support"], found))
    if len(_rows(plan)[0]) == len(rows) and plan.budget:
        few = "Readers and generator learnt from the same patients: there are few."
        findings["assumptions"].append(few)
    findings["provenance"] = told.provenance(plan, minutes)
    for number, own in enumerate(found.values()):
        own.save(folder / f"predictions-{number}.safetensors")
    findings = _reported(plan, told.plain(findings), found, audited, folder)
    say(f"written: {folder}")
    return findings


def _reported(
    plan: AuditPlan,
    findings: dict[str, Any],
    found: Mapping[str, Predictions],
    audited: Patients,
    folder: Path,
) -> dict[str, Any]:
    """The findings with what there is to say of the predictors, written as a report."""
    columns, seed = told.groups(plan, audited), plan.get("seed")
    groups = {name: columns[name].tolist() for name in columns}
    words = {
        name: dict(zip(own["values"], own["words"], strict=True))
        for name, own in findings["asked"]["nuisances"].items()
    }
    judged, pairs = {}, []
    for label in plan.data.labels:
        asked = {"threshold": plan.threshold(label)}
        question = Question(groups, words, asked, plan.get("replicates"), seed=seed)
        own = {key: p for key, p in found.items() if p.provenance["label"] == label}
        part = judge(findings, own, question) if own else {"predictors": {}, "comparisons": []}
        judged, pairs = judged | part["predictors"], pairs + part["comparisons"]
    findings = told.plain(concluded(findings, judged, pairs))
    write_report(findings, folder)
    return findings


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _shown() -> bool:
    """Whether somebody looks at progress bars."""
    return sys.stderr.isatty()


@contextmanager
def _timed(minutes: dict[str, float], stage: str) -> Iterator[None]:
    begin = time.monotonic()
    yield
    minutes[stage] = round((time.monotonic() - begin) / 60, 3)


def _claim(plan: AuditPlan, out: Path) -> Path:
    """The folder, marked as that of the plan; one of anything else is refused."""
    mark, mine = out / "audit.json", {k: v for k, v in plan.given.items() if k not in _LATE}
    mine |= {f"the file of {key}": digest for key, digest in plan.digests.items()}
    mine = json.loads(json.dumps(mine, default=str))
    if mark.exists():
        try:
            theirs = dict(json.loads(mark.read_bytes()))
        except (ValueError, TypeError):
            raise InputError(f"{mark}: the file is damaged; choose another folder") from None
        changed = [key for key in {**theirs, **mine} if theirs.get(key) != mine.get(key)]
        if changed:
            words = f"{', '.join(changed)} {'differ' if len(changed) > 1 else 'differs'}"
            raise InputError(f"{out}: is of another plan ({words}); choose another folder")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: is not empty and not of an audit; choose a new folder")
    else:
        check_writable(out, 2**20)
        write_atomically(mark, json.dumps(mine, indent=1).encode())
    return out


def _rows(plan: AuditPlan) -> tuple[np.ndarray, np.ndarray]:
    """The rows that train the generator and those that train readers: apart if there are enough."""
    if not plan.budget or len(plan.train) < _APART:
        return plan.train, plan.train
    who = np.array(plan.data.patient)[plan.train]
    known = np.random.default_rng(plan.get("seed") + 1).permutation(np.unique(who))
    own = np.isin(who, known[: len(known) // 3])
    return plan.train[~own], plan.train[own]


def _made_of(plan: AuditPlan, rows: np.ndarray) -> str:
    data = plan.data.take(rows)
    facts = [data.parents, data.labels, data.patient, repr(plan.graph), plan.get("seed")]
    return fingerprint(facts, data.fingerprint(), dict(plan.budget))


def _generator(plan: AuditPlan, folder: Path, say: _Say) -> tuple[object, dict[str, float] | None]:
    """The generator of a plan, trained if it must be, and how it was trained."""
    if plan.generator is not None:
        return plan.generator, None
    rows, seed = _rows(plan)[0], plan.get("seed")
    target = next((name for name in plan.data.labels if name in plan.data.parents), None)
    model = untrained(plan.graph, IMAGE, plan.data[[0]], target, seed)
    how = {"budget": plan.budget, "seed": seed, "made_of": _made_of(plan, rows)}
    path = folder / "generator.safetensors"
    return learn(model, plan.data.take(rows), path, **how, say=say, progress=_shown())


def train_generator(plan: Path | str, out: Path | str) -> dict[str, float]:
    """Train the generator of a plan and nothing else; see :func:`audit`."""
    plan = read_plan(plan)
    if not plan.budget:
        raise InputError(f"{plan.place}, generator: there is nothing to train; say train: ...")
    return _generator(plan, _claim(plan, Path(out)), _tell)[1]


def describe(plan: AuditPlan) -> list[str]:
    """What an audit will do and how long that takes, measured on one batch."""
    data, rows, worlds = plan.data, _rows(plan), len(plan.grid)
    others, people = (len({data.patient[i] for i in r}) for r in (plan.train, plan.audited))
    sets = [f"{n} to {', '.join(plan.words(n, x) for x in v)}" for n, v in plan.nuisances.items()]
    judged = "; ".join(f"{name} ({', '.join(labels)})" for name, labels in plan.outputs.items())
    count, some = len(plan.audited), data.take(plan.audited[:16])
    images = count * (worlds + 2)
    images += min(_JUDGED, count) * (2 + sum(map(len, plan.nuisances.values())))
    read = reading.seconds_to_train(plan.variables, len(rows[1]), some[range(len(some))]) / 60
    trains = f"{len(plan.train)} rows of {others} others train"
    if left := len(data) - count - len(plan.train):
        trains += f"; {left} rows are not used"
    lines = [f"{plan.place}: can be used; images {tuple(data[[0]].shape[1:])}"]
    lines += [f"audits {count} rows of {people} patients; {trains}"]
    lines += [f"sets {'; '.join(sets)}: {worlds} worlds", f"predictors: {judged}"]
    if plan.budget:
        words = ", ".join(f"at most {value:g} {key}" for key, value in plan.budget.items())
        lines.append(f"will train a generator: {words}, on {len(rows[0])} rows")
    lines.append(f"will train {len(plan.variables)} readers: about {read:.1f} minutes")
    seconds = images * _seconds_of_an_image(plan, some)
    return [*lines, f"will decode {images} images: about {seconds / 60:.1f} minutes"]


def _seconds_of_an_image(plan: AuditPlan, some: Patients) -> float:
    """How long it takes to decode an image and to show it to all predictors."""
    x, pa, times = some[range(len(some))], some.parents, []
    model = plan.generator or untrained(plan.graph, IMAGE, x[:1], None, 0).eval()
    for _ in range(2):  # the first warms up
        begin = time.perf_counter()
        with torch.inference_mode():
            drawn = model.predict(model.abduct(x, pa, index=some.index), pa)
            for predictor in plan.predictors.values():
                predictor(drawn, pa)
        times.append((time.perf_counter() - begin) / len(x))
    return times[-1]


def _trust(
    plan: AuditPlan,
    generator: object,
    readers: Mapping[str, ImageNetwork],
    audited: Patients,
    found: Mapping[str, Predictions],
) -> dict[str, Any]:
    """What is known of the generator: skill of readers, effectiveness, amplification, and so on."""
    seed, replicates, effect = (plan.get(key) for key in ("seed", "replicates", "effect"))
    order = np.random.default_rng(seed).permutation(len(audited))
    many, few = (audited.take(np.sort(order[:most])) for most in (_SKILLED, _JUDGED))
    judged = reading.judge_images(generator, few, plan.nuisances, readers, effect)
    given = judged, few, plan.variables, reading.Resampled(few.patient, replicates, seed)
    shown = [
        {**entry, "words": plan.words(entry["variable"], entry["value"])}
        for entry in reading.effectiveness(*given)
    ]
    floors = {
        key: own.floor(threshold=plan.threshold(own.provenance["label"]))
        for key, own in found.items()
    }
    composed = reading.composition(judged) | {
        "D_abs_null": {key: floor["D_abs"] for key, floor in floors.items()},
        "D_abs_decoded": {key: floor.get("D_abs_decoded") for key, floor in floors.items()},
        "by_construction": all(floor["by_construction"] for floor in floors.values()),
    }
    return {
        "name": told.generator_words(plan), "trained": None,
        "readers": reading.skills(readers, many, replicates, seed),
        "effectiveness": shown, "amplification": reading.amplification(*given),
        "composition": composed, "support": told.support(plan, audited),
        "standardisation": None, "pictures": [],
    }  # fmt: skip
