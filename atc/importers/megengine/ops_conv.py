"""Convolutions: plain, transposed, fused with bias and activation, quantised, deformable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.dump import Operator, Params
from atc.importers.megengine.layout import (
    Packing,
    pack,
    packing,
    unpack,
    unpack_bias,
    unpack_weight,
)
from atc.importers.megengine.quantize import (
    convert,
    dequantize,
    integer_product,
    is_integer_product,
    product_scale,
    requantize,
)
from atc.importers.megengine.translation import Rule
from atc.importers.megengine.types import FLOAT32, DType

_LARGEST = 1 << 31


@dataclass(frozen=True)
class Window:
    """Padding, strides and dilations of a convolution, one entry per spatial axis."""

    pads: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    def attributes(self, groups: int) -> dict[str, object]:
        """Return the attributes of Conv; MegEngine's padding is symmetric."""
        return {
            "pads": [*self.pads, *self.pads],
            "strides": list(self.strides),
            "dilations": list(self.dilations),
            "group": groups,
        }


def read_window(b: Builder, params: Params, axes: str = "hw") -> Window:
    """Read the window; raises `ModelError` for strides and dilations of 0 or absurd sizes."""
    pads = tuple(params.integer(f"pad_{a}") for a in axes)
    strides = tuple(params.integer(f"stride_{a}") for a in axes)
    dilations = tuple(params.integer(f"dilate_{a}") for a in axes)
    if not all(0 < n < _LARGEST for n in strides + dilations) or max(pads) >= _LARGEST:
        raise b.error(f"padding {pads}, stride {strides}, dilation {dilations} are out of range")
    return Window(pads, strides, dilations)


def ungroup(b: Builder, w: ir.Value, params: Params, axes: int) -> tuple[ir.Value, int]:
    """Return the weights as ONNX lays them out and the number of groups.

    Dense weights (O, I, ...) stay, grouped ones (G, O/G, I/G, ...) lose the group axis.
    """
    shape = b.extents(w)
    rank = axes + 2 + (params.word("sparse") == "GROUP")
    if len(shape) != rank or 0 in shape:
        raise b.error(f"weights of shape {list(shape)} where rank {rank} is expected")
    groups = 1
    if params.word("sparse") == "GROUP":
        groups = shape[0]
        w = b.rearranged(w, (shape[0] * shape[1], *shape[2:]))
    if params.word("mode") == "CONVOLUTION":
        w = b.flipped(w, range(2, axes + 2))
    return w, groups


