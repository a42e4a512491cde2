"""Compilers that tests look for, and the sources of a small library."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from atc.backends.toolchain.compiler import Compiler
from atc.backends.toolchain.compiling import Job, compile_many

HELPER = "int twice(int x);\nint twice(int x) { return x * FACTOR; }\n"
PUBLIC = """\
int twice(int x);
__attribute__((visibility("default"))) int API(int x);
int API(int x) { return twice(x); }
"""


def environ(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "CC"}
    return {**kept, **changes}


def first_of(*names: str) -> str | None:
    return next((name for name in names if shutil.which(name)), None)


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def network(folder: Path, api: str, factor: int) -> Path:
    """Write a library's two sources: a public function and a hidden one it calls."""
    public = PUBLIC.replace("API", api)
    return write(folder, {"src/a.c": public, "src/b.c": HELPER.replace("FACTOR", str(factor))})


def objects_of(compiler: Compiler, flags: tuple[str, ...], folder: Path, workers: int = 2) -> None:
    compile_many([Job(compiler, flags, f"src/{name}.c", folder) for name in "ab"], workers)
