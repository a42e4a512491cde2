"""Sources of many networks as few files: a compiler's start takes longer than most kernels.

`compile_networks` takes `compile_joined` in the place of `compile_many`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from atc.backends.toolchain.compiling import Job, compile_many
from atc.backends.toolchain.elf import ARCHIVE
from support import static_names

SOURCES = 32
"""In one file, at most."""
EMPTY = ARCHIVE
"""An archive of nothing, to the linker the object of a source that another one holds."""
_HEADER = re.compile(r'^#include ".*"$', re.MULTILINE)
"""Of the project, which no renaming must reach: the next source finds it read."""


def compile_joined(jobs: Sequence[Job], workers: int) -> None:
    """Compile all jobs; sources of equal folders and flags become part of the first of them."""
    alike: dict[object, list[Job]] = {}
    for job in jobs:
        place = PurePosixPath(job.source)
        joins = place.parent.name == "kernels" or place.name[:3] == "net"
        own = place.parent if joins else job.source
        alike.setdefault((own, place.suffix, job.flags), []).append(job)
    parts = [
        found[begin : begin + SOURCES]
        for found in alike.values()
        for begin in range(0, len(found), SOURCES)
    ]
    for part in parts:
        if len(part) > 1:
            _join(part)
    compile_many([part[0] for part in parts], workers)


def _join(jobs: Sequence[Job]) -> None:
    """Write all sources into the first one's file."""
    texts = {job.source: (job.cwd / job.source).read_text("utf-8") for job in jobs}
    assembly = jobs[0].source.endswith(".S")
    text = "#undef WEIGHTS\n".join(texts.values()) if assembly else joined_text(texts)
    for job in jobs:
        (job.cwd / f"{job.source}.o").write_bytes(EMPTY)
    (jobs[0].cwd / jobs[0].source).write_text(text, "utf-8")


def joined_text(texts: Mapping[str, str]) -> str:
    """Return one source of those of each path, each with static names of its own."""
    lines = [*dict.fromkeys(line for text in texts.values() for line in _HEADER.findall(text))]
    for k, (path, text) in enumerate(texts.items()):
        names = [*static_names(text), "run_thread"]  # of CUDA's emulation
        lines += [f"#define {n} {n}_{k}" for n in names]
        lines += [f'#line 1 "{path}"', text, *(f"#undef {n}" for n in names)]
    return "\n".join(lines) + "\n"
