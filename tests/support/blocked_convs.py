"""Blocked convolutions of floats as graphs of one node, and what they are, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from atc.ir.expr import Expr, Input, call, const
from atc.ir.graph import DType, Graph, Node, TensorType, type_of
from atc.ir.ops import ConvBlocked, Epilogue, Window
from atc.ir.ops.blocked import blocked_shape
from atc.ir.view import View, dense

F = DType.FLOAT
R, BIAS, OTHER = Input(F, 0), Input(F, 1), Input(F, 2)


@dataclass(frozen=True)
class Case:
    """A convolution of x [batch, channels, *size] to `filters` channels.

    `pad` is at both ends, `end` more at the end alone.
    """

    channels: int
    filters: int
    size: tuple[int, ...]
    kernel: tuple[int, ...] = (3, 3)
    stride: int = 1
    pad: int = 1
    dilation: int = 1
    group: int = 1
    batch: int = 1
    plain: bool = False
    epilogue: str = "relu"
    end: int = 0

    @property
    def out(self) -> tuple[int, ...]:
        """The output's spatial extents."""
        pad = 2 * self.pad + self.end
        return tuple((n + pad - (k - 1) * self.dilation - 1) // self.stride + 1
                     for n, k in zip(self.size, self.kernel, strict=True))  # fmt: skip


EPILOGUES: dict[str, Expr] = {
    "none": R,
    "relu": call("Max", call("Add", R, BIAS), const(0, F)),
    "residual": call("Max", call("Add", call("Add", R, BIAS), OTHER), const(0, F)),
    "swish": call("Mul", call("Add", BIAS, R), call("Sigmoid", call("Add", BIAS, R))),
    "gated": call("Mul", call("Sub", R, BIAS), OTHER),
    "libm": call("Tan", call("Mul", call("Add", R, BIAS), const(0.01, F))),
}
"""`OTHER` is a residual, or in `gated` one number per pixel for all channels."""

SAMPLED = {
    "pointwise, strided batch": Case(
        40, 70, (8, 8), (1, 1), 2, 0, batch=3, epilogue="residual"
    ),
    "pointwise, strided by three": Case(20, 33, (13, 15), (1, 1), 3, 0, epilogue="swish"),
    "pointwise, strided groups": Case(64, 32, (7, 9), (1, 1), 2, 0, group=2),
    "pointwise, strided along one axis": Case(
        33, 40, (61,), (1,), 2, 0, batch=2, epilogue="residual"
    ),
}
"""Windows of one pixel, of which those that a stride meets may be copied."""
DIRECT = {
    "tile widths": Case(16, 32, (5, 28)),
    "below": Case(3, 5, (4, 5)),
    "above": Case(17, 33, (5, 29)),
    "ragged": Case(40, 24, (9, 17), epilogue="residual"),
    "short rows": Case(33, 70, (7, 7), epilogue="residual"),
    "strided": Case(20, 20, (15, 13), stride=2),
    "dilated": Case(8, 16, (11, 12), pad=2, dilation=2),
    "wide kernel": Case(16, 8, (9, 9), (5, 7), pad=3),
    "no pad": Case(16, 16, (6, 8), pad=0),
    "more pad than kernel": Case(8, 8, (2, 2), pad=4, epilogue="none"),
    "pointwise": Case(24, 40, (14, 12), (1, 1), pad=0, epilogue="residual"),
    "pointwise, prime": Case(7, 17, (1, 37), (1, 1), pad=0, epilogue="swish"),
    "pointwise, one pixel": Case(50, 100, (1, 1), (1, 1), pad=0, epilogue="swish"),
    "pointwise, strided": Case(24, 17, (9, 11), (1, 1), stride=2, pad=0, epilogue="gated"),
    "pointwise, padded at the end": Case(
        24, 17, (9, 11), (1, 1), stride=2, pad=0, epilogue="gated", end=2
    ),
    "nothing but padding": Case(24, 17, (5, 1), (1, 1), stride=2, epilogue="residual"),
    "pointwise, gated": Case(24, 17, (8, 8), (1, 1), pad=0, epilogue="gated"),
    "batch": Case(16, 24, (6, 6), batch=3, epilogue="residual"),
    "groups": Case(64, 32, (6, 7), group=2),
    "narrow groups": Case(64, 64, (6, 7), group=16),
    "ragged groups": Case(24, 48, (6, 7), group=3),
    "one dimension": Case(20, 24, (31,), (5,), stride=2, pad=2, epilogue="residual"),
    "one dimension, in rows": Case(
        40, 40, (890,), (3,), pad=0, dilation=25, epilogue="residual"
    ),
    "one dimension, in strided rows": Case(70, 33, (855,), (3,), 2, 0, 8, batch=2),
    "first layer": Case(3, 24, (16, 15), stride=2, plain=True),
    "first layer, 7x7": Case(3, 20, (20, 33), (7, 7), stride=2, pad=3, plain=True),
    "first layer, grey": Case(1, 16, (12, 11), (4, 10), pad=4, plain=True, epilogue="swish"),
    "libm": Case(16, 16, (5, 6), epilogue="libm"),
    **SAMPLED,
}
NARROW = {
    "width 2": Case(32, 32, (6, 9), group=16, epilogue="residual"),
    "width 4": Case(64, 64, (7, 15), group=16),
    "width 4, strided": Case(48, 48, (9, 11), stride=2, group=12, batch=2, epilogue="none"),
    "width 4, pointwise": Case(32, 32, (5, 9), (1, 1), pad=0, group=8, epilogue="swish"),
    "width 4, one dimension": Case(32, 32, (30,), (5,), pad=4, dilation=2, group=8),
}
"""Groups of fewer channels than the blocks of any target have."""

