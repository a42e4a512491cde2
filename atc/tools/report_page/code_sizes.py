"""The sizes of a library's parts: sections and functions of its ELF files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from atc.backends.toolchain import elf
from atc.backends.toolchain.elf import Elf, Section


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


def code_sizes(data: bytes) -> CodeSizes | None:
    """Return the sizes in an ELF file, or in an archive of them; None for any other file."""
    code = 0
    functions: dict[str, int] = {}
    sources: dict[str, int] = {}
    try:
        parts = elf.members(data) if data.startswith(elf.ARCHIVE) else [data]
        files = [Elf(part) for part in parts if part.startswith(elf.MAGIC)]
        for file in files:
            sections = list(file.sections())
            used = elf.EXECUTABLE | elf.ALLOCATED
            code += sum(s.size for s in sections if s.flags & used == used)
            for source, name, size in _functions(file, sections):
                functions[name] = size
                if source and name != source:
                    sources[source] = sources.get(source, 0) + size
    except (struct.error, LookupError, ValueError, OverflowError):
        return None
    return CodeSizes(code, functions, sources) if files else None


def _functions(file: Elf, sections: list[Section]) -> Iterator[tuple[str, str, int]]:
    """Yield source (of a local one), name and size of each function in the tables of symbols."""
    for table in (s for s in sections if s.kind == elf.SYMBOLS):
        names, source = sections[table.link].start, ""
        for at in file.symbols(table):
            (kind,) = file.get("B", at + file.layout.symbol_info)
            if kind & 15 not in (elf.FUNCTION, elf.FILE):
                continue
            (name,) = file.get("I", at)
            (size,) = file.get(file.layout.word, at + file.layout.symbol_size)
            if kind & 15 == elf.FILE:
                source = file.text(names + name).rpartition(".")[0]
            elif size:
                yield source if kind >> 4 == elf.LOCAL else "", file.text(names + name), size
