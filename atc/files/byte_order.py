"""Elements as they lie in the memory of a processor of either byte order."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt


def in_byte_order(array: npt.NDArray[np.generic], big_endian: bool) -> npt.NDArray[np.uint8]:
    """Return the bytes of an array's elements, row-major.

    Numbers are turned round where the order is not this machine's, strings never.
    """
    data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("="), copy=False).reshape(-1)
    size = data.dtype.itemsize
    if big_endian != (sys.byteorder == "big") and size > 1 and data.dtype.kind != "S":
        data = data.view(f"u{size}").byteswap()  # numpy knows no order of bfloat16
    return data.view(np.uint8)
