"""The commands of the study and the book; see :mod:`cfcore.cli`."""

import json as writing
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cfchest.cli import renamed
from cfcore import __version__
from cfcore.checks import InputError
from cfcore.files import check_writable, write_atomically

if TYPE_CHECKING:
    from cfbook.study.presets import Preset
    from cfchest.data import Dataset
    from cfcore.generator import Generator
    from cfcore.interventions import Grid
    from cfcore.predictor import Predictor

Effect = Literal["direct", "total"]


@dataclass(frozen=True)
class Source:
    """Whose images are used, how many, and where to compute.

    Args:
        preset (NAME): The sizes: smoke, curve, book or paper.
        chexpert (FOLDER): CheXpert, the real hospital C; instead of the phantom.
        mimic (FOLDER): MIMIC-CXR-JPG, the real hospital M; instead of the phantom.
        mimic_iv (FOLDER): MIMIC-IV, where sexes and ages of hospital M are.
        chexpert_masks (FILE.csv): The lungs of CheXpert, by CheXmask.
        mimic_masks (FILE.csv): The lungs of MIMIC-CXR, by CheXmask.
        device: Where to compute.
    """

    preset: str = "book"
    chexpert: Path | None = None
    mimic: Path | None = None
    mimic_iv: Path | None = None
    chexpert_masks: Path | None = None
    mimic_masks: Path | None = None
    device: str = "cpu"

    def sizes(self, out: Path, **changes: object) -> "Preset":
        """The preset on the patients that were named, if it may be used here and written there."""
        from cfbook.study.presets import preset
        from cfchest.folders import Folders
        from cfcore.marks import check_place
        from cfcore.predictor import check_device

        check_device(self.device)
        own = {name: at for name, at in asdict(self).items() if name not in ("preset", "device")}
        if any(own.values()):
            changes["folders"] = Folders(**own)
            check_place(out / "any", changes["folders"].restricted)
        return replace(preset(self.preset), **changes)


_BOOK, _SMOKE = Source(), Source("smoke")


def predictor(
    *,
    out: Path,
    source: Source = _BOOK,
    hospital: str = "C",
    family: str = "basic",
    strength: float = 0.0,
    seed: int = 0,
    images: int | None = None,
) -> list[Path]:
    """Train one predictor of the experiments.

    It is kept, and not trained if it is there. A training that fails leaves what it had as
    ``*.failed.safetensors``.

    Args:
        out (DIR): Where to keep it.
        hospital (H): C or M.
        family (F): The bias: basic, sex, age, 'control sex' or 'control age'.
        strength (S): Of the bias.
        seed (N): Of the training.
        images (N): Of basic: train on N images only.
    """
    from cfbook.study.recipes import PredictorRecipe

    recipe = PredictorRecipe(source.sizes(out), hospital, family, strength, seed, images)
    check_writable(out)
    recipe.obtain(committed=out, cache=out, device=source.device, progress=True)
    return [out / recipe.file]


def judge(*, out: Path, source: Source = _BOOK, variable: str = "sex") -> list[Path]:
    """Train one of the classifiers by which generators are judged.

    It learns from patients of its own, and is not trained if it is there.

    Args:
        out (DIR): Where to keep it.
        variable (V): What it reads: sex, age, race or effusion.
    """
    from cfbook.study.presets import check_known
    from cfbook.study.recipes import probes

    every = probes(source.sizes(out))
    check_known("variable", variable, every)
    check_writable(out)
    every[variable].obtain(committed=out, cache=out, device=source.device, progress=True)
    return [out / every[variable].file]


def setting(
    *,
    out: Path,
    source: Source = _BOOK,
    setting: str = "C->C",
    testset: str | None = None,
    effect: Effect = "direct",
    trainings: int | None = None,
    predictors: Path | None = None,
    generator: str = "oracle",
    max_images: int = 144,
) -> list[Path]:
    """Marginalise the predictors of a setting over a test set.

    The logits of every predictor on every patient in every world are kept in one file. Predictors
    that are missing are trained; a run that was stopped goes on where it was.

    Args:
        out (DIR): Where to keep it.
        setting (S): C->C, M->M or C->M.
        testset (T): One of balanced, natural, shares-sex and shares-age (default: that of the
            setting).
        effect: Whether what depends on an intervened variable is held or follows.
        trainings (N): Of each predictor (default: as the preset says).
        predictors (DIR): Where trained predictors are kept.
        generator (G): One of oracle, detailed-0 or learned-0 (with its seed), and MODULE:NAME
            of your own.
        max_images (B): Images in flight.
    """
    from cfbook.study.runs import Run, fill, find_setting
    from cfscm.auditing.adapters import imported

    sizes = source.sizes(out, **({} if trainings is None else {"trainings": trainings}))
    run = Run(sizes, setting, testset or find_setting(setting).testset, effect, generator)
    own = imported(generator) if ":" in generator else None
    how = {"predictors": predictors, "device": source.device, "max_images": max_images}
    return [fill(run, out / run.file, generator=own, **how, progress=True)]


