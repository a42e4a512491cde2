"""Lowering of ImageDecoder."""

from __future__ import annotations

from atc.ir.graph import DType, TensorType
from atc.ir.ops.image import DecodeImage
from atc.lower.context import LoweringContext
from atc.lower.registry import lowers


@lowers("ImageDecoder")
def image_decoder(ctx: LoweringContext) -> str:
    """ONNX ImageDecoder-20, for images of the size that the model declares.

    BMP, PNM, PNG, sequential JPEG, TIFF without compression; an image of another size or kind is an
    error when the network runs.
    """
    x, pixel_format = ctx.type(0), ctx.str("pixel_format", "RGB")
    ctx.require(pixel_format in ("RGB", "BGR", "Grayscale"), f"pixel_format '{pixel_format}'")
    ctx.require(x.dtype is DType.UINT8 and len(x.shape) == 1, f"the file is {x}")
    declared = ctx.node.outputs[0].shape
    shape = tuple(d for d in declared or () if isinstance(d, int))
    if len(shape) != 3:
        raise ctx.unsupported(
            "the image's size is known at run time only",
            hint="declare the shape of the operator's output in the model",
        )
    op = DecodeImage(shape[0], shape[1], pixel_format)
    ctx.require(min(shape) > 0 and shape[2] == op.channels, f"the image is {list(shape)}")
    ctx.require(x.size >= 4, f"the file is {x}")
    return ctx.b.emit1(op, [ctx.input(0)], TensorType(DType.UINT8, shape))
