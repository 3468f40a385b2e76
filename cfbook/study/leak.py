"""What the noise of the project's generators says of the parents."""

from collections.abc import Iterable

import pandas as pd

from cfbook.study.cohorts import parts, phantom_cohort
from cfbook.study.presets import Preset
from cfbook.study.recipes import GeneratorRecipe
from cfchest.graph import CHEST
from cfscm.soundness.baselines import Identity
from cfscm.soundness.leak import leak_table

LEAK = "leak.csv"


def generator_leaks(preset: Preset, seeds: Iterable[int], *, patients: int = 2000) -> pd.DataFrame:
    """Probes the generators of a preset, the oracle, and the image itself, on test patients of C.

    Args:
        preset: The sizes.
        seeds: The seeds of the generators; what is not kept is trained.
        patients: How many test patients.

    Returns:
        See :func:`.leak_table`; the ``image`` is what a generator that takes it for the noise has.
    """
    truth, data = (
        phantom_cohort("C", preset).oracle,
        parts("C", preset)["test"].take(range(patients)),
    )
    made = {f"learned-{s}": GeneratorRecipe(preset, seed=s).obtain() for s in seeds}
    return leak_table({**made, "oracle": truth, "image": Identity(truth)}, data, graph=CHEST)
