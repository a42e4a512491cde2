"""What the inputs of a network will be: wrong ones are told of before it is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir

from atc.dims import Range
from atc.driver import read_model
from atc.gears import gears_of
from atc.listener import Listener
from atc.lower.model import given_ranges
from atc.options import Options


@dataclass(frozen=True)
class InputType:
    """The element type of an input, and its smallest and largest shape."""

    dtype: np.dtype[Any]
    lowest: tuple[int, ...]
    shape: tuple[int, ...]


def input_types(options: Options) -> dict[str, InputType] | None:
    """Return the types by name; None where there are strings or sequences, which C decides."""
    found: dict[str, InputType] = {}
    gears = gears_of(options)
    model = read_model(gears[-1] if gears else options, Listener())
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        if not isinstance(value.type, onnx_ir.TensorType) or value.dtype == onnx_ir.DataType.STRING:
            return None
        ends = []
        for extent, given in zip(value.shape or (), given_ranges(value), strict=True):
            if given is None:
                assert isinstance(extent, int)  # open ones are refused
                given = Range(extent, extent)
            ends.append(given)
        lowest, shape = tuple(r.low for r in ends), tuple(r.high for r in ends)
        found[value.name or ""] = InputType(value.type.dtype.numpy(), lowest, shape)
    return found
