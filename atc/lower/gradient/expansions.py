"""Operators in gradients that others make up: pooling by powers, norms of vectors and channels."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from atc.ir.graph import DType
from atc.lower.gradient.derivatives import ABSENT, Variable
from atc.lower.gradient.expansions_control import MOST
from atc.lower.gradient.tape import Site, expands


@expands("LpNormalization")
def lp_normalized(site: Site) -> list[Variable]:
    """Return x / norm(x); 0 where the norm is."""
    at, op, x = site.at, site.op, site.operands[0]
    p, axis = at.int("p", 2), at.int("axis", -1)
    norm = op(f"ReduceL{p}", x, site.ints(axis), keepdims=1)
    zero = op("Equal", norm, site.like(0))
    return [op("Div", x, op("Where", zero, site.like(1), norm))]


@expands("CumProd")
def cumulated(site: Site) -> list[Variable]:
    """Return the products of rows of a triangle, right where some factors are 0."""
    at, op, x = site.at, site.op, site.operands[0]
    rank = len(site.shape(x))
    axis = at.axis(int(np.asarray(at.required_const(1, "the axis")).reshape(-1)[0]), rank)
    count = site.shape(x)[axis]
    at.require(count <= MOST, f"the gradient of a CumProd of more than {MOST} elements")
    own = np.tri(count, k=-at.int("exclusive"), dtype=bool)
    taken = site.constant(own[::-1, ::-1].copy() if at.int("reverse") else own)
    last = [*(d for d in range(rank) if d != axis), axis]
    rows = op("Unsqueeze", op("Transpose", x, perm=last), site.ints(-2))
    y = op("ReduceProd", op("Where", taken, rows, site.like(1)), site.ints(-1), keepdims=0)
    return [op("Transpose", y, perm=[int(k) for k in np.argsort(last)])]


@expands("LRN")
def responses_normalized(site: Site) -> list[Variable]:
    """Return x / (bias + alpha / size * sum of squares of channels around)^beta."""
    at, op, x = site.at, site.op, site.operands[0]
    size, channels, rank = at.int("size"), site.shape(x)[1], len(site.shape(x))
    away = np.arange(channels) - np.arange(channels)[:, None]  # from row to column
    near = (away <= (size - 1) // 2) & (away >= -(size // 2))
    last = [0, *range(2, rank), 1]
    squares = op("Transpose", op("Mul", x, x), perm=last)
    total = op("Transpose", op("MatMul", squares, site.like(near)),
               perm=[int(k) for k in np.argsort(last)])  # fmt: skip
    share = site.like(at.float("alpha", 1e-4) / size)
    base = op("Add", op("Mul", total, share), site.like(at.float("bias", 1.0)))
    return [op("Div", x, op("Pow", base, site.like(at.float("beta", 0.75))))]


@expands("GlobalLpPool")
def global_lp_pool(site: Site) -> list[Variable]:
    """Return the norm of all places."""
    x = site.operands[0]
    axes = range(2, len(site.shape(x)))
    return [_root(site, site.op("ReduceSum", _power(site), site.ints(*axes), keepdims=1))]


@expands("LpPool")
def lp_pool(site: Site) -> list[Variable]:
    """Return each window's norm: an AveragePool of powers, times the places of a window."""
    at, op = site.at, site.op
    kernel = at.ints("kernel_shape") or []
    kept = ("kernel_shape", "strides", "dilations", "pads")
    window: dict[str, Any] = {n: v for n in kept if (v := at.ints(n)) is not None}
    window |= {"auto_pad": at.str("auto_pad", "NOTSET"), "count_include_pad": 1}
    at.require(not at.int("ceil_mode"), "the gradient of a LpPool with ceil_mode")
    mean = op("AveragePool", _power(site), **window)
    return [_root(site, op("Mul", mean, site.like(prod(kernel))))]


def _power(site: Site) -> Variable:
    exponent = site.like(site.at.int("p", 2))
    result: Variable = site.op("Pow", site.op("Abs", site.operands[0]), exponent)
    return result


def _root(site: Site, total: Variable) -> Variable:
    """Return the p-th root; where it is 0 the gradient is, too."""
    op = site.op
    zero = op("Equal", total, site.like(0))
    safe = op("Where", zero, site.like(1), total)
    root = op("Pow", safe, site.like(1 / site.at.int("p", 2)))
    result: Variable = op("Where", zero, site.like(0), root)
    return result


