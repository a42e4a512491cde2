"""ELF files of 32 or 64 bits in either byte order, and archives of them.

Formats: System V ABI, chapter 4 (header, section headers, symbol table); archives as System V and
GNU have them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"\x7fELF"
ARCHIVE = b"!<arch>\n"
PROGRAM_DATA, SYMBOLS = 1, 2  # sh_type
NO_BITS = 8  # another sh_type
WRITABLE, ALLOCATED, EXECUTABLE = 1, 2, 4  # sh_flags
FUNCTION, FILE = 2, 4  # types of symbols
LOCAL = 0  # their binding

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

    def __init__(self, data: bytes | bytearray) -> None:
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
            (kind,) = self.get("I", header + 4)
            (flags,) = self.get(word, header + _FLAGS)
            start, size, link = self.get(2 * word + "I", header + self.layout.place)
            yield Section(header, kind, flags, start, size, link)

    def symbols(self, table: Section) -> range:
        """Return the places of a table's symbols."""
        return range(table.start, table.start + table.size, self.layout.symbol_bytes)

    def text(self, at: int) -> str:
        """Return the text that begins at a place and ends with a zero."""
        return self.data[at : self.data.index(b"\0", at)].decode("ascii", "replace")


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
