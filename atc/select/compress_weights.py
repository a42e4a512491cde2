"""Compress weights without loss: constants that float16 or bfloat16 represents exactly.

Such are the weights of 16-bit models, and those that a precision mode has rounded. Arithmetic stays
in float32: kernels widen a vector of weights when they load it, and what is gathered from a table
is widened behind it. Nodes keep floats where these are faster by more than the memory is worth, and
where a kernel packs 16-bit weights itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from atc.backends.kernel import Workload, workload_of
from atc.backends.target import Target
from atc.dims import max_value
from atc.ir.expr import Input, cast
from atc.ir.graph import Array, DType, Graph, Node, TensorType
from atc.ir.ops import ConvBlocked, Map, MatMul
from atc.ir.ops.data import Gather
from atc.ir.ops.grouped import GroupedMatMul
from atc.ir.verify import verify
from atc.ir.view import dense
from atc.passes import Observer
from atc.passes.rewriting import Rewriting, rewrite
from atc.select.cost import estimate
from atc.select.select import Limits, candidates

LEAST = 1024
"""The fewest weights of a node that are worth a kernel of its own."""

UNUSED = 0x1FFF
"""The bits of a float32 that are 0 if float16 represents it."""


def compress_weights(graph: Graph, target: Target, limits: Limits, observe: Observer) -> Graph:
    """Return the graph with 16-bit weights wherever they pay off, verified and observed."""
    made: dict[tuple[str, DType], str] = {}

    def rule(state: Rewriting, node: Node) -> Node:
        gathers = isinstance(node.op, Gather)
        numbers = _table(state, node) if gathers else _weights(state, node)
        dtype = None if numbers is None else _narrowest(numbers)
        if numbers is None or dtype is None:
            return node
        if not gathers and not _pays(graph, node, dtype, target, limits):
            return node
        name = node.inputs[0 if gathers else 1]
        key = name, dtype
        if key not in made:
            made[key] = state.add_constant(numbers.astype(dtype.numpy), f"{name}.{dtype.label}")
        if gathers:
            return _gathered(state, node, made[key])
        return replace(node, inputs=(node.inputs[0], made[key], *node.inputs[2:]))

    stored = rewrite(graph, rule, {})
    verify(stored, "compress_weights")
    observe("compress_weights", stored)
    return stored


def _weights(state: Rewriting, node: Node) -> Array | None:
    """Return the constant floats that a product of floats has as its second operand."""
    op = node.op.product if isinstance(node.op, GroupedMatMul) else node.op
    if not isinstance(op, ConvBlocked | MatMul):
        return None
    x, w = (state.types[name].dtype for name in node.inputs[:2])
    floats = (x is DType.FLOAT or x.is_half) and w is DType.FLOAT
    weights = state.constant(node.inputs[1])
    return weights if floats and weights is not None and weights.size >= LEAST else None


def _table(state: Rewriting, node: Node) -> Array | None:
    """Return the constant floats of which a node gathers fewer than there are."""
    table, least = state.constant(node.inputs[0]), max_value(state.types[node.outputs[0]].size)
    if table is None or state.types[node.inputs[0]].dtype is not DType.FLOAT:
        return None
    return table if table.size >= max(LEAST, least) else None


def _gathered(state: Rewriting, node: Node, table: str) -> Node:
    """Return the node that widens what is gathered from a table of 16-bit numbers."""
    shape, dtype = state.types[node.outputs[0]].shape, state.types[table].dtype
    inputs = (table, *node.inputs[1:])
    name = state.emit(node.op, inputs, TensorType(dtype, shape), node, dtype.label)
    widening = Map(shape, cast(Input(dtype, 0), DType.FLOAT), (dense(shape),))
    return Node(widening, (name,), node.outputs, node.origin)


def _narrowest(weights: Array) -> DType | None:
    """Return the 16-bit type that represents all of these floats, None if there is none."""
    bits = np.ascontiguousarray(weights).view(np.uint32).reshape(-1)
    if (bits[:LEAST] & UNUSED).any() or (bits & UNUSED).any():
        return None
    with np.errstate(over="ignore"):
        for dtype in (DType.FLOAT16, DType.BFLOAT16):
            same = weights.astype(dtype.numpy).astype(np.float32) == weights
            if bool(same.all()):
                return dtype
    return None


def _pays(graph: Graph, node: Node, dtype: DType, target: Target, limits: Limits) -> bool:
    w = workload_of(graph, node, graph.constants)
    weights = w.inputs[1]
    assert weights is not None
    narrow = TensorType(dtype, weights.shape)
    half = replace(w, inputs=(w.inputs[0], narrow, *w.inputs[2:]))
    own = limits.of(node)
    wide = _best(w, target, own)
    if wide is None or wide[1] != "float32":
        return False
    least = _best(half, target, own)
    saved = weights.nbytes - narrow.nbytes
    worth = own.weight_price * saved
    return least is not None and least[0] <= wide[0] + worth


def _best(w: Workload, target: Target, limits: Limits) -> tuple[float, str] | None:
    """Return the least estimated cost of a workload, and the precision of that kernel."""
    costs = [
        (estimate(c, w, target, limits.weight_price), c.kernel.precision)
        for c in candidates(w, target, limits)
    ]
    return min(costs, default=None)
