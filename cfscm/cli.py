"""The commands that audit by a plan; see :mod:`cfcore.cli`."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cfcore.checks import InputError


def plan(table: Path, *, images: Path | None = None, out: Path | None = None) -> list[str]:
    """Write a plan of an audit to start from, guessed from a table.

    What each column seems to be is said in comments, which are to be read.

    Args:
        table (TABLE.csv): One row for each image.
        images (PATH): The folder of the images, or their .npz (default: looked for).
        out (PLAN.yml): Where to write the plan, a new file beside the table (default: print it).
    """
    from cfcore.files import write_atomically
    from cfscm.auditing.draft import draft_plan

    text = draft_plan(table, None if out is None else out.parent, images=images)
    if out is None:
        return [text.rstrip()]
    if out.exists():
        raise InputError(f"{out}: is there already; choose another name")
    return [f"{write_atomically(out, text.encode())}: read every line, then cfcore audit {out}"]


def audit(
    plan: Path, *, out: Path | None = None, check: bool = False, fail_if: Sequence[str] = ()
) -> Iterator[str]:
    """Audit classifiers by a plan: from images to a report.

    Everything is checked first. What takes long is done in stages: called again, it goes on after
    the last finished one.

    Args:
        plan (PLAN.yml): The plan; `cfcore plan TABLE` writes one to start from.
        out (DIR): Where the report goes: a new folder, or that of the same plan.
        check: Only check the plan, and say what would be done and how long it takes.
        fail_if (CONDITION): End with exit code 3 if this holds of a predictor, such as
            'S_flip > 0.1'; the report is written all the same.
    """
    from cfcore.report.conclusions import check_gate, gate
    from cfscm.auditing import audit, describe, read_plan

    check_gate(fail_if)
    if check:
        yield from describe(read_plan(plan))
        return
    if out is None:
        raise InputError("where to? --out DIR; or --check to see what would be done")
    findings = audit(plan, out)
    yield from (entry["text"] for entry in findings["conclusions"])
    reasons = gate(findings, fail_if)
    yield from reasons
    if reasons:
        raise SystemExit(3)


def train_generator(plan: Path, *, out: Path) -> list[str]:
    """Train the generator of a plan, and nothing else.

    Args:
        plan (PLAN.yml): The plan, with generator: {train: {minutes: 10}}.
        out (DIR): Where generator.safetensors goes; called again, it goes on there.
    """
    from cfscm.auditing import train_generator

    trained = train_generator(plan, out)
    words = ", ".join(f"{key} {value}" for key, value in trained.items())
    return [f"{out / 'generator.safetensors'}: {words}; name it in a plan as the generator"]


def main() -> int:
    """Run ``cfscm train PLAN.yml``, which is ``cfcore train-generator PLAN.yml``, and others."""
    from cfcore import cli

    words = sys.argv[1:]
    return cli.main(
        ["train-generator" if word == "train" else word for word in words[:1]] + words[1:]
    )
