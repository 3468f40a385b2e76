"""The guard: nothing of a real patient is committed or published.

It looks at what git tracks, at what is about to be committed, or at a rendered book, and refuses

- every artefact, notebook or page that carries a mark of real patients (:mod:`cfcore.marks`),
  renamed, packed or encoded;
- identifiers in the form of CheXpert (``patient`` and five digits) and MIMIC-CXR (``p`` and
  ``s`` with eight digits, the names of its images, subjects beside words such as ``subject_id``);
- notebooks whose parameters name folders of real data, or that ran a loader of them or opened
  image files;
- images that no code of the project made: outputs that are no figure, attachments of cells, images
  written into text, image files, and images in a page that are no output of its notebooks;
- pickles, and any other file that is not text, but for those listed in ``.guard.yml``.

It stops accidents, not malice: who takes the mark off and crops the image gets it through.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from cfbook.guard.contents import HEADER, Piece, kind_of, take_apart
from cfbook.production.notebooks import named_sources
from cfcore.checks import InputError
from cfcore.marks import sources_in

ALLOWED = ".guard.yml"
STATIC = ("_static/", "_sphinx_design_static/")  # of a rendered book: what the theme brings along
UNFINISHED = (".checkpoint.", ".failed.")

IDENTIFIERS = {
    "a patient of CheXpert": rb"(?<![a-z0-9])patient\d{5}(?!\d)",
    "a patient or study of MIMIC-CXR": rb"(?<![a-z0-9])(?:p1|s5)\d{7}(?!\d)",
    "an image of MIMIC-CXR": rb"(?<![a-z0-9-])[0-9a-f]{8}(?:-[0-9a-f]{8}){4}(?![a-z0-9-])",
    "a subject of MIMIC": rb"(?<=[\"';])1\d{7}(?=[\\\\]?[\"'&])",
}
BESIDE = re.compile(rb"subject_id|study_id|dicom_id|hadm_id|mimic", re.IGNORECASE)
NUMBER = rb"(?<![\w.])[15]\d{7}(?![\w.])"
READERS = re.compile(rb"\bImage\.open\s*\(|\b(?:imread|dcmread|read_image)\s*\(")
DRAWN = b"Matplotlib"  # what matplotlib writes into every figure
LOADERS = re.compile(rb"\b(?:load_(?:chexpert|mimic|nih|table)|Folders)\s*\(\s*[^\s)]")


@dataclass(frozen=True)
class Finding:
    """Something that may not be shared.

    Attributes:
        path: The file.
        where: The cell or the part of the file; empty for the whole.
        what: What is wrong with it.
    """

    path: str
    where: str
    what: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.path, self.where, self.what) if part)


@dataclass(frozen=True)
class Allowed:
    """What passes all the same, each with the file it stands in: the content of ``.guard.yml``.

    Attributes:
        identifiers: Invented or published identifiers, exact, by the file they may stand in.
        binary: Patterns of files that are not text, with what they hold.
        files: Image files, and text with images in it, by their hash (SHA-256).
    """

    identifiers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    binary: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def words(self, path: str, *, book: bool) -> set[str]:
        """The identifiers that may stand in a file; in a book, those of the code and pages."""
        if path == ALLOWED:
            return {word for words in self.identifiers.values() for word in words}
        if book:
            return {
                word
                for source, words in self.identifiers.items()
                if not source.startswith("tests/")
                for word in words
            }
        return set(self.identifiers.get(path, ()))


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
    every = [look(path, content) for path, content in files]
    made = {
        digest(piece.content)
        for file in every
        for piece in file.pieces
        if book and not file.marks and piece.kind == "image" and piece.role == "output"
    }
    found: dict[Finding, None] = {}
    for file in every:
        words = allowed.words(file.path, book=book)
        listed = allowed.files.get(file.path) == digest(file.pieces[0].content)
        theme = book and file.path.startswith(STATIC)
        for piece in file.pieces:
            said = [*marked(piece), *identified(piece, words), *called(piece)]
            said += [] if listed or theme else pictured(piece, file.marks, made)
            found |= dict.fromkeys(Finding(file.path, piece.where, what) for what in said)
        if not book and not listed:
            found |= dict.fromkeys(unlisted(file, allowed))
    return list(found)


@dataclass(frozen=True)
class File:
    """A file, its pieces, the whole first, and the sources whose marks are in them."""

    path: str
    pieces: list[Piece]
    marks: list[str]


def look(path: str, content: bytes) -> File:
    """Take a file apart; its name may hold identifiers too."""
    whole = Piece("", kind_of(content), content)
    pieces = take_apart(content)
    pieces = pieces if pieces[0] == whole else [whole, *pieces]
    marks = sorted({name for piece in pieces for name in sources_in(piece.content)})
    return File(path, [*pieces, Piece("its name", "text", path.encode(errors="replace"))], marks)


def digest(content: bytes) -> str:
    """The hash by which a file is listed."""
    return hashlib.sha256(content).hexdigest()


def marked(piece: Piece) -> Iterator[str]:
    """Say whose mark a piece carries."""
    sources = sources_in(piece.content)
    if sources:
        yield f"carries the mark of {', '.join(sources)}"


def identified(piece: Piece, words: set[str]) -> Iterator[str]:
    """Say what identifiers there are, without repeating them whole: this goes to a log."""
    if piece.kind != "text":
        return
    patterns = dict(IDENTIFIERS)
    if BESIDE.search(piece.content):
        patterns["a number of MIMIC"] = NUMBER
    for what, pattern in patterns.items():
        for match in re.finditer(pattern, piece.content, flags=re.IGNORECASE):
            if match[0].decode() not in words:
                line = piece.content.count(b"\n", 0, match.start()) + 1
                yield f"line {line} names {what} ({match[0].decode()[:3]}...)"
                break


def called(piece: Piece) -> Iterator[str]:
    """Say whether a cell was given folders of real data, or read them."""
    if piece.role != "source" or piece.kind != "text" or not piece.executed:
        return
    if LOADERS.search(piece.content):
        yield "was executed on real data"
    if READERS.search(piece.content):
        yield "reads images from files"
    for sources in parameters(piece.content):
        yield f"names folders of {', '.join(sources)}"


def parameters(source: bytes) -> Iterator[list[str]]:
    """The real data whose folders a cell assigns to a name."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return
    for node in statements:
        try:
            value = ast.literal_eval(getattr(node, "value", None) or "None")
        except (ValueError, TypeError):
            continue
        sources = sorted(named_sources({"value": value}))
        if sources:
            yield sources