def train(
    *,
    out: Path,
    source: Source = _BOOK,
    design: str = "detailed",
    hospital: str = "C",
    seed: int = 0,
    compiled: bool = False,
) -> list[Path]:
    """Train the generator of counterfactuals.

    The deep structural causal model of a preset is kept, and not trained if it is there. Killed, a
    training goes on from its last checkpoint when it is started again, to the same weights.

    Args:
        out (DIR): Where to keep it.
        design (D): detailed, of tone, an autoencoder and a flow of what that leaves; learned, an
            autoencoder alone; or own, the same on patients of its own.
        hospital (H): C or M.
        seed (N): Of the training.
        compiled: Whether torch compiles the networks first, which takes a minute and a compiler.
    """
    from cfbook.study.presets import check_known
    from cfbook.study.recipes import DESIGNS

    check_known("design", design, DESIGNS)
    recipe = DESIGNS[design](source.sizes(out), hospital, seed)
    check_writable(out)
    where = {"device": source.device, "progress": True, "compiled": compiled}
    recipe.obtain(committed=out, cache=out, **where)
    return [out / recipe.file]


def results(
    *,
    out: Path,
    source: Source = _BOOK,
    generators: int = 2,
    patients: int | None = None,
    noise_patients: int = 500,
    predictions: Path | None = None,
    leak: bool = False,
    support: bool = False,
    estimates: bool = False,
    observed: bool = False,
    fresh: int | None = None,
    refuted: int | None = None,
) -> list[Path]:
    """Try learned generators and put them into the tables.

    How sound the generators of a preset are, unless something else is asked for: the small tables
    that the chapters read. Missing generators and predictors are trained.

    Args:
        out (DIR): Where to write.
        generators (N): Trainings of the generator.
        patients (N): Test patients (default: 300, and 2,000 for --leak).
        noise_patients (N): Test patients for noise.
        predictions (DIR): Where predictions are looked for first.
        leak: Only probe the noise for the parents that it should not know, on test patients.
        support: Only compare counterfactuals of each world with real images of it.
        estimates: Only marginalise all settings with them, and study what predictors say.
        observed: Only compute what needs no counterfactual, on many further patients.
        fresh (SEED): Only put all designs beside the truth, on patients drawn by this seed.
        refuted (SEED): Only count how often standardisation refutes generators, likewise.
    """
    from cfbook.study import learned as tables
    from cfbook.study.faithful import collect_fresh

    preset, seeds, count = source.sizes(out), range(generators), patients or 300
    check_writable(out)
    if observed:
        from cfbook.study.observed import collect_observed

        return collect_observed(preset, out)
    if fresh is not None:
        terms = {"seeds": seeds, "patients": patients or 600}
        return collect_fresh(preset, out, cohort=fresh, **terms)
    if refuted is not None:
        from cfbook.study.without_counterfactuals.refuted import collect_refuted

        return [collect_refuted(preset, out, cohort=refuted, seeds=seeds)]
    if estimates:
        runs = tables.learned_runs(preset, seeds)
        return [tables.collect(runs, out, folder=predictions)]
    if leak:
        return [tables.collect_leak(preset, out, patients=patients or 2000)]
    if support:
        return [tables.collect_support(preset, seeds, out, patients=count)]
    counts = {"patients": count, "noise_patients": noise_patients}
    return tables.collect_soundness(preset, seeds, out, **counts)


