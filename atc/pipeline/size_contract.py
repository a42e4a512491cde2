"""`--max_ram`, `--max_rom` and `--max_stack`: what comes out is measured, and held to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from atc.backends.toolchain.compiler import Compiler
from atc.build.output_folder import write_files
from atc.codegen.emit import Emission
from atc.diagnostics import Diagnostics
from atc.errors import AtcError, OptionError, one_line
from atc.memory.arena import Arena
from atc.memory.planner import Buffer
from atc.pipeline.request import Request
from atc.pipeline.writing import BuildPlan
from atc.starter.sizes import Sizes, measure_sizes

LIMITS = ("rom", "ram", "stack")
"""What has a limit, each an option max_..."""
_SHOWN = 5  # tensors at the peak that a message names


class LimitError(OptionError):
    """A limit of sizes isn't kept."""

    code = "E10013"

    def __init__(self, message: str, *, limit: str, sizes: Sizes, where: str, hint: str) -> None:
        super().__init__(message, where=where, hint=hint)
        self.limit = limit
        """Its name in LIMITS."""
        self.sizes = sizes


def limits_of(request: Request) -> dict[str, int]:
    """Return the limits in bytes, 0 where there is none."""
    return {name: getattr(request.options, f"max_{name}") for name in LIMITS}


def wants_sizes(request: Request) -> bool:
    """Return whether sizes are measured: where there is a limit, and of what bare targets get."""
    return any(limits_of(request).values()) or request.target.bare


def sizes_of(
    made_from: BuildPlan, emission: Emission, request: Request, compiler: Compiler,
    flags: tuple[str, ...], cwd: Path, diagnostics: Diagnostics,
) -> Sizes | None:  # fmt: skip
    """Return the sizes of what was built in `cwd`; None where they can't be had and needn't."""
    sources = [
        unit.path for unit in made_from.units
        if unit.path.endswith(".c") and not unit.path.endswith("_weights.c")
    ]  # fmt: skip
    texts = {p: c for p, c in made_from.files.items() if isinstance(c, bytes)}
    write_files(cwd, texts)  # the build wrote what it compiled alone
    try:
        return measure_sizes(
            emission.interface, sources, f"lib{emission.name}.a", request.target, compiler, flags,
            cwd, workers=request.options.jobs or 1, log=diagnostics.process,
        )  # fmt: skip
    except AtcError:
        if any(limits_of(request).values()):
            raise
        return None


def check_sizes(
    sizes: Sizes, arena: Arena, request: Request, recomputed: Callable[[], Iterator[str]]
) -> None:
    """Raise LimitError, with what takes the memory and what would mend it, beyond a limit.

    `recomputed` is asked for what recomputing values would give.
    """
    for name, limit in limits_of(request).items():
        needed = getattr(sizes, name)
        if not limit or needed <= limit:
            continue
        option = request.options.asked(f"max_{name}")
        if name == "ram":
            parts = (
                f"arena {sizes.arena:,}, inputs {sizes.inputs:,}, outputs {sizes.outputs:,}, "
                f"other {sizes.rest:,}; at the arena's peak: {peak_text(arena)}"
            )
            ways = [*recomputed(), *_eighth(request, sizes.arena, "arena")]
            if request.options.io == "caller" and sizes.inputs + sizes.outputs:
                ways.insert(0, f"--io=arena: up to {sizes.inputs + sizes.outputs:,} bytes less")
        elif name == "rom":
            parts = f"code {sizes.code:,}, weights {sizes.weights:,}"
            ways = [*_eighth(request, sizes.weights, "weights")]
        else:
            parts, ways = "of a run, less the C library's", []
        raise LimitError(
            f"{needed:,} bytes of {name.upper() if name != 'stack' else name} are "
            f"{needed - limit:,} more than {limit:,}: {parts}",
            limit=name, sizes=sizes, where=option,
            hint="; ".join(ways) or "give more, or a smaller model",
        )  # fmt: skip


def _eighth(request: Request, size: int, what: str) -> Iterator[str]:
    """Yield what 8-bit integers would spare of floats."""
    if size and request.options.cal_conf is None:
        yield f"--cal_conf=FILE: {what} of some {size // 4:,} in 8-bit integers, if it is in floats"


def peak(arena: Arena) -> tuple[Buffer, ...]:
    """Return the buffers that live when most bytes are used, the largest first."""
    steps = {b.first for b in arena.buffers}
    live = [[b for b in arena.buffers if b.first <= step <= b.last] for step in sorted(steps)]
    most = max(live, key=lambda buffers: sum(b.size for b in buffers), default=[])
    return tuple(sorted(most, key=lambda b: -b.size))


def peak_text(arena: Arena) -> str:
    """Return the buffers at the peak for people."""
    buffers = peak(arena)
    shown = [f"'{one_line(b.name, 40)}' {b.size:,}" for b in buffers[:_SHOWN]]
    more = [f"{len(buffers) - _SHOWN} more"] if len(buffers) > _SHOWN else []
    return ", ".join(shown + more) or "nothing"
