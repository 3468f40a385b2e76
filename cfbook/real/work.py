"""Where the study of real radiographs works: its patients, their parts, what is made already."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from cfbook.real.sizes import Sizes
from cfchest.cohorts import split
from cfchest.data import Dataset, LoadOptions, load_nih
from cfchest.data.loading import shows_nothing
from cfchest.data.nih import write_cache
from cfchest.graph import VIEWS
from cfcore.checks import InputError
from cfcore.files import write_atomically

_STOP = 1 / 7  # of the patients who train: on those every training stops
FOLDS = ("fold-0", "fold-1")


@dataclass(frozen=True)
class Work:
    """A folder of radiographs, and the folder of what is made of them.

    Files are named by what made them: the sizes, the table and the pixels. They hold real patients
    or what was trained on them, so the place must be one that git ignores.

    Args:
        folder: The radiographs: as published, resized by others, or a cache.
        sizes: How large the study is.
        out: Where it works.
        device: What computes; does not decide what is found again.
    """

    folder: Path
    sizes: Sizes
    out: Path = Path("runs/real")
    device: str = "cpu"

    @cached_property
    def data(self) -> Dataset:
        """All usable images, under the schema; :attr:`left_out` counts the others."""
        return self._usable[0]

    @property
    def left_out(self) -> Mapping[str, int]:
        """How many images are left out, by reason; each is counted once."""
        return self._usable[1]

    @cached_property
    def _usable(self) -> tuple[Dataset, dict[str, int]]:
        found = load_nih(self._cache())
        table, oldest = found.table, VIEWS["age"].range[1]
        if "split" not in table:
            known = split(table, {"train": 0.8, "val": 0.2}, seed=0)
            inside = table.index.isin(known["train"].index)
            table = table.assign(split=np.where(inside, "train", "val"))
        dark = [row for row, x, _ in found.batches(1024) for row in row[shows_nothing(x).numpy()]]
        reasons = {
            "sex not stated": table.sex.isna(), "age not stated": table.age.isna(),
            "view neither AP nor PA": table.view.isna(), "no split": table.split.isna(),
            f"older than {oldest:g}": table.age > oldest,
            "shows nothing": pd.Series(table.index.isin(dark), table.index),
        }  # fmt: skip
        keep, counts = pd.Series(True, table.index), {}
        for reason, out in reasons.items():
            counts[reason] = int((out & keep).sum())
            keep &= ~out
        return found.select(table[keep]), counts

    def _cache(self) -> Path:
        """The radiographs as one array of the right side, made if need be."""
        side = self.sizes.side
        if (self.folder / "metadata.csv").is_file() and (
            self.folder / f"images_{side}.npz"
        ).is_file():
            return self.folder
        options = {"size": side, "unreadable": "drop"}
        listed = load_nih(self.folder, LoadOptions(**options))
        cache = self.out / f"images-{listed.fingerprint()[:12]}"
        if not (cache / "metadata.csv").is_file():
            data = load_nih(self.folder, LoadOptions(**options, verify=True))
            write_cache(data, cache)
            write_atomically(cache / "ledger.txt", f"{data.report}\n".encode())
        return cache

    @property
    def archive(self) -> Path:
        """The images in one array."""
        return self._cache() / f"images_{self.sizes.side}.npz"

    @cached_property
    def identity(self) -> str:
        """A hash of the patients and of the sizes, by which everything is found again."""
        table = self.data.table.drop(columns="image").to_csv(index=False)
        facts = json.dumps(self.sizes.facts, sort_keys=True)
        both = f"{table}{self.data.fingerprint()}{facts}"
        return hashlib.sha256(both.encode()).hexdigest()

    @property
    def made(self) -> Path:
        """The folder of everything that is made of these patients in these sizes."""
        return self.out / f"{self.sizes.name}-{self.identity[:12]}"

    @cached_property
    def rows(self) -> Mapping[str, pd.DataFrame]:
        """The rows of each part, which share no patient where they should not.

        ``fit`` and ``stop`` are of ``train``, ``test`` is the publisher's other part, ``fold-0``
        and ``fold-1`` halves of all patients; ``fold-0 fit`` and ``fold-0 stop`` are of the
        patients of the other fold, from whom is learnt what ``fold-0`` is judged by.
        """
        table = self.data.table
        train, test = (table[(table.split == "train") == own] for own in (True, False))
        _check_apart(train, test)
        found = {"test": test} | _learning(train, "")
        halves = split(table, dict.fromkeys(FOLDS, 0.5), seed=1)
        for name, other in zip(FOLDS, FOLDS[::-1], strict=True):
            learnt = _learning(halves[other], f"{name} ")
            _check_apart(halves[name], *learnt.values())
            found |= {name: halves[name]} | learnt
        return found

    def part(self, name: str, *, labels: tuple[str, ...] = ("effusion",)) -> Dataset:
        """The patients of a part, with the parents of the graph of views."""
        return self.chosen(self.rows[name], labels=labels)

    def chosen(self, rows: pd.DataFrame, *, labels: tuple[str, ...] = ("effusion",)) -> Dataset:
        """The patients of some rows of a part."""
        return self.data.select(rows).under(VIEWS, labels=labels)

    def table(self, name: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """A table that is there, or is made now."""
        path = self.made / "tables" / f"{name}.csv"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, make().to_csv(index=False, float_format="%.5g").encode())
        return pd.read_csv(path)


def _learning(table: pd.DataFrame, name: str) -> dict[str, pd.DataFrame]:
    parts = split(table, {f"{name}fit": 1 - _STOP, f"{name}stop": _STOP}, seed=2)
    _check_apart(*parts.values())
    return parts


def _check_apart(*parts: pd.DataFrame) -> None:
    """Raise unless no patient is in two of these tables."""
    seen: set[str] = set()
    for part in parts:
        shared = seen & set(part.patient)
        if shared:
            raise InputError(f"{len(shared)} patients are in two parts, such as {min(shared)}")
        seen |= set(part.patient)