def designs(
    *,
    out: Path,
    source: Source = _BOOK,
    only: Sequence[str] = (),
    patients: int = 700,
    seed: int = 0,
) -> list[Path]:
    """Try designs of generators by what can be known on real data.

    Each ingredient is changed alone. Designs that the table has are not tried again, and trainings
    that are kept are found.

    Args:
        out (DIR): Where the table is, or goes.
        only (NAME): A design, by its name in the table (default: all that are missing).
        patients (N): Validation patients, the last ones.
        seed (N): Of the trainings.
    """
    from cfbook.study.designs import collect_designs

    check_writable(out)
    preset = source.sizes(out)
    return [collect_designs(preset, out, only=only, patients=patients, seed=seed)]


def missing(
    *,
    out: Path,
    source: Source = _BOOK,
    part: Literal["curve", "trust", "model", "figure", "stages", "label-free"],
    seeds: Sequence[int] = (0,),
    generators: Path | None = None,
    patients: int = 300,
) -> list[Path]:
    """Train generators on partly labelled images and put them into tables.

    These are the small tables that the chapter on missing labels reads. A table grows by one
    generator at a time; what is in it already is not trained again.

    Args:
        out (DIR): Where to write.
        part: A curve over the share of labels, with and without unlabelled images; a fifth of the
            labels, weighted as in the paper; what one model imputes; the figure of its examples;
            counterfactual regularisation; stability with the label of effusion hidden.
        seeds (N): Of the trainings.
        generators (DIR): Where trained generators are kept.
        patients (N): Test patients.
    """
    from cfbook.study import missing_labels as tables
    from cfbook.study.recipes import GeneratorRecipe

    check_writable(out)
    preset, folder = source.sizes(out), generators or GeneratorRecipe.cache
    recipe = tables.PartialRecipe(preset, seed=seeds[0])
    if part == "label-free":
        return [tables.collect_label_free(preset, out / tables.LABEL_FREE)]
    if part == "figure":
        return [tables.collect_examples(recipe, out / tables.EXAMPLES, folder=folder)]
    if part == "model":
        data = tables.trial_patients(preset, patients)
        return tables.collect_model(recipe, out, data, folder=folder)
    file, recipes = {
        "curve": (tables.CURVE, tables.curve_recipes),
        "trust": (tables.TRUST, tables.trust_recipes),
        "stages": (tables.ABLATION, tables.stage_recipes),
    }[part]
    made = recipes(preset, seeds)
    return [tables.collect_trials(made, out / file, folder=folder, patients=patients)]


def marginalise(
    *,
    out: Path,
    source: Source = _SMOKE,
    hospital: str = "C",
    data: Path | None = None,
    images: Path | None = None,
    columns: Sequence[str] = (),
    size: int | None = None,
    generator: str | None = None,
    predictor: Sequence[str] = (),
    do: Sequence[str] = (),
    q: str = "uniform",
    effect: Effect = "direct",
    draws: int | None = None,
    max_images: int = 144,
) -> list[Path]:
    """Run predictors on every patient under every intervention.

    One file for each predictor, and a manifest, are written. Without --data the patients and their
    true counterfactuals are those of the phantom. A run that was stopped goes on where it was when
    it is started again.

    Args:
        out (DIR): Where to write.
        hospital (H): The hospital, C or M.
        data (FILE.csv): Your own table of images instead (CSV).
        images (FOLDER): Where the images of --data are, or an .npz (default: beside it).
        columns (NAME=COLUMN): What --data calls a column: effusion=ill patient=id.
        size (PIXELS): The side to which the images of --data are resized (default: they keep their
            size).
        generator (MODULE:NAME): Your own generator: an object, or a function that makes one, with
            abduct and predict.
        predictor (NAME=FILE): Weights written by cfscm.networks.save, or NAME=MODULE:NAME (default:
            the basic predictor of the preset and its three logit offsets).
        do (VARIABLE=VALUES): Values to set, sex=0,1 or age=20:90:8 (default: the paper's sixteen).
        q (Q): Weights: uniform, empirical, or a CSV file with a column for each variable and a
            column count.
        effect: Whether what depends on an intervened variable is held or follows.
        draws (M): Monte Carlo draws for each patient, not the grid.
        max_images (B): Images in flight.
    """
    import torch

    from cfchest.folders import identity
    from cfchest.graph import CHEST, paper_grid
    from cfcore.interventions import Grid, parse_values
    from cfcore.marginalise import marginalise as predict_everywhere
    from cfcore.marks import check_place, marked
    from cfcore.shards import Processes

    device, sizes = _own_device(source.device), source.sizes(out)
    own = {"images": images, "columns": renamed(columns), "size": size}
    cohort, model = _audited(hospital, sizes, data, own, generator)
    grid = Grid.product(dict(map(parse_values, do)), graph=CHEST) if do else paper_grid()
    grid, readers = _weighted(grid, q, cohort), _own_predictors(predictor)
    check_place(out / "any", cohort.restricted)
    check_writable(out)  # before anything is trained
    readers = readers or _default_predictors(hospital, sizes, device)
    for thing in (model, *readers.values()):
        if isinstance(thing, torch.nn.Module):
            thing.to(device)
    facts = {"preset": source.preset, "hospital": hospital}
    facts |= {"data": None if data is None else str(data), "columns": own["columns"], "size": size}
    facts |= {"generator": generator or "oracle", "do": list(do), "q": q, "draws": draws}
    if data is None and sizes.folders is not None:
        facts |= {"table": identity(hospital, sizes.folders, sizes.size)}
    facts |= marked(cohort.restricted)
    facts |= {"versions": {"cfcore": __version__, "torch": torch.__version__}}
    options = {"effect": effect, "draws": draws, "device": device, "max_images": max_images}
    keep = {"resume_dir": out / "shards", "progress": True, "provenance": facts}
    found = predict_everywhere(model, readers, cohort, grid, **options, **keep)
    if Processes.current(torch.device(device)).rank != 0:
        return []
    paths = [given.save(out / f"{name}.safetensors") for name, given in found.items()]
    facts |= {"files": [path.name for path in paths], "python": platform.python_version()}
    return [*paths, _write_json(out / "manifest.json", facts)]


