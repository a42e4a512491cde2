"""CUDA kernels of Map."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from atc.backends.cuda.kernel import (
    MOST_BLOCKS,
    THREADS,
    DeviceKernel,
    ElementKernel,
    grid,
    unravel,
)
from atc.backends.kernel import Launch, Params, Workload
from atc.backends.render.expr import address, load, render_expr, store
from atc.backends.render.loops import loop_names, reader
from atc.backends.target import Target
from atc.dims import upper_bound
from atc.ir.expr import Call, Input, walk
from atc.ir.graph import DType
from atc.ir.ops import Map
from atc.ir.view import View, dense

VECTOR, MANY = 16, 1 << 10
"""The most bytes that an instruction reads, and elements from which that matters."""

SQUARE, FEWEST = 32, 8
"""Rows and columns of a square that is transposed, and the fewest of a tensor that use it well."""


def _types(w: Workload[Map]) -> list[DType | None]:
    return [t.dtype if t else None for t in w.inputs]


def _in_place(w: Workload[Map]) -> tuple[int, ...]:
    """Return the operands each of whose elements only the thread that overwrites it reads."""
    op, out = w.op, w.outputs[0]
    return tuple(
        k
        for k, t in enumerate(w.inputs)
        if t is not None and t.size == out.size and t.dtype.itemsize == out.dtype.itemsize
        and op.views[k].offset == 0 and op.views[k].is_dense(op.shape)
    )  # fmt: skip


class MapVectors(ElementKernel[Map]):
    """Map of scalars and tensors with the result's layout: 16 bytes at a time."""

    name = "cuda_map_vectors"
    op = Map
    template = "cuda/map/map_vectors.cu.j2"
    dynamic = True

    def _width(self, w: Workload[Map]) -> int:
        sizes = [t.dtype.itemsize for t in (*w.inputs, *w.outputs) if t is not None]
        return VECTOR // max(sizes)

    def accepts(self, w: Workload[Map], target: Target) -> bool:
        """Many elements, and no coordinates in the expression."""
        op, count = w.op, w.outputs[0].size
        if op.coordinates or upper_bound(count) < MANY or None in w.inputs or self._width(w) < 2:
            return False
        return all(_is_whole(v, op.shape) or not any(v.strides) for v in op.views)

    def elements(self, w: Workload[Map]) -> int:
        """Return the number of vectors, a partial one included."""
        return -(-w.outputs[0].size // self._width(w))

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        """Return which operands are tensors, and the stored value."""
        op, types = w.op, [t.c for t in _types(w) if t is not None]
        whole = [_is_whole(v, op.shape) for v in op.views]
        tables = _tables(op)

        def read(k: int) -> str:
            return load(w.input(k).dtype, f"x{k}[{op.views[k].offset}]" if k in tables else f"a{k}")

        lines, value = render_expr(op.expr, read)
        return {
            "count": w.outputs[0].size, "width": self._width(w), "type": w.outputs[0].dtype.c,
            "arrays": [(k, t) for k, t in enumerate(types) if whole[k]],
            "scalars": [
                (k, t, op.views[k].offset) for k, t in enumerate(types)
                if not whole[k] and k not in tables
            ],
            "lines": lines, "value": store(w.outputs[0].dtype, value),
        }  # fmt: skip

    def in_place(self, w: Workload[Map]) -> tuple[int, ...]:
        """Operands of the result's size."""
        return _in_place(w)


def _tables(op: Map) -> set[int]:
    """Return the operands that are looked up in: what is read lies behind their first element."""
    found = {e.args[0] for e in walk(op.expr) if isinstance(e, Call) and e.fn == "Lookup"}
    return {e.index for e in found if isinstance(e, Input)}


def _is_whole(view: View, shape: Sequence[int]) -> bool:
    return view.offset == 0 and view.is_dense(shape)


class MapTransposed(DeviceKernel[Map]):
    """Map of transposed operands: squares are transposed in shared memory."""

    name = "cuda_map_transpose"
    op = Map
    template = "cuda/map/map_transposed.cu.j2"
    dynamic = True
    barriers = True

    def accepts(self, w: Workload[Map], target: Target) -> bool:
        """Enough rows and columns in at least one transposed operand."""
        return bool(_transposed(w))

    def _tiles(self, w: Workload[Map]) -> list[tuple[str, int]]:
        op, d = w.op, _transposed_loop(w)
        kept = [(n, e) for k, (n, e) in enumerate(loop_names("i", op.shape))
                if k not in (d, len(op.shape) - 1)]  # fmt: skip
        rows, columns = -(-op.shape[d] // SQUARE), -(-op.shape[-1] // SQUARE)
        return [*kept, ("tile_r", rows), ("tile_c", columns)]

    def launch(self, w: Workload[Map], params: Params, target: Target) -> Launch:
        """Return a block for each square, up to a limit."""
        return grid(prod(n for _, n in self._tiles(w)), MOST_BLOCKS, THREADS)

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        """Return the squares, the operands' addresses, and the stored value."""
        op, transposed, d = w.op, _transposed(w), _transposed_loop(w)
        names = loop_names("i", op.shape)
        indices = [v for v, _ in names]
        direct = reader((*op.views, *op.coordinates), _types(w), indices)

        def read(k: int) -> str:
            return load(w.input(k).dtype, f"square{k}[c][r]") if k in transposed else direct(k)

        lines, value = render_expr(op.expr, read)
        tiles = self._tiles(w)
        return {
            "tiles": prod(n for _, n in tiles), "indices": unravel("at", tiles),
            "row": names[d], "column": names[-1], "lines": lines,
            "transposed": [
                (k, w.input(k).dtype.c, address(op.views[k], indices)) for k in transposed
            ],
            "value": store(w.outputs[0].dtype, value),
            "target": address(dense(op.shape), indices),
        }  # fmt: skip


def _transposed_loop(w: Workload[Map]) -> int:
    """Return the loop along which the first transposed operand is contiguous; -1 if none is."""
    shape = w.op.shape
    for view, type_ in zip(w.op.views, w.inputs, strict=False):
        if type_ is None or not view.strides or view.strides[-1] in (-1, 0, 1):
            continue
        for d in range(len(shape) - 1):
            if (
                view.strides[d] == 1
                and min(upper_bound(shape[d]), upper_bound(shape[-1])) >= FEWEST
            ):
                return d
    return -1


def _transposed(w: Workload[Map]) -> tuple[int, ...]:
    """Return the operands that are contiguous along that loop, at most four."""
    d = _transposed_loop(w)
    if d < 0 or None in w.inputs:
        return ()
    views = w.op.views[: len(w.inputs)]
    found = [
        k for k, v in enumerate(views) if v.strides[d] == 1 and v.strides[-1] not in (-1, 0, 1)
    ]
    return tuple(found[:4])


class MapElements(ElementKernel[Map]):
    """Any Map, a thread for each element."""

    name = "cuda_map"
    op = Map
    template = "cuda/map/map.cu.j2"
    dynamic = True

    def accepts(self, w: Workload[Map], target: Target) -> bool:
        """Accept what the other kernels don't."""
        return not MapVectors().accepts(w, target) and not MapTransposed().accepts(w, target)

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        """Return indices, declarations and the stored value."""
        op = w.op
        loops = loop_names("i", op.shape)
        views, types = (*op.views, *op.coordinates), [t.dtype if t else None for t in w.inputs]
        read = reader(views, types, [v for v, _ in loops])
        lines, value = render_expr(op.expr, read)
        value = store(w.outputs[0].dtype, value)
        return {
            "count": prod(op.shape), "indices": unravel("at", loops), "lines": lines,
            "value": value,
        }  # fmt: skip

    def in_place(self, w: Workload[Map]) -> tuple[int, ...]:
        """Operands of the result's size."""
        return _in_place(w)


KERNELS = (MapVectors(), MapTransposed(), MapElements())