@expands("STFT")
def frames_transformed(site: Site) -> list[Variable]:
    """Return the Fourier transform of each frame, weighted by the window."""
    at, op, x = site.at, site.op, site.operands[0]
    shape = site.shape(x)
    (step,) = at.ints_const(1, "the frame step")
    length = site.shape(site.operands[2])[0] if site.has(2) else shape[1]
    if site.has(3):
        (length,) = at.ints_const(3, "the frame length")
    starts = np.arange(0, shape[1] - length + 1, step)
    signal = op("Reshape", x, site.ints(*shape[:2], shape[2] if len(shape) == 3 else 1))
    places = starts[:, None] + np.arange(length)
    frames = op("Gather", signal, site.constant(places), axis=1)
    if site.has(2):
        frames = op("Mul", frames, op("Unsqueeze", site.operands[2], site.ints(1)))
    axis = site.constant(np.asarray(-2))
    return [op("DFT", frames, ABSENT, axis, onesided=at.int("onesided", 1))]


# ---- normalization ------------------------------------------------------------------------------
# The standard's bodies are for floats; these compute in the operand's type, halves in float.


@expands("LayerNormalization")
def layer_normalized(site: Site) -> list[Variable]:
    """Return x normalized over the last axes, its mean and the deviation's reciprocal."""
    x, axes = _work(site, 0), _last_axes(site)
    mean = site.op("ReduceMean", x, axes, keepdims=1)
    away = site.op("Sub", x, mean)
    inverse = _inverse(site, away, axes)
    return [_scaled(site, site.op("Mul", away, inverse)), mean, inverse]


@expands("RMSNormalization")
def root_mean_square_normalized(site: Site) -> list[Variable]:
    """Return x over the root of the mean of its squares."""
    x = _work(site, 0)
    return [_scaled(site, site.op("Mul", x, _inverse(site, x, _last_axes(site))))]


@expands("GroupNormalization")
def groups_normalized(site: Site) -> list[Variable]:
    """Return groups of channels normalized; scale and bias were per group before opset 21."""
    at, op, x = site.at, site.op, _work(site, 0)
    shape, groups = site.shape(x), at.int("num_groups")
    split = op("Reshape", x, site.ints(shape[0], groups, -1))
    away = op("Sub", split, op("ReduceMean", split, site.ints(2), keepdims=1))
    normal = op("Mul", away, _inverse(site, away, site.ints(2)))
    if site.opset >= 21:
        normal = op("Reshape", normal, site.ints(*shape))
        per = site.ints(1, shape[1], *[1] * (len(shape) - 2))
    else:
        per = site.ints(1, groups, 1)
    scale, bias = (op("Reshape", _work(site, k), per) for k in (1, 2))
    y = op("Add", op("Mul", normal, scale), bias)
    return [op("CastLike", op("Reshape", y, site.ints(*shape)), site.operands[0])]


@expands("MeanVarianceNormalization")
def mean_variance_normalized(site: Site) -> list[Variable]:
    """Return (x - mean) / (deviation + 1e-9)."""
    op, x = site.op, site.operands[0]
    axes = site.ints(*(site.at.ints("axes", [0, 2, 3]) or []))
    away = op("Sub", x, op("ReduceMean", x, axes, keepdims=1))
    deviation = op("Sqrt", op("ReduceMean", op("Mul", away, away), axes, keepdims=1))
    return [op("Div", away, op("Add", deviation, site.like(1e-9)))]


def _work(site: Site, k: int) -> Variable:
    """Return an operand, halves as float."""
    x = site.operands[k]
    half = site.tape.ctx.b.type(x.value).dtype.is_half
    result: Variable = site.op("Cast", x, to=DType.FLOAT.code) if half else x
    return result


def _last_axes(site: Site) -> Variable:
    rank = len(site.shape(site.operands[0]))
    return site.ints(*range(site.at.axis(site.at.int("axis", -1), rank), rank))


def _inverse(site: Site, x: Variable, axes: Variable) -> Variable:
    """Return 1 / sqrt(mean of squares + epsilon)."""
    op, dtype = site.op, site.tape.ctx.b.type(x.value).dtype.numpy
    mean = op("ReduceMean", op("Mul", x, x), axes, keepdims=1)
    epsilon = dtype.type(site.at.float("epsilon", 1e-5))
    result: Variable = op("Reciprocal", op("Sqrt", op("Add", mean, site.constant(epsilon))))
    return result


def _scaled(site: Site, normal: Variable) -> Variable:
    """Return what is normalized with scale and bias, in the operand's type."""
    y = site.op("Mul", normal, _work(site, 1))
    if site.has(2):
        y = site.op("Add", y, _work(site, 2))
    result: Variable = site.op("CastLike", y, site.operands[0])
    return result
