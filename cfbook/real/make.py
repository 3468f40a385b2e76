"""Every stage of the study of real radiographs, by one command each; a second call goes on.

``python -m cfbook.real.make STAGE FOLDER``: ``images``, ``readers``, ``predictors``,
``generator``, ``predictions``, any of the tables, ``all``, ``publish``. What is made is kept below
``runs/real``, named by what made it; ``publish`` copies what may be shared to ``data/real``, and
nothing else does.
"""

import argparse
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pandas as pd
import torch

from cfbook.paths import DATA
from cfbook.real import associations, averages, bias, drawing, pairs, planted, report, trust
from cfbook.real.sizes import sizes_of
from cfbook.real.work import FOLDS, Work
from cfbook.shareable import unshareable
from cfcore.checks import InputError

_TABLES: Mapping[str, Callable[[Work], pd.DataFrame]] = {
    "cohort": associations.cohort_table,
    "associations": associations.association_table,
    "pair_counts": pairs.pair_counts,
    "skills": trust.skill_table,
    "readings": trust.readings_table,
    "support": trust.support_of_worlds,
    "bias": bias.bias_table,
    "check": trust.check_table,
    "pairs": pairs.pair_table,
    "shares": lambda work: bias.shares_found(work.table("bias", lambda: bias.bias_table(work))),
}
"""The tables, in the order of what they need; each is one command."""


def _run_stage(work: Work, stage: str, *, part: str = "", seed: int | None = None) -> Iterator[str]:
    """Run a stage, or find it done, and say what was done.

    Args:
        part: Of ``predictors``, ``generator`` and ``predictions``: a fold; ``""`` is the test.
        seed: Of ``predictors``: one seed only.
    """
    if stage in _TABLES:
        yield f"{stage}: {len(work.table(stage, lambda: _TABLES[stage](work)))} rows"
    elif stage == "images":
        yield from (f"left out, {why}: {n}" for why, n in work.left_out.items())
        yield f"{work.data}, into {work.made}"
    elif stage == "readers":
        for name in trust.readable(work):
            trust.reader(work, name)
            yield f"reader of {name}"
    elif stage == "predictors":
        yield from planted.train_all(work, part, seed)
    elif stage == "generator":
        drawing.generator(work, part)
        yield f"generator {part or 'of the training patients'}"
    elif stage == "predictions":
        yield f"{len(drawing.scores_in_worlds(work, part))} predictors on {part or 'test'}"
    elif stage == "averages":
        yield str(averages.mean_changes(work))
    elif stage == "report":
        yield str(report.audit_report(work))
    else:
        raise InputError(f"stages are {', '.join(_ORDER)}, not {stage!r}")


_ORDER = (
    "images",
    "readers",
    "predictors",
    "generator",
    "predictions",
    "averages",
    *_TABLES,
    "report",
)
"""All stages, each after what it needs."""


def _run_all(work: Work) -> Iterator[str]:
    """Every stage in turn, in this process."""
    for stage in _ORDER:
        parts = ("", *FOLDS) if stage in ("predictors", "generator", "predictions") else ("",)
        for part in parts:
            yield from _run_stage(work, stage, part=part)


def publish(work: Work, out: Path = DATA / "real") -> Iterator[str]:
    """Copy what may be shared, each file after a look at what it holds, and name each."""
    files = {f"tables/{name}.csv": "text" for name in _TABLES}
    files |= {f"predictions/{part}.safetensors": "scores" for part in ("test", "fold-0", "fold-1")}
    files["averages.safetensors"] = "averages"
    files |= {f"audit/report/{name}": "text" for name in ("report.html", "report.json")}
    if work.sizes.name != "book" and out == DATA / "real":
        raise InputError(f"a study of {work.sizes.name} sizes is not for {out}: say --to")
    for name, kind in files.items():
        path = work.made / name
        if not path.is_file():
            raise InputError(f"{path} is not made yet: run the stages before")
        if why := unshareable(kind, path.read_bytes()):
            raise InputError(f"{path} {why}")
    averages.read_averages(work.made / "averages.safetensors")
    for name in files:
        target = out / name.removeprefix("audit/")
        target.parent.mkdir(parents=True, exist_ok=True)
        # Not by write_atomically, which refuses the mark: this is the one place that lets it pass.
        shutil.copyfile(work.made / name, part := target.with_name(f".{target.name}.part"))
        part.replace(target)
        yield str(target)


def main() -> None:
    """Run a stage of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=[*_ORDER, "all", "publish"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", default="", choices=["", *FOLDS])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--sizes", default="book")
    parser.add_argument("--out", type=Path, default=Path("runs/real"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--to", type=Path, default=DATA / "real")
    given = parser.parse_args()
    torch.set_num_threads(1)
    work = Work(given.folder, sizes_of(given.sizes), given.out, given.device)
    stages = {"all": lambda: _run_all(work), "publish": lambda: publish(work, given.to)}
    asked = stages.get(given.stage)
    lines = asked() if asked else _run_stage(work, given.stage, part=given.part, seed=given.seed)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
