"""The CUDA targets: GPUs by compute capability, any GPU, and their emulation on the host.

Code that runs on the host beside a GPU is portable C: these targets' vectors hold one float.
"""

from __future__ import annotations

from atc.backends.machines import MACHINES
from atc.backends.target import Target

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""Compute capabilities, as nvcc names them."""

EMULATED = "emulated"

PORTABLE = "compute_80"
"""Code for sm_80 with PTX, which drivers compile for later devices."""


def name_of(architecture: str) -> str:
    """Return the name of the target of an architecture."""
    return f"cuda-{architecture.replace('_', '')}"


def _target(name: str, device: str) -> Target:
    return Target(
        name=name, arch="", simd="scalar", vector_bytes=4, vector_registers=16,
        machine=MACHINES["zen3"], device=device,
    )  # fmt: skip


CUDA_TARGETS: tuple[Target, ...] = (
    *(_target(name_of(arch), arch) for arch in ARCHITECTURES),
    _target("cuda", PORTABLE),
    _target("cuda-emulated", EMULATED),
)
