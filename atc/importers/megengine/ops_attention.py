"""Multi-head attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.dump import Operator, Params
from atc.importers.megengine.translation import Rule

_NO_MASK, _CAUSAL, _CUDNN, _GIVEN = range(4)
_ONLY_MASK = 1
_LARGEST_MASK = 1 << 22


@dataclass(frozen=True)
class Projection:
    """y = x weight + bias; either may be absent."""

    weight: np.ndarray | None
    bias: np.ndarray | None


def attention(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate MultiHeadAttn: inputs q, k, v (N, L, E), weights [, mask]; outputs y, weights.

    softmax(scale Q K^T + mask) V per head, each of Q, K, V and the result projected.
    """
    params = op.params("MultiHeadAttn")
    _check(b, params)
    combination = params.integer("tensor_combination_type")
    mask = xs[4].value if combination == _ONLY_MASK and len(xs) > 4 else None
    queries, keys, values, result = _projections(b, params, xs)
    heads = params.integer("num_heads")
    q, k, v = (
        _heads(b, _project(b, x.value, projection), heads)
        for x, projection in zip(xs[:3], (queries, keys, values), strict=True)
    )
    scores = b.op("MatMul", [q, b.transpose(k, (0, 1, 3, 2))])
    scores = b.op("Mul", [scores, b.number(params.real("sm_scaler"), scores)])
    scores = _masked(b, scores, params.integer("attn_mask_type"), mask)
    weights = b.op("Softmax", [scores], {"axis": -1})
    n, h, rows, _ = b.extents(weights)
    joined = b.transpose(b.op("MatMul", [weights, v]), (0, 2, 1, 3))
    joined = b.reshape(joined, (n, rows, h * b.extents(v)[3]))
    y = _project(b, joined, result)
    shown = b.reshape(weights, (n * h, rows, b.extents(weights)[3]))
    rest: list[Var | None] = [None] * max(len(op.outputs) - 2, 0)
    return [Var(y, xs[0].dtype), Var(shown, xs[0].dtype), *rest]


def _check(b: Builder, params: Params) -> None:
    for name in ("add_zero_attn", "reslink"):
        if params.flag(name):
            raise b.unsupported(f"attention with {name} is not covered")
    if params.integer("input_order") or params.integer("tensor_combination_type") > _ONLY_MASK:
        raise b.unsupported("attention in another order of axes or with bias_k is not covered")
    dropped = params.real("attn_prob") or params.real("out_prob")
    if params.flag("training") and dropped:
        raise b.unsupported("attention in training mode is not covered")


def _projections(b: Builder, params: Params, xs: Sequence[Var]) -> list[Projection]:
    """Cut the packed weights: those of q, k, v and the output, then the biases in that order."""
    packed = b.array(xs[3].value)
    if packed is None:
        raise b.unsupported("attention weights that are computed are not covered")
    flat = packed.ravel()
    rows = [b.ranked(x.value, 3)[2] for x in xs[:3]]
    columns = [params.integer(f"{n}proj_size") for n in "qkvo"]
    rows.append(columns[2] or rows[2])
    sizes = [r * c for r, c in zip(rows, columns, strict=True)]
    biases = [c * params.flag(f"{n}bias") for n, c in zip("qkvo", columns, strict=True)]
    if sum(sizes) + sum(biases) != flat.size:
        raise b.error(f"{flat.size} weights where {sum(sizes) + sum(biases)} are expected")
    slices = list(_slices(flat, [*sizes, *biases]))
    shaped = [p if p is None else p.reshape(r, -1) for p, r in zip(slices, rows, strict=False)]
    return [Projection(w, c) for w, c in zip(shaped, slices[4:], strict=True)]


def _slices(flat: np.ndarray, sizes: Sequence[int]) -> Iterator[np.ndarray | None]:
    at = 0
    for size in sizes:
        yield flat[at : at + size] if size else None
        at += size


def _project(b: Builder, x: ir.Value, projection: Projection) -> ir.Value:
    if projection.weight is not None:
        x = b.op("MatMul", [x, b.constant(projection.weight)])
    if projection.bias is not None:
        x = b.op("Add", [x, b.constant(projection.bias)])
    return x


def _heads(b: Builder, x: ir.Value, heads: int) -> ir.Value:
    """Turn (N, L, heads D) into (N, heads, L, D)."""
    n, rows, width = b.ranked(x, 3)
    if not heads or width % heads:
        raise b.error(f"{width} features do not split into {heads} heads")
    return b.transpose(b.reshape(x, (n, rows, heads, width // heads)), (0, 2, 1, 3))


def _masked(b: Builder, scores: ir.Value, kind: int, mask: ir.Value | None) -> ir.Value:
    """Add the mask: (L, S), or (N heads, L, S); a causal one is made where none is given."""
    n, heads, rows, columns = b.extents(scores)
    if kind == _NO_MASK:
        return scores
    if kind == _CUDNN or kind > _GIVEN:
        raise b.unsupported("attention with cuDNN's masks is not covered")
    if mask is None:
        if rows * columns > _LARGEST_MASK:
            raise b.unsupported(f"a causal mask of {rows} by {columns} is not covered")
        future = np.triu(np.full((rows, columns), -np.inf), 1)
        mask = b.constant(future.astype(np.float32))
    elif b.rank(mask) == 3:
        mask = b.reshape(mask, (n, heads, rows, columns))
    return b.op("Add", [scores, mask])


RULES: Mapping[str, Rule] = {"MultiHeadAttn": Rule(attention, 4, 7)}
