"""Puts large data into object files and archives that were made with a small stand-in for it.

Assemblers and archivers copy what `.incbin` names through their memory, one after the other, and a
network's weights may be gigabytes. So both get a stand-in of a few bytes, and the sizes and places
in what they made are corrected here: the result is, byte for byte, what they make of the data.

Formats: ELF (System V ABI, chapter 4: header, section headers, symbol table) with 32 or 64 bits in
either byte order, and archives as System V and GNU have them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from atc.errors import ToolchainError

STAND_IN = bytes(range(64))
"""What is assembled in place of data whose size is a multiple of `UNIT`."""
UNIT = 8
"""Bytes: no section that follows in an object is aligned to more."""

_PROGRAM_DATA, _SYMBOLS = 1, 2  # sh_type
_MEMBER, _LENGTH = 60, slice(48, 58)  # bytes of an archive member's header; its decimal size in it


@dataclass(frozen=True)
class _Layout:
    """The fields of an ELF file of one class; `word` is the format of sizes and places."""

    word: str
    section_table: int
    section_bytes: int
    """e_shentsize, then e_shnum."""
    place: int
    """sh_offset, then sh_size."""
    symbol_bytes: int
    symbol_size: int
    symbol_section: int


_LAYOUTS = {1: _Layout("I", 32, 46, 16, 16, 8, 14), 2: _Layout("Q", 40, 58, 24, 24, 16, 6)}


@dataclass(frozen=True)
class _Section:
    header: int
    kind: int
    start: int
    size: int


class _Elf:
    """The bytes of an ELF file and what its fields mean."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.layout = _LAYOUTS[data[4]]
        self.order = "<" if data[5] == 1 else ">"

    def get(self, form: str, at: int) -> tuple[int, ...]:
        return struct.unpack_from(self.order + form, self.data, at)

    def put(self, at: int, value: int) -> None:
        struct.pack_into(self.order + self.layout.word, self.data, at, value)

    def sections(self) -> Iterator[_Section]:
        (table,) = self.get(self.layout.word, self.layout.section_table)
        step, count = self.get("HH", self.layout.section_bytes)
        for header in range(table, table + step * count, step):
            (kind,) = self.get("I", header + 4)
            start, size = self.get(2 * self.layout.word, header + self.layout.place)
            yield _Section(header, kind, start, size)

    def symbols(self, table: _Section) -> range:
        return range(table.start, table.start + table.size, self.layout.symbol_bytes)


def enlarged_object(data: bytes, size: int) -> tuple[bytes, bytes] | None:
    """Return what comes before and after `size` bytes of data in an ELF object.

    `data` is the object with the stand-in, which must be the whole of one section; None if it isn't
    such an object.
    """
    if data[:4] != b"\x7fELF" or size % UNIT:
        return None
    elf = _Elf(data)
    layout, word = elf.layout, struct.calcsize(elf.layout.word)
    sections = list(elf.sections())
    holding = [
        k for k, s in enumerate(sections)
        if s.kind == _PROGRAM_DATA and data[s.start : s.start + s.size] == STAND_IN
    ]  # fmt: skip
    if len(holding) != 1:
        return None
    held = sections[holding[0]]
    end, more = held.start + held.size, size - held.size
    for table in (s for s in sections if s.kind == _SYMBOLS):
        for symbol in elf.symbols(table):
            (owner,) = elf.get("H", symbol + layout.symbol_section)
            (extent,) = elf.get(layout.word, symbol + layout.symbol_size)
            if owner == holding[0] and extent == held.size:
                elf.put(symbol + layout.symbol_size, size)
    for section in sections:
        if section.start >= end:
            elf.put(section.header + layout.place, section.start + more)
    elf.put(held.header + layout.place + word, size)
    (table_at,) = elf.get(layout.word, layout.section_table)
    if table_at >= end:
        elf.put(layout.section_table, table_at + more)
    return bytes(elf.data[: held.start]), bytes(elf.data[end:])


def enlarge_object(data: bytes, size: int, write: Callable[[BinaryIO], object], to: Path) -> None:
    """Write the object with the stand-in into a file, with what `write` writes in its place.

    That is `size` bytes. Raises ToolchainError if it isn't such an object.
    """
    parts = enlarged_object(data, size)
    if parts is None:
        raise _unexpected(to)
    before, after = parts
    with to.open("wb") as file:
        file.write(before)
        write(file)
        file.write(after)


def enlarge_last_member(
    archive: Path, member: bytes, size: int, write: Callable[[BinaryIO], object]
) -> None:
    """Give an archive's last member, an object with the stand-in, what `write` writes instead.

    That is `size` bytes. Raises ToolchainError if the archive isn't such a one.
    """
    parts = enlarged_object(member, size)
    whole = archive.read_bytes()
    padded = member + b"\n" * (len(member) % 2)
    at = len(whole) - len(padded) - _MEMBER
    header = whole[at : at + _MEMBER]
    if parts is None or not whole.endswith(padded) or int(header[_LENGTH]) != len(member):
        raise _unexpected(archive)
    before, after = parts
    total = len(before) + size + len(after)
    digits = b"%-10d" % total
    if len(digits) > _LENGTH.stop - _LENGTH.start:
        raise _unexpected(archive)
    with archive.open("r+b") as file:
        file.seek(at + _LENGTH.start)
        file.write(digits)
        file.seek(at + _MEMBER)
        file.write(before)
        write(file)
        file.write(after + b"\n" * (total % 2))
        file.truncate()


def _unexpected(archive: Path) -> ToolchainError:
    return ToolchainError(
        "the assembler's or the archiver's output has an unknown form", where=archive.name,
        hint="--external_weight=2 leaves the weights out of the libraries",
    )  # fmt: skip
