"""Models of Keras, with random weights, as tf2onnx writes them: channels last, transposed about.

Needs tensorflow and tf2onnx; a test skips without them. What tensorflow computes is the truth.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx
from fuzz.choices import Random
from fuzz.compare import Case

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf
import tf2onnx

layers = tf.keras.layers
LARGEST = 6000
"""Elements of a value between two steps."""

Function = Callable[[Any], Any]
Step = Callable[[Random, Any], Function]
"""Takes what the step before made, returns a function of it; its layers are made once."""


def conv(r: Random, x: Any) -> Function:
    made = r.pick(
        lambda: layers.Conv2D(
            r.pick(2, 4, 6), r.pick(1, 3, (2, 3)), r.pick(1, 2), padding=r.pick("same", "valid"),
            activation=r.pick(None, "relu", "swish"), use_bias=r.chance(),
        ),
        lambda: layers.Conv2D(4, 3, padding="same", dilation_rate=2),
        lambda: layers.DepthwiseConv2D(
            3, r.pick(1, 2), padding="same", depth_multiplier=r.pick(1, 2)
        ),
        lambda: layers.SeparableConv2D(5, 3, padding="same", activation="relu6"),
        lambda: layers.Conv2DTranspose(3, 3, r.pick(1, 2), padding=r.pick("same", "valid")),
    )  # fmt: skip
    return made()


def pool(r: Random, x: Any) -> Function:
    kind = r.pick(layers.MaxPooling2D, layers.AveragePooling2D)
    return kind(r.pick(2, 3), r.pick(1, 2), padding=r.pick("same", "valid"))


def norm(r: Random, x: Any) -> Function:
    c = x.shape[-1]
    mean, variance = (r.array(c).astype(np.float32) for _ in range(2))
    scale = np.abs(variance) + np.float32(0.3)
    kinds: list[Function] = [
        lambda x: tf.nn.batch_normalization(x, mean, scale, mean, variance, 1e-3),
        layers.LayerNormalization(), layers.UnitNormalization(),
        layers.GroupNormalization(r.divisor(c)), lambda x: tf.nn.l2_normalize(x, -1),
        tf.nn.local_response_normalization, layers.BatchNormalization(),
    ]  # fmt: skip
    return r.pick(*kinds)  # type: ignore[no-any-return]


def residual(r: Random, x: Any) -> Function:
    c = x.shape[-1]
    inner = [
        layers.Conv2D(2 * c, 1, activation="relu6"), layers.DepthwiseConv2D(3, padding="same"),
        layers.Conv2D(c, 1),
    ]  # fmt: skip
    mean, gate = layers.GlobalAveragePooling2D(keepdims=True), layers.Conv2D(2 * c, 1)
    squeezed = r.chance()

    def whole(x: Any) -> Any:
        y = inner[1](inner[0](x))
        return x + inner[2](y * tf.sigmoid(gate(mean(y))) if squeezed else y)

    return whole


def resize(r: Random, x: Any) -> Function:
    kind, height = r.pick("nearest", "bilinear"), r.pick(5, 8, 11)
    corners, pad = r.chance(), r.pick("REFLECT", "SYMMETRIC")
    return r.pick(  # type: ignore[no-any-return]
        layers.UpSampling2D(2, interpolation=kind),
        lambda x: tf.image.resize(x, (height, 7), kind),
        lambda x: tf.compat.v1.image.resize_bilinear(x, (9, 10), align_corners=corners),
        layers.ZeroPadding2D(((1, 2), (0, 1))), layers.Cropping2D((1, 1)),
        lambda x: tf.pad(x, [[0, 0], [1, 1], [2, 1], [0, 0]], pad),
        lambda x: tf.nn.depth_to_space(tf.concat([x] * 4, -1), 2),
        lambda x: tf.nn.space_to_depth(x, 2),
    )  # fmt: skip


def join(r: Random, x: Any) -> Function:
    other = layers.Conv2D(3, 3, padding="same")
    return r.pick(  # type: ignore[no-any-return]
        lambda x: tf.concat([x, other(x)], -1), lambda x: tf.concat([tf.nn.relu(x), x], 1),
        lambda x: x * tf.reduce_mean(other(x), [1, 2, 3], keepdims=True),
        lambda x: tf.concat(tf.split(x, x.shape[-1], -1)[::-1], -1),
    )  # fmt: skip


def dense(r: Random, x: Any) -> Function:
    return layers.Dense(r.pick(3, 8), activation=r.pick(None, "relu", "gelu", "softmax"))


def recurrent(r: Random, x: Any) -> Function:
    kind = r.pick(layers.LSTM, layers.GRU, layers.SimpleRNN)
    layer = kind(r.pick(3, 6), return_sequences=True)
    return layers.Bidirectional(layer) if r.chance() else layer


def attention(r: Random, x: Any) -> Function:
    if r.chance():
        layer, causal = layers.MultiHeadAttention(2, 3), r.chance()
        return lambda x: layer(x, x, use_causal_mask=causal)
    plain = layers.Attention()
    return lambda x: plain([x, x])


def conv1d(r: Random, x: Any) -> Function:
    if r.chance():
        return layers.Conv1D(5, 3, padding=r.pick("same", "causal"), dilation_rate=2)
    return layers.Conv1D(4, r.pick(1, 3), r.pick(1, 2), padding="same", activation="tanh")


def embedding(r: Random, x: Any) -> Function:
    table = r.array(10, x.shape[-1]).astype(np.float32)

    def read(x: Any) -> Any:
        places = tf.cast(tf.clip_by_value(tf.reduce_sum(x, -1) * 2.0, 0.0, 9.0), tf.int32)
        return tf.gather(table, places) + x

    return read


FUNCTIONS: Sequence[Callable[[Any], Any]] = (
    tf.nn.relu,
    tf.nn.relu6,
    tf.nn.elu,
    tf.nn.selu,
    tf.nn.silu,
    tf.nn.gelu,
    tf.nn.softplus,
    tf.nn.softsign,
    tf.nn.leaky_relu,
    tf.nn.log_softmax,
    tf.nn.softmax,
    tf.sigmoid,
    tf.tanh,
    lambda x: x * tf.nn.relu6(x + 3.0) / 6.0,
    lambda x: tf.nn.gelu(x, approximate=True),
    lambda x: tf.math.rsqrt(x * x + 1.0),
    lambda x: x - tf.reduce_max(x, 1, keepdims=True),
    lambda x: tf.reverse(x, [1]),
    lambda x: tf.roll(x, 1, 1),
    lambda x: tf.cumsum(x, 1) * 0.2,
    lambda x: tf.where(x > 0.0, x, tf.exp(x)),
    lambda x: x[:, ::-1],
    lambda x: x[:, :-1] + x[:, 1:],
    lambda x: tf.sort(x, -1),
    lambda x: tf.math.top_k(x, 2)[0],
    lambda x: tf.gather(x, [0, 0, 1], axis=1),
    lambda x: tf.tile(x, [1, 2] + [1] * (len(x.shape) - 2)),
    lambda x: tf.stack([x, x], 1)[:, 0],
    lambda x: tf.clip_by_value(x, -0.5, 0.7),
    lambda x: tf.math.floormod(x, 0.7),
    lambda x: tf.round(x) + x,
    lambda x: tf.one_hot(tf.argmax(x, -1), x.shape[-1]) + x,
    lambda x: tf.cast(x > 0.0, tf.float32) * x,
    lambda x: tf.math.erf(x),
    lambda x: tf.math.floordiv(x, 0.3),
    lambda x: tf.square(x) - tf.pow(x, 2.0),
    lambda x: tf.linalg.matmul(x, x, transpose_b=True) * 0.1,
    lambda x: tf.einsum("n...c,dc->n...d", x, tf.ones([3, x.shape[-1]])),
    lambda x: tf.math.squared_difference(x, 0.5),
    lambda x: tf.reduce_logsumexp(x, -1, keepdims=True) + x,
    lambda x: tf.math.reduce_std(x, 1, keepdims=True) + x,
    lambda x: tf.linalg.band_part(x, -1, 0),
    lambda x: tf.math.divide_no_nan(x, tf.nn.relu(x)),
    lambda x: tf.transpose(x, [0, *range(len(x.shape) - 1, 0, -1)]),
    lambda x: tf.reduce_prod(x, -1, keepdims=True) + x,
    lambda x: tf.maximum(x, 0.1) - tf.minimum(x, 0.2),
    lambda x: tf.math.segment_sum(x, tf.zeros(x.shape[0], tf.int32)) + x,
    lambda x: tf.concat(tf.unstack(x[None], axis=0), 0),
    lambda x: tf.reshape(tf.reshape(x, [x.shape[0], -1]), x.shape) + 1.0,
    lambda x: tf.expand_dims(x, 1)[:, 0] * 2.0,
)


def functional(r: Random, x: Any) -> Function:
    return r.pick(*FUNCTIONS)  # type: ignore[no-any-return]


IMAGE: Sequence[Step] = (conv, pool, norm, residual, resize, join, functional, functional)
SEQUENCE: Sequence[Step] = (
    dense, recurrent, attention, conv1d, embedding, norm, functional, functional
)  # fmt: skip


def draw_keras(seed: int) -> Case:
    """Return a model of a seed."""
    for logger in ("tensorflow", "tf2onnx"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    for attempt in range(50):
        r = Random(seed + 10**6 * attempt)
        tf.keras.utils.set_random_seed(seed)
        image = r.chance(0.6)
        shape = [r.pick(1, 2), 8, 9, r.pick(2, 4)] if image else [r.pick(1, 2), 7, r.pick(4, 6)]
        x = tf.constant(r.array(*shape).astype(np.float32))
        steps, names = _steps(r, x, IMAGE if image else SEQUENCE)
        spec = [tf.TensorSpec(shape, tf.float32, name="x")]
        whole = tf.function(lambda x, steps=steps: reduce(_apply, steps, x), input_signature=spec)
        opset = r.pick(13, 15, 17, 18)
        try:
            expected = whole(x).numpy()
            proto, _ = tf2onnx.convert.from_function(whole, spec, opset=opset)
            onnx.checker.check_model(proto)  # some have an Erfc, which is no operator
        except Exception:  # the converter lacks some operators
            continue
        label = f"keras {seed} {'+'.join(names)} {opset}"
        return Case(label, proto, {proto.graph.input[0].name: x.numpy()}, (expected,))
    raise ValueError(f"seed {seed} draws nothing")


def _apply(x: Any, step: Function) -> Any:
    return step(x)


def _steps(r: Random, x: Any, kinds: Sequence[Step]) -> tuple[list[Function], list[str]]:
    """Return functions that follow each other, and their names."""
    steps, names, wanted = list[Function](), list[str](), r.pick(1, 2, 3, 4)
    for _ in range(40):
        if len(steps) == wanted:
            break
        kind = r.pick(*kinds)
        try:
            step = kind(r, x)
            y = step(x)
        except Exception:  # of many kinds: the choices don't fit
            continue
        good = len(y.shape) == len(x.shape) and y.dtype == tf.float32
        if good and 0 < np.prod(y.shape) <= LARGEST and np.abs(y).max() < 100:
            steps, names, x = [*steps, step], [*names, kind.__name__], y
    return steps, names
