"""Bytes that may be too many to be copied."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO

import numpy as np

from atc.files.mapped import release


@dataclass(frozen=True)
class Blob:
    """Bytes in parts that follow each other; they may be gigabytes, so nobody joins them."""

    parts: tuple[bytes | memoryview, ...]
    executable: bool = False
    """Whether a file of it may be executed."""

    @cached_property
    def size(self) -> int:
        """The number of bytes."""
        return sum(map(len, self.parts))

    @property
    def checksum(self) -> int:
        """Adler-32 of all bytes, by which a library knows its weights."""
        value = 1
        for part in self.parts:
            value = zlib.adler32(part, value)
        return value

    def write(self, file: BinaryIO) -> None:
        """Write all parts to a file."""
        for part in self.parts:
            file.write(part)
            release(np.frombuffer(part, np.uint8))


NO_WEIGHTS = Blob(())
