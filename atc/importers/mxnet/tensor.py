"""A value of the ONNX graph under construction, whose type is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from atc.importers.onnx_builder import Array


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value of the graph, of a static type.

    `real` is the float32 tensor that a quantised int32 value stands for, where one is known.
    """

    value: ir.Value
    real: Tensor | None = None

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements."""
        return (self.value.dtype or ir.DataType.UNDEFINED).numpy()

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The extents of its axes."""
        return tuple(d for d in self.value.shape or () if isinstance(d, int))

    @property
    def array(self) -> Array | None:
        """Its elements, where it is a constant."""
        constant = self.value.const_value
        return None if constant is None else constant.numpy()

    @property
    def name(self) -> str:
        """The value's name."""
        return self.value.name or ""

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


def onnx_type(dtype: np.dtype[Any]) -> int:
    """Return ONNX's number of an element type."""
    return ir.DataType.from_numpy(dtype).value
