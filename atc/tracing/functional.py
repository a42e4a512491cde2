"""Layers of networks: activations, convolutions, normalizations, pooling, losses.

Images are [N, C, H, W], labels are integers [N]. Together with the functions of `array_api`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from atc.tracing import array_api as xp
from atc.tracing.creation import axis_of
from atc.tracing.errors import ArgumentError, OperandError, place
from atc.tracing.parameter import Parameter
from atc.tracing.tensor import Tensor, asarray, node

Sizes = int | Sequence[int]


def _sizes(value: Sizes, rank: int) -> list[int]:
    found = [value] * rank if isinstance(value, int) else [*value]
    if len(found) != rank:
        raise ArgumentError(f"{len(found)} sizes for {rank} axes", where=place())
    return found


# ---- activations --------------------------------------------------------------------------------


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return node("Relu", x)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return x where it is positive, else x times the slope."""
    return node("LeakyRelu", x, alpha=negative_slope)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return node("Sigmoid", x)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return x * node("Sigmoid", x)


def gelu(x: Tensor) -> Tensor:
    """x times the probability that a normal variable is below x."""
    return x * 0.5 * (1.0 + node("Erf", x * 0.7071067811865476))


def hardswish(x: Tensor) -> Tensor:
    """x max(0, min(6, x + 3)) / 6."""
    return x * xp.clip(x + 3.0, 0.0, 6.0) * (1 / 6)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))."""
    return node("Softplus", x)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) over its sum along an axis."""
    return node("Softmax", x, axis=axis)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Return the logarithm of softmax."""
    return node("LogSoftmax", x, axis=axis)


# ---- layers -------------------------------------------------------------------------------------


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias; the weight is [out, in]."""
    y = x @ weight.mT
    return y if bias is None else y + bias


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolve images [N, C, H, W] with filters [out, C / groups, h, w]."""
    return _conv(2, x, weight, bias, stride, padding, dilation, groups)


def conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolve sequences [N, C, L] with filters [out, C / groups, l]."""
    return _conv(1, x, weight, bias, stride, padding, dilation, groups)


def _conv(
    rank: int, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes,
    dilation: Sizes, groups: int,
) -> Tensor:  # fmt: skip
    pads = _sizes(padding, rank)
    return node("Conv", x, weight, bias, strides=_sizes(stride, rank), pads=[*pads, *pads],
                dilations=_sizes(dilation, rank), group=groups)  # fmt: skip


def conv_transpose2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """Transposed convolution with filters [C, out / groups, h, w]."""
    pads = _sizes(padding, 2)
    return node("ConvTranspose", x, weight, bias, strides=_sizes(stride, 2), pads=[*pads, *pads],
                dilations=_sizes(dilation, 2), output_padding=_sizes(output_padding, 2),
                group=groups)  # fmt: skip


def max_pool2d(
    x: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0
) -> Tensor:
    """Return the largest of each window."""
    return _pool("MaxPool", x, kernel_size, stride, padding)


def avg_pool2d(
    x: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0
) -> Tensor:
    """Return the mean of each window, padding included."""
    return _pool("AveragePool", x, kernel_size, stride, padding, count_include_pad=1)


def _pool(
    op: str, x: Tensor, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, **more: int
) -> Tensor:
    kernel, pads = _sizes(kernel_size, 2), _sizes(padding, 2)
    steps = kernel if stride is None else _sizes(stride, 2)
    return node(op, x, kernel_shape=kernel, strides=steps, pads=[*pads, *pads], **more)


def global_avg_pool2d(x: Tensor) -> Tensor:
    """Return the mean of each channel of an image: [N, C, 1, 1]."""
    return node("GlobalAveragePool", x)


