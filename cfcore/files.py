"""Writing files: whole or not at all."""

import errno
import os
from pathlib import Path


def write_atomically(path: str | Path, content: bytes) -> Path:
    """Write a file so that readers see the old content or the new one, never a part.

    The content goes to a temporary file in the same folder, which then takes the name. A full
    disk or a kill leaves what was there before. A link is written through, the permissions of an
    existing file are kept, and what is not a regular file is refused.

    Args:
        path: Where to write; the folder must exist.
        content: What to write.

    Returns:
        The path.

    Raises:
        OSError: If it cannot be written; its ``filename`` is the path that was asked for.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> write_atomically(folder / "a.txt", b"whole").read_bytes()
        b'whole'
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        kind = errno.EISDIR if target.is_dir() else errno.EINVAL
        raise OSError(kind, os.strerror(kind), str(path))
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(target.stat().st_mode)
        temporary.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)
    return Path(path)
