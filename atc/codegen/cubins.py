"""The file of kernels that nvcc has compiled, as the network's own source reads it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

ALIGNMENT = 64
"""Bytes at which cubins begin."""


def pack_cubins(cubins: Sequence[bytes]) -> bytes:
    """Return cubins in one piece: first 64-bit offsets of each from the begin of it all."""
    head = -(-8 * len(cubins) // ALIGNMENT) * ALIGNMENT
    offsets, body = [], b""
    for cubin in cubins:
        offsets.append(head + len(body))
        body += cubin + bytes(-len(cubin) % ALIGNMENT)
    return struct.pack(f"<{len(offsets)}Q", *offsets).ljust(head, b"\0") + body