def flatten(x: Tensor, start: int = 1) -> Tensor:
    """Return x with all axes from `start` on flattened."""
    return xp.reshape(x, [*x.shape[:start], -1])


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, axes: int = 1,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalize over the last axes; halves are computed with as floats."""
    (x, weight, bias), dtype = _wide(x, weight, bias)
    over = [*range(x.ndim - axes, x.ndim)]
    away = x - xp.mean(x, axis=over, keepdims=True)
    y = away / node("Sqrt", xp.mean(away * away, axis=over, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return xp.astype(y if bias is None else y + bias, dtype)


def batch_norm(
    x: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor, bias: Tensor,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalize each channel, by the batch's statistics in training, else by the running ones.

    In training the running ones, which are Parameters then, take in the batch's with the weight
    `momentum`. Halves are computed with as floats.
    """
    (x, weight, bias), dtype = _wide(x, weight, bias)
    channels = [1, -1, *[1] * (x.ndim - 2)]
    shaped = [xp.reshape(v, channels) for v in (weight, bias)]
    if not training:
        mean, var = (xp.reshape(v, channels) for v in (running_mean, running_var))
        return xp.astype((x - mean) / node("Sqrt", var + eps) * shaped[0] + shaped[1], dtype)
    axes = [a for a in range(x.ndim) if a != 1]
    mean = xp.mean(x, axis=axes, keepdims=True)
    away = x - mean
    var = xp.mean(away * away, axis=axes, keepdims=True)
    count = x.size or 1
    count //= x.shape[1] or 1
    unbiased = var * (count / max(count - 1, 1))
    for running, now in ((running_mean, mean), (running_var, unbiased)):
        if not isinstance(running, Parameter):
            raise OperandError("running statistics aren't Parameters", where=place())
        running.assign(running * (1 - momentum) + xp.reshape(now, [-1]) * momentum)
    return xp.astype(away / node("Sqrt", var + eps) * shaped[0] + shaped[1], dtype)


def _wide(*tensors: Any) -> tuple[list[Any], np.dtype[Any]]:
    """Return tensors, halves as floats: they hold neither squares nor long sums; and their type."""
    dtype = np.result_type(*(x.dtype for x in tensors if x is not None))
    wide = np.result_type(dtype, np.float32)
    return [x if x is None else xp.astype(x, wide) for x in tensors], dtype


def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    """Return rows of the weight."""
    return node("Gather", weight, indices, axis=0)


def one_hot(indices: Tensor, classes: int, dtype: Any = np.float32) -> Tensor:
    """Return 1 at each index and 0 elsewhere, along a new last axis."""
    values = xp.asarray(np.array([0, 1], dtype))
    depth = xp.asarray(np.array(classes, np.int64))
    values.constant = depth.constant = True
    return node("OneHot", indices, depth, values)


# ---- losses -------------------------------------------------------------------------------------


def cross_entropy(pred: Tensor, label: Tensor, axis: int = 1, ignore_index: int = -100) -> Tensor:
    """Return the mean of -log softmax(pred) at the labels, which have the shape without `axis`.

    Labels that are `ignore_index` don't count, as in PyTorch. One that is no class makes the loss
    NaN, and has no gradient.
    """
    return nll_loss(log_softmax(pred, axis), label, axis, ignore_index)


def nll_loss(
    log_probabilities: Tensor, label: Tensor, axis: int = 1, ignore_index: int = -100
) -> Tensor:
    """Return the negated mean of the values at the labels, by the rules of `cross_entropy`."""
    label, along = asarray(label), axis_of(log_probabilities, axis)
    shape = [n for k, n in enumerate(log_probabilities.shape) if k != along]
    if [*label.shape] != shape or label.dtype.kind not in "iu":
        raise ArgumentError(
            f"labels of {label.dtype} {[*label.shape]} for predictions of "
            f"{[*log_probabilities.shape]}", where=place(), hint=f"give integers {shape}",
        )  # fmt: skip
    label, dtype = xp.astype(label, np.int64), log_probabilities.dtype
    wide = np.result_type(dtype, np.float32)  # halves hold neither such sums nor such counts
    counts = label != ignore_index
    is_class = counts & (label >= 0) & (label < log_probabilities.shape[along])
    at = xp.expand_dims(xp.where(is_class, label, 0), axis=axis)
    values = xp.squeeze(xp.take_along_axis(log_probabilities, at, axis=axis), axis=axis)
    others = xp.where(counts, asarray(np.array(np.nan, dtype)), asarray(np.array(0, dtype)))
    total = xp.sum(xp.astype(xp.where(is_class, values, others), wide))
    return xp.astype(-total / xp.sum(xp.astype(counts, wide)), dtype)


def square_loss(pred: Tensor, label: Tensor) -> Tensor:
    """Return the mean of the squared differences."""
    (away,), dtype = _wide(_compared(pred, label))
    return xp.astype(xp.mean(away * away), dtype)


def l1_loss(pred: Tensor, label: Tensor) -> Tensor:
    """Return the mean of the absolute differences."""
    return xp.mean(abs(_compared(pred, label)))


def binary_cross_entropy(pred: Tensor, label: Tensor) -> Tensor:
    """Return the mean cross entropy of logits and labels from 0 to 1."""
    _compared(pred, label)
    return xp.mean(node("Softplus", pred) - pred * label)


def _compared(pred: Tensor, label: Tensor) -> Tensor:
    label = asarray(label)
    if pred.shape != label.shape:
        raise ArgumentError(
            f"labels of {[*label.shape]} for predictions of {[*pred.shape]}", where=place()
        )
    return pred - label
