"""Map by a table: a function of bytes, read result by result."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from atc.backends.cpu.elementwise import in_place_operands
from atc.backends.cpu.vector_expr import lanes
from atc.backends.kernel import Kernel, Pack, Params, Workload
from atc.backends.target import Target
from atc.expr import Call, Input
from atc.ir import DType
from atc.ops import Map
from atc.ops.blocked import BYTES


class MapTable(Kernel):
    """A table of a byte's results over all of a tensor in order."""

    name = "map_table"
    op = Map
    template = "cpu/map_table.c.j2"
    portable = False

    def accepts(self, w: Workload, target: Target) -> bool:
        """Bytes to bytes, read in order, by a known table."""
        op = w.op
        assert isinstance(op, Map)
        match op.expr:
            case Call(fn="Lookup", args=(Input(index=1) as table, Input(index=0) as x)):
                bytes_ = table.dtype in BYTES and x.dtype in BYTES
            case _:
                return False
        size = prod(op.shape)
        read, place = op.views
        dense = read.offset == 0 and read.is_dense(op.shape) and not any(place.strides)
        return bytes_ and dense and size > 0 and w.constant[1] and lanes(target) > 1

    def packs(self, w: Workload, params: Params, target: Target) -> Mapping[int, Pack]:
        """The table in the order of the bits that stand for a byte."""
        assert w.inputs[0] is not None
        turn = 128 if w.inputs[0].dtype is DType.INT8 else 0
        return {1: lambda table: np.roll(table, turn)}

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """How many bytes there are."""
        assert isinstance(w.op, Map)
        return {"size": prod(w.op.shape)}

    def in_place(self, w: Workload) -> tuple[int, ...]:
        """The operand may lie where the result goes."""
        return in_place_operands(w)

    def cost(self, w: Workload, params: Params, target: Target) -> float:
        """Against 1 of the scalar loops."""
        return 0.1


KERNELS = (MapTable(),)
