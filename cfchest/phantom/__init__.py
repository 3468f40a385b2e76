r"""A synthetic chest radiograph whose structural causal model is known.

No real data set has true counterfactuals. Here every random quantity is an explicit exogenous
variable, so the counterfactual of a patient is not estimated: it is drawn with the very noise
that drew the patient, and whatever the paper estimates can be compared with the truth.
"""

from cfchest.phantom.cohort import Cohort, Oracle, Phantom
from cfchest.phantom.equations import COEFFICIENTS, HOSPITALS, Coefficients, Hospital

__all__ = ["COEFFICIENTS", "HOSPITALS", "Coefficients", "Cohort", "Hospital", "Oracle", "Phantom"]
