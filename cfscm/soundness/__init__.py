r"""How sound a generator is: the axioms of counterfactuals, and the truth where it is known.

Every number stands beside that of changing nothing and that of the true generator: without the
first, a small error may mean a small task; without the second, a perfect score may mean
over-drawing.
"""

from cfscm.soundness.measure import interventions_of, soundness

__all__ = ["interventions_of", "soundness"]
