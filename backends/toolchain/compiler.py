"""Compilers and the flags they get. Nothing here starts a process."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from atc.backends.target import Target
from atc.backends.toolchain.running import Running
from atc.errors import OptionError

Kind: TypeAlias = Literal["gcc", "clang", "zig", "nvcc"]

LEVELS = ("O0", "O1", "O2", "O3", "Os")
SANITIZERS = ("address", "undefined", "thread", "memory")
PATIENCE = 600.0
"""Seconds that one call of a compiler may take, unless somebody says otherwise."""


@dataclass(frozen=True)
class Compiler:
    """A compiler: how it is started, whose it is, what it says of itself and builds for.

    `timeout` is in seconds and for each of its calls, 0 for no limit; `running` are those that have
    begun.
    """

    argv: tuple[str, ...]
    kind: Kind
    version: str
    machine: str
    timeout: float = field(default=PATIENCE, compare=False)
    running: Running = field(default_factory=Running, compare=False, repr=False)

    @property
    def elf(self) -> bool:
        """Whether its object files are ELF (not Mach-O, COFF or WebAssembly's)."""
        others = ("darwin", "macos", "wasm")
        return not self.windows and not any(word in self.machine for word in others)

    @property
    def windows(self) -> bool:
        """Whether it builds for Windows."""
        return any(word in self.machine for word in ("mingw", "windows"))

    def identity(self) -> bytes:
        """Return a digest of the executable's content, its arguments and its version text.

        Equal compilers in different places are equal; an update in place is a new one.
        """
        digest = hashlib.sha256(self.version.encode())
        for word in self.argv:
            path = shutil.which(word)
            part = known_digest(path) if path else word.encode()
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()


def known_digest(path: str | Path) -> bytes:
    """Return the SHA-256 of a file, which is read once while it stays as it is."""
    real = os.path.realpath(path)
    stat = os.stat(real)
    return _content_digest(real, stat.st_mtime_ns, stat.st_size)


@functools.cache
def _content_digest(path: str, mtime_ns: int, size: int) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def compile_flags(
    compiler: Compiler,
    target: Target,
    level: str = "O2",
    debug: bool = False,
    sanitize: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return the flags of every object: strict C99, and floating point as it is written.

    No fast-math, not even its parts: results must not depend on the compiler, and a library
    linked with it would change the rounding mode of the whole process that loads it.
    """
    _choose("optimisation level", (level,), LEVELS)
    _choose("sanitizer", sanitize, SANITIZERS)
    flags = [
        *("-std=c99", f"-{level}", *_placement(target), "-fvisibility=hidden"),
        *("-ffp-contract=off", "-fno-math-errno"),
        *("-Wall", "-Wextra", "-Wpedantic", "-Werror"),
    ]
    if compiler.kind == "gcc":
        # They would hoist a tile's loads and spill its accumulators.
        flags += ["-fno-tree-pre", "-fno-schedule-insns"]
        if not target.bare:  # else -O2 leaves loops alone whose numbers of rounds aren't known
            flags.append("-fvect-cost-model=dynamic")
        if target.big_endian:  # on s390x C99 would mean floats that are computed in double
            flags.append("-fexcess-precision=fast")
    else:
        flags.append("-Wno-unused-command-line-argument")  # in assembler files
    if compiler.kind == "zig" and not sanitize:
        flags.append("-fno-sanitize=undefined")  # zig's default at -O0
    if debug:
        flags.append("-g")
    if sanitize:
        flags += [f"-fsanitize={','.join(sanitize)}", "-fno-omit-frame-pointer"]
        flags.append("-fno-sanitize-recover=all")
    return (*flags, *machine_flags(compiler, target))


def machine_flags(compiler: Compiler, target: Target) -> tuple[str, ...]:
    """Return the flags that name the processor, in the words of GCC and clang or in zig's."""
    if compiler.kind != "zig" or not target.zig_flags:
        return target.cflags
    kept = (f for f in target.cflags if not f.startswith(("-march=", "-mcpu=", "-mfpu=")))
    return (*target.zig_flags, *kept)


def core_flags(compiler: Compiler, target: Target) -> tuple[str, ...]:
    """Return the flags of files without code: linkers of microcontrollers compare cores."""
    return machine_flags(compiler, target) if target.bare else ()


def _placement(target: Target) -> tuple[str, ...]:
    """Return what lets a library lie anywhere, or a linker leave out of it what nobody calls."""
    return ("-ffunction-sections", "-fdata-sections") if target.bare else ("-fPIC",)


def shared_library(compiler: Compiler, name: str) -> str:
    """Return the file name of a network's shared library on the system of a compiler."""
    return f"{name}.dll" if compiler.windows else f"lib{name}.so"


def library_in(folder: Path, name: str) -> Path | None:
    """Return a network's library of any system in a folder: the shared one, else the static one."""
    names = (f"lib{name}.so", f"{name}.dll", f"lib{name}.a")
    return next((p for p in (folder / n for n in names) if p.is_file()), None)


def source_flags(flags: tuple[str, ...], source: str) -> tuple[str, ...]:
    """Return the flags of a source: to the host's compiler, CUDA is C++ that emulates a GPU.

    Of C++14: from C++17 on, <math.h> has templates of GNU's that take longer than most kernels.
    """
    if not source.endswith(".cu"):
        return flags
    kept = (flag for flag in flags if flag != "-std=c99")
    own = ("-x", "c++", "-std=c++14", "-fno-exceptions", "-fno-rtti", "-DATC_EMULATED")
    return (*kept, *own)


def _choose(what: str, values: tuple[str, ...], known: tuple[str, ...]) -> None:
    for value in values:
        if value not in known:
            raise OptionError(f"unknown {what} '{value}'; choose of {', '.join(known)}")


STRIP = "-s"
"""Leaves out of a library all symbols that loading it doesn't need."""
LOADS = "-ldl"
"""For networks that open libraries: needed by C libraries that have a separate library for that."""
OPEN_ENDED = "-Wl,-z,undefs"
"""Lets a library have symbols that the program defines which loads it."""


@functools.cache
def linker_words(answer: bytes) -> tuple[str, ...]:
    """Return the words of the linker's command in GCC's answer to `-###`, without its name.

    There are none where GCC starts something else, too. The plugin for objects that are optimised
    when linked stays, without the name of a file that GCC deletes; it fails where there are such
    objects, for it misses GCC's variables.
    """
    first, *words = _only_command(answer)
    if Path(first).name != "collect2" or any(w.startswith(("-flto", "-fuse-ld")) for w in words):
        return ()
    return tuple(w for w in words if not w.startswith("-plugin-opt=-fresolution="))


@functools.cache
def assembler_words(answer: bytes) -> tuple[str, ...]:
    """Return the words of the assembler's command in GCC's answer to `-###`, without its name.

    There are none where GCC starts something else, too.
    """
    first, *words = _only_command(answer)
    return tuple(words) if Path(first).name.endswith("as") else ()


def _only_command(answer: bytes) -> list[str]:
    """Return the words of the command in GCC's answer to `-###` if there is just one."""
    output = answer.decode(errors="replace").splitlines()
    lines = [line for line in output if line.startswith(" ")]
    return shlex.split(lines[0]) if len(lines) == 1 else [""]


def link_flags(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the flags that are the link's, or that it must repeat."""
    own = (STRIP, OPEN_ENDED, THREADS)
    return tuple(flag for flag in flags if flag in own or flag.startswith("-fsanitize="))


THREADS = "-pthread"
"""For networks that compute with threads."""
