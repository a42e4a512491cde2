"""Lowerings of onnxruntime's own operators on relative and multimodal positions."""

from __future__ import annotations

import numpy as np

from atc.ir.expr import Expr, call
from atc.ir.graph import Array, DType
from atc.ir.view import View
from atc.lower.attention import Rotary, rotated_layout, split_heads
from atc.lower.concat_pad import join
from atc.lower.context import LoweringContext
from atc.lower.contrib.fused import MICROSOFT
from atc.lower.elementwise import like
from atc.lower.indexed_access import gather_axis, take
from atc.lower.matmul import product
from atc.lower.reduce import reduce_axes
from atc.lower.registry import lowers


@lowers("RelativePositionBias", domain=MICROSOFT)
def relative_position_bias(ctx: LoweringContext) -> str:
    """com.microsoft RelativePositionBias: T5's buckets of distances.

    The table's shape is [buckets, heads], but its numbers lie head by head.
    """
    b, (buckets, heads) = ctx.b, ctx.shape(0)
    (queries,) = ctx.ints_const(1, "the number of queries")
    (keys,) = ctx.ints_const(2, "the number of keys")
    ctx.require(queries > 0 < keys, f"{queries} queries and {keys} keys")
    both, furthest = bool(ctx.int("is_bidirectional")), ctx.int("max_distance")
    known = _buckets(queries, keys, buckets, furthest, both)
    table = b.reshape(ctx.input(0), (heads, buckets))
    return b.reshape(take(b, table, 1, known), (1, heads, queries, keys))


def _buckets(queries: int, keys: int, buckets: int, furthest: int, both: bool) -> Array:
    """Return the bucket of each pair: one per distance, then ever wider ones (Raffel 2020)."""
    ahead = np.arange(keys)[None] - np.arange(queries)[:, None]
    first = np.zeros_like(ahead)
    if both:
        buckets //= 2
        first = np.where(ahead > 0, buckets, 0)
    distance = np.abs(ahead) if both else np.maximum(-ahead, 0)
    exact = buckets // 2
    with np.errstate(divide="ignore"):
        far = np.log(distance.astype(np.float32) / np.float32(exact))
        step = far / np.log(np.float32(furthest / exact)) * (buckets - exact)
    wide = exact + np.where(distance < exact, 0, step).astype(np.int64)
    return first + np.where(distance < exact, distance, np.minimum(wide, buckets - 1))


@lowers("GatedRelativePositionBias", domain=MICROSOFT)
def gated_relative_position_bias(ctx: LoweringContext) -> str:
    """com.microsoft GatedRelativePositionBias of queries that aren't packed (WavLM)."""
    if ctx.has(6) or len(ctx.shape(0)) != 3:
        raise ctx.unsupported("GatedRelativePositionBias of packed queries")
    b, heads, dtype = ctx.b, ctx.int("num_heads"), ctx.type(0).dtype
    work = DType.FLOAT if dtype.is_half else dtype
    whole = [b.cast(ctx.input(i), work) for i in range(6)]
    query = b.map(lambda q, c: call("Add", q, c), whole[0], whole[1])
    query = split_heads(ctx, query, heads)
    linear = b.map(lambda v, c: call("Add", v, c), product(ctx, query, whole[3]), whole[4])
    batch, _, steps, width = b.shape(linear)
    halves = b.reshape(linear, (batch, heads, steps, 2, width // 2))
    sums = reduce_axes(ctx, halves, (4,), False, "Sum")
    views = [View((heads * steps * 2, steps * 2, 2, 0), k) for k in (0, 1)]
    shape = (batch, heads, steps, 1)

    def gate(u: Expr, r: Expr, scale: Expr) -> Expr:
        inner = call("Sub", call("Mul", call("Sigmoid", r), scale), like(r, 1))
        return call("Add", call("Mul", call("Sigmoid", u), inner), like(u, 2))

    eco = b.reshape(whole[5], (heads,))
    gates = b.map(gate, sums, sums, eco, shape=shape, views=[*views, View((0, 1, 0, 0))])
    return b.cast(b.map(lambda g, p: call("Mul", g, p), gates, whole[2]), dtype)


@lowers("MRotaryEmbedding", domain=MICROSOFT)
def multimodal_rotary_embedding(ctx: LoweringContext) -> str:
    """com.microsoft MRotaryEmbedding: angles come from three positions per token, by sections."""
    b, half = ctx.b, ctx.shape(2)[1]
    sections = ctx.ints("mrope_section") or []
    ctx.require(len(sections) == 3 and sum(sections) == half, f"sections {sections} of {half}")
    if ctx.int("is_packed_batching"):
        raise ctx.unsupported("packed batches")
    scale = ctx.float("scale", 1.0)
    if scale not in (0.0, 1.0):
        raise ctx.unsupported(f"a scale of {scale:g}")
    streams = _streams(sections, bool(ctx.int("mrope_layout")))
    caches = [_combined(ctx, i, streams) for i in (2, 3)]
    heads = ctx.int("num_heads")
    if not heads and len(ctx.shape(0)) == 3:
        heads = ctx.shape(0)[2] // (2 * half)
    angles = Rotary(caches[0], caches[1], bool(ctx.int("interleaved")))
    return rotated_layout(ctx, b.reshape(ctx.input(0), ctx.shape(0)), heads, angles)


def _streams(sections: list[int], interleaved: bool) -> list[int]:
    """Return which of the three positions each angle takes."""
    if not interleaved:
        return [k for k, size in enumerate(sections) for _ in range(size)]
    found = [0] * sum(sections)
    for k in (1, 2):
        found[k : sections[k] * 3 : 3] = [k] * len(found[k : sections[k] * 3 : 3])
    return found


def _combined(ctx: LoweringContext, i: int, streams: list[int]) -> str:
    """Return cosines or sines [batch, steps, half]: column j is that of position streams[j]."""
    b = ctx.b
    rows = gather_axis(b, ctx.input(i), 0, ctx.input(1), proven=False)
    _, batch, steps, half = b.shape(rows)
    line = batch * steps * half
    columns = [
        b.view(rows, (batch, steps, 1), View((steps * half, half, 0), stream * line + j))
        for j, stream in enumerate(streams)
    ]
    return join(b, columns, 2)
