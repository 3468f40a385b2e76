"""What git tracks, and what it is about to."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

from cfcore.checks import InputError


def _git(*words: str) -> bytes:
    """What git says; an error of git is an :class:`~cfcore.checks.InputError`."""
    try:
        found = subprocess.run(["git", *words], capture_output=True)
    except FileNotFoundError:
        raise InputError("git cannot be found: name the files to look at") from None
    if found.returncode:
        message = found.stderr.decode(errors="replace").strip()
        raise InputError(f"git {words[0]} fails: {message}")
    return found.stdout


def _names(*words: str) -> list[str]:
    """The paths that git lists, from the top."""
    return _git(*words, "-z").decode(errors="surrogateescape").split("\0")[:-1]


def top() -> Path:
    """The folder of this repository."""
    return Path(_git("rev-parse", "--show-toplevel").decode().rstrip("\n"))


def staged() -> Iterator[tuple[str, bytes]]:
    """Every file that the next commit changes, by its path, as the commit will have it."""
    options = ("--name-only", "--no-renames", "--ignore-submodules", "--diff-filter=d")
    for path in _names("diff", "--cached", *options):
        yield path, _git("show", f":{path}")


def tracked() -> Iterator[tuple[str, bytes]]:
    """Every file in the index, and once more what was changed since it was put there."""
    root, changed = top(), set(_names("diff", "--name-only", "--ignore-submodules"))
    for path in _names("ls-files", "--full-name", ":/"):
        file = root / path
        if path in changed or file.is_symlink():
            yield path, _git("show", f":{path}")
        if file.is_file() and not file.is_symlink():
            yield path, file.read_bytes()
