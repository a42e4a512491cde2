"""The C compiler for a target: what the user names, else what this machine has."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from atc.backends.target import Target, host_arch, normal_arch
from atc.backends.toolchain.compiler import PATIENCE, Compiler, Kind
from atc.backends.toolchain.processes import Log, TimedOut, ask_program, no_log, timeout_error
from atc.errors import OptionError, ToolchainError

PACKAGES = {
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "riscv64-unknown-elf-gcc": "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "arm-linux-gnueabihf-gcc": "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross",
    "s390x-linux-gnu-gcc": "gcc-s390x-linux-gnu libc6-dev-s390x-cross",
    "clang-19": "clang-19 lld-19",
}
"""Debian's packages of compilers for other processors."""
_LIBRARIES = {
    "riscv32-rvv": "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf",
    "riscv64-rvv": "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross",
    "wasm32-simd128": "wasi-libc libclang-rt-19-dev-wasm32",
}
"""Debian's packages of the C libraries of targets that share a compiler."""
_KNOWN = "use gcc, clang or zig"
_ANSWER = 60.0  # seconds that a compiler may take to say who it is
GLIBC = "2.28"  # the oldest that zig links for: 2018, every distribution still in service


def find_compiler(
    target: Target, environ: Mapping[str, str], given: Sequence[str] = (), *, log: Log = no_log,
    timeout: float = PATIENCE,
) -> Compiler:  # fmt: skip
    """Return the first compiler that builds for `target`: `given`, the words of --build_config.

    `timeout` is for each of its calls.

    Else tried in this order: `$CC`, the target's own compiler, gcc, clang, the `ziglang` package.
    A `$CC` for another processor is passed over for a cross target, where it can't be meant.
    Raises ToolchainError that says what to install, or that the processor has the other byte order.
    """
    found = _found_compiler(target, environ, given, log, timeout)
    if _is_big_endian(found, log) == target.big_endian:
        return found
    order = "little" if target.big_endian else "big"
    raise ToolchainError(
        f"{shlex.join(found.argv)} builds for {found.machine}, which is {order}-endian; "
        f"the constants of {target.name} are {target.byte_order}-endian",
        hint=f"{compiler_advice(target)}, or name another compiler by CC"
        if target.big_endian
        else "choose another compiler, or --target=c99-big-endian",
    )


def _is_big_endian(compiler: Compiler, log: Log) -> bool:
    """Ask a compiler in which order its processor has the bytes of a number."""
    words = (*compiler.argv, "-E", "-dM", "-x", "c", os.devnull)
    done = ask_program(words, compiler.timeout, log=log)
    return b"#define __BYTE_ORDER__ __ORDER_BIG_ENDIAN__" in done.stdout


def _found_compiler(
    target: Target, environ: Mapping[str, str], given: Sequence[str], log: Log, timeout: float
) -> Compiler:
    def identify(words: tuple[str, ...], source: str = "") -> Compiler | None:
        found = _identify(words, environ, log, timeout, source)
        return found and replace(found, timeout=timeout)

    source = "--build_config" if given else "CC"
    words = _with_target(tuple(given) or _split_cc(environ.get("CC", "")), target)
    if words:
        chosen = identify(words, source)
        if chosen is None:
            raise ToolchainError(
                f"{source} names a program that isn't there: {words[0]}",
                hint=f"correct {source}, or leave it out",
            )
        if _builds_for(chosen, target):
            return chosen
        if given or target.arch == host_arch():
            raise ToolchainError(
                f"{source} builds for {chosen.machine}, not for the target {target.name}",
                hint=f"leave {source} out, or choose a target of that machine",
            )
    own = () if target.compiler == "cc" else (target.compiler,)
    for name in (*own, "gcc", "clang"):
        more = target.compiler_words if name in own else ()
        try:
            found = identify((name, *more))
        except ToolchainError:
            if not more or identify((name,)) is None:
                raise
            raise ToolchainError(
                f"{name} doesn't understand {shlex.join(more)}, which target {target.name} needs",
                hint=f"{compiler_advice(target)}, or set CC",
            ) from None
        if found is not None and _builds_for(found, target):
            return found
    zig = _with_target(_zig_words(), target)
    found = identify(zig) if zig else None
    if found is None:
        raise ToolchainError(
            f"no C compiler for the target {target.name} (looked for $CC, "
            f"{', '.join((*own, 'gcc', 'clang'))} and the package ziglang)",
            hint=f"{compiler_advice(target)}, set CC, or run: pip install 'atc[zig]'",
        )
    return found


