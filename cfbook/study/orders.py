r"""Does a statistic follow the bias? Steps along the families of predictors, counted and ranked."""

from collections.abc import Mapping, Sequence

import numpy as np

from cfbook.study.presets import preset
from cfbook.study.runs import BETAS, STRENGTHS
from cfbook.study.statistics import Study

_FALLING = ("S_rank", "tau_b")
"""Statistics that should fall as a bias grows."""
STEPS: Mapping[str, Sequence[float]] = {"logit": BETAS, "sex": STRENGTHS, "age": STRENGTHS}
"""The families of the paper: three steps each from the unbiased predictor."""
_SEX = (*preset("book").weak, *STRENGTHS)
LADDERS: Mapping[str, Sequence[float]] = STEPS | {"sex": _SEX}
"""The same with the weaker biases by sex."""
_CONTROLS = {f"control {family}": STRENGTHS for family in ("sex", "age")}
_BY_ATTRIBUTE = ("R_w", "score", "gap")


def correct_transitions(values: np.ndarray) -> np.ndarray:
    r"""Correct transition count (CTC): does a metric rise at every step towards more bias?

    .. math:: \sum_{c} \sum_{j} \mathbb{1}\big[ m_{c,j+1} > m_{c,j} \big]

    Each chain c starts at the unbiased predictor and goes to ever more biased ones; the paper has
    three chains of three steps, nine transitions. Only strict increases count. The count is taken
    for each training and then averaged. For metrics that should fall with bias (``S_rank``,
    ``tau_b``), pass the negative values.

    Worked by hand in :doc:`/notebooks/metrics`.

    Args:
        values: A metric along the chains, shape (..., chains, steps + 1); the leading axes are
            trainings and replicates. The counts are NaN where a value is.

    Example:
        >>> correct_transitions(np.array([[0.1, 0.2, 0.2, 0.4], [0.1, 0.0, 0.2, 0.3]])).item()
        4.0
    """
    steps = np.diff(values, axis=-1)
    undefined = np.isnan(steps).any(axis=(-2, -1))
    return np.where(undefined, np.nan, (steps > 0).sum(axis=(-2, -1)))


def chain(
    study: Study, statistic: str, family: str, strengths: Sequence[float] | None = None
) -> np.ndarray:
    """A statistic from ``basic`` to the strongest bias, shape (seeds, 1 + B, steps + 1).

    It is taken negative if it should fall. ``R_w``, ``score`` and ``gap`` are of the attribute of
    the family, offsets being by sex.
    """
    sign = -1 if statistic in _FALLING else 1
    own = STEPS.get(family) or STRENGTHS
    kinds = [("basic", 0.0), *((family, s) for s in (own if strengths is None else strengths))]
    name = f"{statistic}_{attribute(family)}" if statistic in _BY_ATTRIBUTE else statistic
    return sign * np.stack([study.column(name, *kind) for kind in kinds], axis=-1)


def attribute(family: str) -> str:
    """The attribute that a family, or its controls, is biased by."""
    return "age" if family.endswith("age") else "sex"


def transitions(study: Study, statistic: str, families: Sequence[str] = tuple(STEPS)) -> np.ndarray:
    """Correct transitions of each training, shape (seeds, 1 + B); NaN where undefined."""
    chains = [chain(study, statistic, family) for family in families]
    return correct_transitions(np.stack(chains, axis=-2))


def kendall(values: np.ndarray) -> np.ndarray:
    r"""Kendall's :math:`\tau_b` of values with their place along the last axis; 0 of equal values.

    Example:
        >>> kendall(np.array([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]])).round(2).tolist()
        [1.0, -0.33]
        >>> kendall(np.ones(3)).item()
        0.0
    """
    first, second = np.triu_indices(values.shape[-1], k=1)
    sign = np.sign(values[..., second] - values[..., first])
    untied = np.abs(sign).sum(axis=-1)
    return sign.sum(axis=-1) / np.sqrt(len(first) * np.maximum(untied, 1))


def trend(studies: Mapping[str, Study], statistic: str, *, controls: bool = False) -> np.ndarray:
    """How well a statistic follows the strength of a bias in each training, (seeds, 1 + B).

    The mean over families of :func:`kendall` along all their strengths, or along the controls,
    which have no bias. Studies are given by the attribute, ``"sex"`` and ``"age"``.
    """
    ladders = _CONTROLS if controls else LADDERS
    taus = [
        kendall(chain(studies[attribute(family)], statistic, family, strengths))
        for family, strengths in ladders.items()
    ]
    return np.mean(taus, axis=0)


def steps(
    studies: Mapping[str, Study], statistic: str, families: Sequence[str] = tuple(LADDERS)
) -> dict[str, np.ndarray]:
    """What each step towards more bias adds to a statistic, by its name, (seeds, 1 + B) each."""
    found = {}
    for family in families:
        own = np.diff(chain(studies[attribute(family)], statistic, family, LADDERS[family]))
        for number, strength in enumerate(LADDERS[family]):
            found[f"{family} {strength:g}"] = own[..., number]
    return found
