"""CUDA kernels of Concat, Pad, Gather and Resample: a thread for each element of the result."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from atc.backends.cuda.kernel import ElementKernel, unravel
from atc.backends.kernel import Params, Workload
from atc.backends.render.expr import load, render_expr, store
from atc.backends.render.loops import loop_names, reader
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import row_major
from atc.ir.ops.data import Concat, Gather, Pad, source_index
from atc.ir.ops.sampling import Resample


class ConcatElements(ElementKernel[Concat]):
    """Concat: the part that an element comes from is found by comparing."""

    name = "cuda_concat"
    op = Concat
    template = "cuda/data/concat.cu.j2"
    dynamic = True

    def values(self, w: Workload[Concat], params: Params, target: Target) -> dict[str, object]:
        """Return where each part begins in a row of the result."""
        op = w.op
        begins = [sum(op.parts[:k]) for k in range(len(op.parts))]
        slices = [(k, b, n) for k, (b, n) in enumerate(zip(begins, op.parts, strict=True)) if n]
        return {"count": w.outputs[0].size, "indices": [], "row": sum(op.parts), "slices": slices}


@dataclass(frozen=True)
class PadAxis:
    """An axis of a padded tensor; the table, if there is one, lists its elements' sources."""

    index: int
    begin: int
    size: int
    extent: int
    stride: int
    table: tuple[int, ...]

    @property
    def padded(self) -> bool:
        """Whether the axis has a pad at all."""
        return self.extent != self.size or self.begin != 0


class PadElements(ElementKernel[Pad]):
    """Pad of any mode."""

    name = "cuda_pad"
    op = Pad
    template = "cuda/data/pad.cu.j2"
    dynamic = True

    def accepts(self, w: Workload[Pad], target: Target) -> bool:
        """Axes whose sources a table lists must have known extents."""
        op = w.op
        rows = zip(op.shape, op.begins, op.ends, strict=True)
        around = (row for row in rows if op.mode != "constant" and (row[1] or row[2]))
        return not is_dynamic(tuple(around))

    def values(self, w: Workload[Pad], params: Params, target: Target) -> dict[str, object]:
        """Return the axes, and the value of a constant pad."""
        op = w.op
        strides, extents, axes = row_major(op.shape), op.extents, []
        for d, size in enumerate(op.shape):
            table: tuple[int, ...] = ()
            if op.mode != "constant" and (op.begins[d] or op.ends[d]):
                found = source_index(op.mode, size, op.begins[d], op.ends[d])
                table = tuple(map(int, found))
            axes.append(PadAxis(d, op.begins[d], size, extents[d], strides[d], table))
        dtype = w.outputs[0].dtype
        given = len(w.inputs) > 1
        loops = [(f"o{d}", n) for d, n in enumerate(extents)]
        return {
            "count": prod(extents), "indices": unravel("at", loops), "axes": axes,
            "constant": op.mode == "constant", "type": dtype.c,
            "fill": store(dtype, load(dtype, "x1[0]")) if given else "0",
        }  # fmt: skip


class GatherElements(ElementKernel[Gather]):
    """Gather: each thread computes its address."""

    name = "cuda_gather"
    op = Gather
    template = "cuda/data/gather.cu.j2"
    dynamic = True

    def values(self, w: Workload[Gather], params: Params, target: Target) -> dict[str, object]:
        """Loops and address."""
        op, x = w.op, w.input(0)
        loops = [*loop_names("i", op.shape), ("r", op.run)]
        indices = [v for v, _ in loops[:-1]]
        dtypes = [t.dtype if t else None for t in w.inputs[1:]]
        views = (*op.views, *op.coordinates)
        lines, value = render_expr(op.address, reader(views, dtypes, indices, 1), "a")
        return {
            "count": prod(op.shape) * op.run, "indices": unravel("at", loops), "lines": lines,
            "address": value, "proven": op.proven, "run": op.run, "last": x.size - op.run,
        }  # fmt: skip


class ResampleElements(ElementKernel[Resample]):
    """Resample: a thread sums the few weighted elements of its result."""

    name = "cuda_resample"
    op = Resample
    template = "cuda/data/resample.cu.j2"
    dynamic = True

    def values(self, w: Workload[Resample], params: Params, target: Target) -> dict[str, object]:
        """Return indices and the element that a weight is multiplied with."""
        op, x, out = w.op, w.input(0).dtype, w.outputs[0].dtype
        loops = [("o", op.outer), ("q", op.out), ("i", op.inner)]
        return {
            "op": op, "count": w.outputs[0].size, "indices": unravel("at", loops),
            "type": out.c, "term": f"({out.c}){load(x, 'x0[from]')}",
        }  # fmt: skip


KERNELS = (ConcatElements(), PadElements(), GatherElements(), ResampleElements())
