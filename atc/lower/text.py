"""Lowerings of operators on strings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from atc.errors import AtcError
from atc.ir import Array, DType, TensorType
from atc.lower.regex_automaton import automaton
from atc.lower.registry import lowers
from atc.lower.site import Site
from atc.lower.strings import cells, decoded
from atc.ops.strings import StringConcat, StringMatch, StringOf, StringRewrite, StringValue

UNKNOWN_SHAPE = "the output shape of {} depends on values known only at run time"
CUT = "cut the model before this node with --out_nodes"


def _strings(site: Site, i: int) -> str:
    site.require(site.type(i).dtype is DType.STRING, f"input {i} is {site.type(i)}, not strings")
    return site.input(i)


@lowers("StringConcat")
def string_concat(site: Site) -> str:
    """ONNX StringConcat-20: broadcast operands, one after the other."""
    shape = np.broadcast_shapes(site.shape(0), site.shape(1))
    parts = [site.b.expand(_strings(site, i), shape) for i in (0, 1)]
    return site.b.emit1(StringConcat(), parts, TensorType(DType.STRING, shape))


def cast_strings(site: Site, dtype: DType) -> str:
    """ONNX Cast-25 of numbers to strings, or back; a text that is no number ends the run."""
    b, x = site.b, site.input(0)
    shape, number = site.shape(0), dtype.computed
    if dtype is DType.STRING:
        return b.emit1(StringOf(), [_plain(site, x)], TensorType(DType.STRING, shape))
    return b.cast(b.emit1(StringValue(), [x], TensorType(number, shape)), dtype)


def _plain(site: Site, x: str) -> str:
    """Return numbers in the type in which C computes them."""
    return site.b.cast(x, site.b.type(x).dtype.computed)


@lowers("RegexFullMatch")
def regex_full_match(site: Site) -> str:
    """ONNX RegexFullMatch-20: the expression becomes an automaton when compiling."""
    pattern = site.attribute("pattern")
    site.require(pattern is not None, "attribute 'pattern' is missing")
    if isinstance(pattern, bytes):
        raise site.unsupported("a pattern that is not UTF-8")
    try:
        found = automaton(pattern)
    except AtcError as error:
        error.where = site.label
        raise
    states, classes = found.steps.shape
    x = _strings(site, 0)
    tables = [site.b.constant(t) for t in (found.classes, found.steps, found.accepting)]
    op = StringMatch(states, classes)
    return site.b.emit1(op, [x, *tables], TensorType(DType.BOOL, site.shape(0)))


@lowers("StringNormalizer")
def string_normalizer(site: Site) -> str:
    """ONNX StringNormalizer-10: the default case mappings of Unicode, and whole stopwords."""
    how = site.str("case_change_action", "NONE")
    site.require(how in ("NONE", "LOWER", "UPPER"), f"case_change_action is '{how}'")
    shape = site.shape(0)
    site.require(len(shape) == 1 or (len(shape) == 2 and shape[0] == 1), f"x is {site.type(0)}")
    stopwords = site.strs("stopwords") or []
    if stopwords or not shape[-1]:
        x = site.const(0)
        if x is None and shape[-1]:
            raise site.unsupported(UNKNOWN_SHAPE.format(site.node.op_type), CUT)
        given = [] if x is None else decoded(x)
        kept = _kept(given, stopwords, bool(site.int("is_case_sensitive")))
        row = np.asarray([_cased(how, word) for word in kept] or [""], object)
        return site.b.constant(cells(row.reshape((*shape[:-1], -1))))
    x_ = _strings(site, 0)
    if how == "NONE":
        return x_
    table = case_table(how)
    op = StringRewrite(len(table), table.shape[1] - 1)
    return site.b.emit1(op, [x_, site.b.constant(table)], site.type(0))


def _kept(words: Sequence[str], stopwords: Sequence[str], exact: bool) -> list[str]:
    if exact:
        return [w for w in words if w not in stopwords]
    lower = {_cased("LOWER", w) for w in stopwords}
    return [w for w in words if _cased("LOWER", w) not in lower]


def _cased(how: str, word: str) -> str:
    """Change every code point's case by itself, as the network does."""
    match how:
        case "LOWER":
            return "".join(c.lower() for c in word)
        case "UPPER":
            return "".join(c.upper() for c in word)
    return word


@cache
def case_table(how: str) -> Array:
    """Return INT32 rows: a code point, then those of its other case and zeros."""
    rows = []
    for code in range(0x110000):
        char = chr(code)
        other = _cased(how, char)
        if other != char:
            rows.append([code, *map(ord, other)])
    table = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = values
    return table


@lowers("StringSplit")
def string_split(site: Site) -> tuple[str, str]:
    """ONNX StringSplit-20 of strings that are known when compiling."""
    x = site.const(0)
    if x is None:
        raise site.unsupported(UNKNOWN_SHAPE.format(site.node.op_type), CUT)
    delimiter, most = site.str("delimiter") or None, site.int("maxsplit", -1)
    rows = [text.split(delimiter, most) for text in decoded(x)]
    width = max(map(len, rows), default=0)
    padded = np.empty((len(rows), width), object)
    for row, parts in zip(padded, rows, strict=True):
        row[:] = parts + [""] * (width - len(parts))
    counts = np.asarray([len(parts) for parts in rows], np.int64).reshape(x.shape)
    return site.b.constant(cells(padded.reshape((*x.shape, width)))), site.b.constant(counts)
