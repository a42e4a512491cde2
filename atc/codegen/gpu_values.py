"""A program for a GPU as the templates see it."""

from __future__ import annotations

from dataclasses import dataclass

from atc.backends.cuda.targets import EMULATED
from atc.backends.kernel import Launch
from atc.backends.kernel_source import KernelSource
from atc.backends.toolchain.nvcc import cmake_architecture
from atc.codegen.copies import Copies
from atc.codegen.schedule import Schedule


@dataclass(frozen=True)
class GpuKernel:
    """A kernel in the table of launches."""

    symbol: str
    launch: Launch
    arguments: int


@dataclass(frozen=True)
class Segment:
    """Launches with nothing of the host between them, in a C function; they become one graph."""

    comment: str
    lines: tuple[str, ...]
    tables: frozenset[str]
    """Which tables they read: inputs (in), outputs (out), extents (d), places of buffers (at)."""


@dataclass(frozen=True)
class GpuRun:
    """The C function that runs one program: of a shape profile, or of all (other) shapes."""

    function: str
    schedule: Schedule
    extents: int
    """Entries of the table of extents that are known when it runs."""
    staged: tuple[bool, ...]
    """Of inputs, then outputs: whether the host computes with them."""
    hybrid: bool
    """Whether the host computes with values of its own."""
    streams: int
    """Those beside the run's own that branches run on, or copies; the last two are for swaps."""
    swaps: int
    """Copies of swapped values."""
    swap_size: int
    """Bytes of the host's memory that these go to."""
    inputs: Copies
    """Those of the inputs that checks look at."""


@dataclass(frozen=True)
class Gpu:
    """Values of templates beside the schedules; `arena` are bytes on the `device`.

    Where the host computes nothing, it needs none of its own. The last of the runs is the only one,
    or that of the largest shapes.
    """

    kernels: tuple[GpuKernel, ...]
    segments: tuple[Segment, ...]
    arena: int
    device: str
    runs: tuple[GpuRun, ...]

    @property
    def emulated(self) -> bool:
        """Whether the host imitates it."""
        return self.device == EMULATED

    @property
    def architecture(self) -> str:
        """The GPUs that its kernels are compiled for, as CMake names them."""
        return cmake_architecture(self.device)

    @property
    def schedule(self) -> Schedule:
        """The last run's."""
        return self.runs[-1].schedule

    @property
    def staged(self) -> tuple[bool, ...]:
        """Of inputs, then outputs: whether the host computes with them in any run."""
        return tuple(map(any, zip(*(run.staged for run in self.runs), strict=True)))

    @property
    def hybrid(self) -> bool:
        """Whether the host computes with values of its own in any run."""
        return any(run.hybrid for run in self.runs)

    @property
    def streams(self) -> int:
        """Those beside the run's own: for branches, for copies, and the last two for swaps."""
        return max(run.streams for run in self.runs)

    @property
    def swaps(self) -> int:
        """Copies of swapped values in a run."""
        return max(run.swaps for run in self.runs)

    @property
    def swap_size(self) -> int:
        """Bytes of page-locked memory that swapped values go to."""
        return max(run.swap_size for run in self.runs)

    @property
    def extents(self) -> int:
        """Entries of the table of extents; no run has another one."""
        return max(run.extents for run in self.runs)


def listed(kernel: KernelSource) -> GpuKernel:
    """Return a kernel's row in the table of launches."""
    assert kernel.launch is not None
    return GpuKernel(kernel.symbol, kernel.launch, len(kernel.arguments))
