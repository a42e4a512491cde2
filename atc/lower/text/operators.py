"""Lowerings of operators on strings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np

from atc.dims import Dim
from atc.errors import AtcError
from atc.ir.expr import call, const
from atc.ir.graph import STRING_BYTES, Array, DType, TensorType
from atc.ir.ops.strings import (
    StringConcat,
    StringMatch,
    StringOf,
    StringPieces,
    StringRewrite,
    StringTokens,
    StringValue,
)
from atc.lower.concat_pad import join
from atc.lower.context import LoweringContext
from atc.lower.contrib.fused import MICROSOFT
from atc.lower.data_dependent import indices_of
from atc.lower.indexed_access import gather_axis
from atc.lower.ml.features import match_keys
from atc.lower.reduce import reduce_axes
from atc.lower.registry import lowers
from atc.lower.strings import attribute_cells, cell, cells, decoded
from atc.lower.text.regex_automaton import Automaton, automaton


def _strings(ctx: LoweringContext, i: int) -> str:
    ctx.require(ctx.type(i).dtype is DType.STRING, f"input {i} is {ctx.type(i)}, not strings")
    return ctx.input(i)


@lowers("StringConcat")
def string_concat(ctx: LoweringContext) -> str:
    """ONNX StringConcat-20: broadcast operands, one after the other."""
    shape = np.broadcast_shapes(ctx.shape(0), ctx.shape(1))
    parts = [ctx.b.expand(_strings(ctx, i), shape) for i in (0, 1)]
    return ctx.b.emit1(StringConcat(), parts, TensorType(DType.STRING, shape))


def cast_strings(ctx: LoweringContext, dtype: DType) -> str:
    """ONNX Cast-25 of numbers to strings, or back; a text that is not a number ends the run."""
    b, x = ctx.b, ctx.input(0)
    shape, number = ctx.shape(0), dtype.computed
    if dtype is DType.STRING:
        return b.emit1(StringOf(), [_plain(ctx, x)], TensorType(DType.STRING, shape))
    return b.cast(b.emit1(StringValue(), [x], TensorType(number, shape)), dtype)


def _plain(ctx: LoweringContext, x: str) -> str:
    """Return numbers in the type in which C computes them."""
    return ctx.b.cast(x, ctx.b.type(x).dtype.computed)


@lowers("RegexFullMatch")
def regex_full_match(ctx: LoweringContext) -> str:
    """ONNX RegexFullMatch-20: the expression becomes an automaton when compiling."""
    pattern = ctx.attribute("pattern")
    ctx.require(pattern is not None, "attribute 'pattern' is missing")
    if isinstance(pattern, bytes):
        raise ctx.unsupported("a pattern that is not UTF-8")
    found = _automaton(ctx, pattern)
    states, classes = found.steps.shape
    x = _strings(ctx, 0)
    tables = [ctx.b.constant(t) for t in (found.classes, found.steps, found.accepting)]
    op = StringMatch(states, classes)
    return ctx.b.emit1(op, [x, *tables], TensorType(DType.BOOL, ctx.shape(0)))


def _automaton(ctx: LoweringContext, pattern: str) -> Automaton:
    try:
        return automaton(pattern)
    except AtcError as error:
        error.where = ctx.label
        raise


@lowers("StringNormalizer")
def string_normalizer(ctx: LoweringContext) -> str:
    """ONNX StringNormalizer-10: Unicode's mappings of single code points, and whole stopwords.

    Of locales only those of Turkish and Azerbaijani map otherwise.
    """
    b, how = ctx.b, ctx.str("case_change_action", "NONE")
    ctx.require(how in ("NONE", "LOWER", "UPPER"), f"case_change_action is '{how}'")
    shape = ctx.shape(0)
    ctx.require(len(shape) == 1 or (len(shape) == 2 and shape[0] == 1), f"x is {ctx.type(0)}")
    if not prod(shape):
        return b.constant(cells(np.asarray([""], object)).reshape((*shape[:-1], 1)))
    words, stopwords = b.reshape(_strings(ctx, 0), (shape[-1],)), ctx.strs("stopwords") or []
    y = _recased(ctx, words, how)
    if stopwords:
        y = _without(ctx, words, stopwords, y)
    return b.reshape(y, (*shape[:-1], *b.shape(y)))


def _without(ctx: LoweringContext, words: str, stopwords: Sequence[str], results: str) -> str:
    """Return the results of words that aren't listed; one empty string where none is left."""
    b, compared = ctx.b, words
    if not ctx.int("is_case_sensitive"):
        stopwords = [_cased("LOWER", word, _is_turkic(ctx)) for word in stopwords]
        compared = _recased(ctx, words, "LOWER")
    listed = match_keys(ctx, compared, attribute_cells(stopwords))
    kept = b.map(lambda k: call("Equal", k, const(0, DType.INT64)), listed)
    some = reduce_axes(ctx, b.cast(kept, DType.INT32), (0,), True, "Max")
    none = b.map(lambda s: call("Equal", s, const(0, DType.INT32)), some)
    empty = b.constant(cells(np.asarray([""], object)))
    found = indices_of(ctx, join(b, [kept, none], 0))
    places = b.reshape(found, b.shape(found)[1:])
    return gather_axis(b, join(b, [results, empty], 0), 0, places, proven=False)


