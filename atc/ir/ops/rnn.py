"""Recurrent: LSTM, GRU and RNN as one op whose cell is data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.ir.expr import Expr
from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.elementwise import require


@dataclass(frozen=True)
class Cell:
    """The next state of a unit of one direction: expressions over the op's Input(k).

    `memory` (LSTM's c) is computed before `hidden` (h). `reset`, where given, is what the last
    gate's recurrent weights are multiplied by in place of h (GRU with linear_before_reset = 0); it
    reads the recurrent shares of the other gates only.
    """

    hidden: Expr
    memory: Expr | None = None
    reset: Expr | None = None
    reverse: bool = False


@dataclass(frozen=True)
class Recurrent(Op):
    """A recurrent layer of `cells`, one per direction.  ONNX LSTM-22, GRU-22, RNN-22.

    With D directions, G gates, T steps, B rows, H units (`hidden`), the operands are

    0. what the input adds to each gate, W x + b, [T, B, D, G, H], computed by a MatMul before;
    1. the recurrent weights R [D, H, G, H], with output units last;
    2. vectors [D, vectors, H] that the cells read (peepholes, biases), or none;
    3. the rows' lengths, INT32 [B], or none when all are T;
    4. the initial h [D, B, H], and 5. c, or none when zero.

    Results are the last h [D, B, H], then c the same where the cells have one, then with `sequence`
    every h [T, D, B, H], zero past a row's length. With `batch_major` B comes first in all of them
    (ONNX layout 1). Where there are `scales`, one per direction, R is INT8 and what meets it is
    quantized before, each row by the range that it and 0 span (DynamicQuantizeLinear-11).

    In the cells' expressions Input(k) is the input's share of gate k for k < G, the recurrent share
    of gate k - G for k < 2 G, then h, c, the new c and each vector's element.
    """

    steps: int
    batch: int
    hidden: int
    gates: int
    cells: tuple[Cell, ...]
    vectors: int = 0
    batch_major: bool = False
    sequence: bool = True
    scales: tuple[float, ...] = ()

    @property
    def state(self) -> int:
        """Input index of h; c, the new c and the vectors follow."""
        return 2 * self.gates

    @property
    def has_memory(self) -> bool:
        """Whether there is a c."""
        return self.cells[0].memory is not None

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Sizes of operands and results."""
        directions, units = len(self.cells), self.hidden
        state = directions * self.batch * units
        sizes = [
            self.steps * state * self.gates, directions * units * units * self.gates,
            directions * self.vectors * units, self.batch, state, state,
        ]  # fmt: skip
        require(len(inputs) == len(sizes), f"{len(inputs)} operands")
        for k, (type_, size) in enumerate(zip(inputs, sizes, strict=True)):
            require(type_ is None or type_.size == size, f"operand {k} is {type_}")
        require(inputs[0] is not None and inputs[1] is not None, "x or R is missing")
        weights = None if inputs[1] is None else inputs[1].dtype
        require(bool(self.scales) == (weights is DType.INT8), f"{self.scales} for {weights}")
        require(len(self.scales) in (0, directions), f"{len(self.scales)} scales")
        require((inputs[2] is not None) == (self.vectors > 0), "vectors")
        require(inputs[3] is None or inputs[3].dtype is DType.INT32, "lengths are not INT32")
        wanted = [state] * (2 if self.has_memory else 1) + [self.steps * state] * self.sequence
        require([o.size for o in outputs] == wanted, "results")
