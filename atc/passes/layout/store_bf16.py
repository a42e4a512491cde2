"""Stores tensors between products in bfloat16, where that is allowed and saves time.

A value is rounded by the expression that makes it and widened by those that read it; products that
would round it anyway multiply it as it is. What is only moved keeps its type: such values are taken
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from atc.dims import is_dynamic
from atc.ir.expr import Call, Expr, Input, cast, operands_of, substitute
from atc.ir.graph import Array, DType, Graph, Node, Op, TensorType, reads
from atc.ir.ops import (
    Attention,
    Conv,
    ConvBlocked,
    Map,
    MatMul,
    Normalize,
    NormalizeBlocked,
    Pool,
    Reduce,
    Reshape,
    Softmax,
    SubView,
)
from atc.ir.ops.data import Concat
from atc.ir.ops.sampling import Resample
from atc.passes.layout.costs import RATE, Task
from atc.passes.layout.held_memory import Rows

FLOAT = DType.FLOAT

NARROWING, ROUNDING = 0.5, 1.5
"""Cycles to round a vector that is stored, or to widen one that is read as floats; and to round it
and make floats of it again."""
NEAR_RATE = 48.0
"""Bytes per cycle to and from the second cache, where a loop does little else."""
VECTOR = 64
"""Bytes of a vector."""


@dataclass(frozen=True)
class KernelCost:
    """The cost of a node with the best of its kernels.

    `cycles` are None where nobody knows; `vectors`: not a portable loop; `bf16`: multiplies that;
    `scratch`: the bytes that it needs beside.
    """

    cycles: float | None
    vectors: bool
    bf16: bool
    scratch: int = 0


@dataclass(frozen=True)
class Storing:
    """The terms on which values are stored in 16 bits, by kernels and options.

    The cost of a node that is computed so, whether its results may be rounded to bfloat16, and
    whether its operands mustn't; `bf16`: whether any. `near`: the bytes of a value up to
    which it stays in the second cache; `cascaded`: the values of which cascades hold rows.
    """

    kernel_cost: Callable[[Node, Task], KernelCost | None]
    may_round: Callable[[Node], bool]
    keeps: Callable[[Node], bool]
    bf16: bool = True
    near: int = 0
    cascaded: Callable[[Graph, Mapping[str, Array]], Mapping[str, Rows]] = lambda graph, outer: {}


def store_bf16(
    graph: Graph, outer: Mapping[str, Array], storing: Storing | None
) -> Graph:
    """Store in bfloat16 all values for which that costs less than it saves."""
    if storing is None or not storing.bf16:
        return graph
    state = State(graph, outer, storing, dict(graph.types))
    for group in groups(graph):
        if state.allowed(group) and state.gain(group) > 0:
            state.types = state.narrowed(group)
    return state.stored()


# ---- what may be stored --------------------------------------------------------------------------


def moves(node: Node) -> bool:
    """Return whether results are values of the operands, in the same type."""
    match node.op:
        case Reshape() | SubView() | Concat():
            return True
        case Pool():
            return node.op.how == "Max" and len(node.outputs) == 1
        case Map():
            return node.op.is_movement
        case _:
            return False


def _multiplied(node: Node) -> tuple[str, ...]:
    """Return the operands of a product that kernels may round."""
    match node.op:
        case ConvBlocked():
            return node.inputs[:1]
        case MatMul():
            return node.inputs[:2]
        case _:
            return ()


def taken(node: Node) -> tuple[str, ...]:
    """Return the operands that some kernel computes with as they are stored, besides those of
    expressions."""
    match node.op:
        case Conv() | ConvBlocked() | MatMul() | Softmax() | Normalize() | NormalizeBlocked():
            return node.inputs[:1]
        case Resample():
            return node.inputs[:1]
        case Attention():
            return node.inputs[:3]
        case _:
            return ()


def widened(node: Node) -> tuple[str, ...]:
    """Return the operands that a node's expressions read."""
    match node.op:
        case ConvBlocked() | MatMul():
            return node.inputs[2:]
        case Conv():
            return node.inputs[node.op.operands :]
        case Softmax() | Normalize() | NormalizeBlocked():
            return node.inputs[1:]
        case Attention():
            return node.inputs[3:]
        case Map():
            return node.inputs
        case Reduce():
            return node.inputs[: len(node.op.views)]
        case _:
            return ()


