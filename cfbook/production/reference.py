"""The reference of the book: a page for each module, and a list of them all.

``python -m cfbook.production.reference FOLDER`` writes the pages when the book is built, so that
none is missing and none is of a module that has gone.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from cfbook.production.records import PACKAGES, ROOT

PAGE = """# {name}

```{{eval-rst}}
.. automodule:: {name}
```
"""


def modules() -> Iterator[tuple[str, str]]:
    """The names of all modules, and the first line of what each says of itself."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            said = ast.get_docstring(ast.parse(path.read_text()))
            if said and parts[-1] != "__main__":
                yield name, said.splitlines()[0]


def listed() -> str:
    """All modules in Markdown, under a heading for each package."""
    lines = []
    for name, said in modules():
        if name in PACKAGES:
            lines += ["", f"## {name}", "", said, ""]
        lines.append(f"- {{doc}}`{name} <api/{name}>`: {said}")
    return "\n".join(lines)


def write_pages(folder: Path) -> list[Path]:
    """Write the page of each module to ``folder``, and add the list of them to ``folder``.md."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.md" for name, _ in modules()]
    for path in paths:
        path.write_text(PAGE.format(name=path.stem))
    index = folder.with_suffix(".md")
    index.write_text(f"{index.read_text()}{listed()}\n")
    return paths


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
