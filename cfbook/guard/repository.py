"""What git tracks, and what it is about to."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from cfcore.checks import InputError

MODULE = "160000"  # the mode by which git knows another repository


def git(*words: str, given: bytes | None = None) -> bytes:
    """What git says; an error of git is an :class:`~cfcore.checks.InputError`."""
    try:
        found = subprocess.run(["git", *words], input=given, capture_output=True)
    except FileNotFoundError:
        raise InputError("git cannot be found: name the files to look at") from None
    if found.returncode:
        message = found.stderr.decode(errors="replace").strip()
        raise InputError(f"git {words[0]} fails: {message}")
    return found.stdout


def top() -> Path:
    """The folder of this repository."""
    return Path(git("rev-parse", "--show-toplevel").decode().rstrip("\n"))


def staged() -> Iterator[tuple[str, bytes]]:
    """Every file that the next commit changes, by its path, as the commit will have it."""
    words = ("diff", "--cached", "--raw", "-z", "--no-renames", "--no-abbrev", "--diff-filter=d")
    fields = git(*words).decode(errors="surrogateescape").split("\0")
    pairs = zip(fields[0::2], fields[1::2], strict=False)
    files = {path: facts.split() for facts, path in pairs if facts.split()[1] != MODULE}
    yield from contents({path: facts[3] for path, facts in files.items()})


def tracked() -> Iterator[tuple[str, bytes]]:
    """Every file in the index, and once more what was changed since it was put there."""
    entries = {}
    for line in git("ls-files", "--stage", "-z", "--full-name", ":/").split(b"\0")[:-1]:
        facts, _, path = line.decode(errors="surrogateescape").partition("\t")
        mode, name, _ = facts.split()
        if mode != MODULE:
            entries[path] = name
    yield from contents(entries)
    changed = git("diff", "--name-only", "-z", "--diff-filter=d").split(b"\0")[:-1]
    for path in (name.decode(errors="surrogateescape") for name in changed):
        file = top() / path
        if file.is_file() and not file.is_symlink():
            yield path, file.read_bytes()


def contents(entries: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """The content of each entry, by its path."""
    asked = "".join(f"{name}\n" for name in entries.values()).encode()
    answer, start = git("cat-file", "--batch", given=asked), 0
    for path in entries:
        end = answer.index(b"\n", start)
        size = int(answer[start:end].split()[-1])
        yield path, answer[end + 1 : end + 1 + size]
        start = end + 1 + size + 1
