"""Pooling of regions: ROIPooling and ROIAlign."""

from __future__ import annotations

import numpy as np

from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.tensor import Tensor


def _regions(s: NodeContext) -> tuple[Tensor, int, int]:
    s.rank(4)
    rois = s.input(1)
    s.require(rois.rank == 2 and rois.shape[1] == 5, f"the rois have the shape {list(rois.shape)}")
    height, width = s.spatial("pooled_size", 2, 0)
    s.require(0 < height <= 1 << 12 and 0 < width <= 1 << 12, "pooled_size")
    return rois, height, width


@translates("ROIPooling")
def roi_pooling(s: NodeContext) -> Tensor:
    """MaxRoiPool; rows are (batch index, x0, y0, x1, y1)."""
    rois, height, width = _regions(s)
    return s.b.op(
        "MaxRoiPool", s.x, rois, pooled_shape=[height, width],
        spatial_scale=s.number("spatial_scale"),
    )  # fmt: skip


@translates("_contrib_ROIAlign")
def roi_align(s: NodeContext) -> Tensor:
    """RoiAlign of the mean; a row (batch index, x0, y0, x1, y1) below batch 0 gives zeros."""
    b = s.b
    rois, height, width = _regions(s)
    number, boxes = b.split(rois, 1, [1, 4])
    index = b.op("Relu", b.reshape(number, [rois.shape[0]]))
    y = b.op(
        "RoiAlign", s.x, boxes, b.cast(index, np.int64), mode="avg",
        output_height=height, output_width=width, spatial_scale=s.number("spatial_scale"),
        sampling_ratio=max(s.integer("sample_ratio", -1), 0),
        coordinate_transformation_mode=(
            "half_pixel" if s.truth("aligned", False) else "output_half_pixel"
        ),
    )  # fmt: skip
    outside = b.op("Less", b.reshape(number, [rois.shape[0], 1, 1, 1]), 0)
    y = b.op("Where", outside, b.scalar(0, y.dtype), y)
    return _position_sensitive(s, y) if s.truth("position_sensitive", False) else y


def _position_sensitive(s: NodeContext, y: Tensor) -> Tensor:
    """Take cell (i, j) from the channels that belong to it: channel (c, i, j)."""
    count, channels, height, width = y.shape
    cells = height * width
    s.require(channels % cells == 0, f"{channels} channels for {cells} cells")
    square = s.b.reshape(y, [count, channels // cells, cells, cells])
    own = s.b.op("Mul", square, s.b.constant(np.eye(cells, dtype=y.dtype)))
    total = s.b.op("ReduceSum", own, [3], keepdims=0)
    return s.b.reshape(total, [count, channels // cells, height, width])
