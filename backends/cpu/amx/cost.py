"""Costs of products in AMX's tiles: a model of a core, for choosing unmeasured.

Fitted to convolutions of ResNet-50 and products of BERT in hand-made code on Sapphire Rapids, with
weights that no cache held; in cycles of the clock that vectors run at without tiles.
"""

from __future__ import annotations

from atc.backends.kernel import Workload
from atc.backends.machine import Machine

PRODUCT = 21.5
"""Cycles of a product of tiles with its loads, of real numbers."""
REACHED = 96.0
"""Bytes of the left operand per cycle that come from the second-level cache."""
FIRST = 5.25
"""Bytes of packed weights per cycle of what a pass over them takes longer than from that cache."""
RESIDENT, STREAM = 300_000, 4.0
"""Bytes of weights that stay in that cache while the other operand goes by; bytes per cycle where
they come from beyond it repeatedly."""
SPILLED = 4.0
"""Bytes per cycle of an operand beyond that cache that is read in short pieces."""
FINISHED, MOVED = 5.0, 20.0
"""Cycles of a vector of results from sums to y, and bytes per cycle that this reads and writes."""
SPLIT = {1: 3.0, 2: 14.0, 3: 22.0}
"""Cycles to make bfloat16 of two vectors, by the parts that numbers are split into."""

COMPARED = 0.8
"""What estimates are multiplied by. Those of kernels in vectors count on caches that deliver at
once: on the machine measured, their networks took 1.3 to 1.5 times as long."""


def end_cycles(w: Workload) -> float:
    """Return the cycles of a vector of results, with the operands that are as large as y."""
    y = w.outputs[0]
    operands = [t for t in w.inputs[2:] if t is not None and t.size == y.size]
    moved = sum(16 * t.dtype.itemsize for t in (y, *operands))
    return FINISHED + moved / MOVED


def splitting(parts: int) -> float:
    """Return the cycles to round two vectors of numbers, or to split them into `parts`."""
    return SPLIT[parts]


def is_small(machine: Machine, size: int) -> bool:
    """Return whether an operand of so many bytes is read again at once by panel after panel."""
    return size <= machine.l2.size // 16


def l2_share(machine: Machine) -> int:
    """Return the bytes of an operand that the second-level cache holds beside weights."""
    return machine.l2.size // 2


def far_cycles(machine: Machine, size: int) -> float:
    """Return the cycles that an operand of so many bytes takes to come from beyond that cache."""
    return size / machine.far_rate if size > l2_share(machine) else 0.0
