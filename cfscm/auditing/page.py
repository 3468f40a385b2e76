"""What users write: a page of YAML that can be blamed by its keys, and a table of text."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd
import yaml

from cfcore.cells import Cells, read_cells
from cfcore.checks import InputError, shown

_Kinds = Mapping[str, type | tuple[type, ...]]
"""The types of the values of keys."""
NUMBER = (int, float)

_KINDS = {str: "text", list: "a list", dict: "a mapping", bool: "true or false"}
_KINDS |= {int: "a whole number", float: "a number"}


class Page:
    """What a file says, or would say.

    Args:
        source: The file, or the mapping that would be in it, with paths relative to this folder.
    """

    def __init__(self, source: Path | str | Mapping[str, Any]) -> None:
        self.place, self.folder, self.given = "plan", Path.cwd(), source
        if not isinstance(source, Mapping):
            path = Path(source)
            self.place, self.folder = path.name, path.resolve().parent
            try:
                self.given = yaml.load(path.read_text(encoding="utf-8"), _Loader)
            except (yaml.YAMLError, UnicodeDecodeError, InputError) as error:
                raise InputError(f"{path}: cannot be read as YAML: {error}") from None
        if not isinstance(self.given, Mapping):
            raise InputError(f"{source}: needs keys and values, not {str(self.given)[:60]!r}")

    def refuse(self, key: str, problem: object) -> NoReturn:
        """Blame a key."""
        raise InputError(f"{self.place}, {key}: {problem}")

    @contextmanager
    def at(self, key: str) -> Iterator[None]:
        """Blame a key for what goes wrong inside, with what was given or with files."""
        try:
            yield
        except InputError as error:
            self.refuse(key, error.problem if error.column in ("it", key) else error)
        except OSError as error:
            self.refuse(key, f"{error.filename}: {error.strerror}")

    def check(self, given: object, known: _Kinds, above: str = "") -> None:
        """Refuse keys that are not known, and values of another type than theirs."""
        if not isinstance(given, Mapping):
            self.refuse(above.rstrip("."), f"is a mapping of {', '.join(known)}, not {given!r}")
        for key, value in given.items():
            if key not in known:
                self.refuse(f"{above}{key}", f"there is no such key; {nearest(key, known)}")
            kinds = known[key] if isinstance(known[key], tuple) else (known[key],)
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                words = [_KINDS[kind] for kind in kinds if kinds[:2] != NUMBER or kind is not int]
                quotes = " (put text in quotes)" if str in kinds else ""
                self.refuse(f"{above}{key}", f"is {' or '.join(words)}, not {value!r}{quotes}")

    def file(self, key: str, name: str) -> Path:
        """A file or folder that is named relative to this one."""
        path = self.folder / name
        if not path.exists():
            self.refuse(key, f"there is no {path}")
        return path

    def choice(self, key: str, *known: str) -> None:
        """Refuse a word that is none of the known ones."""
        if self.given.get(key, known[0]) not in known:
            self.refuse(key, f"is {' or '.join(known)}, not {self.given[key]!r}")


def nearest(name: object, known: Collection[str]) -> str:
    """What may have been meant.

    Example:
        >>> nearest("lables", ["labels", "table"])
        "did you mean 'labels'?"
    """
    found = get_close_matches(str(name), [str(one) for one in known], 1, 0.5)
    return f"did you mean {found[0]!r}?" if found else f"there are {', '.join(map(str, known))}"


def read_text(table: Path | str) -> Cells:
    """A table of text; numbers, of a file that knows them, as one writes them."""

    def text(column: pd.Series) -> pd.Series:
        if column.dtype.kind not in "iuf":
            return column.fillna("")
        return column.map(lambda value: "" if value != value else shown(value)).astype(str)

    cells = read_cells(table)
    return replace(cells, frame=cells.frame.apply(text))


class _Loader(yaml.SafeLoader):
    """Refuses what YAML allows: a key that is there twice, of which one would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        """A mapping, each key of which stands there once."""
        keys = [key.value for key, _ in node.value]
        for key, _ in reversed(node.value):
            if keys.count(key.value) > 1:
                line = key.start_mark.line + 1
                raise InputError(f"line {line}: the key {key.value!r} is there twice")
        return super().construct_mapping(node, deep)
