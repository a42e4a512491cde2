"""Operators that are made of other ONNX operators, which are translated one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from atc.exporters.megengine.builder import Array, Node, Type, Var

OPSET = 21
"""The opset that the steps are of, whatever the model's."""

_Translate = Callable[[Any, Sequence[Var]], Sequence[Var]]


@dataclass(frozen=True)
class Steps:
    """Adds ONNX operators in the place of a node; what depends on constants alone is computed."""

    name: str
    translate: _Translate

    def op(self, op_type: str, *operands: Var | Array, **attributes: Any) -> Var:
        """Add an operator of one result."""
        return self.ops(op_type, *operands, **attributes)[0]

    def ops(
        self, op_type: str, *operands: Var | Array, outputs: int = 1, **attributes: Any
    ) -> Sequence[Var]:
        """Add an operator; arrays are constants."""
        given = [x if isinstance(x, Var) else constant(x) for x in operands]
        names = [f"x{k}" for k in range(len(given))]
        results = [f"y{k}" for k in range(outputs)]
        proto = helper.make_node(op_type, names, results, self.name, **attributes)
        return self.translate(proto, given)

    def reshaped(self, x: Var, shape: Sequence[int]) -> Var:
        """Reshape a value, unless it has that shape."""
        same = x.type.shape == tuple(shape)
        return x if same else self.op("Reshape", x, integers(*shape))

    def transposed(self, x: Var, order: Sequence[int]) -> Var:
        """Permute axes, unless they stand in that order."""
        same = [*order] == [*range(len(order))]
        return x if same else self.op("Transpose", x, perm=[*order])

    def part(self, x: Var, axis: int, begin: int, end: int) -> Var:
        """Return the elements from `begin` up to `end` of an axis."""
        if (begin, end) == (0, x.type.shape[axis]):
            return x
        return self.op("Slice", x, integers(begin), integers(end), integers(axis))


Composition = Callable[[Steps, Node, Sequence[Var]], Sequence[Var]]
"""Adds a node's steps; returns its results. The node knows their types."""


def constant(array: Array) -> Var:
    """Return a constant."""
    return Var(Type(array.dtype, array.shape), array=array)


def integers(*numbers: int) -> Array:
    """Return a vector of integers."""
    return np.array(numbers, np.int64)


def like(number: float, x: Var) -> Array:
    """Return a number of a value's element type."""
    return np.array(number, x.type.dtype)
