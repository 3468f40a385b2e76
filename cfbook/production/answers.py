"""Answers of students: a number is checked without the page saying which one is right."""

import hashlib
from typing import SupportsFloat

from cfcore.checks import InputError


def check_answer(exercise: str, answer: SupportsFloat | None, expected: str) -> None:
    """Say whether a number answers an exercise, to two decimals.

    What is expected is the beginning of a hash, so that the cell that checks does not give the
    answer away.

    Args:
        exercise: The name of the exercise, with which the number is hashed.
        answer: The number; None as long as there is none.
        expected: The first eight digits of the hash of the right one.

    Raises:
        InputError: If there is no answer yet, if it is no number, or if it is not the right one.

    Example:
        >>> check_answer("three halves", 3 / 2, "8fcd5713")
        three halves: right
        >>> check_answer("three halves", None, "8fcd5713")
        Traceback (most recent call last):
        ...
        cfcore.checks.InputError: three halves: there is no answer yet; put your number ...
    """
    if answer is None or answer is ...:
        where = "put your number into the cell above, run that cell, then this one"
        raise InputError(f"{exercise}: there is no answer yet; {where}")
    try:
        number = round(float(answer), 2) + 0.0  # there is no negative zero
    except (TypeError, ValueError):
        raise InputError(f"{exercise}: the answer is a number, not {answer!r}") from None
    if digest(exercise, number) != expected:
        raise InputError(f"{exercise}: {number:.2f} is not the answer")
    print(f"{exercise}: right")


def digest(exercise: str, number: float) -> str:
    """The hash that a check asks for, of a number rounded to two decimals.

    Example:
        >>> digest("one third", 1 / 3) == digest("one third", 0.33) != digest("other", 0.33)
        True
    """
    return hashlib.sha256(f"{exercise}: {number:.2f}".encode()).hexdigest()[:8]
