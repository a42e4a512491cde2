"""Softmax and Normalize: statistics along an axis, applied to each of its elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from atc.ir.graph import Op, TensorType
from atc.ir.ops.elementwise import Epilogue, check_epilogue, require

STATISTICS = ("Variance", "MeanSquare", "L1", "L2")


@dataclass(frozen=True)
class Softmax(Op):
    """y[o, k, i] = epilogue(exp(x - m) / sum over k of exp(x - m)), m the maximum over k.

    With `log` it is x - m - log(sum) instead.  ONNX Softmax-13, LogSoftmax-13. Where all of a row
    is minus infinity the result is NaN, with `masked` 0 (ONNX Attention-24). Operands are dense;
    the epilogue's views are over (outer, axis, inner). 16-bit floats are computed in float.
    """

    outer: int
    axis: int
    inner: int
    log: bool
    epilogue: Epilogue
    masked: bool = False

    @property
    def loops(self) -> tuple[int, ...]:
        """The index space of the output."""
        return (self.outer, self.axis, self.inner)

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that the operand and the result fill the index space."""
        require(not (self.log and self.masked), "the logarithm of a masked row")
        _check_operand(inputs, outputs, prod(self.loops))
        check_epilogue(self.epilogue, self.loops, inputs[1:], outputs[0])


@dataclass(frozen=True)
class Normalize(Op):
    """y[o, k, i] = epilogue((x[o, k, i] - centre[o, i]) * scale[o, i]), both statistics over k.

    `how` says which:

    - Variance: centre is the mean, scale 1 / sqrt(variance + epsilon) (ONNX LayerNormalization-17,
      GroupNormalization-21, InstanceNormalization-22, MeanVarianceNormalization-13);
    - MeanSquare: centre 0, scale 1 / sqrt(mean of squares + epsilon) (ONNX RMSNormalization-23);
    - L1, L2: centre 0, scale 1 / norm; a zero norm gives 0 (ONNX LpNormalization-22).

    Outputs 1 and 2, where present, hold centre and scale. Operands are dense. Each of the three
    dimensions may be factored, so that the epilogue can read views over (*outer, *axis, *inner).
    16-bit floats are computed in float.
    """

    how: str
    outer: tuple[int, ...]
    axis: tuple[int, ...]
    inner: tuple[int, ...]
    epsilon: float
    epilogue: Epilogue

    @property
    def loops(self) -> tuple[int, ...]:
        """The index space of the output."""
        return (*self.outer, *self.axis, *self.inner)

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that the operand and the results fill their index spaces."""
        require(self.how in STATISTICS, f"unknown statistic {self.how}")
        _check_operand(inputs, outputs, prod(self.loops))
        kept = prod(self.outer) * prod(self.inner)
        require(all(o.size == kept for o in outputs[1:]), "the statistics' size")
        check_epilogue(self.epilogue, self.loops, inputs[1:], outputs[0])


def _check_operand(
    inputs: Sequence[TensorType | None], outputs: Sequence[TensorType], size: int
) -> None:
    x = inputs[0]
    require(x is not None and x.size == size, f"{x} has not {size} elements")
    require(x is not None and x.dtype.is_float, f"{x} is no float")
    require(outputs[0].size == size, f"{outputs[0]} has not {size} elements")
