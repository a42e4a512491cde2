"""Lowering of ImageDecoder."""

from __future__ import annotations

from atc.ir.graph import DType, TensorType
from atc.ir.ops.image import DecodeImage
from atc.lower.context import Site
from atc.lower.registry import lowers


@lowers("ImageDecoder")
def image_decoder(site: Site) -> str:
    """ONNX ImageDecoder-20, for images of the size that the model declares.

    BMP, PNM, PNG, sequential JPEG, TIFF without compression; an image of another size or kind is an
    error when the network runs.
    """
    x, pixel_format = site.type(0), site.str("pixel_format", "RGB")
    site.require(pixel_format in ("RGB", "BGR", "Grayscale"), f"pixel_format '{pixel_format}'")
    site.require(x.dtype is DType.UINT8 and len(x.shape) == 1, f"the file is {x}")
    declared = site.node.outputs[0].shape
    shape = tuple(d for d in declared or () if isinstance(d, int))
    if len(shape) != 3:
        raise site.unsupported(
            "the image's size is known at run time only",
            hint="declare the shape of the operator's output in the model",
        )
    op = DecodeImage(shape[0], shape[1], pixel_format)
    site.require(min(shape) > 0 and shape[2] == op.channels, f"the image is {list(shape)}")
    site.require(x.size >= 4, f"the file is {x}")
    return site.b.emit1(op, [site.input(0)], TensorType(DType.UINT8, shape))
