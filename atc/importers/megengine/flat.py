"""FlatBuffers read without generated code, every access checked against the buffer.

Format: https://flatbuffers.dev/internals. A table begins with the signed distance to its vtable;
slot k of the vtable holds the field's distance from the table, 0 where the field is absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flatbuffers import encode, packer
from flatbuffers.table import Table as RawTable

from atc.errors import ModelError

_LONGEST_NAME = 4096
_PACKERS: dict[str, tuple[Any, int]] = {
    "bool": (packer.uint8, 1),
    "i8": (packer.int8, 1),
    "u8": (packer.uint8, 1),
    "u16": (packer.uint16, 2),
    "i32": (packer.int32, 4),
    "u32": (packer.uint32, 4),
    "u64": (packer.uint64, 8),
    "f32": (packer.float32, 4),
    "f64": (packer.float64, 8),
}


@dataclass(frozen=True)
class Buffer:
    """The bytes of a file; `name` stands in errors."""

    data: bytes
    name: str

    def check(self, start: int, size: int, what: str) -> None:
        """Raise `ModelError` unless `size` bytes at `start` lie inside the file."""
        if start < 0 or size < 0 or start + size > len(self.data):
            raise ModelError(
                f"{what} of {size} bytes at offset {start} lies outside the file of "
                f"{len(self.data)} bytes",
                where=self.name,
                hint="the file is truncated or damaged; dump the network again",
            )

    def number(self, kind: str, at: int, what: str) -> int | float:
        """Read one little-endian number of `kind` (u8, i32, f64, ...)."""
        pack, size = _PACKERS[kind]
        self.check(at, size, what)
        value: int | float = encode.Get(pack, self.data, at)
        return value

    def integer(self, kind: str, at: int, what: str) -> int:
        """Read one little-endian integer of `kind`."""
        return int(self.number(kind, at, what))

    def follow(self, at: int, what: str) -> int:
        """Return the position that the unsigned offset at `at` points to."""
        target = at + self.integer("u32", at, what)
        self.check(target, 4, what)
        return target


def _check_name(buffer: Buffer, count: int) -> None:
    if count > _LONGEST_NAME:
        raise ModelError(
            f"a name of {count} bytes is longer than {_LONGEST_NAME}", where=buffer.name
        )


def root_table(buffer: Buffer, at: int) -> FlatTable:
    """Return the root table of the flatbuffer that begins at `at` (after its size prefix)."""
    return FlatTable(buffer, buffer.follow(at, "root offset"))


@dataclass(frozen=True)
class FlatTable:
    """One table of a flatbuffer."""

    buffer: Buffer
    position: int

    def field(self, slot: int) -> int:
        """Return the file position of a field, 0 where it is absent."""
        buffer = self.buffer
        vtable = self.position - buffer.integer("i32", self.position, "table")
        size = buffer.integer("u16", vtable, "vtable")
        buffer.check(vtable, max(size, 4), "vtable")
        if size % 2:
            raise ModelError(
                f"vtable at offset {vtable} has the odd size {size}",
                where=buffer.name,
                hint="the file is damaged; dump the network again",
            )
        offset = RawTable(buffer.data, self.position).Offset(4 + 2 * slot)
        return self.position + offset if offset else 0

    def number(self, slot: int, kind: str, default: int | float) -> int | float:
        """Read a scalar field."""
        at = self.field(slot)
        return self.buffer.number(kind, at, f"field {slot}") if at else default

    def integer(self, slot: int, kind: str = "u32", default: int = 0) -> int:
        """Read an integer field."""
        return int(self.number(slot, kind, default))

    def table(self, slot: int) -> FlatTable | None:
        """Read a sub-table, None where it is absent."""
        at = self.field(slot)
        return FlatTable(self.buffer, self.buffer.follow(at, f"field {slot}")) if at else None

    def span(self, slot: int, item_size: int = 1) -> tuple[int, int]:
        """Return (position, count) of a vector's items; (0, 0) where it is absent."""
        at = self.field(slot)
        if not at:
            return 0, 0
        vector = self.buffer.follow(at, f"vector {slot}")
        count = self.buffer.integer("u32", vector, f"vector {slot}")
        self.buffer.check(vector + 4, count * item_size, f"vector {slot} with {count} items")
        return vector + 4, count

    def has(self, slot: int) -> bool:
        """Say whether a field is present."""
        return self.field(slot) != 0

    def string(self, slot: int) -> str:
        """Read a string field, "" where it is absent; bytes that are no UTF-8 are replaced."""
        start, count = self.span(slot)
        _check_name(self.buffer, count)
        return self.buffer.data[start : start + count].decode("utf-8", errors="replace")

    def integers(self, slot: int, kind: str = "u32") -> tuple[int, ...]:
        """Read a vector of integers."""
        size = _PACKERS[kind][1]
        start, count = self.span(slot, size)
        pack = _PACKERS[kind][0]
        data = self.buffer.data
        return tuple(encode.Get(pack, data, start + i * size) for i in range(count))

    def tables(self, slot: int) -> list[FlatTable]:
        """Read a vector of tables."""
        return self._pointed(slot)

    def as_string(self) -> str:
        """Read the string that this position holds (items of a vector of strings)."""
        count = self.buffer.integer("u32", self.position, "string")
        start = self.position + 4
        self.buffer.check(start, count, "string")
        _check_name(self.buffer, count)
        return self.buffer.data[start : start + count].decode("utf-8", errors="replace")

    def _pointed(self, slot: int) -> list[FlatTable]:
        start, count = self.span(slot, 4)
        follow = self.buffer.follow
        positions = (follow(start + 4 * i, "vector item") for i in range(count))
        return [FlatTable(self.buffer, position) for position in positions]
