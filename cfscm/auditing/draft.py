"""A plan to start from: what the columns of a table seem to be, said in comments."""

import json
import os
import re
from pathlib import Path

import numpy as np
import yaml

from cfcore.cells import Cells, read_cells
from cfcore.checks import InputError

_FILES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
_MANY = 12  # values of a column that is still categorical


def draft_plan(table: Path | str, folder: Path | None = None) -> str:
    """A commented plan for a table; every guess about a column is to be looked at.

    Args:
        table: The file of the table.
        folder: Where the plan will be, by default beside the table.

    Example:
        >>> path = getfixture("tmp_path") / "t.csv"
        >>> _ = path.write_text("file,who,view,ill\\na.png,1,PA,0\\nb.png,2,AP,1\\n")
        >>> print(draft_plan(path).splitlines()[4])
        image: file  # the column that names them: a guess
    """
    cells, table = read_cells(table), Path(table)
    place = os.path.relpath(table, folder) if folder else table.name
    kinds = {name: _kind(cells, name) for name in cells.header}
    image = _called(cells, kinds, "file", "image|path|file")
    patient = _called(cells, kinds, "", "patient|subject|person")
    split = _called(cells, kinds, "categorical", "split|fold|partition")
    used = {image, patient, split}
    labels = [n for n, kind in kinds.items() if kind == "binary" and n not in used]
    others = [n for n, k in kinds.items() if k in ("categorical", "continuous") and n not in used]
    graph = [f"  {_word(n)}: {_variable(cells, n, kinds[n])}" for n in [*others, *labels[:1]]]
    sets = next((n for n in others if kinds[n] == "categorical"), (others + labels[1:] + ["?"])[0])
    values = "all" if kinds.get(sets) in ("categorical", "binary") else "{quantiles: 4}"
    rest = [n for n in cells.header if n not in {*used, *others, *labels[:1]}]
    first = cells.frame[split].str.strip().iloc[0] if split else ""
    rows = f"{{train: {_word(f'{split} == {first}')}}}" if split else "{share: 0.5}"
    lines = [
        f"# A plan of an audit, made from {_word(table.name)}: {len(cells.frame)} rows.",
        "# What follows is guessed from names and values of columns: read every line.",
        f"table: {_word(place)}  # paths are relative to the folder of this plan",
        "# images: .  # a folder, or an .npz with an array images; by default that of the table",
        f"image: {_word(image or '?')}  # the column that names them: {_guess(image)}",
        f"{'' if patient else '# '}patient: {_word(patient or '?')}  # the column of patients: "
        f"{_guess(patient)}",
        "# size: 64  # to resize to, in pixels; without it images keep their size",
        "# grey: true  # to reduce colour to luminance",
        "graph:  # kind and causes (parents: [..]) of each; without `image`, all cause the image",
        *graph,
        f"labels: [{_word(labels[0] if labels else '?')}]  # columns of 0 and 1; "
        f"others: {', '.join(map(_word, labels[1:])) or 'none'}",
        "nuisances:  # a list of values; all; a number of values; or {quantiles: 4}",
        f"  {_word(sets)}: {values}",
        "q: uniform  # over the worlds; or empirical, or numbers, the last nuisance fastest",
        "predictors:",
        "  mine: classifier.pt  # TorchScript; or MODULE:NAME, or our *.safetensors; or at length:",
        f"  # mine: {{load: classifier.pt, outputs: {{{_word(labels[0] if labels else '?')}: 0}}, "
        "scores: logits,",
        "  #        input: {channels: 3, size: 224, mean: 0.5, std: 0.25}}",
        "generator: {train: {minutes: 10}}  # or MODULE:NAME, or weights *.safetensors",
        f"rows: {rows}  # COLUMN == VALUE, or a share of the patients; the others are audited",
        "threshold: 0.5  # or one for each label, {label: 0.2}",
        "subgroups: []  # columns",
        "pictures: none  # local puts images of two patients into the report",
        f"# not used: {', '.join(map(_word, rest)) or 'none'}",
    ]
    return "\n".join(lines) + "\n"


def _guess(name: str | None) -> str:
    return "a guess" if name else "none found"


def _kind(cells: Cells, name: str) -> str:
    """What a column seems to be: binary, categorical, continuous, files, or nothing of these."""
    text = cells.frame[name].str.strip()
    filled = text[text != ""]
    values = filled.unique()
    if len(values) < 2:
        return "constant"
    if filled.str.lower().str.endswith(_FILES).mean() > 0.9:
        return "file"
    if set(values) <= {"0", "1"}:
        return "binary"
    try:
        numbers = cells.numbers(name) if len(filled) == len(text) else None
    except InputError:
        numbers = None
    if numbers is not None and len(values) > _MANY:
        return "unique" if len(values) == len(text) and (numbers % 1 == 0).all() else "continuous"
    return "categorical" if len(values) <= _MANY else "text"


def _called(cells: Cells, kinds: dict[str, str], kind: str, names: str) -> str | None:
    """The column of a kind, or else the first that is called so."""
    known = [name for name in cells.header if kind and kinds[name] == kind]
    called = [name for name in cells.header if re.search(names, name, re.IGNORECASE)]
    both = [name for name in called if not kind or kinds[name] == kind]
    return next(iter(both + (known if kind == "file" else []) + ([] if kind else called)), None)


def _variable(cells: Cells, name: str, kind: str) -> str:
    if kind == "binary":
        return "{kind: binary}"
    text = cells.frame[name].str.strip()
    if kind == "categorical":
        values = sorted(text[text != ""].unique())
        two = "binary" if len(values) == 2 else "categorical"
        return f"{{kind: {two}, categories: [{', '.join(map(_word, values))}]}}"
    numbers = cells.numbers(name)
    low, high = np.floor(numbers.min()), np.ceil(numbers.max())
    return f"{{kind: continuous, range: [{low:g}, {high:g}]}}"


def _word(text: str) -> str:
    """Text as YAML reads it back, in quotes where it must be.

    Example:
        >>> _word("view"), _word("no"), _word("a: b")
        ('view', '"no"', '"a: b"')
    """
    plain = re.fullmatch(r"[A-Za-z_][\w .=-]*\w|[A-Za-z_]", text)
    if plain and yaml.safe_load(text) == text and "\n" not in text:
        return text
    return json.dumps(text)
