"""A model's declared output types, beside what is computed."""

from __future__ import annotations

import onnx_ir

from atc.dims import is_dynamic
from atc.errors import ModelError
from atc.ir.graph import DType, TensorType


def check_declared(value: onnx_ir.Value, found: TensorType, file: str) -> str:
    """Return a warning where an output of the model has another shape than it says, else ''.

    Raises ModelError where it is a sequence or of another element type.
    """
    if value.dtype is None:
        return ""
    text = f"output '{value.name}' is declared as {_written(value)}, but {found} is computed"
    if isinstance(value.type, onnx_ir.SequenceType) or value.dtype != found.dtype.code:
        raise ModelError(text, where=file)
    if value.shape is None:
        return ""
    pairs = zip(value.shape, found.shape, strict=False)
    apart = any(isinstance(d, int) and not is_dynamic(n) and d != n for d, n in pairs)
    return f"{text} [{file}]" if apart or len(value.shape) != len(found.shape) else ""


def _written(value: onnx_ir.Value) -> str:
    """Return the type that a model declares, as types are written here."""
    try:
        kind = DType.from_onnx(value.dtype.value).label if value.dtype is not None else "?"
    except KeyError:
        kind = str(value.dtype)
    dims = "" if value.shape is None else f"[{','.join(map(str, value.shape))}]"
    whole = f"{kind}{dims}"
    return f"a sequence of {whole}" if isinstance(value.type, onnx_ir.SequenceType) else whole
