"""Where a number comes from: what ran, with which parameters, on which data, code and versions.

A run of a notebook leaves a *record* beside it, a small JSON file. What differs from run to run,
such as the minutes it took, is there and not in the notebook, which stays the same byte by byte.
"""

import hashlib
import json
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from threading import Event, Thread

import pandas as pd

from cfbook.paths import PACKAGES, ROOT
from cfcore.checks import InputError
from cfcore.files import write_atomically

_SHARED = ("commit", "code", "data", "machine")  # told once if they were the same in all runs
_DIGITS = 10  # of a hash, where it is shown


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Measures a run: the minutes, and the megabytes of the processes that it starts.

    Memory is the resident memory of all descendants of this process together, looked at ten times
    a second; a peak that is over sooner may be missed.

    Example:
        >>> with watched() as took:
        ...     _ = subprocess.run(["sleep", "0.5"])
        >>> took["minutes"] >= 0.008, took["megabytes"] > 0
        (True, True)
    """
    took, over, began = {"minutes": 0.0, "megabytes": 0.0}, Event(), time.monotonic()
    thread = Thread(target=_look, args=(took, over), daemon=True)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()
        took["minutes"] = round((time.monotonic() - began) / 60, 3)


def _look(took: dict[str, float], over: Event) -> None:
    import psutil

    while not over.wait(0.1):
        total = 0
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it has ended meanwhile
                total += process.memory_info().rss
        took["megabytes"] = max(took["megabytes"], round(total / 1e6))


def _content_hash(folder: Path, pattern: str = "*") -> str | None:
    """A hash of the names and contents of the files below a folder, None if there are none.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> _content_hash(folder) is None
        True
        >>> _ = (folder / "a.txt").write_text("a")
        >>> _content_hash(folder)[:10]
        '68fc94621b'
    """
    digest, files = hashlib.sha256(), sorted(p for p in folder.rglob(pattern) if p.is_file())
    for path in files:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return digest.hexdigest() if files else None


def _git(*words: str) -> str | None:
    """What git says of this project, None if it does not run from a repository."""
    call = ["git", "-C", str(ROOT), *words]
    try:
        found = subprocess.run(call, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def _versions() -> dict[str, str]:
    """Python, and the installed versions of all packages that the project asks for."""
    asked = {re.match(r"[\w.-]+", text)[0].lower() for text in metadata.requires("cfcore") or []}
    installed = {one.name.lower(): one.version for one in metadata.distributions()}
    own = {"python": platform.python_version(), "cfcore": metadata.version("cfcore")}
    return own | {name: installed[name] for name in sorted(asked & set(installed))}


def _seeds(parameters: Mapping[str, object]) -> dict[str, object]:
    """What decides the random numbers of a run: its own seeds, those of its preset, or nothing.

    Example:
        >>> _seeds({"preset": "book", "trainings": 3})
        {'patients': 2026, 'trainings': [0, 1, 2]}
        >>> _seeds({"alpha": 0.4})
        {}
    """
    from cfbook.study.presets import PRESETS

    found = {name: value for name, value in parameters.items() if "seed" in name}
    if parameters.get("preset") in PRESETS:
        found["patients"] = PRESETS[parameters["preset"]].cohort
    if isinstance(parameters.get("trainings"), int):
        found["trainings"] = list(range(parameters["trainings"]))
    return found


def write_record(
    path: Path, source: Path, parameters: Mapping[str, object], facts: Mapping[str, object]
) -> Path:
    """Write everything that is needed to make a run again, as JSON.

    Args:
        path: Where to write; the folder is made if need be.
        source: The notebook that ran.
        parameters: All its parameters, changed or not.
        facts: What else to write: how it ended, and what it took.
    """
    changed = _git("status", "--porcelain", "--untracked-files=no")
    code = "".join(str(_content_hash(ROOT / name, "*.py")) for name in PACKAGES)
    made = {
        "notebook": source.stem,
        "parameters": dict(parameters),
        "seeds": _seeds(parameters),
        "commit": _git("rev-parse", "HEAD"),
        "changed": None if changed is None else bool(changed),
        "source": hashlib.sha256(source.read_bytes()).hexdigest(),
        "code": hashlib.sha256(code.encode()).hexdigest(),
        "data": _content_hash(ROOT / "data"),
        "versions": _versions(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**facts, **made}, indent=2, allow_nan=False, default=str) + "\n"
    return write_atomically(path, text.encode())


def _read_records(folder: Path) -> dict[str, dict | None]:
    """The record of every executed notebook of a folder by name, None of those that have none.

    The status of a record that does not belong to the notebook beside it is ``"outdated"``.
    """
    paths = sorted(path for path in folder.glob("*.ipynb") if ".failed" not in path.name)
    if not paths:
        raise InputError(f"{folder} holds no executed notebook")
    return {path.stem: _beside(path) for path in paths}


def _beside(path: Path) -> dict | None:
    beside = path.with_suffix(".provenance.json")
    if not beside.is_file():
        return None
    try:
        facts = json.loads(beside.read_text())
        same = facts["executed"] == hashlib.sha256(path.read_bytes()).hexdigest()
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{beside} is not a record of a run: {error!r}") from None
    return facts if same else facts | {"status": "outdated"}


def page(folder: Path) -> str:
    """The records of a folder as tables, in Markdown that any parser leaves alone.

    What was the same in all runs is told once; what was not has a column. It is a block of raw
    HTML, in which everything is escaped.
    """
    records = _read_records(folder)
    runs = pd.DataFrame.from_dict({name: _row(facts) for name, facts in records.items()}, "index")
    known = runs[[facts is not None for facts in records.values()]]
    same = [name for name in known if name in _SHARED and known[name].nunique() == 1]
    chapters = runs.drop(columns=same).fillna("").rename_axis("chapter").reset_index()
    common = pd.DataFrame({"what": same, "value": [known[name].iloc[0] for name in same]})
    versions = {pair for facts in records.values() if facts for pair in facts["versions"].items()}
    link = r'\1<a href="../notebooks/\2.html">\2</a>'
    first = re.sub(r"(<tr>\s*<td>)([^<]*)", link, _table(chapters))
    last = _table(pd.DataFrame(sorted(versions), columns=["package", "version"]))
    titles = "<h3>The same in all runs</h3>", "<h3>Versions</h3>"
    return _raw("\n".join((first, titles[0], _table(common), titles[1], last)))


def as_html(frame: pd.DataFrame) -> str:
    """A table as a block of raw HTML for a page."""
    return _raw(_table(frame))


def _raw(html: str) -> str:
    return f"```{{raw}} html\n{html}\n```\n"


def _table(frame: pd.DataFrame) -> str:
    """A table in HTML, every cell escaped, backticks too, since it will stand in a fence."""
    with pd.option_context("display.max_colwidth", None):
        return frame.to_html(index=False, border=0, classes="table").replace("`", "&#96;")


def _row(facts: Mapping | None) -> dict[str, str]:
    """One run, as the cells of a table."""
    if facts is None:
        return {"status": "not recorded"}
    commit = (facts["commit"] or "no repository")[:_DIGITS]
    return {
        "status": facts["status"],
        "minutes": f"{facts['minutes']:.2f}",
        "memory, MB": f"{facts['megabytes']:.0f}",
        "parameters": _listed(facts["parameters"]),
        "seeds": _listed(facts["seeds"]) or "none",
        "commit": f"{commit}, and changes" if facts["changed"] else commit,
        "code": (facts["code"] or "none")[:_DIGITS],
        "data": (facts["data"] or "none")[:_DIGITS],
        "machine": facts["machine"],
    }


def _listed(values: Mapping[str, object]) -> str:
    """Names and values in words; of a folder of this machine its last name alone.

    Example:
        >>> _listed({"preset": "book", "folder": "", "trainings": [0, 1]})
        'preset = "book", folder = "", trainings = [0, 1]'
        >>> _listed({"data": {"chexpert": "/disk/me/chexpert"}})
        'data = {"chexpert": ".../chexpert"}'
    """
    text = ", ".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
    return re.sub(r'"(?:[~/]|[A-Za-z]:[\\/])[^"]*?([^"\\/]+)[\\/]*"', r'".../\1"', text)
