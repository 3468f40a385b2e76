"""What goes along with what in these data, before any network: prevalences by group."""

import numpy as np
import pandas as pd

from cfbook.real.weights import patient_weights, told, weighted_mean
from cfbook.real.work import Work
from cfchest.data.dataset import FINDINGS

_GROUPS = {
    "AP rather than PA": lambda table: (table.view == "AP", table.view == "PA"),
    "women rather than men": lambda table: (table.sex == 1, table.sex == 0),
    "over 50 rather than younger": lambda table: (table.age > 50, table.age <= 50),
}
"""Two groups of images that are compared."""


def association_table(work: Work) -> pd.DataFrame:
    """The prevalence of each finding in two groups, and the difference with its interval.

    All images count; patients are resampled. Rows also say how far the views differ in age and sex.
    """
    table = work.data.table
    weights = patient_weights(table.patient, work.sizes.replicates)
    asked = {name: table[name] for name in FINDINGS}
    asked |= {
        "women": table.sex,
        "age in years": table.age,
        "AP": (table.view == "AP").astype(float),
    }
    rows = []
    for group, parts in _GROUPS.items():
        one, other = (np.asarray(part) for part in parts(table))
        for name, values in asked.items():
            sides = [
                weighted_mean(weights, np.where(side, values.to_numpy(float), np.nan))
                for side in (one, other)
            ]
            row = {"groups": group, "of": name, "in": sides[0][0], "out": sides[1][0]}
            rows.append(row | told(sides[0] - sides[1]))
    return pd.DataFrame(rows)


def cohort_table(work: Work) -> pd.DataFrame:
    """How many images and patients each part has, how many are ill, and how many are left out."""
    rows = []
    for name, part in {"all": work.data.table, **work.rows}.items():
        ill = part[part.effusion == 1]
        row = {"part": name, "images": len(part), "patients": part.patient.nunique()}
        row |= {"ill": len(ill), "ill_patients": ill.patient.nunique()}
        row |= {"AP": int((part.view == "AP").sum()), "minors": int((part.age < 18).sum())}
        rows.append(row)
    rows += [{"part": f"left out: {why}", "images": n} for why, n in work.left_out.items()]
    return pd.DataFrame(rows)
