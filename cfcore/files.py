"""Writing files whole or not at all."""

import errno
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from cfcore.marks import check_place, sources_in


def check_writable(folder: str | Path, size: int = 1) -> Path:
    """Make a folder and see that a file of some size can be written there.

    To be called before a long computation whose result goes there: a folder that cannot be made,
    a disk that is mounted for reading only or that is full shows now and not hours later, as an
    OSError whose ``filename`` is the folder. What is written for the purpose never has a name, so
    that not even a kill leaves it behind.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> check_writable(folder / "new").is_dir()
        True
        >>> (folder / "file").touch()
        >>> check_writable(folder / "file" / "new")
        Traceback (most recent call last):
        ...
        NotADirectoryError: [Errno 20] Not a directory: ...
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            _write(file, bytes(size))
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(folder)) from None
    return Path(folder)


def _write(file: BinaryIO, content: bytes) -> None:
    """Write to the disk itself, not to a buffer."""
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def write_atomically(path: str | Path, content: bytes) -> Path:
    """Write a file so that readers see the old content or the new one, never a part.

    The content goes to a temporary file in the same folder, which then takes the name. A full
    disk or a kill leaves what was there before. A link is written through, the permissions of an
    existing file are kept, and what is not a regular file is refused; so is content that carries a
    mark of what may not be shared, where git would track it (:mod:`cfcore.marks`). The ``filename``
    of an OSError is the path that was asked for.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> write_atomically(folder / "a.txt", b"whole").read_bytes()
        b'whole'
    """
    check_place(path, sources_in(content))
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        kind = errno.EISDIR if target.is_dir() else errno.EINVAL
        raise OSError(kind, os.strerror(kind), str(path))
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            _write(file, content)
        if target.exists():
            temporary.chmod(target.stat().st_mode)
        temporary.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)
    return Path(path)
