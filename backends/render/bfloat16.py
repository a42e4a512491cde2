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
    """Return floats as the bits of one bfloat16, or of two, the lower one first."""
    return [rounded_bits(values)] if parts == 1 else [*reversed(split(values))]


def split(values: Array) -> tuple[Array, Array]:
    """Return floats as bits of two bfloat16 each, whose sum has 16 to 17 significant bits.

    Halves round away from zero; what would become an infinity is cut off instead.
    """
    x = np.ascontiguousarray(values, np.float32)
    upper = _upper(x)
    with np.errstate(invalid="ignore"):
        left = np.where(np.isinf(x), np.float32(0), x - upper.view(np.float32))
    return _bits(upper), _bits(_upper(left))


def _upper(x: Array) -> Array:
    """Return floats whose upper halves are bfloat16, as words."""
    bits = x.view(np.uint32)
    ordinary = (bits & 0x7FFFFFFF) < 0x7F7F8000
    halves: Array = np.where(ordinary, bits + np.uint32(0x8000), bits) & np.uint32(0xFFFF0000)
    return halves


def _bits(words: Array) -> Array:
    bits: Array = np.right_shift(words, 16).astype(np.uint16)
    return bits
