"""Builds an `ir.Graph` node by node; the vocabulary that lowerings are written in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from atc.dims import (
    Dim,
    Symbol,
    broadcast_guards,
    broadcast_shapes,
    dim,
    is_dynamic,
    not_equal,
    upper_bound,
)
from atc.errors import InternalError, ModelError, UnsupportedError
from atc.ir.expr import Call, Expr, Input, cast, const, inputs_of, renumber, walk
from atc.ir.graph import (
    OWN,
    Array,
    Dequantization,
    DType,
    Graph,
    Node,
    Op,
    TensorType,
    captured,
    row_major,
    type_of,
)
from atc.ir.ops import If, Loop, Map, Reshape, WriteExtents
from atc.ir.ops.data import Concat, Gather, Pad, Scatter
from atc.ir.view import View, broadcast, dense, gather_view, simplify_loops
from atc.lower.growth import Caches
from atc.lower.strings import takes_strings

MOVEMENT = (Concat, Gather, If, Loop, Map, Pad, Reshape, Scatter)
CONVERSIONS = frozenset({"Cast", "CastSaturate", "Bitcast", "Where", "IsNaN", "IsInf"})
"""Ops and functions that take the types of 8 bits and fewer which no others compute with."""

Extents = npt.NDArray[np.object_]
"""An array of `int` and `Dim`."""

MAX_ELEMENTS = 1 << 33
"""A tensor larger than this is refused: no memory plan could hold it."""

MAX_PARTS = 4096
"""Elements of a sequence: each is a value of its own."""


@dataclass(frozen=True)
class CompositeValue:
    """A composite value: the elements of a sequence, known in number, or of an optional.

    `names` is None for an optional without a value. Those of a map are its keys [n] and its values
    [n], or [maps, n] for a sequence of maps. A stacked sequence is the rows of one tensor, whose
    number need not be known.
    """

    names: tuple[str, ...] | None
    dtype: DType | None = None
    is_map: bool = False
    is_stacked: bool = False


def moves(op: Op) -> bool:
    """Return whether an op takes the small types: moved, chosen and cast, not computed with."""
    computed = (
        e.fn
        for expr in vars(op).values()
        if isinstance(expr, Expr)
        for e in walk(expr)
        if isinstance(e, Call) and any(a.dtype.is_small for a in e.args)
    )
    return isinstance(op, MOVEMENT) and all(fn in CONVERSIONS for fn in computed)


class Builder:
    """A graph under construction. Values are named by strings; types and constants are known.

    A child builder (a subgraph's) sees the values of its parent. Every node that is emitted inside
    `origin(name)` carries that name of the user's model.
    """

    def __init__(self, parent: Builder | None = None) -> None:
        self.parent = parent
        self.copies: int = parent.copies if parent else 1
        """How often what is lowered now is written out, by the loops around it."""
        self.loops: int = parent.loops if parent else 0
        """How many loops are around it."""
        self.nodes: list[Node] = []
        self._makers: dict[str, Node] = {}
        self.given: tuple[str, ...] = ()
        """The inputs of a loop's body."""
        self._types: dict[str, TensorType] = {}
        self._constants: dict[str, Array] = {}
        self._quantization: dict[str, Dequantization] = {}
        self._parts: dict[str, CompositeValue] = {}
        self._origin: tuple[str, ...] = parent._origin if parent else ()
        self._declared: set[str] = parent._declared if parent else set()
        self._counter: Iterator[int] = parent._counter if parent else iter(range(1 << 62))
        self.symbols: list[Symbol] = parent.symbols if parent else []
        self._guards: dict[int, None] = {}
        """Extents that must be 0 where this graph runs."""
        self.warnings: list[str] = parent.warnings if parent else []
        self.caches: Caches = parent.caches if parent else Caches()
        self._extents: dict[str, Extents] = {}
        self._written: dict[str, str] = {}

    @contextmanager
    def tentative(self) -> Iterator[None]:
        """Take back the checks that a lowering has noted if it fails."""
        before = dict(self._guards)
        try:
            yield
        except Exception:
            self._guards = before
            raise

    @contextmanager
    def origin(self, name: str) -> Iterator[None]:
        """Mark the nodes emitted inside with the user's node name."""
        previous, self._origin = self._origin, (name,)
        try:
            yield
        finally:
            self._origin = previous

    def fresh(self, hint: str = "t") -> str:
        """Return a name that no other value has."""
        name = f"{hint}{OWN}{next(self._counter)}"
        return self.fresh(hint) if name in self._declared else name

    def declare(self, name: str, type_: TensorType) -> str:
        """Add a value that is given from outside (a graph input)."""
        if upper_bound(type_.size) > MAX_ELEMENTS:
            raise UnsupportedError(f"a tensor of {type_.size} elements is too large")
        self._types[name] = type_
        self._declared.add(name)
        return name

    def type(self, name: str) -> TensorType:
        """Return the type of a value of this graph or of an enclosing one."""
        if name in self._types:
            return self._types[name]
        if name in self._parts:
            raise ModelError("a sequence or empty optional is given where a tensor is needed")
        if self.parent is None:
            raise InternalError(f"value '{name}' has no type")
        return self.parent.type(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self.type(name).shape

    def maker(self, name: str) -> Node | None:
        """Return the node that computes a value of this graph or of an enclosing one, if any."""
        if name in self._makers:
            return self._makers[name]
        return self.parent.maker(name) if self.parent and name not in self._types else None

    def must_be_equal(self, a: int, b: int) -> None:
        """Note that two extents are the same where this graph runs, or the run ends."""
        self.must_be_zero(not_equal(a, b))

    def must_be_zero(self, guard: int) -> None:
        """Note that an extent is 0 where this graph runs, or the run ends."""
        if isinstance(guard, Dim):
            self._guards[guard] = None

    def value(self, name: str) -> Array | None:
        """Return a constant's array, or None when the value is computed at run time."""
        if name in self._constants:
            return self._constants[name]
        return self.parent.value(name) if self.parent and name not in self._types else None

    def symbol(self, label: str, lowest: int, highest: int, *, given: bool = False) -> int:
        """Add an extent that is known when the network runs."""
        self.symbols.append(Symbol(len(self.symbols), label, lowest, highest, given))
        return dim(self.symbols[-1])

    def broadcast(self, *shapes: Sequence[int]) -> tuple[int, ...]:
        """Return the shape to which all broadcast; what is open is checked when the network runs.

        Raises ValueError for shapes that never do.
        """
        self._guards.update(dict.fromkeys(broadcast_guards(*shapes)))
        return broadcast_shapes(*shapes)

    def extents(self, values: Extents, dtype: DType = DType.INT64) -> str:
        """Add integers that are extents: a constant if none varies, else computed where read."""
        if not any(isinstance(v, Dim) for v in values.reshape(-1)):
            return self.constant(values.astype(dtype.numpy))
        name = self.fresh("extents")
        self._extents[name] = values
        self._types[name] = TensorType(dtype, values.shape)
        return name

    def extents_of(self, name: str) -> Extents | None:
        """Return the integers and run-time extents that a value holds, None if it's no such."""
        if name in self._extents:
            return self._extents[name]
        return self.parent.extents_of(name) if self.parent and name not in self._types else None

    def _computed(self, name: str) -> str:
        """Return a value that holds extents as one that a node computes."""
        values = self.extents_of(name)
        if values is None:
            return name
        if name not in self._written:
            op = WriteExtents(tuple(values.reshape(-1)))
            self._written[name] = self.emit1(op, [], self.type(name))
        return self._written[name]

    def constant(self, array: Array, hint: str = "c") -> str:
        """Add a constant and return its name."""
        name = self.fresh(hint)
        array = np.ascontiguousarray(array).reshape(array.shape)
        self._constants[name] = array
        self._types[name] = type_of(array)
        return name

    def remember(self, name: str, grid: Dequantization) -> None:
        """Note how a constant was dequantized."""
        self._quantization[name] = grid

    def grid(self, name: str) -> Dequantization | None:
        """Return how a constant was dequantized, None where it wasn't."""
        return self._quantization.get(name)

    @contextmanager
    def repeated(self, copies: int) -> Iterator[None]:
        """Mark what is lowered inside as the body of a loop that is written out so often."""
        before = self.copies, self.loops
        self.copies, self.loops = self.copies * max(copies, 1), self.loops + 1
        try:
            yield
        finally:
            self.copies, self.loops = before

    def sequence(self, names: Sequence[str], dtype: DType | None = None) -> str:
        """Add a sequence of values (of this element type, where there are none)."""
        if len(names) > MAX_PARTS:
            raise UnsupportedError(
                f"a sequence of {len(names)} tensors", hint=f"up to {MAX_PARTS} can be compiled"
            )
        return self._composite(CompositeValue(tuple(names), dtype))

    def stacked(self, rows: str) -> str:
        """Add the sequence of a tensor's rows."""
        return self._composite(CompositeValue((rows,), self.type(rows).dtype, is_stacked=True))

    def elements(self, parts: CompositeValue) -> tuple[str, ...]:
        """Return the elements of a sequence; UnsupportedError where only a run knows how many."""
        if not parts.is_stacked:
            return parts.names or ()
        (rows,) = parts.names or ()
        count, *shape = self.shape(rows)
        if is_dynamic(count) or count > MAX_PARTS:
            raise UnsupportedError(
                "a sequence that a loop makes, whose length is known only at run time",
                hint=f"pin the shapes with --input_shape, to {MAX_PARTS} elements at most",
            )
        view, size = row_major(shape), prod(shape)
        return tuple(self.view(rows, shape, View(view, k * size)) for k in range(count))

    def mapping(self, keys: str, values: str) -> str:
        """Add a map, or a sequence of maps, one for each row of `values`."""
        return self._composite(CompositeValue((keys, values), is_map=True))

    def nothing(self) -> str:
        """Add an optional without a value."""
        return self._composite(CompositeValue(None))

    def _composite(self, parts: CompositeValue) -> str:
        name = self.fresh("parts")
        self._parts[name] = parts
        return name

    def parts(self, name: str) -> CompositeValue | None:
        """Return what a sequence or an empty optional consists of, None for a tensor."""
        if name in self._parts:
            return self._parts[name]
        return self.parent.parts(name) if self.parent else None

    def emit(self, op: Op, inputs: Sequence[str], *types: TensorType) -> tuple[str, ...]:
        """Add a node and return its outputs' names; the op's own rules are checked."""
        inputs = [self._computed(i) for i in inputs]
        operand_types = tuple(self.type(i) if i else None for i in inputs)
        small = next((t for t in (*operand_types, *types) if t and t.dtype.is_small), None)
        if small and not moves(op):
            raise UnsupportedError(f"{op.kind} of {small}", hint="cast to float before")
        types_ = (*operand_types, *types)
        if any(t and t.dtype is DType.STRING for t in types_) and not takes_strings(op):
            raise UnsupportedError(f"{op.kind} of strings")
        try:
            op.check(operand_types, types)
        except ValueError as error:
            raise InternalError(f"{op.kind} of {self._origin}: {error}") from error
        outputs = tuple(self.declare(self.fresh(), t) for t in types)
        self.nodes.append(Node(op, tuple(inputs), outputs, self._origin))
        self._makers.update(dict.fromkeys(outputs, self.nodes[-1]))
        return outputs

    def emit1(self, op: Op, inputs: Sequence[str], type_: TensorType) -> str:
        """Add a node with one output and return its name."""
        return self.emit(op, inputs, type_)[0]

    # ---- elementwise and movement -------------------------------------------------------------

    def map(
        self,
        build: Callable[..., Expr],
        *inputs: str,
        shape: Sequence[int] | None = None,
        views: Sequence[View] | None = None,
        coordinates: Sequence[View] = (),
    ) -> str:
        """Compute `build(x0, x1, ..., coordinates...)` element by element.

        Operands are broadcast to a common shape (numpy's rules) unless `shape` and `views` are
        given. One-element constants become literals. Each coordinate is an INT64 affine value of
        the index.
        """
        if shape is None:
            shape = self.broadcast(*(self.shape(i) for i in inputs))
        if views is None:
            views = [broadcast(self.shape(i), shape) for i in inputs]
        args: list[Expr] = []
        kept: list[str] = []
        kept_views: list[View] = []
        for name, view in zip(inputs, views, strict=True):
            literal = self._literal(name)
            if literal is None:
                literal = Input(self.type(name).dtype, len(kept))
                kept.append(name)
                kept_views.append(view)
            args.append(literal)
        args += [Input(DType.INT64, len(kept) + k) for k in range(len(coordinates))]
        expr = build(*args)
        used = inputs_of(expr)  # the others are no operands of the node
        every = (*kept_views, *coordinates)
        if len(used) < len(every):
            expr = renumber(expr, {k: i for i, k in enumerate(used)})
        operands = [kept[k] for k in used if k < len(kept)]
        loops, (_, *merged) = simplify_loops(shape, [dense(shape), *(every[k] for k in used)])
        own = len(operands)
        op = Map(loops, expr, tuple(merged[:own]), tuple(merged[own:]))
        return self.emit1(op, operands, TensorType(expr.dtype, tuple(shape)))

    def _literal(self, name: str) -> Expr | None:
        array, dtype = self.value(name), self.type(name).dtype
        extents = self.extents_of(name)
        if extents is not None and extents.size == 1:
            return const(extents.item(), dtype)
        if array is None or array.size != 1 or dtype is DType.STRING:
            return None
        return const(array.reshape(()).astype(dtype.computed.numpy).item(), dtype)

    def view(self, x: str, shape: Sequence[int], view: View) -> str:
        """Read `x` through an affine view; a constant is folded, a dense whole is a reshape."""
        source = self.type(x)
        type_ = TensorType(source.dtype, tuple(shape))
        array, extents = self.value(x), self.extents_of(x)
        if extents is not None and not is_dynamic((*shape, *view.strides, view.offset)):
            moved = gather_view(extents, shape, view).astype(object)
            return self.extents(moved, source.dtype)
        if array is not None and not is_dynamic((*shape, *view.strides, view.offset)):
            return self.constant(gather_view(array, shape, view), x)
        if type_.size == source.size and view.offset == 0 and view.is_dense(shape):
            return self.reshape(x, shape)
        loops, (_, merged) = simplify_loops(shape, [dense(shape), view])
        return self.emit1(Map(loops, Input(source.dtype, 0), (merged,)), [x], type_)

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Give the same elements another shape."""
        source = self.type(x)
        if source.shape == tuple(shape):
            return x
        if prod(shape) != source.size:
            raise UnsupportedError(f"{source} cannot take the shape {list(shape)}")
        array, extents = self.value(x), self.extents_of(x)
        if extents is not None and not is_dynamic(tuple(shape)):
            return self.extents(extents.reshape(shape), source.dtype)
        if array is not None and not is_dynamic(tuple(shape)):
            return self.constant(array.reshape(shape), x)
        return self.emit1(Reshape(), [x], TensorType(source.dtype, tuple(shape)))

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        """Permute the axes of `x`."""
        shape = self.shape(x)
        strides = row_major(shape)
        view = View(tuple(strides[p] for p in perm))
        return self.view(x, [shape[p] for p in perm], view)

    def expand(self, x: str, shape: Sequence[int]) -> str:
        """Broadcast `x` to a shape (numpy's rules)."""
        return self.view(x, shape, broadcast(self.shape(x), shape))

    def cast(self, x: str, dtype: DType) -> str:
        """Convert the element type by C rules."""
        if self.type(x).dtype is dtype:
            return x
        array = self.value(x)
        if array is not None:
            wide = array.astype(self.type(x).dtype.computed.numpy)
            return self.constant(wide.astype(dtype.numpy), x)
        return self.map(lambda v: cast(v, dtype), x)

    def scalar(self, value: float | int | bool, dtype: DType) -> str:
        """Add a 0-d constant."""
        return self.constant(np.asarray(value, dtype.numpy))

    # ---- result -------------------------------------------------------------------------------

    def graph(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        """Return the finished graph; an output that isn't computed here becomes a copy."""
        outputs = [self._computed(o) for o in outputs]
        own = {o for node in self.nodes for o in node.outputs}
        finished: dict[str, None] = {}
        for output in outputs:
            fresh = output in own and output not in finished
            finished[output if fresh else self._copy(output)] = None
        graph = Graph(
            name, tuple(inputs), tuple(finished), tuple(self.nodes),
            {k: v for k, v in self._types.items() if k not in self._extents},
            dict(self._constants), dims=tuple(self.symbols), guards=tuple(self._guards),
            quantization=dict(self._quantization), warnings=tuple(self.warnings),
        )  # fmt: skip
        outer = {n: self.type(n) for n in captured(graph)}
        return replace(graph, types={**outer, **graph.types})

    def _copy(self, x: str) -> str:
        type_ = self.type(x)
        return self.emit1(Map((type_.size,), Input(type_.dtype, 0), (View((1,)),)), [x], type_)
