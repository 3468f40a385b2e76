"""Every file below ``data``: which rule of the Snakefile wrote it, and whether it is still that.

``python -m cfbook.production.artefacts list`` writes the manifest and how long each rule took,
``verify`` compares the files with it and makes a sample of each kind again from the weights that
are kept, ``clear PART`` removes what a part of ``make reproduce`` will make, and ``page`` prints
the tables of the page *Provenance*.
"""

import csv
import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from cfbook.paths import DATA
from cfbook.production.records import as_html
from cfbook.study import learned, missing_labels, observed, runs
from cfbook.study.cohorts import further, held_out, parts, phantom_cohort
from cfbook.study.presets import preset
from cfbook.study.recipes import DetailedRecipe, PredictorRecipe, probes
from cfbook.study.runs import PredictorId
from cfbook.study.statistics import without_worlds
from cfchest.graph import paper_grid
from cfcore.checks import InputError
from cfcore.files import write_atomically
from cfcore.marginalise import marginalise
from cfcore.predictions import load_all
from cfscm.weights import read_manifest

_MANIFEST = "manifest.csv"
_TIMES, _ELSEWHERE = "benchmarks/reproduce.csv", "benchmarks/another_processor.csv"
_CHANGED = "benchmarks/changed.csv"
_MEASURED = Path("runs") / "benchmarks"
_COLUMNS = ["file", "rule", "part", "config", "seed", "sha256"]
_INPUT, _TRIAL, _CURVE = "input", "exploratory", "curve"


@dataclass(frozen=True)
class _Kind:
    """Files that one rule writes.

    Args:
        pattern: Their paths below ``data``.
        rule: The rule; ``"input"`` of what is typed or measured elsewhere, ``"exploratory"`` of
            records of trials, which are not made again.
        part: The part of ``make reproduce``; 0 if none.
        seed: Of what is drawn, if it is not in the record beside the file.
        config: The preset; what else decides a file is in its name, as a hash.
    """

    pattern: str
    rule: str
    part: int = 0
    seed: str = ""
    config: str = "book"


_COHORT = str(preset("book").cohort)
_KINDS = (
    _Kind("predictors/*", "predictor", 1),
    _Kind("judges/*", "judge", 1),
    _Kind("generators/book-detailed-*", "generator", 2),
    _Kind("predictions/*", "predictions", 3, _COHORT),
    _Kind("observed/*", "observed", 3, _COHORT),
    _Kind("results/learned_estimates.csv", "estimates", 3, _COHORT),
    _Kind("results/label_free.csv", "label_free", 3, _COHORT),
    _Kind("generators/curve-partial-*", "missing_model", 4, config=_CURVE),
    _Kind("results/missing_curve.csv", "missing_curve", 4, "0 1 2", config=_CURVE),
    _Kind("results/missing_trust.csv", "missing_trust", 4, "0 1 2", config=_CURVE),
    _Kind("results/missing_regularised.csv", "missing_regularised", 4, "0 1 2", config=_CURVE),
    _Kind("results/missing_imputed.csv", "missing_model", 4, "0", config=_CURVE),
    _Kind("results/missing_metrics.csv", "missing_model", 4, "0", config=_CURVE),
    _Kind("results/missing_examples.safetensors", "missing_examples", 4, "0", config=_CURVE),
    _Kind("results/soundness.csv", "soundness", 5, _COHORT),
    _Kind("results/generator_noise.csv", "soundness", 5, _COHORT),
    _Kind("results/support.csv", "support", 5, _COHORT),
    _Kind("results/leak.csv", "leak", 5, _COHORT),
    _Kind("results/panel_fresh.csv", "panel", 5, "918273"),
    _Kind("results/targets_fresh.csv", "panel", 5, "918273"),
    _Kind("results/refuted_fresh.csv", "refuted", 5, "918281"),
    _Kind("results/without_*", "without", 5, _COHORT),
    _Kind("results/coverage.csv", "coverage", 5, "0"),
    _Kind("results/phantom_report.csv", "report", 5, _COHORT),
    _Kind("claims*.yml", _INPUT),
    _Kind("real.yml", _INPUT),
    _Kind("real/*", _INPUT),
    _Kind("paper/*", _INPUT),
    _Kind("phantom/*", _INPUT),
    _Kind("nih/*", _INPUT),
    _Kind("benchmarks/*", _INPUT),
    _Kind("results/claims_v1.csv", _TRIAL),
    _Kind("results/generator_designs.csv", _TRIAL),
    _Kind("results/missing_trials.csv", _TRIAL),
    _Kind("results/nih_generators.csv", _TRIAL),
)


