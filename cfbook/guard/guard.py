"""The guard: nothing of a real patient is committed or published.

It looks at what git tracks, at what is about to be committed, or at a rendered book, and refuses

- every file that carries a mark of real patients (:mod:`cfcore.marks`), whatever its name,
  and every image that a marked notebook shows;
- identifiers in the form of CheXpert (``patient`` and five digits) and MIMIC-CXR (``p`` and ``s``
  with eight digits, the names of its images, its numbers in quotes or beside words such as
  ``subject_id``), in text, in notebooks, in the headers of safetensors files and in names of files;
- images in a notebook that matplotlib did not draw, were pasted, or are written into text;
- every other file that is not text, images and archives included, but for those that
  ``.guard.yml`` lists; in a rendered book, but for the outputs of its own notebooks.

It stops accidents, not malice, and does not catch

- a mark or an identifier inside an archive, a compressed file or base64 (archives are refused
  unless they are listed, but base64 is text);
- a figure of real patients in a notebook without a mark: one that read images by other means than
  our loaders, or whose marks somebody deleted;
- identifiers in any other form, and tables of patients without identifiers;
- new content of a file whose name is listed, if it has no mark and no identifier in its header;
- what stands in the ``_static`` folder of a rendered book, but for marks and identifiers.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal, NamedTuple

from cfcore.checks import InputError
from cfcore.marks import sources_in

ALLOWED = ".guard.yml"
_BOOK = ("_static/", "_sphinx_design_static/", "objects.inv")  # what the theme brings along

_IDENTIFIERS = {
    "a patient of CheXpert": rb"(?<![a-z0-9])patient\d{5}(?!\d)",
    "a patient or study of MIMIC-CXR": rb"(?<![a-z0-9])(?:p1|s5)\d{7}(?!\d)",
    "an image of MIMIC-CXR": rb"(?<![a-z0-9-])[0-9a-f]{8}(?:-[0-9a-f]{8}){4}(?![a-z0-9-])",
    "a subject of MIMIC": rb"(?<=[\"';])1\d{7}(?=[\\\\]?[\"'&])",
}
_BESIDE = re.compile(rb"subject_id|study_id|dicom_id|hadm_id|mimic", re.IGNORECASE)
_NUMBER = rb"(?<![\w.])[15]\d{7}(?![\w.])"
_WRITTEN = re.compile(rb"data:image/(?!svg)[\w.+-]+;base64,([A-Za-z0-9+/\s]{64,})")
_DRAWN = b"Matplotlib"  # what matplotlib writes into every figure


class Finding(NamedTuple):
    """Something that may not be shared: the file, the cell or part if any, and what is wrong."""

    path: str
    where: str
    what: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.path, self.where, self.what) if part)


@dataclass(frozen=True)
class Allowed:
    """What passes all the same: the content of ``.guard.yml``.

    Attributes:
        identifiers: Invented or published identifiers, exact, by the file they may stand in.
        binary: Patterns of files that are not text, with what they hold.
    """

    identifiers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    binary: Mapping[str, str] = field(default_factory=dict)

    def words(self, path: str, *, book: bool) -> set[str]:
        """The identifiers that may stand in a file; in a book, those of the code and pages."""
        shown = {
            source: words
            for source, words in self.identifiers.items()
            if path in (source, ALLOWED) or (book and not source.startswith("tests/"))
        }
        return {word for words in shown.values() for word in words}


def read_allowed(path: Path) -> Allowed:
    """Read the list of what passes; nothing does if there is no such file."""
    import yaml

    if not path.is_file():
        return Allowed()
    try:
        return Allowed(**yaml.safe_load(path.read_text()))
    except (TypeError, yaml.YAMLError) as error:
        raise InputError(f"{path}: this is no list of what is allowed: {error}") from None


def inspect(
    files: Iterable[tuple[str, bytes]], allowed: Allowed | None = None, *, book: bool = False
) -> list[Finding]:
    """Look for anything of real patients.

    Args:
        files: Path and content of each file.
        allowed: What passes all the same.
        book: Whether these files are a rendered book, in which fonts and the outputs of its own
            notebooks have a place.

    Returns:
        What was found, in the order of the files.

    Example:
        >>> id = "patient" + "1" * 5
        >>> print(*inspect([("notes.md", f"see {id}".encode()), ("empty.md", b"")]))
        notes.md: line 1 names a patient of CheXpert (pat...)
    """
    allowed = allowed or Allowed()
    every = [_File(path, list(_parts(content))) for path, content in files]
    clean = [file for file in every if book and not file.sources]
    made = {part.content for file in clean for part in file.parts if part.kind == "shown"}
    found: dict[Finding, None] = {}
    for file in every:
        words = allowed.words(file.path, book=book)
        passes = file.path.startswith(_BOOK) if book else _listed(file, allowed)
        for part in (*file.parts, _Part("its name", "text", file.path.encode(errors="replace"))):
            said = [*_marked(part), *_identified(part, words)]
            if not passes and (part.kind == "shown" or part.content not in made):
                said += _unfit(part, file.sources)
            found |= dict.fromkeys(Finding(file.path, part.where, what) for what in said)
    return list(found)


class _Part(NamedTuple):
    """A part of a file; an image is *shown* by an output or *pasted* into a cell or page."""

    where: str
    kind: Literal["text", "binary", "shown", "pasted"]
    content: bytes


class _File(NamedTuple):
    """A file and its parts."""

    path: str
    parts: list[_Part]

    @property
    def sources(self) -> list[str]:
        """The sources whose marks it carries."""
        return sorted({name for part in self.parts for name in sources_in(part.content)})


def _parts(content: bytes) -> Iterator[_Part]:
    """The parts of a file: those of a notebook, else the whole, and the header of safetensors."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        yield _Part("", "binary", content)
        if content[8:10] == b'{"':
            yield _Part("header", "text", content[8 : 8 + int.from_bytes(content[:8], "little")])
        return
    notebook = None
    if '"cells"' in text:
        with suppress(ValueError):
            notebook = json.loads(text)
    if isinstance(notebook, dict) and isinstance(notebook.get("cells"), list):
        yield from _cells(notebook)
    else:
        yield _Part("", "text", content)
        yield from _written("", "pasted", content)


