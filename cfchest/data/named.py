"""Where the images of a table are: found by their names, in whatever folders they lie."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from cfchest.data.ledger import EXAMPLES, Ledger
from cfcore.checks import InputError

_DEPTH = 3  # folders below the root
_ENDINGS = (".png", ".jpg", ".jpeg")


def image_files(root: Path, names: Iterable[str], ledger: Ledger) -> list[str]:
    """The file of each image, up to three folders below ``root``; ``images/NAME`` if there is none.

    A file of exactly that name is taken first, then one with another ending of an image. Of two,
    as some sets are packed, one is taken if both have as many bytes; else nobody can tell which is
    meant, and that raises. Other endings and copies are counted.
    """
    files, found, other, copies = _below(root), [], [], []
    for name in (text.strip() for text in names):
        same = files.get(Path(name).stem.lower(), [])
        chosen = [path for path in same if path.name == name] or same
        if len({path.stat().st_size for path in chosen} if len(chosen) > 1 else ()) > 1:
            both = " and ".join(str(path.relative_to(root)) for path in chosen[:2])
            raise InputError(f"{root} has {name} twice, and they differ: {both}; keep one of them")
        other += [f"{chosen[0].name} for {name}"] if chosen and chosen[0].name != name else []
        copies += [f"{name}: {chosen[0]} is taken"] if len(chosen) > 1 else []
        found.append(str(chosen[0] if chosen else root / "images" / name))
    for reason, places in (("under another ending", other), ("in two folders", copies)):
        ledger.add("found", reason, places[:EXAMPLES], len(places))
    return found


def _below(root: Path) -> dict[str, list[Path]]:
    """The images by their names without the ending, in the order of their paths."""
    files = defaultdict(list)
    for path in sorted(_walked(root, _DEPTH)):
        files[path.stem.lower()].append(path)
    return files


def _walked(folder: Path, depth: int) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and depth and not entry.name.startswith((".", "__")):
                yield from _walked(Path(entry.path), depth - 1)
            elif entry.name.lower().endswith(_ENDINGS) and not entry.name.startswith("."):
                yield Path(entry.path)
