"""Ops that move data where no view reaches: joined, framed, indexed at run time, ordered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from atc.dims import lower_bound, upper_bound
from atc.ir.expr import Expr
from atc.ir.graph import Array, DType, Op, TensorType
from atc.ir.ops.elementwise import check_operands, check_views, require
from atc.ir.view import View


@dataclass(frozen=True)
class WriteExtents(Op):
    """y[k] = values[k], integers known when the network runs.  ONNX Shape-21 and what it feeds."""

    values: tuple[int, ...]

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """There is a place for each value."""
        require(outputs[0].size == len(self.values), f"{len(self.values)} values in {outputs[0]}")
        require(not outputs[0].dtype.is_float, f"extents in {outputs[0]}")


@dataclass(frozen=True)
class Concat(Op):
    """Operands side by side: x_k [outer, parts[k]] -> y [outer, sum(parts)].  ONNX Concat-13."""

    outer: int
    parts: tuple[int, ...]

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Each operand fills its part."""
        require(len(inputs) == len(self.parts), f"{len(inputs)} operands, {len(self.parts)} parts")
        for x, part in zip(inputs, self.parts, strict=True):
            require(x is not None and x.size == self.outer * part, f"{x} in a part of {part}")
            require(x is not None and x.dtype is outputs[0].dtype, f"{x} in {outputs[0]}")
        require(outputs[0].size == self.outer * sum(self.parts), f"output {outputs[0]}")


@dataclass(frozen=True)
class Pad(Op):
    """x [*shape] -> y with `begins` and `ends` more elements per axis.  ONNX Pad-21.

    `mode` is constant (operand 1 holds the one value, 0 where it is absent), edge, reflect or wrap.
    """

    mode: str
    shape: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """The output's extents."""
        axes = zip(self.begins, self.shape, self.ends, strict=True)
        return tuple(b + n + e for b, n, e in axes)

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Sizes fit, nothing is cut off, and there is something to repeat."""
        require(self.mode in ("constant", "edge", "reflect", "wrap"), f"mode {self.mode}")
        x, y = inputs[0], outputs[0]
        require(x is not None and x.size == prod(self.shape), f"{x} is not {self.shape}")
        require(x is not None and x.dtype is y.dtype, f"{x} -> {y}")
        require(y.size == prod(self.extents), f"{y} is not {self.extents}")
        require(all(lower_bound(n) >= 0 for n in (*self.begins, *self.ends)), "a pad is negative")
        require(self.mode == "constant" or prod(self.shape) != 0, "nothing to repeat")
        if len(inputs) > 1:
            value = inputs[1]
            require(self.mode == "constant", f"a value in mode {self.mode}")
            require(value is not None and value == TensorType(y.dtype, value.shape), f"{value}")
            require(value is not None and value.size == 1, f"the value is {value}")


def source_index(mode: str, size: int, begin: int, end: int) -> Array:
    """Return, for each element of a padded axis, the one it repeats: edge, reflect or wrap."""
    place = np.arange(-begin, size + end)
    if mode == "edge" or size == 1:
        return np.clip(place, 0, size - 1)
    if mode == "wrap":
        return place % size
    folded = place % (2 * size - 2)
    return np.minimum(folded, 2 * size - 2 - folded)


def check_address(
    shape: Sequence[int], address: Expr, views: Sequence[View],
    indices: Sequence[TensorType | None], coordinates: Sequence[View],
) -> None:  # fmt: skip
    """Raise ValueError unless the address is INT64 and its operands are read inside them."""
    require(address.dtype is DType.INT64, f"the address is {address.dtype.label}")
    check_views(shape, views, indices, coordinates)
    check_operands(address, indices, coordinates)


@dataclass(frozen=True)
class Gather(Op):
    """y[i, j] = x0[address(i) + j], i over the loops `shape`, j over `run` neighbours.

    `address` is an INT64 expression: Input(k) reads operand k + 1 through `views[k]`, beyond the
    operands it is one of the `coordinates` as in Map. Addresses outside x0 are clamped unless they
    are `proven` to lie inside. ONNX Gather-13, GatherElements-13, GatherND-13 and others.
    """

    shape: tuple[int, ...]
    run: int
    address: Expr
    views: tuple[View, ...]
    proven: bool = False
    coordinates: tuple[View, ...] = ()

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that the result is filled and there is something to read."""
        x, y = inputs[0], outputs[0]
        require(x is not None and x.dtype is y.dtype, f"{x} -> {y}")
        require(prod(self.shape) * self.run == y.size, f"{self.shape} x {self.run} is not {y}")
        require(
            x is not None and (upper_bound(x.size) >= self.run or not y.size), f"a run leaves {x}"
        )
        check_address(self.shape, self.address, self.views, inputs[1:], self.coordinates)


