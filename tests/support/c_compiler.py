"""The C compiler's command in tests; it reads the header of vectors, precompiled, once per run.

That header alone takes longer to read than most kernels.
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
    system = _VECTORS.search(verbatim(f"simd/{target.simd}.h"))
    if folder is None or system is None:
        return command
    return [*command, "-include", _precompiled(Path(folder), tuple(command), system[1])]


def keep_headers_in(folder: Path) -> None:
    """Let this process and its children share precompiled headers in a folder of this run."""
    os.environ[_VARIABLE] = str(folder)


@cache
def _precompiled(folder: Path, command: tuple[str, ...], system: str) -> str:
    """Return a header that includes another; a compiler finds its own form of it beside it."""
    header = folder / f"{hashlib.sha1(repr(command).encode()).hexdigest()}.h"
    with header.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other workers wait rather than compile it, too
        if not header.exists():
            header.write_text(f"#include <{system}.h>\n")
            compile_it = [*command, "-x", "c-header", header, "-o", f"{header}.gch"]
            subprocess.run(compile_it, capture_output=True, check=False)  # without, it is text
    return str(header)
