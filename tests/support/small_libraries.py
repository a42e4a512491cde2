"""Compilers that tests look for, and the sources of a small library."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from waiting import happens

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


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def hanging_compiler(tmp_path: Path, when: str) -> str:
    """Return a compiler that hangs once its command line holds a word, with a child of its own."""
    real = shutil.which("gcc") or "cc"
    text = f'case " $* " in *" {when} "*) sleep 600 & echo $! >> {tmp_path}/children; wait;; esac'
    return str(script(tmp_path / "hanging-cc", f'{text}\nexec {real} "$@"'))


def are_gone(children: Path) -> bool:
    """Say whether all processes of a list have ended."""
    return happens(lambda: all(map(is_gone, children.read_text().split())))


def is_gone(pid: str) -> bool:
    """Say whether a process has ended; the kernel needs a moment, and init another to bury it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
