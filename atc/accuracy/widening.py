"""Floats of fewer bits as float64."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from atc.ir.graph import Array

NARROW = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
"""The element types that become float64."""


def widened(array: Array) -> Array:
    """Return an array of one of these types in float64, any other as it is."""
    narrow = helper.np_dtype_to_tensor_dtype(array.dtype) in NARROW if array.dtype != "O" else 0
    return array.astype(np.float64) if narrow else array
