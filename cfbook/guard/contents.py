"""A file taken apart, so that each piece can be judged and named: cells, members, embedded images.

Whatever a file is called, its content says what it is: a notebook, an archive, an artefact of this
project, text with something encoded in it. Archives and encoded parts are opened, to some depth.
"""

import base64
import bz2
import gzip
import io
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from cfcore.marks import MARK

Kind = Literal["text", "image", "pickle", "binary"]
Role = Literal["file", "source", "attachment", "output", "metadata"]

IMAGES = {
    "PNG": rb"\x89PNG\r\n",
    "JPEG": rb"\xff\xd8\xff",
    "GIF": rb"GIF8[79]a",
    "WebP": rb"RIFF....WEBP",
    "TIFF": rb"II\*\0|MM\0\*",
    "BMP": rb"BM.{4}\0\0\0\0",
    "JPEG 2000": rb"\0\0\0\x0cjP  ",
    "DICOM": rb".{128}DICM",
    "NIfTI": rb".{344}n[i+]1\0",
    "NumPy": rb"\x93NUMPY",
}
PACKED = {b"\x1f\x8b": gzip.decompress, b"BZh": bz2.decompress, b"\xfd7zXZ": lzma.decompress}
ENCODED = re.compile(rb"[A-Za-z0-9+/]{64}[A-Za-z0-9+/\s\\n]*={0,2}")
HEADER = "header"  # of a safetensors file
DEPTH = 6  # an archive in an archive in a cell, and no further


@dataclass(frozen=True)
class Piece:
    """A part of a file.

    Attributes:
        where: What a reader finds it by, such as ``cell 3 (plt.show())``; empty for a whole file.
        kind: What it is.
        content: Its bytes.
        role: What it is to the notebook it stands in; ``"file"`` elsewhere.
        executed: Whether it is the source of a cell that was executed.
        shown: Whether it is an output by itself, not something inside of one.
    """

    where: str
    kind: Kind
    content: bytes
    role: Role = "file"
    executed: bool = False
    shown: bool = False

    @property
    def format(self) -> str:
        """The format of an image, or of an array that may be one."""
        return next(name for name, start in IMAGES.items() if starts(start, self.content))


def starts(pattern: bytes, content: bytes) -> bool:
    """Whether content starts with a pattern."""
    return re.match(pattern, content[:400], flags=re.DOTALL) is not None


def kind_of(content: bytes) -> Kind:
    """What content is by its first bytes.

    Example:
        >>> import pickle
        >>> kind_of(b"words"), kind_of(pickle.dumps([1])), kind_of(bytes(9))
        ('text', 'pickle', 'binary')
    """
    if any(starts(start, content) for start in IMAGES.values()):
        return "image"
    if re.match(rb"\x80[\x02-\x05]", content) and content.rstrip(b"\n").endswith(b"."):
        return "pickle"
    try:
        content.decode()
    except UnicodeDecodeError:
        return "binary"
    return "binary" if b"\0" in content else "text"


def take_apart(content: bytes, where: str = "", role: Role = "file", depth: int = 0) -> list[Piece]:
    """All pieces of a file, the whole among them.

    Args:
        content: The bytes of the file.
        where: Where these bytes were found.
        role: What they are there.
        depth: How many archives or codes they are inside of.

    Example:
        >>> whole = gzip.compress(b"three words more")
        >>> [(piece.where, piece.kind) for piece in take_apart(whole)]
        [('', 'binary'), ('unpacked', 'text')]
    """
    whole = Piece(where, kind_of(content), content, role)
    if depth == DEPTH:
        return [whole]
    found = [whole]
    for name, member in members(content):
        inside = f"{where}, {name}" if where else name
        found += take_apart(member, inside, role, depth + 1)
    if whole.kind == "text":
        cells = read_notebook(content) if depth == 0 else None
        if cells is not None:
            return list(notebook_pieces(cells))
        for number, match in enumerate(ENCODED.finditer(content), start=1):
            inside = f"{where}, code {number}" if where else f"code {number}"
            found += decoded(match[0], inside, role, depth)
    return found


def decoded(text: bytes, where: str, role: Role, depth: int = 0) -> list[Piece]:
    """What base64 says, if it says something that is known here."""
    text = re.sub(rb"\s|\\n|=", b"", text)
    content = base64.b64decode(text[: len(text) - (len(text) % 4 == 1)] + b"==")
    pieces = take_apart(content, where, role, depth + 1)
    # Anything can be read as base64; only what makes sense then was meant so.
    known = pieces[0].kind != "binary" or len(pieces) > 1 or MARK.search(content)
    return pieces if known else []


def members(content: bytes) -> Iterator[tuple[str, bytes]]:
    """What is inside an archive, a compressed file or a safetensors file, by name."""
    for start, unpack in PACKED.items():
        if content.startswith(start):
            try:
                yield "unpacked", unpack(content)
            except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error):
                return
    if content.startswith(b"PK\x03\x04"):
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for name in archive.namelist():
                    yield name, archive.read(name)
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError, zlib.error):
            return
    size = int.from_bytes(content[:8], "little")
    if content[8:10] == b'{"':
        yield HEADER, content[8 : 8 + size]


def read_notebook(content: bytes) -> Mapping | None:
    """The notebook that a text is, whatever its name; None if it is none."""
    if b'"cells"' not in content:
        return None
    try:
        notebook = json.loads(content)
    except ValueError:
        return None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    return notebook if isinstance(cells, list) else None


def notebook_pieces(notebook: Mapping) -> Iterator[Piece]:
    """The pieces of a notebook, cell by cell."""
    yield Piece("metadata", "text", json.dumps(notebook.get("metadata")).encode(), "metadata")
    for number, cell in enumerate(notebook["cells"], start=1):
        source = joined(cell.get("source", ""))
        first = next((line for line in source.splitlines() if line.strip()), "empty")
        where = f"cell {number} ({first.strip()[:60]})"
        for piece in take_apart(source.encode(), where, "source", 1):
            yield replace(piece, executed=bool(cell.get("execution_count")))
        yield Piece(where, "text", json.dumps(cell.get("metadata")).encode(), "metadata")
        for name, bundle in cell.get("attachments", {}).items():
            yield from bundled(bundle, f"{where}, attachment {name}", "attachment")
        for count, output in enumerate(cell.get("outputs", []), start=1):
            place = f"{where}, output {count}"
            yield from bundled(output.get("data", {}), place, "output")
            said = [output.get("text", ""), output.get("traceback", []), output.get("metadata")]
            words = "\n".join(joined(part) for part in said if part)
            yield from take_apart(words.encode(), place, "output", 1)


def bundled(bundle: Mapping, where: str, role: Role) -> Iterator[Piece]:
    """The pieces of an output or attachment, which has one value for each format."""
    for kind, value in bundle.items():
        text = joined(value).encode()
        yield from take_apart(text, where, role, 1)
        if kind.startswith("image/") and kind != "image/svg+xml":
            for number, piece in enumerate(decoded(text, where, role, 1)):
                yield replace(piece, shown=number == 0)


def joined(value: object) -> str:
    """The text of a value in a notebook: lines, a text, or anything else as JSON."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return value if isinstance(value, str) else json.dumps(value)
