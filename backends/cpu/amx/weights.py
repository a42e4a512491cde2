"""Weights of convolutions as AMX's tiles: 16 rows of 16 filters x (2 bfloat16 or 4 bytes).

Row j of a float tile holds channels 2 j and 2 j + 1 of 32, row j of a byte tile channels 4 j to
4 j + 3 of 64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atc.ir.graph import Array


def pack_tiles(parts: Sequence[Array], channels: int, columns: int) -> Array:
    """Return parts of weights [supers, filters, channels, taps] in the order of use.

    [supers][panel][block of channels][tap][part][column][row][filter][channels of a word].
    """
    tiles = np.stack([_tiles(part, channels, columns) for part in parts], 4)
    return np.ascontiguousarray(tiles).reshape(-1)


def _tiles(dense: Array, channels: int, columns: int) -> Array:
    """Return a part in whole blocks, zeros where nothing is."""
    supers, filters, ic, taps = dense.shape
    panels, blocks = -(-filters // (16 * columns)), -(-ic // channels)
    whole = np.zeros((supers, panels * columns * 16, blocks * channels, taps), dense.dtype)
    whole[:, :filters, :ic] = dense
    words = whole.reshape(supers, panels, columns, 16, blocks, 16, channels // 16, taps)
    return words.transpose(0, 1, 4, 7, 2, 5, 3, 6)
