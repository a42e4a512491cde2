"""Portable kernels of the ops that copy runs of memory: Concat, Pad, Gather, Scatter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.addresses import address_values, combined
from atc.backends.render.expr import address, load, store
from atc.backends.target import Target
from atc.ir.expr import Input
from atc.ir.graph import row_major
from atc.ir.ops.data import Concat, Gather, Pad, Scatter, WriteExtents, source_index
from atc.ir.view import View, dense


class WriteExtentsInts(Kernel[WriteExtents]):
    """Extents of run-time shapes, written as a tensor."""

    name = "extents"
    op = WriteExtents
    template = "cpu/data/extents.c.j2"
    dynamic = True

    def values(
        self, w: Workload[WriteExtents], params: Params, target: Target
    ) -> dict[str, object]:
        """Return the extents and their type."""
        op = w.op
        return {"extents": op.values, "type": w.outputs[0].dtype.c}


class ConcatCopy(Kernel[Concat]):
    """Concat as one memcpy per operand and outer index."""

    name = "concat"
    op = Concat
    template = "cpu/data/concat.c.j2"
    dynamic = True

    def values(self, w: Workload[Concat], params: Params, target: Target) -> dict[str, object]:
        """Extents and where each part begins in a row of the result."""
        op = w.op
        begins = [sum(op.parts[:k]) for k in range(len(op.parts))]
        return {
            "outer": op.outer, "row": sum(op.parts),
            "parts": list(zip(begins, op.parts, strict=True)),
        }  # fmt: skip


@dataclass(frozen=True)
class PadAxis:
    """An axis before the last padded one: its extents, and where its elements come from."""

    index: int
    extent: int
    begin: int
    size: int
    stride: int
    table: list[int]

    @property
    def padded(self) -> bool:
        """Whether the axis has a pad at all."""
        return self.extent != self.size


class PadRows(Kernel[Pad]):
    """Pad row by row, a row being the last padded axis with all that lies behind it."""

    name = "pad"
    op = Pad
    template = "cpu/data/pad.c.j2"
    dynamic = True

    def values(self, w: Workload[Pad], params: Params, target: Target) -> dict[str, object]:
        """Outer axes, and the row: `run` elements behind the last padded axis."""
        op = w.op
        last = max(d for d in range(len(op.shape)) if op.begins[d] or op.ends[d])
        run = prod(op.shape[last + 1 :])
        begin, size, end = op.begins[last], op.shape[last], op.ends[last]
        source: list[int] = []
        if op.mode != "constant":
            source = [int(i) * run for i in source_index(op.mode, size, begin, end)]
        value = load(w.outputs[0].dtype, "x1[0]") if len(w.inputs) > 1 else "0"
        return {
            "axes": _outer_axes(op, last), "constant": op.mode == "constant", "run": run,
            "begin": begin, "size": size, "end": end, "type": w.outputs[0].dtype.c,
            "before": source[:begin] if source else [],
            "behind": source[begin + size :] if source else [],
            "value": store(w.outputs[0].dtype, value) if value != "0" else value,
        }  # fmt: skip


def _outer_axes(op: Pad, last: int) -> list[PadAxis]:
    strides, extents = row_major(op.shape), op.extents
    axes = []
    for d in range(last):
        table = []
        if op.mode != "constant" and extents[d] > op.shape[d]:
            source = source_index(op.mode, op.shape[d], op.begins[d], op.ends[d])
            table = [int(i) * strides[d] for i in source]
        axes.append(PadAxis(d, extents[d], op.begins[d], op.shape[d], strides[d], table))
    return axes


# ---- indexed ------------------------------------------------------------------------------------


def _flat(shape: Sequence[int], run: int, loops: Sequence[tuple[str, int]]) -> str:
    """Return the C index of the run that belongs to a position of the loops."""
    view = View(tuple(s * run for s in dense(shape).strides))
    return address(view, [v for v, _ in loops])


class GatherLoops(Kernel[Gather]):
    """Gather as a loop nest around a copy."""

    name = "gather"
    op = Gather
    template = "cpu/data/gather.c.j2"
    dynamic = True

    def values(self, w: Workload[Gather], params: Params, target: Target) -> dict[str, object]:
        """Loops, address and place of the result."""
        op = w.op
        loops, values = address_values(w, op, 1, w.input(0).size)
        return {**values, "target": _flat(op.shape, op.run, loops)}


class ScatterLoops(Kernel[Scatter]):
    """Scatter as a copy of the data, unless it lies in place, and a loop nest over the updates."""

    name = "scatter"
    op = Scatter
    template = "cpu/data/scatter.c.j2"
    dynamic = True

    def values(self, w: Workload[Scatter], params: Params, target: Target) -> dict[str, object]:
        """Loops, address and the statement that stores one update."""
        op = w.op
        loops, values = address_values(w, op, 2, w.outputs[0].size)
        inner = " + j" if op.run != 1 else ""
        lines, value = combined(op.combine, w, f"y0[at{inner}]", f"x1[from{inner}]")
        return {
            **values, "source": _flat(op.shape, op.run, loops), "size": w.outputs[0].size,
            "replaces": isinstance(op.combine, Input), "inner": inner, "after": lines,
            "value": value,
        }  # fmt: skip

    def in_place(self, w: Workload[Scatter]) -> tuple[int, ...]:
        """Let the data be updated where it lies."""
        return (0,)


KERNELS = (WriteExtentsInts(), ConcatCopy(), PadRows(), GatherLoops(), ScatterLoops())
