r"""Random numbers that are functions of a key, not of what was drawn before.

A generator with a state cannot redraw row 7,000 without rows 0 to 6,999, and storing the
detector noise of every image would take as much memory as the images. Here a number is a hash
of (key, position): any row can be drawn alone, in any chunk, in any order and on any device,
with the same bits. The noise of a million images is a million keys.
"""

import torch
from torch import Tensor

_GOLDEN = -0x61C8864680B583EB  # the odd integer nearest 2^64 / golden ratio, as int64
TAIL = 0.01  # of the normal distribution, cut on each side


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift; that of torch copies the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def mix(z: Tensor) -> Tensor:
    r"""The finaliser of SplitMix64: a bijection of 64 bits in which every bit moves every other.

    References:
        Steele, Lea and Flood, *Fast splittable pseudorandom number generators*, 2014.

    Args:
        z: Integers, int64, any shape.
    """
    z = (z ^ _shift(z, 30)) * -0x40A7B892E31B1A47
    z = (z ^ _shift(z, 27)) * -0x6B2FB644ECCEEE15
    return z ^ _shift(z, 31)


def row_keys(seed: int, stream: int, rows: Tensor) -> Tensor:
    """One key for each row of a cohort.

    Args:
        stream: What the keys are for; cohorts and uses with different streams share nothing.
        rows: The row numbers, int64, shape (N,).

    Returns:
        The keys, int64, shape (N,).

    Example:
        >>> rows = torch.arange(1000)
        >>> bool((row_keys(0, 1, rows)[700:] == row_keys(0, 1, rows[700:])).all())
        True
    """
    root = mix(mix(torch.tensor(seed) + _GOLDEN) + stream)
    return mix(root.to(rows.device) + rows * _GOLDEN)


def uniform(key: Tensor, position: int) -> Tensor:
    """Uniform numbers of (0, 1), float64, one for each key."""
    step = torch.tensor(position + 1, device=key.device) * _GOLDEN
    return (_shift(mix(key + step), 11).double() + 0.5) * 2.0**-53


def truncated_normal(u: Tensor) -> Tensor:
    r"""The normal quantile of :math:`u`, without the tails: :math:`\Phi^{-1}(t + (1 - 2t) u)`.

    Anatomy has limits: without :math:`t` = 1 % a side, no draw is beyond 2.33 deviations.

    Example:
        >>> u = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
        >>> truncated_normal(u).round(decimals=2).tolist()
        [-2.33, 0.0, 2.33]
    """
    return torch.special.ndtri(TAIL + (1 - 2 * TAIL) * u)


def field(key: Tensor, count: int) -> Tensor:
    r"""A vector of independent, standard, nearly normal numbers for each key.

    Each is the sum of the four 16-bit parts of a hash, centred and scaled (Irwin and Hall).
    Integers are summed exactly, so no bit depends on the device.

    Args:
        key: The keys, int64, shape (B,).
        count: The length of the vectors.

    Returns:
        The numbers, float32, shape (B, count), mean 0 and variance 1.
    """
    position = torch.arange(1, count + 1, device=key.device) * _GOLDEN
    z = mix(key[:, None] + position)
    total = (z & 0xFFFF) + ((z >> 16) & 0xFFFF) + ((z >> 32) & 0xFFFF) + ((z >> 48) & 0xFFFF)
    return (total.float() - 131070.0) * (3**0.5 / 65536.0)
