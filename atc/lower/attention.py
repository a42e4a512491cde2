"""Attention and rotary embeddings: a MatMul, a Map with all masks, a Softmax, a MatMul."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from atc.dims import is_dynamic
from atc.ir.expr import Expr, call, cast, const
from atc.ir.graph import DType, row_major
from atc.ir.view import View, broadcast
from atc.lower.builder import Builder
from atc.lower.concat_pad import join, pad
from atc.lower.context import LoweringContext
from atc.lower.conv import widen
from atc.lower.elementwise import like
from atc.lower.indexed_access import gather_axis, index
from atc.lower.matmul import product
from atc.lower.normalize import softmax
from atc.lower.registry import lowers

# ---- heads --------------------------------------------------------------------------------------


def split_heads(ctx: LoweringContext, x: str, heads: int) -> str:
    """Return [batch, steps, heads * size] as [batch, heads, steps, size]."""
    b = ctx.b
    batch, steps, width = b.shape(x)
    ctx.require(heads > 0 and width % heads == 0, f"{heads} heads of a width of {width}")
    return b.transpose(b.reshape(x, (batch, steps, heads, width // heads)), (0, 2, 1, 3))


def merge_heads(b: Builder, x: str) -> str:
    """Return [batch, heads, steps, size] as [batch, steps, heads * size]."""
    batch, heads, steps, size = b.shape(x)
    return b.reshape(b.transpose(x, (0, 2, 1, 3)), (batch, steps, heads * size))


def grouped(b: Builder, x: str, groups: int) -> str:
    """Return [batch, heads, ...] as [batch, groups, heads / groups, ...]."""
    batch, heads, *rest = b.shape(x)
    return b.reshape(x, (batch, groups, heads // groups, *rest))


# ---- masks --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mask:
    """The term added to the scores [batch, heads, steps, keys], and the keys a query sees.

    Every `added` value is broadcast to the scores; a BOOL one hides where it is false. With
    `causal`, query i sees key j if j <= i + offset; `left` and `right` bound how far j may be from
    i + offset. `offset` is a number, or names one per row of the batch. Keys from `lengths[row]`
    on, where given, are hidden.
    """

    added: tuple[str, ...] = ()
    causal: bool = False
    left: int = -1
    right: int = -1
    offset: int | str = 0
    lengths: str = ""


def _visible(mask: Mask, i: Expr, j: Expr, offset: Expr, length: Expr | None) -> list[Expr]:
    """Return the conditions under which query i sees key j."""
    here = call("Add", i, offset)
    conditions = []
    if mask.causal:
        conditions.append(call("LessOrEqual", j, here))
    if mask.left >= 0:
        conditions.append(call("GreaterOrEqual", j, call("Sub", here, index(mask.left))))
    if mask.right >= 0:
        conditions.append(call("LessOrEqual", j, call("Add", here, index(mask.right))))
    if length is not None:
        conditions.append(call("Less", j, length))
    return conditions


def masked(ctx: LoweringContext, scores: str, mask: Mask) -> str:
    """Return grouped scores [batch, groups, heads / groups, steps, keys] with a mask applied."""
    b = ctx.b
    shape = b.shape(scores)
    names, views = [scores], [View(row_major(shape))]
    for added in mask.added:
        names.append(added)
        views.append(_mask_view(ctx, b.shape(added), shape))
    for per_row in (mask.offset, mask.lengths):
        if isinstance(per_row, str) and per_row:
            names.append(b.cast(per_row, DType.INT64))
            views.append(View((1, 0, 0, 0, 0)))
    positions = mask.causal or mask.left >= 0 or mask.right >= 0 or bool(mask.lengths)
    if len(names) == 1 and not positions:
        return scores

    def body(s: Expr, *rest: Expr) -> Expr:
        *rest_, i, j = rest if positions else (*rest, index(0), index(0))
        operands = iter(rest_)
        hidden = const(float("-inf"), s.dtype)
        for _ in mask.added:
            a = next(operands)
            if a.dtype is DType.BOOL:
                s = call("Where", a, s, hidden)
            else:
                s = call("Add", s, cast(a, s.dtype))
        offset = next(operands) if isinstance(mask.offset, str) else index(mask.offset)
        length = next(operands) if mask.lengths else None
        for condition in _visible(mask, i, j, offset, length):
            s = call("Where", condition, s, hidden)
        return s

    coordinates = [View((0, 0, 0, 1, 0)), View((0, 0, 0, 0, 1))] if positions else []
    return b.map(body, *names, shape=shape, views=views, coordinates=coordinates)


def _mask_view(ctx: LoweringContext, given: Sequence[int], shape: Sequence[int]) -> View:
    """Return the view of a mask [batch, heads, steps, keys], or broadcast to it, over groups."""
    four = (*[1] * (4 - len(given)), *given)
    batch, groups, each, steps, keys = shape
    ctx.require(len(given) <= 4, f"the mask {list(given)} has too many axes")
    view = broadcast(four, (batch, groups * each, steps, keys))
    s = view.strides
    return View((s[0], s[1] * each, *s[1:]), view.offset)


# ---- the core -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attended:
    """Results [batch, heads, ...] of an attention, in the type computed in."""

    y: str
    raw: str
    """Scaled scores [batch, heads, steps, keys]."""
    capped: str
    biased: str
    probabilities: str


def attend(
    ctx: LoweringContext, q: str, k: str, v: str, mask: Mask, *,
    scale: float, softcap: float = 0.0, sink: str = "",
) -> Attended:  # fmt: skip
    """Emit softmax(mask(scale q k')) v; heads of q come in groups that share those of k and v.

    All are [batch, heads, steps, size]. The score becomes softcap * tanh(score / softcap) first,
    where that is given. `sink` [heads] are scores of one more key, whose value is 0.
    """
    b = ctx.b
    q, k, v = (widen(ctx, x) for x in (q, k, v))
    groups = b.shape(k)[1]
    heads = b.shape(q)[1]
    ctx.require(groups > 0 and heads % groups == 0, f"{heads} heads of queries, {groups} of keys")
    keys = grouped(b, b.transpose(k, (0, 1, 3, 2)), groups)
    scores = product(ctx, grouped(b, q, groups), keys)
    raw = b.map(lambda s: call("Mul", s, like(s, scale)), scores)
    capped = raw if softcap <= 0 else b.map(lambda s: _capped(s, softcap), raw)
    biased = masked(ctx, capped, mask)
    weights = _weights(ctx, biased, sink)
    y = product(ctx, weights, grouped(b, v, groups))
    return Attended(*(_ungrouped(b, x) for x in (y, raw, capped, biased, weights)))


def _ungrouped(b: Builder, x: str) -> str:
    batch, groups, each, *rest = b.shape(x)
    return b.reshape(x, (batch, groups * each, *rest))


def _capped(s: Expr, softcap: float) -> Expr:
    return call("Mul", like(s, softcap), call("Tanh", call("Div", s, like(s, softcap))))


def _weights(ctx: LoweringContext, scores: str, sink: str) -> str:
    b = ctx.b
    if not sink:
        return softmax(ctx, scores, 4, masked=True)
    shape = b.shape(scores)
    more = (*shape[:-1], 1)
    view = View((0, shape[2], 1, 0, 0))
    column = b.view(b.cast(sink, b.type(scores).dtype), more, view)
    both = softmax(ctx, join(b, [scores, column], 4), 4, masked=True)
    return b.view(both, shape, View(row_major((*shape[:-1], shape[-1] + 1))))


# ---- ai.onnx ------------------------------------------------------------------------------------


@lowers("Attention")
def attention(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX Attention-25: q, k, v [batch, heads, steps, size] or [batch, steps, heads * size]."""
    b, dtype = ctx.b, ctx.type(0).dtype
    flat = len(ctx.shape(0)) == 3
    q, k, v = (ctx.input(i) for i in range(3))
    if flat:
        heads = [ctx.int("q_num_heads"), *[ctx.int("kv_num_heads")] * 2]
        q, k, v = (split_heads(ctx, x, n) for x, n in zip((q, k, v), heads, strict=True))
    past = b.shape(ctx.input(4))[2] if ctx.has(4) else 0
    if ctx.has(4):
        k, v = join(b, [ctx.input(4), k], 2), join(b, [ctx.input(5), v], 2)
    steps, keys = b.shape(q)[2], b.shape(k)[2]
    offset: int | str = past
    if ctx.has(6) and not ctx.has(4):
        lengths = b.cast(ctx.input(6), DType.INT64)
        offset = b.map(lambda n: call("Sub", n, index(steps)), lengths)
    mask = Mask(
        (_padded_mask(ctx, keys),) if ctx.has(3) else (), bool(ctx.int("is_causal")),
        ctx.int("left_window_size", -1), ctx.int("right_window_size", -1), offset,
        ctx.optional(6),
    )  # fmt: skip
    scale = ctx.float("scale", 1 / sqrt(b.shape(q)[3]))
    result = attend(ctx, q, k, v, mask, scale=scale, softcap=ctx.float("softcap", 0.0))
    y = b.cast(merge_heads(b, result.y) if flat else result.y, dtype)
    modes = (result.raw, result.capped, result.biased, result.probabilities)
    mode = ctx.int("qk_matmul_output_mode", 0)
    ctx.require(0 <= mode < len(modes), f"qk_matmul_output_mode is {mode}")
    return (y, k, v, b.cast(modes[mode], dtype))


def _padded_mask(ctx: LoweringContext, keys: int) -> str:
    """Return attn_mask with a last axis of all keys; what it doesn't mention is hidden."""
    mask, shape = ctx.input(3), ctx.shape(3)
    missing = keys - shape[-1]
    if missing <= 0 or shape[-1] == 1:
        return mask
    dtype = ctx.type(3).dtype
    value = ctx.b.scalar(dtype is not DType.BOOL and float("-inf"), dtype)
    ends = [0] * (len(shape) - 1) + [missing]
    return pad(ctx.b, mask, [0] * len(shape), ends, value=value)


# ---- rotary embeddings --------------------------------------------------------------------------


@dataclass(frozen=True)
class Rotary:
    """Angles of a rotary embedding: cosines and sines [batch or 1, steps, size / 2]."""

    cos: str
    sin: str
    interleaved: bool = False


def rotate(ctx: LoweringContext, x: str, angles: Rotary, *, steps_axis: int) -> str:
    """Rotate pairs of x, whose other middle axis is the heads' (RoFormer, Su and others 2021).

    x is [batch, steps, heads, size] or [batch, heads, steps, size]. The partner of an element is
    half of the rotated width away or, interleaved, its neighbour. Elements beyond twice the angles
    stay as they are.
    """
    b = ctx.b
    shape, half = b.shape(x), b.shape(angles.cos)[-1]
    width, dtype = 2 * half, b.type(x).dtype
    ctx.require(width <= shape[-1], f"{half} angles for a head of {shape[-1]}")
    strides = row_major(shape)
    pair, inner = ((half, 2), (2, 1)) if angles.interleaved else ((2, half), (half, 1))
    which = 1 if angles.interleaved else 0
    partner = list(inner)
    partner[which] = -inner[which]
    cos_shape = b.shape(angles.cos)
    batch_step = 0 if cos_shape[0] == 1 else cos_shape[1] * half
    at = [batch_step, 0, 0]
    at[steps_axis] = half
    angle = [1 if which else 0, 0 if which else 1]
    loops = (*shape[:-1], *pair)
    side = View(tuple(int(d == 3 + which) for d in range(5)))
    views = [
        View((*strides[:-1], *inner)), View((*strides[:-1], *partner), inner[which]),
        View((*at, *angle)), View((*at, *angle)),
    ]  # fmt: skip

    def rotated(own: Expr, other: Expr, cos: Expr, sin: Expr, second: Expr) -> Expr:
        own, other, cos, sin = (cast(e, DType.FLOAT) if e.dtype.is_half else e
                                for e in (own, other, cos, sin))  # fmt: skip
        signed = call("Where", call("Equal", second, index(0)), call("Neg", other), other)
        return cast(call("Add", call("Mul", own, cos), call("Mul", signed, sin)), dtype)

    y = b.map(rotated, x, x, angles.cos, angles.sin, shape=loops, views=views, coordinates=[side])
    y = b.reshape(y, (*shape[:-1], width))
    if width == shape[-1]:
        return y
    rest = b.view(x, (*shape[:-1], shape[-1] - width), View(strides, width))
    return join(b, [y, rest], 3)


def rotated_layout(ctx: LoweringContext, x: str, heads: int, angles: Rotary) -> str:
    """Rotate [batch, heads, steps, size] or, with `heads`, [batch, steps, heads * size]."""
    b, shape = ctx.b, ctx.b.shape(x)
    if len(shape) == 4:
        return rotate(ctx, x, angles, steps_axis=2)
    ctx.require(heads > 0 and shape[2] % heads == 0, f"{heads} heads of a width of {shape[2]}")
    by_head = b.reshape(x, (*shape[:2], heads, shape[2] // heads))
    return b.reshape(rotate(ctx, by_head, angles, steps_axis=1), shape)


@lowers("RotaryEmbedding")
def rotary_embedding(ctx: LoweringContext) -> str:
    """ONNX RotaryEmbedding-23; position_ids, where given, choose rows of the caches."""
    b = ctx.b
    cos, sin = ctx.input(1), ctx.input(2)
    if ctx.has(3):
        cos, sin = (gather_axis(b, c, 0, ctx.input(3), proven=False) for c in (cos, sin))
    used = ctx.int("rotary_embedding_dim")
    angles = Rotary(cos, sin, bool(ctx.int("interleaved")))
    if used and b.shape(cos)[-1] != used // 2:
        angles = replace(angles, cos=_narrow(b, cos, used // 2), sin=_narrow(b, sin, used // 2))
    return rotated_layout(ctx, ctx.input(0), ctx.int("num_heads"), angles)


def _narrow(b: Builder, x: str, width: int) -> str:
    """Return the first elements of the last axis."""
    shape = b.shape(x)
    return b.view(x, (*shape[:-1], width), View(row_major(shape)))


def positions(ctx: LoweringContext, batch: int, steps: int, first: int | str) -> str:
    """Return INT64 [batch, steps] that count up from `first`, a number or a name of one per row."""
    b = ctx.b
    if isinstance(first, int):
        if not is_dynamic(steps):
            return b.constant(np.arange(first, first + steps, dtype=np.int64)[None])
        batch, first = 1, b.scalar(first, DType.INT64)
    start = b.cast(first, DType.INT64)
    per_row = 0 if b.type(start).size == 1 else 1
    return b.map(
        lambda s, i: call("Add", s, i), start, shape=(batch, steps),
        views=[View((per_row, 0))], coordinates=[View((0, 1))],
    )  # fmt: skip
