"""What a loader dropped, and what it set missing: counted by reason, with places to look at."""

from dataclasses import dataclass, field

import pandas as pd

from cfchest.data.sheet import Sheet

EXAMPLES = 3  # places that a reason shows
_Count = int | None


@dataclass
class _Entry:
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
        read: Records seen.
        kept: Images in the data set.
        entries: The reasons, in the order in which they were met.
        source: Whose real patients they are, among ``cfchest.data.SOURCES``; "" for nobody's.

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
    entries: list[_Entry] = field(default_factory=list)
    source: str = ""

    def add(
        self, effect: str, reason: str, places: list[str], count: _Count = None, unit: str = "image"
    ) -> None:
        """Add ``count`` records, or one for each place, to a reason, which shows three places."""
        if not places:
            return
        key = (effect, reason, unit)
        same = [each for each in self.entries if (each.effect, each.reason, each.unit) == key]
        entry = same[0] if same else _Entry(*key)
        self.entries += [] if same else [entry]
        entry.count += len(places) if count is None else count
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

        The effect is ``"dropped"``, ``"set missing"``, ``"set to 0"`` or ``"set to 1"``; examples
        quote the value in ``column``; ``unit`` is what a record is: an image, a patient.
        """
        lines = chosen.index[chosen.to_numpy(dtype=bool)]
        places = [sheet.where(line, column) for line in lines[:EXAMPLES]]
        self.add(effect, reason, places, len(lines), unit)

    def __str__(self) -> str:
        title = f"{self.name}: {self.kept:,} of {self.read:,} images kept"
        return "\n".join([title, *map(str, self.entries)])
