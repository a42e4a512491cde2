"""PPM and PGM images (netpbm's P6 and P5; P3 and P2, whose samples are text)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from atc.errors import one_line
from atc.files.regular import regular
from atc.ir.graph import Array

_CHANNELS = {b"P6": 3, b"P5": 1, b"P3": 3, b"P2": 1}
_IN_TEXT = (b"P3", b"P2")


def read_image(path: Path) -> Array:
    """Return an image as uint8 of shape [1, height, width, channels]; raises ValueError."""
    data = regular(path).read_bytes()
    if data[:2] not in _CHANNELS:
        raise ValueError("only PPM and PGM images (P2, P3, P5, P6) are read")
    channels = _CHANNELS[data[:2]]
    (width, height, most), start = _numbers(data, 2, 3)
    if not 0 < most < 256:
        raise ValueError(f"samples up to {most} don't fit a byte")
    shape = (1, height, width, channels)
    size = width * height * channels
    if data[:2] in _IN_TEXT:
        return _samples(data[start - 1 :], size, most).reshape(shape)
    if len(data) - start < size:
        raise ValueError("the image is cut off")
    return np.frombuffer(data, np.uint8, size, start).reshape(shape)


def _samples(text: bytes, size: int, most: int) -> Array:
    """Return samples that are written as numbers; comments may stand between them."""
    words = re.sub(rb"#[^\n]*", b"", text).split()
    if len(words) < size:
        raise ValueError(f"the image is cut off: {len(words)} samples of {size}")
    wrong = next(
        (w for w in words[:size] if not w.isdigit() or len(w) > 9 or int(w) > most), None
    )  # fmt: skip
    if wrong is not None:
        raise ValueError(f"'{one_line(wrong.decode('latin-1'), 20)}' is not a sample up to {most}")
    return np.array([int(w) for w in words[:size]], np.uint8)


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
            raise ValueError("the header is not an image's")
        found.append(int(data[at:end]))
        at = end
    return found, at + 1
