"""Maps that change no number, and those by a table: runs of neighbours, copied or looked up."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from atc.backends.cpu.map.portable import in_place_operands
from atc.backends.kernel import Kernel, Pack, Params, Workload, loop_cycles
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic, lower_bound
from atc.ir.expr import Call, Input
from atc.ir.graph import DType
from atc.ir.ops import Map
from atc.ir.ops.blocked import BYTES
from atc.ir.view import View, dense

SHORTEST = 8
"""Bytes that a run must have."""


def run_of(op: Map) -> tuple[int, int]:
    """Return how many loops there are around the runs that are read in order, and their length."""
    view, depth, run = op.views[0], len(op.shape), 1
    while depth and (op.shape[depth - 1] == 1 or view.strides[depth - 1] == run):
        depth -= 1
        run *= op.shape[depth]
    return depth, run


def _loops(op: Map) -> dict[str, object]:
    """Return the loops around the runs, and where one is read and written."""
    depth, run = run_of(op)
    outer = loop_names("i", op.shape[:depth])
    indices = [v for v, _ in outer]
    to = View(dense(op.shape).strides[:depth])
    source = View(op.views[0].strides[:depth], op.views[0].offset)
    return {
        "outer": outer, "run": run, "open": is_dynamic(run),
        "source": address(source, indices), "target": address(to, indices),
    }  # fmt: skip


class MapCopy(Kernel[Map]):
    """Movement in runs of neighbours."""

    name = "map_copy"
    op = Map
    template = "cpu/map/copy.c.j2"
    portable = False
    dynamic = True
    own = ""
    """The C function that copies a run of bytes in the place of memcpy."""

    def accepts(self, w: Workload[Map], target: Target) -> bool:
        """One operand that nothing is computed of, of a type that map_simd hasn't."""
        floats = w.outputs[0].dtype is DType.FLOAT
        return self.moves_runs(w) and lanes(target) > 1 and not floats

    def moves_runs(self, w: Workload[Map]) -> bool:
        """Return whether elements are moved in runs, and nothing is computed of them."""
        op = w.op
        if not op.is_movement or len(w.inputs) != 1 or prod(op.shape) == 0:
            return False
        return lower_bound(run_of(op)[1]) * w.outputs[0].dtype.itemsize >= SHORTEST

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        """Loops, and where a run is read and written."""
        return {**_loops(w.op), "own": self.own}

    def cost(self, w: Workload[Map], params: Params, target: Target) -> float:
        """Return a part of the scalar loops' cycles."""
        return 0.3 * loop_cycles(w)


class MapLookupTable(Kernel[Map]):
    """A table of a byte's results over runs of neighbours."""

    name = "map_table"
    op = Map
    template = "cpu/map/lookup_table.c.j2"
    portable = False
    dynamic = True
    look_up = "v_lookup"
    """The C function of a run."""

    def accepts(self, w: Workload[Map], target: Target) -> bool:
        """Bytes to bytes, read in runs, by a known table."""
        return self.is_table(w) and lanes(target) > 1

    def is_table(self, w: Workload[Map]) -> bool:
        """Return whether bytes become bytes by a known table, in runs."""
        op = w.op
        match op.expr:
            case Call(fn="Lookup", args=(Input(index=1) as table, Input(index=0) as x)):
                bytes_ = table.dtype in BYTES and x.dtype in BYTES
            case _:
                return False
        if prod(op.shape) == 0 or any(op.views[1].strides):
            return False
        return bytes_ and lower_bound(run_of(op)[1]) >= SHORTEST and w.constant[1]

    def packs(self, w: Workload[Map], params: Params, target: Target) -> Mapping[int, Pack]:
        """Return the table in the order of the bits that stand for a byte."""
        zero = 128 if w.input(0).dtype is DType.INT8 else 0
        return {1: lambda table: np.roll(table, zero)}

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        """Loops, where a run is read and written, and the function that does one."""
        return {**_loops(w.op), "look_up": self.look_up}

    def in_place(self, w: Workload[Map]) -> tuple[int, ...]:
        """Let the result overwrite the operand."""
        return in_place_operands(w)

    def cost(self, w: Workload[Map], params: Params, target: Target) -> float:
        """Return a part of the scalar loops' cycles."""
        return 0.1 * loop_cycles(w)


KERNELS = (MapCopy(), MapLookupTable())