def pictured(piece: Piece, marks: list[str], made: set[str]) -> Iterator[str]:
    """Say what is wrong with an image, or with a pickle.

    Args:
        piece: The piece.
        marks: Whose marks are in the file.
        made: Hashes of what notebooks of the same book show.
    """
    if piece.kind == "pickle":
        yield "holds a pickle, which nobody can look into safely"
    if piece.kind != "image":
        return
    if piece.role == "output" and marks:
        yield f"shows an image in a notebook made from {', '.join(marks)}"
    elif piece.role == "output" and piece.shown and DRAWN not in piece.content[:400]:
        yield f"shows an image ({piece.format}) that is no figure"
    elif piece.role in ("attachment", "source"):
        yield f"holds an image ({piece.format}) that no code made"
    elif piece.role == "file" and digest(piece.content) not in made:
        yield f"holds an image ({piece.format}) that is not in {ALLOWED}"


def unlisted(file: File, allowed: Allowed) -> Iterator[Finding]:
    """Refuse a file that is not text and not listed."""
    whole = file.pieces[0]
    listed = any(fnmatch(file.path, pattern) for pattern in allowed.binary)
    if whole.kind == "text":
        return
    if not listed or any(part in file.path for part in UNFINISHED):
        what = f"is not text and not in {ALLOWED} (sha256 {digest(whole.content)})"
        yield Finding(file.path, "", what)
    elif file.path.endswith(".safetensors") and all(p.where != HEADER for p in file.pieces):
        yield Finding(file.path, "", "is no safetensors file")


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
