"""Bytes that may be too many to be copied."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO

import numpy as np

from atc.files.mapped import reading

AT_ONCE = 1 << 25
"""Bytes that are written at once, a multiple of any large page."""


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
        for chunk in self.chunks():
            value = zlib.adler32(chunk, value)
        return value

    def write(self, file: BinaryIO) -> None:
        """Write all parts to a file from where it stands, many bytes at once.

        Pieces lie at multiples of their size in the file and come from memory that is there: a
        system that can then keeps all of the file in large pages, in which weights are read several
        times as fast. Linux splits a write into ever smaller pages once it has to wait for what to
        copy.
        """
        piece, held = bytearray(min(AT_ONCE, self.size)), 0
        end = min(len(piece), AT_ONCE - file.tell() % AT_ONCE)
        for chunk in self.chunks():
            rest = memoryview(chunk)
            while rest:
                count = min(end - held, len(rest))
                piece[held : held + count] = rest[:count]
                held, rest = held + count, rest[count:]
                if held == end:
                    file.write(memoryview(piece)[:end])
                    held, end = 0, len(piece)
        file.write(memoryview(piece)[:held])

    def chunks(self, most: int = 1 << 24) -> Iterator[bytes | memoryview]:
        """Yield all bytes in order, at most so many at a time.

        Of parts that lie in mapped files no more than that comes into memory. Raises ModelError
        if such a file was written since.
        """
        for part in self.parts:
            for k in range(0, len(part), most):
                chunk = part[k : k + most] if len(part) > most else part
                with reading(np.frombuffer(chunk, np.uint8)):
                    yield chunk


NO_WEIGHTS = Blob(())
