"""Throughputs of GPUs, from which the times of CUDA kernels are estimated.

A record for each architecture, of a representative device. The numbers are NVIDIA's: the
CUDA programming guide's throughputs of arithmetic instructions, and the devices' data sheets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from atc.backends.cuda.targets import EMULATED, PORTABLE

LAUNCH_NS = 2500.0
"""Nanoseconds between the starts of two empty kernels within a graph."""
COPY_NS = 10_000.0
"""Nanoseconds that a copy to the host or back takes before its first bytes arrive."""
_LINK_PART = 0.8
"""The part of PCI Express's rate that is left for what its packets carry."""


@dataclass(frozen=True)
class Gpu:
    """A device: multiprocessors, their clock in GHz, the memory's bandwidth in bytes/ns.

    `link` are the bytes/ns that PCI Express moves each way, to and from page-locked memory.

    Per clock and multiprocessor, `fmas` are the multiply-adds of floats, `tensor` those of 16-bit
    floats on tensor cores (0: none that our kernels use; of bytes there are twice as many), and
    `wgmma` those of warpgroups, which read their operands from shared memory. `shared` is the
    shared memory of a multiprocessor in bytes, `blocks` the most blocks that it runs at a time.
    """

    name: str
    multiprocessors: int
    clock: float
    memory: float
    fmas: int
    tensor: int
    shared: int
    link: float
    blocks: int = 16
    wgmma: int = 0

    def compute_ns(self, blocks: int, resident: int, clocks: float) -> float:
        """Return the time of blocks that each take so many clocks of a multiprocessor.

        `resident` of them run on one at a time; the last wave may leave most of the device idle.
        """
        waves = ceil(blocks / (self.multiprocessors * resident))
        return waves * min(resident, ceil(blocks / self.multiprocessors)) * clocks / self.clock

    def memory_ns(self, size: float) -> float:
        """Return the time to read so many bytes from memory."""
        return size / self.memory

    def copy_ns(self, size: int) -> float:
        """Return the time to copy so many bytes to page-locked memory of the host, or back."""
        return COPY_NS + size / (_LINK_PART * self.link)


GPUS = {
    "sm_75": Gpu("T4", 40, 1.59, 320, 64, 0, 1 << 16, 16),
    "sm_80": Gpu("A100", 108, 1.41, 1555, 64, 1024, 164 << 10, 32, 32),
    "sm_86": Gpu("A10", 72, 1.70, 600, 128, 512, 100 << 10, 32),
    "sm_89": Gpu("L40S", 142, 2.52, 864, 128, 512, 100 << 10, 32, 24),
    "sm_90": Gpu("H100", 132, 1.75, 3350, 128, 1024, 228 << 10, 64, 32, 2048),
    "sm_100": Gpu("B200", 148, 1.85, 8000, 128, 1024, 228 << 10, 64, 32),
    "sm_120": Gpu("RTX 5090", 170, 2.41, 1792, 128, 512, 100 << 10, 64, 24),
}
"""By architecture; `tensor` of sm_90 and sm_100 is the rate of mma.sync, not wgmma or tcgen05."""

_EMULATED = replace(GPUS["sm_80"], wgmma=1)
"""The emulated device: an A100 that has wgmma, too slow to be chosen unless it is forced."""


def gpu_of(device: str) -> Gpu:
    """Return the record of a target's device: the A100's if it is emulated or any GPU."""
    return _EMULATED if device == EMULATED else GPUS["sm_80" if device == PORTABLE else device]
