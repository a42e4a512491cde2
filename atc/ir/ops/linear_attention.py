"""LinearAttention: attention by a matrix of state, which each step decays, corrects and reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.dims import equals
from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.elementwise import require


@dataclass(frozen=True)
class LinearAttention(Op):
    """S = d S + k w', y = scale S' q, for each step; w is v, or the delta rule's b (v - d S' k).

    ONNX LinearAttention-27. Operands: 0. q [batch, steps, q_heads, k_size]; 1. k [batch, steps,
    k_heads, k_size]; 2. v [batch, steps, heads, v_size]; 3. the first S [batch, heads, k_size,
    v_size]; 4. factors d [batch, steps, heads, 1 or k_size], or none; 5. where `delta`, b [batch,
    steps, heads or 1], or none for 1. Heads share those of q and k where there are fewer; where
    there are more of q, each of these reads a head's S.

    Results: 0. S after the last `window` steps [window, batch, heads, k_size, v_size], zeros where
    there are fewer; 1. y [batch, steps, the larger of q_heads and heads, v_size].
    """

    batch: int
    steps: int
    q_heads: int
    k_heads: int
    heads: int
    k_size: int
    v_size: int
    scale: float
    delta: bool
    window: int = 1

    @property
    def readers(self) -> int:
        """The heads of y."""
        return max(self.q_heads, self.heads)

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check types, sizes and that heads divide each other."""
        rows, heads = self.batch * self.steps, self.heads
        state = self.batch * heads * self.k_size * self.v_size
        sizes = (
            (rows * self.q_heads * self.k_size,), (rows * self.k_heads * self.k_size,),
            (rows * heads * self.v_size,), (state,),
            (rows * heads, rows * heads * self.k_size), (rows * heads, rows),
        )  # fmt: skip
        for k, (type_, able) in enumerate(zip(inputs, sizes, strict=True)):
            fits = type_ is None and k > 3
            fits = fits or (type_ is not None and any(equals(type_.size, n) for n in able))
            require(fits, f"operand {k} is {type_}")
        require(self.delta or inputs[5] is None, "an update rate without the delta rule")
        divide = heads % self.k_heads == 0 == self.readers % self.q_heads
        require(divide and self.readers % heads == 0, "heads don't divide each other")
        results = (self.window * state, rows * self.readers * self.v_size)
        for type_, size in zip(outputs, results, strict=True):
            require(equals(type_.size, size), f"{type_} for {size} numbers")
        floats = (t for t in (*inputs, *outputs) if t is not None)
        require(all(t.dtype is DType.FLOAT for t in floats), "it isn't of floats")
