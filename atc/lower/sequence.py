"""Lowerings of sequences and optionals: they are known when compiling, only their elements aren't.

One that a loop appends to may be the rows of a tensor, as many as the run says (`appended.py`).
A position known only at run time chooses between elements of one type.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir

from atc.errors import ModelError
from atc.ir.expr import Expr, call, cast
from atc.ir.graph import DType
from atc.ir.view import View
from atc.lower.builder import MAX_PARTS, Builder
from atc.lower.concat_pad import join
from atc.lower.context import LoweringContext
from atc.lower.indexed_access import gather_axis, index, take
from atc.lower.registry import lowers


def elements(ctx: LoweringContext, i: int) -> tuple[str, ...]:
    """Return the elements of an input that is a sequence."""
    parts = ctx.b.parts(ctx.input(i))
    if parts is None or parts.names is None or parts.is_map:
        what = "a tensor" if parts is None else "an optional without a value"
        what = "a map" if parts is not None and parts.is_map else what
        raise ModelError(f"input {i} is {what}, not a sequence", where=ctx.label)
    return ctx.b.elements(parts)


def rows_of(ctx: LoweringContext, i: int) -> str:
    """Return the tensor whose rows are the elements of a stacked sequence, '' for others."""
    parts = ctx.b.parts(ctx.input(i))
    return parts.names[0] if parts is not None and parts.is_stacked and parts.names else ""


# ---- sequences ----------------------------------------------------------------------------------


@lowers("SequenceConstruct")
def sequence_construct(ctx: LoweringContext) -> str:
    """ONNX SequenceConstruct-11."""
    return ctx.b.sequence([ctx.input(i) for i in range(len(ctx.inputs))], ctx.type(0).dtype)


@lowers("SequenceEmpty")
def sequence_empty(ctx: LoweringContext) -> str:
    """ONNX SequenceEmpty-11."""
    return ctx.b.sequence((), ctx.dtype("dtype", DType.FLOAT))


@lowers("SequenceLength")
def sequence_length(ctx: LoweringContext) -> str:
    """ONNX SequenceLength-11."""
    if rows := rows_of(ctx, 0):
        return ctx.b.extents(np.array(ctx.b.shape(rows)[0], object))
    return ctx.b.constant(np.asarray(len(elements(ctx, 0)), np.int64))


@lowers("SequenceAt")
def sequence_at(ctx: LoweringContext) -> str:
    """ONNX SequenceAt-11."""
    if rows := rows_of(ctx, 0):
        number = ctx.b.reshape(ctx.b.cast(ctx.input(1), DType.INT64), ())
        return gather_axis(ctx.b, rows, 0, number, proven=False)
    parts = elements(ctx, 0)
    place = position(ctx, 1, len(parts))
    if isinstance(place, int):
        return parts[place]
    rows = _stack(ctx, parts)
    chosen = gather_axis(ctx.b, rows, 0, ctx.b.reshape(place, ()), proven=False)
    return ctx.b.reshape(chosen, ctx.b.shape(parts[0]))


@lowers("SequenceInsert")
def sequence_insert(ctx: LoweringContext) -> str:
    """ONNX SequenceInsert-11: before a position, or at the end."""
    b, new, parts = ctx.b, ctx.input(1), elements(ctx, 0)
    dtype = ctx.type(1).dtype
    place = position(ctx, 2, len(parts), last=len(parts)) if ctx.has(2) else len(parts)
    if isinstance(place, int):
        return b.sequence((*parts[:place], new, *parts[place:]), dtype)

    def source(i: Expr, p: Expr) -> Expr:
        count = index(len(parts))
        p = call("Where", call("Less", p, index(0)), call("Add", p, count), p)
        after = call("Where", call("Greater", i, p), call("Sub", i, index(1)), i)
        return call("Where", call("Equal", i, p), count, after)

    return _rearranged(ctx, (*parts, new), len(parts) + 1, place, source)


@lowers("SequenceErase")
def sequence_erase(ctx: LoweringContext) -> str:
    """ONNX SequenceErase-11: the element at a position, or the last one."""
    parts = elements(ctx, 0)
    ctx.require(bool(parts), "the sequence is empty")
    place = position(ctx, 1, len(parts)) if ctx.has(1) else len(parts) - 1
    if isinstance(place, int):
        return ctx.b.sequence((*parts[:place], *parts[place + 1 :]), ctx.b.type(parts[0]).dtype)

    def source(i: Expr, p: Expr) -> Expr:
        p = call("Where", call("Less", p, index(0)), call("Add", p, index(len(parts))), p)
        return call("Where", call("Less", i, p), i, call("Add", i, index(1)))

    return _rearranged(ctx, parts, len(parts) - 1, place, source)


def position(ctx: LoweringContext, i: int, count: int, last: int | None = None) -> int | str:
    """Return a position, counted from the end where it's negative; a value if only a run knows."""
    highest = count - 1 if last is None else last
    ctx.require(ctx.type(i).size == 1, f"the position is {ctx.type(i)}")
    known = ctx.const(i)
    if known is None:
        ctx.require(highest >= 0, "the sequence is empty")
        return ctx.b.cast(ctx.input(i), DType.INT64)
    place = int(known.reshape(()))
    ctx.require(-count <= place <= highest, f"position {place} in a sequence of {count}")
    return place + count if place < 0 else place