def groups(graph: Graph) -> Iterator[tuple[str, ...]]:
    """Yield the floats that nodes compute, those together that are of one type in any case."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    for node in graph.nodes:
        for name in node.inputs if moves(node) else ():
            leader[find(name)] = find(node.outputs[0])
    groups: dict[str, list[str]] = {}
    for name in (*graph.inputs, *graph.constants, *(o for n in graph.nodes for o in n.outputs)):
        groups.setdefault(find(name), []).append(name)
    yield from map(tuple, groups.values())


@dataclass
class State:
    """The types so far, and who makes and reads what; `half` is the type to store values in."""

    graph: Graph
    outer: Mapping[str, Array]
    storing: Storing
    types: dict[str, TensorType]
    half: DType = DType.BFLOAT16
    near: int = 0
    """The bytes of floats up to which values stay in the second cache."""
    exact: bool = False
    """Whether values in floats are rounded, too."""
    passing: Mapping[str, Rows] = field(default_factory=dict)
    """The values of which cascades hold rows, which stay there, too."""
    makers: dict[str, Node] = field(default_factory=dict)
    readers: dict[str, list[Node]] = field(default_factory=dict)
    _leading: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            self.makers.update({o: node for o in node.outputs})
            for name in dict.fromkeys(reads(node)):
                self.readers.setdefault(name, []).append(node)

    def allowed(self, group: tuple[str, ...]) -> bool:
        """Return whether rounding the values of a group leaves no mark where none is allowed."""
        return all(map(self._storable, group)) and (
            all(map(self._rounded_anyway, group)) or all(map(self._may_round, group))
        )

    def _storable(self, name: str) -> bool:
        """Return whether a value is one of floats that somebody computes for products to read."""
        type_, node = self.types[name], self.makers.get(name)
        if node is None or type_.dtype is not FLOAT or is_dynamic(type_.shape) or not type_.size:
            return False
        computed = isinstance(node.op, ConvBlocked | MatMul | Map) or moves(node)
        return computed and len(node.outputs) == 1 and self._leads_on(name)

    def _leads_on(self, name: str) -> bool:
        """Return whether all that comes of a value is read by products in the end."""
        if name not in self._leading:
            readers = self.readers.get(name, ())
            ends = name in self.graph.ends or not readers
            self._leading[name] = not ends and all(self._reads_on(n, name) for n in readers)
        return self._leading[name]

    def _reads_on(self, node: Node, name: str) -> bool:
        able = (*_multiplied(node), *widened(node)).count(name)
        if self.storing.keeps(node) or not moves(node) and able < [*reads(node)].count(name):
            return False
        return bool(_multiplied(node)) or all(map(self._leads_on, node.outputs))

    def _rounded_anyway(self, name: str) -> bool:
        """Return whether all readers would round a value, so that no result changes."""
        return all(
            moves(n) or name not in widened(n) and self._multiplies(n) for n in self.readers[name]
        )

    def _multiplies(self, node: Node) -> bool:
        kernel_cost = self._kernel_cost(node, self.types)
        return kernel_cost is not None and kernel_cost.bf16

    def _may_round(self, name: str) -> bool:
        return moves(self.makers[name]) or self.storing.may_round(self.makers[name])

    # ---- what that saves -------------------------------------------------------------------------

    def narrowed(self, group: tuple[str, ...]) -> dict[str, TensorType]:
        """Return the types with a group in 16 bits."""
        return {**self.types, **{n: TensorType(self.half, self.types[n].shape) for n in group}}

    def widened(self, group: tuple[str, ...]) -> dict[str, TensorType]:
        """Return the types with a group in floats."""
        return {**self.types, **{n: TensorType(FLOAT, self.types[n].shape) for n in group}}

    def is_narrow(self, group: tuple[str, ...]) -> bool:
        """Return whether a group is stored in 16 bits."""
        return self.types[group[0]].dtype is self.half

    def stored(self) -> Graph:
        """Return the graph with values of these types."""
        graph, types = self.graph, self.types
        if types == graph.types:
            return graph
        nodes = tuple(replace(n, op=typed(n, graph.types, types)) for n in graph.nodes)
        return replace(graph, nodes=nodes, types=types)

    def cycles(self, group: tuple[str, ...]) -> float:
        """Return the cycles of the nodes that make and read a group, as it is stored."""
        found = (self._kernel_cost(node, self.types) for node in self.touched(group))
        return sum(cost.cycles or 0.0 for cost in found if cost is not None)

    def is_cheaper(self, node: Node, other: Node, cycles: float) -> bool:
        """Return whether vectors compute a node, by less than so many cycles more than another."""
        new, old = self._kernel_cost(node, self.types), self._kernel_cost(other, self.types)
        if new is None or not new.vectors or old is None:
            return False
        return (new.cycles or 0.0) < (old.cycles or 0.0) + cycles

    def scratch(self, node: Node) -> int:
        """Return the bytes that a node's kernel needs beside, for values as they are stored."""
        cost = self._kernel_cost(node, self.types)
        return 0 if cost is None else cost.scratch

    def touched(self, group: tuple[str, ...]) -> Iterable[Node]:
        """Return the nodes that make and read a group."""
        each = (n for name in group for n in (self.makers[name], *self.readers[name]))
        return {id(n): n for n in each}.values()

    def gain(self, group: tuple[str, ...]) -> float:
        """Return the cycles that storing a group in 16 bits saves; minus infinity: can't be."""
        return self._gain(group, self.types, self.narrowed(group))

    def gain_of_narrow(self, group: tuple[str, ...]) -> float:
        """Return the cycles that a group saves which is stored in 16 bits."""
        return self._gain(group, self.widened(group), self.types)

    def _gain(
        self, group: tuple[str, ...], old: Mapping[str, TensorType], types: Mapping[str, TensorType]
    ) -> float:
        total = 0.0
        for node in self.touched(group):
            if isinstance(node.op, SubView):  # a part of a value's memory, which nobody computes
                continue
            before, after = self._kernel_cost(node, old), self._kernel_cost(node, types)
            if before is None or after is None or after.vectors < before.vectors:
                return float("-inf")
            if before.bf16 and not after.bf16:  # whose time is another's
                return float("-inf")
            if before.cycles is not None and after.cycles is not None:
                total += before.cycles - after.cycles
        return total + sum(self._traffic(name, types) for name in group)

    def _traffic(self, name: str, types: Mapping[str, TensorType]) -> float:
        """Return the cycles by which half the bytes are written, and read, sooner."""
        size, maker = types[name].nbytes, self.makers[name]
        vectors = 2 * size / VECTOR
        slower = vectors * NARROWING
        stored = vectors * (ROUNDING - NARROWING) if self.exact else -slower
        total = 0.0 if moves(maker) else self._saved(name, size, maker) + stored
        for node in self.readers[name]:
            if not moves(node):
                own = name in taken(node)  # whose cost counts widening, if any
                total += self._saved(name, size, node) - (0 if own else slower)
        return total

    def _saved(self, name: str, size: int, node: Node) -> float:
        """Return the cycles in which so many bytes pass that a node needn't write, or read.

        Those that stay in the second cache hinder no kernel that has more to do.
        """
        if 2 * size > self.near and name not in self.passing:
            return size / RATE
        return size / NEAR_RATE if isinstance(node.op, Map) else 0.0

    def _kernel_cost(self, node: Node, types: Mapping[str, TensorType]) -> KernelCost | None:
        inputs = tuple(types[n] if n else None for n in node.inputs)
        outputs = tuple(types[n] for n in node.outputs)
        known = tuple(n in self.graph.constants or n in self.outer for n in node.inputs)
        op = typed(node, self.graph.types, types)
        return self.storing.kernel_cost(node, Task(op, inputs, outputs, known))


