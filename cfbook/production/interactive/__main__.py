"""Write the data and the still pictures of the interactive pages into a folder."""

import json
import sys
from pathlib import Path

from cfbook.production.interactive.explorer import explorer
from cfbook.production.interactive.playground import matrix, playground
from cfbook.production.interactive.stills import explorer_still, playground_still
from cfbook.study.presets import Preset, preset
from cfcore.files import check_writable, write_atomically


def script(name: str, data: object) -> bytes:
    """Data as a script that sets a global: a browser that reads from a disk fetches nothing else.

    Example:
        >>> script("EXPLORER", {"ages": [20]})
        b'window.EXPLORER = {"ages":[20]};\\n'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return f"window.{name} = {text};\n".encode()


def write(folder: Path, sizes: Preset) -> list[Path]:
    """Make everything that the pages load beside their own source.

    Args:
        folder: Where to write, the ``_static`` folder of the book that is rendered.
        sizes: The preset.

    Returns:
        The files.
    """
    check_writable(folder)
    seen, table = explorer(sizes), matrix(sizes)
    files = {
        "explorer-data.js": script("EXPLORER", seen),
        "explorer.png": explorer_still(seen),
        "playground-data.js": script("PLAYGROUND", playground(table)),
        "playground.png": playground_still(table),
    }
    return [write_atomically(folder / name, content) for name, content in files.items()]


if __name__ == "__main__":
    for path in write(Path(sys.argv[1]), preset("book")):
        print(path)
