"""Lowerings of sequences and optionals: they are known when compiling, only their elements aren't.

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
from atc.lower.context import Site
from atc.lower.indexed_access import gather_axis, index, take
from atc.lower.registry import lowers


def elements(site: Site, i: int) -> tuple[str, ...]:
    """Return the elements of an input that is a sequence."""
    parts = site.b.parts(site.input(i))
    if parts is None or parts.names is None or parts.is_map:
        what = "a tensor" if parts is None else "an optional without a value"
        what = "a map" if parts is not None and parts.is_map else what
        raise ModelError(f"input {i} is {what}, not a sequence", where=site.label)
    return parts.names


# ---- sequences ----------------------------------------------------------------------------------


@lowers("SequenceConstruct")
def sequence_construct(site: Site) -> str:
    """ONNX SequenceConstruct-11."""
    return site.b.sequence([site.input(i) for i in range(len(site.inputs))], site.type(0).dtype)


@lowers("SequenceEmpty")
def sequence_empty(site: Site) -> str:
    """ONNX SequenceEmpty-11."""
    code = site.int("dtype", 1)
    try:
        return site.b.sequence((), DType.from_onnx(code))
    except KeyError:
        raise site.unsupported(f"a sequence of ONNX type {code} is not covered") from None


@lowers("SequenceLength")
def sequence_length(site: Site) -> str:
    """ONNX SequenceLength-11."""
    return site.b.constant(np.asarray(len(elements(site, 0)), np.int64))


@lowers("SequenceAt")
def sequence_at(site: Site) -> str:
    """ONNX SequenceAt-11."""
    parts = elements(site, 0)
    place = _position(site, 1, len(parts))
    if isinstance(place, int):
        return parts[place]
    rows = _stack(site, parts)
    chosen = gather_axis(site.b, rows, 0, site.b.reshape(place, ()), proven=False)
    return site.b.reshape(chosen, site.b.shape(parts[0]))


@lowers("SequenceInsert")
def sequence_insert(site: Site) -> str:
    """ONNX SequenceInsert-11: before a position, or at the end."""
    b, new, parts = site.b, site.input(1), elements(site, 0)
    dtype = site.type(1).dtype
    place = _position(site, 2, len(parts), last=len(parts)) if site.has(2) else len(parts)
    if isinstance(place, int):
        return b.sequence((*parts[:place], new, *parts[place:]), dtype)

    def source(i: Expr, p: Expr) -> Expr:
        count = index(len(parts))
        p = call("Where", call("Less", p, index(0)), call("Add", p, count), p)
        after = call("Where", call("Greater", i, p), call("Sub", i, index(1)), i)
        return call("Where", call("Equal", i, p), count, after)

    return _rearranged(site, (*parts, new), len(parts) + 1, place, source)


@lowers("SequenceErase")
def sequence_erase(site: Site) -> str:
    """ONNX SequenceErase-11: the element at a position, or the last one."""
    parts = elements(site, 0)
    site.require(bool(parts), "the sequence is empty")
    place = _position(site, 1, len(parts)) if site.has(1) else len(parts) - 1
    if isinstance(place, int):
        return site.b.sequence((*parts[:place], *parts[place + 1 :]), site.b.type(parts[0]).dtype)

    def source(i: Expr, p: Expr) -> Expr:
        p = call("Where", call("Less", p, index(0)), call("Add", p, index(len(parts))), p)
        return call("Where", call("Less", i, p), i, call("Add", i, index(1)))

    return _rearranged(site, parts, len(parts) - 1, place, source)


def _position(site: Site, i: int, count: int, last: int | None = None) -> int | str:
    """Return a position, counted from the end where it's negative; a value if only a run knows."""
    highest = count - 1 if last is None else last
    site.require(site.type(i).size == 1, f"the position is {site.type(i)}")
    known = site.const(i)
    if known is None:
        site.require(highest >= 0, "the sequence is empty")
        return site.b.cast(site.input(i), DType.INT64)
    place = int(known.reshape(()))
    site.require(-count <= place <= highest, f"position {place} in a sequence of {count}")
    return place + count if place < 0 else place


def _stack(site: Site, parts: Sequence[str]) -> str:
    """Return elements of one type as rows of a tensor."""
    b = site.b
    types = {b.type(p) for p in parts}
    if len(types) > 1:
        shown = ", ".join(sorted(map(str, types)))
        raise site.unsupported(
            f"a position known only at run time, in a sequence of different types: {shown}",
            "make the position a constant, or the elements alike",
        )
    return join(b, [b.reshape(p, (1, *b.shape(p))) for p in parts], 0)