# ---- the nodes -----------------------------------------------------------------------------------


def typed(node: Node, old: Mapping[str, TensorType], new: Mapping[str, TensorType]) -> Op:
    """Return a node's op with expressions that read and store the new types."""
    op = node.op
    narrow = {n: new[n].dtype for n in (*node.inputs, *node.outputs)
              if n and old[n].dtype is not new[n].dtype}  # fmt: skip
    stored = narrow.get(node.outputs[0]) if node.outputs else None

    def places(names: Sequence[str], first: int) -> dict[int, DType]:
        return {first + k: narrow[name] for k, name in enumerate(names) if name in narrow}

    if not narrow:
        return op
    match op:
        case Map() if op.is_movement:
            return replace(op, expr=Input(new[node.outputs[0]].dtype, 0))
        case ConvBlocked() | MatMul():
            expr = _stored(reading(op.epilogue.expr, places(node.inputs[2:], 1)), stored)
            return replace(op, epilogue=replace(op.epilogue, expr=expr))
        case Conv() | Softmax() | Normalize() | NormalizeBlocked():
            behind = node.inputs[len(node.inputs) - len(op.epilogue.views) :]
            expr = _stored(reading(op.epilogue.expr, places(behind, 1)), stored)
            return replace(op, epilogue=replace(op.epilogue, expr=expr))
        case Attention():
            split = 3 + len(op.scores.views)
            scores = reading(op.scores.expr, places(node.inputs[3:split], 1))
            expr = _stored(reading(op.result.expr, places(node.inputs[split:], 1)), stored)
            return replace(
                op, scores=replace(op.scores, expr=scores), result=replace(op.result, expr=expr)
            )
        case Map():
            return replace(op, expr=_stored(reading(op.expr, places(node.inputs, 0)), stored))
        case Reduce():
            own = len(op.views)
            return replace(op, expr=reading(op.expr, places(node.inputs[:own], 0)))
        case _:
            return op


def reading(expr: Expr, places: Mapping[int, DType]) -> Expr:
    """Return an expression of which these operands are in 16 bits."""
    types = {i.index: i.dtype for i in operands_of(expr)}
    return substitute(
        expr,
        lambda k: cast(Input(places[k], k), FLOAT) if k in places else Input(types[k], k),
    )


def _stored(expr: Expr, half: DType | None) -> Expr:
    """Return an expression in a type of 16 bits, if any: rounded once."""
    match expr:
        case _ if half is None:
            return expr
        case Call(fn="Cast", args=(rounded,)) if rounded.dtype is half:
            return rounded
        case _:
            return cast(expr, half)
