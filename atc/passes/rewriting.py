"""The framework of passes: one walk over the nodes, each of which a rule may replace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from atc.dims import decided
from atc.ir.expr import Expr, operands_of, renumber
from atc.ir.graph import Array, DType, Graph, Node, Op, TensorType, prune, reads, type_of
from atc.ir.ops import Reshape
from atc.ir.view import View


def fresh_name(taken: Mapping[str, object], hint: str) -> str:
    """Return the hint, with a number appended if that name is taken."""
    name, n = hint, 0
    while name in taken:
        n += 1
        name = f"{hint}.{n}"
    return name


@dataclass
class Rewriting:
    """A graph being rewritten: the node that computes each value, and how many read it."""

    graph: Graph
    outer: Mapping[str, Array]
    """Constants of the enclosing graphs."""
    producers: dict[str, Node] = field(default_factory=dict)
    readers: dict[str, int] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    position: dict[str, int] = field(default_factory=dict)
    """The position in the order of the node that computes each value."""

    def constant(self, name: str) -> Array | None:
        """Return a constant's array, or None for a computed value."""
        array = self.constants.get(name)
        return self.outer.get(name) if array is None else array

    def add_constant(self, array: Array, hint: str) -> str:
        """Add a constant and return its name."""
        name = fresh_name(self.types, hint)
        self.constants[name] = np.ascontiguousarray(array)
        self.types[name] = type_of(self.constants[name])
        return name

    def emit(
        self, op: Op, inputs: Sequence[str], type_: TensorType, like: Node, suffix: str
    ) -> str:
        """Add a node before the one being rewritten, `like`, and return its result's name."""
        return self.emit_all(op, inputs, {suffix: type_}, like)[0]

    def emit_all(
        self, op: Op, inputs: Sequence[str], types: Mapping[str, TensorType], like: Node
    ) -> tuple[str, ...]:
        """Add a node of several results, whose types are given by their names' suffixes."""
        names: list[str] = []
        for suffix, type_ in types.items():
            names.append(fresh_name(self.types, f"{like.outputs[0]}.{suffix}"))
            self.types[names[-1]] = type_
        node = Node(op, tuple(inputs), tuple(names), like.origin)
        self.nodes.append(node)
        for name in names:
            self.producers[name] = node
            self.position[name] = len(self.nodes)
            self.readers[name] = 1
        return node.outputs

    def only_reader(self, name: str) -> bool:
        """Return whether a single node reads the value and it is no output of the graph."""
        return self.readers.get(name, 0) == 1

    def maker_for_one(self, name: str) -> Node | None:
        """Return the node that computes a value only for one reader, seen through reshapes."""
        while self.only_reader(name):
            maker = self.producers.get(name)
            if maker is None or not isinstance(maker.op, Reshape):
                return maker
            (name,) = maker.inputs
        return None


Rule = Callable[[Rewriting, Node], Node]
"""Returns the node itself, or one with the same outputs that replaces it."""


def rewrite(graph: Graph, rule: Rule, outer: Mapping[str, Array]) -> Graph:
    """Apply a rule to every node in order, then drop nodes that nothing reads any more."""
    state = Rewriting(graph, outer, types=dict(graph.types), constants=dict(graph.constants))
    for node in graph.nodes:
        for name in set(reads(node)):
            state.readers[name] = state.readers.get(name, 0) + 1
    for name in graph.outputs:
        state.readers[name] = state.readers.get(name, 0) + 1
    changed = False
    for node in graph.nodes:
        # A rewriting that is right for only some shapes of a range is left out.
        new = decided(partial(rule, state, node)) or node
        changed = changed or new is not node
        state.nodes.append(new)
        for name in new.outputs:
            state.producers[name] = new
            state.position[name] = len(state.nodes)
    if not changed:
        return graph
    rewritten = replace(
        graph, nodes=tuple(state.nodes), types=state.types, constants=state.constants
    )
    return prune(rewritten)


def merge_origin(*nodes: Node) -> tuple[str, ...]:
    """Return the model's node names of several nodes, in order, once each."""
    return tuple(dict.fromkeys(name for node in nodes for name in node.origin))


Operand = tuple[str, View]
"""What an Input reads: a value through a view, or under the name '' the view's coordinate."""


def operand(k: int, names: Sequence[str], views: Sequence[View]) -> Operand:
    """Return what Input(k) reads; views beyond the names are coordinates."""
    return (names[k] if k < len(names) else "", views[k])


def numbered(operands: Iterable[Operand], first: int = 0) -> dict[Operand, int]:
    """Assign numbers to operands from `first` on, each once, coordinates after all others."""
    distinct = dict.fromkeys(operands)
    ordered = sorted(distinct, key=lambda o: not o[0])
    return {o: k for k, o in enumerate(ordered, first)}


def zero_points(state: Rewriting, x: str, zero: int, dtype: DType) -> tuple[str, ...]:
    """Return the operands of a Conv for the zero point of x and none of w; none where it is 0."""
    if not zero:
        return ()
    return state.add_constant(np.asarray(zero, dtype.numpy), f"{x}.zero"), ""


def distinct_operands(
    expr: Expr, names: Sequence[str], views: Sequence[View], first: int = 0
) -> tuple[Expr, tuple[str, ...], tuple[View, ...]]:
    """Assign new numbers to operands so that each (value, view) occurs once and all are read.

    Input(k), k >= first, is `names[k - first]` through `views[k - first]`; views beyond the names
    are coordinates and stay after the operands. Inputs below `first` are unchanged.
    """
    read = {
        k: operand(k - first, names, views) for i in operands_of(expr) if (k := i.index) >= first
    }
    number = numbered(read.values(), first)
    expr = renumber(expr, {k: number[o] for k, o in read.items()})
    return expr, tuple(name for name, _ in number if name), tuple(view for _, view in number)
