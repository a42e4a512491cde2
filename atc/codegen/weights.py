"""The ways of a network's weights: an included file, or files beside the library."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from atc.backends.target import Target
from atc.errors import InternalError
from atc.files.blob import Blob
from atc.names import identifier
from atc.templates import render


def included_weights(
    name: str, file: str, what: str = "weights", alignment: int = 64,
    part: tuple[int, int] | None = None, others: Sequence[str] = (), elf: bool = False,
    order: str = "",
) -> str:  # fmt: skip
    """Return the assembler file (`.S`) that includes the blob `file`, byte for byte.

    `file` is looked up like a header: from the compiler's folder and the `-I` ones. Of a `part`,
    begin and size in bytes, nothing else of it is included. The networks `others` find the same
    data under their own names. Where `order` is given, processors of the other order of bytes are
    refused. With `elf` it is the same for ELF alone, without lines
    of the preprocessor (`.s`). 100 MB take the assembler a tenth of a second, hence this is the
    form for all compilers that have it.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.+/-]+", file):
        raise InternalError("a blob's path can't be written in assembler", where=repr(file))
    return render("project/weights.S.j2", {
        "name": _checked(name), "file": file, "what": what, "alignment": alignment, "part": part,
        "others": [*map(_checked, others)], "elf": elf, "order": order,
    })  # fmt: skip


def in_library(library: str) -> str:
    """Return the path by which a project's sources find its library with the weights.

    It leads through a folder of the project, so that a library of the same name in the compiler's
    folder, as a build makes one, is never taken for it.
    """
    return f"src/kernels/../../{library}"


def weights_text(name: str, blob: Blob, target: Target) -> str:
    """Return C of the weights, for a target whose assembler includes no files: 3 MB for each 1."""
    words = np.frombuffer(b"".join(blob.parts), ">u8" if target.big_endian else "<u8")
    rows = (words[k : k + 4].tolist() for k in range(0, words.size, 4))
    return render("project/weights.c.j2", {
        "name": _checked(name), "alignment": target.alignment, "words": words.size,
        "order": target.byte_order,
        "lines": [" ".join(f"0x{word:016x}," for word in row) for row in rows],
    })  # fmt: skip


def split_weights(name: str, data: bytes, constants: Mapping[int, str]) -> dict[str, bytes]:
    """Return a file for each constant; in the order of their names they are the blob `data`.

    `constants` are those of all plans by the place where they begin.
    """
    starts = sorted(constants)
    if starts[0] != 0:
        raise InternalError("weights that no plan knows", where=name)
    return {
        f"{_checked(name)}_weights/{k:05}_{identifier(constants[at], 't')}.bin": data[at:end]
        for k, (at, end) in enumerate(zip(starts, [*starts[1:], len(data)], strict=True))
    }


def _checked(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InternalError("a network's name is not a C identifier", where=repr(name))
    return name
