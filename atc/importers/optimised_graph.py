"""Files of optimised graphs: inputs and outputs become a model's, the rest is passed on."""

from __future__ import annotations

import json
from pathlib import Path

import onnx_ir

from atc.errors import ModelError, way_out

MAGIC = b"ATCGRAPH 2\n"
PAYLOAD = "atc.graph"
"""The metadata property that holds the graph."""


def load_graph(path: Path) -> onnx_ir.Model:
    """Return a model of the graph's inputs and outputs, without nodes."""
    try:
        text = path.read_bytes().removeprefix(MAGIC).decode("utf-8")
        head = json.loads(text.partition("\n")[0])
        sides = [[_value(*each) for each in head[side]] for side in ("inputs", "outputs")]
    except OSError as error:
        raise ModelError(
            f"can't be read: {error.strerror}", where=str(path), hint=way_out(error)
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ModelError("the graph is damaged", where=str(path)) from None
    inner = onnx_ir.Graph(sides[0], sides[1], nodes=[], name=path.name, opset_imports={"": 21})
    model = onnx_ir.Model(inner, ir_version=10)
    model.metadata_props[PAYLOAD] = text
    return model


def _value(name: str, dtype: int, shape: list[int]) -> onnx_ir.Value:
    type_ = onnx_ir.TensorType(onnx_ir.DataType(dtype))
    return onnx_ir.Value(name=name, shape=onnx_ir.Shape([int(d) for d in shape]), type=type_)
