"""Lowerings of signal processing: Fourier transforms, windows, mel filters, LRN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod

import numpy as np

from atc.ir.expr import Expr, Input, call, const
from atc.ir.graph import Array, DType, TensorType
from atc.ir.ops import Epilogue, Reduce
from atc.ir.ops.signal import Dft
from atc.ir.view import View, dense
from atc.lower.builder import Builder
from atc.lower.concat_pad import pad
from atc.lower.context import LoweringContext
from atc.lower.registry import lowers

LARGEST_TABLE = 1 << 26  # elements


def roots_of_unity(length: int, inverse: bool, dtype: DType) -> Array:
    """Return exp(-+2 pi i k / length) as [length, 2]."""
    angle = 2 * np.pi * np.arange(length) / length
    sign = 1 if inverse else -1
    return np.stack([np.cos(angle), sign * np.sin(angle)], 1).astype(dtype.numpy)


def transform(b: Builder, x: str, op: Dft, shape: Sequence[int]) -> str:
    """Emit a Fourier transform with its table of roots; 16-bit floats are computed in float."""
    work = DType.DOUBLE if b.type(x).dtype is DType.DOUBLE else DType.FLOAT
    roots = b.constant(roots_of_unity(op.length, op.inverse, work))
    return b.emit1(op, [x, roots], TensorType(b.type(x).dtype, tuple(shape)))


def _scalar(ctx: LoweringContext, i: int, what: str) -> int | None:
    if not ctx.has(i):
        return None
    values = ctx.ints_const(i, what)
    ctx.require(len(values) == 1, f"{what} is {values}")
    return values[0]


@lowers("DFT")
def dft(ctx: LoweringContext) -> str:
    """ONNX DFT-20 and -17: complex, real and one-sided, forward and inverse, of any length."""
    x = ctx.type(0)
    rank = len(x.shape)
    ctx.require(rank >= 2 and x.dtype.is_float and x.shape[-1] in (1, 2), f"the input is {x}")
    given = ctx.int("axis", 1) if ctx.opset < 20 else _scalar(ctx, 2, "the axis")
    axis = ctx.axis(-2 if given is None else given, rank)
    ctx.require(axis < rank - 1, f"axis {axis} of rank {rank} holds the complex parts")
    inverse, onesided = bool(ctx.int("inverse")), bool(ctx.int("onesided"))
    length = _scalar(ctx, 1, "the length")
    if length is None:
        length = 2 * (x.shape[axis] - 1) if inverse and onesided else x.shape[axis]
    ctx.require(0 < length <= LARGEST_TABLE, f"a transform of length {length}")
    out = length // 2 + 1 if onesided and not inverse else length
    parts = 1 if inverse and onesided else 2
    shape = (*x.shape[:axis], out, *x.shape[axis + 1 : -1], parts)
    if not prod(shape):
        return ctx.b.constant(np.empty(shape, x.dtype.numpy))
    op = Dft(
        prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 : -1]), x.shape[-1], length, out,
        inverse, inverse and onesided,
    )  # fmt: skip
    return transform(ctx.b, ctx.input(0), op, shape)


@lowers("STFT")
def stft(ctx: LoweringContext) -> str:
    """ONNX STFT-17: overlapping frames as a view, weighted, then transformed."""
    b, x = ctx.b, ctx.input(0)
    shape = ctx.shape(0)
    ctx.require(len(shape) in (2, 3) and ctx.type(0).dtype.is_float, f"the signal is {ctx.type(0)}")
    batch, total, parts = (*shape, 1) if len(shape) == 2 else shape
    ctx.require(parts in (1, 2), f"the signal is {ctx.type(0)}")
    step = _scalar(ctx, 1, "the frame step")
    length = _scalar(ctx, 3, "the frame length")
    if length is None:
        length = ctx.type(2).size if ctx.has(2) else total
    ctx.require(step is not None and step > 0, f"frame step {step}")
    ctx.require(0 < length <= total, f"frames of {length} in a signal of {total}")
    assert step is not None
    onesided = bool(ctx.int("onesided", 1))
    ctx.require(parts == 1 or not onesided, "a complex signal has no one-sided transform")
    frames = (total - length) // step + 1
    loops = (batch, frames, length, parts)
    view = View((total * parts, step * parts, parts, 1))
    if ctx.has(2):
        ctx.require(ctx.shape(2) == (length,), f"window {ctx.type(2)} for frames of {length}")
        names, views = [x, ctx.input(2)], [view, View((0, 0, 1, 0))]
        framed = b.map(lambda v, w: call("Mul", v, w), *names, shape=loops, views=views)
    else:
        framed = b.view(x, loops, view)
    out = length // 2 + 1 if onesided else length
    op = Dft(batch * frames, length, 1, parts, length, out)
    return transform(b, framed, op, (batch, frames, out, 2))


# ---- tables -------------------------------------------------------------------------------------

WINDOWS: Mapping[str, tuple[float, ...]] = {
    "HannWindow": (0.5, -0.5),
    "HammingWindow": (25 / 46, -21 / 46),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}
"""Cosine windows: the factors of cos(2 pi k n / N), k = 0, 1, ..."""


def _table(ctx: LoweringContext, values: Array) -> str:
    return ctx.b.constant(values.astype(ctx.dtype("output_datatype", DType.FLOAT).numpy))


@lowers(*WINDOWS)
def window(ctx: LoweringContext) -> str:
    """ONNX HannWindow-17, HammingWindow-17, BlackmanWindow-17 of a length that is known."""
    (size,) = ctx.ints_const(0, "the window's length")
    ctx.require(0 <= size <= LARGEST_TABLE, f"a window of length {size}")
    period = size if ctx.int("periodic", 1) else size - 1
    angle = 2 * np.pi * np.arange(size) / max(period, 1)
    factors = WINDOWS[ctx.node.op_type]
    return _table(ctx, np.sum([a * np.cos(k * angle) for k, a in enumerate(factors)], axis=0))


@lowers("MelWeightMatrix")
def mel_weight_matrix(ctx: LoweringContext) -> str:
    """ONNX MelWeightMatrix-17: triangular filters, evenly spaced in mel, [bins, filters]."""
    names = ("the filters", "the DFT length", "the sample rate", "the lower edge", "the upper edge")
    given = [ctx.required_const(i, name).reshape(()).item() for i, name in enumerate(names)]
    filters, length, rate = (int(v) for v in given[:3])
    ctx.require(filters >= 0 and length >= 0 and rate > 0, f"{names[:3]} are {given[:3]}")
    bins = length // 2 + 1
    ctx.require(filters * bins <= LARGEST_TABLE, f"{filters} filters of {bins} bins")
    low, high = (2595 * np.log10(1 + float(v) / 700) for v in given[3:])
    mel = low + np.arange(filters + 2) * (high - low) / (filters + 2)
    hertz = 700 * (10 ** (mel / 2595) - 1)
    edges = np.floor((length + 1) * hertz / rate).astype(np.int64)
    ctx.require(bool((edges >= 0).all() and (edges < bins).all()), "an edge is outside")
    filled = np.zeros((bins, filters))
    for k, (left, centre, right) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        filled[left:centre, k] = np.arange(centre - left) / max(centre - left, 1)
        filled[centre:right, k] = np.arange(right - centre, 0, -1) / max(right - centre, 1)
        filled[centre, k] = 1
    return _table(ctx, filled)


# ---- others -------------------------------------------------------------------------------------


@lowers("LRN")
def lrn(ctx: LoweringContext) -> str:
    """ONNX LRN-13: x / (bias + alpha / size * sum of squares over near channels) ^ beta."""
    x = ctx.type(0)
    size = ctx.int("size", 0)
    ctx.require(len(x.shape) >= 2 and x.dtype.is_float and size > 0, f"size {size} for {x}")
    if not x.size:
        return ctx.input(0)
    alpha, beta = ctx.float("alpha", 1e-4), ctx.float("beta", 0.75)
    bias = ctx.float("bias", 1.0)
    b = ctx.b
    work = DType.FLOAT if x.dtype.is_half else x.dtype
    values = b.cast(ctx.input(0), work)
    batch, channels, inner = x.shape[0], x.shape[1], prod(x.shape[2:])
    squares = b.reshape(b.map(lambda v: call("Mul", v, v), values), (batch, channels, inner))
    before = (size - 1) // 2
    framed = pad(b, squares, [0, before, 0], [0, ceil((size - 1) / 2), 0])
    shape = (batch, channels, inner)

    def scaled(total: Expr, v: Expr) -> Expr:
        mean = call("Mul", total, const(alpha / size, work))
        return call("Div", v, call("Pow", call("Add", mean, const(bias, work)), const(beta, work)))

    epilogue = Epilogue(scaled(Input(work, 0), Input(work, 1)), (dense(shape),))
    rows = (channels + size - 1) * inner
    op = Reduce("Sum", shape, (size,), Input(work, 0), (View((rows, inner, 1, inner)),), epilogue)
    y = b.emit1(op, [framed, b.reshape(values, shape)], TensorType(work, x.shape))
    return b.cast(y, x.dtype)
