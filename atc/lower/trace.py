"""Diagnostics of each node in a dry run; placeholders stand for a refused node's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir

from atc.errors import AtcError, UnsupportedError
from atc.ir.graph import DType, TensorType
from atc.lower.builder import Builder
from atc.lower.context import node_name
from atc.lower.value_bounds import RunTimeOperand


@dataclass(frozen=True)
class NodeDiagnostic:
    """A node that the lowering has come to, with the error of one that it can't lower.

    `node` is a number of the node's own, as a loop's body may be visited more than once. `name` is
    what the nodes of the graph that come of it carry as their origin. `certain` is false where the
    error may be only a consequence of an earlier node's.
    """

    node: int
    name: str
    op_type: str
    domain: str
    error: AtcError | None = None
    certain: bool = True


Report = Callable[[NodeDiagnostic], None]


class UnknownOperand(UnsupportedError):
    """A node reads what a refused node would compute, and nobody knows the shape of that."""


@dataclass
class Trace:
    """The state of a lowering that goes on after a refusal."""

    send: Report
    unknown: set[int] = field(default_factory=set)
    """Values (by id) whose types nobody knows."""
    unknown_names: set[str] = field(default_factory=set)
    entered: set[int] = field(default_factory=set)
    """Subgraphs (by id) whose nodes are diagnostics of."""
    tainted: set[int] = field(default_factory=set)
    """Values that depend on a refused node; constants among them are lost."""
    missing: list[str] = field(default_factory=list)
    """Names of the placeholders of results."""

    def placeholder(self, root: Builder, type_: TensorType) -> str:
        """Declare the placeholder of a refused node's result."""
        name = root.declare(root.fresh(), type_)
        self.missing.append(name)
        return name

    def report(self, node: onnx_ir.Node, error: AtcError | None) -> None:
        """Report a node once it is lowered or refused; mark what depends on a refused one."""
        reads = {id(v) for v in node.inputs if v is not None}
        depends = bool(reads & self.tainted)
        consequence = isinstance(error, UnknownOperand) or (
            depends and isinstance(error, RunTimeOperand)
        )
        diagnostic = NodeDiagnostic(
            id(node), node_name(node), node.op_type, node.domain, error, not consequence
        )
        self.send(diagnostic)
        if depends or error is not None:
            self.tainted.update(id(v) for v in node.outputs)


def result_types(
    node: onnx_ir.Node, inputs: Sequence[TensorType | None], opset: int
) -> list[TensorType | None]:
    """Return what is known of a node's results, from the model or the standard's inference."""
    inferred = _inferred(node, inputs, opset)
    return [_declared(v) or inferred.get(f"o{k}") for k, v in enumerate(node.outputs)]


def _declared(value: onnx_ir.Value) -> TensorType | None:
    if value.shape is None or value.dtype is None:
        return None
    shape = tuple(d for d in value.shape if isinstance(d, int))
    if len(shape) < len(value.shape) or min(shape, default=0) < 0:
        return None
    try:
        return TensorType(DType.from_onnx(value.dtype.value), shape)
    except KeyError:
        return None


def _inferred(
    node: onnx_ir.Node, inputs: Sequence[TensorType | None], opset: int
) -> dict[str, TensorType]:
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    proto.input.extend("" if t is None else f"i{k}" for k, t in enumerate(inputs))
    proto.output.extend(f"o{k}" for k in range(len(node.outputs)))
    helper = onnx.helper
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
        attributes = node.attributes.values()
        proto.attribute.extend(onnx_ir.serde.serialize_attribute(a) for a in attributes)
        types = {
            f"i{k}": helper.make_tensor_type_proto(t.dtype.code, t.shape)
            for k, t in enumerate(inputs)
            if t is not None
        }
        opsets = [helper.make_opsetid(node.domain, opset)]
        found = onnx.shape_inference.infer_node_outputs(schema, proto, types, opset_imports=opsets)
    except Exception:  # onnx raises many kinds; then nothing is known
        return {}
    return {k: t for k, v in found.items() if (t := _static(v)) is not None}


def _static(proto: Any) -> TensorType | None:
    tensor = proto.tensor_type
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    try:
        dtype = DType.from_onnx(tensor.elem_type)
    except KeyError:
        return None
    return TensorType(dtype, tuple(d.dim_value for d in tensor.shape.dim))