def compiler_advice(target: Target) -> str:
    """Return the command that brings a compiler on Debian and Ubuntu, with its C library."""
    program = "gcc" if target.compiler == "cc" else target.compiler
    if program not in PACKAGES:
        return f"install {program}"
    return f"apt install {' '.join((PACKAGES[program], *_LIBRARIES.get(target.name, '').split()))}"


def _split_cc(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise OptionError(f"CC can't be split into words: {error}", where="CC") from None


def _builds_for(compiler: Compiler, target: Target) -> bool:
    if target.bare and compiler.kind == "zig" and compiler.machine == target.zig:
        return True
    arch, _, system = compiler.machine.partition("-")
    served = {normal_arch(arch)}
    if arch == "riscv64" and "elf" in system:
        served.add("riscv32")  # GCC's bare compiler serves both widths
    bare = any(word in system for word in ("none", "freestanding", "elf", "wasi"))
    return not target.arch or (target.arch in served and target.bare == bare)


def _zig_words() -> tuple[str, ...]:
    """Return the command of the ziglang package; empty where it isn't installed."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        return ()
    return (str(Path(spec.origin).with_name("zig")), "cc")


def _is_zig(words: tuple[str, ...]) -> bool:
    return "cc" in words[1:] and any("zig" in word for word in words[:3])


def _with_target(words: tuple[str, ...], target: Target) -> tuple[str, ...]:
    """Give zig the target to build for: by default it takes this machine's CPU and C library."""
    if not _is_zig(words) or "-target" in words[:-1]:
        return words
    if target.zig:
        glibc = "-linux-gnu" in target.zig
        return (*words, "-target", f"{target.zig}.{GLIBC}" if glibc else target.zig)
    arch = target.arch or host_arch()
    mac = sys.platform == "darwin" and arch == host_arch()
    return (*words, "-target", f"{arch}-macos" if mac else f"{arch}-linux-gnu.{GLIBC}")


def _identify(
    words: tuple[str, ...], environ: Mapping[str, str], log: Log, timeout: float, source: str = ""
) -> Compiler | None:
    """Ask a command who it is and what machine it builds for; None where there is none such.

    `source` is what names it.
    """
    path = shutil.which(words[0], path=environ.get("PATH", os.defpath))
    if path is None:
        return None
    argv = (path, *words[1:])
    version = _ask(argv, "--version", log, timeout, source)
    kind: Kind
    if _is_zig(words):
        kind = "zig"
    elif "clang" in version or "oneAPI" in version:
        kind = "clang"
    elif "Free Software Foundation" in version:
        kind = "gcc"
    else:
        raise _unknown(words, source)
    if kind == "zig":  # it chokes on -dumpmachine with its own triples
        machine = words[words.index("-target") + 1]
    else:
        machine = _ask(argv, "-dumpmachine", log, timeout, source)
    if not re.fullmatch(r"\w[\w.]*-[\w.-]+", machine):
        raise _unknown(words, source)
    return Compiler(argv, kind, version.partition("\n")[0], machine)


def _unknown(words: tuple[str, ...], source: str) -> ToolchainError:
    text = f"{shlex.join(words)} is not a compiler that atc knows"
    return ToolchainError(text, where=source, hint=_KNOWN)


def _ask(argv: tuple[str, ...], option: str, log: Log, timeout: float, source: str) -> str:
    try:
        done = ask_program((*argv, option), min(timeout or _ANSWER, _ANSWER), log=log)
    except TimedOut as error:
        raise timeout_error(error, (*argv, option)) from None
    if done.status != 0:
        text = f"{shlex.join(argv)} doesn't understand {option}"
        raise ToolchainError(text, where=source, hint=_KNOWN)
    return done.stdout.decode(errors="replace").strip()
