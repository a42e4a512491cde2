"""Make products read 16-bit floats as they are stored, where a kernel multiplies those."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from atc.ir.expr import Call, Input
from atc.ir.graph import DType, Node
from atc.ir.ops import Attention, Conv, Map, MatMul
from atc.ir.view import dense
from atc.passes.canonical.simplify_matmul import read_through
from atc.passes.rewriting import Rewriting, merge_origin


def read_halves(state: Rewriting, node: Node) -> Node:
    """Read what both operands of a product are cast from, or constants exact in that type."""
    op = node.op
    if not isinstance(op, MatMul | Conv | Attention):
        return node
    if not isinstance(op, Attention) and op.accumulator is not DType.FLOAT:
        return node
    count = 3 if isinstance(op, Attention) else 2
    casts = [_cast(state, name) for name in node.inputs[:count]]
    types = {state.types[each.inputs[0]].dtype for each in casts if each is not None}
    if len(types) != 1:
        return node
    (dtype,), names, origins = types, [], [node]
    refined: MatMul | Conv | Attention | None
    for index, (name, cast) in enumerate(zip(node.inputs[:count], casts, strict=True)):
        if cast is None:
            constant = state.constant(name)
            if constant is None or constant.dtype != np.float32:
                return node
            with np.errstate(over="ignore"):
                stored = constant.astype(dtype.numpy)
            if not np.array_equal(stored.astype(np.float32), constant, equal_nan=True):
                return node
            names.append(state.add_constant(stored, f"{name}.{dtype.label}"))
            continue
        assert isinstance(cast.op, Map)
        if isinstance(op, MatMul | Attention):
            refined = read_through(op, index, cast.op.shape, cast.op.views)
        else:
            same = state.types[cast.inputs[0]].shape == state.types[name].shape
            refined = op if same and cast.op.views[0] == dense(cast.op.shape) else None
        if refined is None:
            return node
        op = refined
        names.append(cast.inputs[0])
        origins.insert(0, cast)
    inputs = (*names, *node.inputs[count:])
    return replace(node, op=op, inputs=inputs, origin=merge_origin(*origins))


def _cast(state: Rewriting, name: str) -> Node | None:
    """Return the node that computes a value by a cast from 16-bit floats alone."""
    source = state.producers.get(name)
    if source is None or not isinstance(source.op, Map) or len(source.inputs) != 1:
        return None
    if len(source.op.views) != 1 or source.op.coordinates:
        return None
    half = state.types[source.inputs[0]].dtype
    cast = Call(DType.FLOAT, "Cast", (Input(half, 0),))
    return source if half.is_half and source.op.expr == cast else None
