"""The C compiler's command in tests; it reads what all kernels include, precompiled, once per run.

The header of vectors alone takes longer to read than most kernels, that of scalars a fifth of what
compiling and linking a portable one takes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from default_run import level

from atc.backends.target import Target
from atc.templates import verbatim

CFLAGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-ffp-contract=off", "-fPIC")

_VARIABLE = "ATC_TESTS_HEADERS"
_VECTORS = re.compile(r"#include <(immintrin|emmintrin|arm_neon)\.h>")


def compile_command(target: Target, flags: Sequence[str] = ()) -> list[str]:
    """Return the compiler and its flags for a target, less the files and what is made of them."""
    command = [target.compiler, *target.compiler_words, level(), *CFLAGS, *target.cflags, *flags]
    folder = os.environ.get(_VARIABLE)
    vectors = _VECTORS.search(verbatim(f"simd/{target.simd}.h"))
    if folder is None or (vectors is None and flags):
        return command
    system = vectors[0] if vectors else ""
    return [*command, "-include", _precompiled(Path(folder), tuple(command), system)]


def keep_headers_in(folder: Path) -> None:
    """Let this process and its children share precompiled headers in a folder of this run."""
    os.environ[_VARIABLE] = str(folder)


@cache
def _precompiled(folder: Path, command: tuple[str, ...], system: str) -> str:
    """Return the kernels' header with a system's; a compiler finds its own form of it beside it."""
    header = folder / f"{hashlib.sha1(repr(command).encode()).hexdigest()}.h"
    with header.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other workers wait rather than compile it, too
        if not header.exists():
            header.write_text(f"{verbatim('cpu/kernel.h')}\n{system}\n")
            compile_it = [*command, "-x", "c-header", header, "-o", f"{header}.gch"]
            subprocess.run(compile_it, capture_output=True, check=False)  # without, it is text
    return str(header)
