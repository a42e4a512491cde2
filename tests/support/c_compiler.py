"""The C compiler in tests: its command, and what default runs keep of what it made.

What all kernels include is precompiled, once per run: the header of vectors alone takes longer to
read than most kernels, that of scalars a fifth of what compiling and linking a portable one takes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from default_run import SHARE, find_tcc, level

from atc.backends.target import Target, host_features
from atc.templates import verbatim

CFLAGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-ffp-contract=off", "-fPIC")

EMULATED = frozenset({"armv7-neon", "wasm32-simd128", "riscv64-rvv"})
"""Whose kernels' tests are those of aarch64-neon again, under other emulators."""

_VARIABLE, _RESULTS = "ATC_TESTS_HEADERS", "ATC_TESTS_RESULTS"
_MOST = 512 << 20
"""Bytes of results that are kept from run to run."""
_VECTORS = re.compile(r"#include <(immintrin|emmintrin|arm_neon)\.h>")


def compile_command(target: Target, flags: Sequence[str] = ()) -> list[str]:
    """Return the compiler and its flags for a target, less the files and what is made of them."""
    words = [*target.compiler_words, _level_for(target)]
    command = [target.compiler, *words, *CFLAGS, *target.cflags, *flags]
    folder = os.environ.get(_VARIABLE)
    vectors = _VECTORS.search(verbatim(f"simd/{target.simd}.h"))
    if folder is None or (vectors is None and (flags or target.runner)):
        return command
    system = vectors[0] if vectors else ""
    return [*command, "-include", _header(Path(folder), tuple(command), system)]


def _level_for(target: Target) -> str:
    """Return the level of a target: none where kernels are another's with other vectors.

    The same C, with other tables and tiles, is optimised for this CPU's widest vectors and for
    NEON; that takes twice to three times as long. RISC-V's is worth it: QEMU takes forty times as
    long over vectors that are stored and loaded again between any two instructions.
    """
    narrower = target.simd in ("sse2", "avx2") and "avx512f" in host_features()
    repeated = target.name in EMULATED and target.simd != "rvv"
    if narrower or repeated:
        return "-O0"
    return "-Og" if level() == "-O1" and target.simd != "rvv" else level()


def compile_in(folder: Path, command: Sequence[str], result: str | None) -> None:
    """Run a command in a folder of sources, and fail on any warning.

    Without optimisation tcc compiles portable C, but for an eighth: it knows few warnings.

    Where results are kept, one of the same command, compiler and files is taken: not without the
    name of the `result`, or if the command reads files of other folders.
    """
    place, digest = os.environ.get(_RESULTS), _digest(folder, command)
    kept = Path(place, digest) if place and result else None
    if kept is not None and result:
        with suppress(FileNotFoundError):
            (folder / result).write_bytes(zlib.decompress(kept.read_bytes()))
            (folder / result).chmod(0o755)
            os.utime(kept)
            return
    checked = int(digest[:2], 16) % SHARE == 0
    if checked or not _compiled_by_tcc(folder, command):
        _precompile(command)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000]
    if kept is not None and result:
        with suppress(FileNotFoundError):  # --cache-clear: each worker removes the folder once more
            kept.parent.mkdir(parents=True, exist_ok=True)
            own = kept.with_name(f"{kept.name}.{os.getpid()}")
            own.write_bytes(zlib.compress((folder / result).read_bytes(), 1))
            own.replace(kept)


def _compiled_by_tcc(folder: Path, command: Sequence[str]) -> bool:
    """Whether tcc compiled portable C, and had nothing to say of it."""
    compiler, *words = map(str, command)
    tcc, portable = find_tcc(), not _NOT_PORTABLE.search(" ".join(words))
    if not tcc or Path(compiler).name != "cc" or "-O0" not in words or not portable:
        return False
    own = [_assembled(folder, compiler, w) for w in words if w != "-nostartfiles"]
    done = subprocess.run([tcc, *own], cwd=folder, capture_output=True, check=False)
    return done.returncode == 0 and not done.stdout + done.stderr


def _assembled(folder: Path, compiler: str, word: str) -> str:
    """Return the object of a word that is a file of assembler, which tcc doesn't read."""
    if not word.endswith(".S"):
        return word
    command = [compiler, "-I.", "-c", word, "-o", f"{word}.o"]
    subprocess.run(command, cwd=folder, capture_output=True, check=False)
    return f"{word}.o"


_NOT_PORTABLE = re.compile(r"(^| )(-m|-x |-g |-fs|-pthread|-c )")
"""What a command has that compiles C for some processor alone, or C that is to be looked into."""


def _digest(folder: Path, command: Sequence[str]) -> str:
    """Return a digest of all that a result depends on: the compiler, its words and its files."""
    digest = hashlib.sha256(compiler_version(command[0]))
    digest.update(compiler_version(tcc) if (tcc := find_tcc()) else b"")
    precompiled = os.environ.get(_VARIABLE, "")
    for word in command:
        own = Path(word).read_bytes() if precompiled and word.startswith(precompiled) else b""
        digest.update(b"\0" + (own or str(word).encode()))
    for file in sorted(p for p in folder.rglob("*") if p.suffix and p.is_file()):
        data = file.read_bytes()
        digest.update(f"\0{file.relative_to(folder)} {len(data)}\0".encode() + data)
    return digest.hexdigest()


@cache
def compiler_version(compiler: str) -> bytes:
    """Return a compiler's place, its file's time and its words."""
    path = shutil.which(compiler) or compiler
    said = subprocess.run([path, "--version"], capture_output=True, check=False).stdout
    return f"{Path(path).resolve()} {Path(path).stat().st_mtime_ns}\0".encode() + said


def keep_results_in(folder: Path) -> None:
    """Let this process and its children take from a folder what earlier runs compiled."""
    os.environ[_RESULTS] = str(folder)
    found = []
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # another run writes and removes some, too
            found.append((file.stat(), file))
    left = _MOST
    for stat, file in sorted(found, key=lambda f: -f[0].st_mtime):
        left -= stat.st_size
        if left < 0:
            file.unlink(missing_ok=True)


def keep_headers_in(folder: Path) -> None:
    """Let this process and its children share precompiled headers in a folder of this run."""
    os.environ[_VARIABLE] = str(folder)


@cache
def _header(folder: Path, command: tuple[str, ...], system: str) -> str:
    """Return the kernels' header with a system's, for one command."""
    header = folder / f"{hashlib.sha1(repr(command).encode()).hexdigest()}.h"
    own = header.with_suffix(f".{os.getpid()}")
    own.write_text(f"{verbatim('cpu/kernel.h')}\n{system}\n")
    own.replace(header)
    return str(header)


def _precompile(command: Sequence[str]) -> None:
    """Make the compiler's own form of the header that a command includes first, beside it."""
    if "-include" not in command:
        return
    before = command.index("-include")
    header = Path(command[before + 1])
    own = header.with_suffix(".h.gch")
    with header.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other workers wait rather than compile it, too
        if not own.exists():
            making = [*command[:before], "-x", "c-header", header, "-o", own]
            subprocess.run(making, capture_output=True, check=False)  # without, it is text
