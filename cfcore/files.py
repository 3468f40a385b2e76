"""Writing files: whole or not at all."""

import os
from pathlib import Path


def write_atomically(path: str | Path, content: bytes) -> Path:
    """Write a file so that readers see the old content or the new one, never a part.

    The content goes to a temporary file in the same folder, which then takes the name. A full
    disk or a kill leaves what was there before.

    Args:
        path: Where to write; the folder must exist.
        content: What to write.

    Returns:
        The path.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> write_atomically(folder / "a.txt", b"whole").read_bytes()
        b'whole'
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