FEW = {
    "one": Case(16, 1, (5, 28)),
    "two": Case(40, 2, (9, 17), (5, 7), pad=3, epilogue="residual"),
    "ragged": Case(21, 2, (7, 7), epilogue="swish"),
    "strided": Case(16, 2, (15, 13), stride=2, epilogue="gated"),
    "dilated": Case(24, 1, (11, 12), pad=2, dilation=2, epilogue="none"),
    "nothing but padding": Case(16, 2, (5, 1), (1, 1), stride=2, epilogue="residual"),
    "pointwise": Case(64, 2, (14, 12), (1, 1), pad=0),
    "batch": Case(8, 2, (6, 6), batch=3, epilogue="residual"),
    "one dimension": Case(20, 2, (31,), (5,), stride=2, pad=2),
    "libm": Case(16, 2, (5, 6), epilogue="libm"),
}
WINOGRAD = {
    "whole tiles": Case(16, 16, (8, 8)),
    "ragged tiles": Case(16, 32, (13, 15), epilogue="residual"),
    "ragged channels": Case(20, 40, (14, 14), epilogue="residual"),
    "few channels": Case(5, 7, (9, 9)),
    "small": Case(16, 16, (3, 3)),
    "no pad": Case(16, 16, (10, 11), pad=0),
    "wide pad": Case(16, 16, (6, 5), pad=2, epilogue="swish"),
    "batch": Case(16, 48, (11, 9), batch=2, epilogue="gated"),
    "libm": Case(16, 16, (6, 6), epilogue="libm"),
}
DEPTHWISE = {
    "whole": Case(32, 32, (8, 14), group=32),
    "ragged": Case(20, 20, (9, 15), group=20, epilogue="residual"),
    "strided": Case(40, 40, (15, 16), stride=2, group=40),
    "5x5": Case(16, 16, (10, 11), (5, 5), pad=2, group=16, epilogue="swish"),
    "5x5, strided": Case(24, 24, (13, 12), (5, 5), stride=2, pad=2, group=24),
    "dilated": Case(16, 16, (12, 13), pad=2, dilation=2, group=16),
    "nothing but padding": Case(16, 16, (5, 1), (1, 1), stride=2, group=16, epilogue="residual"),
    "small": Case(16, 16, (2, 1), group=16),
    "no pad": Case(16, 16, (9, 9), pad=0, group=16, batch=2),
    "one dimension": Case(48, 48, (33,), (5,), pad=2, group=48),
    "libm": Case(16, 16, (5, 6), group=16, epilogue="libm"),
}
LARGE = {
    "7x7": Case(20, 20, (14, 19), (7, 7), pad=3, group=20, epilogue="residual"),
    "13x13": Case(16, 16, (9, 40), (13, 13), stride=2, pad=6, group=16),
}


# ---- the truth -----------------------------------------------------------------------------------


