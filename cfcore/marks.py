"""What may not be shared: marked, kept where git does not look, announced in notebooks.

Images of real people and their identifiers have no place in a repository. So every loader of such
data names its source, and the name travels: from the data to predictions, bundles, weights and
notebooks, as a mark that can be found again in the bytes of a file, whatever the file is called.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from cfcore.checks import InputError

_PREFIX = "cfcore-restricted:"
_MARK = re.compile(rf"{_PREFIX}([a-z0-9_-]+)".encode())

_announced: set[str] = set()


def marked(sources: Iterable[str]) -> dict[str, list[str]]:
    """The entry of a manifest that says what an artefact was made of; none without sources.

    Example:
        >>> marked([]), list(marked(["ward-7"]))
        ({}, ['restricted'])
    """
    marks = [_PREFIX + name for name in sorted(set(sources))]
    for mark in marks:
        if not _MARK.fullmatch(mark.encode()):
            name = mark.removeprefix(_PREFIX)
            raise InputError(f"{name!r} cannot name a source: use a to z, 0 to 9, - and _")
    return {"restricted": marks} if marks else {}


def label(sources: Iterable[str]) -> dict[str, str] | None:
    """The same as metadata of a safetensors file; None, without a trace, if there are none."""
    return {name: " ".join(marks) for name, marks in marked(sources).items()} or None


def sources_in(content: bytes) -> list[str]:
    """The sources whose marks are somewhere in the content of a file.

    Example:
        >>> sources_in(f"... {marked(['ward-7'])} ...".encode()), sources_in(b"...")
        (['ward-7'], [])
    """
    return sorted({found.decode() for found in _MARK.findall(content)})


def check_place(path: str | Path, sources: Iterable[str]) -> None:
    """Refuse to write what may not be shared, by its sources, where git would track it.

    Outside a repository anything may be written; inside, only what git ignores. Where git cannot
    be asked, a repository tracks everything.

    Example:
        >>> check_place(getfixture("tmp_path") / "a.ipynb", ["ward-7"])  # no repository
        >>> check_place("notebooks/metrics.ipynb", [])
    """
    names = sorted(set(sources))
    if names and tracked(Path(os.path.realpath(path))):
        raise InputError(
            f"{path}: made from {', '.join(names)}, which may not be shared, and git would track "
            "it there; write to a folder that git ignores, such as restricted/ or runs/"
        )


def tracked(path: Path) -> bool:
    """Whether a file would be seen by git: in a repository, and not ignored."""
    above = next(folder for folder in path.parents if folder.is_dir())
    # A hook runs with the repository of a commit in its environment.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    call = ["git", "-C", str(above), "check-ignore", "--quiet", "--", str(path)]
    try:
        code = subprocess.run(call, env=own, capture_output=True, timeout=30).returncode
    except (OSError, subprocess.SubprocessError):
        code = None
    if code in (0, 1):
        return code == 1
    return any((folder / ".git").exists() for folder in path.parents)


def announce(sources: Iterable[str]) -> None:
    """Put the mark under this cell and every later one of the notebook that runs this, if one does.

    A cell that shows images or patients thus carries the mark itself, however the notebook is
    executed, and into whatever notebook or page it is copied.
    """
    notebook = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    new = set(sources) - _announced
    if notebook is not None and new:
        if not _announced:
            notebook.events.register("post_run_cell", _show)
        _announced.update(new)


def _show(_: object = None) -> None:
    from IPython.display import display

    words = " ".join(*marked(_announced).values())
    display({"text/plain": f"Made from real patients, not to be shared: {words}"}, raw=True)
