"""Files of optimised graphs: their inputs and outputs are a model's, the rest is passed on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir

from atc.errors import ModelError, way_out

MAGIC = b"ATCGRAPH 1\n"
PAYLOAD = "atc.graph"
"""The metadata property that holds the content."""


def load_graph(path: Path) -> onnx_ir.Model:
    """Return a model of the graph's inputs and outputs, without nodes."""
    try:
        text = path.read_bytes().removeprefix(MAGIC).decode("ascii")
        graph = json.loads(text)["graph"]
        types = dict(graph["types"]["map"])
        sides = [[_value(name, types[name]) for name in graph[s]] for s in ("inputs", "outputs")]
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


def _value(name: str, type_: Any) -> onnx_ir.Value:
    dtype = onnx_ir.DataType(type_["dtype"]["type"])
    shape = onnx_ir.Shape([int(d) for d in type_["shape"]])
    plain = str(name).removesuffix("#output")
    return onnx_ir.Value(name=plain, shape=shape, type=onnx_ir.TensorType(dtype))
