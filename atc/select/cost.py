"""The cost of a kernel: cycles, and a price for packed constants larger than the model's.

Winograd's filters, transformed when compiling, are up to seven times as large, and a network's
weights are most of the memory that its process takes.
"""

from __future__ import annotations

from atc.backends.kernel import Candidate, Workload
from atc.backends.target import Target
from atc.dims import concrete
from atc.ir.graph import Op
from atc.ir.ops import Block, ConvBlocked, ConvFilterGradient, MatMul, Pool, Unblock

CYCLES = 0.2
"""Cycles of each run that a byte of constants must save, if --weight_price says nothing: some 50 us
for a megabyte.

Measured on Zen 5, ResNet-50 gives some 5 % of its speed for 46 of 159 MB, YOLOv8n as much for 10 of
28, VGG-11 (which has most) 20 % for 155 of 687, U-Net nothing for 3 of 6.
"""

NANOSECONDS = 0.25
"""The price of a cycle where times are measured: cores run at some 4 GHz."""

MODELLED: tuple[type[Op], ...] = (
    ConvBlocked, ConvFilterGradient, MatMul, Pool, Block, Unblock,
)  # fmt: skip
"""Ops of which all kernels' estimates are good enough to compare with those of other ops."""


def packing_overhead(c: Candidate, w: Workload, target: Target) -> int:
    """Return the bytes that a candidate's constants take beyond the model's."""
    return c.kernel.packing_overhead(concrete(w), c.params, target)


def estimate(c: Candidate, w: Workload, target: Target, price: float = CYCLES) -> float:
    """Return the estimated cycles of a candidate, memory's price in cycles for a byte included."""
    return priced(
        c.kernel.cost(concrete(w), c.params, target), packing_overhead(c, w, target), price
    )


def priced(cycles: float, overhead: int, price: float) -> float:
    """Return cycles with the price of the bytes that constants take beyond the model's."""
    return cycles + price * overhead
