"""Maps of ai.onnx.ml, which `onnx_ir` doesn't support, become tensors of keys and of values."""

from __future__ import annotations

import onnx
import onnx_ir

from atc.errors import ModelError, UnsupportedError
from atc.importers.sequences import replace_input, result_of

MAP_KEYS = "atc.map_keys"
"""The `meta` key of a map input's key type; the input's own type is a sequence."""

MAP_DOMAIN = "atc.map"
"""The domain of the operator Map, which makes a map of keys and values."""


def without_maps(graph: onnx.GraphProto, path: str, outermost: bool = True) -> dict[str, int]:
    """Remove the map types from a graph; return the inputs that are maps with their keys' types.

    Such an input becomes a sequence of its values' type; lowering infers the types of results.
    """
    keys: dict[str, int] = {}
    for value in (*graph.output, *graph.value_info):
        if _has_map(value.type):
            value.ClearField("type")
    for value in graph.input if outermost else ():
        if value.type.HasField("map_type"):
            keys[value.name] = _as_sequence(value, path)
        elif _has_map(value.type):
            raise UnsupportedError(
                f"input '{value.name}' is a sequence of maps, which no operator reads", where=path
            )
    for attribute in (a for node in graph.node for a in node.attribute):
        for inner in (attribute.g, *attribute.graphs):
            if inner.node:
                without_maps(inner, path, outermost=False)
    return keys


def _has_map(kind: onnx.TypeProto) -> bool:
    while kind.HasField("sequence_type") or kind.HasField("optional_type"):
        listed = kind.HasField("sequence_type")
        kind = kind.sequence_type.elem_type if listed else kind.optional_type.elem_type
    return bool(kind.HasField("map_type"))


def _as_sequence(value: onnx.ValueInfoProto, path: str) -> int:
    kind = value.type.map_type
    key, element = kind.key_type, kind.value_type.tensor_type.elem_type
    if key not in (onnx.TensorProto.STRING, onnx.TensorProto.INT64) or not element:
        raise UnsupportedError(
            f"input '{value.name}' is a map other than of strings or int64 to tensors' elements",
            where=path,
        )
    value.type.CopyFrom(onnx.TypeProto())
    value.type.sequence_type.elem_type.tensor_type.elem_type = element
    return key


def is_map(value: onnx_ir.Value) -> bool:
    """Return whether an input is a map."""
    return MAP_KEYS in value.meta


def mark_maps(model: onnx_ir.Model, keys: dict[str, int]) -> None:
    """Record which inputs are maps."""
    for value in model.graph.inputs:
        if value.name in keys:
            value.meta[MAP_KEYS] = onnx_ir.DataType(keys[value.name])


def pin_map(model: onnx_ir.Model, value: onnx_ir.Value, shape: object, file: str) -> None:
    """Fix the number of a map's entries: it becomes an input of keys and one of values."""
    match shape:
        case (int(count),) if count > 0:
            pass
        case _:
            raise ModelError(
                f"input '{value.name}' is a map, for which a number of entries must be given",
                where=file, code="E10049", hint=f'for five of them "{value.name}:5"',
            )  # fmt: skip
    kind = value.type
    assert isinstance(kind, onnx_ir.SequenceType)
    taken = {v.name for v in model.graph.inputs} | set(model.graph.initializers)
    parts = []
    for part, dtype in (("keys", value.meta[MAP_KEYS]), ("values", kind.dtype)):
        name = f"{value.name}_{part}"
        while name in taken:
            name += "_"
        tensor = onnx_ir.TensorType(dtype)
        parts.append(onnx_ir.Value(name=name, shape=onnx_ir.Shape((count,)), type=tensor))
    model.opset_imports.setdefault(MAP_DOMAIN, 1)
    node = onnx_ir.Node(MAP_DOMAIN, "Map", parts, outputs=[result_of(value)])
    replace_input(model, value, parts, node, [v.name or "" for v in parts])
