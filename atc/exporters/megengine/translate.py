"""Translate an ONNX model to a dump: inputs, nodes in order, outputs.

What depends on constants alone is computed here. Operators without a rule are made of others: by a
composition of ours, or by what the standard says that they are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir
from onnx import defs, helper, numpy_helper, shape_inference

from atc.errors import UnsupportedError, one_line
from atc.exporters.megengine import (
    rules_einsum,
    rules_elementwise,
    rules_indexing,
    rules_layers,
    rules_movement,
    rules_recurrent,
    rules_resize,
    steps,
)
from atc.exporters.megengine.builder import Builder, Node, Type, Var, read_node
from atc.importers.megengine.dump import Dump
from atc.ir.graph import DType, TensorType
from atc.lower.function import function_body

Rule = Callable[[Builder, Node, Sequence[Var]], Sequence[int]]
"""Adds a node's operators; returns the variables of its results."""

RULES: Mapping[str, Rule] = {
    **rules_elementwise.RULES, **rules_indexing.RULES, **rules_layers.RULES,
    **rules_movement.RULES, **rules_resize.RULES,
}  # fmt: skip
"""By ONNX operator."""
COMPOSITIONS: Mapping[str, steps.Composition] = {
    **rules_einsum.COMPOSITIONS, **rules_recurrent.COMPOSITIONS,
}  # fmt: skip
"""Operators that are made of others."""
_REFUSED = {
    **dict.fromkeys(["If", "Loop", "Scan"], "a dump has no branches and no loops"),
    **dict.fromkeys(
        ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
         "Multinomial"], "its numbers are random",
    ),
}  # fmt: skip
_QUANTIZED = frozenset({
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul",
    "ConvInteger", "MatMulInteger",
})  # fmt: skip

ABSENT = Var(Type(np.dtype(np.float32), (0,)))
"""An operand that is left out."""
_ALIASES = frozenset({"Identity", "Dropout"})
_SAME = frozenset({"GroupNormalization"})
"""Operators whose result has the operand's type, which the standard's inference doesn't know."""
_OLDEST = 13
"""Before, operators of the same names meant something else: Softmax, Clip, Upsample."""
_MAX_DEPTH = 8
_IR_VERSION = 10


def translate(model: onnx.ModelProto) -> Dump:
    """Translate a model of fixed shapes. Raises UnsupportedError."""
    opsets = {o.domain: o.version for o in model.opset_import}
    if opsets.get("", _OLDEST) < _OLDEST:
        raise UnsupportedError(
            f"opset {opsets['']} isn't written as a MegEngine dump, {_OLDEST} is the oldest",
            hint=f"convert the model: onnx.version_converter.convert_version(model, {steps.OPSET})",
        )
    b, values = Builder(), dict[str, Var]()
    for tensor in model.graph.initializer:
        values[tensor.name] = steps.constant(numpy_helper.to_array(tensor))
    for info in model.graph.input:
        if info.name not in values:
            b.where = f"input {one_line(info.name, 60)}"
            values[info.name] = b.input(info.name, _type(info.type, b.where))
    _Translation(b, opsets).run(model.graph.node, values)
    outputs, names = [], dict[int, str]()
    for info in model.graph.output:
        b.where = f"output {one_line(info.name, 60)}"
        number = b.number(values[info.name])
        if number in b.names or number in names:  # an input, or an output already
            number = b.op("Identity", [number], ("Empty", {}))[0]
        outputs.append(number)
        names[number] = info.name
    return Dump("", "", tuple(b.operators), tuple(outputs), (*names.values(),), b.names | names)


def _type(proto: onnx.TypeProto, where: str) -> Type:
    tensor = proto.tensor_type
    dims = tensor.shape.dim
    if not proto.HasField("tensor_type") or not tensor.HasField("shape") or not all(
        d.HasField("dim_value") for d in dims
    ):
        raise UnsupportedError("a MegEngine dump needs tensors of fixed shapes", where=where)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return Type(dtype, tuple(d.dim_value for d in dims))


