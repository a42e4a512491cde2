"""The types that a model declares for its values, beside what is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir

from atc.dims import is_dynamic
from atc.errors import ModelError
from atc.ir.graph import DType, TensorType
from atc.lower.context import node_label


class DeclaredTypeError(ModelError):
    """A value of another type than the model says: wrong whatever the shapes are."""


def check_declared(value: onnx_ir.Value, found: TensorType | None, where: str) -> None:
    """Raise DeclaredTypeError where a value isn't of the element type that the model declares.

    `found` is None for a sequence or a map.
    """
    if value.dtype is None or isinstance(value.type, onnx_ir.OptionalType):
        return
    several = isinstance(value.type, onnx_ir.SequenceType)
    if found is None if several else found is not None and value.dtype == found.dtype.code:
        return
    what = "output" if value.is_graph_output() else "value"
    actual = "a sequence" if found is None else f"{found}"
    raise DeclaredTypeError(
        f"{what} '{value.name}' is declared as {_written(value)}, but {actual} is computed",
        where=where,
    )


def shape_warning(value: onnx_ir.Value, found: TensorType, where: str) -> str:
    """Return a warning where a value has another shape than the model declares for it, else ''.

    Extents below 1 say nothing: exporters write them for what they don't know.
    """
    if value.dtype is None or value.shape is None:
        return ""
    pairs = zip(value.shape, found.shape, strict=False)
    differs = any(isinstance(d, int) and d > 0 and not is_dynamic(n) and d != n for d, n in pairs)
    if not differs and len(value.shape) == len(found.shape):
        return ""
    what = "output" if value.is_graph_output() else "value"
    text = f"{what} '{value.name}' is declared as {_written(value)}, but {found} is computed"
    return f"{text} [{where}]"


def inner_shape_warning(
    graph: onnx_ir.Graph, type_of: Callable[[onnx_ir.Value], TensorType | None], file: str
) -> str:
    """Return a warning of values within a graph of other shapes than it declares, '' if none are.

    The first one is reported with its node, and how many there are besides: one wrong declaration
    seldom comes alone. Decoders of onnxruntime-genai declare single numbers with other counts of
    axes: these aren't reported.
    """
    warnings = []
    for node in graph:
        for value in node.outputs:
            found = None if value.is_graph_output() else type_of(value)
            if found is None or (_is_number(found.shape) and _is_number(value.shape)):
                continue
            text = shape_warning(value, found, node_label(file, node))
            warnings += [text] if text else []
    more = f", and {len(warnings) - 1} more of this kind" if len(warnings) > 1 else ""
    return f"{warnings[0]}{more}" if warnings else ""


def _is_number(shape: Iterable[object] | None) -> bool:
    """Return whether a shape is known to be that of one element."""
    return shape is not None and all(isinstance(n, int) and n == 1 for n in shape)


def _written(value: onnx_ir.Value) -> str:
    """Return the type that a model declares, as types are written here."""
    try:
        kind = DType.from_onnx(value.dtype.value).label if value.dtype is not None else "?"
    except KeyError:
        kind = str(value.dtype)
    dims = "" if value.shape is None else f"[{','.join(map(str, value.shape))}]"
    whole = f"{kind}{dims}"
    return f"a sequence of {whole}" if isinstance(value.type, onnx_ir.SequenceType) else whole
