"""Products of matrices and the fused attention products."""

from __future__ import annotations

from math import prod, sqrt

from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.tensor import Tensor


@translates("dot")
def dot(s: NodeContext) -> Tensor:
    """Multiply along the last axis of the left and the first of the right (tensordot).

    `transpose_a` takes the left's first axis instead, `transpose_b` the right's last.
    """
    x, y = s.x, s.input(1)
    s.require(x.rank > 0 and y.rank > 0, "a scalar has no axes")
    if s.truth("transpose_a", False):
        x = s.b.transpose(x, [*range(1, x.rank), 0])
    if s.truth("transpose_b", False):
        y = s.b.transpose(y, [y.rank - 1, *range(y.rank - 1)])
    inner = x.shape[-1]
    s.require(y.shape[0] == inner, f"{list(s.x.shape)} doesn't fit {list(s.input(1).shape)}")
    shape = [*x.shape[:-1], *y.shape[1:]]
    left = s.b.reshape(x, [prod(x.shape[:-1]), inner])
    right = s.b.reshape(y, [inner, prod(y.shape[1:])])
    return s.b.reshape(s.b.op("MatMul", left, right), shape or [1])


@translates("batch_dot")
def batch_dot(s: NodeContext) -> Tensor:
    """Return a product of matrices for each of the leading axes."""
    x, y = s.x, s.input(1)
    s.require(x.rank == y.rank >= 3, f"the ranks {x.rank} and {y.rank}")
    swapped = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    if s.truth("transpose_a", False):
        x = s.b.transpose(x, swapped)
    if s.truth("transpose_b", False):
        y = s.b.transpose(y, swapped)
    return s.b.op("MatMul", x, y)


@translates("khatri_rao")
def khatri_rao(s: NodeContext) -> Tensor:
    """Return the Kronecker products of the columns."""
    result = s.x
    s.require(all(t.rank == 2 for t in s.inputs), "the inputs are not matrices")
    for other in s.inputs[1:]:
        wide = s.b.op("Mul", s.b.unsqueeze(result, 1), s.b.unsqueeze(other, 0))
        result = s.b.reshape(wide, [wide.shape[0] * wide.shape[1], wide.shape[2]])
    return s.b.op("Identity", result)


# ---- attention with interleaved heads ----------------------------------------------------------


def _heads(s: NodeContext, x: Tensor, parts: int) -> tuple[list[Tensor], int]:
    """Cut (L, N, heads·parts·D) into `parts` tensors (N·heads, L, D); returns D too."""
    s.require(x.rank == 3, f"rank {x.rank} is not (length, batch, channels)")
    length, batch, width = x.shape
    heads = s.integer("heads")
    s.require(heads > 0 and width % (heads * parts) == 0, f"{width} channels in {heads} heads")
    depth = width // heads // parts
    split = s.b.reshape(x, [length, batch * heads, parts, depth])
    moved = s.b.transpose(split, [2, 1, 0, 3])
    slices = s.b.split(moved, 0, [1] * parts)
    return [s.b.reshape(p, [batch * heads, length, depth]) for p in slices], depth


def _scores(s: NodeContext, queries: Tensor, keys: Tensor, depth: int) -> Tensor:
    scaled = s.b.op("Mul", queries, 1 / sqrt(max(depth, 1)))
    return s.b.op("MatMul", scaled, s.b.transpose(keys, [0, 2, 1]))


def _merged(s: NodeContext, attention: Tensor, values: Tensor) -> Tensor:
    """Weigh the values and join the heads: (length, batch, heads·D)."""
    s.require(attention.rank == 3, "the attention is not (heads, length, length)")
    y = s.b.op("MatMul", attention, values)
    rows, length, depth = y.shape
    heads = s.integer("heads")
    return s.b.reshape(s.b.transpose(y, [1, 0, 2]), [length, rows // heads, heads * depth])


@translates("_contrib_interleaved_matmul_selfatt_qk")
def selfatt_qk(s: NodeContext) -> Tensor:
    """Q·Kᵀ / √D of interleaved queries, keys and values."""
    (queries, keys, _), depth = _heads(s, s.x, 3)
    return _scores(s, queries, keys, depth)


@translates("_contrib_interleaved_matmul_selfatt_valatt")
def selfatt_valatt(s: NodeContext) -> Tensor:
    """Attention · V of interleaved queries, keys and values."""
    (_, _, values), _ = _heads(s, s.x, 3)
    return _merged(s, s.input(1), values)


@translates("_contrib_interleaved_matmul_encdec_qk")
def encdec_qk(s: NodeContext) -> Tensor:
    """Q·Kᵀ / √D of queries and interleaved keys and values."""
    (queries,), depth = _heads(s, s.x, 1)
    (keys, _), _ = _heads(s, s.input(1), 2)
    return _scores(s, queries, keys, depth)


@translates("_contrib_interleaved_matmul_encdec_valatt")
def encdec_valatt(s: NodeContext) -> Tensor:
    """Attention · V of interleaved keys and values."""
    (_, values), _ = _heads(s, s.x, 2)
    return _merged(s, s.input(1), values)
