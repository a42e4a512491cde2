"""A graph after its passes as a file: compiled again, no pass is run on it.

After a line of magic comes JSON: {"target": name, "graph": ...}, where a record is {"is": class,
field: value, ...}, a tuple a list, an element type {"type": code}, a constant's array {"array":
base64, "type": code, "shape": [...]}. An expression in which calls occur more than once is
{"shared": [call, ...], "value": expression}: there, and in calls further behind, {"shared": k}
stands for the call number k.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir

from atc.errors import AtcError, InternalError, ModelError, one_line
from atc.importers.optimised_graph import MAGIC, PAYLOAD
from atc.ir import expr, ops, view
from atc.ir.graph import Composite, DType, Graph, Node, Op, TensorType
from atc.ir.ops.external import External
from atc.ir.verify import verify

_WORD = re.compile(r"[A-Za-z0-9_ .-]*")
"""What a text inside an op may be: none of it may mean anything in C."""


def write_graph(graph: Graph, target: str) -> bytes:
    """Return the file of a graph whose passes were run for a target."""
    content = {"target": target, "graph": _encoded(graph)}
    return MAGIC + json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def stored_graph(model: onnx_ir.Model, target: str) -> Graph | None:
    """Return the graph that a model stands for, verified, if it was read from such a file.

    Raises ModelError for a damaged one, and where its passes were run for another target.
    """
    text = model.metadata_props.get(PAYLOAD)
    if text is None:
        return None
    where = model.graph.name or "graph"
    try:
        content = json.loads(text)
        made = str(content["target"])
        graph = _decoded(content["graph"])
        if not isinstance(graph, Graph):
            raise ValueError("no graph")
        _check(graph)
        verify(graph, "reading")
    except InternalError as error:
        raise ModelError(f"the graph is wrong: {error.message}", where=where) from None
    except AtcError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError,
            ArithmeticError, RecursionError) as error:  # fmt: skip
        reason = one_line(str(error), 200)
        raise ModelError(f"the graph is damaged: {reason}", where=where) from None
    if made != target:
        raise ModelError(
            f"the graph was made for the target {one_line(made, 60)}, not for {target}",
            where=where, hint=f"give --target={one_line(made, 60)}",
        )  # fmt: skip
    return graph


# ---- encoding -----------------------------------------------------------------------------------


def _encoded(value: Any) -> Any:
    match value:
        case expr.Call():
            return _encoded_expression(value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case DType():
            return {"type": value.code}
        case np.ndarray():
            data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
            code = DType.from_numpy(value.dtype).code
            return {"array": data, "type": code, "shape": list(value.shape)}
        case Mapping():
            return {"map": [[k, _encoded(v)] for k, v in value.items()]}
        case tuple() | list():
            return [_encoded(v) for v in value]
    if dataclasses.is_dataclass(value) and type(value) in _CLASSES.values():
        fields = {f.name: _encoded(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"is": type(value).__name__, **fields}
    raise InternalError(f"a graph holds a {type(value).__name__}, which no file can hold")


def _encoded_expression(whole: expr.Call) -> Any:
    """Return an expression with what it shares written once: as a tree it may be without end."""
    inner = [e for e in expr.walk(whole) if isinstance(e, expr.Call)]
    uses = Counter(a for e in inner for a in e.args)
    shared = [e for e in inner if uses[e] > 1]
    number: dict[expr.Expr, int] = {e: k for k, e in enumerate(shared)}

    def call(e: expr.Call) -> Any:
        args = [argument(a) for a in e.args]
        return {"is": "Call", "dtype": _encoded(e.dtype), "fn": e.fn, "args": args}

    def argument(e: expr.Expr) -> Any:
        if e in number:
            return {"shared": number[e]}
        return call(e) if isinstance(e, expr.Call) else _encoded(e)

    if not shared:
        return call(whole)
    return {"shared": [call(e) for e in shared], "value": call(whole)}


# ---- decoding -----------------------------------------------------------------------------------


def _classes() -> Iterator[type[Any]]:
    yield from (Graph, Node, TensorType, Composite)
    pending: list[type[Any]] = [Op]
    while pending:
        found = pending.pop()
        pending += found.__subclasses__()
        if dataclasses.is_dataclass(found):
            yield found
    for module in (expr, view, ops):
        for found in vars(module).values():
            if isinstance(found, type) and dataclasses.is_dataclass(found):
                yield found


_CLASSES: Mapping[str, type[Any]] = {c.__name__: c for c in _classes()}
"""The records that a graph is made of, by name."""


def _decoded(value: Any, shared: Sequence[Any] = ()) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return tuple(_decoded(v, shared) for v in value)
        case {"is": str(name), **fields}:
            made = _CLASSES[name]
            known = {f.name for f in dataclasses.fields(made)}
            given = {str(key): _decoded(v, shared) for key, v in fields.items()}
            if not set(given) <= known:
                raise ValueError(f"{name} has no field {min(set(given) - known)}")
            return made(**given)
        case {"array": str(data), "type": int(code), "shape": list(shape)}:
            raw = np.array(bytearray(base64.b64decode(data, validate=True)), np.uint8)
            return raw.view(DType.from_onnx(code).numpy).reshape([int(d) for d in shape])
        case {"type": int(code)}:
            return DType.from_onnx(code)
        case {"shared": int(k)} if 0 <= k < len(shared):
            return shared[k]
        case {"shared": list(items), "value": inner}:
            calls: list[expr.Call] = []
            for item in items:
                if not isinstance(found := _decoded(item, calls), expr.Call):
                    raise ValueError("what is shared is no call")  # only those are walked once
                calls.append(found)
            return _decoded(inner, calls)
        case {"float": str(text)}:
            return float(text)
        case {"map": list(pairs)}:
            return {str(key): _decoded(v, shared) for key, v in pairs}
    raise ValueError(f"unknown value {str(value)[:60]}")


def _check(graph: Graph) -> None:
    """Raise ValueError for types that verification takes for granted, and for texts in ops."""
    names = (*graph.inputs, *graph.outputs, *(n for node in graph.nodes for n in node.inputs))
    if not all(isinstance(n, str) for n in names) or not isinstance(graph.constants, dict):
        raise ValueError("names must be texts")
    for type_ in graph.types.values():
        if not isinstance(type_, TensorType) or not all(
            type(d) is int and d >= 0 for d in type_.shape
        ):
            raise ValueError("a shape is wrong")
    for node in graph.nodes:
        if not isinstance(node, Node) or not isinstance(node.op, Op):
            raise ValueError("a node is wrong")
        if isinstance(node.op, External):
            raise ValueError("external operators are not read from files")
        for text in _texts(node.op):
            if not _WORD.fullmatch(text):
                raise ValueError(f"'{one_line(text, 60)}' in {node.op.kind}")
        for inner in node.op.subgraphs():
            _check(inner)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, expr.Call):
        for e in expr.walk(value):
            yield from [e.fn] if isinstance(e, expr.Call) else _texts(e)
    elif dataclasses.is_dataclass(value) and not isinstance(value, Graph):
        for f in dataclasses.fields(value):
            yield from _texts(getattr(value, f.name))


