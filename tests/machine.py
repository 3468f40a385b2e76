"""Paths of the machine that made something, which no page may show."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
OWN = {str(place) for place in (ROOT.resolve(), ROOT, Path.home(), Path(sys.prefix))} - {"/"}
ANY = re.compile(
    r"(?<![\w.~}:])/(?:root|home|Users|tmp|private|var|opt|mnt|work|builds?)/[\w.-]+"
    r"|[A-Z]:\\+Users\b|\bsite-packages\b|\bPosixPath\("
)


def own_paths(text: str) -> list[str]:
    """Folders of this machine in a text: the project, the home, the environment."""
    return sorted(place for place in OWN if re.search(re.escape(place) + r"\b", text))


def all_paths(text: str) -> list[str]:
    """Whatever looks like a folder of any machine, ours included."""
    return sorted({*ANY.findall(text), *own_paths(text)})
