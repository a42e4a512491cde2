"""Convolutions and pooling, portable and in channel blocks.

Kernels of Conv, the gradient of its filters, ConvTranspose and Pool. May import `render`, `map` and
`matmul`.
"""

from atc.backends.cpu.conv import (
    bf16,
    blocked,
    depthwise,
    depthwise_int8,
    depthwise_looped,
    depthwise_nhwc,
    depthwise_open,
    dynamic_bf16,
    dynamic_shape,
    dynamic_shape_pairs,
    filter_gradient,
    filter_gradient_depthwise,
    first_layer,
    first_layer_pairs,
    halves,
    int8,
    int8_pairs,
    int8_two_by_two,
    nchw_rows,
    pointwise_winograd,
    pool_int8,
    pool_places,
    pool_planes,
    portable,
    small_group,
    small_oc,
    winograd,
    winograd_int8,
)
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *portable.KERNELS, *blocked.KERNELS, *int8.KERNELS, *int8_pairs.KERNELS,
    *int8_two_by_two.KERNELS, *bf16.KERNELS, *halves.KERNELS, *first_layer.KERNELS,
    *first_layer_pairs.KERNELS, *depthwise.KERNELS, *depthwise_int8.KERNELS,
    *depthwise_looped.KERNELS, *depthwise_open.KERNELS, *winograd.KERNELS, *winograd_int8.KERNELS,
    *small_oc.KERNELS, *small_group.KERNELS, *dynamic_shape.KERNELS, *dynamic_shape_pairs.KERNELS,
    *dynamic_bf16.KERNELS, *nchw_rows.KERNELS, *pool_int8.KERNELS, *pool_places.KERNELS,
    *pool_planes.KERNELS,
    *depthwise_nhwc.KERNELS, *filter_gradient.KERNELS, *filter_gradient_depthwise.KERNELS,
    *pointwise_winograd.KERNELS,
)  # fmt: skip
