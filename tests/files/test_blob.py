"""Bytes in parts, written in pieces."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from atc.files import blob
from atc.files.blob import Blob


class Recorder(io.RawIOBase):
    """A file that remembers how much was written at once."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

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


def test_pieces_lie_at_multiples_of_their_size_wherever_parts_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blob, "AT_ONCE", 64)
    file = Recorder()
    Blob((b"a" * 100, b"b" * 3, b"c" * 200)).write(file)
    assert [s for s in file.sizes if s] == [64, 64, 64, 64, 47]
