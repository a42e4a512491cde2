"""Weights of convolutions as AMX's tiles: 16 rows of 16 filters x (2 bfloat16 or 4 bytes).

Row j of a float tile holds channels 2 j and 2 j + 1 of 32, row j of a byte tile channels 4 j to
4 j + 3 of 64.
"""

from __future__ import annotations

import numpy as np

from atc.backends.cpu.conv.bf16 import to_bf16
from atc.ir.graph import Array


def pack_rounded(dense: Array, channels: int, columns: int) -> Array:
    """Return weights as [supers][panel][block of channels][tap][column][row][filter][2]."""
    return np.ascontiguousarray(_pairs(to_bf16(dense), channels, columns)).reshape(-1)


def pack_split(dense: Array, channels: int, columns: int) -> Array:
    """Return weights as upper and lower parts.

    [supers][panel][block of channels][tap][lower, upper][column][row][filter][2]: small ones first.
    """
    upper, lower = split(dense)
    parts = [_pairs(p, channels, columns) for p in (lower, upper)]
    return np.ascontiguousarray(np.stack(parts, 4)).reshape(-1)


def pack_int8x4(dense: Array, channels: int, columns: int) -> Array:
    """Return bytes as [supers][panel][block of channels][tap][column][row][filter][4]."""
    cut = _cut(dense, channels, columns)
    words = cut.reshape(*cut.shape[:5], 16, 4, cut.shape[-1])
    return np.ascontiguousarray(words.transpose(0, 1, 4, 7, 2, 5, 3, 6)).reshape(-1)


def split(values: Array) -> tuple[Array, Array]:
    """Return floats as bits of two bfloat16 each, whose sum has 16 to 17 significant bits.

    Halves round away from zero; what would become an infinity is cut off instead.
    """
    x = np.ascontiguousarray(values, np.float32)
    upper = _upper(x)
    with np.errstate(invalid="ignore"):
        left = np.where(np.isinf(x), np.float32(0), np.subtract(x, upper))
    return _bits(upper), _bits(_upper(left.astype(np.float32)))


def _upper(x: Array) -> Array:
    bits = x.view(np.uint32)
    ordinary = np.abs(x) < np.float32(2.0**127 * 1.99609375)
    rounded = np.where(ordinary, bits + np.uint32(0x8000), bits) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)


def _bits(x: Array) -> Array:
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def _cut(dense: Array, channels: int, columns: int) -> Array:
    """Return [supers, filters, channels, taps] in whole blocks, zeros where nothing is.

    [supers, panel, column, filter, block of channels, channel, tap].
    """
    supers, filters, ic, taps = dense.shape
    panels, blocks = -(-filters // (16 * columns)), -(-ic // channels)
    whole = np.zeros((supers, panels * columns * 16, blocks * channels, taps), dense.dtype)
    whole[:, :filters, :ic] = dense
    return whole.reshape(supers, panels, columns, 16, blocks, channels, taps)


def _pairs(dense: Array, channels: int, columns: int) -> Array:
    """Return [supers][panel][block of channels][tap][column][row][filter][2]."""
    cut = _cut(dense, channels, columns)
    pairs = cut.reshape(*cut.shape[:5], 16, 2, cut.shape[-1])
    return pairs.transpose(0, 1, 4, 7, 2, 5, 3, 6)