def _recased(ctx: LoweringContext, words: str, how: str) -> str:
    if how == "NONE":
        return words
    table, known = case_table(how, _is_turkic(ctx)), ctx.b.value(words)
    if known is not None:
        changed = [_cased(how, word, _is_turkic(ctx)) for word in decoded(known)]
        return ctx.b.constant(cells(np.asarray(changed, object)).reshape(known.shape))
    op = StringRewrite(len(table), table.shape[1] - 1)
    return ctx.b.emit1(op, [words, ctx.b.constant(table)], ctx.b.type(words))


def _is_turkic(ctx: LoweringContext) -> bool:
    """Return whether the locale's capital i has a dot, as in Turkish."""
    return ctx.str("locale").replace("-", "_").split("_")[0].lower() in ("tr", "az")


_TURKIC = {"LOWER": {"I": "\u0131", "\u0130": "i"}, "UPPER": {"i": "\u0130"}}


def _cased(how: str, word: str, turkic: bool = False) -> str:
    """Change every code point's case by itself, as the network does."""
    special = _TURKIC[how] if turkic else {}
    return "".join(special.get(c) or (c.lower() if how == "LOWER" else c.upper()) for c in word)


@cache
def case_table(how: str, turkic: bool = False) -> Array:
    """Return INT32 rows: a code point, then those of its other case and zeros."""
    change = str.lower if how == "LOWER" else str.upper
    special = _TURKIC[how] if turkic else {}
    every = map(chr, range(0x110000))
    pairs = ((c, _cased(how, c, turkic)) for c in every if c in special or change(c) != c)
    rows = [[ord(c), *map(ord, other)] for c, other in pairs if other != c]
    table = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = values
    return table


@lowers("StringSplit")
def string_split(ctx: LoweringContext) -> tuple[str, str]:
    """ONNX StringSplit-20: rows are as long as the longest one, which the run finds."""
    b, shape = ctx.b, ctx.shape(0)
    delimiter, most = cell(ctx.str("delimiter")), max(ctx.int("maxsplit", -1), -1)
    parts = STRING_BYTES // max(len(delimiter), 2 if not delimiter else 1) + 1
    bound = min(parts, most + 1) if most >= 0 else parts
    width = b.symbol(f"parts that {ctx.name} finds", 0, bound if prod(shape) else 0)
    if not isinstance(width, Dim):
        empty = b.constant(np.empty((*shape, 0), DType.STRING.numpy))
        return empty, b.constant(np.zeros(shape, np.int64))
    types = TensorType(DType.STRING, (*shape, width)), TensorType(DType.INT64, shape)
    parts_, counts = b.emit(StringPieces(width, delimiter, most), [_strings(ctx, 0)], *types)
    return parts_, counts


@lowers("Tokenizer", domain=MICROSOFT)
def tokenizer(ctx: LoweringContext) -> str:
    """com.microsoft Tokenizer: the longest matches of an expression, from left to right."""
    b, shape = ctx.b, ctx.shape(0)
    pattern = ctx.attribute("tokenexp")
    if not isinstance(pattern, str):
        raise ctx.unsupported("a Tokenizer with separators", "give it tokenexp")
    least, mark = max(ctx.int("mincharnum", 1), 1), bool(ctx.int("mark"))
    found = _automaton(ctx, pattern)
    bound = STRING_BYTES // least + 2 * mark
    width = b.symbol(f"tokens that {ctx.name} finds", 0, bound if prod(shape) else 0)
    if not isinstance(width, Dim):
        return b.constant(np.empty((*shape, 0), DType.STRING.numpy))
    states, classes = found.steps.shape
    tables = [b.constant(t) for t in (found.classes, found.steps, found.accepting)]
    pad = b.constant(attribute_cells(ctx.attribute("pad_value") or ""))
    op = StringTokens(width, states, classes, least, mark)
    type_ = TensorType(DType.STRING, (*shape, width))
    return b.emit1(op, [_strings(ctx, 0), *tables, pad], type_)
