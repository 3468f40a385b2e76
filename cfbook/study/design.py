"""The design of the experiments: what each claim is compared with, and what that says of it.

Thresholds and directions are those of ``data/claims.yml``, wherever a verdict is given.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cfbook.paths import DATA

DESIGN = DATA / "claims.yml"
RISES = "S_var rises"

COUNTED = ("supported", "inconclusive", "not supported")
TIED, CERTAIN = "no difference possible", "holds by construction"
VERDICTS = (*COUNTED, TIED, CERTAIN)
"""All verdicts. The last two count neither for a claim nor against it: metrics that are tied at the
ceiling in every training, and tests that hold by construction."""

Claim = Mapping[str, object]


def read_design(path: Path = DESIGN) -> dict[str, object]:
    """The design of the experiments, as it was written down."""
    import yaml

    return yaml.safe_load(path.read_text(encoding="utf-8"))


def criterion(claim: Claim, item: str) -> tuple[float, bool]:
    """What a part of a claim is compared with: the threshold, and whether to be above it.

    Example:
        >>> claim = {"threshold": 0, "direction": "R_orig below, R_IE above"}
        >>> criterion(claim, "R_orig, sex"), criterion(claim, "R_IE, age")
        ((0, False), (0, True))
    """
    if item == RISES:
        return claim["transitions"], True
    direction = claim.get("direction", "above")
    ways = dict(part.split() for part in direction.split(", ")) if " " in direction else {}
    return claim["threshold"], ways.get(item.split(",")[0], direction) == "above"


def verdict(low: float, high: float, threshold: float, *, above: bool) -> str:
    """Supported if the whole interval is beyond the threshold, not if none of it is.

    Example:
        >>> verdict(0.2, 0.6, 0.0, above=True), verdict(-0.1, 0.6, 0.0, above=True)
        ('supported', 'inconclusive')
        >>> verdict(-0.5, 0.0, 0.0, above=True)
        'not supported'
    """
    if not above:
        low, high, threshold = -high, -low, -threshold
    if np.isnan(low) or np.isnan(high):
        return "inconclusive"
    if low > threshold:
        return "supported"
    return "inconclusive" if high > threshold else "not supported"


def reported(claim: Claim, item: str, low: float, high: float, *, tied: bool) -> str:
    """The verdict on a part of a claim, and whether it could have been another.

    Args:
        claim: The claim.
        item: Its part.
        low: The lower end of the interval.
        high: The upper end.
        tied: Whether two metrics are compared that both did as well as can be.

    Example:
        >>> claim = {"threshold": 1, "direction": "below", "cannot_fail": {"ratio": "by algebra"}}
        >>> [reported(claim, "ratio", 0.1, high, tied=False) for high in (0.2, 2.0)]
        ['holds by construction', 'inconclusive']
    """
    threshold, above = criterion(claim, item)
    found = verdict(low, high, threshold, above=above)
    if tied:
        return TIED
    return CERTAIN if found == "supported" and item in claim.get("cannot_fail", ()) else found
