"""Models of torch, with random weights, as its two exporters write them.

Needs torch and onnxscript; a test skips without them. The exporter that traces a TorchScript and
the one that traces with dynamo alternate. What torch computes is the truth.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from fuzz.choices import Random
from fuzz.compare import Case
from torch import Tensor, nn

OPSETS = (13, 16, 17, 18, 20)
"""What TorchScript's exporter writes; dynamo's knows 18 and newer."""

LARGEST = 6000
"""Elements of a value between two steps."""


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, nn.ModuleList(modules)

    def forward(self, *x: Tensor) -> Any:
        return self.function(*self.inner, *x)


Step = Callable[[Random, Tensor], nn.Module]
"""Takes what the step before made, returns a module for it."""


def function(f: Callable[..., Any]) -> Step:
    """Return a step that is this function."""
    return lambda r, x: Function(f)


# ---- steps on images [N, C, H, W] ----------------------------------------------------------------


def conv2d(r: Random, x: Tensor) -> nn.Module:
    c, k = x.shape[1], r.pick(1, 3, (3, 1), 5, 2)
    groups = r.pick(1, 1, c, r.divisor(c))
    out = groups * r.pick(1, 2, 3)
    return nn.Conv2d(
        c, out, k, stride=r.pick(1, 1, 2, (1, 2)), padding=r.pick(0, 1, 2, (1, 2)),
        dilation=r.pick(1, 1, 2), groups=groups, bias=r.chance(),
        padding_mode=r.pick("zeros", "zeros", "zeros", "reflect", "replicate", "circular"),
    )  # fmt: skip


def conv_same(r: Random, x: Tensor) -> nn.Module:
    k, dilation = r.pick(2, 3, 4, (2, 5)), r.pick(1, 2)
    return nn.Conv2d(x.shape[1], r.pick(2, 5, 8), k, padding="same", dilation=dilation)


def conv_transpose(r: Random, x: Tensor) -> nn.Module:
    c, stride = x.shape[1], r.pick(1, 2, 3)
    groups = r.pick(1, r.divisor(c))
    return nn.ConvTranspose2d(
        c, groups * r.pick(1, 2), r.pick(2, 3, 4), stride=stride, padding=r.pick(0, 1),
        output_padding=r.pick(0, stride - 1), groups=groups, dilation=r.pick(1, 1, 2),
    )  # fmt: skip


def pool2d(r: Random, x: Tensor) -> nn.Module:
    k, stride, ceil = r.pick(2, 3, (2, 3)), r.pick(1, 2, 3), r.chance()
    match r.pick("max", "avg", "lp", "max dilated"):
        case "max":
            return nn.MaxPool2d(k, stride, padding=r.pick(0, 1), ceil_mode=ceil)
        case "max dilated":
            return nn.MaxPool2d(2, stride, dilation=2, ceil_mode=ceil)
        case "avg":
            counted = r.chance()
            return nn.AvgPool2d(k, stride, r.pick(0, 1), ceil_mode=ceil, count_include_pad=counted)
    return nn.LPPool2d(2, k, stride)


def max_indices(r: Random, x: Tensor) -> nn.Module:
    pool, back = nn.MaxPool2d(2, 2, return_indices=True), nn.MaxUnpool2d(2, 2)
    if r.chance():
        return Function(lambda p, y: p(y)[0] + p(y)[1].to(torch.float32), pool)
    return Function(lambda p, b, y: b(*p(y), output_size=y.shape), pool, back)


def adaptive(r: Random, x: Tensor) -> nn.Module:
    h, w = x.shape[2:]
    size = r.pick(1, (r.divisor(h), r.divisor(w)), (1, None), (None, 1))
    return nn.AdaptiveAvgPool2d(size) if r.chance() else nn.AdaptiveMaxPool2d(size)


def norm2d(r: Random, x: Tensor) -> nn.Module:
    c, (h, w) = x.shape[1], x.shape[2:]
    made: nn.Module = r.pick(
        nn.BatchNorm2d(c), nn.BatchNorm2d(c, affine=False), nn.InstanceNorm2d(c, affine=r.chance()),
        nn.GroupNorm(r.divisor(c), c), nn.LayerNorm([h, w]), nn.LayerNorm([c, h, w]),
        nn.LocalResponseNorm(3), nn.InstanceNorm2d(c, affine=True, track_running_stats=True),
    )  # fmt: skip
    return _shaken(r, made)


def _shaken(r: Random, module: nn.Module) -> nn.Module:
    """Move a normalisation's parameters away from ones and zeros."""
    with torch.no_grad():
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            if value.is_floating_point():
                value.add_(torch.rand_like(value) * (0.5 if "var" in name else 0.3))
    return module


