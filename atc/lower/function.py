"""The function bodies by which the ONNX standard defines operators through others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir

from atc.errors import UnsupportedError
from atc.ir.graph import DType, TensorType
from atc.lower.registry import LOWERINGS

_SUMMING = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})
"""Operators whose bodies hold long sums, and counts, which are too large for halves."""


def function_body(
    node: onnx_ir.Node, inputs: Sequence[TensorType | None], opset: int
) -> onnx_ir.Function | None:
    """Return the standard's body of an operator with attributes filled in, or None."""
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, node.domain)  # stubs lack some
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        return _instantiate(schema.function_body, node, schema)
    if schema.has_context_dependent_function:
        halves = [k for k, t in enumerate(inputs) if t is not None and t.dtype.is_half]
        narrow = inputs[halves[0]] if halves and node.op_type in _SUMMING else None
        types = [_type_proto(t if narrow is None or t is None or not t.dtype.is_half
                             else TensorType(DType.FLOAT, t.shape)) for t in inputs]  # fmt: skip
        proto = _node_proto(node, inputs)
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        if not versions:
            return None
        text = schema.get_context_dependent_function_with_opset_version(
            max(versions), proto.SerializeToString(), [t.SerializeToString() for t in types]
        )
        body = onnx.FunctionProto.FromString(text)
        if not body.node:  # the standard has none for these types or attributes
            return None
        if narrow is not None:
            _widen(body, halves, narrow.dtype)
        return _instantiate(body, node, schema)
    return None


def _widen(body: onnx.FunctionProto, halves: Sequence[int], dtype: DType) -> None:
    """Cast the operands of a body for floats, and its results back."""

    def cast(x: str, y: str, to: DType) -> onnx.NodeProto:
        return onnx.helper.make_node("Cast", [x], [y], to=to.code)

    wide = [body.input[k] for k in halves]
    before = [cast(f"{name}_half", name, DType.FLOAT) for name in wide]
    results = _computed_outputs(body)
    behind = [cast(name, f"{name}_half", dtype) for name in dict.fromkeys(results)]
    nodes = [*before, *body.node, *behind]
    del body.node[:]
    body.node.extend(nodes)
    for k in halves:
        body.input[k] += "_half"
    body.output[:] = [f"{name}_half" for name in results]


def has_function(op_type: str, domain: str, opset: int) -> bool:
    """Return whether the standard defines an operator through others."""
    try:
        schema: Any = onnx.defs.get_schema(op_type, opset, domain)  # the stubs are incomplete
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _node_proto(node: onnx_ir.Node, inputs: Sequence[TensorType | None]) -> onnx.NodeProto:
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    proto.input.extend("" if t is None else f"i{k}" for k, t in enumerate(inputs))
    proto.output.extend(f"o{k}" if v.name else "" for k, v in enumerate(node.outputs))
    proto.attribute.extend(onnx_ir.serde.serialize_attribute(a) for a in node.attributes.values())
    return proto


def _type_proto(type_: TensorType | None) -> onnx.TypeProto:
    if type_ is None:
        return onnx.TypeProto()
    return onnx.helper.make_tensor_type_proto(type_.dtype.code, type_.shape)


def _instantiate(
    body: onnx.FunctionProto, node: onnx_ir.Node, schema: onnx.defs.OpSchema
) -> onnx_ir.Function:
    """Return the body with attribute references replaced by the node's values or defaults."""
    given = {a.name: onnx_ir.serde.serialize_attribute(a) for a in node.attributes.values()}
    for name, spec in schema.attributes.items():
        if name not in given and spec.default_value.type != onnx.AttributeProto.UNDEFINED:
            given[name] = spec.default_value
    copy = onnx.FunctionProto()
    copy.CopyFrom(body)
    _fill(copy.node, given)
    del copy.attribute[:]
    copy.output[:] = _computed_outputs(copy)
    return onnx_ir.serde.deserialize_function(copy)


def _computed_outputs(body: onnx.FunctionProto) -> list[str]:
    """Return the outputs; one that isn't computed, as the node doesn't ask for it, is the first."""
    computed = {*body.input, *(name for node in body.node for name in node.output)}
    return [name if name in computed else body.output[0] for name in body.output]


def _fill(nodes: Sequence[onnx.NodeProto], given: dict[str, onnx.AttributeProto]) -> None:
    for node in nodes:
        filled = []
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                if attribute.ref_attr_name not in given:
                    continue
                value = onnx.AttributeProto()
                value.CopyFrom(given[attribute.ref_attr_name])
                value.name = attribute.name
                attribute = value
            elif attribute.type == onnx.AttributeProto.GRAPH:
                _fill(attribute.g.node, given)
            filled.append(attribute)
        kept = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in filled]
        del node.attribute[:]
        node.attribute.extend(kept)


def is_covered(node: onnx_ir.Node, opset: int) -> bool:
    """Return whether a node's operator is lowered, or has a function body."""
    known = (node.domain, node.op_type) in LOWERINGS
    return known or has_function(node.op_type, node.domain, opset)


def not_covered(node: onnx_ir.Node, opset: int, where: str) -> UnsupportedError:
    """Return the error of an operator that is neither."""
    of = f"of domain '{node.domain}' " if node.domain else ""
    message = f"operator {node.op_type} {of}(opset {opset}) is not covered"
    return UnsupportedError(message, where=where)
