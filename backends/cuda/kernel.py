"""Base classes of CUDA kernels: a thread for each element, or a block for each row."""

from __future__ import annotations

from collections.abc import Sequence

from atc.backends.cuda.gpus import LAUNCH_NS, Gpu
from atc.backends.kernel import Kernel, Launch, OpT, ParamsT, Workload
from atc.backends.target import Target
from atc.dims import Dim, is_dynamic, upper_bound
from atc.ir.graph import DType

THREADS = 256
"""Threads of a block: eight warps; several such blocks fit on a multiprocessor."""

MOST_BLOCKS = 1 << 16
"""Most blocks of a launch; with more elements each thread computes several."""

MOST_TENSORS, MOST_OF_RANGES = 100, 24
"""Most tensors that a launch is passed, and most where extents are passed, too.

A kernel's parameters may have 4 KiB.
"""

Unravelled = list[tuple[str, str]]
"""C variables and their initialisers."""


def grid(blocks: int, most: int, threads: int) -> Launch:
    """Return a launch of `blocks` blocks, between 1 and `most`, beyond which threads loop."""
    wanted = blocks if isinstance(blocks, Dim) else 0
    return Launch(max(min(upper_bound(blocks), most), 1), threads, wanted)


class DeviceKernel(Kernel[OpT, ParamsT]):
    """A CUDA kernel that only reads and writes the device's memory."""

    cycle = 0.25e-9  # costs are in seconds, cycles those of a processor of 4 GHz
    barriers = False
    """Whether threads of a block wait for each other."""

    def supports_extents(self, w: Workload[OpT]) -> bool:
        """No tensor that is always empty, which the host handles as well, and no strings."""
        if w.op.written or not super().supports_extents(w):
            return False
        types = [t for t in (*w.inputs, *w.outputs) if t is not None]
        if len(types) > (MOST_OF_RANGES if is_dynamic(w) else MOST_TENSORS):
            return False
        return all(upper_bound(t.size) > 0 and t.dtype is not DType.STRING for t in types)

    def cost(self, w: Workload[OpT], params: ParamsT, target: Target) -> float:
        """Return the estimated seconds: always less than the cycles of what the host computes."""
        return 0.0


class ElementKernel(DeviceKernel[OpT, ParamsT]):
    """A thread computes an element of the result at a time."""

    def elements(self, w: Workload[OpT]) -> int:
        """Return the number of elements that are computed."""
        return w.outputs[0].size

    def launch(self, w: Workload[OpT], params: ParamsT, target: Target) -> Launch:
        """Return enough blocks for a thread per element, up to a limit."""
        return grid(-(-self.elements(w) // THREADS), MOST_BLOCKS, THREADS)


class RowKernel(DeviceKernel[OpT, ParamsT]):
    """A block computes a row at a time; its threads combine their partial results."""

    barriers = True
    threads = 128

    def rows(self, w: Workload[OpT]) -> int:
        """Return the number of rows."""
        raise NotImplementedError

    def launch(self, w: Workload[OpT], params: ParamsT, target: Target) -> Launch:
        """Return a block for each row, up to a limit."""
        return grid(self.rows(w), MOST_BLOCKS, self.threads)


def seconds(w: Workload, nanoseconds: float, gpu: Gpu) -> float:
    """Return the time of a kernel that computes for so long while it reads and writes memory."""
    size = sum(t.nbytes for t in (*w.inputs, *w.outputs) if t is not None)
    return 1e-9 * (max(nanoseconds, gpu.memory_ns(size)) + LAUNCH_NS)


def unravel(index: str, loops: Sequence[tuple[str, int]]) -> Unravelled:
    """Return the indices of a loop nest as C of a flat index, the last one varying fastest."""
    found: Unravelled = []
    step = 1
    for k, (name, extent) in reversed([*enumerate(loops)]):
        quotient = f"{index} / {_divisor(step)}" if step != 1 else index
        inner = "0" if extent == 1 else f"{quotient} % {_divisor(extent)}"
        found.append((name, quotient if k == 0 else inner))
        step *= extent or 1
    return found[::-1]


def _divisor(extent: int) -> str:
    """Return an extent as C, unsigned where it fits 32 bits, as the flat index does."""
    narrow = isinstance(extent, Dim) and upper_bound(extent) < 1 << 31
    return f"(unsigned){extent}" if narrow else str(extent)
