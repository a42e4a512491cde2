"""Models whose products onnxruntime sums exactly on every CPU.

Without VNNI it adds products of UINT8 and INT8 in pairs of 16 bits, which saturate; INT8 by INT8 it
makes such ones. Those of UINT8 by UINT8 it doesn't. 128 more in an operand and in its zero point
leave their difference, so that the sums are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

Array = np.ndarray[Any, Any]

OPERANDS: Mapping[str, tuple[tuple[tuple[int, int], ...], int]] = {
    "QGemm": (((0, 2), (3, 5)), 8), "QAttention": (((0, 6), (1, 7)), -1),
    "DynamicQuantizeMatMul": (((1, 3),), -1),
}  # fmt: skip
"""Inputs of the operators that are drawn: operands of the product with their zero points, and the
zero point of the result (-1: the result is real)."""


def in_unsigned(
    model: onnx.ModelProto, feeds: Mapping[str, Array]
) -> tuple[onnx.ModelProto, frozenset[str]]:
    """Return the model with UINT8 in place of given INT8, and the results that are 128 too large.

    Inputs whose numbers are changed become initializers; the model still has them.
    """
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer} | dict(feeds)
    larger = set()
    for node in copy.graph.node:
        pairs, result = OPERANDS.get(node.op_type, ((), -1))
        for operand, point in pairs:
            given = values.get(node.input[operand])
            if given is None or given.dtype != np.int8:
                continue
            _shift(copy.graph, node, operand, values)
            _shift(copy.graph, node, point, values)
            if operand == 0 and 0 <= result < len(node.input) and node.input[result]:
                _shift(copy.graph, node, result, values)  # it has the type of operand 0
                larger.add(node.output[0])
    return copy, frozenset(larger)


def _shift(
    graph: onnx.GraphProto, node: onnx.NodeProto, at: int, values: Mapping[str, Array]
) -> None:
    """Let a node read its INT8 input, 0 where it is absent, plus 128."""
    node.input.extend([""] * (at + 1 - len(node.input)))
    given = values[node.input[at]] if node.input[at] else np.int8(0)
    name = f"{node.output[0]}_unsigned_{at}"
    graph.initializer.append(numpy_helper.from_array(as_unsigned(given), name))
    node.input[at] = name


def as_unsigned(x: Any) -> Array:
    """Return INT8 as UINT8, 128 more each."""
    return np.asarray(np.asarray(x, np.int16) + 128, np.uint8)


def as_signed(x: Array) -> Array:
    """Return UINT8 as INT8, 128 less each."""
    return np.asarray(x.astype(np.int16) - 128, np.int8)


def restored(names: list[str], results: list[Array], larger: frozenset[str]) -> list[Array]:
    """Return the results of a model in unsigned numbers as those of the model itself."""
    pairs = zip(names, results, strict=True)
    return [as_signed(r) if n in larger else np.asarray(r) for n, r in pairs]
