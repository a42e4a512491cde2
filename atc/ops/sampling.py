"""Ops that read between the elements of a tensor: weighted sums of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.ir import DType, Op, TensorType
from atc.ops.elementwise import require


@dataclass(frozen=True)
class Resample(Op):
    """y[o, q, i] = sum over t of weight[q, t] * x[o, index[q, t], i].

    x is [outer, size, inner] of any type, index INT64 [out, taps], known when compiling and inside
    [0, size), weight [out, taps] of y's type, FLOAT or DOUBLE. One axis of ONNX Resize-19.
    """

    outer: int
    size: int
    inner: int
    out: int
    taps: int

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Tables and results have their sizes."""
        x, index, weight = inputs
        y = outputs[0]
        require(x is not None and x.size == self.outer * self.size * self.inner, f"operand {x}")
        require(index == TensorType(DType.INT64, (self.out, self.taps)), f"index {index}")
        require(weight == TensorType(y.dtype, (self.out, self.taps)), f"weight {weight}")
        require(y.dtype in (DType.FLOAT, DType.DOUBLE), f"output {y}")
        require(y.size == self.outer * self.out * self.inner, f"output {y}")
