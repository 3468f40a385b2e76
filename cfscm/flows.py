"""What is taken from zuko, or the extra that brings it."""

from cfcore.extras import needs

needs("zuko")

from zuko.distributions import NormalizingFlow  # noqa: E402
from zuko.nn import MLP  # noqa: E402
from zuko.transforms import (  # noqa: E402
    ComposedTransform,
    MonotonicAffineTransform,
    MonotonicRQSTransform,
)

__all__ = ["MLP", "ComposedTransform", "MonotonicAffineTransform", "MonotonicRQSTransform"]
__all__ += ["NormalizingFlow"]
