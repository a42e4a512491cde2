"""Cost estimates of nodes by op, in cycles of one core, good enough to compare forms.

Callers that know the kernels give better ones by a `Price`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, prod

from atc.ir.expr import cost as expression_cost
from atc.ir.expr import inputs_of
from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops import (
    Block,
    Conv,
    ConvBlocked,
    ConvFilterGradient,
    Map,
    MatMul,
    Normalize,
    NormalizeBlocked,
    Pool,
    Reduce,
    Reshape,
    SubView,
    Unblock,
)
from atc.ir.ops.blocked import BYTES
from atc.ir.ops.data import Concat
from atc.ir.ops.sampling import Resample
from atc.ir.view import View
from atc.passes.canonical.alias_slices import ALIGNMENT

CALL = 50.0
"""The overhead of a call in cycles."""
RATE = 24.0
"""Bytes per cycle to and from the caches."""
ROW, PLAIN_PRODUCTS, VECTOR_SHARE = 4.0, 0.8, 1.4
"""For plain convolutions without vectors: cycles of each tap per row, and products per cycle in a
row. For others: products per cycle, in vectors."""
PLAIN_ROW, PLAIN_VECTOR, PLAIN_LOAD, PLAIN_STRIDED = 4.4, 0.7, 1.0, 0.7
"""For plain convolutions with vectors: least cycles of a tap per row, those per vector of results
and of operands, and per number that is read with a stride."""
PASSES = 3.0
"""Cycles per element of a normalisation, which reads its operand three times."""
SCALAR, GATHERED = 1.2, 1.5
"""Cycles per element of a loop without vectors, and per operand that isn't contiguous."""


@dataclass(frozen=True)
class Task:
    """An op with the types of its operands and results, and which operands are constants."""

    op: Op
    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...]
    constant: tuple[bool, ...]


Price = Callable[[Task], float | None]
"""Returns the cycles of a task, None if nothing better than `estimate` is known."""


def no_price(task: Task) -> None:
    """Return None for every task: nothing better is known."""


def estimate(task: Task, width: int) -> float:
    """Return the cycles of a task on a machine with vectors of `width` floats."""
    op, y = task.op, task.outputs[0]
    moved = CALL + (y.nbytes + sum(t.nbytes for t in task.inputs if t is not None)) / RATE
    match op:
        case Reshape() | SubView():
            return 0.0
        case Conv():
            return moved + _plain_conv(op, task, width)
        case ConvBlocked() if op.accumulator is not DType.FLOAT and _is_plain(op, task):
            return inf  # only some targets have kernels for that
        case ConvBlocked():
            w = _shape(task, 1)
            wide = VECTOR_SHARE * width * (1 if y.dtype is DType.FLOAT else 2)
            return moved + y.size * prod(w[1:]) / wide
        case ConvFilterGradient(window=window):
            g = _shape(task, 1)
            pixels = g[0] * prod(g[2 : 2 + window.rank])
            wide = VECTOR_SHARE * width if len(g) > window.rank + 2 else 1
            return moved + y.size * pixels / wide
        case MatMul():
            columns = -(-op.n // width) * width
            return moved + prod(op.batch) * op.m * op.k * columns / (VECTOR_SHARE * width)
        case Map() if op.is_movement and _is_part(op, y):
            return 0.0
        case Map() | Reduce():
            return moved + _loops(op, task, width)
        case Pool():
            lanes = y.shape[-1] % width == 0 and op.window.kernel[-1] == 1
            return moved + y.size * prod(op.window.kernel) * (1 / width if lanes else SCALAR)
        case Normalize() | NormalizeBlocked():
            rolled = isinstance(op, NormalizeBlocked) or not op.inner
            work = PASSES + 0.25 * expression_cost(op.epilogue.expr)
            return moved + y.size * work / (width if rolled else 1)
        case Resample():
            whole = op.inner % width == 0
            return moved + y.size * op.taps * (1 / width if whole else SCALAR)
        case Concat():
            return CALL if op.outer == 1 else moved + op.outer * len(op.parts) * 5
        case Block() | Unblock():
            return moved + y.size * (0.3 if y.dtype not in BYTES else SCALAR)
        case _:
            return moved


def _is_plain(op: ConvBlocked, task: Task) -> bool:
    """Return whether a blocked convolution reads a plain operand."""
    return len(_shape(task, 0)) == op.plain


def _plain_conv(op: Conv, task: Task, width: int) -> float:
    """Return the cycles of a convolution of plain planes, in vectors along a row of floats."""
    filters, *taps = _shape(task, 1)
    y = task.outputs[0]
    across = max(y.shape[-1], 1)
    rows = y.size / across / max(filters, 1) * prod(taps)
    if not _is_float(task) or op.accumulator is not DType.FLOAT or op.window.rank > 2:
        return rows * filters * (ROW + across / PLAIN_PRODUCTS)
    vectors, each = -(-across // width), filters / op.group
    cycles = max(PLAIN_ROW, PLAIN_VECTOR * each * vectors, PLAIN_LOAD * vectors)
    transposed = sum(v.strides[-1] not in (0, 1) for v in op.epilogue.views)
    x = task.inputs[0]
    strided = 0 if x is None or op.window.strides[-1] == 1 else x.size
    return rows * op.group * cycles + GATHERED * transposed * y.size + PLAIN_STRIDED * strided


def _is_part(op: Map, y: TensorType) -> bool:
    """Return whether readers of a slice can read it where it lies.

    See `canonical/alias_slices.py`.
    """
    view = op.views[0]
    return view.is_dense(op.shape) and view.offset * y.dtype.itemsize % ALIGNMENT == 0


def _shape(task: Task, k: int) -> tuple[int, ...]:
    type_ = task.inputs[k]
    return () if type_ is None else type_.shape


def _loops(op: Map | Reduce, task: Task, width: int) -> float:
    """Return the cycles of a loop nest, in vectors where all operands follow one loop."""
    loops = op.shape if isinstance(op, Map) else (*op.shape, *op.reduced)
    count, work = prod(loops), 0.25 * expression_cost(op.expr)
    views = (*op.views, *op.coordinates)
    read = [views[k] for k in sorted(inputs_of(op.expr))]
    lines = [len(loops) - 1]
    if isinstance(op, Reduce):
        lines.append(len(op.shape) - 1)
    if any(d >= 0 and _in_step(read, loops, d, width) for d in lines) and _is_float(task):
        return count * (0.5 + work) / width * (1 + 0.25 * len(read))
    strided = sum(v.strides[-1] not in (0, 1) for v in read if v.strides)
    return count * (SCALAR + work + GATHERED * strided)


def _is_float(task: Task) -> bool:
    return all(t is None or t.dtype in (DType.FLOAT, *BYTES) for t in (*task.inputs, *task.outputs))


def _in_step(views: Sequence[View], loops: Sequence[int], axis: int, width: int) -> bool:
    steps = all(v.strides[axis] in (0, 1) for v in views)
    return steps and 2 * loops[axis] >= width
