"""The element types of a model's values, from those declared and the standard's signatures.

What the standard doesn't know has the type of its first operand of floats, as in other domains.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import onnx
import onnx_ir

Types = Mapping[onnx_ir.Value, onnx_ir.DataType]

_TYPES = {f"tensor({dtype.name.lower()})": dtype for dtype in onnx_ir.DataType}
"""Types by the names that signatures have for them."""
_BY_CODE = {dtype.value: dtype for dtype in onnx_ir.DataType}


def value_types(model: onnx_ir.Model) -> Types:
    """Return the types of the values in a model's graphs, as far as they are known."""
    types: dict[onnx_ir.Value, onnx_ir.DataType] = {}
    _add_types(model.graph, model.opset_imports, types)
    return types


def _add_types(
    graph: onnx_ir.Graph, opsets: Mapping[str, int], types: dict[onnx_ir.Value, onnx_ir.DataType]
) -> None:
    for value in (*graph.inputs, *graph.initializers.values()):
        dtype = value.dtype if value.const_value is None else value.const_value.dtype
        if dtype is not None:
            types[value] = dtype
    for node in graph:
        inner: list[onnx_ir.Graph] = []
        for attribute in node.attributes.values():
            if attribute.type is onnx_ir.AttributeType.GRAPH:
                inner.append(attribute.as_graph())
                _add_types(inner[-1], opsets, types)
        for index, value in enumerate(node.outputs):
            dtype = value.dtype or _asked(node) or _of_subgraphs(inner, index, types)
            dtype = dtype or _of_operands(node, index, opsets.get(node.domain, 0), types)
            if dtype is not None:
                types[value] = dtype


def _asked(node: onnx_ir.Node) -> onnx_ir.DataType | None:
    """Return the type that an attribute says, or that of a Constant."""
    for name in ("to", "dtype", "output_dtype"):
        found = node.attributes.get(name)
        if found is not None and found.type is onnx_ir.AttributeType.INT and found.value:
            return _BY_CODE.get(found.as_int())  # no type where the node is wrong
    constant = node.attributes.get("value")
    if constant is not None and constant.type is onnx_ir.AttributeType.TENSOR:
        return constant.as_tensor().dtype
    return None


def _of_subgraphs(
    inner: list[onnx_ir.Graph], index: int, types: Types
) -> onnx_ir.DataType | None:
    """Return the type of an output of If, whose branches give it, or of what it names so."""
    if len(inner) < 2:  # those of a Loop or Scan are their states', as operands are
        return None
    found = {types.get(g.outputs[index]) for g in inner if index < len(g.outputs)}
    return found.pop() if len(found) == 1 else None


def _of_operands(
    node: onnx_ir.Node, index: int, opset: int, types: Types
) -> onnx_ir.DataType | None:
    """Return the type that an operator's signature gives an output, by those of its operands."""
    known = [None if value is None else types.get(value) for value in node.inputs]
    signature = _variables(node.op_type, node.domain, opset)
    if signature is None:
        return next((t for t in known if t is not None and t.is_floating_point()), None)
    inputs, outputs = signature
    if not outputs:
        return None
    variable = outputs[min(index, len(outputs) - 1)]
    if variable.startswith("tensor("):  # always the same
        return _TYPES.get(variable)
    for k, dtype in enumerate(known):
        if dtype is not None and inputs[min(k, len(inputs) - 1)] == variable:
            return dtype
    return None


@cache
def _variables(
    op_type: str, domain: str, opset: int
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the type variables of an operator's inputs and outputs, None where nobody knows."""
    try:
        schema: Any = onnx.defs.get_schema(op_type, opset, domain)  # the stubs are incomplete
    except onnx.defs.SchemaError:
        return None
    every = {each.type_param_str: [*each.allowed_type_strs] for each in schema.type_constraints}
    only = {name: types[0] for name, types in every.items() if len(types) == 1}
    inputs, outputs = (
        tuple(only.get(each.type_str, each.type_str) for each in side)
        for side in (schema.inputs, schema.outputs)
    )
    return inputs or ("",), outputs
