"""Running the book's notebooks with other parameters."""

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cfcore.checks import InputError
from cfcore.extras import needs
from cfcore.files import write_atomically
from cfcore.marks import check_place, marked, sources_in, tracked

if TYPE_CHECKING:
    from nbformat import NotebookNode
    from papermill import PapermillExecutionError

_SIMPLE = {"int": int, "float": int | float, "str": str, "bool": bool, "list": list, "dict": dict}


def read(path: str | Path) -> "NotebookNode":
    """Read a notebook, either text (``.md``) or ``.ipynb``, without its outputs."""
    needs("jupytext")
    import jupytext

    path = Path(path)
    if not path.is_file():
        where = "a chapter needs a checkout of the repository"
        raise FileNotFoundError(f"{path}: there is no such notebook; {where}")
    if path.suffix not in (".md", ".ipynb"):
        raise InputError(f"{path}: notebooks end in .md or .ipynb")
    try:
        notebook = jupytext.read(path)
    except Exception as error:
        raise InputError(f"{path}: this is not a notebook ({error})") from None
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def parameters(notebook: "NotebookNode") -> dict[str, object]:
    """What a notebook's cell tagged ``parameters`` assigns; what is no literal as text."""
    found = {}
    for name, node in _assigned(notebook):
        try:
            found[name] = ast.literal_eval(node.value)
        except ValueError:
            found[name] = ast.unparse(node.value)
    return found


def _assigned(notebook: "NotebookNode") -> Iterator[tuple[str, ast.Assign | ast.AnnAssign]]:
    """The names that the cell tagged ``parameters`` assigns, each with its statement."""
    tagged = [c.source for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    for node in ast.parse("\n".join(tagged)).body:
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Name) and node.value:
                yield target.id, node


def _fits(value: object, kind: ast.expr) -> bool:
    """Whether a value is of the type that a parameter is annotated with.

    A whole number is fine for a ``float``; what is no simple type is not checked.

    Example:
        >>> real, whole = (ast.parse(text, mode="eval").body for text in ("float", "list[int]"))
        >>> _fits(1, real), _fits([1, 2], whole), _fits("high", real), _fits([0.5], whole)
        (True, True, False, False)
    """
    match kind:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _fits(value, left) or _fits(value, right)
        case ast.Subscript(value=ast.Name(id="list"), slice=each):
            return isinstance(value, list) and all(_fits(one, each) for one in value)
        case ast.Subscript(value=outer):
            return _fits(value, outer)
        case ast.Constant(value=None):
            return value is None
        case ast.Name(id=name) if name in _SIMPLE:
            return isinstance(value, _SIMPLE[name]) and isinstance(value, bool) == (name == "bool")
    return True


def check_given(source: Path, notebook: "NotebookNode", given: Mapping[str, object]) -> None:
    """Raise unless a notebook has these parameters and they can take these values."""
    known = dict(_assigned(notebook))
    for name, value in given.items():
        if name not in known:
            names = ", ".join(known) or "none"
            raise InputError(f"{source}: there is no parameter {name!r}; it has {names}")
        kind = getattr(known[name], "annotation", None)
        if kind is not None and not _fits(value, kind):
            wrong = f"is of type {ast.unparse(kind)}, not {value!r} ({type(value).__name__})"
            raise InputError(f"{source}: the parameter {name!r} {wrong}")


def read_value(name: str, text: str) -> object:
    """Read a parameter's value as YAML, in which ``1e-3`` is a number here.

    Example:
        >>> read_value("alpha", "0.1"), read_value("name", "basic"), read_value("bias", "1e-3")
        (0.1, 'basic', 0.001)
    """
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f"{name}: {text!r} is not a value in YAML") from None
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+[eE][-+]?\d+", value):
        return float(value)  # YAML asks for a point, people do not write one
    if not isinstance(value, bool | int | float | str | list | dict | None):
        raise InputError(f"{name}: {text!r} is a {type(value).__name__}; quote it as text")
    return value


def run_notebook(
    source: str | Path,
    out: str | Path,
    given: Mapping[str, object] | None = None,
    *,
    progress: bool = True,
    provenance: str | Path | None = None,
) -> Path:
    """Execute a notebook from top to bottom and write it with its outputs.

    What is written depends on the notebook, the parameters and the code alone: timings and paths
    are left out. If a cell fails, the notebook up to that cell is kept beside ``out`` as
    ``<name>.failed.ipynb``, and ``out`` is not touched. A notebook that read real patients is
    marked in its metadata, and refused where git would track it (:mod:`cfcore.marks`): before
    it runs if its parameters name their folders, else before it is written.

    Args:
        source: The notebook, ``.md`` or ``.ipynb``.
        out: Where to write the executed notebook.
        given: Parameters to change; each must be in the notebook's cell tagged ``parameters``.
        provenance: Where to write the record of the run (:mod:`cfbook.production.records`).

    Raises:
        InputError: If the notebook has no such parameter, or one of another type; if it is about
            real patients and git would track it; or if a cell fails: the message names it, and
            quotes a claim that does not hold.
    """
    source, out, given = Path(source), Path(out), dict(given or {})
    notebook = read(source)  # says which extra is missing, before anything else is imported
    from cfbook.production.records import watched, write_record

    if out.suffix != ".ipynb":
        raise InputError(f"{out}: an executed notebook ends in .ipynb")
    check_given(source, notebook, given)
    check_place(out, _named_sources(given))
    everything, facts = parameters(notebook) | given, {}
    try:
        with watched() as took:
            content = _execute(source, out, notebook, given, progress=progress)
        facts = {"status": "passed", "executed": hashlib.sha256(content).hexdigest()}
        facts |= marked(sources_in(content))
        write_atomically(out, content)
    except InputError as error:
        facts = {"status": "failed", "executed": None, "error": str(error)}
        facts |= marked(_named_sources(given))
        raise
    finally:
        if provenance is not None and facts:
            write_record(Path(provenance), source, everything, facts | took)
    return out


