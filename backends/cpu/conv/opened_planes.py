"""Blocked convolutions whose C takes the numbers of images, channels and rows."""

from __future__ import annotations

from dataclasses import replace

from atc.backends.kernel import Workload
from atc.backends.render.opening import opened_operands
from atc.backends.render.tile_geometry import Geometry
from atc.dims import opened
from atc.ir.ops import ConvBlocked


def opened_planes(w: Workload[ConvBlocked], g: Geometry) -> Workload[ConvBlocked]:
    """Return a convolution of one group, cut as `g`, with images, channels and rows opened.

    Columns are cut into tiles, whose text has their widths; so are the only row's.
    """
    op, x, weights, y = w.op, w.input(0), w.input(1), w.outputs[0]
    if op.group != 1 or op.window.rank != 2:
        return w
    block, (n, _, h, width, *lane) = y.shape[-1], x.shape
    n, c, m = opened(n, "n"), opened(weights.shape[1], "c"), opened(weights.shape[0], "m")
    rows, columns = y.shape[2:4]
    if g.rows.out > 1:
        h, rows = opened(h, "h"), opened(rows, "h" if rows == h else "r")
    if g.rows.out > 1 and g.flat:
        width = columns = opened(width, "w")
    views = [
        replace(v, strides=(
            opened(v.strides[0], f"e{k}n") if n > 1 else v.strides[0],
            v.strides[1] if v.strides[1] == block else opened(v.strides[1], f"e{k}b"),
            *v.strides[2:],
        ))
        for k, v in enumerate(op.epilogue.views)
    ]  # fmt: skip
    channels = -(-c // block) if lane else c
    inputs = (
        replace(x, shape=(n, channels, h, width, *lane)),
        replace(weights, shape=(m, c, *weights.shape[2:])), *opened_operands(w.inputs[2:], "e"),
    )  # fmt: skip
    outputs = (replace(y, shape=(n, -(-m // block), rows, columns, block)), *w.outputs[1:])
    op = replace(op, epilogue=replace(op.epilogue, views=tuple(views)))
    return replace(w, op=op, inputs=inputs, outputs=outputs)
