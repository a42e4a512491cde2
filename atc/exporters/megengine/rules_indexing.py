"""Operators that read or write at places that are data, by indices of a flat tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atc.exporters.megengine.builder import Array, Builder, Node, Type, Var
from atc.importers.megengine.dump import IndexItem

_WRITERS = {"none": "IndexingSetMultiAxisVec", "add": "IndexingIncrMultiAxisVec"}
"""Operators by reduction."""
_MOST_PLACES = np.iinfo(np.int32).max


def wrapped(b: Builder, index: Var, extent: int | Array) -> int:
    """Return negative indices as those counted from the first element."""
    if index.array is not None:
        return b.constant(index.array % extent)
    return b.elemwise("MOD", b.number(index), b.constant(np.asarray(extent, index.type.dtype)))


def _strides(node: Node, shape: Sequence[int]) -> list[int]:
    """Return the distance of neighbours along each axis."""
    if math.prod(shape) > _MOST_PLACES:
        raise node.refuse("its places have more than 32 bits")
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]


def _element_places(b: Builder, node: Node, index: Var, shape: Sequence[int]) -> int:
    """Return the flat places of elements whose index along `axis` is given, as a vector."""
    strides, wanted = _strides(node, shape), index.type.shape
    axis = node.get("axis", 0) % len(shape)
    others = sum(
        (along * stride for k, (along, stride) in enumerate(zip(np.indices(wanted), strides,
                                                                strict=True)) if k != axis),
        np.zeros(wanted, np.int64),
    )  # fmt: skip
    place = b.elemwise("FUSE_MUL_ADD3", wrapped(b, index, shape[axis]),
                       b.constant(np.int32(strides[axis])),
                       b.constant(others.astype(np.int32)))  # fmt: skip
    return b.reshape(place, [index.type.size])


def _slice_places(
    b: Builder, node: Node, index: Var, shape: Sequence[int], batch: int = 0
) -> tuple[int, list[int]]:
    """Return the places of the slices that tuples of indices select, as a vector.

    The indices are of the axes after the first `batch` ones. Returns also the shape [places,
    elements of a slice] of the data that the places are of.
    """
    *tuples, depth = index.type.shape
    indexed = shape[batch : batch + depth]
    count = math.prod(shape[: batch + depth])
    strides = _strides(node, shape[: batch + depth])
    parts = wrapped(b, index, np.array(indexed))
    parts = b.elemwise("MUL", parts, b.constant(np.array(strides[batch:], np.int32)))
    number = math.prod(tuples)
    b.shapes[parts] = index.type.shape
    place = b.reshape(parts, [number, depth])
    place = b.op("Reduce", [place], ("Reduce", {"mode": "SUM", "axis": 1}))[0]
    b.shapes[place], b.dtypes[place] = (number, 1), b.dtypes[parts]
    place = b.reshape(place, [number])
    if batch:
        firsts = np.arange(math.prod(shape[:batch])) * math.prod(indexed)
        each = np.repeat(firsts, number // firsts.size)
        place = b.elemwise("ADD", place, b.constant(each.astype(np.int32)))
        b.shapes[place] = (number,)
    return place, [count, math.prod(shape[batch + depth :])]


def _gathered_elements(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    place = _element_places(b, node, xs[1], xs[0].type.shape)
    flat = b.reshape(b.number(xs[0]), [xs[0].type.size])
    return [b.reshape(b.taken(flat, 0, place), xs[1].type.shape)]


def _gathered_slices(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    _full(node, node.results[0])
    batch = node.get("batch_dims", 0)
    place, rows = _slice_places(b, node, xs[1], xs[0].type.shape, batch)
    found = b.taken(b.reshape(b.number(xs[0]), rows), 0, place)
    return [b.reshape(found, node.results[0].shape)]


def _scattered(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    """Write, or add, at places of the flat tensor."""
    x, index, updates = xs
    shape, reduction = x.type.shape, node.get("reduction", "none")
    if reduction not in _WRITERS:
        raise node.refuse(f"its reduction is {reduction}")
    if reduction == "add" and x.type.kind == "b":
        raise node.refuse("it adds truths")
    _full(node, x.type)
    _full(node, updates.type)
    if node.op_type == "ScatterND":
        place, rows = _slice_places(b, node, index, shape)
        values = [updates.type.size // rows[1], rows[1]]
    else:
        place, rows = _element_places(b, node, index, shape), [x.type.size]
        values = [index.type.size]
    operands = [b.reshape(b.number(x), rows), b.reshape(b.number(updates), values), place]
    params = {"items": (IndexItem(0, False, False, False, True),)}
    found = b.op(_WRITERS[reduction], operands, ("IndexDescMaskDump", params))[0]
    b.shapes[found] = tuple(rows)
    return [b.reshape(found, shape)]


def _full(node: Node, type_: Type) -> None:
    if not type_.size:
        raise node.refuse("it is of an empty tensor")


RULES: Mapping[str, Any] = {
    "GatherElements": _gathered_elements,
    "GatherND": _gathered_slices,
    "ScatterElements": _scattered,
    "ScatterND": _scattered,
}
