"""Activations, softmax in its forms, loss layers at inference."""

from __future__ import annotations

from math import prod

import numpy as np

from atc.importers.domains import STOPS_GRADIENT
from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.tensor import Tensor

ACTIVATIONS = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softrelu": "Softplus",
    "softsign": "Softsign", "mish": "Mish",
}  # fmt: skip


@translates("Activation")
def activation(s: NodeContext) -> Tensor:
    """One of the plain activation functions."""
    return activate(s, s.x)


def activate(s: NodeContext, x: Tensor) -> Tensor:
    """Emit the function that the attribute `act_type` names."""
    kind = s.word("act_type", None, (*ACTIVATIONS, "log_sigmoid"))
    if kind == "log_sigmoid":
        return s.b.op("Neg", s.b.op("Softplus", s.b.op("Neg", x)))
    return s.b.op(ACTIVATIONS[kind], x)


@translates("LeakyReLU", weights=(1,))
def leaky_relu(s: NodeContext) -> Tensor:
    """LeakyRelu, PRelu, Elu, Selu, Gelu; rrelu has the mean slope at inference."""
    b = s.b
    match s.word("act_type", "leaky", ("leaky", "elu", "prelu", "selu", "gelu", "rrelu")):
        case "leaky":
            return b.op("LeakyRelu", s.x, alpha=s.number("slope", 0.25))
        case "elu":
            return b.op("Elu", s.x, alpha=s.number("slope", 0.25))
        case "selu":
            return b.op("Selu", s.x)
        case "gelu":
            return b.op("Gelu", s.x)
        case "rrelu":
            slope = (s.number("lower_bound", 0.125) + s.number("upper_bound", 0.334)) / 2
            return b.op("LeakyRelu", s.x, alpha=slope)
        case _:
            return _prelu(s)


def _prelu(s: NodeContext) -> Tensor:
    """Slopes for each channel (axis 1), or one for all."""
    slope = s.input(1)
    if slope.size == 1:
        return s.b.op("PRelu", s.x, s.b.reshape(slope, [1]))
    s.require(s.x.rank >= 2 and slope.size == s.x.shape[1], "gamma doesn't fit the channels")
    return s.b.op("PRelu", s.x, s.b.reshape(slope, [slope.size] + [1] * (s.x.rank - 2)))


@translates("hard_sigmoid")
def hard_sigmoid(s: NodeContext) -> Tensor:
    """max(0, min(1, alpha·x + beta))."""
    alpha, beta = s.number("alpha", 0.2), s.number("beta", 0.5)
    return s.b.op("HardSigmoid", s.x, alpha=alpha, beta=beta)


# ---- softmax -----------------------------------------------------------------------------------


@translates("softmax", "_npx_softmax")
def softmax(s: NodeContext) -> Tensor:
    """Softmax of x / temperature; with `use_length` of the first cells only."""
    return _softmax(s, "Softmax", s.x)


@translates("log_softmax", "_npx_log_softmax")
def log_softmax(s: NodeContext) -> Tensor:
    """LogSoftmax of x / temperature."""
    return _softmax(s, "LogSoftmax", s.x)


@translates("softmin")
def softmin(s: NodeContext) -> Tensor:
    """Softmax of -x / temperature."""
    return _softmax(s, "Softmax", s.b.op("Neg", s.x))


def _softmax(s: NodeContext, op: str, x: Tensor) -> Tensor:
    axis = s.axis(s.integer("axis", -1), x.rank)
    temperature = s.maybe_number("temperature")
    if temperature not in (None, 1.0):
        x = s.b.op("Div", x, float(temperature or 0))
    masked = s.truth("use_length", False)
    result = x.dtype if not s.has("dtype") else s.element_type()
    if not masked:
        return s.b.cast(s.b.op(op, x, axis=axis), result)
    inside = length_mask(s, s.input(1), x, axis)
    lowest = float(np.finfo(np.float16 if x.dtype == np.float16 else np.float32).min)
    y = s.b.op(op, s.b.op("Where", inside, x, s.b.scalar(lowest, x.dtype)), axis=axis)
    return s.b.cast(s.b.op("Where", inside, y, s.b.scalar(0, x.dtype)), result)