def _kind_of(path: str) -> _Kind:
    """The kind of a file, of which there is exactly one.

    Example:
        >>> _kind_of("results/leak.csv").rule
        'leak'
    """
    found = [kind for kind in _KINDS if fnmatch(path, kind.pattern)]
    if len(found) != 1:
        raise InputError(f"data/{path} is written by {len(found)} rules of the Snakefile, not one")
    return found[0]


def _files(folder: Path = DATA) -> Iterator[str]:
    """The files below ``data``, but for the manifest itself."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != _MANIFEST:
            yield path.relative_to(folder).as_posix()


def manifest(folder: Path = DATA) -> pd.DataFrame:
    """A row for each file: the rule that wrote it, its part, preset and seed, and the hash."""
    rows = []
    for name in _files(folder):
        kind, path = _kind_of(name), folder / name
        seed = kind.seed
        weights = path.with_name(re.sub(r"\.(json|safetensors\.\d)$", ".safetensors", path.name))
        if weights.with_suffix(".json").is_file():
            seed = str(read_manifest(weights)["seed"])
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        made = (kind.part, kind.config) if kind.part else ("", "")
        rows.append((name, kind.rule, *made, seed, digest))
    return pd.DataFrame(rows, columns=_COLUMNS)


def _compare(folder: Path = DATA) -> list[str]:
    """How the files differ from the manifest, in sentences."""
    with (folder / _MANIFEST).open(newline="") as file:
        kept = {row["file"]: row["sha256"] for row in csv.DictReader(file)}
    now = manifest(folder).set_index("file").sha256.to_dict()
    said = [f"{name} is not in the manifest" for name in now.keys() - kept.keys()]
    said += [f"{name} is missing" for name in kept.keys() - now.keys()]
    both = now.keys() & kept.keys()
    return sorted(said + [f"{name} has changed" for name in both if now[name] != kept[name]])


def _again_predictions() -> float:
    """Logits of twelve patients in all worlds, of one predictor of each training."""
    worst = 0.0
    for run in runs.all_runs(preset("book")):
        given = load_all(DATA / "predictions" / run.file)
        family = run.families[-1]
        own = {m: r for m, r in run.recipes().items() if (m.family, m.strength) == (family, 0.95)}
        data = held_out(run.where.test, run.preset, run.testset).take(range(12))
        readers = {member.name: recipe.obtain() for member, recipe in own.items()}
        truth = phantom_cohort(run.where.test, run.preset).oracle
        said = marginalise(truth, readers, data, paper_grid(), effect=run.effect)
        for name, found in said.items():
            off = (found.logit_cf - given[name].logit_cf[:12]).abs() / (1 + found.logit_cf.abs())
            worst = max(worst, off.max().item())
    return worst


def _again_observed() -> float:
    """Score gaps of the unbiased predictor on all further patients."""
    run = next(runs.all_runs(preset("book")))
    kept = observed.read_observed(run).column("score_sex", "basic")[0, 0]
    data = further("C", run.preset, run.testset)
    reader = PredictorRecipe(run.preset).obtain()
    with torch.inference_mode():
        logit = torch.cat([reader(batch.x, batch.pa) for batch in data.batches(128)])
    pa = data.parents
    one = torch.ones(1, len(logit), dtype=torch.float64)
    found = without_worlds(logit.double(), pa["effusion"].long(), pa, one)
    return abs(found["score_sex"].item() - kept)


def _again_estimates() -> float:
    """The variance over worlds of one predictor with the first learned generator."""
    member, run = PredictorId("sex", 0.95, 0), next(runs.all_runs(preset("book"), "detailed-0"))
    kept = learned.learned_studies(run.setting)[run.generator].column("S_var", "sex", 0.95)[0, 0]
    data = held_out(run.where.test, run.preset, run.testset)
    reader = {member.name: run.recipes()[member].obtain()}
    said = marginalise(runs.find_generator(run), reader, data, paper_grid())
    return abs(said[member.name].evaluate()["S_var"] / kept - 1)


def _again_imputed() -> float:
    """What the generator from partly labelled images reads off the image."""
    kept = pd.read_csv(DATA / "results" / missing_labels.IMPUTED)
    recipe = missing_labels.kept_recipe()
    data = parts("C", recipe.preset)["test"].take(range(int(kept.patients.iloc[0])))
    found = missing_labels.imputation(recipe.obtain(), data)
    return float(np.abs(found["value"] - kept["value"]).max())


def _again_weights() -> float:
    """Whether all weights can be read, and are those that their records describe."""
    book = preset("book")
    recipes = [*runs.all_recipes(book).values(), *probes(book).values()]
    for recipe in (*recipes, *(DetailedRecipe(book, seed=seed) for seed in (0, 1))):
        recipe.load(recipe.committed / recipe.file)
    return 0.0


_AGAIN: Mapping[str, tuple[Callable[[], float], float]] = {
    "weights": (_again_weights, 0.0),
    "predictions": (_again_predictions, 2e-3),
    "observed": (_again_observed, 1e-4),
    "estimates": (_again_estimates, 1e-2),
    "imputed": (_again_imputed, 2e-2),
}
"""What is made again, and how far it may be off: rounding to half precision, another processor."""


def _verify() -> int:
    """Print how files compare with the manifest and with what is made again; 1 if they do not."""
    problems = _compare()
    print(*problems or ["all files are those of the manifest"], sep="\n")
    for name, (again, allowed) in _AGAIN.items():
        off = again()
        bad = not off <= allowed
        problems += [name] if bad else []
        word = "MORE" if bad else "no more"
        print(f"{name}: made again, off by {off:.2g}, {word} than {allowed:g}")
    return int(bool(problems))


def _clear(part: str) -> None:
    """Remove the files that a part makes."""
    for name in list(_files()):
        if str(_kind_of(name).part) == part:
            (DATA / name).unlink()


def _times(folder: Path = _MEASURED) -> pd.DataFrame:
    """How many jobs of each rule were measured, and the CPU minutes of all of them."""
    found = [
        (path.stem.partition("-")[0], float(pd.read_csv(path, sep="\t").cpu_time.iloc[0]) / 60)
        for path in sorted(folder.glob("*.tsv"))
    ]
    by = pd.DataFrame(found, columns=["rule", "minutes"]).groupby("rule")["minutes"]
    return by.agg(jobs="size", minutes="sum").round(1).reset_index()


def _update_times() -> None:
    """Replace the times of the rules that ran here, and leave those of the others."""
    now = _times()
    before = pd.read_csv(DATA / _TIMES)
    both = pd.concat([before[~before.rule.isin(now.rule)], now])
    learned.write_table(both.sort_values("rule"), DATA / _TIMES)


def _page() -> str:
    """Which rules wrote the files, how long they took, and what another processor changes."""
    listed = pd.read_csv(DATA / _MANIFEST, dtype={"part": "Int64"})
    listed["MB"] = [(DATA / name).stat().st_size / 1e6 for name in listed.file]
    rules = listed.groupby(["part", "rule"], dropna=False)
    rules = rules.agg(files=("file", "size"), MB=("MB", "sum")).reset_index()
    rules = rules.merge(pd.read_csv(DATA / _TIMES), on="rule", how="left")
    rules["CPU minutes"] = rules.pop("minutes").round().astype("Int64")
    rules = rules.astype({"jobs": "Int64"}).round({"MB": 1})
    moved = pd.read_csv(DATA / _ELSEWHERE)
    moved["predictor"] = (moved.family + " " + moved.strength.map("{:g}".format)).str.rstrip(" 0")
    wide = moved.pivot(index="metric", columns="predictor", values="moved")
    wide = wide.loc[moved.metric.unique(), moved.predictor.unique()].map("{:+.1f}".format)
    far = moved.moved.abs()
    said = (
        f"Of {len(moved)} published means over {moved.trainings.iloc[0]} trainings, "
        f"{(far > 2).sum()} move by more than two of their standard errors, the largest by "
        f"{far.max():.1f}; the root mean square is {far.pow(2).mean() ** 0.5:.2f}, where another "
        f"seed in place of another processor would give {2**0.5:.2f}."
    )
    return "\n".join([
        "\n## Files\n", as_html(rules.astype(object).fillna("")), "\n## Another processor\n",
        said + "\n", as_html(wide.rename_axis(columns=None).reset_index()), _changes(),
    ])  # fmt: skip


def _changes() -> str:
    """Which numbers of the settings left their intervals when there were five trainings."""
    changed = pd.read_csv(DATA / _CHANGED)
    count = changed.pop("of").iloc[0]
    said = (
        f"With five new trainings in place of three, {len(changed)} of {count:,} means in the "
        "chapters on the settings left the 95 % interval that they had before."
    )
    rows = changed.round(4).astype(object)
    return "\n".join(["\n## Numbers that changed\n", said + "\n", as_html(rows)])


def _main(task: str, *words: str) -> int:
    if task == "list":
        _update_times()
        write_atomically(DATA / _MANIFEST, manifest().to_csv(index=False).encode())
    if task == "page":
        print(_page())
    if task == "clear":
        _clear(*words)
    return _verify() if task == "verify" else 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
