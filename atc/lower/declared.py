"""The types that a model declares for its values, beside what is computed."""

from __future__ import annotations

import onnx_ir

from atc.dims import is_dynamic
from atc.errors import ModelError
from atc.ir.graph import DType, TensorType


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


def shape_warning(value: onnx_ir.Value, found: TensorType, file: str) -> str:
    """Return a warning where an output of the model has another shape than it says, else ''."""
    if value.dtype is None or value.shape is None:
        return ""
    pairs = zip(value.shape, found.shape, strict=False)
    apart = any(isinstance(d, int) and not is_dynamic(n) and d != n for d, n in pairs)
    if not apart and len(value.shape) == len(found.shape):
        return ""
    text = f"output '{value.name}' is declared as {_written(value)}, but {found} is computed"
    return f"{text} [{file}]"


def _written(value: onnx_ir.Value) -> str:
    """Return the type that a model declares, as types are written here."""
    try:
        kind = DType.from_onnx(value.dtype.value).label if value.dtype is not None else "?"
    except KeyError:
        kind = str(value.dtype)
    dims = "" if value.shape is None else f"[{','.join(map(str, value.shape))}]"
    whole = f"{kind}{dims}"
    return f"a sequence of {whole}" if isinstance(value.type, onnx_ir.SequenceType) else whole
