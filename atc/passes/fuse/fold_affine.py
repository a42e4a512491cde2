"""Fold a per-channel scale after Conv or MatMul into the weights (BatchNorm folding)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from atc.dims import is_dynamic
from atc.ir.expr import Const, Expr, Input, call, inputs_of, operands_of, rewritten, users_of
from atc.ir.graph import DType, Node
from atc.ir.ops import Conv, ConvTranspose, Epilogue, MatMul
from atc.ir.view import View
from atc.passes.fuse.epilogue import epilogue_space
from atc.passes.rewriting import Rewriting, distinct_operands

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Chain:
    """result = scale * Input(0) + shift, per channel; `top` is the expression it replaces."""

    scale: Vector
    shift: Vector
    top: Expr
    length: int


def fold_affine(state: Rewriting, node: Node) -> Node:
    """Multiply constant weights by the epilogue's leading per-channel scale, sum its shifts.

    The arithmetic is done in float64 and rounded once.
    """
    match node.op:
        case Conv(epilogue=epilogue, accumulator=DType.FLOAT | DType.DOUBLE):
            axis, weight_axis = 1, 0
        case ConvTranspose(epilogue=epilogue, group=1, accumulator=DType.FLOAT | DType.DOUBLE):
            axis, weight_axis = 1, 1
        case MatMul(epilogue=epilogue, accumulator=DType.FLOAT | DType.DOUBLE):
            axis, weight_axis = -1, -1
        case _:
            return node
    weights = state.constant(node.inputs[1])
    result = state.types[node.outputs[0]]
    space = epilogue_space(node, result.shape)
    if weights is None or not space:
        return node
    channel = axis % len(space)
    if is_dynamic(space[channel]):
        return node
    chain = _leading_chain(state, node, epilogue, space, channel)
    if chain is None or (chain.length < 2 and np.all(chain.scale == 1)):
        return node
    scaled = _scaled(node, weights, chain.scale, weight_axis)
    if scaled is None:
        return node
    return _replaced(state, node, epilogue, chain, scaled, space, channel)


def _leading_chain(
    state: Rewriting, node: Node, epilogue: Epilogue, space: tuple[int, ...], channel: int
) -> _Chain | None:
    """Follow Add, Sub, Mul and Div by per-channel constants upwards from Input(0)."""
    n = space[channel]
    scale, shift = np.ones(n), np.zeros(n)
    users = users_of(epilogue.expr)
    top: Expr = Input(_result_dtype(epilogue), 0)
    length = 0
    while len(users.get(top, ())) == 1:
        parent = users[top][0]
        if parent.fn not in ("Add", "Sub", "Mul", "Div") or parent.args[0] == parent.args[1]:
            break
        left = parent.args[0] == top
        value = _channel_constant(
            state, node, epilogue, parent.args[1 if left else 0], space, channel
        )
        if value is None or (parent.fn == "Div" and not left):
            break
        match parent.fn:
            case "Add":
                shift = shift + value
            case "Sub":
                scale, shift = (scale, shift - value) if left else (-scale, value - shift)
            case "Mul":
                scale, shift = scale * value, shift * value
            case "Div":
                scale, shift = scale / value, shift / value
        top, length = parent, length + 1
    finite = np.isfinite(scale).all() and np.isfinite(shift).all()
    return _Chain(scale, shift, top, length) if length and finite else None


def _result_dtype(epilogue: Epilogue) -> DType:
    found = (i.dtype for i in operands_of(epilogue.expr) if i.index == 0)
    return next(found, epilogue.expr.dtype)


def _channel_constant(
    state: Rewriting, node: Node, epilogue: Epilogue, e: Expr, space: tuple[int, ...], channel: int
) -> Vector | None:
    """Return the per-channel constant of an operand of the chain; None if it isn't one."""
    if isinstance(e, Const):
        return np.full(space[channel], float(e.value))
    if not isinstance(e, Input) or e.index == 0:
        return None
    first = len(node.inputs) - len(epilogue.views)
    array = state.constant(node.inputs[first + e.index - 1])
    view = epilogue.views[e.index - 1]
    varies = [d for d, (s, n) in enumerate(zip(view.strides, space, strict=True)) if s and n != 1]
    if array is None or any(d != channel for d in varies):
        return None
    steps = view.offset + np.arange(space[channel]) * view.strides[channel]
    return array.reshape(-1)[steps].astype(np.float64)


def _scaled(
    node: Node, weights: npt.NDArray[np.generic], scale: Vector, axis: int
) -> npt.NDArray[np.generic] | None:
    if np.all(scale == 1):
        return weights
    wide = weights.astype(np.float64)
    if isinstance(node.op, MatMul):
        op = node.op
        strides, k = op.b_view.strides, op.k
        plain = all(s == 0 for s in strides[:-2]) and op.b_view.offset == 0
        if plain and weights.size == k * op.n and strides[-2:] == (op.n, 1):
            return (wide.reshape(k, op.n) * scale).reshape(weights.shape).astype(weights.dtype)
        if plain and weights.size == k * op.n and strides[-2:] == (1, k):
            return (
                (wide.reshape(op.n, k) * scale[:, None])
                .reshape(weights.shape)
                .astype(weights.dtype)
            )
        return None
    shape = [1] * weights.ndim
    shape[axis] = -1
    return (wide * scale.reshape(shape)).astype(weights.dtype)


def _replaced(
    state: Rewriting, node: Node, epilogue: Epilogue, chain: _Chain,
    weights: npt.NDArray[np.generic], space: tuple[int, ...], channel: int,
) -> Node:  # fmt: skip
    """Return the node with new weights and one shift operand in place of the chain."""
    first = len(node.inputs) - len(epilogue.views)
    dtype = _result_dtype(epilogue)
    shift = state.add_constant(chain.shift.astype(dtype.numpy), f"{node.outputs[0]}.shift")
    position = 1 + len(epilogue.views)
    new = call("Add", Input(dtype, 0), Input(dtype, position))
    expr = rewritten(epilogue.expr, known={chain.top: new})
    view = View(tuple(1 if d == channel else 0 for d in range(len(space))))
    names = (*node.inputs[first:], shift)
    expr, extra, views = distinct_operands(expr, names, (*epilogue.views, view), 1)
    heavy = list(node.inputs[:first])
    if weights is not state.constant(heavy[1]):
        heavy[1] = state.add_constant(weights, f"{heavy[1]}.scaled")
    assert all(k <= len(extra) for k in inputs_of(expr))
    op = replace(node.op, epilogue=Epilogue(expr, views))  # type: ignore[type-var]
    return replace(node, op=op, inputs=(*heavy, *extra))
