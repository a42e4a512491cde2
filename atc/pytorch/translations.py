"""Translations to ONNX in the place of PyTorch's own, whose numbers go by way of float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir
import torch
from onnxscript import opset20
from onnxscript.function_libs.torch_lib.ops.core import aten_full, aten_full_like


def _number(s: Any, dtype: int = onnx_ir.DataType.FLOAT, **_: Any) -> Any:
    """Return a number as a constant of its type, so that it isn't rounded to another one."""
    if isinstance(s, onnx_ir.Value):
        return opset20.Cast(s, to=dtype)
    return opset20.Constant(value=onnx_ir.tensor(s, dtype=onnx_ir.DataType(dtype)))


def _full(size: Any, fill_value: Any, dtype: int = onnx_ir.DataType.FLOAT, **_: Any) -> Any:
    return aten_full(size, _number(fill_value, dtype), dtype=dtype)


def _full_like(x: onnx_ir.Value, fill_value: Any, dtype: int = -1, **_: Any) -> Any:
    known = dtype if dtype >= 0 else x.dtype
    value = fill_value if known is None else _number(fill_value, known)
    return aten_full_like(x, value, dtype=dtype)


TRANSLATIONS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.scalar_tensor.default: _number,
    torch.ops.aten.full.default: _full,
    torch.ops.aten.full_like.default: _full_like,
}
"""By operator; many others are made of these."""
