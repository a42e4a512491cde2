"""Evaluates a model in float64: what a library's error is measured against.

All floats of the model become float64, constants and inputs included, and onnx's reference
implementation computes with them. Roundings that the model asks for itself (casts to 16 bits) are
gone too; those to integers stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import onnx_ir
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from atc.accuracy.widening import NARROW, widened
from atc.errors import UnsupportedError, one_line
from atc.ir.graph import Array

NAME = "onnx.reference in float64"
"""What the reference is called."""

INTEGER_OPS = frozenset({
    "QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QGemm",
})  # fmt: skip
"""Operators that round to integers: a float's last bit may decide which one."""

_TYPES = ("to", "dtype")
_OPSET = 19  # whose quantisation onnx.reference knows
_QUANTIZES = ("QuantizeLinear", "DequantizeLinear")
_TRAINING_MODE = 14  # the opset in which BatchNormalization got that attribute
_FLOATS = "value_floats"
_UNREAD = "atc: an output without a name"
_FACTORS = {"Attention": 3, "GRU": 3, "LSTM": 3, "MultiHeadAttention": 3, "RNN": 3}
"""How many operands are multiplied, where it isn't the first two."""


def run_in_double(
    model: onnx_ir.Model, outputs: Sequence[str], feeds: Mapping[str, Array],
    split: Collection[str] = (), rounded: Collection[str] = (),
) -> tuple[str, list[Any]]:  # fmt: skip
    """Return NAME and the values of these names; UnsupportedError where that can't be computed.

    The nodes named in `split` read their operands rounded to the bits of two bfloat16, those in
    `rounded` to one.
    """
    # Late: onnx.reference takes a while to import, and few compilations evaluate anything.
    from atc.accuracy.float64_ops import (
        ALWAYS,
        BatchNormalization,
        Evaluator,
        RoundBfloat16,
        SplitBfloat16,
    )

    proto, weights = _apart(model)
    in_double(proto, outputs)
    for op, names in ((SplitBfloat16, split), (RoundBfloat16, rounded)):
        if names:
            _round_operands(proto.graph, op.__name__, names)
    if split or rounded:
        proto.opset_import.append(helper.make_opsetid(SplitBfloat16.op_domain, 1))
    own: list[Any] = [*ALWAYS]
    own += [BatchNormalization] if _opset(proto) < _TRAINING_MODE else []
    wide = {name: widened(array) for name, array in feeds.items()}
    try:
        with np.errstate(all="ignore"), closing(Evaluator(proto, new_ops=own)) as evaluator:
            evaluator.rt_inits_ |= weights
            values = evaluator.run(None, wide)
    except Exception as error:  # what it raises is its to choose
        raise UnsupportedError(
            f"the model can't be evaluated in float64: {one_line(str(error), 200)}",
            hint="atc verify without --float64 compares with another reference",
        ) from error
    return NAME, [v if v is None or isinstance(v, list) else np.asarray(v) for v in values]


def _apart(model: onnx_ir.Model) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a model without its floats of the outermost graph, and these where they are.

    A model's message copies them, onnx's evaluator copies its message, and they may be gigabytes.
    """
    graph, version = model.graph, model.opset_imports.get("", _OPSET)
    if version < _OPSET and any(node.op_type in _QUANTIZES for node in graph):
        return _newer(onnx_ir.to_proto(model)), {}
    tensors = {name: value.const_value for name, value in graph.initializers.items()}
    weights = {name: t for name, t in tensors.items() if t is not None and t.dtype.value in NARROW}
    rest: Any = onnx_ir.GraphView(  # Any: its annotations don't fit onnx_ir's own protocol
        graph.inputs, graph.outputs, nodes=tuple(graph), name=graph.name,
        initializers=[v for name, v in graph.initializers.items() if name not in weights],
        opset_imports=graph.opset_imports,
    )  # fmt: skip
    proto = onnx.ModelProto(ir_version=model.ir_version, graph=onnx_ir.serde.serialize_graph(rest))
    for domain, imported in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=imported)
    proto.functions.extend(onnx_ir.to_proto(function) for function in model.functions.values())
    return proto, {name: tensor.numpy() for name, tensor in weights.items()}


def _opset(model: onnx.ModelProto) -> int:
    return next((i.version for i in model.opset_import if i.domain == ""), _OPSET)


def _newer(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in an opset whose quantisation onnx.reference knows, if that can be had."""
    try:
        return onnx.version_converter.convert_version(model, _OPSET)
    except Exception:  # it raises many kinds; the evaluator then reports what it lacks
        return model


def in_double(model: onnx.ModelProto, outputs: Sequence[str]) -> None:
    """Make every float of a model a float64, with outputs of these names.

    But its own initializers, which are widened when they are read: they may be gigabytes.
    """
    _widen(model.graph, initializers=False)
    for function in model.functions:
        _widen_nodes(function.node)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)


def _round_operands(graph: onnx.GraphProto, op: str, names: Collection[str]) -> None:
    """Let nodes read what an operator makes of their operands."""
    nodes = [*graph.node]
    del graph.node[:]
    for number, node in enumerate(nodes):
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _round_operands(attribute.g, op, names)
        first = next((name for name in node.output[:1] if name != _UNREAD), "")
        if (node.name or first or node.op_type) in names:  # as `lower.context.node_name` has it
            for k, name in enumerate(node.input[:_FACTORS.get(node.op_type, 2)]):
                node.input[k] = f"atc {op} {number} {k} of {name}"
                graph.node.append(
                    helper.make_node(op, [name], [node.input[k]], domain="atc.double")
                )
        graph.node.append(node)


def _widen(graph: onnx.GraphProto, initializers: bool = True) -> None:
    for tensor in graph.initializer if initializers else ():
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in NARROW:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    del graph.value_info[:]
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Sequence[onnx.NodeProto]) -> None:
    for node in nodes:
        for k, name in enumerate(node.output):  # "" is what onnx.reference reads omitted inputs by
            node.output[k] = name or _UNREAD
        for attribute in node.attribute:
            _widen_attribute(node, attribute)
        if node.op_type == "ConstantOfShape" and not node.attribute:  # zeros in float
            node.attribute.append(
                helper.make_attribute("value", numpy_helper.from_array(np.zeros(1)))
            )


def _widen_attribute(node: onnx.NodeProto, attribute: AttributeProto) -> None:
    match attribute.type:
        case AttributeProto.GRAPH:
            _widen(attribute.g)
        case AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        case AttributeProto.INT if attribute.name in _TYPES and attribute.i in NARROW:
            attribute.i = TensorProto.DOUBLE
        case AttributeProto.FLOAT | AttributeProto.FLOATS if node.op_type == "Constant":
            floats = attribute.name == _FLOATS
            values = np.array([*attribute.floats] if floats else attribute.f, np.float64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(values)))


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in NARROW:
        values = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
