"""ELF files of 32 or 64 bits in either byte order, and archives of them.

Formats: System V ABI, chapter 4 (header, section headers, symbol table); archives as System V and
GNU have them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

MAGIC = b"\x7fELF"
ARCHIVE = b"!<arch>\n"
PROGRAM_DATA, SYMBOLS = 1, 2  # sh_type
NO_BITS = 8  # another sh_type
WRITABLE, ALLOCATED, EXECUTABLE = 1, 2, 4  # sh_flags
FUNCTION, FILE = 2, 4  # types of symbols
LOCAL = 0  # their binding
KIND = 4  # where sh_type stands in a section's header

MEMBER = 60
"""Bytes of an archive member's header."""
LENGTH = slice(48, 58)
"""Where its size stands in that, in decimal digits."""


@dataclass(frozen=True)
class Layout:
    """The places of fields in an ELF file of one class; `word` is the format of its sizes."""

    word: str
    section_table: int
    section_bytes: int
    """e_shentsize, then e_shnum."""
    place: int
    """sh_offset, then sh_size and sh_link."""
    symbol_bytes: int
    symbol_size: int
    symbol_info: int
    symbol_section: int


_FLAGS = 8
_LAYOUTS = {
    1: Layout("I", 32, 46, 16, 16, 8, 12, 14),
    2: Layout("Q", 40, 58, 24, 24, 16, 4, 6),
}


@dataclass(frozen=True)
class Section:
    """A section: where its header is, its type and flags, its bytes, the section it refers to."""

    header: int
    kind: int
    flags: int
    start: int
    size: int
    link: int


class Elf:
    """The bytes of an ELF file and what its fields mean.

    Those of a damaged file raise struct.error, LookupError or ValueError.
    """

    def __init__(self, data: bytes | bytearray | mmap) -> None:
        self.data = data
        self.layout = _LAYOUTS[data[4]]
        self.order = "<" if data[5] == 1 else ">"

    def get(self, form: str, at: int) -> tuple[int, ...]:
        """Return the numbers of a format of `struct` at a place."""
        return struct.unpack_from(self.order + form, self.data, at)

    def sections(self) -> Iterator[Section]:
        """Yield all sections in their order."""
        word = self.layout.word
        (table,) = self.get(word, self.layout.section_table)
        step, count = self.get("HH", self.layout.section_bytes)
        for header in range(table, table + step * count, step):
            (kind,) = self.get("I", header + KIND)
            (flags,) = self.get(word, header + _FLAGS)
            start, size, link = self.get(2 * word + "I", header + self.layout.place)
            yield Section(header, kind, flags, start, size, link)

    def symbols(self, table: Section) -> range:
        """Return the places of a table's symbols."""
        return range(table.start, table.start + table.size, self.layout.symbol_bytes)

    def text(self, at: int) -> str:
        """Return the text that begins at a place and ends with a zero."""
        return self.data[at : self.data.find(b"\0", at)].decode("ascii", "replace")


def place_of_symbol(file: Path, name: str, size: int) -> int | None:
    """Return at which byte of a linked file the `size` bytes of a symbol are.

    None where the file doesn't name it, or has no room for it.
    """
    wanted = name.encode() + b"\0"
    with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as data:
        elf = Elf(data)
        sections, word = [*elf.sections()], struct.calcsize(elf.layout.word)
        for table in (s for s in sections if s.kind == SYMBOLS):
            for symbol in elf.symbols(table):
                (begin,) = elf.get("I", symbol)
                begin += sections[table.link].start
                if data[begin : begin + len(wanted)] == wanted:
                    (owner,) = elf.get("H", symbol + elf.layout.symbol_section)
                    (value,) = elf.get(elf.layout.word, symbol + elf.layout.symbol_size - word)
                    return _within(elf, sections[owner], value, size)
    return None


def _within(elf: Elf, section: Section, address: int, size: int) -> int | None:
    """Return where bytes at an address are in a file, if a section has all of them there."""
    word = elf.layout.word
    (first,) = elf.get(word, section.header + elf.layout.place - struct.calcsize(word))
    there = section.kind == PROGRAM_DATA and address - first + size <= section.size
    return section.start + address - first if there else None


def members(archive: bytes) -> Iterator[bytes]:
    """Yield the files in an archive, tables of names and symbols among them."""
    at = len(ARCHIVE)
    while at + MEMBER <= len(archive):
        size = int(archive[at : at + MEMBER][LENGTH])
        yield archive[at + MEMBER : at + MEMBER + size]
        at += MEMBER + size + size % 2


def section_sizes(file: bytes) -> tuple[int, int, int]:
    """Return the bytes of code and constants, of data, and of zeroed data that are loaded.

    Counted as the tool `size` does; of an archive they are the sums over its members.
    """
    parts = members(file) if file.startswith(ARCHIVE) else [file]
    code = data = zeroed = 0
    for part in parts:
        if not part.startswith(MAGIC):
            continue
        for section in Elf(part).sections():
            if not section.flags & ALLOCATED:
                continue
            if section.flags & EXECUTABLE or not section.flags & WRITABLE:
                code += section.size
            elif section.kind == NO_BITS:
                zeroed += section.size
            else:
                data += section.size
    return code, data, zeroed
