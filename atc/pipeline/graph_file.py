"""A graph after its passes as a file: no pass is run on it when it is compiled.

After a line of magic comes a line of JSON, {"target": name, "inputs": [[name, element type's code,
shape], ...], "outputs": ...}, then the graph's text (`atc.ir.text`), and behind an empty line the
data of its large constants, a line each: digest and base64.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir

from atc.errors import AtcError, InternalError, ModelError, UnsupportedError, one_line
from atc.importers.optimised_graph import MAGIC, PAYLOAD
from atc.ir.expr import Expr
from atc.ir.graph import Array, Graph, TensorType, model_name
from atc.ir.ops.external import External
from atc.ir.text import digest_of, dump, large_constants, parse
from atc.ir.verify import verify

_WORD = re.compile(r"[A-Za-z0-9_ .-]*")
"""What a text inside an op may be: none of it may mean anything in C."""


def write_graph(graph: Graph, target: str) -> bytes:
    """Return the file of a graph whose passes were run for a target.

    Raises UnsupportedError where extents are known only at run time.
    """
    if graph.dims:
        raise UnsupportedError(
            f"the extent '{graph.dims[0].label}' is known only at run time, which graph files "
            "can't hold", where=graph.name, hint="pin all shapes: --input_shape",
        )  # fmt: skip
    head = {"target": target, "inputs": _signature(graph, graph.inputs),
            "outputs": _signature(graph, graph.outputs)}  # fmt: skip
    data = "".join(
        f"{digest} {base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()}\n"
        for digest, array in large_constants(graph).items()
    )
    return MAGIC + f"{json.dumps(head)}\n{dump(graph)}\n{data}".encode()


def _signature(graph: Graph, names: Iterable[str]) -> list[list[Any]]:
    types = ((model_name(n, graph.aliases), graph.types[n]) for n in names)
    return [[name, type_.dtype.code, list(type_.shape)] for name, type_ in types]


def stored_graph(model: onnx_ir.Model, target: str) -> Graph | None:
    """Return the graph that a model stands for, verified, if it was read from such a file.

    Raises ModelError for a damaged one, and where its passes were run for another target.
    """
    content = model.metadata_props.get(PAYLOAD)
    if content is None:
        return None
    where = model.graph.name or "graph"
    try:
        head, _, rest = content.partition("\n")
        made = str(json.loads(head)["target"])
        text, _, data = rest.partition("\n\n")
        graph = parse(text, _Data(data).constant)
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


class _Data:
    """The lines of large constants."""

    def __init__(self, text: str) -> None:
        lines = (line.partition(" ") for line in text.split("\n") if line)
        self.encoded: Mapping[str, str] = {digest: data for digest, _, data in lines}

    def constant(self, digest: str, type_: TensorType) -> Array:
        """Return the constant of a digest; raises ValueError where the data is another's."""
        if digest not in self.encoded:
            raise ValueError(f"the constant {digest} has no data")
        raw = np.array(bytearray(base64.b64decode(self.encoded[digest], validate=True)), np.uint8)
        array = raw.view(type_.dtype.numpy).reshape(type_.shape)
        if digest_of(array) != digest:
            raise ValueError(f"the constant {digest} has the data of another")
        return array


def _check(graph: Graph) -> None:
    """Raise ValueError for extents that verification takes for granted, and for texts in ops."""
    if graph.dims or any(d < 0 for type_ in graph.types.values() for d in type_.shape):
        raise ValueError("a shape is wrong")
    for node in graph.nodes:
        if isinstance(node.op, External):
            raise ValueError("external operators are not read from files")
        for text in _texts(node.op):
            if not _WORD.fullmatch(text):
                raise ValueError(f"'{one_line(text, 60)}' in {node.op.kind}")
        for inner in node.op.subgraphs():
            _check(inner)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in an op's attributes; expressions hold none but functions and numbers."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, Graph | Expr):
        for f in dataclasses.fields(value):
            yield from _texts(getattr(value, f.name))