def _rearranged(site: Site, parts: Sequence[str], count: int, place: str, source: object) -> str:
    """Return `count` elements; number i is part `source(i, place)`."""
    b = site.b
    assert callable(source)
    table = b.map(
        lambda p, i: cast(source(i, p), DType.INT64), place, shape=(count,), views=[View((0,))],
        coordinates=[View((1,))],
    )  # fmt: skip
    first = b.type(parts[0])
    rows = gather_axis(b, _stack(site, parts), 0, table, proven=False)
    return b.sequence([_row(b, rows, i) for i in range(count)], first.dtype)


def _row(b: Builder, rows: str, i: int) -> str:
    shape = b.shape(rows)[1:]
    return b.reshape(take(b, rows, 0, np.asarray(i, np.int64)), shape)


# ---- sequences and tensors ----------------------------------------------------------------------


@lowers("ConcatFromSequence")
def concat_from_sequence(site: Site) -> str:
    """ONNX ConcatFromSequence-11: along an axis, or along a new one."""
    b, parts = site.b, elements(site, 0)
    site.require(bool(parts), "the sequence is empty")
    stacked = bool(site.int("new_axis", 0))
    rank = len(b.shape(parts[0])) + stacked
    axis = site.axis(site.int("axis", 0), rank)
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
        site.require(same, f"{type_} cannot be joined to {first} along axis {axis}")
    return join(b, parts, axis)


@lowers("SplitToSequence")
def split_to_sequence(site: Site) -> str:
    """ONNX SplitToSequence-24: parts of given sizes, of one size (the last may be smaller), or 1.

    Only without a list of sizes `keepdims` = 0 drops the axis.
    """
    b, shape = site.b, site.shape(0)
    site.require(bool(shape), "the tensor is a scalar")
    axis = site.axis(site.int("axis", 0), len(shape))
    given = site.ints_const(1, "the size of the parts") if site.has(1) else [1]
    sizes = given
    if not site.has(1) or site.shape(1) == ():
        sizes = _part_sizes(site, given[0], shape[axis])
    fits = sum(sizes) == shape[axis] and min(sizes, default=0) >= 0
    site.require(fits, f"split {sizes} of {shape[axis]}")
    dropped = not site.has(1) and not site.int("keepdims", 1)
    parts, begin = [], 0
    for size in sizes:
        part = take(b, site.input(0), axis, np.arange(begin, begin + size, dtype=np.int64))
        if dropped:
            part = b.reshape(part, (*shape[:axis], *shape[axis + 1 :]))
        parts.append(part)
        begin += size
    return b.sequence(parts, site.type(0).dtype)


def _part_sizes(site: Site, step: int, extent: int) -> list[int]:
    site.require(step > 0, f"parts of {step}")
    places = range(0, extent, step)
    if len(places) > MAX_PARTS:
        raise site.unsupported(f"a sequence of {len(places)} tensors", f"use {MAX_PARTS} at most")
    return [min(step, extent - at) for at in places]


@lowers("SequenceMap")
def sequence_map(site: Site) -> tuple[str, ...]:
    """ONNX SequenceMap-17: the body once per element; tensors are given to each."""
    b, graph = site.b, site.subgraph("body")
    operands = [b.parts(x) for x in site.inputs]
    length = len(elements(site, 0))
    site.require(len(graph.inputs) == len(operands), "the body does not fit")
    made: list[list[str]] = [[] for _ in graph.outputs]
    for k in range(length):
        for i, (value, parts) in enumerate(zip(graph.inputs, operands, strict=True)):
            names = None if parts is None else elements(site, i)
            site.require(names is None or len(names) == length, f"input {i} has another length")
            site.bind(b, value, site.input(i) if names is None else names[k])
        for results, result in zip(made, site.lower_subgraph(graph, b), strict=True):
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
def optional(site: Site) -> str:
    """ONNX Optional-15: the value itself, or nothing."""
    return site.input(0) if site.has(0) else site.b.nothing()


@lowers("OptionalHasElement")
def optional_has_element(site: Site) -> str:
    """ONNX OptionalHasElement-18: a tensor or a sequence is there always."""
    parts = site.b.parts(site.input(0)) if site.has(0) else None
    empty = not site.has(0) or (parts is not None and parts.names is None)
    return site.b.constant(np.asarray(not empty))


@lowers("OptionalGetElement")
def optional_get_element(site: Site) -> str:
    """ONNX OptionalGetElement-18."""
    parts = site.b.parts(site.input(0))
    site.require(parts is None or parts.names is not None, "the optional has no value")
    return site.input(0)
