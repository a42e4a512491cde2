"""Constants of floats in bfloat16, as bits: rounded, or split into two parts."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from atc.ir.graph import Array


def rounded_bits(values: Array) -> Array:
    """Return floats as the bits of bfloat16: to nearest, ties to even, as when the network rounds.

    What is too large becomes an infinity.
    """
    with np.errstate(over="ignore"):
        return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def in_parts(values: Array, parts: int) -> list[Array]:
    """Return floats as the bits of one bfloat16, or of two or three, the lowest first."""
    return [rounded_bits(values)] if parts == 1 else [*reversed(split(values, parts))]


def split(values: Array, parts: int = 2) -> tuple[Array, ...]:
    """Return floats as bits of several bfloat16 each, the largest first.

    The sum of two has 16 to 17 significant bits, that of three all 24. Halves round away from zero;
    what would become an infinity is cut off instead.
    """
    left, found = np.ascontiguousarray(values, np.float32), []
    for _ in range(parts):
        upper = _upper(left)
        found.append(_bits(upper))
        with np.errstate(invalid="ignore"):
            left = np.where(np.isinf(left), np.float32(0), left - upper.view(np.float32))
    return tuple(found)


def _upper(x: Array) -> Array:
    """Return floats whose upper halves are bfloat16, as words."""
    bits = x.view(np.uint32)
    ordinary = (bits & 0x7FFFFFFF) < 0x7F7F8000
    halves: Array = np.where(ordinary, bits + np.uint32(0x8000), bits) & np.uint32(0xFFFF0000)
    return halves


def _bits(words: Array) -> Array:
    bits: Array = np.right_shift(words, 16).astype(np.uint16)
    return bits
