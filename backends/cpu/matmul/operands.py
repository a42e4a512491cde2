"""Facts that kernels of MatMul ask of a workload: how B is read, where batches of operands lie."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from atc.backends.kernel import Workload, weight_type
from atc.backends.render.expr import address
from atc.dims import is_dynamic
from atc.ir.graph import Array, DType, TensorType
from atc.ir.ops import MatMul
from atc.ir.view import View, dense, gather_view


def read_mode(w: Workload[MatMul]) -> str:
    """Return how B is read: `packed` when compiling, or copied into scratch from dense `rows`,
    from dense `columns`, or from `any`thing."""
    row, column = w.op.b_view.strides[-2:]
    if w.constant[1]:
        return "packed"
    return "rows" if column == 1 else "columns" if row == 1 else "any"


def is_float_product(w: Workload[MatMul]) -> bool:
    """Return whether a workload multiplies matrices of floats that aren't empty."""
    return _multiplies(w, None)


def is_widened_product(w: Workload[MatMul]) -> bool:
    """Return whether it does so, or constant B has 16 bits."""
    return _multiplies(w, weight_type(w))


def _multiplies(w: Workload[MatMul], half: TensorType | None) -> bool:
    floats = all(t is not None and (t.dtype is DType.FLOAT or t is half) for t in w.inputs[:2])
    return floats and w.op.k != 0 and prod(w.op.loops) != 0


def batch_base(view: View, outer: Sequence[str]) -> str:
    """Return the C place of a batch of an operand, by the variables of the batch loops."""
    return address(View(view.strides[:-2], view.offset), [*outer])


def packed_base(batch: Sequence[int], view: View, outer: Sequence[str], size: int) -> str:
    """Return the C place of a batch of a packed operand, each of which takes `size` elements."""
    steps = zip(view.strides[:-2], dense(kept_batch(batch, view)).strides, strict=True)
    return address(View(tuple(0 if s == 0 else t * size for s, t in steps)), [*outer])


def kept_batch(batch: Sequence[int], view: View) -> tuple[int, ...]:
    """Return the batch of a packed operand: what it broadcasts over is kept once."""
    return tuple(1 if s == 0 else n for n, s in zip(batch, view.strides[:-2], strict=True))


def is_packed(w: Workload[MatMul]) -> bool:
    """Return whether B is a constant whose elements are known when compiling."""
    op = w.op
    known = (kept_batch(op.batch, op.b_view), op.k, op.n, op.b_view)
    return w.constant[1] and not is_dynamic(known)


def gathered_b(op: MatMul, b: Array) -> Array:
    """Return constant B, read through its view, as [*kept batch, k, n]."""
    return gather_view(b, (*kept_batch(op.batch, op.b_view), op.k, op.n), op.b_view)