def _audited(
    hospital: str, preset: "Preset", data: Path | None, own: Mapping, generator: str | None
) -> "tuple[Dataset, Generator]":
    """The user's own table or a test set, and the generator named for it or the oracle."""
    from cfbook.study.cohorts import held_out, phantom_cohort
    from cfchest.data import LoadOptions, load_table
    from cfchest.folders import check_given
    from cfscm.auditing.adapters import imported

    if data is None and preset.folders is not None:
        check_given(hospital, preset.folders)
    if generator is None and (data is not None or preset.folders is not None):
        problem = "the phantom's oracle knows the phantom only: name a generator for other images"
        raise InputError(problem)
    if data is not None:
        options = LoadOptions(size=own["size"])
        cohort = load_table(data, options, images=own["images"], columns=own["columns"])
    elif any(own.values()):
        raise InputError("images, columns and size belong to a table of your own: name it by data")
    else:
        cohort = held_out(hospital, preset, "balanced")
    model = phantom_cohort(hospital, preset).oracle if generator is None else imported(generator)
    return cohort, model


def _default_predictors(hospital: str, preset: "Preset", device: str) -> "dict[str, Predictor]":
    """The basic predictor of a preset, trained if need be, and its logit offsets."""
    from cfbook.study.recipes import PredictorRecipe
    from cfbook.study.runs import BETAS
    from cfchest.offsets import LogitOffset

    basic = PredictorRecipe(preset, hospital).obtain(device=device, progress=True)
    return {"basic": basic, **{f"logit-{b:g}": LogitOffset(basic, b) for b in BETAS}}


def _own_predictors(words: Sequence[str]) -> "dict[str, Predictor]":
    """Predictors as named on the command line."""
    from cfchest.graph import CHEST
    from cfscm.auditing.adapters import imported
    from cfscm.networks import load

    named = {}
    for word in words:
        name, _, where = word.partition("=")
        if not name or not where:
            raise InputError(f"{word!r} is not of the form NAME=FILE", column="predictor")
        if Path(name).name != name or name in named:
            raise InputError(f"{name!r} cannot name a file of its own", column="predictor")
        weights = where.endswith(".safetensors")
        named[name] = load(where, graph=CHEST) if weights else imported(where)
    return named


def _weighted(grid: "Grid", q: str, data: "Dataset") -> "Grid":
    """A grid weighted by name or by a file."""
    import numpy as np
    import pandas as pd

    from cfcore.cells import read_cells

    if q == "uniform":
        return grid
    if q == "empirical":
        table = data.table.dropna(subset=list(grid.values))
        return grid.empirical({name: np.array(table[name]) for name in grid.values})
    if not Path(q).is_file():
        raise InputError(f"{q!r} is neither uniform, empirical nor a file", column="q")
    cells, names = read_cells(q), [*grid.values, "count"]
    return grid.external(pd.DataFrame({name: cells.numbers(name) for name in names}))


