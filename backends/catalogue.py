"""The kernels that a target chooses from."""

from __future__ import annotations

from atc.backends.cpu import catalogue as cpu
from atc.backends.cuda import catalogue as cuda
from atc.backends.kernel import AnyKernel
from atc.backends.target import Target

_WITH_GPU = (*cuda.KERNELS, *(kernel for kernel in cpu.KERNELS if kernel.portable))
"""What has no CUDA kernel runs on the host."""


def kernels_for(target: Target) -> tuple[AnyKernel, ...]:
    """Return the kernels that there are for a target, in order of preference among equals."""
    return _WITH_GPU if target.device else cpu.KERNELS
