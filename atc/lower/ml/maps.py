"""Lowerings of ai.onnx.ml maps: the keys are a tensor, and so are the values."""

from __future__ import annotations

import numpy as np

from atc.errors import ModelError
from atc.ir.expr import Input, call, cast
from atc.ir.graph import Array, DType, TensorType
from atc.ir.ops import Reduce, identity_epilogue
from atc.ir.ops.strings import StringOf, StringValue
from atc.ir.view import View
from atc.lower.composites import MAP_DOMAIN
from atc.lower.concat_pad import join
from atc.lower.context import LoweringContext
from atc.lower.indexed_access import gather_axis
from atc.lower.ml.features import ML, class_labels, match_values
from atc.lower.registry import lowers
from atc.lower.strings import attribute_cells


@lowers("Map", domain=MAP_DOMAIN)
def mapping(ctx: LoweringContext) -> str:
    """Build a map of given keys and values: the importer's stand-in for a graph's input."""
    return ctx.b.mapping(ctx.input(0), ctx.input(1))


def _entries(ctx: LoweringContext) -> tuple[str, str]:
    """Return the keys and the values of input 0."""
    parts = ctx.b.parts(ctx.input(0))
    if parts is None or not parts.is_map or parts.names is None:
        raise ModelError("input 0 is not a map", where=ctx.label)
    keys, values = parts.names
    ctx.require(len(ctx.b.shape(values)) == 1, "input 0 is a sequence of maps")
    return keys, values


@lowers("ZipMap", domain=ML)
def zip_map(ctx: LoweringContext) -> str:
    """ai.onnx.ml ZipMap-1: a sequence of maps from labels to a row's scores."""
    b, shape = ctx.b, ctx.shape(0)
    labels = class_labels(ctx, "classlabels_int64s")
    if labels is None:
        raise ctx.unsupported("classlabels_strings and classlabels_int64s are missing")
    ctx.require(len(shape) in (1, 2), f"x is {ctx.type(0)}")
    ctx.require(shape[-1] == len(labels), f"{len(labels)} labels for {ctx.type(0)}")
    ctx.require(len(np.unique(labels)) == len(labels), "a label is there twice")
    rows = b.reshape(ctx.input(0), (1, *shape)[-2:])
    return b.mapping(b.constant(labels), rows)


@lowers("DictVectorizer", domain=ML)
def dict_vectorizer(ctx: LoweringContext) -> str:
    """ai.onnx.ml DictVectorizer-1: the values of the vocabulary's keys, zero for absent ones."""
    b = ctx.b
    keys, values = _entries(ctx)
    texts, numbers = ctx.attribute("string_vocabulary"), ctx.ints("int64_vocabulary")
    ctx.require(bool(texts) != bool(numbers), "there must be one vocabulary")
    wanted = attribute_cells(texts) if texts else np.asarray(numbers, np.int64)
    zero = np.zeros(1, b.type(values).dtype.numpy)
    return _looked_up(ctx, b.constant(wanted), keys, values, zero)


def _looked_up(ctx: LoweringContext, wanted: str, keys: str, values: str, absent: Array) -> str:
    """Return [1, n], the values of the wanted keys."""
    b = ctx.b
    which = match_values(ctx, wanted, keys)
    found = gather_axis(b, join(b, [b.constant(absent), values], 0), 0, which, proven=True)
    return b.reshape(found, (1, b.type(wanted).size))


@lowers("CastMap", domain=ML)
def cast_map(ctx: LoweringContext) -> str:
    """ai.onnx.ml CastMap-1: DENSE: the values by ascending key; SPARSE: each where its key says.

    A place that no key says holds 0. Numbers become strings as by Cast.
    """
    b = ctx.b
    keys, values = _entries(ctx)
    ctx.require(b.type(keys).dtype is DType.INT64, f"the keys are {b.type(keys)}")
    form, to = ctx.str("map_form", "DENSE"), ctx.str("cast_to", "TO_FLOAT")
    kinds = {"TO_FLOAT": DType.FLOAT, "TO_INT64": DType.INT64, "TO_STRING": DType.STRING}
    ctx.require(form in ("DENSE", "SPARSE") and to in kinds, f"map_form {form}, cast_to {to}")
    values = _cast(ctx, values, kinds[to])
    size = ctx.int("max_map", 1)
    if form == "DENSE":
        keys, size = _ranks(ctx, keys), b.type(keys).size
    ctx.require(size > 0, f"max_map is {size}")
    zero = np.asarray([b"0" if to == "TO_STRING" else 0]).astype(kinds[to].numpy)
    return _looked_up(ctx, b.constant(np.arange(size, dtype=np.int64)), keys, values, zero)


def _cast(ctx: LoweringContext, values: str, to: DType) -> str:
    b, given = ctx.b, ctx.b.type(values)
    if given.dtype is to:
        return values
    if DType.STRING in (to, given.dtype):
        op = StringOf() if to is DType.STRING else StringValue()
        return b.emit1(op, [values], TensorType(to, given.shape))
    return b.cast(values, to)


def _ranks(ctx: LoweringContext, keys: str) -> str:
    """Return how many keys are less than each."""
    n = ctx.b.type(keys).size
    key = DType.INT64
    less = cast(call("Less", Input(key, 0), Input(key, 1)), key)
    views = (View((0, 1)), View((1, 0)))
    op = Reduce("Sum", (n,), (n,), less, views, identity_epilogue(key))
    return ctx.b.emit1(op, [keys, keys], TensorType(key, (n,)))
