"""The kernels that a target chooses from."""

from __future__ import annotations

from functools import cache

from atc.backends.cpu import catalogue as cpu
from atc.backends.kernel import AnyKernel
from atc.backends.target import Target


def kernels_for(target: Target) -> tuple[AnyKernel, ...]:
    """Return the kernels that there are for a target, in order of preference among equals."""
    return _with_gpu() if target.device else cpu.KERNELS


@cache
def _with_gpu() -> tuple[AnyKernel, ...]:
    """Return the kernels of a GPU and, for what has none there, those of the host."""
    from atc.backends.cuda import catalogue as cuda  # late: most compilations are for CPUs

    return (*cuda.KERNELS, *(kernel for kernel in cpu.KERNELS if kernel.portable))
