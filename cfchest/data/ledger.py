"""What a loader dropped, and what it set missing: counted by reason, with places to look at."""

from collections.abc import Sequence
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

    def __str__(self) -> str:
        plural = f"{self.unit[:-1]}ies" if self.unit.endswith("y") else f"{self.unit}s"
        told = f"{self.count:,} {self.unit if self.count == 1 else plural} {self.effect}"
        return "\n    ".join([f"  {told}: {self.reason}", *self.examples])


@dataclass
class Ledger:
    """The account of one loading: nothing leaves or changes without a line here.

    Args:
        name: The data set.
        read: Records seen.
        kept: Images in the data set.
        entries: The reasons, in the order in which they were met.
        source: Whose real patients they are, among :data:`cfchest.data.SOURCES`; "" for nobody's.

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
        self, effect: str, reason: str, places: Sequence[str], count: int = 1, unit: str = "image"
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
            chosen: Boolean, indexed by line.
            column: The column whose value the examples quote.
            unit: What a record is: an image, a patient, an admission.
        """
        lines = chosen.index[chosen.to_numpy(dtype=bool)]
        if len(lines):
            places = [sheet.where(line, column) for line in lines[:EXAMPLES]]
            self.add(effect, reason, places, len(lines), unit)

    def __str__(self) -> str:
        title = f"{self.name}: {self.kept:,} of {self.read:,} images kept"
        return "\n".join([title, *map(str, self.entries)])
