"""Ops that read between the elements of a tensor: weighted sums of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.elementwise import require


@dataclass(frozen=True)
class Resample(Op):
    """y[o, q, i] = sum over t of weight[q, t] * x[o, index[q, t], i].

    x is [outer, size, inner] of any type, index INT64 [out, taps] inside of [0, size), weight
    [out, taps] of y's type, FLOAT or DOUBLE; y may be rounded to 16 bits. One axis of ONNX
    Resize-19.
    """

    outer: int
    size: int
    inner: int
    out: int
    taps: int

    def axis(self, x: Sequence[int], y: Sequence[int]) -> int | None:
        """Return which axis of an operand and a result of these shapes is resized, if one is."""
        sizes = zip(x, y, strict=True) if len(x) == len(y) else ()
        at = (d for d, (n, m) in enumerate(sizes) if (n, m) == (self.size, self.out))
        return next((d for d in at if prod(x[:d]) == self.outer), None)

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Tables and results have their sizes."""
        x, index, weight = inputs
        y = outputs[0]
        require(x is not None and x.size == self.outer * self.size * self.inner, f"operand {x}")
        require(index == TensorType(DType.INT64, (self.out, self.taps)), f"index {index}")
        computed = y.dtype.computed
        require(weight == TensorType(computed, (self.out, self.taps)), f"weight {weight}")
        require(computed in (DType.FLOAT, DType.DOUBLE), f"output {y}")
        require(y.size == self.outer * self.out * self.inner, f"output {y}")


@dataclass(frozen=True)
class GridSample(Op):
    """Read x [batch, channels, *shape] at the places of a grid -> y [batch, channels, points].

    The grid, [batch, points, rank], gives coordinates in [-1, 1], the last axis first. `mode` is
    nearest, linear or cubic; outside, `padding` is zeros, border or reflection. ONNX GridSample-22.
    With `absolute` the grid gives indices, as DeformConv needs them.
    """

    batch: int
    channels: int
    shape: tuple[int, ...]
    points: int
    mode: str
    padding: str
    align_corners: bool
    absolute: bool = False

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Sizes and types fit."""
        x, grid = inputs
        y = outputs[0]
        require(self.mode in ("nearest", "linear", "cubic"), f"mode {self.mode}")
        require(self.padding in ("zeros", "border", "reflection"), f"padding {self.padding}")
        size = self.batch * self.channels * prod(self.shape)
        require(x is not None and x.size == size and size > 0 and x.dtype is y.dtype, f"x {x}")
        require(self.mode == "nearest" or y.dtype.is_float, f"output {y}")
        size = self.batch * self.points * len(self.shape)
        require(grid is not None and grid.size == size and grid.dtype.is_float, f"grid {grid}")
        require(y.size == self.batch * self.channels * self.points, f"output {y}")


@dataclass(frozen=True)
class RoiAlign(Op):
    """Pool regions of x [batch, channels, *size] to y [regions, channels, *out].  ONNX RoiAlign-22.

    Operand 1 holds the corners x1, y1, x2, y2 of each region, to be multiplied by `scale`, operand
    2 its batch (INT64). Each bin takes `ratio` x `ratio` bilinear samples, or with 0 as many as it
    has elements, at most 1024 per axis; `how` is Average or Max.
    """

    batch: int
    channels: int
    size: tuple[int, int]
    regions: int
    out: tuple[int, int]
    scale: float
    ratio: int
    how: str
    half_pixel: bool

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Sizes and types fit."""
        x, rois, batches = inputs
        y = outputs[0]
        require(self.how in ("Average", "Max") and self.ratio >= 0, f"{self}")
        size = self.batch * self.channels * prod(self.size)
        require(x is not None and x.size == size and size > 0 and x.dtype is y.dtype, f"x {x}")
        require(y.dtype.is_float, f"output {y}")
        require(rois == TensorType(y.dtype, (self.regions, 4)), f"regions {rois}")
        require(batches == TensorType(DType.INT64, (self.regions,)), f"batches {batches}")
        require(y.size == self.regions * self.channels * prod(self.out), f"output {y}")


@dataclass(frozen=True)
class RoiPool(Op):
    """Maxima of regions of x [batch, channels, *size] -> y [regions, channels, *out].

    Operand 1 holds per region its batch and, in elements after multiplication by `scale` and
    rounding, x1, y1, x2, y2, both ends inside. A bin without elements is 0. ONNX MaxRoiPool-22.
    """

    batch: int
    channels: int
    size: tuple[int, int]
    regions: int
    out: tuple[int, int]
    scale: float

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Sizes and types fit."""
        x, rois = inputs
        y = outputs[0]
        size = self.batch * self.channels * prod(self.size)
        require(x is not None and x.size == size and size > 0 and x.dtype is y.dtype, f"x {x}")
        require(y.dtype.is_float, f"output {y}")
        require(rois == TensorType(y.dtype, (self.regions, 5)), f"regions {rois}")
        require(y.size == self.regions * self.channels * prod(self.out), f"output {y}")
