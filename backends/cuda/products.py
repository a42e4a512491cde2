"""CUDA kernels of MatMul: tiles in shared memory, and a thread for each element of slim results."""

from __future__ import annotations

from math import prod

from atc.backends.cuda.kernel import MOST_BLOCKS, DeviceKernel, ElementKernel, unravel
from atc.backends.kernel import Launch, Params, Workload
from atc.backends.render.expr import address, load
from atc.backends.render.loops import finish, loop_names
from atc.backends.target import Target
from atc.ir.graph import DType
from atc.ir.ops import MatMul
from atc.ir.view import dense

TILE, DEPTH, OWN = 64, 16, 4
"""Rows and columns of a block's tile, products between two loads, rows and columns of a thread."""

SLIM = 8
"""Rows or columns below which most of a tile would be empty."""


def multiply_add(dtype: DType, total: str, a: str, b: str) -> str:
    """Return the C statement that adds a product: one rounding for floats, integers wrap."""
    if dtype.is_float:
        return f"{total} = fma{'' if dtype is DType.DOUBLE else 'f'}({a}, {b}, {total});"
    wide = f"uint{max(32, 8 * dtype.itemsize)}_t"
    return f"{total} = ({dtype.c})(({wide}){total} + ({wide})({a}) * ({wide})({b}));"


def _matmul(w: Workload) -> MatMul:
    assert isinstance(w.op, MatMul)
    return w.op


def _operand(w: Workload, index: int, place: str, zero: int) -> str:
    """Return the C value of an operand's element, less its zero point."""
    type_ = w.inputs[index]
    assert type_ is not None
    value = load(type_.dtype, f"x{index}[{place}]")
    return f"({value} - {zero})" if zero > 0 else f"({value} + {-zero})" if zero else value


def _common(w: Workload, total: str) -> dict[str, object]:
    """Return what both kernels need: reads at row i, column j, depth p, and the epilogue."""
    op = _matmul(w)
    batch = loop_names("b", op.batch)
    outer = [v for v, _ in batch]
    after, value = finish(op.epilogue, w, total, [*outer, "i", "j"], 2)
    return {
        "op": op, "type": op.accumulator.c, "after": after, "value": value,
        "a": _operand(w, 0, address(op.a_view, [*outer, "i", "p"]), op.a_zero),
        "b": _operand(w, 1, address(op.b_view, [*outer, "p", "j"]), op.b_zero),
        "target": address(dense(op.loops), [*outer, "i", "j"]),
    }  # fmt: skip


class MatMulTiles(DeviceKernel):
    """Products of tiles that a block loads to shared memory; a thread sums a part of the tile."""

    name = "cuda_matmul"
    op = MatMul
    template = "cuda/matmul.cu.j2"
    barriers = True
    accepts_16_bit_weights = True

    def accepts(self, w: Workload, target: Target) -> bool:
        """Results that are no slim strips."""
        return min(_matmul(w).m, _matmul(w).n) >= SLIM

    def _tiles(self, w: Workload) -> list[tuple[str, int]]:
        op = _matmul(w)
        grid = [("tile_i", -(-op.m // TILE)), ("tile_j", -(-op.n // TILE))]
        return [*loop_names("b", op.batch), *grid]

    def launch(self, w: Workload, params: Params, target: Target) -> Launch:
        """Return a block for each tile, up to a limit."""
        tiles = prod(n for _, n in self._tiles(w))
        return Launch(min(max(tiles, 1), MOST_BLOCKS), (TILE // OWN) ** 2)

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """Tiles, and which index runs fastest where an operand is loaded."""
        op, tiles = _matmul(w), self._tiles(w)
        return {
            **_common(w, "total[u][v]"), "tile": TILE, "depth": DEPTH, "own": OWN,
            "tiles": prod(n for _, n in tiles), "indices": unravel("at", tiles),
            "a_rows": op.a_view.strides[-2] == 1, "b_depths": op.b_view.strides[-2] == 1,
            "step": multiply_add(op.accumulator, "total[u][v]", "a[u]", "b[v]"),
        }  # fmt: skip


class MatMulElements(ElementKernel):
    """A thread sums each element of a result of few rows or columns."""

    name = "cuda_matmul_slim"
    op = MatMul
    template = "cuda/matmul_slim.cu.j2"
    accepts_16_bit_weights = True

    def accepts(self, w: Workload, target: Target) -> bool:
        """Return what isn't computed in tiles."""
        return min(_matmul(w).m, _matmul(w).n) < SLIM

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """Return indices of the result and the statement that adds a product."""
        op = _matmul(w)
        loops = [*loop_names("b", op.batch), ("i", op.m), ("j", op.n)]
        values = _common(w, "total")
        return {
            **values, "count": prod(op.loops), "indices": unravel("at", loops),
            "step": multiply_add(op.accumulator, "total", str(values["a"]), str(values["b"])),
        }  # fmt: skip


KERNELS = (MatMulTiles(), MatMulElements())
