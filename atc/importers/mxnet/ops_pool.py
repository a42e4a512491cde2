"""Pooling with MXNet's output size conventions, and adaptive average pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.ops_conv import channels_first, move_channels_last
from atc.importers.mxnet.tensor import Tensor


@dataclass(frozen=True)
class Window:
    """The windows along one spatial axis: `end` is the padding behind that the last one needs."""

    length: int
    kernel: int
    stride: int
    begin: int
    end: int
    nominal: int
    """The padding behind that counts as cells (MXNet leaves out what exceeds it)."""

    @property
    def count(self) -> int:
        """The number of windows."""
        return (self.length + self.begin + self.end - self.kernel) // self.stride + 1

    def cells(self) -> list[int]:
        """Return how many cells each window averages over when padding counts."""
        limit = self.length + self.nominal
        starts = [i * self.stride - self.begin for i in range(self.count)]
        return [min(start + self.kernel, limit) - start for start in starts]


@translates("Pooling", "Pooling_v1")
def pooling(s: NodeContext) -> Tensor:
    """MaxPool, AveragePool, LpPool or their global forms."""
    s.rank(3, 4, 5)
    x, last = channels_first(s, s.x)
    y = pool(s, x)
    return move_channels_last(s, y) if last else y


def pool(s: NodeContext, x: Tensor) -> Tensor:
    """Emit the pooling of a node with MXNet's pooling attributes, channels first."""
    kind = s.word("pool_type", "max", ("max", "avg", "sum", "lp"))
    if s.truth("global_pool", False):
        return _global(s, x, kind)
    windows = _windows(s, x.shape[2:])
    match kind:
        case "max":
            return _emit(s, "MaxPool", x, windows)
        case "avg":
            return _average(s, x, windows)
        case "sum":
            return _sum(s, x, windows)
        case _:
            return _norm(s, x, windows)


def _global(s: NodeContext, x: Tensor, kind: str) -> Tensor:
    axes = list(range(2, x.rank))
    match kind:
        case "max":
            return s.b.op("GlobalMaxPool", x)
        case "avg":
            return s.b.op("GlobalAveragePool", x)
        case "sum":
            return s.b.op("ReduceSum", x, axes, keepdims=1)
        case _:
            whole = [Window(n, n, 1, 0, 0, 0) for n in x.shape[2:]]
            return _norm(s, x, whole)


def _windows(s: NodeContext, extent: Sequence[int]) -> list[Window]:
    rank = len(extent)
    kernel, strides = s.spatial("kernel", rank, 0), s.spatial("stride", rank, 1)
    pads = s.spatial("pad", rank, 0)
    convention = s.word("pooling_convention", "valid", ("valid", "full", "same"))
    s.require(min(*kernel, *strides) > 0 and min(pads) >= 0, "kernel, stride or pad is negative")
    windows = [
        _window(n, k, st, p, convention)
        for n, k, st, p in zip(extent, kernel, strides, pads, strict=True)
    ]
    s.require(all(w.length + w.begin + w.nominal >= w.kernel for w in windows),
              f"the kernel {list(kernel)} exceeds the input {list(extent)}")  # fmt: skip
    if any(w.begin >= w.kernel or w.end >= w.kernel for w in windows):
        raise s.unsupported("a window lies in the padding alone")
    return windows


def _window(length: int, kernel: int, stride: int, pad: int, convention: str) -> Window:
    if convention == "valid":
        count = (length + 2 * pad - kernel) // stride + 1
    elif convention == "full":
        count = ceil((length + 2 * pad - kernel) / stride) + 1
    else:
        count = ceil((length + 2 * pad) / stride)
    end = (count - 1) * stride + kernel - length - pad
    return Window(length, kernel, stride, pad, max(end, 0), pad)


def _emit(
    s: NodeContext, op: str, x: Tensor, windows: Sequence[Window], **attributes: int
) -> Tensor:
    return s.b.op(
        op, x, kernel_shape=[w.kernel for w in windows], strides=[w.stride for w in windows],
        pads=[w.begin for w in windows] + [w.end for w in windows], **attributes,
    )  # fmt: skip


def _sum(s: NodeContext, x: Tensor, windows: Sequence[Window]) -> Tensor:
    mean = _emit(s, "AveragePool", x, windows, count_include_pad=1)
    return s.b.op("Mul", mean, float(prod(w.kernel for w in windows)))


def _norm(s: NodeContext, x: Tensor, windows: Sequence[Window]) -> Tensor:
    """Return the p-th root of the sum of p-th powers.

    Odd powers keep their sign, unlike ONNX's.
    """
    match s.integer("p_value", 2):
        case 1:
            return _sum(s, x, windows)
        case 2:
            return _emit(s, "LpPool", x, windows, p=2)
        case 3:
            cubes = _sum(s, s.b.op("Mul", s.b.op("Mul", x, x), x), windows)
            root = s.b.op("Pow", s.b.op("Abs", cubes), 1 / 3)
            return s.b.op("Mul", s.b.op("Sign", cubes), root)
        case order:
            raise s.unsupported(f"p_value={order}", "1, 2 and 3 are possible")


def _average(s: NodeContext, x: Tensor, windows: Sequence[Window]) -> Tensor:
    """Average over the cells of the padded input, or of the input alone."""
    if not s.truth("count_include_pad", True):
        return _emit(s, "AveragePool", x, windows, count_include_pad=0)
    mean = _emit(s, "AveragePool", x, windows, count_include_pad=1)
    area = prod(w.kernel for w in windows)
    cells = np.ones((1, 1, *(w.count for w in windows)))
    for axis, window in enumerate(windows):
        shape = [1] * x.rank
        shape[2 + axis] = window.count
        cells = cells * np.reshape(window.cells(), shape)
    if np.all(cells == area):
        return mean
    return s.b.op("Mul", mean, s.b.constant((area / cells).astype(x.dtype)))


@translates("_contrib_AdaptiveAvgPooling2D")
def adaptive_average_pooling(s: NodeContext) -> Tensor:
    """Means over the windows ⌊i·in/out⌋ … ⌈(i+1)·in/out⌉ as two products with constant matrices."""
    s.rank(4)
    size = s.integers("output_size", ())
    s.require(len(size) <= 2 and min(size, default=1) > 0, f"output_size {list(size)}")
    height, width = (size * 2)[:2] if size else (1, 1)
    if (height, width) == (1, 1):
        return s.b.op("GlobalAveragePool", s.x)
    rows, columns = s.x.shape[2:]
    if rows % height == 0 and columns % width == 0:
        kernel = [rows // height, columns // width]
        return s.b.op("AveragePool", s.x, kernel_shape=kernel, strides=kernel)
    left = s.b.constant(_means(s, rows, height).astype(s.x.dtype))
    right = s.b.constant(_means(s, columns, width).T.astype(s.x.dtype))
    return s.b.op("MatMul", s.b.op("MatMul", left, s.x), right)


def _means(
    s: NodeContext, length: int, count: int
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return the (count, length) matrix that averages each window."""
    s.require(length * count <= 1 << 20, f"output_size {count} is too large")
    matrix = np.zeros((count, length))
    for i in range(count):
        start, stop = i * length // count, -(-(i + 1) * length // count)
        matrix[i, start:stop] = 1 / (stop - start)
    return matrix
