"""Decoding of image files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.elementwise import require


@dataclass(frozen=True)
class DecodeImage(Op):
    """The pixels of an image file, UINT8 [height, width, channels].  ONNX ImageDecoder-20.

    BMP, PNM, PNG, sequential JPEG and TIFF without compression. `pixel_format` is RGB, BGR or
    Grayscale. A file of another kind or size gives zeros, and the network reports it.
    """

    height: int
    width: int
    pixel_format: str

    @property
    def channels(self) -> int:
        """Numbers per pixel."""
        return 1 if self.pixel_format == "Grayscale" else 3

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Bytes come in and go out."""
        x, y = inputs[0], outputs[0]
        require(x is not None and x.dtype is DType.UINT8 and x.size >= 4, f"the file is {x}")
        require(y == TensorType(DType.UINT8, (self.height, self.width, self.channels)), f"{y}")
        require(y.size > 0, f"{y}")
