"""Pools over three axes as over two and then the first: that of planes is one in vectors."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from atc.ir.graph import DType, Node, TensorType
from atc.ir.ops import Pool, Reshape, Window
from atc.ir.ops.blocked import BYTES
from atc.passes.rewriting import Rewriting


def decompose_pool3d(state: Rewriting, node: Node) -> Node:
    """Replace a maximum or average over (D, H, W) by one over (H, W) and one over D.

    Windows are boxes, also those that the border cuts: their averages are averages of averages.
    """
    op = node.op
    if not isinstance(op, Pool) or op.window.rank != 3 or len(node.outputs) != 1:
        return node
    x, y = state.types[node.inputs[0]], state.types[node.outputs[0]]
    bytes_ = x.dtype in BYTES and op.how == "Max"
    floats = x.dtype is DType.FLOAT and op.how in ("Max", "Average")
    if not bytes_ and not floats or not x.size:
        return node
    batch, channels, depth, *image = x.shape
    out, pixels = y.shape[2], prod(y.shape[3:])

    def emit(new: Pool | Reshape, name: str, *shape: int) -> str:
        kind = "plane" if isinstance(new, Reshape) else "pool"
        return state.emit(new, (name,), TensorType(x.dtype, shape), node, kind)

    planes = emit(Reshape(), node.inputs[0], batch, channels * depth, *image)
    flat = emit(_along(op, (1, 2), ()), planes, batch, channels * depth, *y.shape[3:])
    stacked = emit(Reshape(), flat, batch * channels, 1, depth, pixels)
    pooled = emit(_along(op, (0,), (1,)), stacked, batch * channels, 1, out, pixels)
    return replace(node, op=Reshape(), inputs=(pooled,))


def _along(op: Pool, axes: tuple[int, ...], free: tuple[int, ...]) -> Pool:
    """Return the pooling along some of the axes, and that leaves `free` axes behind them alone."""
    w, ones, zeros = op.window, (1,) * len(free), (0,) * len(free)

    def of(values: tuple[int, ...], rest: tuple[int, ...]) -> tuple[int, ...]:
        return (*(values[k] for k in axes), *rest)

    window = Window(
        of(w.kernel, ones), of(w.strides, ones), of(w.dilations, ones), of(w.pads, zeros)
    )
    return replace(op, window=window, end_pads=of(op.end_pads, zeros))
