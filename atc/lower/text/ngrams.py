"""Lowering of TfIdfVectorizer: the n-grams become a tree over numbered tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from atc.ir.expr import Expr, call, cast, const
from atc.ir.graph import Array, DType, TensorType
from atc.ir.ops.ngrams import NGrams
from atc.lower.context import LoweringContext
from atc.lower.ml.features import match_keys
from atc.lower.registry import lowers
from atc.lower.strings import attribute_cells


@lowers("TfIdfVectorizer")
def tf_idf_vectorizer(ctx: LoweringContext) -> str:
    """ONNX TfIdfVectorizer-9: counts of n-grams, cut to 0 and 1, weighted, or both."""
    b, shape = ctx.b, ctx.shape(0)
    ctx.require(len(shape) in (0, 1, 2), f"x is {ctx.type(0)}")
    rows, columns = (1, *shape)[-2:] if shape else (1, 1)
    targets = ctx.ints("ngram_indexes") or []
    ctx.require(bool(targets) and min(targets) >= 0, "ngram_indexes are missing or negative")
    width = max(targets) + 1
    least, most = ctx.int("min_gram_length", 1), ctx.int("max_gram_length", 1)
    skips = ctx.int("max_skip_count")
    ctx.require(1 <= least <= most and skips >= 0, f"n-grams of {least} to {most}, skips {skips}")
    pool = _pool(ctx)
    tokens, numbers = np.unique(pool, return_inverse=True)
    tree = _Tree()
    for gram, target in _grams(ctx, (numbers.reshape(-1) + 1).tolist(), targets, least, most):
        tree.add(gram, target)
    ids = b.reshape(match_keys(ctx, _comparable(ctx), tokens), (rows, columns))
    op = NGrams(rows, columns, width, least, most, min(skips, max(columns - 1, 0)))
    operands = [ids, *(b.constant(t) for t in tree.tables())]
    counts = b.emit1(op, operands, TensorType(DType.FLOAT, (rows, width)))
    return b.reshape(_weighted(ctx, counts, targets), (*shape[:-1], width))


def _comparable(ctx: LoweringContext) -> str:
    """Return the tokens as strings or INT64."""
    x = ctx.input(0)
    return x if ctx.type(0).dtype is DType.STRING else ctx.b.cast(x, DType.INT64)


def _pool(ctx: LoweringContext) -> Array:
    if ctx.type(0).dtype is DType.STRING:
        texts = ctx.attribute("pool_strings")
        ctx.require(bool(texts), "pool_strings are missing")
        return attribute_cells(texts)
    numbers = ctx.ints("pool_int64s")
    ctx.require(bool(numbers), "pool_int64s are missing")
    return np.asarray(numbers, np.int64)


def _grams(
    ctx: LoweringContext, pool: Sequence[int], targets: Sequence[int], least: int, most: int
) -> Iterator[tuple[list[int], int]]:
    """Yield the n-grams of wanted lengths and their columns."""
    begins = [*(ctx.ints("ngram_counts") or []), len(pool)]
    ctx.require(begins[0] == 0 and begins == sorted(begins), f"ngram_counts {begins[:-1]}")
    number = 0
    for length, (begin, end) in enumerate(zip(begins, begins[1:], strict=False), 1):
        ctx.require((end - begin) % length == 0, f"{end - begin} tokens in {length}-grams")
        for at in range(begin, end, length):
            ctx.require(number < len(targets), "ngram_indexes are too few")
            if least <= length <= most:
                yield [*pool[at : at + length]], targets[number]
            number += 1


@dataclass
class _Tree:
    """N-grams by their first tokens; node 0 is the root."""

    edges: list[dict[int, int]] = field(default_factory=lambda: [{}])
    columns: list[int] = field(default_factory=lambda: [-1])

    def add(self, gram: Sequence[int], column: int) -> None:
        node = 0
        for token in gram:
            if token not in self.edges[node]:
                self.edges[node][token] = len(self.edges)
                self.edges.append({})
                self.columns.append(-1)
            node = self.edges[node][token]
        self.columns[node] = column

    def tables(self) -> tuple[Array, ...]:
        """Return the tables as NGrams takes them."""
        rows = [sorted(e.items()) for e in self.edges]
        begins = np.cumsum([0, *map(len, rows)])
        flat = np.asarray([pair for row in rows for pair in row], np.int32).reshape(-1, 2)
        column = np.asarray(self.columns, np.int32)
        return begins.astype(np.int32), flat[:, 0], flat[:, 1], column


def _weighted(ctx: LoweringContext, counts: str, targets: Sequence[int]) -> str:
    """Weigh the counts; a weight belongs to an n-gram, as its column does."""
    b = ctx.b
    mode, weights = ctx.str("mode"), ctx.floats("weights")
    ctx.require(mode in ("TF", "IDF", "TFIDF"), f"mode is '{mode}'")

    def build(count: Expr, *weight: Expr) -> Expr:
        zero = const(0, DType.FLOAT)
        if mode == "IDF":
            count = cast(call("Greater", count, zero), DType.FLOAT)
        return call("Mul", count, weight[0]) if weight else count

    if mode == "TF" or (weights is None and mode == "TFIDF"):
        return counts
    if weights is None:
        return b.map(build, counts)
    ctx.require(len(weights) == len(targets), f"{len(weights)} weights, {len(targets)} n-grams")
    factors = np.zeros(max(targets) + 1, np.float32)
    factors[np.asarray(targets)] = weights
    return b.map(build, counts, b.constant(factors))
