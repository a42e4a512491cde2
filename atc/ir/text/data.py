"""Constants in text: small ones by their elements, others by a digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

import numpy as np

from atc.ir.graph import Array, DType, Graph, TensorType, type_of

INLINE = 16
"""Elements up to which a constant is written out."""


def digest_of(array: Array) -> str:
    """Return what a constant is known by: 16 hexadecimal digits of its type and data."""
    head = hashlib.sha256(str(type_of(array)).encode())
    head.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return head.hexdigest()[:16]


def data_text(array: Array) -> str:
    """Return a constant's elements, `(0.5, 1.0)`, or its digest where they are many."""
    if array.size <= INLINE:
        type_ = type_of(array)
        items = [_item_text(item) for item in array.reshape(-1)]
        try:
            if elements(items, type_).tobytes() == array.tobytes():  # a NaN may say more than nan
                return f"({', '.join(items)})"
        except ValueError:
            pass  # bytes that are no text
    return digest_of(array)


def _item_text(item: np.generic) -> str:
    if isinstance(item, bytes):
        return json.dumps(item.decode("utf-8", "replace"))
    return str(item)


def elements(items: Sequence[str], type_: TensorType) -> Array:
    """Return the constant of these elements, each as `data_text` writes it."""
    dtype = type_.dtype
    if dtype is DType.STRING:
        values: list[object] = [json.loads(item).encode() for item in items]
    elif dtype is DType.BOOL:
        values = [{"True": True, "False": False}.get(item) for item in items]
        if None in values:
            raise ValueError(f"{items} are not BOOL")
    elif dtype in (DType.FLOAT, DType.DOUBLE, DType.FLOAT16):
        values = [dtype.numpy.type(item) for item in items]
    else:
        values = [float(item) if dtype.is_float else int(item) for item in items]
    return np.array(values, dtype.numpy).reshape(type_.shape)


def large_constants(graph: Graph) -> dict[str, Array]:
    """Return the constants that the graph's text names by digests, those of inner graphs too."""
    return {
        text: array for array in _arrays(graph) if not (text := data_text(array)).startswith("(")
    }


def _arrays(graph: Graph) -> Iterator[Array]:
    yield from graph.constants.values()
    for origin in graph.quantization.values():
        yield from (origin.integers, origin.scale)
    for node in graph.nodes:
        for inner in node.op.subgraphs():
            yield from _arrays(inner)
