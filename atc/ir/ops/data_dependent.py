"""Ops whose results have as many elements as the data say: they write extents when they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.elementwise import require


@dataclass(frozen=True)
class ReadExtents(Op):
    """extents[k] = x[k], INT32 or INT64; y is a copy of x as INT64.

    The network stops where an extent is outside its bounds (TopK-24's k and its like).
    """

    extents: tuple[int, ...]

    @property
    def written(self) -> tuple[int, ...]:
        """The extents that the kernel writes."""
        return self.extents

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """There is an element for each extent."""
        x = inputs[0]
        require(x is not None and x.size == len(self.extents) == outputs[0].size, f"{x}")


@dataclass(frozen=True)
class ResolveSlice(Op):
    """Start and number of elements of a slice of an axis of `size`.  ONNX Slice-13.

    Operands are the start and the end, INT32 or INT64 with one element each; y holds the two
    results.
    """

    size: int
    step: int
    begin: int
    count: int

    @property
    def written(self) -> tuple[int, ...]:
        """The extents that the kernel writes."""
        return (self.begin, self.count)

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Both ends are single integers."""
        require(all(x is not None and x.size == 1 for x in inputs), "a start or end isn't single")
        require(outputs[0] == TensorType(DType.INT64, (2,)), f"{outputs[0]}")


@dataclass(frozen=True)
class NonZero(Op):
    """y [rank, count]: the indices of elements that aren't zero, in order.  ONNX NonZero-13."""

    shape: tuple[int, ...]
    count: int

    @property
    def written(self) -> tuple[int, ...]:
        """The extents that the kernel writes."""
        return (self.count,)

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """There is a row of indices for each axis."""
        x = inputs[0]
        require(x is not None and x.size == prod(self.shape), f"{x} is not {self.shape}")
        wanted = TensorType(DType.INT64, (len(self.shape), self.count))
        require(outputs[0] == wanted, f"{outputs[0]}")


@dataclass(frozen=True)
class Unique(Op):
    """The distinct rows of x [rows, inner]: where each is first, inverse [rows], its count.

    In ascending order where `ordered`, else in that of the first occurrences; NaNs are equal and
    come last. ONNX Unique-11.
    """

    rows: int
    inner: int
    ordered: bool
    count: int

    @property
    def written(self) -> tuple[int, ...]:
        """The extents that the kernel writes."""
        return (self.count,)

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that the results are INT64, one per distinct row and one per row."""
        x = inputs[0]
        require(x is not None and x.size == self.rows * self.inner, f"{x}")
        wanted = [TensorType(DType.INT64, (n,)) for n in (self.count, self.rows, self.count)]
        require(list(outputs) == wanted, f"{outputs}")


@dataclass(frozen=True)
class NonMaxSuppression(Op):
    """y [count, 3]: batch, class and index of boxes [batch, boxes, 4] that overlap none better.

    Operands: boxes, scores [batch, classes, boxes], and where present the most boxes per class
    (INT64), the largest overlap and the least score (FLOAT). `centred` boxes are x, y, width,
    height. ONNX NonMaxSuppression-11.
    """

    batch: int
    classes: int
    boxes: int
    centred: bool
    count: int

    @property
    def written(self) -> tuple[int, ...]:
        """The extents that the kernel writes."""
        return (self.count,)

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Boxes and scores fit each other."""
        boxes, scores = inputs[0], inputs[1]
        require(boxes is not None and boxes.size == self.batch * self.boxes * 4, f"{boxes}")
        wanted = self.batch * self.classes * self.boxes
        require(scores is not None and scores.size == wanted, f"{scores}")
        require(outputs[0] == TensorType(DType.INT64, (self.count, 3)), f"{outputs[0]}")
