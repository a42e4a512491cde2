"""Replace inputs that are sequences or optionals by inputs for their tensors and a node."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir

from atc.errors import ModelError

COMPOSITES = "atc.composites"
"""Where `model.meta` keeps, once an input was split, the names of the inputs that stand for each:
of a tensor its own, of an optional without a value None."""


def is_composite(value: onnx_ir.Value) -> bool:
    """Return whether an input is a sequence, or an optional."""
    return isinstance(value.type, onnx_ir.SequenceType | onnx_ir.OptionalType)


def pin_sequence(
    model: onnx_ir.Model, value: onnx_ir.Value, shapes: Sequence[tuple[int, ...]], file: str
) -> None:
    """Fix the elements of a sequence (or an optional one): as many as there are `shapes`."""
    kind = value.type
    if isinstance(kind, onnx_ir.OptionalType):
        kind = kind.elem_type
    if not isinstance(kind, onnx_ir.SequenceType):
        raise ModelError(
            f"input '{value.name}' is not a sequence, but several shapes are given for it",
            where=file, code="E10049",
        )  # fmt: skip
    taken = {v.name for v in model.graph.inputs} | set(model.graph.initializers)
    parts = []
    for k, shape in enumerate(shapes):
        name = f"{value.name}_{k}"
        while name in taken:
            name += "_"
        taken.add(name)
        tensor = onnx_ir.TensorType(kind.dtype)
        parts.append(onnx_ir.Value(name=name, shape=onnx_ir.Shape(shape), type=tensor))
    if parts:
        node = onnx_ir.Node("", "SequenceConstruct", parts, outputs=[result_of(value)])
    else:
        dtype = onnx_ir.AttrInt64("dtype", int(kind.dtype))
        node = onnx_ir.Node("", "SequenceEmpty", (), [dtype], outputs=[result_of(value)])
    replace_input(model, value, parts, node, [v.name or "" for v in parts])


def pin_nothing(model: onnx_ir.Model, value: onnx_ir.Value, file: str) -> None:
    """Leave an optional without a value."""
    if not isinstance(value.type, onnx_ir.OptionalType):
        raise ModelError(
            f"input '{value.name}' is not optional, but no value is given for it", where=file,
            code="E10049",
        )  # fmt: skip
    kind = onnx_ir.AttrTypeProto("type", onnx_ir.TypeAndShape(value.type.elem_type, None))
    node = onnx_ir.Node("", "Optional", (), [kind], outputs=[result_of(value)])
    replace_input(model, value, (), node, None)


def pin_value(value: onnx_ir.Value, shape: Sequence[int], file: str) -> None:
    """Say that an optional tensor is there."""
    kind = value.type
    if not (
        isinstance(kind, onnx_ir.OptionalType) and isinstance(kind.elem_type, onnx_ir.TensorType)
    ):
        raise ModelError(
            f"input '{value.name}' is a sequence, but one shape {list(shape)} is given for it",
            where=file, code="E10049", hint=f'give the elements: "{value.name}:[1,2][3]"',
        )  # fmt: skip
    value.type = kind.elem_type


def result_of(value: onnx_ir.Value) -> onnx_ir.Value:
    """Return the value that takes an input's place."""
    return onnx_ir.Value(name=value.name, type=value.type)


def replace_input(
    model: onnx_ir.Model, value: onnx_ir.Value, parts: Sequence[onnx_ir.Value],
    node: onnx_ir.Node, names: list[str] | None,
) -> None:  # fmt: skip
    """Put inputs, and a node that makes the value of them, in the place of an input."""
    graph = model.graph
    model.meta.setdefault(COMPOSITES, {v.name: [v.name] for v in graph.inputs})[value.name] = names
    at = graph.inputs.index(value)
    value.replace_all_uses_with(node.outputs[0], replace_graph_outputs=True)
    graph.inputs[at : at + 1] = [*parts]
    if len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)
