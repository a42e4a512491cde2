"""Models of PaddlePaddle, with random weights, as paddle2onnx writes them.

Needs paddlepaddle and paddle2onnx; a test skips without them. What Paddle computes is the truth.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import paddle
import paddle.nn.functional as F
from fuzz.choices import Random
from fuzz.compare import Case
from paddle import nn

LARGEST = 6000
"""Elements of a value between two steps."""


class Function(nn.Layer):
    """A function of tensors as a layer."""

    def __init__(self, function: Callable[..., Any], *layers: Any) -> None:
        super().__init__()
        self.function, self.inner = function, nn.LayerList(layers)

    def forward(self, x: Any) -> Any:
        return self.function(*self.inner, x)


def conv(r: Random, x: Any) -> Any:
    c = x.shape[1]
    return r.pick(
        nn.Conv2D(c, r.pick(2, 5), r.pick(1, 3), r.pick(1, 2), padding=r.pick(0, 1, "SAME")),
        nn.Conv2D(c, c, 3, padding=1, groups=c, padding_mode=r.pick("zeros", "reflect")),
        nn.Conv2DTranspose(c, 3, r.pick(2, 3), r.pick(1, 2), padding=r.pick(0, 1)),
    )


def norm(r: Random, x: Any) -> Any:
    c = x.shape[1]
    return r.pick(
        nn.BatchNorm2D(c), nn.GroupNorm(r.divisor(c), c), nn.InstanceNorm2D(c),
        nn.LayerNorm(x.shape[1:]), nn.LayerNorm(x.shape[-1]), nn.LocalResponseNorm(3),
    )  # fmt: skip


def pool(r: Random, x: Any) -> Any:
    return r.pick(
        nn.MaxPool2D(r.pick(2, 3), r.pick(1, 2), ceil_mode=r.chance()), nn.AdaptiveAvgPool2D(1),
        nn.AvgPool2D(2, r.pick(1, 2), padding=r.pick(0, 1), exclusive=r.chance()),
        nn.AdaptiveMaxPool2D(1), nn.AdaptiveAvgPool2D(r.divisor(x.shape[2])),
    )  # fmt: skip


def resize(r: Random, x: Any) -> Any:
    mode, corners = r.pick("nearest", "bilinear", "bicubic"), r.chance()
    corners = corners and mode != "nearest"
    if r.chance():
        return Function(lambda y: F.interpolate(y, [9, 7], mode=mode, align_corners=corners))
    scale = r.pick(2, 1.5)
    return r.pick(
        Function(lambda y: F.interpolate(y, scale_factor=scale, mode=mode, align_corners=corners)),
        nn.Pad2D([1, 0, 2, 1], mode=r.pick("constant", "reflect", "replicate")),
        nn.PixelShuffle(2), nn.ChannelShuffle(r.divisor(x.shape[1])),
    )  # fmt: skip


def blocks(r: Random, x: Any) -> Any:
    c = x.shape[1]
    down, up = nn.Conv2D(c, 3, 1), nn.Conv2D(3, c, 1)
    wide = nn.Sequential(nn.Conv2D(c, 2 * c, 1), nn.BatchNorm2D(2 * c), nn.Hardswish())
    narrow = nn.Conv2D(2 * c, c, 3, padding=1)
    return r.pick(
        Function(
            lambda a, b, y: y * F.hardsigmoid(b(F.relu(a(F.adaptive_avg_pool2d(y, 1)))), slope=0.2),
            down,
            up,
        ),  # fmt: skip
        Function(lambda a, b, y: y + b(a(y)), wide, narrow),
        Function(lambda a, y: paddle.concat([y, F.relu(a(y))], 1), down),
        Function(lambda y: paddle.concat(paddle.split(y, y.shape[1], 1)[::-1], 1)),
    )


def linear(r: Random, x: Any) -> Any:
    return nn.Linear(x.shape[-1], r.pick(3, 8))


def recurrent(r: Random, x: Any) -> Any:
    kind = r.pick(nn.LSTM, nn.GRU, nn.SimpleRNN)
    layer = kind(x.shape[-1], r.pick(3, 5), direction=r.pick("forward", "bidirect"))
    return Function(lambda f, y: f(y)[0], layer)


def attention(r: Random, x: Any) -> Any:
    c = x.shape[-1]
    heads = r.divisor(c)
    return r.pick(
        Function(lambda f, y: f(y, y, y), nn.MultiHeadAttention(c, heads)),
        nn.TransformerEncoderLayer(c, heads, 2 * c, dropout=0.0, normalize_before=r.chance()),
        nn.Sequential(nn.LayerNorm(c), nn.Linear(c, 2 * c), nn.GELU(), nn.Linear(2 * c, c)),
    )


def conv1d(r: Random, x: Any) -> Any:
    layer = nn.Conv1D(x.shape[-1], 4, 3, padding=r.pick(0, 2))
    return Function(lambda f, y: f(y.transpose([0, 2, 1])).transpose([0, 2, 1]), layer)


FUNCTIONS: Sequence[Callable[[Any], Any]] = (
    F.relu,
    F.relu6,
    F.gelu,
    F.silu,
    F.mish,
    F.swish,
    F.elu,
    F.selu,
    F.hardswish,
    F.hardsigmoid,
    F.softplus,
    F.softsign,
    F.tanhshrink,
    F.softshrink,
    F.hardshrink,
    F.log_sigmoid,
    F.sigmoid,
    F.softmax,
    F.log_softmax,
    paddle.tanh,
    paddle.erf,
    F.leaky_relu,
    lambda x: F.glu(x, 1),
    lambda x: F.thresholded_relu(x, 0.2),
    lambda x: x.clip(-0.5, 0.7),
    lambda x: x.abs().sqrt(),
    lambda x: x.flip(1),
    lambda x: paddle.roll(x, 1, 1),
    lambda x: x.cumsum(1) * 0.2,
    lambda x: paddle.where(x > 0, x, x.exp() - 1),
    lambda x: x[:, ::-1] * 1.5,
    lambda x: x[:, 1:],
    lambda x: x.topk(2, -1)[0],
    lambda x: x.sort(-1),
    lambda x: x.mean(-1, keepdim=True) + x,
    lambda x: x - x.max(1, keepdim=True),
    lambda x: x.norm(p=2, axis=1, keepdim=True) + x,
    lambda x: F.normalize(x, axis=1),
    lambda x: x.logsumexp(-1, keepdim=True) - x,
    lambda x: paddle.stack([x, -x], 1).flatten(1, 2),
    lambda x: x.tile([1, 2] + [1] * (x.ndim - 2)),
    lambda x: paddle.gather(x, paddle.to_tensor([0, 0, 1]), axis=1),
    lambda x: x.unsqueeze(1).squeeze(1) * 2,
    lambda x: paddle.index_select(x, paddle.to_tensor([1, 0]), axis=1),
    lambda x: paddle.tril(x),
    lambda x: F.one_hot(x.argmax(-1), x.shape[-1]) + x,
    lambda x: (x > 0).astype("float32") * x,
    lambda x: paddle.matmul(x, x, transpose_y=True) * 0.1,
    lambda x: x.floor() + x.round() * 0.5,
    lambda x: x % 0.7,
    lambda x: x // 0.3,
    lambda x: x**2 + x.pow(3.0),
    lambda x: x.rsqrt().nan_to_num(0.5),
    lambda x: x.expand([x.shape[0], *x.shape[1:]]) + 1,
    lambda x: paddle.full_like(x, 0.5) * x,
    lambda x: x.std(-1, keepdim=True) + x,
    lambda x: x.reshape([x.shape[0], -1]).reshape(x.shape) + 0.5,
    lambda x: paddle.cast(paddle.cast(x * 3, "int64"), "float32"),
    lambda x: x.prod(-1, keepdim=True) + x,
    lambda x: paddle.scatter(x, paddle.to_tensor([0]), x[:1] * 2),
    lambda x: paddle.maximum(x, -x),
)


def functional(r: Random, x: Any) -> Any:
    return Function(r.pick(*FUNCTIONS))


IMAGE = (conv, norm, pool, resize, blocks, functional, functional)
SEQUENCE = (linear, recurrent, attention, conv1d, functional, functional)


def draw_paddle(seed: int) -> Case:
    """Return a model of a seed; half of them are exported for any batch, then pinned to one."""
    for attempt in range(50):
        r = Random(seed + 10**6 * attempt)
        paddle.seed(seed)
        image, opset = r.chance(0.6), r.pick(11, 13, 15, 17)
        shape = [r.pick(1, 2), 4, 8, 7] if image else [r.pick(1, 2), 7, r.pick(4, 6)]
        x = paddle.to_tensor(r.array(*shape).astype(np.float32))
        model, names = _steps(r, x, IMAGE if image else SEQUENCE)
        first = -1 if r.chance() else shape[0]
        try:
            proto = _written(model, [first, *shape[1:]], opset)
            onnx.checker.check_model(proto)  # SimpleRNN and GRU are left out of some
        except Exception:  # the converter lacks some operators
            continue
        (given,) = proto.graph.input
        for dim, extent in zip(given.type.tensor_type.shape.dim, shape, strict=True):
            dim.dim_value = extent
        label = f"paddle {seed} {'+'.join(names)} {opset}"
        return Case(label, proto, {given.name: x.numpy()}, (model(x).numpy(),))
    raise ValueError(f"seed {seed} draws nothing")


def _steps(r: Random, x: Any, kinds: Sequence[Callable[..., Any]]) -> tuple[Any, list[str]]:
    """Return layers that follow each other, and their names."""
    steps, names, wanted = list[Any](), list[str](), r.pick(1, 2, 3, 4)
    for _ in range(40):
        if len(steps) == wanted:
            break
        kind = r.pick(*kinds)
        try:
            step = kind(r, x)
            step.eval()
            y = step(x)
        except Exception:  # of many kinds: the choices don't fit
            continue
        small = 0 < y.size <= LARGEST and y.ndim == x.ndim and y.dtype == paddle.float32
        if small and np.isfinite(y.numpy()).all() and np.abs(y.numpy()).max() < 100:
            steps, names, x = [*steps, step], [*names, kind.__name__], y
    whole = nn.Sequential(*steps)
    whole.eval()
    return whole, names


def _written(model: Any, shape: Sequence[int], opset: int) -> onnx.ModelProto:
    """Return a layer as paddle2onnx writes it."""
    spec = [paddle.static.InputSpec(shape, "float32", "x")]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        paddle.onnx.export(model, f"{folder}/m", input_spec=spec, opset_version=opset)
        return onnx.load(Path(folder) / "m.onnx")
