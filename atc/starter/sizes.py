"""Memory of a device that a network takes: ROM, RAM and stack, as linker and compiler count.

A program of one context is linked (bare targets), or its parts are added up (others, whose program
shares a C library), and `size` reads the sections. Stack is the sum of the frames that
`-fstack-usage` reports on the deepest path; functions of the C library are in none of its lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from atc.backends.target import Target
from atc.backends.toolchain.compiler import Compiler, machine_flags
from atc.backends.toolchain.compiling import Job, compile_many
from atc.backends.toolchain.linking import link_program, link_uncalled, section_sizes
from atc.backends.toolchain.processes import Log, no_log
from atc.codegen.template_values import TemplateValues
from atc.errors import ToolchainError
from atc.starter.boards import Board
from atc.starter.texts import board_text
from atc.templates import render, verbatim

_ANY = Board("any", "room for any network", 0, 1 << 29, 1 << 29, 1 << 29)


@dataclass(frozen=True)
class Sizes:
    """Bytes. `rom` is code, tables and weights, `ram` all that isn't the stack, `stack` a run's."""

    rom: int
    weights: int
    ram: int
    arena: int
    inputs: int
    outputs: int
    stack: int

    @property
    def code(self) -> int:
        """The part of the ROM that isn't weights."""
        return self.rom - self.weights

    @property
    def rest(self) -> int:
        """The part of the RAM that is neither the arena's nor the tensors'."""
        return self.ram - self.arena - self.inputs - self.outputs


def planned_sizes(interface: TemplateValues, target: Target) -> Sizes:
    """Return what a network takes at least, before any C is compiled: no code, no stack."""
    sides = ((), ()) if interface.io else (interface.inputs, interface.outputs)
    inputs, outputs = (sum(port.type.nbytes for port in side) for side in sides)
    arena = interface.arena_size
    pointer = 4 if target.arch in ("arm", "riscv32", "wasm32") else 8
    context = (3 if interface.external else 2) * pointer  # arena, weights, whether it's ready
    own = 0 if interface.external else interface.weights_size
    return Sizes(own, own, arena + inputs + outputs + context, arena, inputs, outputs, 0)


def measure_sizes(
    interface: TemplateValues, sources: Sequence[str], static: str, target: Target,
    compiler: Compiler, flags: tuple[str, ...], cwd: Path, *, workers: int = 1, log: Log = no_log,
) -> Sizes:  # fmt: skip
    """Return the sizes of a library that was built in `cwd`, whose C files are `sources`.

    `static` is its archive, `flags` are those of every source. Raises ToolchainError where the
    compiler has no tool `size` beside it.
    """
    (cwd / "probe.c").write_text(render("starter/probe.c.j2", interface.values()))
    compile_many([Job(compiler, flags, "probe.c", cwd)], 1, log=log)
    whole = target.bare and not interface.external
    if whole and compiler.kind == "zig" and compiler.elf:
        parts = [link_uncalled(compiler, ["probe.c.o", static], "probe.elf", cwd, log=log)]
    elif whole:
        (cwd / "board.ld").write_text(board_text(_ANY))
        (cwd / "sections.ld").write_text(verbatim("starter/sections.ld"))
        placed = ("-T", "board.ld") if target.arch == "riscv32" else ()  # picolibc's wants its crt0
        linked = (*target.link_flags, *placed, "-Wl,-e,main", "-Wl,--gc-sections")
        kept = (*machine_flags(compiler, target), *linked, "-Wl,-z,noexecstack")
        objects = [*kept, "probe.c.o", static, *target.libraries]
        parts = [link_program(compiler, (), objects, "probe.elf", cwd, log=log)]
    else:
        parts = [cwd / static, cwd / "probe.c.o"]
    code, data, bss = (sum(column) for column in zip(
        *(section_sizes(compiler, part, log=log) for part in parts), strict=True
    ))  # fmt: skip
    planned = planned_sizes(interface, target)
    stack = _deepest(sources, interface.name, compiler, flags, cwd, workers, log)
    return replace(planned, rom=code + data, ram=data + bss, stack=stack)


def _deepest(
    sources: Sequence[str], name: str, compiler: Compiler, flags: tuple[str, ...], cwd: Path,
    workers: int, log: Log,
) -> int:  # fmt: skip
    """Return the stack of a run: what calls the kernels, and all of the deepest kernel's file."""
    jobs = [Job(compiler, (*flags, *_reporting(compiler, path)), path, cwd) for path in sources]
    compile_many(jobs, workers, log=log)
    frames = {path: _frames(cwd / path) for path in sources}
    main = frames.pop(f"src/{name}.c", {})
    above = sum(
        size for function, size in main.items()
        if not function.startswith(f"{name}_") or function.startswith(f"{name}_run")
    )  # fmt: skip
    kernels = [sum(own.values()) for path, own in frames.items() if "_selftest" not in path]
    return above + max(kernels, default=0)


def _reporting(compiler: Compiler, source: str) -> tuple[str, ...]:
    """Return the flags that have the size of each function's frame written beside the object."""
    if compiler.kind == "zig":  # which drops the option, and what it would write
        return ("-Xclang", "-stack-usage-file", "-Xclang", f"{source}.su")
    return ("-fstack-usage",)


def _frames(source: Path) -> dict[str, int]:
    """Return the bytes of each function's frame; ToolchainError where the compiler reports none."""
    for file in (source.with_name(f"{source.name}.su"), source.with_suffix(".su")):
        if file.is_file():
            lines = [line.split("\t") for line in file.read_text("utf-8").splitlines()]
            return {place.rpartition(":")[2]: int(size) for place, size, _ in lines}
    raise ToolchainError("the compiler reports no stack sizes", where=str(source.name),
                         hint="use gcc or clang, or leave --max_stack out")  # fmt: skip


def sizes_table(sizes: Sizes, limits: Mapping[str, int]) -> str:
    """Return the sizes as a table for people; `limits` are those of ROM, RAM and stack, 0: none."""
    rows = [
        ("ROM", sizes.rom, limits["rom"], f"code {sizes.code:,}, weights {sizes.weights:,}"),
        ("RAM", sizes.ram, limits["ram"], f"arena {sizes.arena:,}, inputs {sizes.inputs:,}, "
         f"outputs {sizes.outputs:,}, other {sizes.rest:,}"),
        ("stack", sizes.stack, limits["stack"], "less the C library's"),
    ]  # fmt: skip
    return "".join(
        f"{name:<6}{size:>12,}  {f'of {limit:,}' if limit else '':<14}{parts}\n"
        for name, size, limit, parts in rows
    )
