"""Single nodes of ONNX graphs under construction: their types, their results, what they read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import checker, defs, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

OPSET = 21
IR_VERSION = 10
"""The standard's versions that other formats become."""

Array = npt.NDArray[Any]


def infer_outputs(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], constants: Mapping[str, Array]
) -> Mapping[str, onnx.TypeProto]:
    """Return the types of a node's outputs, by the standard's own shape function.

    `types` are those of its inputs, `constants` the inputs that are known. Raises ValueError where
    inputs break the operator's rules.
    """
    try:
        return shape_inference.infer_node_outputs(
            defs.get_schema(node.op_type, OPSET, ""), node, dict(types),
            {name: numpy_helper.from_array(array) for name, array in constants.items()},
            opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION,
        )  # fmt: skip
    except (
        checker.ValidationError, shape_inference.InferenceError, RuntimeError, ValueError
    ) as error:  # fmt: skip
        raise ValueError(first_line(error)) from error


def evaluate(node: onnx.NodeProto, inputs: Mapping[str, Array]) -> list[Array]:
    """Return a node's results, by the standard's reference implementation."""
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(node, opsets={"": OPSET}).run(None, dict(inputs))
    return [np.asarray(result) for result in results]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, its type where there is none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def initializers(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Return the constants that nodes read, in order of first use."""
    return [value for value in dict.fromkeys(_reads(nodes)) if value.const_value is not None]


def _reads(nodes: Sequence[ir.Node]) -> Iterator[ir.Value]:
    """Yield the values that nodes read, those that their subgraphs capture too."""
    for node in nodes:
        yield from (v for v in node.inputs if v is not None)
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.GRAPH:
                graph = attribute.as_graph()
                yield from _reads(list(graph))
                yield from graph.outputs