def convolve(x: np.ndarray, w: np.ndarray, case: Case) -> np.ndarray:
    """Cross-correlate in float64, tap by tap."""
    pads = [(0, 0), (0, 0), *[(case.pad, case.pad + case.end)] * len(case.size)]
    padded = np.pad(x.astype(np.float64), pads)
    y = np.zeros((case.batch, case.filters, *case.out))
    ic, oc = case.channels // case.group, case.filters // case.group
    for tap in np.ndindex(*case.kernel):
        window = tuple(
            slice(t * case.dilation, t * case.dilation + (n - 1) * case.stride + 1, case.stride)
            for t, n in zip(tap, case.out, strict=True)
        )
        part = padded[(slice(None), slice(None), *window)]
        for g in range(case.group):
            source = part[:, g * ic : (g + 1) * ic]
            weights = w[(slice(g * oc, (g + 1) * oc), slice(None), *tap)].astype(np.float64)
            y[:, g * oc : (g + 1) * oc] += np.einsum("oc,nc...->no...", weights, source)
    return y


def finished(y: np.ndarray, bias: np.ndarray, other: np.ndarray, epilogue: str) -> np.ndarray:
    """Apply an epilogue in float64."""
    b = bias.astype(np.float64).reshape(-1, *[1] * (y.ndim - 2))
    match epilogue:
        case "none":
            return y
        case "relu":
            return np.maximum(y + b, 0)
        case "residual":
            return np.maximum(y + b + other, 0)
        case "swish":
            return (y + b) / (1 + np.exp(-y - b))
        case "gated":
            return (y - b) * other
        case _:
            return np.tan((y + b) * 0.01)


def to_blocks(x: np.ndarray, block: int, rest: float = np.nan) -> np.ndarray:
    """Block channels; lanes past the last hold `rest`, which must never matter."""
    missing = -x.shape[1] % block
    padded = np.pad(x, [(0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)], constant_values=rest)
    return np.ascontiguousarray(
        np.moveaxis(padded.reshape(x.shape[0], -1, block, *x.shape[2:]), 2, -1)
    )


def from_blocks(y: np.ndarray, channels: int) -> np.ndarray:
    moved = np.moveaxis(y, -1, 2)
    return moved.reshape(y.shape[0], -1, *y.shape[2:-1])[:, :channels]


def build(
    case: Case, block: int, rounded: Callable[[np.ndarray], np.ndarray] = np.asarray,
    computed: bool = False,
) -> tuple[Graph, list[np.ndarray], np.ndarray]:
    """Return a graph of one ConvBlocked, its feeds and the plain result of `rounded` operands.

    With `computed` its filters are fed, too.
    """
    rng = np.random.default_rng(prod((*case.size, case.channels, case.filters)))
    x = rng.standard_normal((case.batch, case.channels, *case.size)).astype(np.float32)
    shape = (case.filters, case.channels // case.group, *case.kernel)
    w = (rng.standard_normal(shape) / np.sqrt(prod(shape[1:]))).astype(np.float32)
    bias = rng.standard_normal(case.filters).astype(np.float32)
    other = rng.standard_normal((case.batch, case.filters, *case.out)).astype(np.float32)
    spatial = [0] * len(case.out)
    y = blocked_shape((case.batch, case.filters, *case.out), block)
    feed = other_feed = to_blocks(other, block)
    residual = dense(y)
    if case.epilogue == "gated":
        other = feed = other_feed = np.ascontiguousarray(other[:, :1])
        residual = View((prod(case.out), 0, *dense(case.out).strides, 0))
    expr = EPILOGUES[case.epilogue]
    used = {"none": 0, "residual": 2, "gated": 2}.get(case.epilogue, 1)
    views = (View((0, block, *spatial, 1)), residual)[:used]
    first = x if case.plain else to_blocks(x, block)
    names = ("x", "w", "bias", "other")[: 2 + used]
    constants = {"w": w, "bias": to_blocks(bias[None], block)[0].reshape(-1)}
    constants = {k: v for k, v in constants.items() if k in names}
    fed = {"w": constants.pop("w")} if computed else {}
    types = {"x": type_of(first), "other": type_of(other_feed), "y": TensorType(F, y)}
    types |= {k: type_of(v) for k, v in (constants | fed).items()}
    rank = len(case.size)
    window = Window(case.kernel, (case.stride,) * rank, (case.dilation,) * rank, (case.pad,) * rank)
    op = ConvBlocked(window, case.group, Epilogue(expr, views))
    op.check([types[n] for n in names], [types["y"]])
    inputs = ("x", *fed, "other") if used == 2 else ("x", *fed)
    graph = Graph("g", inputs, ("y",), (Node(op, names, ("y",)),), types, constants)
    feeds = [first, *fed.values(), feed] if used == 2 else [first, *fed.values()]
    result = convolve(rounded(x), rounded(w), case)
    return graph, feeds, finished(result, bias, other.astype(np.float64), case.epilogue)