class _Translation:
    """Nodes of a graph, or of an operator's function body."""

    def __init__(self, b: Builder, opsets: Mapping[str, int], depth: int = 0) -> None:
        self._b, self._opsets, self._depth = b, opsets, depth

    def run(self, nodes: Iterable[onnx.NodeProto], values: dict[str, Var]) -> None:
        """Translate nodes in order."""
        for proto in nodes:
            operands = [values[i] if i else ABSENT for i in proto.input]
            found = self._results(proto, operands)
            values.update((o, v) for o, v in zip(proto.output, found, strict=False) if o)

    def _results(self, proto: onnx.NodeProto, operands: Sequence[Var]) -> Sequence[Var]:
        node = read_node(proto, ())
        self._b.where = node.where
        if proto.domain not in ("", "ai.onnx"):
            raise node.refuse(f"its domain is {proto.domain}")
        if proto.op_type in _REFUSED:
            raise node.refuse(_REFUSED[proto.op_type])
        if proto.op_type in _ALIASES:
            return operands[:1]
        if proto.op_type in COMPOSITIONS:
            return self._composed(proto, operands)
        present = [x for x in operands if x is not ABSENT]
        if all(x.array is not None for x in present):
            return self._computed(proto, operands)
        if proto.op_type == "Shape":  # of what has a fixed one
            shape = np.array(operands[0].type.shape, np.int64)
            return [steps.constant(shape[node.get("start", 0) : node.get("end")])]
        if proto.op_type == "Size":
            return [steps.constant(np.array(operands[0].type.size, np.int64))]
        if proto.op_type in _QUANTIZED:
            raise node.refuse("it is quantized; only float models are dumped")
        if proto.op_type in RULES:
            types = self._inferred(proto, operands)
            node = read_node(proto, types)
            numbers = RULES[proto.op_type](self._b, node, operands)
            return [self._b.noted(t, n) for t, n in zip(types, numbers, strict=False)]
        return self._expanded(proto, operands, node)

    def _composed(self, proto: onnx.NodeProto, operands: Sequence[Var]) -> Sequence[Var]:
        inner = _Translation(self._b, {"": steps.OPSET}, self._depth + 1)
        node = read_node(proto, self._inferred(proto, operands))
        place = steps.Steps(proto.name or proto.output[0], inner._results)
        return COMPOSITIONS[proto.op_type](place, node, operands)

    def _expanded(
        self, proto: onnx.NodeProto, operands: Sequence[Var], node: Node
    ) -> Sequence[Var]:
        """Translate the function body that the standard gives an operator."""
        given = onnx_ir.serde.deserialize_node(proto)
        types = [
            None if x is ABSENT else TensorType(DType.from_numpy(x.type.dtype), x.type.shape)
            for x in operands
        ]
        body = function_body(given, types, self._opsets[proto.domain])
        if body is None or self._depth == _MAX_DEPTH:
            raise node.refuse("there is no operator of that kind")
        padded = [*operands, *[ABSENT] * len(body.inputs)]
        inner = {v.name or "": x for v, x in zip(body.inputs, padded, strict=False)}
        protos = [onnx_ir.serde.serialize_node(n) for n in body]
        for step in protos:
            step.name = proto.name or proto.op_type
        _Translation(self._b, {**self._opsets, **body.opset_imports}, self._depth + 1).run(
            protos, inner
        )
        return [inner[v.name or ""] for v in body.outputs]

    def _inferred(self, proto: onnx.NodeProto, operands: Sequence[Var]) -> list[Type]:
        if proto.op_type in _SAME:
            return [operands[0].type]
        schema = defs.get_schema(proto.op_type, self._opsets[proto.domain], proto.domain)
        named = {i: x for i, x in zip(proto.input, operands, strict=True) if i}
        types = {
            i: helper.make_tensor_type_proto(
                helper.np_dtype_to_tensor_dtype(x.type.dtype), x.type.shape
            )
            for i, x in named.items()
        }
        data = {
            i: numpy_helper.from_array(x.array) for i, x in named.items() if x.array is not None
        }
        imports = [helper.make_opsetid(d, v) for d, v in self._opsets.items()]
        try:
            found = shape_inference.infer_node_outputs(
                schema, proto, types, data, opset_imports=imports, ir_version=_IR_VERSION
            )
        except shape_inference.InferenceError as error:
            raise UnsupportedError(one_line(str(error), 200), where=self._b.where) from error
        return [_type(found[o], self._b.where) if o else ABSENT.type for o in proto.output]

    def _computed(self, proto: onnx.NodeProto, operands: Sequence[Var]) -> list[Var]:
        """Return the results of a node whose operands are constants."""
        # Imported here, as onnx.reference takes a while to import and few processes write dumps.
        from onnx.reference import ReferenceEvaluator

        feeds = {i: x.array for i, x in zip(proto.input, operands, strict=True) if i}
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(proto, opsets=dict(self._opsets)).run(None, feeds)
        return [steps.constant(np.asarray(v)) for v in found]
