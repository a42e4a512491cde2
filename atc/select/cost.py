"""The cost of a kernel: cycles, and a price for packed constants larger than the model's.

Winograd's filters, transformed when compiling, are up to seven times as large, and a network's
weights are most of the memory that its process takes.
"""

from __future__ import annotations

from collections.abc import Mapping

from atc.backends.cpu.matmul.cost import UNITS
from atc.backends.kernel import Candidate, Workload
from atc.backends.target import Target
from atc.dims import concrete
from atc.ir.ops import Block, ConvBlocked, MatMul, Pool, Unblock

CYCLES = 0.2
"""Cycles of each run that a byte of constants must save, if --weight_price says nothing: some 50 us
for a megabyte.

Measured on Zen 5, ResNet-50 gives some 5 % of its speed for 46 of 159 MB, YOLOv8n as much for 10 of
28, VGG-11 (which has most) 20 % for 155 of 687, U-Net nothing for 3 of 6.
"""

NANOSECONDS = 0.25
"""The price of a cycle where times are measured: cores run at some 4 GHz."""

CYCLE_UNITS: Mapping[type, float] = {
    ConvBlocked: 1.0, MatMul: UNITS, Pool: 1.0, Block: 1.0, Unblock: 1.0,
}  # fmt: skip
"""Ops whose kernels estimate their cost in cycles, and the units of it that make one."""


def enlarged(c: Candidate, w: Workload, target: Target) -> int:
    """Return the bytes that a candidate's constants take beyond the model's."""
    return c.kernel.enlarges(concrete(w), c.params, target)


def estimate(c: Candidate, w: Workload, target: Target, price: float = CYCLES) -> float:
    """Return the estimated cost of a candidate, memory's price in cycles for a byte included."""
    cost = c.kernel.cost(concrete(w), c.params, target)
    return cost + price * CYCLE_UNITS.get(type(w.op), 0.0) * enlarged(c, w, target)