def resize(r: Random, x: Tensor) -> nn.Module:
    mode = r.pick("nearest", "bilinear", "bicubic", "nearest-exact", "area")
    corners = r.chance() if mode in ("bilinear", "bicubic") else None
    if r.chance():
        size = (r.pick(3, 5, 8, 11), r.pick(4, 7, 9))
        return Function(lambda y: F.interpolate(y, size=size, mode=mode, align_corners=corners))
    scale = r.pick(2, 0.5, 1.5, (2.0, 1.0), 1.7)
    keep = r.pick(None, True, False)
    return Function(lambda y: F.interpolate(
        y, scale_factor=scale, mode=mode, align_corners=corners, recompute_scale_factor=keep
    ))  # fmt: skip


def shuffle(r: Random, x: Tensor) -> nn.Module:
    c, h, w = x.shape[1:]
    choices: list[nn.Module] = []
    if c % 4 == 0:
        choices.append(nn.PixelShuffle(2))
    if h % 2 == 0 and w % 2 == 0:
        choices.append(nn.PixelUnshuffle(2))
    g = r.divisor(c)
    choices.append(nn.ChannelShuffle(g))
    choices.append(Function(  # as ShuffleNet has it
        lambda y: y.view(y.size(0), g, y.size(1) // g, y.size(2), y.size(3))
        .transpose(1, 2).contiguous().view(y.size(0), -1, y.size(2), y.size(3))
    ))  # fmt: skip
    return r.pick(*choices)  # type: ignore[no-any-return]


def squeeze_excite(r: Random, x: Tensor) -> nn.Module:
    c = x.shape[1]
    inner = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, max(1, c // 2), 1), nn.SiLU(),
        nn.Conv2d(max(1, c // 2), c, 1), r.pick(nn.Sigmoid(), nn.Hardsigmoid()),
    )  # fmt: skip
    dense = nn.Sequential(nn.Linear(c, 3), nn.ReLU(), nn.Linear(3, c), nn.Sigmoid())
    if r.chance():
        return Function(lambda s, y: y * s(y), inner)
    return Function(lambda s, y: y * s(y.mean((2, 3))).view(y.size(0), y.size(1), 1, 1), dense)


def residual(r: Random, x: Tensor) -> nn.Module:
    c, m = x.shape[1], r.pick(4, 6, 8)
    act = r.pick(nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish, nn.GELU, nn.Mish)
    inner = nn.Sequential(
        nn.Conv2d(c, m, 1, bias=False), _shaken(r, nn.BatchNorm2d(m)), act(),
        nn.Conv2d(m, m, 3, padding=1, groups=r.pick(1, m), bias=False), nn.BatchNorm2d(m), act(),
        nn.Conv2d(m, c, 1), nn.BatchNorm2d(c),
    )  # fmt: skip
    return Function(lambda f, a, y: a(y + f(y)), inner, act())


def convnext(r: Random, x: Tensor) -> nn.Module:
    c = x.shape[1]
    mixed = nn.Conv2d(c, c, 7, padding=3, groups=c)
    inner = nn.Sequential(nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))
    gamma = torch.rand(c)
    return Function(
        lambda m, f, y: y + (f(m(y).permute(0, 2, 3, 1)) * gamma).permute(0, 3, 1, 2), mixed, inner
    )


def dense_block(r: Random, x: Tensor) -> nn.Module:
    c = x.shape[1]
    a = nn.Sequential(_shaken(r, nn.BatchNorm2d(c)), nn.ReLU(), nn.Conv2d(c, 3, 3, padding=1))
    b = nn.Sequential(nn.BatchNorm2d(c + 3), nn.ReLU(), nn.Conv2d(c + 3, 2, 1))

    def both(first: nn.Module, second: nn.Module, y: Tensor) -> Tensor:
        z = torch.cat([y, first(y)], 1)
        return torch.cat([z, second(z)], 1)

    return Function(both, a, b)


def inception(r: Random, x: Tensor) -> nn.Module:
    c = x.shape[1]
    parts = [
        nn.Conv2d(c, 3, 1), nn.Sequential(nn.Conv2d(c, 2, 1), nn.Conv2d(2, 4, 3, padding=1)),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(c, 2, 1)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.ReLU()),
    ]  # fmt: skip
    return Function(lambda *given: torch.cat([f(given[-1]) for f in given[:-1]], 1), *parts)


def split_path(r: Random, x: Tensor) -> nn.Module:
    c = x.shape[1]
    half = max(1, c // 2)
    inner = nn.Conv2d(half, half, 3, padding=1)
    if c % 2 == 0 and r.chance():  # YOLO's C2f, ShuffleNet V2

        def halves(f: nn.Module, y: Tensor) -> Tensor:
            a, b = y.chunk(2, 1)
            return torch.cat([a, b, f(b)], 1)

        return Function(halves, inner)
    return Function(lambda f, y: torch.cat([f(y[:, :half]), y[:, half:]], 1), inner)


def focus(r: Random, x: Tensor) -> nn.Module:
    return Function(lambda y: torch.cat(
        [y[..., ::2, ::2], y[..., 1::2, ::2], y[..., ::2, 1::2], y[..., 1::2, 1::2]], 1
    ) if y.size(2) % 2 == 0 and y.size(3) % 2 == 0 else y[..., ::2, :])  # fmt: skip


def pyramid(r: Random, x: Tensor) -> nn.Module:
    c, mode = x.shape[1], r.pick("nearest", "bilinear")
    down, side = nn.Conv2d(c, c, 3, 2, 1), nn.Conv2d(c, c, 1)
    return Function(
        lambda d, s, y: s(y) + F.interpolate(d(y), size=y.shape[-2:], mode=mode), down, side
    )


def aspp(r: Random, x: Tensor) -> nn.Module:
    c = x.shape[1]
    wide, pooled = nn.Conv2d(c, 3, 3, padding=2, dilation=2), nn.Conv2d(c, 3, 1)

    def both(a: nn.Module, b: nn.Module, y: Tensor) -> Tensor:
        whole = F.interpolate(b(F.adaptive_avg_pool2d(y, 1)), y.shape[2:], mode="bilinear")
        return torch.cat([a(y), whole], 1)

    return Function(both, wide, pooled)


def windows(r: Random, x: Tensor) -> nn.Module:
    """Attention in shifted windows, as Swin has it."""
    c, h, w = x.shape[1:]
    m = math.gcd(h, w)
    m = max(d for d in range(1, min(m, 4) + 1) if m % d == 0)
    qkv, out = nn.Linear(c, 3 * c), nn.Linear(c, c)
    bias, shift = torch.randn(m * m, m * m), r.pick(0, m // 2)

    def attend(q: nn.Module, o: nn.Module, y: Tensor) -> Tensor:
        n = y.size(0)
        z = torch.roll(y.permute(0, 2, 3, 1), (-shift, -shift), (1, 2))
        z = z.view(n, h // m, m, w // m, m, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, m * m, c)
        a, b, v = q(z).chunk(3, -1)
        z = o(((a @ b.transpose(-2, -1)) * c**-0.5 + bias).softmax(-1) @ v)
        z = z.view(n, h // m, w // m, m, m, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return y + torch.roll(z, (shift, shift), (1, 2)).permute(0, 3, 1, 2)

    return Function(attend, qkv, out)


def pad2d(r: Random, x: Tensor) -> nn.Module:
    pads = [int(p) for p in r.rng.integers(0, 2, 4)]
    kind = r.pick(nn.ReflectionPad2d, nn.ReplicationPad2d, nn.ZeroPad2d, nn.CircularPad2d, None)
    if kind is None:
        ends = [int(p) for p in r.rng.integers(-1, 3, 4)]
        return nn.ConstantPad2d(tuple(ends), 0.5)  # type: ignore[arg-type]
    made: nn.Module = kind(pads)
    return made


def unfold(r: Random, x: Tensor) -> nn.Module:
    h, w = x.shape[2:]
    k = r.pick(1, 2, 3)
    if r.chance():
        return Function(
            lambda y: F.unfold(y, k, padding=1).view(y.size(0), -1, h + 3 - k, w + 3 - k)
        )
    return Function(lambda y: F.fold(F.unfold(y, k, stride=k), (h, w), k, stride=k))


def grid(r: Random, x: Tensor) -> nn.Module:
    theta = torch.tensor([[[0.8, 0.2, 0.1], [-0.1, 0.9, 0.0]]]).repeat(x.shape[0], 1, 1)
    mode, pad = r.pick("bilinear", "nearest", "bicubic"), r.pick("zeros", "border", "reflection")
    corners = r.chance()
    places = F.affine_grid(theta, list(x.shape), align_corners=corners)  # type: ignore[arg-type]
    return Function(
        lambda y: F.grid_sample(y, places, mode=mode, padding_mode=pad, align_corners=corners)
    )


IMAGE: Mapping[str, Step] = {
    f.__name__: f
    for f in (
        conv2d, conv_same, conv_transpose, pool2d, max_indices, adaptive, norm2d, resize, shuffle,
        squeeze_excite, residual, convnext, dense_block, inception, split_path, focus, pyramid,
        aspp, windows, pad2d, unfold, grid,
    )
}  # fmt: skip

# ---- steps on sequences [N, T, C] ----------------------------------------------------------------


def linear(r: Random, x: Tensor) -> nn.Module:
    return nn.Linear(x.shape[-1], r.pick(3, 4, 8, 16), bias=r.chance())


def norm1d(r: Random, x: Tensor) -> nn.Module:
    c = x.shape[-1]
    made: nn.Module = r.pick(
        nn.LayerNorm(c), nn.LayerNorm(c, elementwise_affine=False), nn.RMSNorm(c),
        nn.LayerNorm(c, bias=False),
    )  # fmt: skip
    return _shaken(r, made)


def recurrent(r: Random, x: Tensor) -> nn.Module:
    kind, both = r.pick(nn.LSTM, nn.GRU, nn.RNN), r.chance()
    layer = kind(
        x.shape[-1], r.pick(3, 5, 8), num_layers=r.pick(1, 1, 2), bidirectional=both,
        batch_first=r.chance(), bias=r.chance(0.8),
        **({"nonlinearity": r.pick("tanh", "relu")} if kind is nn.RNN else {}),
    )  # fmt: skip
    if kind is nn.LSTM and r.chance(0.3):
        return Function(lambda f, y: f(y)[0] + f(y)[1][0].mean(), layer)
    return Function(lambda f, y: f(y)[0], layer)


def attention(r: Random, x: Tensor) -> nn.Module:
    c, t = x.shape[-1], x.shape[1]
    heads = r.divisor(c)
    inner = nn.MultiheadAttention(c, heads, batch_first=True, bias=r.chance(0.8))
    mask = torch.triu(torch.full((t, t), float("-inf")), 1) if r.chance() else None
    return Function(lambda f, y: f(y, y, y, attn_mask=mask, need_weights=False)[0], inner)


def scores(r: Random, x: Tensor) -> nn.Module:
    c = x.shape[-1]
    heads, causal = r.divisor(c), r.chance()
    qkv = nn.Linear(c, 3 * c)

    def attend(f: nn.Module, y: Tensor) -> Tensor:
        n, t, _ = y.shape
        q, k, v = f(y).reshape(n, t, 3, heads, c // heads).permute(2, 0, 3, 1, 4).unbind(0)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return z.transpose(1, 2).reshape(n, t, c)

    return Function(attend, qkv)


def grouped(r: Random, x: Tensor) -> nn.Module:
    """Attention of many queries and few keys with rotary positions, as Llama has it."""
    c, t, d = x.shape[-1], x.shape[1], 4
    q, kv = nn.Linear(c, 4 * d, bias=False), nn.Linear(c, 4 * d, bias=False)
    out = nn.Linear(4 * d, c, bias=False)
    angle = torch.arange(t)[:, None] * 100.0 ** (-torch.arange(0, d, 2) / d)
    cos, sin = (f(torch.cat([angle, angle], -1)) for f in (torch.cos, torch.sin))

    def rotated(y: Tensor) -> Tensor:
        a, b = y[..., : d // 2], y[..., d // 2 :]
        return y * cos + torch.cat([-b, a], -1) * sin

    def attend(f: nn.Module, g: nn.Module, o: nn.Module, y: Tensor) -> Tensor:
        n = y.size(0)
        query = rotated(f(y).view(n, t, 4, d).transpose(1, 2))
        k, v = g(y).view(n, t, 4, d).transpose(1, 2).split([2, 2], 1)
        k, v = (z[:, :, None].expand(n, 2, 2, t, d).reshape(n, 4, t, d) for z in (rotated(k), v))
        mask = torch.full((t, t), -1e9).triu(1)
        z = ((query @ k.transpose(2, 3)) / math.sqrt(d) + mask).softmax(-1, dtype=torch.float32) @ v
        return o(z.transpose(1, 2).contiguous().view(n, t, -1))  # type: ignore[no-any-return]

    return Function(attend, q, kv, out)


def transformer(r: Random, x: Tensor) -> nn.Module:
    c = x.shape[-1]
    settings = {
        "dropout": 0.0, "batch_first": True, "norm_first": r.chance(),
        "activation": r.pick("relu", "gelu"),
    }  # fmt: skip
    if r.chance():
        layer: nn.Module = nn.TransformerEncoderLayer(c, r.divisor(c), 2 * c, **settings)
        return layer
    decoder = nn.TransformerDecoderLayer(c, r.divisor(c), 2 * c, **settings)
    return Function(lambda f, y: f(y, y.flip(1)), decoder)


def conv1d(r: Random, x: Tensor) -> nn.Module:
    c, k = x.shape[-1], r.pick(1, 3, 4)
    layer: nn.Module
    match r.pick("conv", "transposed", "causal", "weight norm"):
        case "conv":
            layer = nn.Conv1d(c, r.pick(4, 8), k, r.pick(1, 2), padding=r.pick(0, 2))
        case "transposed":
            layer = nn.ConvTranspose1d(c, r.pick(4, 6), k, r.pick(1, 2))
        case "causal":
            layer = Function(
                lambda f, y: f(F.pad(y, (2 * (k - 1), 0))), nn.Conv1d(c, c, k, dilation=2, groups=c)
            )
        case _:
            layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(c, 6, k, padding=k))
    return Function(lambda f, y: f(y.transpose(1, 2)).transpose(1, 2), layer)


def wavenet(r: Random, x: Tensor) -> nn.Module:
    c = x.shape[-1]
    layer = nn.Conv1d(c, 2 * c, 3, padding=1)

    def gated(f: nn.Module, y: Tensor) -> Tensor:
        a, b = f(y.permute(0, 2, 1)).chunk(2, 1)
        return y + (torch.tanh(a) * torch.sigmoid(b)).permute(0, 2, 1)

    return r.pick(  # type: ignore[no-any-return]
        Function(gated, layer),
        Function(lambda f, y: F.glu(f(y.mT), 1).mT, layer),
        nn.Sequential(nn.Linear(c, 2 * c), nn.GLU()),
    )


def feed_forward(r: Random, x: Tensor) -> nn.Module:
    c = x.shape[-1]
    a, b, d = nn.Linear(c, 2 * c), nn.Linear(c, 2 * c), nn.Linear(2 * c, c)
    act = r.pick(F.silu, F.gelu, lambda y: F.gelu(y, approximate="tanh"), F.relu)
    if r.chance():
        return Function(lambda f, g, h, y: y + h(act(f(y)) * g(y)), a, b, d)
    return Function(lambda f, g, h, y: h(act(f(y))), a, b, d)


def mixer(r: Random, x: Tensor) -> nn.Module:
    t, c = x.shape[1:]
    tokens = nn.Sequential(nn.Linear(t, 2 * t), nn.GELU(), nn.Linear(2 * t, t))
    return Function(lambda f, n, y: y + f(n(y).transpose(1, 2)).transpose(1, 2), tokens,
                    nn.LayerNorm(c))  # fmt: skip


def embedded(r: Random, x: Tensor) -> nn.Module:
    """Indices made of numbers, and what a table says of them."""
    table = nn.Embedding(10, x.shape[-1], padding_idx=r.pick(None, 0))

    def read(f: nn.Module, y: Tensor) -> Tensor:
        return f((y.sum(-1) * 3).long().clamp(0, 9)) + y  # type: ignore[no-any-return]

    places = nn.Embedding(x.shape[1], x.shape[-1])
    if r.chance():
        return Function(lambda f, y: y + f(torch.arange(y.size(1)))[None], places)
    return Function(read, table)


SEQUENCE: Mapping[str, Step] = {
    f.__name__: f
    for f in (
        linear, norm1d, recurrent, attention, scores, grouped, transformer, conv1d, wavenet,
        feed_forward, mixer, embedded,
    )
}  # fmt: skip

# ---- steps on any tensor -------------------------------------------------------------------------

ACTIVATIONS: Sequence[Callable[[], nn.Module]] = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Softplus, nn.Softsign, nn.Tanhshrink, nn.Sigmoid,
    nn.Tanh, nn.LogSigmoid, nn.Softshrink, nn.Hardshrink, lambda: nn.Threshold(0.1, 0.5),
    lambda: nn.Softmax(-1), lambda: nn.LogSoftmax(1), lambda: nn.Softmin(-1), lambda: nn.RReLU(),
    lambda: nn.GELU(approximate="tanh"), lambda: nn.Softplus(2.0, 1.0),
)  # fmt: skip


def activation(r: Random, x: Tensor) -> nn.Module:
    kind: Callable[[], nn.Module] = r.pick(*ACTIVATIONS)
    return kind()


def number_of(x: Tensor, dim: int = -1) -> int:
    """Return an extent."""
    return int(x.shape[dim])


FUNCTIONS: Sequence[Callable[[Tensor], Tensor]] = (
    lambda x: x.clamp(-0.5, 0.8),
    lambda x: x.abs().sqrt(),
    lambda x: (x * x + 1).rsqrt(),
    lambda x: x.sin() * x.cos(),
    lambda x: torch.erf(x),
    lambda x: x.square().mean(-1, True) + x,
    lambda x: x - x.amax(1, keepdim=True),
    lambda x: x - x.mean(dim=1, keepdim=True),
    lambda x: x / (x.norm(dim=1, keepdim=True) + 1),
    lambda x: F.normalize(x, dim=-1),
    lambda x: x.std(-1, keepdim=True) + x,
    lambda x: x / (1 + x.var(1, keepdim=True)),
    lambda x: torch.where(x > 0, x, x.exp() - 1),
    lambda x: x.masked_fill(x > 1, 0.25),
    lambda x: x.flip(-1),
    lambda x: x.roll(1, 1),
    lambda x: torch.roll(x, 3),
    lambda x: torch.cumsum(x, 1) * 0.1,
    lambda x: x.tril() + x.triu(1).neg(),
    lambda x: x.topk(min(3, number_of(x)), -1)[0],
    lambda x: x.sort(-1, descending=True)[0],
    lambda x: x.gather(1, x.argsort(1)),
    lambda x: x[:, x.argmax(-1).flatten()[:2] % number_of(x, 1)],
    lambda x: x[:, [0, -1]],
    lambda x: x.index_select(1, torch.tensor([0, 0, number_of(x, 1) - 1])),
    lambda x: x.repeat_interleave(2, 1),
    lambda x: x.repeat(1, 2, *[1] * (x.dim() - 2)),
    lambda x: torch.stack([x, -x], 1).flatten(1, 2),
    lambda x: x.unflatten(1, (number_of(x, 1), 1)).squeeze(2),
    lambda x: torch.cat([x.new_zeros(x.shape), x], 1),
    lambda x: x + torch.ones_like(x) * 0.5,
    lambda x: x.logsumexp(-1, keepdim=True) - x,
    lambda x: x.softmax(1).log(),
    lambda x: torch.einsum("n...c,dc->n...d", x, torch.eye(number_of(x))[:3] * 2),
    lambda x: x @ x.transpose(-1, -2),
    lambda x: torch.matmul(x, torch.ones(number_of(x), 4) / 8),
    lambda x: (
        F.one_hot((x.flatten(1).sum(1).abs().long() % 5), 5).float()[:, :, None]
        * x.flatten(1)[:, None, :5]
    ),
    lambda x: x.scatter(1, torch.zeros(x.shape, dtype=torch.long)[:, :1], 0.5),
    lambda x: x.scatter_add(1, torch.zeros(x.shape, dtype=torch.long), x),
    lambda x: x.index_add(1, torch.tensor([0]), x[:, :1]),
    lambda x: x.narrow(1, 0, 1) + x,
    lambda x: torch.addcmul(x, x, x, value=0.5),
    lambda x: torch.lerp(x, -x, 0.3),
    lambda x: x.round() * 0.5 + x.floor(),
    lambda x: torch.fmod(x, 0.7),
    lambda x: x % 0.7,
    lambda x: torch.remainder(x, -0.6),
    lambda x: torch.div(x, 0.3, rounding_mode="floor") + x,
    lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    lambda x: x.atan() + torch.atan2(x, x + 3),
    lambda x: (x > 0).float() + (x < 0.5).int(),
    lambda x: ((x > 0) & ~(x > 1)).to(x.dtype) * x,
    lambda x: x.to(torch.float64).exp().float().log1p(),
    lambda x: x.half().float(),
    lambda x: torch.maximum(x, -x) + torch.minimum(x, x.mean()),
    lambda x: x.prod(-1, True) + x,
    lambda x: x.expm1().sign() + x.reciprocal().clamp(-2, 2),
    lambda x: torch.hypot(x, x + 1),
    lambda x: x.any(-1, keepdim=True).float() + x,
    lambda x: torch.linalg.vector_norm(x, 1, -1, True) - x,
    lambda x: x.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) + x[..., :1, :1],
    lambda x: x.movedim(1, -1),
    lambda x: (
        torch.meshgrid(torch.arange(number_of(x, 1)), torch.arange(number_of(x, 1)), indexing="ij")[
            0
        ]
        .sum(0)
        .view(1, -1, *[1] * (x.dim() - 2))
        * x
    ),
    lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.5])).float(),
    lambda x: F.pad(x, (1, 2), value=0.1),
    lambda x: x.nan_to_num() + torch.isnan(x).float(),
    lambda x: torch.cdist(x.flatten(2), x.flatten(2)[:, :2]) if x.dim() > 2 else x,
    lambda x: x.unfold(1, 1, 1).squeeze(-1),
    lambda x: torch.special.expit(x),
    lambda x: x.swapaxes(1, 2) if x.dim() > 2 else x,
    lambda x: torch.stack(x.unbind(1)[::-1], 1),
    lambda x: torch.cat(x.split(1, 1)[:2], 1),
    lambda x: x.min(1, keepdim=True)[0] * x,
    lambda x: x.sinh().asinh(),
    lambda x: torch.argmin(x, -1, keepdim=True) * x,
    lambda x: torch.tensor_split(x, 2, 1)[0],
    lambda x: torch.polar(x.abs(), x).real,
    lambda x: x.pow(3) - x.pow(2.0) + 2**x * 0.1,
)


def functional(r: Random, x: Tensor) -> nn.Module:
    return Function(FUNCTIONS[int(r.rng.integers(len(FUNCTIONS)))])


ANY: Mapping[str, Step] = {"activation": activation, "functional": functional}


# ---- models --------------------------------------------------------------------------------------


def draw_torch(seed: int) -> Case:
    """Return a model of a seed, by TorchScript's exporter or dynamo's.

    Half of them are exported for any batch, then pinned to one, as --input_shape does.
    """
    dynamo = seed % 2 == 1
    r = Random(seed)
    opset, any_batch = r.pick(18, 20) if dynamo else r.pick(*OPSETS), r.chance()
    for attempt in range(50):
        model, given, steps = drawn(seed + 10**6 * attempt)
        try:
            proto = exported(model, given, opset, dynamo, any_batch)
        except Exception:  # of many kinds: each exporter lacks some operators
            continue
        with torch.no_grad():
            expected = model(*given).numpy()
        feeds = {v.name: x.numpy() for v, x in zip(proto.graph.input, given, strict=True)}
        for value in proto.graph.input:
            for dim, extent in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape,
                                   strict=True):  # fmt: skip
                dim.dim_value = extent
        name = f"{'dynamo' if dynamo else 'torchscript'} {seed} {'+'.join(steps)} {opset}"
        return Case(name, proto, feeds, (expected,))
    raise ValueError(f"seed {seed} draws nothing")


