"""Pooling over windows and over regions of interest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.dump import Operator
from atc.importers.megengine.layout import pack, packing, unpack
from atc.importers.megengine.quantize import as_real, restore
from atc.importers.megengine.translation import Rule


def pooling(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Pooling; the output's size is rounded down."""
    params = op.params("Pooling")
    kernel = [params.integer("window_h"), params.integer("window_w")]
    strides = [params.integer("stride_h"), params.integer("stride_w")]
    pads = [params.integer("pad_h"), params.integer("pad_w")]
    return [_pool(b, op, xs[0], kernel, strides, pads)]


def adaptive_pooling(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate AdaptivePooling: stride floor(in/out), window in - (out - 1) stride."""
    x, target = xs
    wanted = b.known(target.value)
    if wanted is None or len(wanted) != 2:
        raise b.unsupported("adaptive pooling to a size that depends on data is not covered")
    how = packing(b, op.params("AdaptivePooling"))
    extents = b.ranked(unpack(b, x.value, how), 4)[2:]
    pairs = list(zip(extents, wanted, strict=True))
    if any(not 0 < out <= extent for extent, out in pairs):
        raise b.error(f"cannot pool {list(extents)} to {wanted}")
    strides = [extent // out for extent, out in pairs]
    kernel = [e - (out - 1) * s for (e, out), s in zip(pairs, strides, strict=True)]
    return [_pool(b, op, x, kernel, strides, [0, 0])]


def _pool(
    b: Builder,
    op: Operator,
    x: Var,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
) -> Var:
    params = op.params("Pooling", "AdaptivePooling")
    largest = 1 << 31
    if not all(0 < n < largest for n in (*kernel, *strides)) or max(pads) >= largest:
        raise b.error(f"window {kernel}, stride {strides}, padding {pads} are out of range")
    how = packing(b, params)
    data = unpack(b, x.value, how)
    b.ranked(data, 4)
    if params.word("mode") == "MAX":
        value = _window(b, "MaxPool", data, kernel, strides, pads)
        return Var(pack(b, value, how), x.dtype)
    real = as_real(b, Var(data, x.dtype))
    include = params.word("mode") == "AVERAGE"
    value = _window(b, "AveragePool", real, kernel, strides, pads, include)
    result = restore(b, value, x.dtype)
    return Var(pack(b, result.value, how), result.dtype)


def _window(
    b: Builder,
    op_type: str,
    x: ir.Value,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    include_pads: bool = False,
) -> ir.Value:
    if tuple(kernel) == b.shape(x)[-2:] and not any(pads):
        return b.op(f"Global{op_type}", [x])
    attributes: dict[str, object] = {
        "kernel_shape": list(kernel),
        "strides": list(strides),
        "pads": [*pads, *pads],
    }
    if op_type == "AveragePool" and any(pads):
        attributes["count_include_pad"] = int(include_pads)
    return b.op(op_type, [x], attributes)


def roi_align(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate ROIAlign: inputs x, rois (batch, x0, y0, x1, y1); the argmax output stays out."""
    params = op.params("ROIAlign")
    samples = params.integer("sample_height"), params.integer("sample_width")
    offset = params.real("offset")
    if params.word("mode") != "AVERAGE" or params.word("format") != "NCHW":
        raise b.unsupported("ROIAlign is covered for NCHW and the mode AVERAGE only")
    if samples[0] != samples[1] or offset not in (0.0, 0.5):
        raise b.unsupported("ROIAlign is covered for square samples and the offsets 0 and 0.5 only")
    batch, boxes = _split_rois(b, xs[1].value)
    attributes = {
        "mode": "avg",
        "output_height": params.integer("pooled_height"),
        "output_width": params.integer("pooled_width"),
        "sampling_ratio": samples[0],
        "spatial_scale": params.real("spatial_scale"),
        "coordinate_transformation_mode": "half_pixel" if offset else "output_half_pixel",
    }
    return [Var(b.op("RoiAlign", [xs[0].value, boxes, batch], attributes), xs[0].dtype), None]


def _split_rois(b: Builder, rois: ir.Value) -> tuple[ir.Value, ir.Value]:
    column = b.op("Gather", [rois, b.constant(np.array(0, np.int64))], {"axis": 1})
    bounds = [b.integers([1]), b.integers([5]), b.integers([1])]
    return b.cast(column, ir.DataType.INT64), b.op("Slice", [rois, *bounds])


def roi_pooling(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate ROIPooling: inputs x, rois, output size; the argmax output stays out."""
    params = op.params("ROIPooling")
    size = b.known(xs[2].value)
    if params.word("mode") != "MAX" or size is None or len(size) != 2:
        raise b.unsupported("ROIPooling is covered for the mode MAX and a constant size only")
    attributes = {
        "pooled_shape": size,
        "spatial_scale": params.real("scale"),
    }
    return [Var(b.op("MaxRoiPool", [x.value for x in xs[:2]], attributes), xs[0].dtype), None]


RULES: Mapping[str, Rule] = {
    "AdaptivePooling": Rule(adaptive_pooling, 2),
    "Pooling": Rule(pooling, 1),
    "ROIAlign": Rule(roi_align, 2),
    "ROIPooling": Rule(roi_pooling, 3),
}
