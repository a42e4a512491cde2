"""`--mode=5`: a graph written as text, as JSON.

Reads `<name>.graph.txt` of an output folder, a dump's file, and ONNX's own text form.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf import json_format

from atc.errors import ModelError, one_line, way_out
from atc.files.regular import regular
from atc.ir.graph import Array, Graph, Node, TensorType
from atc.ir.text import op_text, parse

Json = dict[str, Any]


def text_graph(path: Path) -> Json:
    """Return the content of a text graph; raises ModelError with the line that is none."""
    try:
        text = regular(path).read_text("utf-8")
    except OSError as error:
        raise ModelError(
            f"can't be read: {error.strerror}", where=str(path), hint=way_out(error)
        ) from None
    except UnicodeDecodeError:
        raise ModelError("is not text", where=str(path), hint="give a .graph.txt file") from None
    if not text.startswith("graph "):
        return _onnx(text, path)
    try:
        return _graph(parse(text, _unknown))
    except (ValueError, RecursionError) as error:
        raise ModelError(one_line(str(error), 200), where=str(path)) from None


def _unknown(digest: str, type_: TensorType) -> Array:
    """Stand in for a large constant, of which only the type is exported."""
    return np.broadcast_to(np.zeros((), type_.dtype.numpy), type_.shape)


def _onnx(text: str, path: Path) -> Json:
    try:
        model = onnx.parser.parse_model(text)
    except onnx.parser.ParseError as error:
        raise ModelError(
            f"is neither this compiler's text graph nor ONNX's: {one_line(str(error), 120)}",
            where=str(path), hint="give a .graph.txt file of an output folder",
        ) from None  # fmt: skip
    content: Json = json_format.MessageToDict(model)
    return content


def _graph(graph: Graph) -> Json:
    """Return a graph; the graphs inside a node are that node's."""
    constants = [
        {**_typed(graph, [name])[0], "bytes": array.nbytes}
        for name, array in graph.constants.items()
    ]
    return {
        "name": graph.name, "inputs": _typed(graph, graph.inputs), "constants": constants,
        "nodes": [_node(graph, node) for node in graph.nodes], "outputs": list(graph.outputs),
    }  # fmt: skip


def _node(graph: Graph, node: Node) -> Json:
    inner = [_graph(g) for g in node.op.subgraphs()]
    attributes = op_text(node.op).removeprefix(f"{node.op.kind}(").removesuffix(")")
    return {
        "op": node.op.kind, "attributes": attributes, "inputs": [i or None for i in node.inputs],
        "outputs": _typed(graph, node.outputs), "origin": list(node.origin),
        **({"graphs": inner} if inner else {}),
    }  # fmt: skip


def _typed(graph: Graph, names: Iterable[str]) -> list[Json]:
    return [{"name": name, "type": str(graph.types[name])} for name in names]
