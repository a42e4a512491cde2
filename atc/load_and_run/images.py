"""Binary PPM and PGM images (netpbm's P6 and P5)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from atc.ir import Array
from atc.regular_file import regular

_CHANNELS = {b"P6": 3, b"P5": 1}


def read_image(path: Path) -> Array:
    """Return an image as uint8 of shape [1, height, width, channels]; raises ValueError."""
    data = regular(path).read_bytes()
    if data[:2] not in _CHANNELS:
        raise ValueError("only binary images (P5, P6) are read")
    channels = _CHANNELS[data[:2]]
    (width, height, most), start = _numbers(data, 2, 3)
    if not 0 < most < 256:
        raise ValueError(f"samples up to {most} don't fit a byte")
    size = width * height * channels
    if len(data) - start < size:
        raise ValueError("the image is cut off")
    return np.frombuffer(data, np.uint8, size, start).reshape(1, height, width, channels)


def _numbers(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Return numbers of the header and where the pixels begin: one blank after the last."""
    found: list[int] = []
    while len(found) < count:
        while at < len(data) and (data[at : at + 1].isspace() or data[at : at + 1] == b"#"):
            at = data.find(b"\n", at) if data[at : at + 1] == b"#" else at + 1
            if at < 0:
                raise ValueError("the header is cut off")
        end = at
        while end < len(data) and data[end : end + 1].isdigit():
            end += 1
        if end == at or end - at > 9:
            raise ValueError("the header is no image's")
        found.append(int(data[at:end]))
        at = end
    return found, at + 1
