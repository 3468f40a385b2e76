"""The reference of the book: a page for each module, and a list of them all.

``python -m cfbook.production.reference FOLDER`` writes the pages when the book is built, so that
none is missing and none is of a module that has gone.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import cfcore
from cfbook.paths import PACKAGES, ROOT

_MODULE = ".. automodule:: {0}\n"
_PUBLIC = ".. autofunction:: {0}\n", ".. autoclass:: {0}\n   :members:\n"


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[-1] != "__main__":
                yield ".".join(parts).removesuffix(".__init__"), ast.parse(path.read_text())


def _page(name: str, tree: ast.Module) -> str:
    """What autodoc is asked for, in reStructuredText.

    What ``cfcore`` lists is documented there, under the name that users call it by, and not once
    more with its module; a module that bears the name of such a function is told by its parts.
    """
    if name == "cfcore":
        parts = [_PUBLIC[n[0].isupper()].format(f"cfcore.{n}") for n in cfcore.__all__]
        return f"{_MODULE.format(name)}   :no-members:\n\n" + "\n".join(parts)
    kinds = {ast.FunctionDef: 0, ast.ClassDef: 1}
    own = {node.name: kinds[type(node)] for node in tree.body if type(node) in kinds}
    listed = [n for n in own if name.startswith("cfcore.") and n in cfcore.__all__]
    if name.removeprefix("cfcore.") in cfcore.__all__:
        rest = [n for n in own if n not in listed and not n.startswith("_")]
        said = ast.get_docstring(tree)
        return f"{said}\n\n" + "\n".join(_PUBLIC[own[n]].format(f"{name}.{n}") for n in rest)
    if any(isinstance(node, ast.ImportFrom) for node in tree.body) and not own:
        return f"{_MODULE.format(name)}   :no-members:\n"  # a package that passes names on
    return _MODULE.format(name) + (f"   :exclude-members: {', '.join(listed)}\n" if listed else "")


def _write_pages(folder: Path) -> list[Path]:
    """Write the page of each module to ``folder``, and add the list of them to ``folder``.md."""
    folder.mkdir(parents=True, exist_ok=True)
    index = folder.with_suffix(".md")
    lines, paths = [index.read_text()], []
    for name, tree in _modules():
        said = (ast.get_docstring(tree) or "").partition("\n")[0]
        said = re.sub(r":math:`(.+?)`", r"$\1$", said)
        lines += [f"\n## {name}\n"] if name in PACKAGES else []
        lines.append(f"- {{doc}}`{name} <api/{name}>`: {said}")
        paths.append(folder / f"{name}.md")
        paths[-1].write_text(f"# {name}\n\n```{{eval-rst}}\n{_page(name, tree)}```\n")
    index.write_text("\n".join(lines) + "\n")
    return paths


if __name__ == "__main__":
    _write_pages(Path(sys.argv[1]))
