"""Every file below ``data``: which rule of the Snakefile wrote it, and whether it is still that.

``python -m cfbook.production.artefacts list`` writes the manifest, ``verify`` compares the files
with it and makes a sample of each kind again from the weights that are kept, and ``clear PART``
removes what a part of ``make reproduce`` will make.
"""

import csv
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from cfbook.paths import DATA
from cfbook.study import learned, missing_labels, observed, runs
from cfbook.study.cohorts import further, held_out, parts, phantom_cohort
from cfbook.study.presets import preset
from cfbook.study.recipes import DetailedRecipe, PredictorRecipe, probes
from cfbook.study.runs import PredictorId, Run
from cfbook.study.statistics import without_worlds
from cfchest.graph import paper_grid
from cfcore.checks import InputError
from cfcore.files import write_atomically
from cfcore.marginalise import marginalise
from cfcore.predictions import load_all
from cfscm.weights import read_manifest

_MANIFEST = "manifest.csv"
_COLUMNS = ["file", "rule", "part", "seed", "sha256"]
_INPUT, _TRIAL = "input", "exploratory"


@dataclass(frozen=True)
class _Kind:
    """Files that one rule writes.

    Args:
        pattern: Their paths below ``data``.
        rule: The rule; ``"input"`` of what is typed or measured elsewhere, ``"exploratory"`` of
            records of trials, which are not made again.
        part: The part of ``make reproduce``; 0 if none.
        seed: Of what is drawn, if it is not in the record beside the file.
    """

    pattern: str
    rule: str
    part: int = 0
    seed: str = ""


_COHORT = str(preset("book").cohort)
_KINDS = (
    _Kind("predictors/*", "predictor", 1),
    _Kind("judges/*", "judge", 1),
    _Kind("generators/book-detailed-*", "generator", 2),
    _Kind("predictions/*", "predictions", 3, _COHORT),
    _Kind("observed/*", "observed", 3, _COHORT),
    _Kind("results/learned_estimates.csv", "estimates", 3, _COHORT),
    _Kind("results/label_free.csv", "label_free", 3, _COHORT),
    _Kind("generators/curve-partial-*", "missing_model", 4),
    _Kind("results/missing_curve.csv", "missing_curve", 4, "0 1 2"),
    _Kind("results/missing_labels.csv", "missing_labels", 4, "0 1 2"),
    _Kind("results/missing_regularised.csv", "missing_regularised", 4, "0 1 2"),
    _Kind("results/missing_imputed.csv", "missing_model", 4, "0"),
    _Kind("results/missing_metrics.csv", "missing_model", 4, "0"),
    _Kind("results/missing_examples.safetensors", "missing_examples", 4, "0"),
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
    """A row for each file: which rule wrote it, in which part, with which seed, and its hash."""
    rows = []
    for name in _files(folder):
        kind, path = _kind_of(name), folder / name
        seed = kind.seed
        if path.with_suffix(".json").is_file():
            seed = str(read_manifest(path.with_suffix(".safetensors"))["seed"])
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        rows.append((name, kind.rule, kind.part or "", seed, digest))
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
    """The variance over worlds of one predictor with each learned generator."""
    worst = 0.0
    member = PredictorId("sex", 0.95, 0)
    for name, study in learned.learned_studies("C->C").items():
        run = Run(preset("book"), "C->C", "balanced", generator=name)
        data = held_out("C", run.preset, run.testset)
        reader = {member.name: run.recipes()[member].obtain()}
        said = marginalise(runs.find_generator(run), reader, data, paper_grid())[member.name]
        found = said.evaluate()["S_var"]
        worst = max(worst, abs(found / study.column("S_var", "sex", 0.95)[0, 0] - 1))
    return worst


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


def _main(task: str, *words: str) -> int:
    if task == "list":
        write_atomically(DATA / _MANIFEST, manifest().to_csv(index=False).encode())
    if task == "clear":
        _clear(*words)
    return _verify() if task == "verify" else 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
