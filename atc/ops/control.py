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
