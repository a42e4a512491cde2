"""Extremes of bytes, as bytes: loops that compilers vectorise."""

from __future__ import annotations

from math import prod

from atc.backends.cpu.map.reduce import merged
from atc.backends.kernel import Kernel, Params, Workload, loop_cycles
from atc.backends.render.expr import address
from atc.backends.render.loops import epilogue_lines, loop_names
from atc.backends.render.reduction import neutral
from atc.backends.render.vector_expr import BYTES, lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.expr import Input, cost
from atc.ir.graph import DType
from atc.ir.ops import Reduce
from atc.ir.view import dense

BLOCK = 64
"""The most bytes of a row that are compared side by side."""
TOGETHER = 8
"""Blocks or rows that are read together."""
ROW, RESULT = 4.0, 1.5
"""Cycles to compare those with each other, and for each function of a result."""


class _Bytes(Kernel[Reduce]):
    """Maxima and minima of bytes that lie densely along one of the loops."""

    op = Reduce
    portable = False

    def accepts(self, w: Workload[Reduce], target: Target) -> bool:
        """Accept one operand of bytes as they are, known shapes."""
        op = w.op
        if op.how not in ("Max", "Min") or op.coordinates or len(op.views) != 1:
            return False
        if not isinstance(op.expr, Input) or op.expr.dtype not in BYTES or is_dynamic(op):
            return False
        return lanes(target) > 1 and prod((*op.shape, *op.reduced)) > 0 and self._dense(merged(op))

    def _dense(self, op: Reduce) -> bool:
        raise NotImplementedError

    def values(self, w: Workload[Reduce], params: Params, target: Target) -> dict[str, object]:
        """Return the loops, the operand's place and the stored value."""
        op = merged(w.op)
        outer, inner = loop_names("i", op.shape), loop_names("j", op.reduced)
        kept = [v for v, _ in outer]
        after, value = epilogue_lines(op.epilogue, w, "total", kept, 1)
        order = "<" if op.how == "Max" else ">"
        return {
            "outer": outer, "inner": inner, "type": op.expr.dtype.c,
            "start": neutral(op.how, op.expr.dtype),
            "further": lambda a, b: f"{a} = {a} {order} {b} ? {b} : {a};",
            "after": after, "value": value, "target": address(dense(op.shape), kept),
        }  # fmt: skip


class ReduceByteRows(_Bytes):
    """Extremes of rows: blocks of bytes side by side, the last of which may overlap others."""

    name = "reduce_byte_rows"
    template = "cpu/map/reduce_byte_rows.c.j2"

    def _dense(self, op: Reduce) -> bool:
        return bool(op.reduced) and op.views[0].strides[-1] == 1 and op.reduced[-1] > 1

    def values(self, w: Workload[Reduce], params: Params, target: Target) -> dict[str, object]:
        """Return the block's size, where a row begins and the blocks in it, too."""
        op, known = merged(w.op), super().values(w, params, target)
        row = op.reduced[-1]
        block = min(BLOCK, 1 << row.bit_length() - 1)
        step = TOGETHER * block
        looped = row // step * step if row >= 2 * step else 0
        rest = [*range(looped, row - block + 1, block), *([row - block] if row % block else [])]
        around = [v for v, _ in (*loop_names("i", op.shape), *loop_names("j", op.reduced)[:-1])]
        return known | {
            "block": block, "source": "x0 + " + address(op.views[0], [*around, "0"]),
            "looped": looped, "step": step, "rest": rest,
            "group": [f"row[j + {at} + k]" for at in range(0, step, block)],
            "single": [f"row[{at} + k]" for at in rest],
        }  # fmt: skip

    def cost(self, w: Workload[Reduce], params: Params, target: Target) -> float:
        """Return the cycles of the blocks, and of a result."""
        op = merged(w.op)
        after = RESULT * cost(op.epilogue.expr)
        return loop_cycles(w) / (2 * target.vector_bytes) + prod(op.shape) * (ROW + after)


class ReduceByteColumns(_Bytes):
    """Extremes of many columns at a time, in a row of bytes."""

    name = "reduce_byte_columns"
    template = "cpu/map/reduce_byte_columns.c.j2"

    def _dense(self, op: Reduce) -> bool:
        if not op.shape or not op.reduced:
            return False
        return op.views[0].strides[len(op.shape) - 1] == 1 and op.shape[-1] >= TOGETHER

    def scratch(self, w: Workload[Reduce], params: Params, target: Target) -> int:
        """Reserve the row."""
        return merged(w.op).shape[-1]

    def values(self, w: Workload[Reduce], params: Params, target: Target) -> dict[str, object]:
        """Return the columns, where rows begin and how many are read together, too."""
        op, known = merged(w.op), super().values(w, params, target)
        outer, inner = loop_names("i", op.shape), loop_names("j", op.reduced)
        (column, count), rows, step = outer[-1], op.reduced[-1], op.views[0].strides[-1]
        looped = rows // TOGETHER * TOGETHER
        place = [*(v for v, _ in outer[:-1]), "0", *(v for v, _ in inner[:-1])]
        parts = [
            {"first": first, "last": last, "step": each,
             "source": "x0 + " + address(op.views[0], [*place, "j"]),
             "terms": [f"row[{k * step} + {column}]" for k in range(each)]}
            for first, last, each in (
                (0, looped, TOGETHER), (looped, rows, rows - looped),
            ) if first < last
        ]  # fmt: skip
        return known | {"outer": outer[:-1], "inner": inner[:-1], "column": column,
                        "count": count, "parts": parts}  # fmt: skip

    def cost(self, w: Workload[Reduce], params: Params, target: Target) -> float:
        """Return the cycles to read a row and the extremes so far, and of a result."""
        op = merged(w.op)
        after = RESULT * cost(op.epilogue.expr) / (1 if op.expr.dtype is DType.FLOAT else 4)
        rows = prod((*op.shape[:-1], *op.reduced))
        return loop_cycles(w) * 1.5 / target.vector_bytes + 6.0 * rows + prod(op.shape) * after


KERNELS = (ReduceByteRows(), ReduceByteColumns())
