"""Constants that the graph itself makes: zeros, ones, ranges, and tensors like another."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

import numpy as np

from atc.importers.mxnet.builder import MAX_CONSTANT
from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.tensor import Tensor


def _check_size(s: NodeContext, count: float) -> None:
    s.require(0 <= count <= MAX_CONSTANT, f"a constant of {count:.0f} elements is too large")


def _filled(
    s: NodeContext, shape: Sequence[int], value: float, dtype: np.dtype[np.generic]
) -> Tensor:
    s.require(all(d >= 0 for d in shape), f"shape {list(shape)}")
    _check_size(s, prod(shape))
    return s.b.constant(np.full(shape, value).astype(dtype))


@translates("_zeros", "_zeros_without_dtype", "_ones", "_full")
def filled(s: NodeContext) -> Tensor:
    """Return a constant; a length 0 is left to the data in MXNet, here it is 1 and broadcast."""
    value = {"_ones": 1.0, "_full": s.number("value", 0.0)}.get(s.node.op, 0.0)
    shape = [d or 1 for d in s.integers("shape", ())]
    dtype = np.dtype(np.float32) if s.node.op == "_zeros_without_dtype" else s.element_type()
    return _filled(s, shape, value, dtype)


@translates("zeros_like", "ones_like")
def filled_like(s: NodeContext) -> Tensor:
    """Zeros or ones of the input's shape and type."""
    value = np.asarray([float(s.node.op == "ones_like")]).astype(s.x.dtype)
    if s.x.size <= 4096:
        return _filled(s, s.x.shape, float(value[0]), s.x.dtype)
    return s.b.expand(s.b.constant(value), s.x.shape)


@translates("_arange")
def arange(s: NodeContext) -> Tensor:
    """start, start + step ... before stop, each repeated."""
    start, stop, step = s.number("start", 0.0), s.maybe_number("stop"), s.number("step", 1.0)
    if stop is None:
        start, stop = 0.0, start
    if s.truth("infer_range", False):
        raise s.unsupported("infer_range", "give stop")
    span = (stop - start) / step if step else float("nan")
    s.require(np.isfinite(span), f"the range {start}, {stop}, {step}")
    return _range(s, start, step, max(ceil(span), 0), s.element_type())


def _range(
    s: NodeContext, start: float, step: float, count: int, dtype: np.dtype[np.generic]
) -> Tensor:
    repeat = s.integer("repeat", 1)
    s.require(repeat > 0, f"repeat is {repeat}")
    _check_size(s, count * repeat)
    return s.b.constant(np.repeat(start + step * np.arange(count), repeat).astype(dtype))


@translates("_linspace")
def linspace(s: NodeContext) -> Tensor:
    """`num` points from start to stop."""
    count = s.integer("num", s.integer("step", 50))
    _check_size(s, count)
    values = np.linspace(s.number("start"), s.number("stop"), count,
                         endpoint=s.truth("endpoint", True))  # fmt: skip
    return s.b.constant(values.astype(s.element_type()))


@translates("_contrib_arange_like")
def arange_like(s: NodeContext) -> Tensor:
    """Return a range as long as the input or one of its axes."""
    axis, start, step = s.maybe_integer("axis"), s.number("start", 0.0), s.number("step", 1.0)
    count = s.x.size if axis is None else s.x.shape[s.axis(axis, s.x.rank)]
    repeat = s.integer("repeat", 1)
    s.require(repeat > 0 and count % repeat == 0, f"repeat {repeat} of {count}")
    y = _range(s, start, step, count // repeat, s.x.dtype)
    return s.b.reshape(y, s.x.shape) if axis is None else y


@translates("_eye")
def eye(s: NodeContext) -> Tensor:
    """Ones on a diagonal."""
    rows = s.integer("N")
    columns = s.integer("M", 0) or rows
    s.require(min(rows, columns) > 0, f"a matrix of {rows} x {columns}")
    _check_size(s, rows * columns)
    return s.b.constant(np.eye(rows, columns, k=s.integer("k", 0)).astype(s.element_type()))


@translates("_contrib_index_array")
def index_array(s: NodeContext) -> Tensor:
    """Each element's own index, last axis."""
    axes = s.axes("axes", s.x.rank) or tuple(range(s.x.rank))
    _check_size(s, s.x.size * len(axes))
    grid = np.indices(s.x.shape, np.int64)
    return s.b.constant(np.stack([grid[a] for a in axes], axis=-1))
