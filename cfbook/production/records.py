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
from collections.abc import Iterable, Mapping
from html import escape, unescape
from importlib import metadata
from pathlib import Path
from threading import Event, Thread
from urllib.parse import quote

from cfcore.checks import InputError
from cfcore.files import write_atomically
from cfscm.networks import commit

ROOT = Path(__file__).parents[2]
PACKAGES = ("cfcore", "cfscm", "cfchest", "cfbook")
ENDING = ".provenance.json"
DIGITS = 10  # of a hash, where it is shown


class Watch(Thread):
    """Measures a run: the time, and the memory of the processes that it starts.

    Memory is the resident memory of all descendants of this process together, looked at ten times
    a second; a peak that is over sooner may be missed.

    Example:
        >>> with Watch() as watch:
        ...     _ = subprocess.run(["sleep", "0.5"])
        >>> watch.minutes > 0.5 / 60, watch.megabytes > 0
        (True, True)
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.minutes, self.megabytes = 0.0, 0.0
        self._over = Event()

    def __enter__(self) -> "Watch":
        self._began = time.monotonic()
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self.join()
        self.minutes = (time.monotonic() - self._began) / 60

    def run(self) -> None:
        """Look, until the run is over."""
        while not self._over.wait(0.1):
            self.megabytes = max(self.megabytes, descendants_memory() / 1e6)


def descendants_memory() -> int:
    """The resident memory of all processes that descend from this one, in bytes."""
    import psutil

    total = 0
    for process in psutil.Process().children(recursive=True):
        try:
            total += process.memory_info().rss
        except psutil.Error:  # it has ended meanwhile
            continue
    return total


def content_hash(folder: Path, pattern: str = "*") -> str | None:
    """A hash of the names and contents of the files below a folder, None if there are none.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> content_hash(folder) is None
        True
        >>> _ = (folder / "a.txt").write_text("a")
        >>> content_hash(folder)[:10]
        '68fc94621b'
    """
    digest, files = hashlib.sha256(), sorted(p for p in folder.rglob(pattern) if p.is_file())
    for path in files:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return digest.hexdigest() if files else None


def code_hash() -> str:
    """A hash of the four packages."""
    hashes = [content_hash(ROOT / name, "*.py") for name in PACKAGES]
    return hashlib.sha256("".join(map(str, hashes)).encode()).hexdigest()


def changed() -> bool | None:
    """Whether tracked files differ from the commit, None if this is no repository."""
    call = ["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"]
    try:
        found = subprocess.run(call, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return bool(found.stdout.strip())


def versions() -> dict[str, str]:
    """Python, and the installed versions of all packages that the project asks for."""
    asked = [re.match(r"[\w.-]+", text)[0] for text in metadata.requires("cfcore") or []]
    found = {"python": platform.python_version(), "cfcore": metadata.version("cfcore")}
    for name in sorted({name.lower() for name in asked}):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def seeds(parameters: Mapping[str, object]) -> dict[str, object]:
    """What decides the random numbers of a run: its own seeds, those of its preset, or nothing.

    Example:
        >>> seeds({"preset": "book", "trainings": 3})
        {'patients': 2026, 'trainings': [0, 1, 2]}
        >>> seeds({"alpha": 0.4})
        {}
    """
    from cfbook.study.presets import PRESETS

    found = {name: value for name, value in parameters.items() if "seed" in name}
    if parameters.get("preset") in PRESETS:
        found["patients"] = PRESETS[parameters["preset"]].cohort
    if isinstance(parameters.get("trainings"), int):
        found["trainings"] = list(range(parameters["trainings"]))
    return found


def record(
    source: Path, parameters: Mapping[str, object], watch: Watch, **outcome: object
) -> dict[str, object]:
    """Everything that is needed to make a run again, and what it took.

    Args:
        source: The notebook that ran.
        parameters: All its parameters, changed or not.
        watch: What it took.
        **outcome: What came of it.

    Returns:
        The record, JSON values only.
    """
    return {
        "notebook": source.stem,
        **outcome,
        "parameters": dict(parameters),
        "seeds": seeds(parameters),
        "commit": commit(),
        "changed": changed(),
        "source": hashlib.sha256(source.read_bytes()).hexdigest(),
        "code": code_hash(),
        "data": content_hash(ROOT / "data"),
        "versions": versions(),
        "machine": f"{platform.system()} {platform.machine()}",
        "minutes": round(watch.minutes, 3),
        "megabytes": round(watch.megabytes),
    }


def write_record(path: Path, facts: Mapping[str, object]) -> Path:
    """Write a record; the folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(facts, indent=2, allow_nan=False, default=str) + "\n"
    return write_atomically(path, text.encode())