def length_mask(s: NodeContext, length: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return which cells of `x` lie before `length` (x's shape without the axis) along `axis`."""
    others = [d for a, d in enumerate(x.shape) if a != axis]
    s.require(length.size == prod(others), f"length has the shape {list(length.shape)}")
    shape = list(x.shape)
    shape[axis] = 1
    limit = s.b.cast(s.b.reshape(length, shape), np.int64)
    steps = [1] * x.rank
    steps[axis] = x.shape[axis]
    s.require(x.shape[axis] <= 1 << 22, "the axis is too long")
    index = s.b.constant(np.arange(x.shape[axis], dtype=np.int64).reshape(steps))
    return s.b.op("Less", index, limit)


@translates("SoftmaxOutput", "Softmax", reads=1)
def softmax_output(s: NodeContext) -> Tensor:
    """Softmax over all but the batch, over axis 1 (`multi_output`) or over the last axis."""
    if s.truth("multi_output", False):
        return s.b.op("Softmax", s.x, axis=s.axis(1, s.x.rank))
    if s.truth("preserve_shape", False):
        return s.b.op("Softmax", s.x, axis=-1)
    return _flat_softmax(s)


@translates("SoftmaxActivation")
def softmax_activation(s: NodeContext) -> Tensor:
    """Softmax over the last axis ('instance'), or over the channels."""
    channel = s.word("mode", "instance", ("instance", "channel")) == "channel"
    return s.b.op("Softmax", s.x, axis=s.axis(1 if channel else -1, s.x.rank))


def _flat_softmax(s: NodeContext) -> Tensor:
    s.require(s.x.rank >= 1, "a scalar has no batch")
    rows = s.x.shape[0] if s.x.rank > 1 else 1
    flat = s.b.reshape(s.x, [rows, s.x.size // max(rows, 1)])
    return s.b.reshape(s.b.op("Softmax", flat, axis=1), s.x.shape)


# ---- losses at inference -----------------------------------------------------------------------


@translates("LinearRegressionOutput", "MAERegressionOutput", "SVMOutput", "MakeLoss", "make_loss",
            "IdentityAttachKLSparseReg", reads=1)  # fmt: skip
def loss_identity(s: NodeContext) -> Tensor:
    """Pass the data of a loss layer through, as at inference."""
    return s.b.op("Identity", s.x)


@translates("LogisticRegressionOutput", reads=1)
def logistic_output(s: NodeContext) -> Tensor:
    """Sigmoid at inference."""
    return s.b.op("Sigmoid", s.x)


@translates("BlockGrad", "stop_gradient", reads=1)
def block_grad(s: NodeContext) -> Tensor:
    """Hand the data through; training steps see that gradients stop here."""
    (y,) = s.b.emit("Identity", [s.x], fold=False)
    node = y.value.producer()
    assert node is not None
    node.metadata_props.update([STOPS_GRADIENT])
    return y


@translates("identity", "_copy", "_copyto", "_CrossDeviceCopy", "cast_storage",
            "_identity_with_attr_like_rhs", reads=1)  # fmt: skip
def identity(s: NodeContext) -> Tensor:
    """Hand the data through."""
    return s.b.op("Identity", s.x)


@translates("Dropout")
def dropout(s: NodeContext) -> tuple[Tensor, ...]:
    """Nothing at inference; `mode='always'` is random even then."""
    if s.word("mode", "training", ("training", "always")) == "always" and s.number("p", 0.5) > 0:
        raise s.unsupported("Dropout with mode='always' is random at inference")
    return (s.b.op("Identity", s.x),)