def _stack(ctx: LoweringContext, parts: Sequence[str]) -> str:
    """Return elements of one type as rows of a tensor."""
    b = ctx.b
    types = {b.type(p) for p in parts}
    if len(types) > 1:
        shown = ", ".join(sorted(map(str, types)))
        raise ctx.unsupported(
            f"a position known only at run time, in a sequence of different types: {shown}",
            "make the position a constant, or the elements alike",
        )
    return join(b, [b.reshape(p, (1, *b.shape(p))) for p in parts], 0)


def _rearranged(
    ctx: LoweringContext, parts: Sequence[str], count: int, place: str, source: object
) -> str:
    """Return `count` elements; number i is part `source(i, place)`."""
    b = ctx.b
    assert callable(source)
    table = b.map(
        lambda p, i: cast(source(i, p), DType.INT64), place, shape=(count,), views=[View((0,))],
        coordinates=[View((1,))],
    )  # fmt: skip
    first = b.type(parts[0])
    rows = gather_axis(b, _stack(ctx, parts), 0, table, proven=False)
    return b.sequence([_row(b, rows, i) for i in range(count)], first.dtype)


def _row(b: Builder, rows: str, i: int) -> str:
    shape = b.shape(rows)[1:]
    return b.reshape(take(b, rows, 0, np.asarray(i, np.int64)), shape)


# ---- sequences and tensors ----------------------------------------------------------------------


@lowers("ConcatFromSequence")
def concat_from_sequence(ctx: LoweringContext) -> str:
    """ONNX ConcatFromSequence-11: along an axis, or along a new one."""
    b = ctx.b
    if rows := rows_of(ctx, 0):
        return _joined_rows(ctx, rows)
    parts = elements(ctx, 0)
    ctx.require(bool(parts), "the sequence is empty")
    stacked = bool(ctx.int("new_axis", 0))
    rank = len(b.shape(parts[0])) + stacked
    axis = ctx.axis(ctx.int("axis", 0), rank)
    if stacked:
        shapes = [b.shape(p) for p in parts]
        parts = tuple(
            b.reshape(p, (*s[:axis], 1, *s[axis:])) for p, s in zip(parts, shapes, strict=True)
        )
    first = b.type(parts[0])
    for part in parts:
        type_ = b.type(part)
        same = type_.dtype is first.dtype and len(type_.shape) == rank > 0
        same &= all(n == m for d, (n, m) in enumerate(zip(type_.shape, first.shape, strict=False))
                    if d != axis)  # fmt: skip
        ctx.require(same, f"{type_} cannot be joined to {first} along axis {axis}")
    return join(b, parts, axis)


def _joined_rows(ctx: LoweringContext, rows: str) -> str:
    """Join the rows of a tensor along an axis of theirs, or along a new one."""
    b, (count, *shape) = ctx.b, ctx.b.shape(rows)
    new = bool(ctx.int("new_axis", 0))
    axis = ctx.axis(ctx.int("axis", 0), len(shape) + new)
    whole = b.transpose(rows, [*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)])
    if new:
        return whole
    return b.reshape(whole, (*shape[:axis], count * shape[axis], *shape[axis + 1 :]))


