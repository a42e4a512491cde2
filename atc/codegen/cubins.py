"""The file of compiled CUDA kernels (cubins) that the network's source includes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

ALIGNMENT = 64
"""The alignment of cubins in bytes."""


def pack_cubins(cubins: Sequence[bytes]) -> bytes:
    """Return the concatenated cubins after 64-bit offsets of each from the begin of the file."""
    head = -(-8 * len(cubins) // ALIGNMENT) * ALIGNMENT
    offsets, body = [], b""
    for cubin in cubins:
        offsets.append(head + len(body))
        body += cubin + bytes(-len(cubin) % ALIGNMENT)
    return struct.pack(f"<{len(offsets)}Q", *offsets).ljust(head, b"\0") + body
