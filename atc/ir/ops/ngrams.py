"""NGrams: which of known sequences of tokens occur, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.elementwise import require


@dataclass(frozen=True)
class NGrams(Op):
    """y [rows, width], how often each n-gram occurs in a row of tokens.  ONNX TfIdfVectorizer-9.

    An n-gram is `least` to `most` tokens, each 1 to `skips` + 1 places behind the last; single ones
    count once. Operands: tokens, INT64 [rows, columns]; then a tree of the n-grams, INT32: where
    the edges of each node begin [nodes + 1], the edges' tokens, ascending for each node, the nodes
    that they lead to, and the column of y of each node, -1 for none.
    """

    rows: int
    columns: int
    width: int
    least: int
    most: int
    skips: int

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that the tables agree in size and type."""
        require(len(inputs) == 5 and None not in inputs, f"{len(inputs)} operands")
        tokens, begins, edges, children, column = inputs
        assert tokens is not None
        assert begins is not None
        assert edges is not None
        assert children is not None
        assert column is not None
        require(tokens == TensorType(DType.INT64, tokens.shape), f"the tokens are {tokens}")
        require(tokens.size == self.rows * self.columns, f"{tokens}")
        tables = (begins, edges, children, column)
        require(all(t.dtype is DType.INT32 for t in tables), "a table is not INT32")
        require(begins.size == column.size + 1 and edges.size == children.size, "sizes of tables")
        require(outputs[0].size == self.rows * self.width, f"{outputs[0]}")
        require(outputs[0].dtype is DType.FLOAT, f"{outputs[0]}")
        require(1 <= self.least <= self.most and self.skips >= 0, f"{self.least} to {self.most}")
