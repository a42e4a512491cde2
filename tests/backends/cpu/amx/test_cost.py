"""Estimates of convolutions on AMX's tiles against what hand-made code took on Sapphire Rapids.

    python tests/backends/cpu/amx/test_cost.py

prints them. Measured were layers of ResNet-50, planes to planes, with weights in no cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np

from atc.backends.cpu.amx.conv import (
    ConvTiles,
    ConvTilesBf16,
    ConvTilesBf16x3,
    ConvTilesBytes,
    TilesParams,
)
from atc.backends.cpu.amx.cost import FINISHED, MOVED, RESIDENT, far_cycles
from atc.backends.kernel import Workload
from atc.backends.machines import MACHINES
from atc.ir.graph import DType, TensorType
from atc.ir.ops import ConvBlocked, Window, identity_epilogue
from atc.ir.ops.blocked import blocked_shape

CLOCK = 3.4
"""GHz of the clock that estimates count."""
MEASURED = {
    (64, 256, 56, 1, False): (347, 817, 907),
    (256, 64, 56, 1, False): (396, 957, 2312),
    (64, 64, 56, 3, False): (679, 1709, 3269),
    (128, 512, 28, 1, True): (356, 872, 1128),
    (512, 128, 28, 1, False): (499, 1272, 2392),
    (128, 128, 28, 3, False): (707, 1720, 3357),
    (256, 1024, 14, 1, True): (412, 919, 1556),
    (1024, 256, 14, 1, False): (463, 1214, 2193),
    (256, 256, 14, 3, False): (578, 1275, 2879),
    (512, 2048, 7, 1, True): (221, 438, 911),
    (2048, 512, 7, 1, False): (233, 460, 934),
    (512, 512, 7, 3, False): (291, 619, 1226),
}
"""GFLOP/s in bf16x3, bf16 and int8, by channels, filters, size, kernel, and whether to a sum."""
SPLITTING = 3.0
"""Cycles to split a vector of results, which the code measured did."""
KERNELS: tuple[tuple[ConvTiles, int], ...] = (
    (ConvTilesBf16x3(), 4), (ConvTilesBf16(), 2), (ConvTilesBytes(), 1),
)  # fmt: skip
"""And the bytes of a result there."""

MACHINE = MACHINES["sapphirerapids"]


def workload(channels: int, filters: int, size: int, kernel: int) -> Workload:
    """Return a convolution that leaves the size as it is."""
    window = Window((kernel,) * 2, (1, 1), (1, 1), (kernel // 2,) * 2)
    shapes = [
        blocked_shape((1, channels, size, size), 16), (filters, channels, kernel, kernel),
        blocked_shape((1, filters, size, size), 16),
    ]  # fmt: skip
    x, w, y = (TensorType(DType.FLOAT, shape) for shape in shapes)
    op = ConvBlocked(window, 1, identity_epilogue(DType.FLOAT))
    return Workload(op, (x, w), (y,), (False, True))


def estimated(kernel: ConvTiles, w: Workload, kernel_size: int, size: int, adds: bool) -> float:
    """Return the cycles of a convolution as it was measured."""
    cut = kernel.cut(w, TilesParams(rb=0, tall=False))
    if kernel_size == 3 and cut.flat.rows <= 64 and size > 1:
        cut = kernel.cut(w, TilesParams(rb=0, tall=True))
    by_panels = cut.panels * cut.panel_bytes > RESIDENT
    end = FINISHED + 16 * size * (1 + adds) / MOVED + (SPLITTING if size == 4 else 0)
    return cut.cycles(by_panels, end) + far_cycles(MACHINE, cut.steps * cut.plane)


def compared() -> Iterator[tuple[str, float, float]]:
    """Yield what was measured, and both times in thousands of cycles."""
    for (channels, filters, size, kernel, adds), rates in MEASURED.items():
        w = workload(channels, filters, size, kernel)
        flops = 2 * size * size * channels * filters * kernel * kernel
        for (tiles, each), rate in zip(KERNELS, rates, strict=True):
            cycles = estimated(tiles, w, kernel, each, adds)
            name = f"{tiles.name} {channels}->{filters} {kernel}x{kernel} {size}x{size}"
            yield name, cycles / 1e3, flops / rate * CLOCK / 1e3


def test_estimates_are_near_what_was_measured() -> None:
    ratios = {name: estimate / time for name, estimate, time in compared()}
    far = {name: ratio for name, ratio in ratios.items() if not 0.8 < ratio < 1.25}
    assert not far
    assert sqrt(np.mean([(r - 1) ** 2 for r in ratios.values()])) < 0.12


if __name__ == "__main__":
    for name, estimate, time in compared():
        print(f"{name:40} {estimate:6.0f} {time:6.0f} kcycles {estimate / time:5.2f}")