def _execute(
    source: Path, out: Path, notebook: "NotebookNode", given: dict[str, object], *, progress: bool
) -> bytes:
    """The executed notebook as it is written; if a cell fails, what there is of it is kept."""
    needs("papermill")
    import nbformat
    import papermill
    import zmq
    from traitlets.config import Config

    # Without encryption a kernel warns that others could listen. At its end it is interrupted, and
    # logs that as an error unless it is idle by then; errors of cells are not in its log.
    encryption = "auto" if zmq.has("curve") else "disabled"
    quiet = {"extra_arguments": ["--IPKernelApp.log_level=CRITICAL"]}
    options = {"KernelManager": {"transport_encryption": encryption}, "NotebookClient": quiet}
    kernel = {"config": Config(options)}
    kernel |= {"kernel_name": "python3", "cwd": source.parent, "progress_bar": progress}
    out.parent.mkdir(parents=True, exist_ok=True)
    failed = out.with_name(f"{out.stem}.failed.ipynb")
    try:
        executed = papermill.execute_notebook(notebook, failed, given, **kernel)
    except papermill.PapermillExecutionError as error:
        if tracked(failed.absolute()) and sources_in(failed.read_bytes()):
            failed.unlink()
        raise InputError(f"{source}: {_complaint(error)}; see {failed}") from error
    failed.unlink()
    sources = {*_named_sources(given), *sources_in(nbformat.writes(executed).encode())}
    executed.metadata.update(marked(sources))
    return nbformat.writes(_tidy(executed)).encode()


def _complaint(error: "PapermillExecutionError") -> str:
    """What is wrong in which cell, in one line; a claim that does not hold is quoted."""
    said = error.evalue
    if error.ename == "AssertionError":
        trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
        place = re.search(r"^Cell In\[\d+\], line (\d+)", trace, re.MULTILINE)
        claim = _claim_at(error.source, int(place[1])) if place else ""
        said = f"{claim} ({said})" if said and claim else said or claim
    return " ".join(f"cell {error.exec_count} fails with {error.ename}: {said}".split())


def _claim_at(source: str, line: int) -> str:
    """The statement at a line of a cell; an assertion without its message.

    Example:
        >>> _claim_at("for k in (1, 2):\\n    assert (k\\n        < 2), 'too large'", line=3)
        'assert k < 2'
    """
    try:
        nodes = ast.walk(ast.parse(source))
    except SyntaxError:  # IPython knows more than Python
        return source.splitlines()[line - 1]
    at = [n for n in nodes if isinstance(n, ast.stmt) and n.lineno <= line <= n.end_lineno][-1]
    if isinstance(at, ast.Assert):
        at.msg = None
    return ast.unparse(at)


def _named_sources(given: Mapping[str, object]) -> set[str]:
    """The real data whose folders are named by a parameter.

    Example:
        >>> _named_sources({"data": {"mimic_iv": "DIR"}, "alpha": 0.1})
        {'mimic'}
    """
    from cfchest.data import SOURCES

    named = [value for value in given.values() if isinstance(value, Mapping)]
    words = {str(key).split("_")[0] for value in named for key in value if value[key]}
    return words & set(SOURCES)


def _tidy(notebook: "NotebookNode") -> "NotebookNode":
    """Drop what differs from run to run: timings, paths, identifiers, versions, cuts in text."""
    for key in ("papermill", "language_info"):
        notebook.metadata.pop(key, None)
    for number, cell in enumerate(notebook.cells):
        cell.id, whole = f"cell-{number}", []
        for key in ("papermill", "execution", *(() if cell.metadata.get("tags") else ("tags",))):
            cell.metadata.pop(key, None)
        for output in cell.get("outputs", ()):  # where the kernel cuts what is printed is chance
            if output.output_type == "stream" and whole and whole[-1].get("name") == output.name:
                whole[-1].text += output.text
            else:
                whole.append(output)
        if cell.cell_type == "code":
            cell.outputs = whole
    return notebook
