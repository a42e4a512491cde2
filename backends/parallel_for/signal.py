"""Dft, column by column: Stockham's algorithm for any length."""

from __future__ import annotations

from dataclasses import dataclass

from atc.backends.kernel import Params, Workload
from atc.backends.parallel_for.kernel import ParallelFor
from atc.backends.render.expr import load, store
from atc.backends.target import Target
from atc.dims import is_dynamic, minimum
from atc.ir.graph import DType
from atc.ir.ops.signal import Dft


@dataclass(frozen=True)
class Stage:
    """One pass over the data: `radix` points each, `count` times, on runs of `stride`."""

    radix: int
    count: int
    stride: int


def stages(length: int) -> list[Stage]:
    """Return the passes of a transform: factors 4 first, then the primes."""
    result: list[Stage] = []
    rest, stride, factor = length, 1, 4
    while rest > 1:
        while rest % factor:
            factor = {4: 2, 2: 3}.get(factor, factor + 2)
            if factor * factor > rest and factor > 4:
                factor = rest
        rest //= factor
        result.append(Stage(factor, rest, stride))
        stride *= factor
    return result


def work(w: Workload) -> DType:
    """Return the type that a transform is computed in: that of its roots."""
    return w.input(1).dtype


class DftStockham(ParallelFor[Dft]):
    """Dft that alternates between two buffers, so that no reordering is needed.

    D. H. Bailey, "A High-Performance FFT Algorithm for Vector Supercomputers", 1988. A prime
    factor p costs p operations per element.
    """

    name = "dft"
    op = Dft
    template = "parallel_for/dft.j2"
    dynamic = True

    def accepts(self, w: Workload[Dft], target: Target) -> bool:
        """Return whether the length is known when compiling: passes follow from it."""
        return not is_dynamic(w.op.length)

    def values(self, w: Workload[Dft], params: Params, target: Target) -> dict[str, object]:
        """Return the passes and what is loaded and stored around them."""
        op = w.op
        passes = stages(op.length)
        half = op.length // 2 + 1
        loaded = minimum(op.size, half if op.symmetric else op.length)
        dtype = w.outputs[0].dtype
        step = op.inner * op.parts
        divide = f" / {op.length}" if op.inverse else ""
        done = "even" if len(passes) % 2 == 0 else "odd"
        return {
            "op": op,
            "scratch_bytes": self.iteration_scratch(w),
            "element": dtype.c,
            "type": work(w).c,
            "stages": passes,
            "radices": {s.radix for s in passes},
            "loaded": loaded,
            "filled": loaded == op.length,
            "reads": [load(dtype, f"x[k * {step}{part}]") for part in ("", " + 1")],
            "writes": [store(dtype, f"{done}[2 * k{part}]{divide}") for part in ("", " + 1")],
        }

    def iterations(self, w: Workload[Dft]) -> int:
        """Return the number of columns."""
        return w.op.outer * w.op.inner

    def iteration_scratch(self, w: Workload[Dft]) -> int:
        """Two complex buffers."""
        return 4 * w.op.length * work(w).itemsize
