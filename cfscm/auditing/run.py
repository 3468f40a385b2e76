"""An audit by a plan: from images to findings, in stages that are not done twice."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cfcore.checks import InputError
from cfcore.files import check_writable, write_atomically
from cfcore.fingerprint import fingerprint
from cfcore.marginalise import marginalise
from cfcore.marks import check_place, marked
from cfcore.patients import Patients
from cfcore.predictions import Predictions
from cfcore.report.findings import Question, judge
from cfcore.report.page import write_report
from cfcore.resampling import check_resampling
from cfscm.auditing import findings as told
from cfscm.auditing import readers as reading
from cfscm.auditing.adapters import on_device
from cfscm.auditing.plan import IMAGE, AuditPlan, read_plan
from cfscm.learning import learn, untrained
from cfscm.networks import ImageNetwork
from cfscm.weights import plain

_LATE = ("title", "threshold", "tolerance", "subgroups", "pictures", "replicates", "device")
"""Keys of a plan that change no stage that is kept."""
_JUDGED, _SKILLED = 600, 5_000  # rows on which a generator is judged, and readers are
_Say = Callable[[str], None]


def audit(
    plan: AuditPlan | Path | str | Mapping[str, Any], out: Path | str, *, say: _Say | None = None
) -> dict[str, Any]:
    """Do what a plan says, or go on with it, and write the report.

    From the shell it is ``cfcore audit PLAN.yml --out DIR``.

    Args:
        plan: The plan, its file, or what would be in the file.
        out: The folder of the report: a new one, or one of the same plan, in which finished
            stages are found again.
        say: Told what is done; by default lines on stderr.

    Returns:
        The findings, as ``report.json`` has them.

    Raises:
        InputError: If the plan cannot be used, before anything is written.
    """
    plan = plan if isinstance(plan, AuditPlan) else read_plan(plan)
    work = _Work(plan, _claim(plan, Path(out)), say or _tell)
    for line in describe(plan):
        work.say(line)
    with work.timed("generator"):
        generator, trained = work.generator()
    with work.timed("readers"):
        readers = work.readers()
    with work.timed("worlds"):
        found = work.worlds(generator)
    with work.timed("trust"):
        trust = work.trust(generator, readers, found) | {"trained": trained}
    return work.report(trust, found)


def train_generator(plan: Path | str, out: Path | str) -> dict[str, float]:
    """Train the generator of a plan and nothing else; see :func:`audit`.

    From the shell it is ``cfscm train PLAN.yml --out DIR``.
    """
    plan = read_plan(plan)
    if not plan.budget:
        raise InputError(f"{plan.place}, generator: there is nothing to train; say train: ...")
    work = _Work(plan, _claim(plan, Path(out)), _tell)
    with work.timed("generator"):
        return work.generator()[1]


def describe(plan: AuditPlan) -> list[str]:
    """What an audit will do and how long that takes, measured on one batch."""
    data, (learners, judges), worlds = plan.data, map(len, plan.learners), len(plan.grid)
    others, people = (len({data.patient[i] for i in r}) for r in (plan.train, plan.audited))
    sets = [f"{n} to {', '.join(plan.words(n, x) for x in v)}" for n, v in plan.nuisances.items()]
    judged = "; ".join(f"{name} ({', '.join(labels)})" for name, labels in plan.outputs.items())
    count, some = len(plan.audited), data.take(plan.audited[:16])
    x = on_device(some, plan.get("device"))[0]
    read = reading.seconds_to_train(plan.variables.values(), judges, x) / 60
    images = count * (worlds + 2)
    images += min(_JUDGED, count) * (8 + sum(map(len, plan.nuisances.values())))
    drawn = images * _seconds_of_an_image(plan, some) / 60
    trains = f"{len(plan.train)} rows of {others} others train"
    if left := len(data) - count - len(plan.train):
        trains += f"; {left} rows are not used"
    lines = [f"{plan.place}: can be used; images {tuple(x.shape[1:])}"]
    lines += [f"audits {count} rows of {people} patients; {trains}"]
    lines += [f"sets {'; '.join(sets)}: {worlds} worlds", f"predictors: {judged}"]
    if plan.budget:
        words = " or ".join(f"{value:g} {key}" for key, value in plan.budget.items())
        lines.append(f"will train a generator on {learners} rows: about {words}")
    lines.append(f"will train {len(plan.variables)} readers: about {read:.1f} minutes")
    lines.append(f"will decode {images} images: about {drawn:.1f} minutes")
    if "steps" not in plan.budget:
        whole = read + drawn + plan.budget.get("minutes", 0)
        lines.append(f"in all: about {whole:.0f} minutes on {plan.get('device')}, if it is idle")
    return lines


def _seconds_of_an_image(plan: AuditPlan, some: Patients) -> float:
    """How long it takes to decode an image and to show it to all predictors."""
    device = plan.get("device")
    x, pa, index = on_device(some, device)
    model = plan.generator or untrained(plan.graph, IMAGE, x[:1], None, 0).eval().to(device)

    @torch.inference_mode()
    def draw() -> None:
        drawn = model.predict(model.abduct(x, pa, index=index), pa)
        for predictor in plan.predictors.values():
            predictor(drawn, pa)

    return reading.seconds_of(draw) / len(x)


def _claim(plan: AuditPlan, out: Path) -> Path:
    """The folder, marked as that of the plan; one of anything else is refused."""
    mark, mine = out / "audit.json", {k: v for k, v in plan.given.items() if k not in _LATE}
    mine |= {f"the file of {key}": digest for key, digest in plan.digests.items()}
    mine |= marked(plan.data.restricted)
    check_place(mark, plan.data.restricted)
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


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class _Work:
    """An audit under way: its stages in their order, each of which finds what it did before."""

    plan: AuditPlan
    folder: Path
    say: _Say

    def __post_init__(self) -> None:
        self.audited = self.plan.data.take(self.plan.audited)
        self.seed, self.device = self.plan.get("seed"), self.plan.get("device")
        self.shown = {"device": self.device, "progress": sys.stderr.isatty()}
        self.clock, self.minutes = self.folder / "minutes.json", {}
        with suppress(FileNotFoundError, ValueError):  # of the first call, or damaged
            self.minutes = dict(json.loads(self.clock.read_bytes()))

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Remember how long a stage takes, in all calls that came to its end."""
        begin = time.monotonic()
        yield
        spent = self.minutes.get(stage, 0) + (time.monotonic() - begin) / 60
        self.minutes[stage] = round(spent, 3)
        write_atomically(self.clock, json.dumps(self.minutes).encode())

    def generator(self) -> tuple[object, dict[str, float] | None]:
        """The generator of the plan, trained if it must be, and how it was trained."""
        plan = self.plan
        if plan.generator is not None:
            return plan.generator, None
        target = next((name for name in plan.data.labels if name in plan.data.parents), None)
        model = untrained(plan.graph, IMAGE, plan.data[[0]], target, self.seed)
        data, path = plan.data.take(plan.learners[0]), self.folder / "generator.safetensors"
        return learn(model, data, path, budget=plan.budget, **self._how(data), **self.shown)

    def readers(self) -> dict[str, ImageNetwork]:
        """A reader of each variable."""
        data = self.plan.data.take(self.plan.learners[1])
        how = self._how(data) | self.shown
        return reading.train_readers(self.plan.variables, data, self.folder, **how)

    def _how(self, data: Patients) -> dict[str, Any]:
        """How something is learnt from patients, by which it is known again."""
        facts = [data.parents, data.labels, data.patient, repr(self.plan.graph), self.seed]
        made_of = fingerprint(facts, data.fingerprint(), dict(self.plan.budget))
        return {"seed": self.seed, "made_of": made_of, "say": self.say}

    def worlds(self, generator: object) -> dict[str, Predictions]:
        """What all predictors say in all worlds, by ``predictor:label``."""
        plan, worlds = self.plan, f"{len(self.audited)} rows x {len(self.plan.grid)}"
        self.say(f"worlds: {worlds}, each decoded once for all predictors")
        how = {"labels": plan.outputs, "effect": plan.get("effect"), **self.shown}
        how["resume_dir"] = self.folder / "shards"
        found = marginalise(generator, plan.predictors, self.audited, plan.grid, **how)
        return {f"{p.provenance['predictor']}:{p.provenance['label']}": p for p in found.values()}

    def trust(
        self,
        generator: object,
        readers: Mapping[str, ImageNetwork],
        found: Mapping[str, Predictions],
    ) -> dict[str, Any]:
        """What is known of the generator: refuted or not, effectiveness, composition, and so on."""
        self.say("trust: what the readers see in the counterfactuals")
        plan, audited = self.plan, self.audited
        order = np.random.default_rng(self.seed).permutation(len(audited))
        many, few = (audited.take(np.sort(order[:most])) for most in (_SKILLED, _JUDGED))
        wide, narrow = (
            check_resampling(len(part), part.patient, plan.get("replicates"), seed=self.seed)
            for part in (many, few)
        )
        seen = generator, few, plan.nuisances, readers, plan.get("effect"), self.device
        given = *reading.judge_images(*seen), few, plan.variables, narrow
        shown = reading.effectiveness(*given)
        for entry in shown:
            entry["words"] = plan.words(entry["variable"], entry["value"])
        pictures = told.pictures(plan, generator, audited, found)
        return {
            "name": told.generator_words(plan), "trained": None,
            "readers": reading.skills(readers, many, wide),
            "effectiveness": shown, "amplification": reading.amplification(*given),
            "composition": reading.composition(generator, few, plan.graph, self.device)
            | self._floors(found),
            "support": told.support(plan, audited),
            "standardisation": told.standardised(plan, found),
            "pictures": list(pictures) if plan.get("pictures") == "local" else [],
        }  # fmt: skip

    def _floors(self, found: Mapping[str, Predictions]) -> dict[str, Any]:
        """How far scores move when nothing is changed, and when the residual is left out."""
        floors = {
            key: own.floor(threshold=self.plan.threshold(own.provenance["label"]))
            for key, own in found.items()
        }
        return {
            "D_abs_null": {key: floor["D_abs"] for key, floor in floors.items()},
            "D_abs_decoded": {key: floor.get("D_abs_decoded") for key, floor in floors.items()},
            "by_construction": all(floor["by_construction"] for floor in floors.values()),
        }

    def report(self, trust: dict[str, Any], found: Mapping[str, Predictions]) -> dict[str, Any]:
        """The findings, with what there is to say of the predictors, written as a report."""
        plan, labels = self.plan, self.plan.data.labels
        for number, own in enumerate(found.values()):
            own.save(self.folder / f"predictions-{number}.safetensors")
        findings = {"asked": told.what_was_asked(plan, self.audited), "generator": trust}
        findings["assumptions"] = list(told.assumptions(plan, trust["support"], found))
        findings = plain(findings | {"provenance": told.provenance(plan, self.minutes)})
        words = {n: {v: plan.words(n, v) for v in own} for n, own in plan.nuisances.items()}
        asked = {"replicates": plan.get("replicates"), "seed": self.seed}
        thresholds = {label: plan.threshold(label) for label in labels}
        question = Question(told.groups(plan, self.audited), words, asked, thresholds)
        order = sorted(found, key=lambda key: list(labels).index(found[key].provenance["label"]))
        findings = plain(judge(findings, {key: found[key] for key in order}, question))
        write_report(findings, self.folder)
        self.say(f"written: {self.folder}")
        return findings
