"""CUDA kernels of Scatter, Cumulate and TopK, whose results depend on the order of elements."""

from __future__ import annotations

from atc.backends.cuda.kernel import DeviceKernel, ElementKernel, RowKernel, grid, unravel
from atc.backends.cuda.map.reduce import LONG_ROW, MANY_ROWS
from atc.backends.kernel import Launch, Params, Workload
from atc.backends.render.addresses import address_values, combined
from atc.backends.render.expr import load, times, value_type
from atc.backends.render.ordering import comes_first
from atc.backends.render.reduction import accumulate, neutral
from atc.backends.target import Target
from atc.dims import is_dynamic, upper_bound
from atc.ir.ops.data import Cumulate, Scatter, TopK

FEW_UPDATES, MOST_PARTS, FEWEST_PARTS = 4096, 1024, 128
"""Updates up to which most blocks share the data, each of which scans all updates; the most
parts of the data with so few updates, and with more."""

PASSES = 16
"""Results of a row up to which each is found by a pass of its own."""

SORTED = 1 << 26
"""Bytes of scratch for all rows that are being sorted at a time."""


class ScatterParts(DeviceKernel[Scatter]):
    """Any Scatter, a block for each part of the data."""

    name = "cuda_scatter"
    op = Scatter
    template = "cuda/data/scatter.cu.j2"
    dynamic = True
    barriers = True
    threads = 256

    def _part(self, w: Workload[Scatter]) -> int:
        """Return the elements of a block's part."""
        updates, size = upper_bound(w.input(1).size // w.op.run), upper_bound(w.outputs[0].size)
        most = MOST_PARTS if updates <= FEW_UPDATES else FEWEST_PARTS
        return max(-(-size // most), 4 * self.threads)

    def launch(self, w: Workload[Scatter], params: Params, target: Target) -> Launch:
        """Return a block for each part."""
        return grid(-(-w.outputs[0].size // self._part(w)), MOST_PARTS, self.threads)

    def values(self, w: Workload[Scatter], params: Params, target: Target) -> dict[str, object]:
        """Addresses, and how an element is updated."""
        op, size = w.op, w.outputs[0].size
        loops, values = address_values(w, op, 2, size)
        lines, value = combined(op.combine, w, "y0[e]", "x1[from]")
        return {
            **values, "indices": unravel("number", loops), "count": w.input(1).size // op.run,
            "size": size, "part": self._part(w), "combining": lines, "value": value,
        }  # fmt: skip

    def in_place(self, w: Workload[Scatter]) -> tuple[int, ...]:
        """Let the data be updated where it lies."""
        return (0,)


def _rows(op: Cumulate | TopK) -> list[tuple[str, int]]:
    return [("o", op.outer), ("i", op.inner)]


def _shares_rows(op: Cumulate) -> bool:
    return upper_bound(op.axis) >= LONG_ROW and upper_bound(op.outer * op.inner) <= MANY_ROWS


def _running(w: Workload[Cumulate]) -> dict[str, object]:
    op, dtype = w.op, w.outputs[0].dtype
    return {
        "op": op, "count": op.outer * op.inner, "indices": unravel("at", _rows(op)),
        "type": dtype.c, "start": neutral(op.how, dtype),
        "step": accumulate(op.how, dtype, "x0[from]"), "join": accumulate(op.how, dtype, "other"),
    }  # fmt: skip


class CumulateElements(ElementKernel[Cumulate]):
    """Any Cumulate, a thread for each row."""

    name = "cuda_cumulate"
    op = Cumulate
    template = "cuda/data/cumulate.cu.j2"
    dynamic = True

    def accepts(self, w: Workload[Cumulate], target: Target) -> bool:
        """Short rows, or enough of them to keep a GPU busy."""
        return not _shares_rows(w.op)

    def elements(self, w: Workload[Cumulate]) -> int:
        """Return the number of rows."""
        return w.op.outer * w.op.inner

    def values(self, w: Workload[Cumulate], params: Params, target: Target) -> dict[str, object]:
        """Extents, the start and the statement that adds one element."""
        return _running(w)


class CumulateRows(RowKernel[Cumulate]):
    """Any Cumulate, a block for each row; sums of parts of the row are added in order."""

    name = "cuda_cumulate_rows"
    op = Cumulate
    template = "cuda/data/cumulate_rows.cu.j2"
    dynamic = True

    def accepts(self, w: Workload[Cumulate], target: Target) -> bool:
        """Long rows, and few of them."""
        return _shares_rows(w.op)

    def rows(self, w: Workload[Cumulate]) -> int:
        """Return the number of rows."""
        return w.op.outer * w.op.inner

    def values(self, w: Workload[Cumulate], params: Params, target: Target) -> dict[str, object]:
        """Extents, the start, and how one element, or the sum of many, is added."""
        return {**_running(w), "part": -(-w.op.axis // self.threads)}


class _TopKRows(RowKernel[TopK]):
    """A block finds a row's first elements."""

    op = TopK

    def rows(self, w: Workload[TopK]) -> int:
        """Return the number of rows."""
        return w.op.outer * w.op.inner

    def values(self, w: Workload[TopK], params: Params, target: Target) -> dict[str, object]:
        """Return the order of two elements, NaN being the largest."""
        op, dtype = w.op, w.input(0).dtype
        sign = ">" if op.largest else "<"
        return {
            "op": op, "count": self.rows(w), "indices": unravel("at", _rows(op)),
            "element": dtype.c, "type": value_type(dtype),
            "first": comes_first("a", "b", sign, dtype),
            "second": comes_first("b", "a", sign, dtype),
            "a": load(dtype, f"x[{times('i', op.inner)}]"),
            "b": load(dtype, f"x[{times('j', op.inner)}]"),
        }  # fmt: skip


class TopKPasses(_TopKRows):
    """TopK, one result of a row after another."""

    name = "cuda_top_k"
    template = "cuda/data/top_k.cu.j2"
    dynamic = True

    def accepts(self, w: Workload[TopK], target: Target) -> bool:
        """Few results, of rows whose elements an int can count."""
        op = w.op
        return (
            upper_bound(op.k) <= PASSES
            and upper_bound(op.axis) < 1 << 30
            and not is_dynamic(op.inner)
        )


class TopKSort(_TopKRows):
    """TopK of whole rows that are sorted."""

    name = "cuda_top_k_sort"
    template = "cuda/data/top_k_sort.cu.j2"
    dynamic = True

    def accepts(self, w: Workload[TopK], target: Target) -> bool:
        """Many results, of rows that fit in scratch."""
        op = w.op
        if upper_bound(op.k) <= PASSES or is_dynamic((op.axis, op.inner)):
            return False
        return 4 * _padded(op) <= SORTED

    def launch(self, w: Workload[TopK], params: Params, target: Target) -> Launch:
        """Return as many blocks as there is scratch for."""
        most = SORTED // (4 * _padded(w.op))
        return grid(self.rows(w), most, self.threads)

    def scratch(self, w: Workload[TopK], params: Params, target: Target) -> int:
        """Return the bytes of the indices that blocks sort."""
        return self.launch(w, params, target).blocks * 4 * _padded(w.op)

    def values(self, w: Workload[TopK], params: Params, target: Target) -> dict[str, object]:
        """Return the order of two elements, and how many indices are sorted."""
        return {**super().values(w, params, target), "padded": _padded(w.op)}


def _padded(op: TopK) -> int:
    return 1 << max(op.axis - 1, 1).bit_length()


KERNELS = (ScatterParts(), CumulateElements(), CumulateRows(), TopKPasses(), TopKSort())
