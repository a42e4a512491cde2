"""Puts large data into object files and archives that were made with a small stand-in for it.

Assemblers, archivers and linkers copy what `.incbin` names, one after the other, and a network's
weights may be gigabytes. So they get a stand-in of a few bytes, and the sizes and places in what
assemblers and archivers made are corrected here. Linkers get a section that takes no room in its
object, for which they leave a hole in a library. The results are, byte for byte, what they make of
the data.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from atc.backends.toolchain.elf import (
    KIND,
    LENGTH,
    MAGIC,
    MEMBER,
    NO_BITS,
    PROGRAM_DATA,
    SYMBOLS,
    Elf,
    Section,
    place_of_symbol,
)
from atc.errors import ToolchainError

STAND_IN = bytes(range(64))
"""What is assembled in place of data whose size is a multiple of `UNIT`."""
UNIT = 8
"""Bytes: no section that follows in an object is aligned to more."""


def enlarged_object(data: bytes, size: int) -> tuple[bytes, bytes] | None:
    """Return what comes before and after `size` bytes of data in an ELF object.

    `data` is the object with the stand-in, which must be the whole of one section; None if it isn't
    such an object.
    """
    if data[:4] != MAGIC or size % UNIT:
        return None
    made = bytearray(data)
    elf = Elf(made)
    held = _resized(elf, size)
    if held is None:
        return None
    layout, word = elf.layout, elf.order + elf.layout.word
    end, more = held.start + held.size, size - held.size
    for section in elf.sections():
        if section.start >= end:
            struct.pack_into(word, made, section.header + layout.place, section.start + more)
    (table_at,) = elf.get(layout.word, layout.section_table)
    if table_at >= end:
        struct.pack_into(word, made, layout.section_table, table_at + more)
    return bytes(made[: held.start]), bytes(made[end:])


def hollow_object(data: bytes, size: int) -> bytes | None:
    """Return an ELF object whose section is `size` bytes that aren't there, as those of .bss.

    `data` is the object with the stand-in; None as of `enlarged_object`.
    """
    if data[:4] != MAGIC or size % UNIT:
        return None
    elf = Elf(bytearray(data))
    held = _resized(elf, size)
    if held is None:
        return None
    struct.pack_into(elf.order + "I", elf.data, held.header + KIND, NO_BITS)
    return bytes(elf.data)


def _resized(elf: Elf, size: int) -> Section | None:
    """Give the stand-in's section and its symbols another size; return it as it was, if any."""
    layout, word = elf.layout, elf.order + elf.layout.word
    sections = [*elf.sections()]
    holding = [
        k for k, s in enumerate(sections)
        if s.kind == PROGRAM_DATA and elf.data[s.start : s.start + s.size] == STAND_IN
    ]  # fmt: skip
    if len(holding) != 1:
        return None
    held = sections[holding[0]]
    for table in (s for s in sections if s.kind == SYMBOLS):
        for symbol in elf.symbols(table):
            (owner,) = elf.get("H", symbol + layout.symbol_section)
            (extent,) = elf.get(layout.word, symbol + layout.symbol_size)
            if owner == holding[0] and extent == held.size:
                struct.pack_into(word, elf.data, symbol + layout.symbol_size, size)
    at = held.header + layout.place + struct.calcsize(word)
    struct.pack_into(word, elf.data, at, size)
    return held


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
    at = len(whole) - len(padded) - MEMBER
    header = whole[at : at + MEMBER]
    if parts is None or not whole.endswith(padded) or int(header[LENGTH]) != len(member):
        raise _unexpected(archive)
    before, after = parts
    total = len(before) + size + len(after)
    digits = b"%-10d" % total
    if len(digits) > LENGTH.stop - LENGTH.start:
        raise _unexpected(archive)
    with archive.open("r+b") as file:
        file.seek(at + LENGTH.start)
        file.write(digits)
        file.seek(at + MEMBER)
        file.write(before)
        write(file)
        file.write(after + b"\n" * (total % 2))
        file.truncate()


def link_with_data(
    link: Callable[[], Path], data: bytes, size: int, write: Callable[[BinaryIO], object],
    held: Path, symbol: str,
) -> tuple[Path, int | None]:  # fmt: skip
    """Link an object `held` with what `write` writes; return the library, and where that begins.

    The linker leaves a hole of `size` bytes for the symbol, if it can; else it copies them from
    the object, and the place is None. `data` is the object with the stand-in. Raises ToolchainError
    if it isn't such an object.
    """
    hollow = hollow_object(data, size)
    if hollow is not None:
        held.write_bytes(hollow)
        library = link()
        at = place_of_symbol(library, symbol, size)
        if at is not None:
            with library.open("r+b") as file:
                file.seek(at)
                write(file)
            return library, at
    enlarge_object(data, size, write, held)
    library = link()
    held.unlink()  # as large as the library
    return library, None


def _unexpected(archive: Path) -> ToolchainError:
    return ToolchainError(
        "the assembler's or the archiver's output has an unknown form", where=archive.name,
        hint="--external_weight=2 leaves the weights out of the libraries",
    )  # fmt: skip
