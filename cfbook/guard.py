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

What is made of open data (``open`` in ``.guard.yml``) passes with the mark of its source if it is
what the list says: scores, averages over many patients, weights, text (:mod:`cfbook.shareable`).

It stops accidents, not malice. It does not catch what an archive (refused unless listed), a
compressed file or base64 holds; a figure of real patients without a mark, read by other means than
our loaders; identifiers in any other form, and tables without them; new content of a listed file
without mark and identifier; and in ``_static`` of a book anything but marks and identifiers.
"""

import base64
import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal, NamedTuple

from cfbook.shareable import unshareable
from cfcore.checks import InputError
from cfcore.marks import sources_in

_LIST = ".guard.yml"
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
_DRAWN = b"Matplotlib"  # what matplotlib writes into the first lines of every figure
_FIRST = 1000
_OUTPUTS = ("shown", "drawn")


class Finding(NamedTuple):
    """Something that may not be shared: the file, the cell or part if any, and what is wrong."""

    path: str
    where: str
    what: str

    def __str__(self) -> str:
        return ": ".join(part for part in self if part)


class _Part(NamedTuple):
    """A part of a file; an image is *shown* by an output, *drawn* there inside a figure, or
    *pasted* into a cell or page.
    """

    where: str
    kind: Literal["text", "binary", "shown", "drawn", "pasted"]
    content: bytes


@dataclass(frozen=True)
class _Allowed:
    """What passes all the same: the content of ``.guard.yml``.

    Attributes:
        identifiers: Invented or published identifiers, exact, by the file they may stand in.
        binary: Patterns of files that are not text, with what they hold.
        open: By a source that everybody may use, patterns of files that may carry its mark, with
            the kind of what they hold.
    """

    identifiers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    binary: Mapping[str, str] = field(default_factory=dict)
    open: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "_Allowed":
        """Read the list; nothing passes if there is no such file."""
        import yaml

        try:
            return cls(**yaml.safe_load(path.read_text())) if path.is_file() else cls()
        except (TypeError, yaml.YAMLError) as error:
            raise InputError(f"{path}: this is no list of what is allowed: {error}") from None

    def words(self, path: str, *, book: bool) -> set[str]:
        """The identifiers that may stand in a file; in a book, those of the code and pages."""
        return {
            word
            for source, words in self.identifiers.items()
            if path in (source, _LIST) or (book and not source.startswith("tests/"))
            for word in words
        }

    def opened(self, path: str, source: str) -> str:
        """The kind of which a file of a source that everybody may use has to be; "" if of none."""
        kinds = self.open.get(source, {}).items()
        return next((kind for pattern, kind in kinds if fnmatch(path, pattern)), "")

    def lists(self, path: str, parts: list[_Part]) -> bool:
        """Whether a file that is not text is on the list, finished, and what its name says."""
        patterns = [*self.binary, *(pattern for own in self.open.values() for pattern in own)]
        known = any(fnmatch(path, pattern) for pattern in patterns)
        whole = not path.endswith(".safetensors") or len(parts) == 2
        return known and whole and ".checkpoint." not in path


def search(
    paths: Iterable[Path] = (), *, staged: bool = False, book: Path | None = None
) -> list[Finding]:
    """Search files and folders, a rendered book, what is staged, or all that git tracks."""
    if paths or book is not None:
        files, folder = _walk(paths if book is None else [book]), Path()
    else:
        folder, files = _top(), _staged() if staged else _tracked()
    return inspect(files, _Allowed.read(folder / _LIST), book=book is not None)


def inspect(
    files: Iterable[tuple[str, bytes]], allowed: _Allowed | None = None, *, book: bool = False
) -> list[Finding]:
    """Look for anything of real patients.

    Args:
        files: Path and content of each file.
        allowed: What passes all the same.
        book: Whether these files are a rendered book, in which fonts and the outputs of its own
            notebooks have a place.

    Example:
        >>> id = "patient" + "1" * 5
        >>> print(*inspect([("notes.md", f"see {id}".encode()), ("empty.md", b"")]))
        notes.md: line 1 names a patient of CheXpert (pat...)
    """
    allowed = allowed or _Allowed()
    every = [(path, list(_parts(content))) for path, content in files]
    clean = [parts for _, parts in every if book and not _sources(parts)]
    made = {part.content for parts in clean for part in parts if part.kind in _OUTPUTS}
    found: dict[Finding, None] = {}
    for path, parts in every:
        words, sources = allowed.words(path, book=book), _sources(parts)
        passes = path.startswith(_BOOK) if book else allowed.lists(path, parts)
        for part in (*parts, _Part("its name", "text", path.encode(errors="replace"))):
            marks, said = sources_in(part.content), []
            for source in [name for name in marks if allowed.opened(path, name)]:
                marks.remove(source)
                why = unshareable(allowed.opened(path, source), parts[0].content)
                said += [f"is made of {source} and {why}"] if why else []
            said += [f"carries the mark of {', '.join(marks)}"] if marks else []
            said += _identified(part, words)
            if not passes and (part.kind in _OUTPUTS or part.content not in made):
                said += _unfit(part, sources)
            found |= dict.fromkeys(Finding(path, part.where, what) for what in said)
    return list(found)


def _sources(parts: list[_Part]) -> list[str]:
    """The sources whose marks a file carries."""
    return sorted({name for part in parts for name in sources_in(part.content)})


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
        yield f"is not text and not in {_LIST}"
    elif part.kind in _OUTPUTS and sources:
        yield f"shows an image in a notebook made from {', '.join(sources)}"
    elif part.kind == "shown" and _DRAWN not in part.content[:_FIRST]:
        yield "shows an image that is no figure"
    elif part.kind == "pasted":
        yield "holds an image that no code made"


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
    try:
        notebook = json.loads(text) if '"cells"' in text else None
    except ValueError:
        notebook = None
    if isinstance(notebook, dict) and isinstance(notebook.get("cells"), list):
        yield from _cells(notebook)
    else:
        yield from _written("", "pasted", content)


def _written(where: str, kind: str, text: bytes) -> Iterator[_Part]:
    """A text, and the images that are written into it."""
    yield _Part(where, "text", text)
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
        yield from _written(where, "pasted", source)
        yield _Part(where, "text", _text(cell.get("metadata")))
        for name, given in cell.get("attachments", {}).items():
            yield _Part(f"{where}, attachment {name}", "pasted", _text(given))
        for count, output in enumerate(cell.get("outputs", []), start=1):
            place = f"{where}, output {count}"
            for kind, value in output.get("data", {}).items():
                shown = _text(value)
                if kind == "image/svg+xml":
                    yield _Part(place, "shown", shown)
                    drawn = "drawn" if _DRAWN in shown[:_FIRST] else "shown"
                    yield from _written(place, drawn, shown)
                elif kind.startswith("image/"):
                    yield _Part(place, "shown", _decoded(shown))
                else:
                    yield from _written(place, "shown", shown)
            for key in ("text", "traceback", "metadata"):
                yield _Part(place, "text", _text(output.get(key, "")))


def _text(value: object) -> bytes:
    """The text of a value in a notebook: lines, a text, or anything else as JSON."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "".join(value)
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def _walk(paths: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Every file at or below some paths, named relative to the path it is below."""
    for root in paths:
        if root.is_file():
            yield str(root), root.read_bytes()
        elif not root.is_dir():
            raise FileNotFoundError(f"{root}: there is no such file or folder")
        for path in sorted(root.rglob("*")):
            if path.is_file():
                yield str(path.relative_to(root)), path.read_bytes()


def _git(*words: str) -> bytes:
    """What git says; an error of git is an :class:`~cfcore.InputError`."""
    try:
        return subprocess.run(["git", *words], capture_output=True, check=True).stdout
    except FileNotFoundError:
        raise InputError("git cannot be found: name the files to look at") from None
    except subprocess.CalledProcessError as error:
        message = error.stderr.decode(errors="replace").strip()
        raise InputError(f"git {words[0]} fails: {message}") from None


def _names(*words: str) -> list[str]:
    """The paths that git lists, from the top."""
    return _git(*words, "-z").decode(errors="surrogateescape").split("\0")[:-1]


def _top() -> Path:
    return Path(_git("rev-parse", "--show-toplevel").decode().rstrip("\n"))


def _staged() -> Iterator[tuple[str, bytes]]:
    """Every file that the next commit changes, by its path, as the commit will have it."""
    options = ("--cached", "--name-only", "--no-renames", "--ignore-submodules", "--diff-filter=d")
    return ((path, _git("show", f":{path}")) for path in _names("diff", *options))


def _tracked() -> Iterator[tuple[str, bytes]]:
    """Every file in the index, and once more what was changed since it was put there."""
    root, changed = _top(), set(_names("diff", "--name-only", "--ignore-submodules"))
    for path in _names("ls-files", "--full-name", ":/"):
        file = root / path
        if path in changed or file.is_symlink():
            yield path, _git("show", f":{path}")
        if file.is_file() and not file.is_symlink():
            yield path, file.read_bytes()
