"""The predictors that one can choose on the interactive pages."""

from collections.abc import Mapping

from cfbook.study.runs import Member
from cfchest.offsets import offset
from cfcore.predictions import Predictions

BASIC = Member("basic", 0.0, 0)
TRAINED = (
    BASIC,
    Member("sex", 0.8, 0),
    Member("sex", 0.95, 0),
    Member("age", 0.8, 0),
    Member("age", 0.95, 0),
)
DERIVED = Member("logit", 1.0, 0)
MEMBERS = (BASIC, DERIVED, *TRAINED[1:])
"""The unbiased predictor first; the others are compared with it."""

LABELS = {"basic": "unbiased", "logit": "logit offset", "sex": "sex bias", "age": "age bias"}


def label(member: Member) -> str:
    """What a predictor is called on the pages.

    Example:
        >>> [label(member) for member in (BASIC, DERIVED, MEMBERS[3])]
        ['unbiased', 'logit offset 1', 'sex bias 0.95']
    """
    strength = f" {member.strength:g}" if member.strength else ""
    return LABELS[member.family] + strength


def with_offset(given: Mapping[Member, Predictions]) -> dict[Member, Predictions]:
    """The predictions of :data:`MEMBERS`, that of the logit offset derived from its base."""
    derived = {DERIVED: offset(given[BASIC], DERIVED.strength)}
    return {member: derived.get(member) or given[member] for member in MEMBERS}
