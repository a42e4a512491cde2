"""Blobs: all bytes in order, read in chunks and written in pieces."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np
import pytest

from atc.files import blob
from atc.files.blob import Blob

DATA = np.arange(1000, dtype=np.uint16)
BLOB = Blob((DATA.view(np.uint8).data, b"", b"123", DATA[:7].view(np.uint8).data))
WHOLE = DATA.tobytes() + b"123" + DATA[:7].tobytes()


class Recorder(io.RawIOBase):
    """A file that stands at a byte and remembers how much was written at once."""

    def __init__(self, begin: int = 0) -> None:
        self.begin, self.sizes = begin, list[int]()

    def tell(self) -> int:
        """Return where the next byte goes."""
        return self.begin + sum(self.sizes)

    def write(self, data: object) -> int:
        """Count the bytes."""
        self.sizes.append(len(data))  # type: ignore[arg-type]
        return self.sizes[-1]


def test_what_is_written_are_all_parts_in_their_order(tmp_path: Path) -> None:
    parts = (b"", bytes(range(200)), memoryview(b"abc"), b"d" * 70)
    with (tmp_path / "blob").open("wb") as file:
        Blob(parts).write(file)
    assert (tmp_path / "blob").read_bytes() == b"".join(parts)


def test_nothing_is_an_empty_file(tmp_path: Path) -> None:
    with (tmp_path / "blob").open("wb") as file:
        Blob(()).write(file)
    assert (tmp_path / "blob").read_bytes() == b""


@pytest.mark.parametrize(
    ("begin", "sizes"), [(0, [64, 64, 64, 64, 47]), (70, [58, 64, 64, 64, 53])]
)
def test_pieces_lie_at_multiples_of_their_size_wherever_parts_end(
    begin: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob, "AT_ONCE", 64)
    file = Recorder(begin)
    Blob((b"a" * 100, b"b" * 3, b"c" * 200)).write(file)
    assert [s for s in file.sizes if s] == sizes


@pytest.mark.parametrize("most", [1, 64, 2000, 1 << 20])
def test_chunks_are_all_bytes_in_order(most: int) -> None:
    chunks = [bytes(chunk) for chunk in BLOB.chunks(most)]
    assert b"".join(chunks) == WHOLE
    assert max(map(len, chunks)) <= most


def test_its_checksum_is_that_of_all_bytes() -> None:
    assert BLOB.checksum == zlib.adler32(WHOLE)
    assert BLOB.size == len(WHOLE)
