"""Matrices and biases of linear layers, for passes that combine such layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atc.ir.expr import Call, Input
from atc.ir.graph import Array, DType, Node
from atc.ir.ops import Conv, Epilogue
from atc.passes.rewriting import Rewriting

FLOAT = DType.FLOAT


def pointwise_filters(state: Rewriting, node: Node) -> Array | None:
    """Return the known matrix [out, in] that a convolution multiplies each pixel by; None where it
    is another, or does anything else."""
    op = node.op
    if not isinstance(op, Conv) or op.accumulator is not FLOAT or op.group != 1:
        return None
    window, weights = op.window, state.constant(node.inputs[1])
    x, y = state.types[node.inputs[0]], state.types[node.outputs[0]]
    ones = all(n == 1 for n in (*window.kernel, *window.strides))
    if weights is None or weights.dtype != np.float32 or not ones or x.shape[2:] != y.shape[2:]:
        return None
    return None if any(window.pads) else weights.reshape(weights.shape[:2])


def only_adds_bias(epilogue: Epilogue, shape: Sequence[int], axis: int = 1) -> bool:
    """Return whether an epilogue only adds a number to each place of an axis, or nothing."""
    match epilogue.expr:
        case Input(index=0):
            return True
        case Call(fn="Add", args=(Input(index=a), Input(index=b))) if {a, b} == {0, 1}:
            strides = zip(epilogue.views[0].strides, shape, strict=True)
            return all(s == 0 or n == 1 for d, (s, n) in enumerate(strides) if d != axis)
    return False
