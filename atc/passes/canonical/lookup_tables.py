"""Makes functions of one byte lookup tables: 256 results, computed when compiling.

A chain of elementwise nodes that begins at a tensor of bytes and ends in bytes, such as
DequantizeLinear, Sigmoid, Mul, QuantizeLinear, is a function of a byte. So it is one read of a
table, with the same bits on every machine. Steps that round alike everywhere (Relu, Clip,
HardSwish, another scale) stay arithmetic where the node before can do them too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from atc.ir.expr import Call, Expr, Input, call, functions_of, walk
from atc.ir.graph import Array, DType, Node
from atc.ir.ops import Map
from atc.ir.ops.blocked import BYTES
from atc.ir.view import View
from atc.passes.canonical.movements import whole_of
from atc.passes.evaluate import can_evaluate, evaluate
from atc.passes.rewriting import Rewriting, merge_origin

PLAIN = frozenset(
    ["Add", "Sub", "Mul", "Div", "Max", "Min", "Round", "Floor", "Ceil", "Abs", "Neg", "Sqrt"]
    + ["Cast", "CastSaturate"]
)
"""Steps that epilogues have and that give the same bits everywhere."""

LONGEST = 40
"""Nodes that are looked at for one table."""


def build_lookup_table(state: Rewriting, node: Node, always: bool = False) -> Node:
    """Replace a Map of bytes, with all that leads to it from one tensor of bytes, by a table.

    It does so `always`, or only where the node before can't compute as much.
    """
    op = node.op
    if not isinstance(op, Map) or op.expr.dtype not in BYTES:
        return node
    chain = _Chain(state, state.types[node.outputs[0]].size)
    values = None if reads_lookup_table(op.expr) else chain.values(node)
    if values is None or chain.source is None:
        return node
    if not always and chain.functions <= PLAIN and _joins(state, chain.source):
        return node
    table = state.add_constant(values, f"{node.outputs[0]}.table")
    dtype = state.types[chain.source].dtype
    found = call("Lookup", Input(op.expr.dtype, 1), Input(dtype, 0))
    new = Map((chain.size,), found, (View((1,)), View((0,), -lowest(dtype))))
    return Node(new, (chain.source, table), node.outputs, merge_origin(*reversed(chain.nodes)))


def _joins(state: Rewriting, name: str) -> bool:
    """Return whether arithmetic on a value can be part of the node that makes it."""
    maker = state.maker_for_one(name)
    op = None if maker is None else maker.op
    if isinstance(op, Map):
        return not op.is_movement and not reads_lookup_table(op.expr)
    return hasattr(op, "epilogue")


def reads_lookup_table(expr: Expr) -> bool:
    """Return whether an expression reads a table."""
    return "Lookup" in functions_of(expr)


def lowest(dtype: DType) -> int:
    """Return the least number of a byte's type, whose result is a table's first."""
    return 0 if dtype is DType.UINT8 else -128


@dataclass
class _Chain:
    """Elementwise nodes, last first, that follow from one tensor of bytes, element by element."""

    state: Rewriting
    size: int
    source: str | None = None
    visits: int = 0
    nodes: list[Node] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)

    def values(self, node: Node) -> Array | None:
        """Return a Map's results for all bytes, lowest first; None where it isn't of the kind."""
        op = node.op
        assert isinstance(op, Map)
        if op.coordinates or not node.inputs or not can_evaluate(op.expr):
            return None
        self.visits += 1
        if self.visits > LONGEST:
            return None
        self.nodes.append(node)
        calls = [e for e in walk(op.expr) if isinstance(e, Call)]
        self.functions |= {e.fn for e in calls}
        tables = [e.args[0] for e in calls if e.fn == "Lookup"]
        operands: list[Array] = []
        for k, (name, view) in enumerate(zip(node.inputs, op.views, strict=True)):
            array = self.state.constant(name)
            if array is not None and array.size == 1:
                array = np.full(256, array.reshape(()))
            elif array is None and view.offset == 0 and view.is_dense(op.shape):
                array = self._operand(name)
            elif Input(op.expr.dtype, k) not in tables:
                array = None
            if array is None:
                return None
            operands.append(array)
        return evaluate(op.expr, operands)

    def _operand(self, name: str) -> Array | None:
        """Return what a tensor of as many elements holds for all bytes."""
        name = whole_of(self.state.producers, name)
        maker = self.state.producers.get(name)
        if self.state.types[name].size != self.size:
            return None
        if maker is not None and isinstance(maker.op, Map):
            before = self.source, len(self.nodes), set(self.functions)
            array = self.values(maker)
            if array is not None:
                return array
            self.source, self.functions = before[0], before[2]
            del self.nodes[before[1] :]
        return self._source(name)

    def _source(self, name: str) -> Array | None:
        """Return all bytes, where they are the one operand that everything follows from."""
        dtype = self.state.types[name].dtype
        if dtype not in BYTES or self.source not in (None, name):
            return None
        self.source = name
        return np.arange(lowest(dtype), lowest(dtype) + 256).astype(dtype.numpy)
