"""Inputs that are made up: random ones, the same for the same seed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir

from atc.adapt.states import initial_states
from atc.dims import Range, Sum
from atc.ir.graph import Array, Graph, TensorType, type_of
from atc.lower.inputs import axis_name, open_axes

Type = tuple[tuple[int, ...], np.dtype]
"""A shape and an element type."""

Types = Mapping[str, Type]


def model_types(graph: Graph, model: onnx_ir.Model) -> dict[str, TensorType]:
    """Return the types of a model's inputs where it became a graph.

    States that are laid out otherwise there are as the model has them.
    """
    lasting = {graph.inputs[given] for given, _ in graph.states}
    found = {name: graph.types[name] for name in graph.inputs if name not in lasting}
    for name, array in initial_states(model).items():
        same = name in lasting and name not in graph.slides
        found[name] = graph.types[name] if same else type_of(array)
    return found


def random_inputs(types: Types, seed: int) -> dict[str, Array]:
    """Return inputs of these shapes and types, the same for the same seed.

    Floats are normal. Integers of 8 bits take all values; wider ones, which are most often
    indices, masks or lengths, are 0 or 1. Strings are one of a few.
    """
    random = np.random.default_rng(seed)
    return {name: _random(random, *type_) for name, type_ in types.items()}


_WORDS = ("", "a", "Ab c", "42", "-1.5", "été", "x@example.com", "日本", "the quick brown fox")


def _random(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    if dtype.kind == "O":
        return np.asarray(random.choice(_WORDS, shape)).astype(object)
    if dtype.kind in "iu" and dtype.itemsize == 1:
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max + 1, shape).astype(dtype)
    if dtype.kind in "iub":
        return random.integers(0, 2, shape).astype(dtype)
    return np.asarray(random.standard_normal(shape)).astype(dtype)


def sized_inputs(
    model: onnx_ir.Model, types: Types, carried: Mapping[str, Array], step: int, seed: int
) -> dict[str, Array] | None:
    """Return inputs for a run of a network of ranges with states, None where these have no room.

    `carried` are the states before the run, number `step`. The first one fills half of them, if
    the ranges let it, later ones are as short as they may be. Integers that belong to what the
    states hold, masks most likely, are ones.
    """
    ends: dict[str, Range] = {}
    held: dict[str, int] = {}
    for value in model.graph.inputs:
        for axis, (n, found) in enumerate(zip(value.shape or (), open_axes(value), strict=True)):
            if isinstance(found, Range):
                name = axis_name(value, axis, n)
                ends[name] = found
                if (value.name or "") in carried:
                    held[name] = carried[value.name or ""].shape[axis]
    room = min((ends[name].high - n for name, n in held.items()), default=1 << 30)
    extents = {
        name: held.get(name, e.low if step else max(e.low, min(e.high, room // 2)))
        for name, e in ends.items()
    }
    if any(n > room for name, n in extents.items() if name not in held):
        return None
    shapes: dict[str, Type] = {}
    masks: set[str] = set()
    for value in model.graph.inputs:
        own = value.name or ""
        if own not in types:
            continue
        shape: list[int] = []
        for axis, (n, found) in enumerate(zip(value.shape or (), open_axes(value), strict=True)):
            match found:
                case Range():
                    shape.append(extents[axis_name(value, axis, n)])
                case Sum():
                    shape.append(found.value(extents))
                    masks |= {own} if held.keys() & {*found.names} else set()
                case _:
                    assert isinstance(n, int), "what isn't fixed has a range"
                    shape.append(n)
        shapes[own] = tuple(shape), types[own][1]
    feeds = random_inputs(shapes, seed + step)
    ones = {name: np.ones_like(feeds[name]) for name in masks if feeds[name].dtype.kind in "iub"}
    return {**feeds, **ones}