def _written(where: str, kind: str, text: bytes) -> Iterator[_Part]:
    """The images that are written into a text."""
    for match in _WRITTEN.finditer(text):
        yield _Part(where, kind, _decoded(match[1]))


def _decoded(text: bytes) -> bytes:
    """What base64 says, cut or not."""
    text = re.sub(rb"[\s=]", b"", text)
    return base64.b64decode(text[: len(text) - (len(text) % 4 == 1)] + b"==")


def _cells(notebook: Mapping) -> Iterator[_Part]:
    """The parts of a notebook, cell by cell."""
    yield _Part("metadata", "text", _text(notebook.get("metadata")))
    for number, cell in enumerate(notebook["cells"], start=1):
        source = _text(cell.get("source", ""))
        first = next((line for line in source.decode().splitlines() if line.strip()), "empty")
        where = f"cell {number} ({first.strip()[:60]})"
        yield _Part(where, "text", source)
        yield from _written(where, "pasted", source)
        yield _Part(where, "text", _text(cell.get("metadata")))
        for name, given in cell.get("attachments", {}).items():
            yield _Part(f"{where}, attachment {name}", "pasted", _text(given))
        for count, output in enumerate(cell.get("outputs", []), start=1):
            place = f"{where}, output {count}"
            for kind, value in output.get("data", {}).items():
                image = kind.startswith("image/") and kind != "image/svg+xml"
                said = _decoded(_text(value)) if image else _text(value)
                yield _Part(place, "shown" if image else "text", said)
                yield from _written(place, "shown", said)
            for key in ("text", "traceback", "metadata"):
                yield _Part(place, "text", _text(output.get(key, "")))


def _text(value: object) -> bytes:
    """The text of a value in a notebook: lines, a text, or anything else as JSON."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "".join(value)
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def _marked(part: _Part) -> Iterator[str]:
    """Say whose mark a part carries."""
    sources = sources_in(part.content)
    if sources:
        yield f"carries the mark of {', '.join(sources)}"


def _identified(part: _Part, words: set[str]) -> Iterator[str]:
    """Say what identifiers there are, without repeating them whole: this goes to a log."""
    if part.kind != "text":
        return
    beside = {"a number of MIMIC": _NUMBER} if _BESIDE.search(part.content) else {}
    for what, pattern in {**_IDENTIFIERS, **beside}.items():
        for match in re.finditer(pattern, part.content, flags=re.IGNORECASE):
            if match[0].decode() not in words:
                line = part.content.count(b"\n", 0, match.start()) + 1
                yield f"line {line} names {what} ({match[0].decode()[:3]}...)"
                break


def _unfit(part: _Part, sources: list[str]) -> Iterator[str]:
    """Say what is wrong with an image, or with a file that is not text."""
    if part.kind == "binary":
        yield f"is not text and not in {ALLOWED}"
    elif part.kind == "shown" and sources:
        yield f"shows an image in a notebook made from {', '.join(sources)}"
    elif part.kind == "shown" and _DRAWN not in part.content[:400]:
        yield "shows an image that is no figure"
    elif part.kind == "pasted":
        yield "holds an image that no code made"


def _listed(file: _File, allowed: Allowed) -> bool:
    """Whether a file that is not text is on the list, finished, and what its name says."""
    known = any(fnmatch(file.path, pattern) for pattern in allowed.binary)
    whole = not file.path.endswith(".safetensors") or len(file.parts) == 2
    return known and whole and ".checkpoint." not in file.path


def walk(paths: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Every file at or below some paths, named relative to the path it is below.

    Raises:
        FileNotFoundError: If there is no such path.
    """
    for root in paths:
        if root.is_file():
            yield str(root), root.read_bytes()
        elif not root.is_dir():
            raise FileNotFoundError(f"{root}: there is no such file or folder")
        for path in sorted(root.rglob("*")):
            if path.is_file():
                yield str(path.relative_to(root)), path.read_bytes()
