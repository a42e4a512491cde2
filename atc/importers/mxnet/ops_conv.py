"""Convolution, Deconvolution and FullyConnected."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.tensor import Tensor

CHANNELS_LAST = {"NWC", "NHWC", "NDHWC"}
CHANNELS_FIRST = {"NCW", "NCHW", "NCDHW"}


def channels_first(s: NodeContext, x: Tensor) -> tuple[Tensor, bool]:
    """Return `x` with its channels on axis 1, and whether the node's layout has them last."""
    if not s.has("layout"):
        return x, False
    layout = s.word("layout", None, sorted(CHANNELS_FIRST | CHANNELS_LAST))
    s.require(len(layout) == x.rank, f"layout {layout} is not of rank {x.rank}")
    last = layout in CHANNELS_LAST
    return (move_channels_first(s, x) if last else x), last


def move_channels_first(s: NodeContext, x: Tensor) -> Tensor:
    """Move the last axis to axis 1."""
    return s.b.transpose(x, [0, x.rank - 1, *range(1, x.rank - 1)])


def move_channels_last(s: NodeContext, x: Tensor) -> Tensor:
    """Move axis 1 to the end."""
    return s.b.transpose(x, [0, *range(2, x.rank), 1])


def bias(s: NodeContext, index: int, default: bool = False) -> Tensor | None:
    """Return the bias input unless the node has none."""
    return None if s.truth("no_bias", default) else s.input(index)


@translates("Convolution", "Convolution_v1", weights=(1, 2))
def convolution(s: NodeContext) -> Tensor:
    """Conv; a channels-last layout (with its weight O, k..., I) is transposed around it."""
    s.rank(3, 4, 5)
    x, last = channels_first(s, s.x)
    weight = move_channels_first(s, s.input(1)) if last else s.input(1)
    y = conv(s, x, weight, bias(s, 2))
    return move_channels_last(s, y) if last else y


def conv(s: NodeContext, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Emit the Conv of a node with MXNet's convolution attributes, channels first."""
    spatial = x.rank - 2
    kernel = s.spatial("kernel", spatial, 0)
    fits = weight.rank == x.rank and weight.shape[2:] == kernel
    s.require(fits, f"a weight of shape {list(weight.shape)} for the kernel {list(kernel)}")
    filters = s.integer("num_filter")
    s.require(weight.shape[0] == filters, f"{weight.shape[0]} filters, not {filters}")
    s.require(bias is None or bias.shape == weight.shape[:1], "the bias doesn't fit the weight")
    group = s.integer("num_group", 1)
    s.require(
        group > 0 and x.shape[1] == weight.shape[1] * group and weight.shape[0] % group == 0,
        f"{x.shape[1]} channels don't fit the weight {list(weight.shape)} in {group} groups",
    )
    pads, strides = s.spatial("pad", spatial, 0), s.spatial("stride", spatial, 1)
    dilations = s.spatial("dilate", spatial, 1)
    s.require(min(*pads, 0) >= 0 and min(*strides, *dilations, *kernel) > 0,
              "kernel, stride, dilate and pad must be positive")  # fmt: skip
    operands = [x, weight] if bias is None else [x, weight, bias]
    return s.b.op(
        "Conv", *operands, kernel_shape=list(kernel), strides=list(strides),
        dilations=list(dilations), pads=[*pads, *pads], group=group,
    )  # fmt: skip


@translates("Deconvolution", weights=(1, 2))
def deconvolution(s: NodeContext) -> Tensor:
    """ConvTranspose; `target_shape` replaces pad and adj, adj adds cells at the end."""
    s.rank(3, 4, 5)
    x, last = channels_first(s, s.x)
    weight = move_channels_first(s, s.input(1)) if last else s.input(1)
    spatial = x.rank - 2
    kernel, strides = s.spatial("kernel", spatial, 0), s.spatial("stride", spatial, 1)
    dilations = s.spatial("dilate", spatial, 1)
    fits = weight.rank == x.rank and weight.shape[2:] == kernel
    s.require(fits, f"a weight of shape {list(weight.shape)} for the kernel {list(kernel)}")
    group = s.integer("num_group", 1)
    s.require(group > 0 and weight.shape[1] * group == s.integer("num_filter"),
              "the weight doesn't fit num_filter and num_group")  # fmt: skip
    s.require(x.shape[1] == weight.shape[0] and x.shape[1] % group == 0,
              f"{x.shape[1]} channels don't fit the weight {list(weight.shape)}")  # fmt: skip
    pads, adjust = _deconvolution_pads(s, x.shape[2:], kernel, strides, dilations)
    offset = bias(s, 2, default=True)
    operands = [x, weight] if offset is None else [x, weight, offset]
    y = s.b.op(
        "ConvTranspose", *operands, kernel_shape=list(kernel), strides=list(strides),
        dilations=list(dilations), pads=[*pads, *pads], output_padding=list(adjust), group=group,
    )  # fmt: skip
    return move_channels_last(s, y) if last else y


def _deconvolution_pads(
    s: NodeContext,
    extent: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rank = len(extent)
    target = s.spatial("target_shape", rank, 0)
    pads, adjust = s.spatial("pad", rank, 0), s.spatial("adj", rank, 0)
    s.require(min(*strides, *dilations, *kernel) > 0, "kernel, stride, dilate must be positive")
    if any(target):
        total = [
            st * (n - 1) + d * (k - 1) + 1 - t
            for n, k, st, d, t in zip(extent, kernel, strides, dilations, target, strict=True)
        ]
        s.require(min(total) >= 0, f"target_shape {list(target)} is too large")
        pads, adjust = tuple((t + 1) // 2 for t in total), tuple(t % 2 for t in total)
    small = all(a < max(st, d) for a, st, d in zip(adjust, strides, dilations, strict=True))
    s.require(small and min(*adjust, *pads, 0) >= 0, f"pad {list(pads)} or adj {list(adjust)}")
    return pads, adjust


@translates("FullyConnected", weights=(1, 2))
def fully_connected(s: NodeContext) -> Tensor:
    """Gemm with the weight (out, in); without `flatten` the leading axes stay."""
    x, weight = s.x, s.input(1)
    offset = bias(s, 2)
    s.require(x.rank > 0 and weight.rank >= 2, "the weight is not a matrix")
    weight = s.b.reshape(weight, [weight.shape[0], prod(weight.shape[1:])])
    s.require(weight.shape[0] == s.integer("num_hidden"),
              f"the weight has {weight.shape[0]} rows, not {s.integer('num_hidden')}")  # fmt: skip
    s.require(offset is None or offset.size == weight.shape[0], "the bias doesn't fit the weight")
    return linear(s, x, weight, offset, s.truth("flatten", True))


def linear(s: NodeContext, x: Tensor, weight: Tensor, bias: Tensor | None, flatten: bool) -> Tensor:
    """Emit x · weightᵀ + bias for a matrix `weight` (out, in)."""
    leading = x.shape[:1] if flatten else x.shape[:-1]
    inner = prod(x.shape[len(leading) :])
    s.require(inner == weight.shape[1],
              f"{list(x.shape)} doesn't fit the weight {list(weight.shape)}")  # fmt: skip
    if bias is not None:
        bias = s.b.reshape(bias, [weight.shape[0]])
    if flatten and x.rank > 2:
        x = s.b.op("Flatten", x, axis=1)
    x = s.b.reshape(x, [prod(leading), inner])
    operands = [x, weight] if bias is None else [x, weight, bias]
    y = s.b.op("Gemm", *operands, transB=1)
    return s.b.reshape(y, [*leading, weight.shape[0]])
