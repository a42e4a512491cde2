"""Store in 16 bits what is rounded to so many and read by products: tensor cores multiply it as is.

No number changes. `read_halves` makes the products read the stored values then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from atc.dims import is_dynamic
from atc.ir.expr import Call, Expr, Input, cast
from atc.ir.graph import Array, DType, Graph, Node, Op, TensorType, captured, reads
from atc.ir.ops import Attention, Conv, Epilogue, Map, MatMul, Reduce
from atc.ir.view import dense
from atc.passes.canonical.simplify_matmul import read_through
from atc.passes.layout.store_bf16 import reading


def store_halves(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    """Narrow what is rounded, or moved and widened, where all that reads it can take it so."""
    rounded = _rounded(graph)
    if not rounded:
        return graph
    makers = {name: node for node in graph.nodes for name in node.outputs}
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(reads(node)):
            readers.setdefault(name, []).append(node)
    constants = {**outer, **graph.constants}

    def is_read(node: Node, index: int, half: DType) -> bool:
        """Return whether a product reads an operand in 16 bits anyway."""
        name = node.inputs[index]
        maker = makers.get(name)
        if maker is not None:
            return _is_read_through(graph, node, index, maker, half)
        return _is_exact(constants.get(name), half)

    kept = {
        name for name, expr in rounded.items() for node in readers.get(name, ())
        if name in _multiplied(node)
        and not is_read(node, node.inputs.index(name), expr.dtype)
    }  # fmt: skip

    def takes(node: Node, name: str) -> bool:
        """Return whether a node can read a value as stored then, with the others of a product."""
        multiplied, half = _multiplied(node), rounded[name].dtype
        expressions = [node.inputs[k] for k in _widened(node)] if _result(node.op) else []
        if (*multiplied, *expressions).count(name) != [*reads(node)].count(name):
            return False
        return name not in multiplied or all(
            (n in kept and rounded[n].dtype is half) or is_read(node, k, half)
            for k, n in enumerate(multiplied)
        )

    while wrong := {n for n in kept if not all(takes(node, n) for node in readers[n])}:
        kept -= wrong
    return _stored(graph, {n: rounded[n] for n in kept})


def _rounded(graph: Graph) -> dict[str, Expr]:
    """Return the expressions in 16 bits of results that nodes widen to floats at last."""
    inside = {n for node in graph.nodes for g in node.op.subgraphs() for n in captured(g)}
    found = {}
    for node in graph.nodes:
        match _result(node.op):
            case Call(dtype=DType.FLOAT, fn="Cast", args=(expr,)):
                if expr.dtype.is_half and len(node.outputs) == 1:
                    found[node.outputs[0]] = expr
    inside |= {*graph.ends}
    return {n: e for n, e in found.items() if n not in inside and not is_dynamic(graph.types[n])}


def _result(op: Op) -> Expr | None:
    """Return the expression of what a node stores, where it has one."""
    match op:
        case Map():
            return op.expr
        case Attention():
            return op.result.expr
        case _:
            epilogue = getattr(op, "epilogue", None)
            return None if epilogue is None else epilogue.expr


def _multiplied(node: Node) -> Sequence[str]:
    """Return the operands of a product of floats."""
    op = node.op
    if isinstance(op, Attention):
        return node.inputs[:3]
    floats = isinstance(op, MatMul | Conv) and op.accumulator is DType.FLOAT
    return node.inputs[:2] if floats else ()


def _widened(node: Node) -> range:
    """Return the indices of the operands that a node's expressions read."""
    op = node.op
    if isinstance(op, Map | Attention):
        return range(3 if isinstance(op, Attention) else 0, len(node.inputs))
    first = len(node.inputs) - len(op.epilogue.views) if hasattr(op, "epilogue") else 0
    return range(0 if isinstance(op, Reduce) else first, len(node.inputs))


def _is_read_through(graph: Graph, node: Node, index: int, maker: Node, half: DType) -> bool:
    """Return whether a product can read what its operand is only cast from."""
    op = maker.op
    if not isinstance(op, Map) or op.expr != cast(Input(half, 0), DType.FLOAT) or op.coordinates:
        return False
    if isinstance(node.op, MatMul | Attention):
        return read_through(node.op, index, op.shape, op.views) is not None
    same = graph.types[maker.inputs[0]].shape == graph.types[maker.outputs[0]].shape
    return same and op.views[0] == dense(op.shape)


def _is_exact(constant: Array | None, half: DType) -> bool:
    if constant is None or constant.dtype != np.float32:
        return False
    with np.errstate(over="ignore"):
        stored = constant.astype(half.numpy).astype(np.float32)
    return np.array_equal(stored, constant, equal_nan=True)


def _stored(graph: Graph, kept: Mapping[str, Expr]) -> Graph:
    """Return the graph with these values narrowed; products read them through a cast."""
    types, nodes = dict(graph.types), list[Node]()
    for name, expr in kept.items():
        types[f"{name}.wide"] = types[name]
        types[name] = TensorType(expr.dtype, types[name].shape)
    for node in graph.nodes:
        inputs = tuple(
            f"{n}.wide" if n in kept and k < len(_multiplied(node)) else n
            for k, n in enumerate(node.inputs)
        )
        nodes.append(replace(node, op=_typed(node, kept), inputs=inputs))
        for name in kept.keys() & {*node.outputs}:
            half, flat = types[name].dtype, (prod(types[name].shape),)  # any view reads through
            wide = Map(flat, cast(Input(half, 0), DType.FLOAT), (dense(flat),))
            nodes.append(Node(wide, (name,), (f"{name}.wide",), node.origin))
    return replace(graph, nodes=tuple(nodes), types=types)


def _typed(node: Node, kept: Mapping[str, Expr]) -> Op:
    """Return a node's op that reads and stores these values narrowed."""
    op: Any = node.op
    expr = kept.get(node.outputs[0]) or _result(op)
    if expr is None:
        return node.op

    count = len(node.inputs)

    def narrowed(first: int, last: int) -> dict[int, DType]:
        listed = enumerate(node.inputs[first:last])
        return {k: kept[name].dtype for k, name in listed if name in kept}

    def over(epilogue: Epilogue, expr: Expr, last: int) -> Epilogue:
        behind = narrowed(last - len(epilogue.views), last)
        read = reading(expr, {1 + k: half for k, half in behind.items()})
        return replace(epilogue, expr=read)

    if isinstance(op, Map):
        return replace(op, expr=reading(expr, narrowed(0, len(node.inputs))))
    if isinstance(op, Attention):
        split = 3 + len(op.scores.views)
        scores, result = over(op.scores, op.scores.expr, split), over(op.result, expr, count)
        return replace(op, scores=scores, result=result)
    if isinstance(op, Reduce):
        op = replace(op, expr=reading(op.expr, narrowed(0, len(op.views))))
    return replace(op, epilogue=over(op.epilogue, expr, count))  # type: ignore[no-any-return]
