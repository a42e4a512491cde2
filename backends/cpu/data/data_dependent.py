"""Portable kernels of the ops that write extents: how many elements there are shows the data."""

from __future__ import annotations

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.expr import address, load, value_type
from atc.backends.target import Target
from atc.ir.graph import DType
from atc.ir.ops.data_dependent import NonMaxSuppression, NonZero, ReadExtents, ResolveSlice, Unique
from atc.ir.view import dense


class ReadExtentsInts(Kernel[ReadExtents]):
    """Integers of a tensor as extents."""

    name = "read_extents"
    op = ReadExtents
    template = "cpu/data/read_extents.c.j2"
    dynamic = True

    def values(self, w: Workload[ReadExtents], params: Params, target: Target) -> dict[str, object]:
        """Return their number."""
        return {"count": len(w.op.extents)}


class ResolveSliceEnds(Kernel[ResolveSlice]):
    """The ends of a slice, by numpy's rules."""

    name = "resolve_slice"
    op = ResolveSlice
    template = "cpu/data/resolve_slice.c.j2"
    dynamic = True

    def values(
        self, w: Workload[ResolveSlice], params: Params, target: Target
    ) -> dict[str, object]:
        """Return the op."""
        return {"op": w.op}


class NonZeroTwoPass(Kernel[NonZero]):
    """NonZero in two passes: count, then write."""

    name = "non_zero"
    op = NonZero
    template = "cpu/data/non_zero.c.j2"
    dynamic = True

    def values(self, w: Workload[NonZero], params: Params, target: Target) -> dict[str, object]:
        """Loops and the read."""
        op, dtype = w.op, w.input(0).dtype
        names = [f"i{d}" for d in range(len(op.shape))]
        place = f"x0[{address(dense(op.shape), names)}]"
        return {"loops": list(zip(names, op.shape, strict=True)), "value": load(dtype, place)}


class UniqueSorted(Kernel[Unique]):
    """Unique by a heap sort of the rows' numbers."""

    name = "unique"
    op = Unique
    template = "cpu/data/unique.c.j2"
    dynamic = True

    def values(self, w: Workload[Unique], params: Params, target: Target) -> dict[str, object]:
        """Return the comparison of two elements."""
        op, dtype = w.op, w.input(0).dtype
        return {
            "op": op, "element": dtype.c, "type": value_type(dtype), "real": dtype.is_float,
            "text": dtype is DType.STRING, "a": load(dtype, "a[k]"), "b": load(dtype, "b[k]"),
        }  # fmt: skip

    def scratch(self, w: Workload[Unique], params: Params, target: Target) -> int:
        """Reserve the order of the rows, and the group of each."""
        return 16 * w.op.rows


class NonMaxSuppressionGreedy(Kernel[NonMaxSuppression]):
    """NonMaxSuppression: the best box left is taken unless it overlaps one taken before."""

    BLOCK = 16
    """Boxes that are compared without jumps in between."""

    name = "non_max_suppression"
    op = NonMaxSuppression
    template = "cpu/data/non_max_suppression.c.j2"
    dynamic = True

    def values(
        self, w: Workload[NonMaxSuppression], params: Params, target: Target
    ) -> dict[str, object]:
        """Return the operands that are there."""
        given = [k < len(w.inputs) and w.inputs[k] is not None for k in range(5)]
        return {
            "op": w.op, "most": given[2], "overlap": given[3], "least": given[4],
            "block": self.BLOCK, "room": self._room(w.op),
        }  # fmt: skip

    def scratch(self, w: Workload[NonMaxSuppression], params: Params, target: Target) -> int:
        """Reserve the edges and areas of taken boxes, and a heap of those that are left."""
        return 4 * (5 * self._room(w.op) + w.op.boxes)

    def _room(self, op: NonMaxSuppression) -> int:
        """Return the boxes of whole blocks."""
        return -(-op.boxes // self.BLOCK) * self.BLOCK


KERNELS = (ReadExtentsInts(), ResolveSliceEnds(), NonZeroTwoPass(), UniqueSorted(),
           NonMaxSuppressionGreedy())  # fmt: skip