def convolution(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Convolution: inputs x, w; a bias is a later addition."""
    return [_convolve(b, op.params("Convolution"), "hw", xs[0], xs[1], op.output_dtype)]


def convolution_3d(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Convolution3D."""
    params = op.params("Convolution3D")
    if params.word("format") != "NCDHW":
        raise b.unsupported(f"format {params.word('format')} is not covered")
    return [_convolve(b, params, "dhw", xs[0], xs[1], op.output_dtype)]


def _convolve(b: Builder, params: Params, axes: str, x: Var, w: Var, wanted: DType | None) -> Var:
    how = packing(b, params)
    x, w, groups = _operands(b, params, axes, how, x, w)
    attributes = read_window(b, params, axes).attributes(groups)
    if is_integer_product(x, w):
        result = integer_product(b, "ConvInteger", x, w, attributes)
        if wanted is not None and wanted != result.dtype:
            result = convert(b, result, wanted)
    else:
        result = Var(b.op("Conv", [x.value, w.value], attributes), x.dtype)
    return Var(pack(b, result.value, how), result.dtype)


def _operands(
    b: Builder, params: Params, axes: str, how: Packing, x: Var, w: Var
) -> tuple[Var, Var, int]:
    weights = unpack_weight(b, w.value, how, params.word("sparse") == "GROUP")
    weights, groups = ungroup(b, weights, params, len(axes))
    return Var(unpack(b, x.value, how), x.dtype), Var(weights, w.dtype), groups


def conv_bias(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate ConvBias: activation(conv(x, w) + bias + z)."""
    params = op.params("ConvBias")
    how = packing(b, params)
    x, w, groups = _operands(b, params, "hw", how, xs[0], xs[1])
    attributes = read_window(b, params).attributes(groups)
    extra = [Var(unpack_bias(b, v.value, how), v.dtype) for v in xs[2:]]
    activation = params.word("nonline_mode")
    if is_integer_product(x, w) and x.dtype.quantized:
        result = _quantized(b, op, x, w, extra, attributes, activation)
    else:
        inputs, extra = _take_bias(b, [x.value, w.value], extra)
        value = b.op("Conv", inputs, attributes)
        for addend in extra:
            value = b.op("Add", [value, addend.value])
        result = Var(_activate(b, value, activation), x.dtype)
    return [Var(pack(b, result.value, how), result.dtype)]


def _take_bias(
    b: Builder, inputs: list[ir.Value], extra: list[Var]
) -> tuple[list[ir.Value], list[Var]]:
    """Move a bias of one number per channel into the convolution's own inputs."""
    if not extra:
        return inputs, extra
    shape = b.shape(extra[0].value)
    channels = b.extents(inputs[1])[0]
    if shape != (1, channels, 1, 1):
        return inputs, extra
    return [*inputs, b.rearranged(extra[0].value, (channels,))], extra[1:]


def _quantized(
    b: Builder,
    op: Operator,
    x: Var,
    w: Var,
    extra: Sequence[Var],
    attributes: Mapping[str, object],
    activation: str,
) -> Var:
    """Sum products and bias in 32-bit integers, then activate and round in one scaling."""
    total = integer_product(b, "ConvInteger", x, w, attributes).value
    scale = product_scale(x, w)
    if extra and extra[0].dtype.name in ("QuantizedS32", "Int32"):
        total = b.op("Add", [total, extra[0].value])
        extra = extra[1:]
    wanted = op.output_dtype or DType("QuantizedS32", scale)
    if not extra and activation == "IDENTITY" and wanted.quantized:
        if wanted == DType("QuantizedS32", scale):
            return Var(total, wanted)
        return requantize(b, total, scale, wanted)
    real = dequantize(b, Var(total, DType("QuantizedS32", scale)))
    for addend in extra:
        real = b.op("Add", [real, dequantize(b, addend)])
    return convert(b, Var(_activate(b, real, activation), FLOAT32), wanted)


def _activate(b: Builder, value: ir.Value, activation: str) -> ir.Value:
    op_type = {"RELU": "Relu", "SIGMOID": "Sigmoid", "H_SWISH": "HardSwish"}.get(activation)
    return b.op(op_type, [value]) if op_type else value


def transposed(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate ConvolutionBackwardData: inputs w, x and a tensor of the output's shape."""
    params = op.params("Convolution")
    if params.word("format") != "NCHW":
        raise b.unsupported(f"format {params.word('format')} is not covered")
    return [_transposed(b, op, params, "hw", xs)]


def transposed_3d(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Convolution3DBackwardData."""
    params = op.params("Convolution3D")
    if params.word("format") != "NCDHW":
        raise b.unsupported(f"format {params.word('format')} is not covered")
    return [_transposed(b, op, params, "dhw", xs)]


def _transposed(b: Builder, op: Operator, params: Params, axes: str, xs: Sequence[Var]) -> Var:
    w, x = xs[0], xs[1]
    window = read_window(b, params, axes)
    weights, groups = ungroup(b, w.value, params, len(axes))
    attributes = window.attributes(groups)
    if len(xs) > 2:
        kernel = b.extents(weights)[2:]
        attributes["output_padding"] = _output_padding(
            b, window, kernel, b.extents(x.value)[2:], b.extents(xs[2].value)[2:]
        )
    real = [b.cast(x.value, ir.DataType.FLOAT), b.cast(weights, ir.DataType.FLOAT)]
    if x.dtype.floating:
        real = [x.value, weights]
    value = b.op("ConvTranspose", real, attributes)
    if x.dtype.floating:
        return Var(value, x.dtype)
    return _integer_result(b, value, x, w, op.output_dtype)


def _integer_result(b: Builder, value: ir.Value, x: Var, w: Var, wanted: DType | None) -> Var:
    """Turn integer sums that were computed in float32 into their type."""
    if not x.dtype.quantized or x.dtype.zero_point or w.dtype.zero_point:
        raise b.unsupported(f"transposed convolution of {x.dtype.name} is not covered")
    scale = product_scale(x, w)
    result = Var(b.cast(value, ir.DataType.INT32), DType("QuantizedS32", scale))
    return convert(b, result, wanted) if wanted else result


def _output_padding(
    b: Builder,
    window: Window,
    kernel: Sequence[int],
    extents: Sequence[int],
    target: Sequence[int],
) -> list[int]:
    """Return what the output shape asks for beyond the smallest one that fits."""
    if not len(kernel) == len(extents) == len(target) == len(window.strides):
        raise b.error(f"cannot convolve {list(extents)} with {list(kernel)} to {list(target)}")
    smallest = [
        (n - 1) * s + d * (k - 1) + 1 - 2 * p
        for n, s, d, k, p in zip(
            extents, window.strides, window.dilations, kernel, window.pads, strict=True
        )
    ]
    missing = [t - s for t, s in zip(target, smallest, strict=True)]
    if any(not 0 <= m < s for m, s in zip(missing, window.strides, strict=True)):
        raise b.error(f"an output of {list(target)} does not fit: {smallest} is the smallest")
    return missing


def deformable(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate DeformableConv: inputs x, w, offset (y, x per tap), mask."""
    params = op.params("Convolution")
    if params.word("format") != "NCHW":
        raise b.unsupported(f"format {params.word('format')} is not covered")
    x, w, offset, mask = (v.value for v in xs)
    weights, groups = ungroup(b, w, params, 2)
    attributes = read_window(b, params).attributes(groups)
    taps = int(np.prod(b.extents(weights)[2:]))
    channels = b.ranked(offset, 4)[1]
    if channels % (2 * taps):
        raise b.error(f"{channels} offset channels are not a multiple of {2 * taps}")
    attributes["offset_group"] = channels // (2 * taps)
    value = b.op("DeformConv", [x, weights, offset, None, mask], attributes)
    return [Var(value, xs[0].dtype)]


RULES: Mapping[str, Rule] = {
    "ConvBias": Rule(conv_bias, 2, 4),
    "Convolution": Rule(convolution, 2),
    "Convolution3D": Rule(convolution_3d, 2),
    "Convolution3DBackwardData": Rule(transposed_3d, 2, 3),
    "ConvolutionBackwardData": Rule(transposed, 2, 3),
    "DeformableConv": Rule(deformable, 4),
}
