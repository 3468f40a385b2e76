r"""Deep structural causal models: learned mechanisms of the parents and of the image."""

from cfcore.extras import needs

needs("zuko")
