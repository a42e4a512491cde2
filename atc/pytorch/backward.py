"""Backward operators of ATen's, which PyTorch's exporter to ONNX doesn't know.

Most are the `Backward` of an operator of the standard's, which only atc knows; others are written
out in operators that are exported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from atc.errors import UnsupportedError

_ATEN = torch.ops.aten
Tensor: TypeAlias = torch.Tensor


def _backward(operator: str, g: Tensor, *operands: Tensor, **attributes: Any) -> Sequence[Tensor]:
    """Return the gradients of an operator's operands."""
    made: Sequence[Tensor] = torch.onnx.ops.symbolic_multi_out(
        "atc.training::Backward", (g, *operands), {"operator": operator, **attributes},
        dtypes=[x.dtype for x in operands], shapes=[x.shape for x in operands], version=1,
    )  # fmt: skip
    return made


def _convolution(
    g: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    rank = x.dim() - 2
    window = {
        "strides": _each(stride, rank), "pads": _each(padding, rank) * 2,
        "dilations": _each(dilation, rank), "group": groups,
    }  # fmt: skip
    if transposed:
        window["output_padding"] = _each(output_padding, rank)
    dx, dw = _backward("ConvTranspose" if transposed else "Conv", g, x, weight, **window)
    return dx, dw, g.sum([0, *range(2, rank + 2)]) if output_mask[2] else None


def _average(
    g: Tensor, x: Tensor, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    rank = len(kernel_size)
    pads = _each(padding, rank)
    if divisor_override and ceil_mode:
        raise UnsupportedError("the derivative of an average pool with divisor and ceil_mode")
    if divisor_override:
        g, count_include_pad = g * (math.prod(kernel_size) / divisor_override), True
    shape = (1,) * (rank + 2 - x.dim()) + tuple(x.shape)
    (dx,) = _backward(
        "AveragePool", g.reshape(shape[:2] + tuple(g.shape[-rank:])), x.reshape(shape),
        kernel_shape=[*kernel_size], strides=_each(stride or kernel_size, rank), pads=pads * 2,
        ceil_mode=int(ceil_mode), count_include_pad=int(count_include_pad),
    )  # fmt: skip
    made: Tensor = dx.reshape(x.shape)
    return made


def _adaptive_average(rank: int) -> Callable[..., Tensor]:
    """Return what gives each window's places equal shares, by a matrix for each axis."""

    def shares(size: int, count: int, dtype: torch.dtype) -> Tensor:
        place, window = torch.arange(size), torch.arange(count)[:, None]
        begin = (window * size).div(count, rounding_mode="floor")
        end = ((window + 1) * size + (count - 1)).div(count, rounding_mode="floor")
        made: Tensor = ((begin <= place) & (place < end)).to(dtype) / (end - begin).to(dtype)
        return made

    def shared(g: Tensor, x: Tensor) -> Tensor:
        for axis in range(-rank, 0):
            matrix = shares(x.shape[axis], g.shape[axis], x.dtype)
            g = (g.movedim(axis, -1) @ matrix).movedim(-1, axis)
        return g

    return shared


def _adaptive_maxima(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the maximum of each window, and its place in its plane."""

    def ends(size: int, count: int) -> list[tuple[int, int]]:
        return [(k * size // count, -(-(k + 1) * size // count)) for k in range(count)]

    found = []
    for top, bottom in ends(x.shape[-2], output_size[0]):
        for left, right in ends(x.shape[-1], output_size[1]):
            width = right - left
            value, place = x[..., top:bottom, left:right].flatten(-2).max(-1)
            row = place.div(width, rounding_mode="floor")
            found.append((value, (top + row) * x.shape[-1] + left + place - row * width))
    shape = (*x.shape[:-2], *output_size)
    values, places = (torch.stack(each, -1).reshape(shape) for each in zip(*found, strict=True))
    return values, places


def _maximum(rank: int) -> Callable[..., Tensor]:
    """Return what adds up gradients at the places of maxima, which come last."""

    def added(g: Tensor, x: Tensor, *window_and_places: Any) -> Tensor:
        lead, places = x.shape[:-rank], window_and_places[-1]
        zeros = torch.zeros_like(x).reshape(*lead, -1)
        flat = zeros.scatter_add(-1, places.reshape(*lead, -1), g.reshape(*lead, -1))
        made: Tensor = flat.reshape(x.shape)
        return made

    return added


def _maxima(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return maxima and their places in their planes, which the exporter pools once more for."""
    y, places = _ATEN.max_pool2d_with_indices.default(
        x, kernel_size, stride, padding, dilation, ceil_mode
    )
    shape = (1,) * (4 - x.dim()) + tuple(x.shape)
    values, flat = torch.onnx.ops.symbolic_multi_out(
        "::MaxPool", (x.reshape(shape),), {
            "kernel_shape": _each(kernel_size, 2), "strides": _each(stride or kernel_size, 2),
            "pads": _each(padding, 2) * 2, "dilations": _each(dilation, 2),
            "ceil_mode": int(ceil_mode),
        }, dtypes=(x.dtype, torch.int64), shapes=[shape[:2] + tuple(y.shape[-2:])] * 2,
    )  # fmt: skip
    planes = torch.arange(shape[0] * shape[1]).reshape(*shape[:2], 1, 1) * (shape[2] * shape[3])
    return values.reshape(y.shape), (flat - planes).reshape(y.shape)


def _sampled(
    g: Tensor, x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int,
    align_corners: bool, output_mask: Sequence[bool],
) -> Sequence[Tensor]:  # fmt: skip
    return _backward(
        "GridSample", g, x, grid, mode=("linear", "nearest", "cubic")[interpolation_mode],
        padding_mode=("zeros", "border", "reflection")[padding_mode],
        align_corners=int(align_corners),
    )  # fmt: skip


def _each(numbers: Sequence[int], rank: int) -> list[int]:
    """Return a number for each axis."""
    return [*numbers] * (rank // len(numbers))


BACKWARD: Mapping[Any, Callable[..., Any]] = {
    _ATEN.max_pool2d_with_indices.default: _maxima,
    _ATEN.convolution_backward.default: _convolution,
    _ATEN.avg_pool2d_backward.default: _average,
    _ATEN.avg_pool3d_backward.default: _average,
    _ATEN._adaptive_avg_pool2d_backward.default: _adaptive_average(2),
    _ATEN._adaptive_avg_pool3d_backward.default: _adaptive_average(3),
    _ATEN.adaptive_max_pool2d.default: _adaptive_maxima,
    _ATEN.max_pool2d_with_indices_backward.default: _maximum(2),
    _ATEN.max_pool3d_with_indices_backward.default: _maximum(3),
    _ATEN.adaptive_max_pool2d_backward.default: _maximum(2),
    _ATEN.adaptive_max_pool3d_backward.default: _maximum(3),
    _ATEN.grid_sampler_2d_backward.default: _sampled,
    _ATEN.grid_sampler_3d_backward.default: _sampled,
}
"""What computes them, by their arguments."""