def _own_device(device: str) -> str:
    """The device of this process: under ``torchrun``, ``"cuda"`` is a GPU of its own."""
    rank = os.environ.get("LOCAL_RANK")
    return f"cuda:{rank}" if device == "cuda" and rank is not None else device


def _write_json(path: Path, content: object) -> Path:
    return write_atomically(path, f"{writing.dumps(content, indent=2)}\n".encode())


def audit_paper(*, json: Path | None = None) -> list[str]:
    """Check the published tables against identities that must hold.

    Rounding is allowed for. Repeated rows, and cells in which main text and appendix differ, are
    listed too.

    Args:
        json (OUT): Also write the findings to a JSON file.
    """
    from cfbook.printed_tables import audit, read_tables, summary

    findings = audit(read_tables())
    if json is not None:
        _write_json(json, [asdict(finding) for finding in findings])
    line = "{setting} {family} {strength:g} ({where}): {statement} [{identity}]"
    lines = [line.format_map(asdict(finding)) for finding in findings]
    return [*lines, f"\n{len(findings)} findings", summary(findings).to_string()]


def run(
    source: Path,
    out: Path,
    *,
    parameter: Sequence[tuple[str, str]] = (),
    provenance: Path | None = None,
) -> None:
    """Execute a notebook of the book, with other parameters if you like.

    It is written with its outputs. A parameter that the notebook does not have is refused.

    Args:
        source (NOTEBOOK): A .md or .ipynb notebook.
        out (OUT.ipynb): Where to write it.
        parameter (-p NAME VALUE): Change a parameter; the value is read as YAML (repeatable).
        provenance (FILE.json): Also write what ran: parameters, commit, hashes, versions, minutes,
            memory.
    """
    from cfbook.production import notebooks

    given = {name: notebooks.read_value(name, value) for name, value in parameter}
    notebooks.run_notebook(source, out, given, provenance=provenance)


def guard(paths: Sequence[Path] = (), *, staged: bool = False, book: Path | None = None) -> None:
    """Refuse what holds anything of real patients.

    What git tracks, or the files that are named, are searched for marked artefacts, identifiers,
    notebooks that read real data, images that no code made and files that are not text.

    Args:
        paths (PATH): Files or folders.
        staged: Only what the next commit would change.
        book (DIR): A rendered book, instead.
    """
    from cfbook.guard import search

    found = search(paths, staged=staged, book=book)
    if found:
        print(*found, sep="\n", file=sys.stderr)
        count = len({finding.path for finding in found})
        raise InputError(f"{count} {'file' if count == 1 else 'files'} may not be shared")


def provenance(folder: Path) -> list[str]:
    """Show what ran, from the records of executed notebooks.

    The records are those that cfcore run --provenance wrote (NAME.provenance.json beside
    NAME.ipynb), and become tables for a page of the book.

    Args:
        folder (FOLDER): Of executed notebooks.
    """
    from cfbook.production.records import page

    return [page(folder)]


def student(source: Path, out: Path) -> list[Path]:
    """Copy a book or notebooks without solutions, the boxes that are called Solution or Answer.

    Args:
        source (FOLDER): Pages and notebooks.
        out (OUT): Where to write them.
    """
    from cfbook.production.student import students_edition

    return students_edition(source, out)


def worksheets(notebooks: Sequence[Path], out: Path) -> list[Path]:
    """Write notebooks to work in, with an empty cell for each answer.

    They have neither solutions nor outputs. A cell below an answer that is a number checks it.
    Worksheets that are there already are left alone, since they may hold answers.

    Args:
        notebooks (NOTEBOOK): Chapters.
        out (OUT): The folder to write to.
    """
    from cfbook.production.student import worksheets

    return worksheets(notebooks, out)


def slides(notebooks: Sequence[Path], out: Path) -> list[Path]:
    """Draw every figure of notebooks large, for slides.

    The notebooks are executed once more with figures of 300 dots in an inch; each becomes a picture
    and a slide in a list in Markdown.

    Args:
        notebooks (NOTEBOOK): In order.
        out (OUT): The folder to write to.
    """
    from tempfile import TemporaryDirectory

    from cfbook.production.slides import redraw, write_slides

    with TemporaryDirectory() as folder:
        return write_slides(redraw(notebooks, Path(folder)), out)
