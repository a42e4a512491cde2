"""Control flow: ops that run graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.ir import DType, Graph, Op, TensorType
from atc.ops.elementwise import require


@dataclass(frozen=True)
class If(Op):
    """Run one of two graphs, as the one BOOL input says.  ONNX If-19.

    The branches have no inputs: they read outer values by name. Their outputs have equal types.
    """

    then_branch: Graph
    else_branch: Graph

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Both branches make the outputs' types."""
        for graph in self.subgraphs():
            types = graph.types_of(graph.outputs)
            require(types == tuple(outputs), "the branches' outputs differ in type")
        require(
            inputs[0] is not None and inputs[0].dtype is DType.BOOL, "the condition is not BOOL"
        )

    def subgraphs(self) -> tuple[Graph, ...]:
        """Both branches."""
        return (self.then_branch, self.else_branch)


@dataclass(frozen=True)
class Loop(Op):
    """Run a graph again and again.  ONNX Loop-21, Scan-21.

    Operands: the number of iterations (INT64), whether there is any (BOOL), either absent, then the
    initial `states`. `trips` is the most iterations, -1 where only the run knows. The body is given
    the iteration (INT64, from 0) and the states; it makes, where `conditional`, whether to go on
    (BOOL), then the new states, then a part of each collected result. Results are the last states
    and, [trips, ...], what was collected; where `backwards` says so, from the end to the begin.
    """

    body: Graph
    trips: int
    states: int
    conditional: bool = False
    backwards: tuple[bool, ...] = ()

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """States keep their types, and what is collected has a known extent."""
        body, n = self.body, self.states
        given, made = body.types_of(body.inputs), body.types_of(body.outputs)
        initial = tuple(inputs[2:])
        require(len(given) == n + 1 and given[0] == TensorType(DType.INT64, ()), "body's inputs")
        require(len(initial) == n and given[1:] == initial == tuple(outputs[:n]), "states")
        if self.conditional:
            going, *made_ = made
            require(going is not None and going.dtype is DType.BOOL, "the condition is not BOOL")
            made = tuple(made_)
        require(made[:n] == given[1:], "a state changes its type")
        parts, wholes = made[n:], outputs[n:]
        require(len(parts) == len(wholes) == len(self.backwards), "collected results")
        require(not parts or (self.trips >= 0 and not self.conditional), "an unknown extent")
        for part, whole in zip(parts, wholes, strict=True):
            require(part is not None, "a part has no type")
            assert part is not None
            require(whole == TensorType(part.dtype, (self.trips, *part.shape)), f"{whole}")

    def subgraphs(self) -> tuple[Graph, ...]:
        """The body."""
        return (self.body,)
