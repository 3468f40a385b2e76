"""A plan to start from: what the columns of a table seem to be, said in comments."""

import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import yaml

from cfcore.cells import Cells
from cfcore.checks import InputError
from cfscm.auditing.page import read_text

_FILES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
_MANY, _LABELS = 12, 4  # values of a column that is still categorical; labels, at most


def draft_plan(table: Path | str, folder: Path | None = None, *, images: Path | None = None) -> str:
    """A commented plan for a table; every guess about a column is to be looked at.

    Args:
        table: The file of the table.
        folder: Where the plan will be, by default beside the table.
        images: The folder of the images, or their archive, by default looked for beside the table.

    Example:
        >>> path = getfixture("tmp_path") / "t.csv"
        >>> _ = path.write_text("file,who,view,ill\\na.png,1,PA,0\\nb.png,2,AP,1\\n")
        >>> draft_plan(path).splitlines()[4]
        'image: file  # the column that names them'
    """
    cells, table = read_text(table), Path(table)
    kinds = {name: _kind(cells, name) for name in cells.header}
    image = _called(kinds, ["file"], "image|path|file") or _called(kinds, ["file"], "") or "?"
    patient = _called(kinds, kinds.values(), "patient|subject|person") or "?"
    split = _called(kinds, ["categorical"], r"split|fold|subset|^part(ition)?$")
    free = [name for name in cells.header if name not in (image, patient, split)]
    binary = [name for name in free if kinds[name] == "binary"]
    labels = binary[:_LABELS] or ["?"]
    others = [name for name in free if kinds[name] in ("categorical", "continuous")]
    graph = [f"  {_word(name)}: {_variable(cells, name, kinds[name])}" for name in others]
    graph += [f"  {_word(name)}: {{kind: binary}}" for name in binary[:_LABELS]]
    among = {name: kinds[name] for name in others}
    sets = _called(among, ["categorical"], "view|site|scanner|device|machine|vendor")
    sets = sets or _called(among, ["categorical"], "") or (*others, "?")[0]
    rest = [name for name in free if name not in (*others, *labels)]
    rows = "{share: 0.5}"
    if split:
        rows = f"{{train: {_word(f'{split} == {cells.frame[split].str.strip().iloc[0]}')}}}"
    lines = [
        f"# A plan of an audit, made from {_word(table.name)}: {len(cells.frame)} rows.",
        "# What follows is guessed from names and values of columns: read every line.",
        f"table: {_word(os.path.relpath(table, folder or table.parent))}  "
        "# paths are relative to the folder of this plan",
        f"{_images(cells, image, folder, images)}  # a folder, or an .npz with an array images",
        f"image: {_word(image)}  # the column that names them",
        f"{'# ' * (patient == '?')}patient: {_word(patient)}  # the column of patients",
        "# source: ward-7  # whose real patients: git may track nothing that is made of them",
        "# size: 64  # to resize to, in pixels; without it images keep their size",
        "# grey: true  # to reduce colour to luminance",
        "graph:  # kind and causes (parents: [..]) of each; without `image`, all cause the image",
        *graph,
        f"labels: [{', '.join(map(_word, labels))}]  # columns of 0 and 1",
        "nuisances:  # a list of values; all; a number of values; or {quantiles: 4}",
        f"  {_word(sets)}: {'{quantiles: 4}' if kinds.get(sets) == 'continuous' else 'all'}",
        "q: uniform  # over the worlds; or empirical, or numbers, the last nuisance fastest",
        "predictors:",
        "  mine: classifier.pt  # TorchScript; or MODULE:NAME, or our *.safetensors; or at length:",
        f"  # mine: {{load: classifier.pt, outputs: {{{_word(labels[0])}: 0}}, scores: logits,",
        "  #        input: {channels: 3, size: 224, mean: 0.5, std: 0.25}}",
        "  # or scores: softmax, if outputs are classes of which one is right; or probabilities",
        "generator: {train: {minutes: 10}}  # or MODULE:NAME, or weights *.safetensors",
        f"rows: {rows}  # COLUMN == VALUE, or a share of the patients; the others are audited",
        "threshold: 0.5  # or one for each label, {label: 0.2}",
        "# tolerance: 0.05  # of a score: how far a nuisance may move it, as a standard deviation",
        "subgroups: []  # columns; each nuisance is one already",
        "pictures: none  # local puts images of two patients into the report",
        f"# not used: {', '.join(map(_word, rest)) or 'none'}",
    ]
    return "\n".join(lines) + "\n"


def _images(cells: Cells, image: str, folder: Path | None, found: Path | None) -> str:
    """Where the images are, or the first one is, below the folder of the table."""
    root = cells.path.parent
    if (
        found is None
        and image != "?"
        and not (root / (name := cells.frame[image].iloc[0].strip())).is_file()
    ):
        found = next((p for p in root.glob("*") if (p / name).is_file()), None)
    place = os.path.relpath(found or root, folder or root)
    return f"{'' if found or place != '.' else '# '}images: {_word(place)}"


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


def _called(kinds: Mapping[str, str], among: Collection[str], pattern: str) -> str | None:
    """The first column of some kinds that is called so."""
    called = [name for name in kinds if re.search(pattern, name, re.IGNORECASE)]
    return next((name for name in called if kinds[name] in among), None)


def _variable(cells: Cells, name: str, kind: str) -> str:
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
