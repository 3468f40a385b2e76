"""What a loader dropped, and what it set missing: counted by reason, with places to look at."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

from cfchest.data.sheet import Sheet

EXAMPLES = 3


@dataclass
class Entry:
    """One reason: what was done, to how many, and up to three places where it was done."""

    effect: str
    reason: str
    unit: str
    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass
class Ledger:
    """The account of one loading: nothing leaves or changes without a line here.

    Args:
        name: The data set.
        read: Records seen.
        kept: Images in the data set.
        entries: The reasons, in the order in which they were met.
        source: Whose real patients they are, a name in :mod:`cfcore.restricted`; "" for nobody's.

    Example:
        >>> ledger = Ledger("Miniature", read=3, kept=2)
        >>> ledger.add("dropped", "lateral view", ["train.csv line 4"])
        >>> print(ledger)
        Miniature: 2 of 3 images kept
          1 image dropped: lateral view
            train.csv line 4
    """

    name: str
    read: int = 0
    kept: int = 0
    entries: list[Entry] = field(default_factory=list)
    source: str = ""

    def add(
        self,
        effect: str,
        reason: str,
        places: Iterable[str],
        *,
        count: int = 1,
        unit: str = "image",
    ) -> None:
        """Add ``count`` records to a reason, showing ``places`` until three are known."""
        for entry in self.entries:
            if (entry.effect, entry.reason, entry.unit) == (effect, reason, unit):
                break
        else:
            entry = Entry(effect, reason, unit)
            self.entries.append(entry)
        entry.count += count
        entry.examples = [*entry.examples, *places][:EXAMPLES]

    def mark(
        self,
        effect: str,
        reason: str,
        sheet: Sheet,
        chosen: pd.Series,
        column: str | None = None,
        *,
        unit: str = "image",
    ) -> None:
        """Add the records of ``sheet`` that are marked in ``chosen``, if there are any.

        Args:
            effect: ``"dropped"``, ``"set missing"``, ``"set to 0"`` or ``"set to 1"``.
            reason: Why.
            sheet: Where the records are.
            chosen: Boolean, indexed by record number.
            column: The column whose value the examples quote.
            unit: What a record is: an image, a patient, an admission.
        """
        rows = chosen.index[chosen.to_numpy(dtype=bool)]
        if len(rows):
            places = [sheet.where(row, column) for row in rows[:EXAMPLES]]
            self.add(effect, reason, places, count=len(rows), unit=unit)

    def count(self, reason: str) -> int:
        """How many records were met for a reason; 0 if it never came up."""
        return sum(entry.count for entry in self.entries if entry.reason == reason)

    def frame(self) -> pd.DataFrame:
        """The account as a table: ``effect, reason, unit, count, example``."""
        rows = [(e.effect, e.reason, e.unit, e.count, "; ".join(e.examples)) for e in self.entries]
        return pd.DataFrame(rows, columns=["effect", "reason", "unit", "count", "example"])

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.kept:,} of {self.read:,} images kept"]
        for entry in self.entries:
            unit = entry.unit if entry.count == 1 else _plural(entry.unit)
            lines.append(f"  {entry.count:,} {unit} {entry.effect}: {entry.reason}")
            lines.extend(f"    {example}" for example in entry.examples)
        return "\n".join(lines)


def _plural(unit: str) -> str:
    return f"{unit[:-1]}ies" if unit.endswith("y") else f"{unit}s"