@dataclass(frozen=True)
class Scatter(Op):
    """y = x0, then y[address(i) + j] = combine(y[address(i) + j], x1[i, j]) in the order of i, j.

    x1, the updates, has the loops `shape` and then `run` neighbours. `address` is as in Gather,
    over the operands from 2 on; in `combine`, Input(0) is the old element, Input(1) the update.
    ONNX ScatterND-18, ScatterElements-18 and others.
    """

    shape: tuple[int, ...]
    run: int
    address: Expr
    views: tuple[View, ...]
    combine: Expr
    proven: bool = False
    coordinates: tuple[View, ...] = ()

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that the result has the type of the data and the updates fill the loops."""
        x, updates, y = inputs[0], inputs[1], outputs[0]
        require(x is not None and x.dtype is y.dtype and x.size == y.size, f"{x} -> {y}")
        require(updates is not None and updates.dtype is y.dtype, f"updates {updates}")
        count = prod(self.shape) * self.run
        require(updates is not None and updates.size == count, f"{updates} for {count} updates")
        require(upper_bound(y.size) >= self.run or not count, f"a run leaves {y}")
        require(self.combine.dtype is y.dtype, f"combine makes {self.combine.dtype.label}")
        check_address(self.shape, self.address, self.views, inputs[2:], self.coordinates)


@dataclass(frozen=True)
class RowsMoved:
    """Rows of elements that move by a step: y[begin + pitch r + i] = x[begin + pitch r + i + step].

    r counts the `rows`, i the elements of one, `length`. A row's elements move to places that are
    its own before or after; `begin` may lie before the tensor.
    """

    begin: int
    rows: int
    pitch: int
    length: int
    step: int


@dataclass(frozen=True)
class MoveRows(Op):
    """y_k is x_k with rows moved by `moves[k]`, where x_k lies; nothing else of it is kept.

    Windows over what came last are moved back so, for the next run.
    """

    moves: tuple[RowsMoved, ...]

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Rows are read inside of their operand, and don't reach into each other."""
        require(len(inputs) == len(outputs) == len(self.moves), f"{len(self.moves)} moves")
        for x, y, m in zip(inputs, outputs, self.moves, strict=True):
            require(x is not None and x == y, f"{x} -> {y}")
            first = m.begin + m.step
            last = first + m.pitch * (m.rows - 1) + m.length - 1
            require(first >= 0 and x is not None and last < x.size, f"{m} leaves {x}")
            apart = m.rows == 1 or m.length + abs(m.step) <= m.pitch
            require(min(m.rows, m.length) > 0 != m.step and apart, f"{m}")


@dataclass(frozen=True)
class Cumulate(Op):
    """Running Sum or Prod along the middle of [outer, axis, inner].  ONNX CumSum-14, CumProd-26.

    `exclusive` leaves an element out of its own sum; `reverse` runs from the end.
    """

    how: str
    outer: int
    axis: int
    inner: int
    exclusive: bool = False
    reverse: bool = False

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Type and size are kept."""
        x, y = inputs[0], outputs[0]
        require(self.how in ("Sum", "Prod"), self.how)
        require(x is not None and x.dtype is y.dtype, f"{x} -> {y}")
        require(x is not None and x.size == y.size, f"{x} -> {y}")
        require(y.size == self.outer * self.axis * self.inner, f"output {y}")


@dataclass(frozen=True)
class TopK(Op):
    """The `k` first in order along the middle of [outer, axis, inner]: values, INT64 indices.

    Descending where `largest`, else ascending; equals keep their order; NaN counts as the largest.
    ONNX TopK-24.
    """

    outer: int
    axis: int
    inner: int
    k: int
    largest: bool

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Both results have k elements per row."""
        x = inputs[0]
        require(x is not None and x.size == self.outer * self.axis * self.inner, f"operand {x}")
        require(0 <= self.k <= self.axis, f"k {self.k} of {self.axis}")
        require(all(y.size == self.outer * self.k * self.inner for y in outputs), "result size")
        require(x is not None and outputs[0].dtype is x.dtype, f"{x} -> {outputs[0]}")
        require(outputs[1].dtype is DType.INT64, f"indices {outputs[1]}")


def ascending(count: int) -> TopK:
    """Return the op that sorts so many numbers, and says where each of them was."""
    return TopK(1, count, 1, count, False)
