"""Normalisation: batch, layer, group, instance, L2 and local response."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.tensor import Tensor
from atc.importers.onnx_builder import type_of


@translates("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "_npx_batch_norm", weights=(1, 2, 3, 4))
def batch_norm(s: NodeContext) -> tuple[Tensor, ...]:
    """BatchNormalization with the moving statistics; `fix_gamma` (the default) makes gamma one."""
    return _batch_norm(s, s.integer("axis", 1))


@translates("_contrib_SyncBatchNorm", weights=(1, 2, 3, 4))
def sync_batch_norm(s: NodeContext) -> tuple[Tensor, ...]:
    """BatchNorm over several devices, which at inference is BatchNorm."""
    return _batch_norm(s, 1)


@translates("_contrib_BatchNormWithReLU", weights=(1, 2, 3, 4))
def batch_norm_relu(s: NodeContext) -> tuple[Tensor, ...]:
    """BatchNorm, then Relu."""
    y, mean, variance = _batch_norm(s, s.integer("axis", 1))
    return s.b.op("Relu", y), mean, variance


def _batch_norm(s: NodeContext, axis: int) -> tuple[Tensor, ...]:
    x, mean, variance = s.x, s.input(3), s.input(4)
    axis = s.axis(axis, x.rank)
    parts = [s.input(1), s.input(2), mean, variance]
    s.require(all(p.shape == (x.shape[axis],) for p in parts),
              f"gamma, beta, mean and variance must have {x.shape[axis]} elements")  # fmt: skip
    if s.truth("fix_gamma", True):
        parts[0] = s.b.constant(np.ones(x.shape[axis], parts[0].dtype))
    if x.rank == 1:
        raise s.unsupported("a vector has no channels")
    order = [a for a in range(x.rank) if a != axis]
    order.insert(1, axis)
    moved = s.b.transpose(x, order)
    y = s.b.op("BatchNormalization", moved, *parts, epsilon=s.number("eps", 1e-3))
    return s.b.transpose(y, [order.index(a) for a in range(x.rank)]), mean, variance


@translates("LayerNorm", "_npx_layer_norm", weights=(1, 2))
def layer_norm(s: NodeContext) -> tuple[Tensor, ...]:
    """LayerNormalization over one axis."""
    x, axis, eps = s.x, s.axis(s.integer("axis", -1), s.x.rank), s.number("eps", 1e-5)
    gamma, beta = s.input(1), s.input(2)
    s.require(gamma.shape == beta.shape == (x.shape[axis],), "gamma or beta doesn't fit the axis")
    order = [a for a in range(x.rank) if a != axis] + [axis]
    moved = s.b.transpose(x, order)
    y = s.b.op("LayerNormalization", moved, gamma, beta, axis=-1, epsilon=eps)
    return (s.b.transpose(y, [order.index(a) for a in range(x.rank)]), *_moments(s, x, [axis], eps))


def _moments(s: NodeContext, x: Tensor, axes: Sequence[int], eps: float) -> tuple[Tensor, Tensor]:
    """Return the mean and the deviation, which few graphs read."""
    if not s.truth("output_mean_var", False):
        return x, x
    mean = s.b.op("ReduceMean", x, axes, keepdims=1)
    spread = s.b.op("Sub", x, mean)
    variance = s.b.op("ReduceMean", s.b.op("Mul", spread, spread), axes, keepdims=1)
    return mean, s.b.op("Sqrt", s.b.op("Add", variance, eps))


@translates("InstanceNorm", weights=(1, 2))
def instance_norm(s: NodeContext) -> Tensor:
    """InstanceNormalization over all axes behind the channels."""
    s.require(s.x.rank >= 3, "the data has no spatial axes")
    return s.b.op(
        "InstanceNormalization", s.x, s.input(1), s.input(2), epsilon=s.number("eps", 1e-3)
    )


@translates("GroupNorm", weights=(1, 2))
def group_norm(s: NodeContext) -> tuple[Tensor, ...]:
    """GroupNormalization; gamma and beta are per group in MXNet 1, per channel in 2."""
    x, groups = s.x, s.integer("num_groups", 1)
    s.require(x.rank >= 3, "the data has no spatial axes")
    channels = x.shape[1]
    s.require(x.dtype.kind not in "iub", "the data are integers")
    s.require(groups > 0 and channels % groups == 0, f"{channels} channels in {groups} groups")
    scale, offset = (
        _per_channel(s, s.b.cast(s.input(i), x.dtype), groups, channels) for i in (1, 2)
    )
    attributes = {"num_groups": groups, "epsilon": s.number("eps", 1e-5)}
    y = s.b.emit("GroupNormalization", [x, scale, offset], attributes, 1, [type_of(x.value)])
    return y[0], x, x


def _per_channel(s: NodeContext, weight: Tensor, groups: int, channels: int) -> Tensor:
    if weight.shape == (channels,):
        return weight
    s.require(weight.shape == (groups,), "gamma or beta doesn't fit groups or channels")
    columns = s.b.expand(s.b.reshape(weight, [groups, 1]), [groups, channels // groups])
    return s.b.reshape(columns, [channels])


@translates("L2Normalization")
def l2_normalization(s: NodeContext) -> Tensor:
    """x / √(Σx² + eps) over the instance, the channels or the space."""
    x = s.x
    s.require(x.rank >= 2, "the data has no batch and channels")
    match s.word("mode", "instance", ("instance", "channel", "spatial")):
        case "instance":
            axes = list(range(1, x.rank))
        case "channel":
            axes = [1]
        case _:
            axes = list(range(2, x.rank))
    s.require(bool(axes), "the data has no spatial axes")
    total = s.b.op("ReduceSumSquare", x, axes, keepdims=1)
    return s.b.op("Div", x, s.b.op("Sqrt", s.b.op("Add", total, s.number("eps", 1e-10))))


@translates("LRN")
def local_response(s: NodeContext) -> tuple[Tensor, ...]:
    """LRN; alpha is divided by the size in both."""
    size = s.integer("nsize")
    s.require(size > 0 and size % 2 == 1, f"nsize is {size}, which is not odd")
    y = s.b.op(
        "LRN", s.x, size=size, alpha=s.number("alpha", 1e-4),
        beta=s.number("beta", 0.75), bias=s.number("knorm", 2.0),
    )  # fmt: skip
    return (y, s.x)
