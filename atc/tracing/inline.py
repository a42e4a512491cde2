"""ONNX models inside of a trace: their nodes are recorded, their weights become parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.inliner import inline_local_functions
from onnx.version_converter import convert_version

from atc.errors import ModelError, UnsupportedError, one_line
from atc.tracing.recording import OPSET
from atc.tracing.tape import current_tape
from atc.tracing.tensor import Tensor


def read_for_training(path: Path, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Read a model with inputs of fixed shapes, in the opset that traces have.

    Raises ModelError, and UnsupportedError for operators that aren't ONNX's.
    """
    where = str(path)
    try:
        model = onnx.load(path)
        for value in model.graph.input:
            if value.name in shapes:
                elem = value.type.tensor_type.elem_type
                made = helper.make_tensor_type_proto(elem, [*shapes[value.name]])
                value.type.CopyFrom(made)
        model = inline_local_functions(model)
        opsets = {o.domain: o.version for o in model.opset_import}
        if opsets.get("", OPSET) != OPSET:
            model = convert_version(model, OPSET)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except (OSError, ValueError, RuntimeError, *_FAULTS) as error:
        raise ModelError(one_line(f"can't be read: {error}", 300), where=where) from None
    given = {i.name for i in model.graph.initializer}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in given and not all(d.HasField("dim_value") for d in dims):
            raise ModelError(f"the shape of input '{value.name}' is open", where=where,
                             hint="give it in input_shape")  # fmt: skip
    foreign = sorted({n.domain for n in model.graph.node} - {"", "ai.onnx"})
    if foreign:
        raise UnsupportedError(f"operators of {', '.join(foreign)} aren't trained", where=where)
    return model


_FAULTS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError)


def weights_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return a model's initializers by name."""
    return {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}


def inputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that aren't initializers."""
    given = {i.name for i in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in given]


def applied(
    model: onnx.ModelProto, inputs: Sequence[Tensor], weights: Mapping[str, Tensor]
) -> list[Tensor]:
    """Record a model's nodes on tensors for its inputs and initializers; returns the outputs."""
    tape = current_tape()
    recording = tape.recording
    names = {v.name: tape.value(t) for v, t in zip(inputs_of(model), inputs, strict=True)}
    names |= {name: tape.value(tensor) for name, tensor in weights.items()}

    def renamed(name: str) -> str:
        return names.setdefault(name, recording.fresh("m")) if name else ""

    infos = (*model.graph.value_info, *model.graph.output)
    types = {info.name: info.type for info in infos}
    for node in model.graph.node:
        made = _renamed(node, renamed)
        for old, new in zip(node.output, made.output, strict=True):
            if old and old not in types:
                raise UnsupportedError(f"the type of '{one_line(old, 60)}' isn't known",
                                       where=one_line(node.name or node.op_type, 60))  # fmt: skip
            if old:
                recording.types[new] = types[old]
        recording.nodes.append(made)
    return [Tensor.recorded(tape, names[o.name]) for o in model.graph.output]


def _renamed(node: onnx.NodeProto, renamed: Callable[[str], str]) -> onnx.NodeProto:
    """Return a node, and those of graphs inside of it, on values of other names."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[:] = [renamed(n) for n in node.input]
    made.output[:] = [renamed(n) for n in node.output]
    graphs = [g for a in made.attribute for g in ([a.g] if a.HasField("g") else [*a.graphs])]
    for graph in graphs:
        for info in (*graph.input, *graph.output, *graph.value_info):
            info.name = renamed(info.name)
        for tensor in graph.initializer:
            tensor.name = renamed(tensor.name)
        inner = [_renamed(n, renamed) for n in graph.node]
        del graph.node[:]
        graph.node.extend(inner)
    return made
