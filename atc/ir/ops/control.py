"""Control flow: ops that run graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.dims import Dim, max_value
from atc.ir.graph import DType, Graph, Op, TensorType
from atc.ir.ops.elementwise import require


def same_type(a: TensorType | None, b: TensorType | None, pairs: Sequence[Sequence[int]]) -> bool:
    """Return whether two types agree, with axes that may differ as the pairs of extents say."""
    if a is None or b is None or a.dtype is not b.dtype or len(a.shape) != len(b.shape):
        return False
    both = zip(a.shape, b.shape, strict=True)
    return all(n == m or (n, m) in map(tuple, pairs) for n, m in both)


@dataclass(frozen=True)
class If(Op):
    """Run one of two graphs, as the one BOOL input says.  ONNX If-19.

    The branches have no inputs: they read outer values by name. Their outputs have equal types but
    for extents of the results that the branches write: (extent, in one branch, in the other).
    """

    then_branch: Graph
    else_branch: Graph
    extents: tuple[tuple[int, int, int], ...] = ()

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Both branches make the outputs' types."""
        for k, graph in enumerate(self.subgraphs(), 1):
            types = graph.types_of(graph.outputs)
            pairs = [(e[0], e[k]) for e in self.extents]
            same = [same_type(o, t, pairs) for o, t in zip(outputs, types, strict=True)]
            require(all(same), "the branches' outputs differ in type")
        require(
            inputs[0] is not None and inputs[0].dtype is DType.BOOL, "the condition is not BOOL"
        )

    def subgraphs(self) -> tuple[Graph, ...]:
        """Both branches."""
        return (self.then_branch, self.else_branch)


@dataclass(frozen=True)
class Loop(Op):
    """Run a graph repeatedly.  ONNX Loop-21, Scan-21.

    Operands: the number of iterations (INT64), whether there is any (BOOL), either absent, then the
    initial `states`. `trips` is the most iterations, -1 where unknown. The body is given
    the iteration (INT64, from 0) and the states; it makes, where `conditional`, whether to go on
    (BOOL), then the new states, then a part of each collected result. Results are the last states
    and, [trips, ...], what was collected; where `backwards` says so, from the end to the begin.

    `trip_count` is an extent that the loop writes, the iterations that it ran; -1 where all `trips`
    are. `carried_extents` are those of states: (extent, at first, after an iteration). A `strict`
    loop that would go on after `trips` iterations ends the run.
    """

    body: Graph
    trips: int
    states: int
    conditional: bool = False
    backwards: tuple[bool, ...] = ()
    trip_count: int = -1
    carried_extents: tuple[tuple[int, int, int], ...] = ()
    strict: bool = False

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """States keep their types, and what is collected has a known extent."""
        body, n = self.body, self.states
        given, made = body.types_of(body.inputs), body.types_of(body.outputs)
        initial = tuple(inputs[2:])
        require(len(given) == n + 1 and given[0] == TensorType(DType.INT64, ()), "body's inputs")
        require(len(initial) == n and given[1:] == tuple(outputs[:n]), "states")
        first, later = [[(e[0], e[k]) for e in self.carried_extents] for k in (1, 2)]
        begun = all(same_type(a, b, first) for a, b in zip(given[1:], initial, strict=True))
        require(begun, "the initial states")
        if self.conditional:
            going, *made_ = made
            require(going is not None and going.dtype is DType.BOOL, "the condition is not BOOL")
            made = tuple(made_)
        kept = all(same_type(a, b, later) for a, b in zip(given[1:], made[:n], strict=True))
        require(kept, "a state changes its type")
        parts, wholes = made[n:], outputs[n:]
        require(len(parts) == len(wholes) == len(self.backwards), "collected results")
        count = self.trips if self.trip_count == -1 else self.trip_count
        surely = not self.conditional or max_value(count) == 0
        known = count != -1 and (isinstance(self.trip_count, Dim) or surely)
        require(not parts or known, "an unknown extent")
        for part, whole in zip(parts, wholes, strict=True):
            require(part is not None, "a part has no type")
            assert part is not None
            require(whole == TensorType(part.dtype, (count, *part.shape)), f"{whole}")

    def subgraphs(self) -> tuple[Graph, ...]:
        """Return the body."""
        return (self.body,)
