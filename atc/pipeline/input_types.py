"""Types of a network's inputs, checked before it is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir

from atc.adapt.states import states_of
from atc.diagnostics import Diagnostics
from atc.dims import Multiple, Range, Sum
from atc.lower.inputs import axis_name, check_extents, open_axes
from atc.pipeline.lowering import read_model
from atc.pipeline.request import Request


@dataclass(frozen=True)
class InputType:
    """The element type of an input, and its smallest and largest shape."""

    dtype: np.dtype[Any]
    lowest: tuple[int, ...]
    shape: tuple[int, ...]


def input_types(request: Request) -> dict[str, InputType] | None:
    """Return the types by name; None where there are strings or sequences, which C decides.

    States, which the library carries itself, are none of them.
    Raises UnsupportedError for an input of an extent that nobody gave.
    """
    found: dict[str, InputType] = {}
    model = read_model(request.smallest, Diagnostics())
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    ranges: dict[str, Range] = {}
    for value in inputs:
        dims = zip(value.shape or (), open_axes(value), strict=True)
        for axis, (dim, given) in enumerate(dims):
            match given:
                case Range():
                    ranges[axis_name(value, axis, dim)] = given
                case Multiple(name, of_name):
                    ranges[name] = of_name
    held = dict(states_of(model))
    for value in inputs:
        if value.name in held:
            continue
        if not isinstance(value.type, onnx_ir.TensorType) or value.dtype == onnx_ir.DataType.STRING:
            return None
        check_extents(value, request.options.model.name)
        ends = []
        for extent, given in zip(value.shape or (), open_axes(value), strict=True):
            if given is None:
                assert isinstance(extent, int)
                given = Range(extent, extent)
            ends.append(_range_of(given, ranges))
        lowest, shape = tuple(r.low for r in ends), tuple(r.high for r in ends)
        found[value.name or ""] = InputType(value.type.dtype.numpy(), lowest, shape)
    return found


def _range_of(given: Range | Multiple | Sum, ranges: Mapping[str, Range]) -> Range:
    """Return the least and the largest extent of an axis, which may follow from others."""
    match given:
        case Range():
            return given
        case Multiple(_, ends, factor, constant):
            return Range(ends.low * factor + constant, ends.high * factor + constant)
    least = given.value({name: r.low for name, r in ranges.items()})
    most = given.value({name: r.high for name, r in ranges.items()})
    return Range(min(least, most), max(least, most))
