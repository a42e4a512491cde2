"""The deformable convolutions, which sample outside the image in two ways."""

from __future__ import annotations

import numpy as np

from atc.importers.mxnet.builder import MAX_CONSTANT
from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.ops_conv import bias
from atc.importers.mxnet.tensor import Tensor


@translates("_contrib_ModulatedDeformableConvolution",
            "_npx_modulated_deformable_convolution", weights=(3, 4))  # fmt: skip
def modulated_deformable_convolution(s: NodeContext) -> Tensor:
    """DeformConv with a mask: points outside fade to zero over one pixel, as in ONNX."""
    _check(s)
    return _deform(s, s.input(1), s.input(3), bias(s, 4), s.input(2))


@translates("_contrib_DeformableConvolution", "_npx_deformable_convolution", weights=(2, 3))
def deformable_convolution(s: NodeContext) -> Tensor:
    """DeformConv whose points outside are zero at once, and clamped within the last pixel.

    The points are moved onto the last row and column where they lie in its pixel, and a mask
    takes those outside away.
    """
    _check(s)
    b, offset = s.b, s.input(1)
    base = b.constant(_grid(s, offset).astype(offset.dtype))
    last = np.asarray(s.x.shape[2:]).astype(offset.dtype) - 1
    limit = b.constant(last.reshape(1, 1, 2, 1, 1))
    points = b.op("Add", b.reshape(offset, [offset.shape[0], *base.shape[1:]]), base)
    moved = b.op("Sub", b.op("Min", points, limit), base)
    above = b.op("GreaterOrEqual", points, 0)
    below = b.op("Less", points, b.op("Add", limit, 1.0))
    inside = b.cast(b.op("And", above, below), offset.dtype)
    mask = b.op("ReduceMin", inside, [2], keepdims=0)
    return _deform(s, b.reshape(moved, offset.shape), s.input(2), bias(s, 3), mask)


def _check(s: NodeContext) -> None:
    s.rank(4)
    offset, kernel = s.input(1), s.spatial("kernel", 2, 0)
    strides, dilations = s.spatial("stride", 2, 1), s.spatial("dilate", 2, 1)
    s.require(min(*strides, *dilations, *kernel) > 0, "kernel, stride or dilate")
    s.require(min(s.spatial("pad", 2, 0)) >= 0, "pad is negative")
    channels = 2 * s.integer("num_deformable_group", 1) * kernel[0] * kernel[1]
    s.require(offset.rank == 4 and channels > 0 and offset.shape[1] == channels,
              f"the offsets have the shape {list(offset.shape)}")  # fmt: skip


def _grid(s: NodeContext, offset: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return each point's place before its offset: (1, group * cells, 2, rows, columns)."""
    kernel, rows, columns = s.spatial("kernel", 2, 0), offset.shape[2], offset.shape[3]
    s.require(offset.shape[1] * rows * columns <= MAX_CONSTANT, "the offsets are too many")
    stride, dilate = s.spatial("stride", 2, 1), s.spatial("dilate", 2, 1)
    cells = np.indices(kernel).reshape(2, -1).T * dilate - np.asarray(s.spatial("pad", 2, 0))
    origin = np.indices((rows, columns)) * np.reshape(stride, (2, 1, 1))
    grid = origin[None] + cells[:, :, None, None]
    return np.tile(grid, (s.integer("num_deformable_group", 1), 1, 1, 1))[None].astype(np.float64)


def _deform(
    s: NodeContext, offset: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor
) -> Tensor:
    pads = s.spatial("pad", 2, 0)
    return s.b.op(
        "DeformConv", s.x, weight, offset, bias, mask,
        kernel_shape=list(s.spatial("kernel", 2, 0)), strides=list(s.spatial("stride", 2, 1)),
        dilations=list(s.spatial("dilate", 2, 1)), pads=[*pads, *pads],
        group=s.integer("num_group", 1), offset_group=s.integer("num_deformable_group", 1),
    )  # fmt: skip
