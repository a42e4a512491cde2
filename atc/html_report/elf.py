"""The sizes of a library's parts: sections and functions of an ELF file (TIS ELF 1.2, gABI)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_EXECUTABLE, _ALLOCATED = 4, 2
_SYMTAB, _FUNCTION = 2, 2


@dataclass(frozen=True)
class CodeSizes:
    """Bytes of code, and of each function that the file still names."""

    code: int
    functions: dict[str, int]


@dataclass(frozen=True)
class _Section:
    kind: int
    flags: int
    offset: int
    size: int
    link: int


def code_sizes(data: bytes) -> CodeSizes | None:
    """Return the sizes in a little-endian 64-bit ELF file; None for any other file."""
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    try:
        sections = list(_sections(data))
        code = sum(s.size for s in sections if s.flags & _EXECUTABLE and s.flags & _ALLOCATED)
        functions = {n: size for s in sections for n, size in _functions(data, s, sections)}
    except (struct.error, IndexError, ValueError, OverflowError):
        return None
    return CodeSizes(code, functions)


def _sections(data: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    for k in range(count):
        fields = struct.unpack_from("<IIQQQQI", data, table + k * size)
        _, kind, flags, _, offset, length, link = fields
        yield _Section(kind, flags, offset, length, link)


def _functions(
    data: bytes, section: _Section, sections: list[_Section]
) -> Iterator[tuple[str, int]]:
    if section.kind != _SYMTAB:
        return
    names = sections[section.link].offset
    for at in range(section.offset, section.offset + section.size, 24):
        name, info, _, _, _, size = struct.unpack_from("<IBBHQQ", data, at)
        if info & 15 == _FUNCTION and size:
            begin = names + name
            yield data[begin : data.index(b"\0", begin)].decode("ascii", "replace"), size
