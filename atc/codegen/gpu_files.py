"""The sources that every network for a GPU has, its own and its kernels' apart."""

from __future__ import annotations

from atc.backends.cuda.targets import EMULATED
from atc.backends.target import Target


def gpu_files(target: Target) -> dict[str, str]:
    """Return what every network for a GPU needs in `src/`: templates by the files' names."""
    emulated = ("cuda/driver/emulation.h", "cuda/driver/emulated_driver.c")
    paths = (
        "cuda/device.h", "cuda/products/tensor.h", "cuda/products/warpgroup.h",
        "cuda/driver/driver.h", "cuda/project/gpu.h", "cuda/project/gpu.c",
        *(emulated if target.device == EMULATED else ("cuda/driver/driver.c",)),
    )  # fmt: skip
    return {path.rpartition("/")[2]: path for path in paths}
