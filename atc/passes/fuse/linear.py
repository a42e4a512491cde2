"""Matrices and biases of linear layers, for passes that combine such layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atc.ir.expr import Call, Input
from atc.ir.graph import Array, DType, Node, Op
from atc.ir.ops import Conv, Epilogue
from atc.passes.rewriting import Rewriting

FLOAT = DType.FLOAT


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