def drawn(seed: int) -> tuple[nn.Module, tuple[Tensor, ...], list[str]]:
    """Return a module, its inputs, and the names of its steps."""
    r = Random(seed)
    torch.manual_seed(seed)
    image = r.chance(0.6)
    shape = (r.pick(1, 2), r.pick(3, 4, 8), r.pick(7, 8, 12), r.pick(6, 8, 9))
    x = given = torch.randn(shape if image else (shape[0], shape[2], shape[1]))
    steps, names = list[nn.Module](), list[str]()
    kinds = {**(IMAGE if image else SEQUENCE), **ANY}
    wanted = int(r.rng.integers(1, 6))
    for _ in range(40):
        if len(steps) == wanted:
            break
        name = r.pick(*kinds, "activation", "functional")
        with contextlib.suppress(RuntimeError, ValueError, IndexError, TypeError):
            step = kinds[name](r, x).eval()
            with torch.no_grad():
                y = step(x)
            small = 0 < y.numel() <= LARGEST and y.dim() == given.dim() and y.abs().max() < 100
            if small and y.dtype == torch.float32 and y.isfinite().all():
                steps, names, x = [*steps, step], [*names, name], y
    return nn.Sequential(*steps).eval(), (given,), names


def exported(
    model: nn.Module, given: tuple[Tensor, ...], opset: int, dynamo: bool, any_batch: bool
) -> onnx.ModelProto:
    """Return a module as one of torch's exporters writes it."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        if dynamo:
            shapes = ({0: torch.export.Dim.DYNAMIC},) if any_batch else None
            program = torch.onnx.export(
                model, given, dynamo=True, opset_version=opset, dynamic_shapes=shapes, verbose=False
            )
            assert program is not None
            return program.model_proto
        file = io.BytesIO()
        axes = {"x": {0: "n"}} if any_batch else None
        torch.onnx.export(
            model, given, file, dynamo=False, opset_version=opset, input_names=["x"],
            dynamic_axes=axes,
        )  # fmt: skip
        return onnx.load_from_string(file.getvalue())
