"""The source files of kernels, with the headers and the driver's code that they need."""

from __future__ import annotations

from collections.abc import Sequence

from atc.backends.cuda.targets import EMULATED
from atc.backends.kernel_source import KernelSource
from atc.backends.target import Target
from atc.templates import verbatim


def kernel_tree(kernels: Sequence[KernelSource], target: Target) -> dict[str, str]:
    """Return the kernels' sources with the headers that they include."""
    files = {"src/kernel.h": verbatim("cpu/kernel.h"), **{k.path: k.text for k in kernels}}
    if any(k.vocabulary for k in kernels):
        files["src/simd.h"] = verbatim(f"simd/{target.simd}.h")
        files["src/simd_math.h"] = verbatim("simd/math.h")
    if target.device and any(k.launch for k in kernels):
        files |= {f"src/{file}": verbatim(path) for file, path in gpu_files(target).items()}
    for header in dict.fromkeys(h for k in kernels for h in k.headers):
        files[f"src/simd_{header}.h"] = verbatim(f"simd/{header}.h")
    return files


def gpu_files(target: Target) -> dict[str, str]:
    """Return what every network for a GPU needs in `src/`: templates by the files' names."""
    emulated = ("cuda/driver/emulation.h", "cuda/driver/emulated_driver.c")
    paths = (
        "cuda/device.h", "cuda/products/tensor.h", "cuda/products/warpgroup.h",
        "cuda/driver/driver.h", "cuda/project/gpu.h", "cuda/project/gpu.c",
        *(emulated if target.device == EMULATED else ("cuda/driver/driver.c",)),
    )  # fmt: skip
    return {path.rpartition("/")[2]: path for path in paths}
