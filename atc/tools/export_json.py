"""`--mode=5`: a graph written as text, as JSON.

Reads `<name>.graph.txt` of an output folder, a dump's file, and ONNX's own text form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf import json_format

from atc.errors import ModelError, one_line, way_out
from atc.files.regular import regular

_TYPED = re.compile(r"(?P<name>[^ :]+): (?P<type>\w+\[[0-9,]*\])")
_NODE = re.compile(
    r"(?P<outputs>[^=]*) = (?P<op>\w+)\((?P<attributes>.*)\) ?"
    r"(?P<inputs>[^()#]*?)(?:\s*# ?(?P<origin>.*))?"
)
_CONSTANT = re.compile(r"const (?P<name>[^ :]+): (?P<type>\S+) (?P<bytes>\d+) bytes")
_HEAD = re.compile(r"graph (?P<name>\S+)\((?P<inputs>.*)\)")

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
    if not re.match(r"graph [^(]+\([^)]*\)\n  ", text):
        return _onnx(text, path)
    lines = enumerate(text.splitlines(), start=1)
    number, head = next(lines)
    return _graph(head, number, lines, path)


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


def _graph(head: str, number: int, lines: Iterator[tuple[int, str]], path: Path) -> Json:
    """Read a graph up to its `return`; the graphs inside a node follow that node."""
    found = _matched(_HEAD, head, number, path)
    graph: Json = {
        "name": found["name"], "inputs": _typed(found["inputs"]), "constants": [], "nodes": [],
    }  # fmt: skip
    for number, line in lines:
        said = line.strip()
        if said.startswith("return"):
            graph["outputs"] = [n for n in said.removeprefix("return").strip().split(", ") if n]
            return graph
        if said.startswith("const "):
            constant = _matched(_CONSTANT, said, number, path)
            graph["constants"].append({**constant.groupdict(), "bytes": int(constant["bytes"])})
        elif said.startswith("graph ") and graph["nodes"]:
            graph["nodes"][-1].setdefault("graphs", []).append(_graph(said, number, lines, path))
        else:
            graph["nodes"].append(_node(_matched(_NODE, said, number, path)))
    raise ModelError(f"line {number}: the graph has no end", where=str(path))


def _node(found: re.Match[str]) -> Json:
    inputs = [n for n in found["inputs"].strip().split(", ") if n]
    return {
        "op": found["op"], "attributes": found["attributes"],
        "inputs": [None if n == "-" else n for n in inputs], "outputs": _typed(found["outputs"]),
        "origin": [n for n in (found["origin"] or "").split("; ") if n],
    }  # fmt: skip


def _typed(text: str) -> list[Json]:
    return [m.groupdict() for m in _TYPED.finditer(text)]


def _matched(pattern: re.Pattern[str], text: str, number: int, path: Path) -> re.Match[str]:
    found = pattern.fullmatch(text.strip())
    if found is None:
        raise ModelError(f"line {number} is none of a graph: {one_line(text, 60)}", where=str(path))
    return found
