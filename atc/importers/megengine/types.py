"""Element types of MegEngine and what each becomes in ONNX.

A quantised value is stored as its integers; the scale and zero point belong to the type, so the
translation carries them beside the ONNX value: real = (stored - zero_point) * scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

# Codes of the enumeration DTypeEnum in a dump.
NAMES = (
    "Float32", "Uint8", "Int8", "Int16", "Int32", "IntB1", "IntB2", "IntB4", "Byte", "Float16",
    "UintB4", "Quantized8Asymm", "QuantizedS32", "QuantizedS8", "Quantized4Asymm", "QuantizedS4",
    "QuantizedS16", "BFloat16", "Bool", "Uint16", "QuantizedS1", "Complex64",
)  # fmt: skip

_STORAGE = {
    "Float32": ir.DataType.FLOAT,
    "Float16": ir.DataType.FLOAT16,
    "BFloat16": ir.DataType.BFLOAT16,
    "Uint8": ir.DataType.UINT8,
    "Int8": ir.DataType.INT8,
    "Int16": ir.DataType.INT16,
    "Uint16": ir.DataType.UINT16,
    "Int32": ir.DataType.INT32,
    "Byte": ir.DataType.UINT8,
    "Bool": ir.DataType.BOOL,
    "Quantized8Asymm": ir.DataType.UINT8,
    "QuantizedS8": ir.DataType.INT8,
    "QuantizedS16": ir.DataType.INT16,
    "QuantizedS32": ir.DataType.INT32,
}


@dataclass(frozen=True)
class DType:
    """An element type by MegEngine's name; `scale` and `zero_point` are those of quantised ones."""

    name: str
    scale: float = 1.0
    zero_point: int = 0

    @property
    def quantized(self) -> bool:
        """Whether the stored integers stand for real numbers."""
        return self.name.startswith("Quantized")

    @property
    def floating(self) -> bool:
        """Whether the stored numbers are floating point."""
        return self.name in ("Float32", "Float16", "BFloat16")

    @property
    def integral(self) -> bool:
        """Whether the numbers are plain integers."""
        return not (self.quantized or self.floating or self.name == "Bool")

    @property
    def covered(self) -> bool:
        """Whether ONNX has a type for the stored numbers; the reader refuses others."""
        return self.name in _STORAGE

    @property
    def storage(self) -> ir.DataType:
        """The ONNX type of the stored numbers."""
        return _STORAGE[self.name]

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy type of the stored numbers."""
        return self.storage.numpy()

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and largest stored integer; the full range of the storage type."""
        info = np.iinfo(self.numpy.name)
        return int(info.min), int(info.max)


FLOAT32 = DType("Float32")
INT32 = DType("Int32")
BOOL = DType("Bool")
