"""Facts about the values of weights by which sums of products are exact."""

from __future__ import annotations

import numpy as np

from atc.ir.graph import Array, DType


def is_whole(weights: Array) -> bool:
    """Return whether floats are whole numbers of 12 bits times a power of two, and not all 0."""
    flat = weights.reshape(-1)
    trained = weights.dtype != np.float32 or not _has_12_bits(flat[:256])
    return not trained and _has_12_bits(flat) and bool(flat.any())


def _has_12_bits(numbers: Array) -> bool:
    largest = np.abs(numbers).max(initial=0)
    scaled = np.ldexp(numbers, 12 - np.frexp(largest)[1])
    return bool(np.isfinite(largest) and (scaled == np.rint(scaled)).all())


def is_narrow(weights: Array) -> bool:
    """Return whether weights are signed bytes, none of them -128."""
    signed = DType.from_numpy(weights.dtype) is DType.INT8
    return signed and weights.size > 0 and int(weights.min()) > -128
