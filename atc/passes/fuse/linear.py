"""Matrices and biases of linear layers, for passes that combine such layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from atc.ir.expr import Call, Expr, Input, call, substitute
from atc.ir.graph import Array, DType, Node, Op
from atc.ir.ops import Conv, Epilogue, MatMul
from atc.ir.view import View, gather_view
from atc.passes.rewriting import Rewriting, distinct_operands

FLOAT = DType.FLOAT
Vector = npt.NDArray[np.float64]


def is_pointwise(op: Op) -> bool:
    """Return whether an op is a convolution of each pixel of floats on its own, of all channels."""
    if not isinstance(op, Conv) or op.accumulator is not FLOAT or op.group != 1:
        return False
    window = op.window
    return all(n == 1 for n in (*window.kernel, *window.strides)) and not any(window.pads)


def pointwise_filters(state: Rewriting, node: Node) -> Array | None:
    """Return the known matrix [out, in] that a convolution multiplies each pixel by; None where it
    is another, or does anything else."""
    if not is_pointwise(node.op):
        return None
    weights = state.constant(node.inputs[1])
    x, y = state.types[node.inputs[0]], state.types[node.outputs[0]]
    if weights is None or weights.dtype != np.float32 or x.shape[2:] != y.shape[2:]:
        return None
    return weights.reshape(weights.shape[:2])


def only_adds_bias(epilogue: Epilogue, shape: Sequence[int], axis: int = 1) -> bool:
    """Return whether an epilogue only adds a number to each place of an axis, or nothing."""
    match epilogue.expr:
        case Input(index=0):
            return True
        case Call(fn="Add", args=(Input(index=a), Input(index=b))) if {a, b} == {0, 1}:
            strides = zip(epilogue.views[0].strides, shape, strict=True)
            return all(s == 0 or n == 1 for d, (s, n) in enumerate(strides) if d != axis)
    return False


def known_bias(
    state: Rewriting, node: Node, shape: Sequence[int], axis: int = 1
) -> Vector | None:
    """Return the numbers that a layer's epilogue adds along an axis, zeros where it adds nothing;
    None where they aren't known, or it does anything else."""
    assert isinstance(node.op, Conv | MatMul)
    epilogue = node.op.epilogue
    if not only_adds_bias(epilogue, shape, axis):
        return None
    if not epilogue.views:
        return np.zeros(shape[axis])
    (view,), array = epilogue.views, state.constant(node.inputs[2])
    if array is None or array.dtype != np.float32:
        return None
    along = View(view.strides[axis : axis + 1], view.offset)
    return gather_view(array, (shape[axis],), along).astype(np.float64)


def add_filters(state: Rewriting, node: Node, matrix: Array, hint: str) -> str:
    """Add filters [out, in] in the place of a pointwise convolution's and return their name."""
    rank = len(state.types[node.inputs[1]].shape) - 2
    shaped = matrix.reshape(*matrix.shape, *[1] * rank)
    return state.add_constant(shaped, f"{node.inputs[1]}.{hint}")


def with_terms(
    node: Node, op: Conv, terms: Sequence[tuple[str, View]]
) -> tuple[Conv, tuple[str, ...]]:
    """Return a convolution with more terms of the sum that its epilogue begins with, and the
    epilogue's operands."""
    names, views = zip(*terms, strict=True)
    first = 1 + len(op.epilogue.views)
    total = added(Input(FLOAT, 0), range(first, first + len(names)))
    expr = substitute(op.epilogue.expr, lambda k: Input(FLOAT, k) if k else total)
    known = (*op.epilogue.views, *views)
    expr, operands, views = distinct_operands(expr, (*node.inputs[2:], *names), known, 1)
    return replace(op, epilogue=Epilogue(expr, views)), operands


def added(first: Expr, numbers: Sequence[int]) -> Expr:
    """Return the sum of an expression and of operands of these numbers."""
    return reduce(lambda total, k: call("Add", total, Input(FLOAT, k)), numbers, first)
