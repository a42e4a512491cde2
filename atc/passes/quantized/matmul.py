"""Turns products of dequantized matrices into products of the integers themselves.

Either operand may be computed or constant, with a zero point of its own; scales are one number, or
one per row of A or column of B where these are constant. The exact INT32 sums are scaled in the
epilogue: `float(sum + bias) * scale`, where `scale` is the product of both scales in float64,
rounded to float once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from atc.dims import is_dynamic, max_value
from atc.ir.expr import Call, Expr, Input, call, cast, const, operands_of, substitute
from atc.ir.graph import Dequantization, DType, Node
from atc.ir.ops import Epilogue, MatMul
from atc.ir.view import View, gather_view
from atc.passes.quantized.matching import SUM_LIMIT, Integers, Vector, dequantized
from atc.passes.rewriting import Rewriting, distinct_operands, merge_origin


@dataclass(frozen=True)
class Factor:
    """An operand in integers: `(source - zero) * scale`, the scale one number or one per row of A
    or column of B."""

    source: str
    zero: int
    scale: Vector
    each: int
    """A bound of |source - zero|."""
    total: int
    """A bound of its sum along the depth."""
    nodes: tuple[Node, ...] = ()


def integer_product(state: Rewriting, node: Node, op: MatMul) -> Node | None:
    """Return the product of integers, if both operands are dequantized."""
    constant = state.constant(node.inputs[1]) is not None
    if 0 in (*op.loops, op.k):
        return None
    if is_dynamic((op.n, op.k)) if constant else is_dynamic(op) and op.a_view.strides[-1] != 1:
        return None  # no kernel of bytes takes that
    a, b = _factor(state, node, op, 0), _factor(state, node, op, 1)
    if a is None or b is None:
        return None
    scale = a.scale.reshape(-1, 1) * b.scale.reshape(1, -1)
    bias = _integer_bias(state, node, op, scale)
    room = SUM_LIMIT - min(a.each * b.total, a.total * b.each)
    if room < 0 or (bias is not None and np.abs(bias).max() > room):
        return None
    expr, extra, views = _scaled_sums(state, node, op, scale, bias)
    expr, extra, views = distinct_operands(expr, extra, views, 1)
    new = replace(
        op, epilogue=Epilogue(expr, views), accumulator=DType.INT32, a_zero=a.zero, b_zero=b.zero
    )
    origin = merge_origin(*a.nodes, *b.nodes, node)
    return Node(new, (a.source, b.source, *extra), node.outputs, origin)


def _factor(state: Rewriting, node: Node, op: MatMul, index: int) -> Factor | None:
    """Return operand `index` in integers of a byte; None where it isn't dequantized from such."""
    name = node.inputs[index]
    x = dequantized(state, name)
    if x is not None:
        scale = np.array([np.float32(x.scale)], np.float64)
        return Factor(x.source, x.zero, scale, 255, 255 * max_value(op.k), (x.node,))
    grid = state.graph.quantization.get(name)
    if grid is None or state.constant(name) is None:
        return None
    shape, view = state.types[name].shape, op.a_view if index == 0 else op.b_view
    loops = (*op.batch, op.m, op.k) if index == 0 else (*op.batch, op.k, op.n)
    loops = tuple(
        1 if is_dynamic(n) and step == 0 else n
        for n, step in zip(loops, view.strides, strict=True)
    )
    if is_dynamic(loops):
        return None
    along = _scale_along(grid, shape, loops, view, -2 if index == 0 else -1)
    integers = grid.integers.reshape(shape)
    low, high = min(0, int(integers.min())), max(0, int(integers.max()))
    if along is None or high - low > 255:
        return None
    sums = np.abs(gather_view(integers, loops, view)).sum(-1 if index == 0 else -2, np.int64)
    signed = low >= -128 and high <= 127
    stored = integers.astype(np.int8) if signed else (integers - low).astype(np.uint8)
    source = state.add_constant(stored, f"{name}.integers")
    return Factor(source, 0 if signed else -low, along, max(high, -low), int(sums.max()))


def _scale_along(
    grid: Dequantization, shape: tuple[int, ...], loops: tuple[int, ...], view: View, axis: int
) -> Vector | None:
    """Return the scale along an axis of the operand's loops, one number where all are the same;
    None where it varies along another axis, or isn't positive and finite."""
    scale = grid.scale.astype(np.float64)
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        return None
    if scale.size == 1:
        return scale.reshape(1)
    whole = np.ascontiguousarray(np.broadcast_to(grid.scale, shape))
    seen = gather_view(whole, loops, view).astype(np.float64)
    along = np.moveaxis(seen, axis, -1).reshape(-1, loops[axis])
    return along[0] if bool((along == along[0]).all()) else None


def _integer_bias(state: Rewriting, node: Node, op: MatMul, scale: Vector) -> Integers | None:
    """Return the bias on the sums' scale, where the epilogue is the addition of such a one."""
    match op.epilogue.expr:
        case Call(fn="Add", args=(Input(index=0), Input(index=1))) if len(node.inputs) == 3:
            grid = state.graph.quantization.get(node.inputs[2])
        case _:
            return None
    if grid is None or any(op.epilogue.views[0].strides[:-1]):
        return None
    shape = state.types[node.inputs[2]].shape
    given = np.ascontiguousarray(np.broadcast_to(grid.scale, shape)).astype(np.float64)
    bias, (unit,) = grid.integers.reshape(shape), op.epilogue.views
    row = View(unit.strides[-1:], unit.offset)
    same = np.allclose(gather_view(given, (op.n,), row), scale, rtol=1e-6, atol=0)
    return gather_view(bias, (op.n,), row).astype(np.int64) if same else None


def _scaled_sums(
    state: Rewriting, node: Node, op: MatMul, scale: Vector, bias: Integers | None
) -> tuple[Expr, tuple[str, ...], tuple[View, ...]]:
    """Return the epilogue that scales the sums, its operands and their views."""
    rank = len(op.loops)
    column = View((0,) * (rank - 1) + (1,))
    total: Expr = Input(DType.INT32, 0)
    names, views = list(node.inputs[2:]), list(op.epilogue.views)
    if bias is not None:
        names = [state.add_constant(bias.astype(np.int32), f"{node.inputs[2]}.integers")]
        views = [column]
        total = call("Add", total, Input(DType.INT32, 1))
    if scale.size == 1:
        factor: Expr = const(float(np.float32(scale.reshape(())[()])), DType.FLOAT)
    else:
        rows, columns = scale.shape
        steps = (columns if rows > 1 else 0, int(columns > 1))
        names.append(state.add_constant(scale.astype(np.float32), f"{node.outputs[0]}.scale"))
        views.append(View((*(0,) * (rank - 2), *steps)))
        factor = Input(DType.FLOAT, len(names))
    scaled = call("Mul", cast(total, DType.FLOAT), factor)
    if bias is not None:
        return scaled, tuple(names), tuple(views)
    types = {i.index: i.dtype for i in operands_of(op.epilogue.expr)}
    expr = substitute(op.epilogue.expr, lambda k: Input(types[k], k) if k else scaled)
    return expr, tuple(names), tuple(views)
