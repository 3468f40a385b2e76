r"""How sound a generator is: the axioms of counterfactuals, and the truth where it is known.

Every number stands beside that of changing nothing and that of the true generator: without the
first, a small error may mean a small task; without the second, a perfect score may mean
over-drawing.
"""

from cfcore.soundness.noise import generator_noise
from cfcore.soundness.table import interventions_of, soundness

__all__ = ["generator_noise", "interventions_of", "soundness"]