def read_records(folder: Path) -> dict[str, dict | None]:
    """The record of every executed notebook of a folder, None of those that have none.

    The status of a record that does not belong to the notebook beside it is ``"outdated"``.

    Args:
        folder: A folder of executed notebooks and their records.

    Returns:
        The records by name.
    """
    found: dict[str, dict | None] = {}
    for path in sorted(folder.glob("*.ipynb")):
        beside = path.with_name(path.stem + ENDING)
        if ".failed" in path.name:
            continue
        found[path.stem] = None
        if beside.is_file():
            try:
                facts = json.loads(beside.read_text())
                same = facts["executed"] == hashlib.sha256(path.read_bytes()).hexdigest()
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{beside} is not a record of a run: {error!r}") from None
            found[path.stem] = facts if same else facts | {"status": "outdated"}
    if not found:
        raise InputError(f"{folder} holds no executed notebook")
    return found


def page(folder: Path) -> str:
    """The records of a folder as tables, in Markdown that any parser leaves alone.

    What was the same in all runs is told once; what was not has a column.

    Args:
        folder: A folder of executed notebooks and their records.

    Returns:
        A block of raw HTML, in which everything is escaped.
    """
    records = read_records(folder)
    rows = {name: row(facts) for name, facts in records.items()}
    known = [rows[name] for name, facts in records.items() if facts is not None]
    common = {
        column: known[0][column]
        for column in ("commit", "code", "data", "machine")
        if len({cells[column] for cells in known}) == 1
    }
    header = ["chapter", *(column for column in COLUMNS if column not in common)]
    cells = [[name, *(found.get(c, "") for c in header[1:])] for name, found in rows.items()]
    versions = {pair for facts in records.values() if facts for pair in facts["versions"].items()}
    lines = [
        table(header, cells, link="../notebooks/{}.html"),
        "<h3>The same in all runs</h3>",
        table(("what", "value"), common.items()),
        "<h3>Versions</h3>",
        table(("package", "version"), sorted(versions)),
    ]
    return "\n".join(["```{raw} html", *lines, "```", ""])


COLUMNS = (
    "status",
    "minutes",
    "memory, MB",
    "parameters",
    "seeds",
    "commit",
    "code",
    "data",
    "machine",
)


def row(facts: Mapping | None) -> dict[str, str]:
    """One run, as the cells of a table."""
    if facts is None:
        return {"status": "not recorded"}
    commit = (facts["commit"] or "no repository")[:DIGITS]
    return {
        "status": facts["status"],
        "minutes": f"{facts['minutes']:.2f}",
        "memory, MB": f"{facts['megabytes']:.0f}",
        "parameters": listed(facts["parameters"]),
        "seeds": listed(facts["seeds"]) or "none",
        "commit": f"{commit}, and changes" if facts["changed"] else commit,
        "code": (facts["code"] or "none")[:DIGITS],
        "data": (facts["data"] or "none")[:DIGITS],
        "machine": facts["machine"],
    }


def listed(values: Mapping[str, object]) -> str:
    """Names and values in words; of a folder of this machine its last name alone.

    Example:
        >>> listed({"preset": "book", "folder": "", "trainings": [0, 1]})
        'preset = "book", folder = "", trainings = [0, 1]'
        >>> listed({"data": {"chexpert": "/disk/me/chexpert"}})
        'data = {"chexpert": ".../chexpert"}'
    """
    text = ", ".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
    return re.sub(r'"(?:[~/]|[A-Za-z]:[\\/])[^"]*?([^"\\/]+)[\\/]*"', r'".../\1"', text)


def table(header: Iterable[str], rows: Iterable[Iterable[str]], *, link: str | None = None) -> str:
    """A table in HTML, every cell escaped, backticks too, since it will stand in a fence.

    Args:
        header: The names of the columns.
        rows: The cells.
        link: Where the first cell of a row leads, with ``{}`` for its text.

    Example:
        >>> print(table(["a", "b"], [["1 < 2", "`x`"]], link="{}.html"))
        <table class="table">
        <tr><th>a</th><th>b</th></tr>
        <tr><td><a href="1%20%3C%202.html">1 &lt; 2</a></td><td>&#96;x&#96;</td></tr>
        </table>
    """
    lines = [line("th", map(escape, header))]
    for cells in rows:
        first, *rest = (escape(str(cell)) for cell in cells)
        if link is not None:
            first = f'<a href="{link.format(quote(unescape(first)))}">{first}</a>'
        lines.append(line("td", [first, *rest]))
    return "\n".join(['<table class="table">', *lines, "</table>"]).replace("`", "&#96;")


def line(tag: str, cells: Iterable[str]) -> str:
    """One line of a table in HTML, its cells escaped already."""
    return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"