@lowers("SplitToSequence")
def split_to_sequence(ctx: LoweringContext) -> str:
    """ONNX SplitToSequence-24: parts of given sizes, of one size (the last may be smaller), or 1.

    Only without a list of sizes `keepdims` = 0 drops the axis.
    """
    b, shape = ctx.b, ctx.shape(0)
    axis, sizes, dropped = parts_of(ctx)
    parts, begin = [], 0
    for size in sizes:
        part = take(b, ctx.input(0), axis, np.arange(begin, begin + size, dtype=np.int64))
        if dropped:
            part = b.reshape(part, (*shape[:axis], *shape[axis + 1 :]))
        parts.append(part)
        begin += size
    return b.sequence(parts, ctx.type(0).dtype)


def parts_of(ctx: LoweringContext) -> tuple[int, list[int], bool]:
    """Return a SplitToSequence's axis, the sizes of its parts, and whether they lose the axis."""
    shape = ctx.shape(0)
    ctx.require(bool(shape), "the tensor is a scalar")
    axis = ctx.axis(ctx.int("axis", 0), len(shape))
    sizes = ctx.ints_const(1, "the size of the parts") if ctx.has(1) else [1]
    if not ctx.has(1) or ctx.shape(1) == ():
        sizes = _part_sizes(ctx, sizes[0], shape[axis])
    fits = sum(sizes) == shape[axis] and min(sizes, default=0) >= 0
    ctx.require(fits, f"split {sizes} of {shape[axis]}")
    return axis, sizes, not ctx.has(1) and not ctx.int("keepdims", 1)


def _part_sizes(ctx: LoweringContext, step: int, extent: int) -> list[int]:
    ctx.require(step > 0, f"parts of {step}")
    places = range(0, extent, step)
    if len(places) > MAX_PARTS:
        raise ctx.unsupported(f"a sequence of {len(places)} tensors", f"use {MAX_PARTS} at most")
    return [min(step, extent - at) for at in places]


@lowers("SequenceMap")
def sequence_map(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX SequenceMap-17: the body once per element; tensors are given to each."""
    b, graph = ctx.b, ctx.subgraph("body")
    operands = [b.parts(x) for x in ctx.inputs]
    length = len(elements(ctx, 0))
    ctx.require(len(graph.inputs) == len(operands), "the body does not fit")
    made: list[list[str]] = [[] for _ in graph.outputs]
    for k in range(length):
        for i, (value, parts) in enumerate(zip(graph.inputs, operands, strict=True)):
            names = None if parts is None else elements(ctx, i)
            ctx.require(names is None or len(names) == length, f"input {i} has another length")
            ctx.bind(b, value, ctx.input(i) if names is None else names[k])
        for results, result in zip(made, ctx.lower_subgraph(graph, b), strict=True):
            results.append(result)
    types = [_output_dtype(v) for v in graph.outputs]
    return tuple(b.sequence(names, dtype) for names, dtype in zip(made, types, strict=True))


def _output_dtype(value: onnx_ir.Value) -> DType | None:
    try:
        return None if value.dtype is None else DType.from_onnx(int(value.dtype))
    except KeyError:
        return None


# ---- optionals ----------------------------------------------------------------------------------


@lowers("Optional")
def optional(ctx: LoweringContext) -> str:
    """ONNX Optional-15: the value itself, or nothing."""
    return ctx.input(0) if ctx.has(0) else ctx.b.nothing()


@lowers("OptionalHasElement")
def optional_has_element(ctx: LoweringContext) -> str:
    """ONNX OptionalHasElement-18: a tensor or a sequence is there always."""
    parts = ctx.b.parts(ctx.input(0)) if ctx.has(0) else None
    empty = not ctx.has(0) or (parts is not None and parts.names is None)
    return ctx.b.constant(np.asarray(not empty))


@lowers("OptionalGetElement")
def optional_get_element(ctx: LoweringContext) -> str:
    """ONNX OptionalGetElement-18."""
    parts = ctx.b.parts(ctx.input(0))
    ctx.require(parts is None or parts.names is not None, "the optional has no value")
    return ctx.input(0)
