"""The sizes of a library's parts: sections and functions of an ELF file (TIS ELF 1.2, gABI)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_EXECUTABLE, _ALLOCATED = 4, 2
_SYMTAB, _FUNCTION, _FILE = 2, 2, 4


@dataclass(frozen=True)
class CodeSizes:
    """Bytes of code, of each function that the file still names, of each source's local ones."""

    code: int
    functions: dict[str, int]
    sources: dict[str, int]
    """By the source's name less its ending; a function of the same name isn't counted here."""

    def of(self, name: str) -> int:
        """Return the bytes of a function and of the local ones in the source of its name."""
        return self.functions.get(name, 0) + self.sources.get(name, 0)


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
        functions: dict[str, int] = {}
        sources: dict[str, int] = {}
        for source, name, size in (f for s in sections for f in _functions(data, s, sections)):
            functions[name] = size
            if name != source:
                sources[source] = sources.get(source, 0) + size
    except (struct.error, IndexError, ValueError, OverflowError):
        return None
    return CodeSizes(code, functions, sources)


def _sections(data: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    for k in range(count):
        fields = struct.unpack_from("<IIQQQQI", data, table + k * size)
        _, kind, flags, _, offset, length, link = fields
        yield _Section(kind, flags, offset, length, link)


def _functions(
    data: bytes, section: _Section, sections: list[_Section]
) -> Iterator[tuple[str, str, int]]:
    """Yield source, name and size of each function in a table of symbols."""
    if section.kind != _SYMTAB:
        return
    names, source = sections[section.link].offset, ""
    for at in range(section.offset, section.offset + section.size, 24):
        name, info, _, _, _, size = struct.unpack_from("<IBBHQQ", data, at)
        if info & 15 not in (_FUNCTION, _FILE):
            continue
        begin = names + name
        text = data[begin : data.index(b"\0", begin)].decode("ascii", "replace")
        if info & 15 == _FILE:
            source = text.rpartition(".")[0]
        elif size:
            yield source, text, size
