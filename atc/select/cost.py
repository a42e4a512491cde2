"""The cost of a kernel: cycles, and a price for packed constants that exceed the model's.

Winograd's filters, transformed at compile time, are up to seven times as large, and a network's
weights are most of the memory of its process. Where tensors have 16 bits, scratch that exceeds them
has that price, too.
"""

from __future__ import annotations

from atc.backends.kernel import Candidate, Workload
from atc.backends.target import Target
from atc.dims import concrete, is_dynamic
from atc.ir.graph import Op
from atc.ir.ops import Block, Conv, ConvBlocked, ConvFilterGradient, MatMul, Pool, Unblock

CYCLES = 0.2
"""Cycles of each run that an extra byte of constants must save by default (--weight_price): some
50 us per megabyte.

Measured on Zen 5, this trades some 5 % of ResNet-50's speed for 46 of 159 MB, as much of YOLOv8n's
for 10 of 28, 20 % of VGG-11's (which has most) for 155 of 687, nothing of U-Net's for 3 of 6.
"""

SHARED = 0.3
"""Part of scratch's bytes that count: all nodes use the same, while constants of each stay."""
NANOSECONDS = 0.25
"""Nanoseconds of a cycle where times are measured: cores run at some 4 GHz."""

MODELLED: tuple[type[Op], ...] = (
    Conv, ConvBlocked, ConvFilterGradient, MatMul, Pool, Block, Unblock,
)  # fmt: skip
"""Ops all of whose kernels have estimates that may be compared with those of other ops."""


def packing_overhead(c: Candidate, w: Workload, target: Target) -> int:
    """Return the bytes by which a candidate's constants exceed the model's."""
    return c.kernel.packing_overhead(concrete(w), c.params, target)


def workspace_overhead(c: Candidate, w: Workload, target: Target) -> int:
    """Return the bytes by which a candidate's scratch exceeds what a node of 16 bits reads and
    makes, as many as count: such networks are to take less memory. 0 for others, and on GPUs."""
    tensors = [t for t in (*w.inputs, *w.outputs) if t is not None]
    if target.device or is_dynamic(w) or not any(t.dtype.is_half for t in tensors):
        return 0
    more = c.kernel.scratch(w, c.params, target) - sum(t.nbytes for t in tensors)
    return int(SHARED * max(0, more))


def estimate(c: Candidate, w: Workload, target: Target, price: float = CYCLES) -> float:
    """Return the estimated cost of a candidate, including constants at `price` cycles per byte."""
    cost = c.kernel.cost(concrete(w), c.params, target)
    return priced(cost, packing_overhead(c, w, target), price * c.kernel.cycle)


def priced(cost: float, overhead: int, price: float) -> float:
    """Return a cost including the price of the bytes by which constants exceed the model's."""
    return cost + price * overhead
