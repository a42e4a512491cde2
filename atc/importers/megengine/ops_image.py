"""Resampling of images, and suppression of overlapping boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.dump import Operator, Params
from atc.importers.megengine.quantize import as_real, restore
from atc.importers.megengine.translation import Rule
from atc.importers.megengine.types import INT32

_TO_FIRST, _TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
_LARGEST_IMAGE = 1 << 16
_LARGEST_GRID = 1 << 23


def _channels_last(b: Builder, params: Params) -> bool:
    word = params.word("format")
    if word not in ("NCHW", "NHWC"):
        raise b.unsupported(f"memory format {word} is not covered")
    return word == "NHWC"


def _pixels(b: Builder, x: Var) -> ir.Value:
    """Return an image's numbers as floats; raises unless it has four axes and no empty one."""
    if 0 in b.ranked(x.value, 4):
        raise b.error(f"an image of shape {list(b.shape(x.value))}")
    return as_real(b, x)


def _target(b: Builder, size: ir.Value, axes: int = 2) -> list[int]:
    extents = b.known(size)
    if extents is None or len(extents) != axes:
        raise b.unsupported("an image size that depends on data is not covered")
    if not all(0 < n <= _LARGEST_IMAGE for n in extents):
        raise b.error(f"an image of size {extents} is out of range")
    return extents


def resize(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Resize: LINEAR and CUBIC by pixel centres, NEAREST by floor(i in / out)."""
    params = op.params("Resize")
    last = _channels_last(b, params)
    target = _target(b, xs[1].value)
    value, dtype = _pixels(b, xs[0]), xs[0].dtype
    value = b.transpose(value, _TO_FIRST) if last else value
    match params.word("imode"):
        case "NEAREST":
            value = _nearest(b, value, target)
        case "LINEAR":
            value = _resized(b, value, target, {"mode": "linear"})
        case "CUBIC":
            value = _resized(b, value, target, {"mode": "cubic", "cubic_coeff_a": -0.75})
        case word:
            raise b.unsupported(f"interpolation {word} is not covered")
    result = restore(b, b.transpose(value, _TO_LAST) if last else value, dtype)
    return [result]


def _resized(
    b: Builder, x: ir.Value, target: Sequence[int], attributes: Mapping[str, object]
) -> ir.Value:
    """Resize the last axes; half-pixel coordinates unless `attributes` say otherwise."""
    lead = b.extents(x)[: -len(target)]
    sizes = b.integers([*lead, *target])
    given = {"coordinate_transformation_mode": "half_pixel", **attributes}
    return b.op("Resize", [x, None, None, sizes], given)


def _nearest(b: Builder, x: ir.Value, target: Sequence[int]) -> ir.Value:
    """Enlarge by whole factors with Resize, anything else by exact source indices."""
    extents = b.extents(x)[-2:]
    if all(t % e == 0 for t, e in zip(target, extents, strict=True)):
        words = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return _resized(b, x, target, {"mode": "nearest", **words})
    for axis, extent, wanted in zip((2, 3), extents, target, strict=True):
        if extent != wanted:
            places = b.integers([i * extent // wanted for i in range(wanted)])
            x = b.op("Gather", [x, places], {"axis": axis})
    return x


def resize_3d(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Resize3D of (N, C, D, H, W), trilinear."""
    params = op.params("Resize3D")
    if params.word("imode") != "LINEAR" or params.word("format") != "NCDHW":
        raise b.unsupported("Resize3D is covered for LINEAR and NCDHW only")
    mode = "align_corners" if params.flag("align_corners") else "half_pixel"
    attributes = {"mode": "linear", "coordinate_transformation_mode": mode}
    b.ranked(xs[0].value, 5)
    target = _target(b, xs[1].value, 3)
    return [Var(_resized(b, xs[0].value, target, attributes), xs[0].dtype)]


def warp_perspective(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate WarpPerspective: inputs x, matrices (N, 3, 3) [, batch index], size.

    A matrix maps output pixels (x, y, 1) to input pixels.
    """
    params = op.params("WarpPerspective")
    return [_warp(b, params, params.word("bmode"), "border_val", xs)]


def warp_affine(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate WarpAffine: as WarpPerspective with matrices (N, 2, 3)."""
    params = op.params("WarpAffine")
    return [_warp(b, params, params.word("border_mode"), "border_val", xs)]


def _warp(b: Builder, params: Params, border: str, fill: str, xs: Sequence[Var]) -> Var:
    last = _channels_last(b, params)
    target = _target(b, xs[-1].value)
    value, dtype = _pixels(b, xs[0]), xs[0].dtype
    value = b.transpose(value, _TO_FIRST) if last else value
    if len(xs) == 4:
        value = b.op("Gather", [value, xs[2].value], {"axis": 0})
    matrix = xs[1].value
    if border == "REPLICATE" and _aligns_corners(b, matrix, b.extents(value)[2:], target):
        words = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
        value = _resized(b, value, target, words)
    else:
        places = _mapped(b, matrix, target)
        value = _sample(b, value, places, params.word("imode"), border, params.real(fill))
    return restore(b, b.transpose(value, _TO_LAST) if last else value, dtype)


def _aligns_corners(
    b: Builder, matrix: ir.Value, extents: Sequence[int], target: Sequence[int]
) -> bool:
    """Say whether a warp only scales so that the corner pixels meet."""
    known = b.array(matrix)
    if known is None or known.ndim != 3 or known.shape[1:] != (3, 3) or 1 in (*target, *extents):
        return False
    scale = [(e - 1) / (t - 1) for e, t in zip(extents, target, strict=True)]
    wanted = np.diag([scale[1], scale[0], 1.0])
    return bool(np.allclose(known, wanted, rtol=1e-6, atol=1e-7))


def _mapped(b: Builder, matrix: ir.Value, target: Sequence[int]) -> ir.Value:
    """Return the input pixel (x, y) of every output pixel, (N, OH, OW, 2)."""
    height, width = target
    if height * width > _LARGEST_GRID:
        raise b.unsupported(f"a warp to {height} by {width} pixels is not covered")
    rows = b.extents(matrix)[1] if b.rank(matrix) == 3 else 0
    if rows not in (2, 3) or b.extents(matrix)[2] != 3:
        raise b.error(f"matrices of shape {list(b.shape(matrix))}")
    y, x = np.mgrid[:height, :width].astype(np.float32)
    points = b.constant(np.stack([x, y, np.ones_like(x)]).reshape(3, -1))
    places = b.op("MatMul", [b.cast(matrix, ir.DataType.FLOAT), points])
    if rows == 3:
        parts = b.add("Split", [places, b.integers([2, 1])], {"axis": 1}, 2)
        places = b.op("Div", list(parts))
    batch = b.extents(places)[0]
    return b.reshape(b.transpose(places, (0, 2, 1)), (batch, height, width, 2))


def _sample(
    b: Builder, x: ir.Value, places: ir.Value, mode: str, border: str, fill: float
) -> ir.Value:
    """Read an image at fractional pixels, (N, OH, OW, 2) of (x, y)."""
    modes = {"LINEAR": "linear", "NEAREST": "nearest", "CUBIC": "cubic"}
    borders = {
        "REPLICATE": ("border", 0),
        "REFLECT": ("reflection", 0),
        "REFLECT_101": ("reflection", 1),
        "CONSTANT": ("zeros", 0),
    }
    if mode not in modes or border not in borders:
        raise b.unsupported(f"interpolation {mode} with the border {border} is not covered")
    padding, align = borders[border]
    height, width = b.extents(x)[2:]
    grid = _normalized(b, places, np.array([width, height], np.float32), align)
    shift = border == "CONSTANT" and fill != 0.0
    data = b.op("Sub", [x, b.number(fill, x)]) if shift else x
    attributes = {"mode": modes[mode], "padding_mode": padding, "align_corners": align}
    value = b.op("GridSample", [data, b.cast(grid, x.dtype or ir.DataType.FLOAT)], attributes)
    return b.op("Add", [value, b.number(fill, x)]) if shift else value


def _normalized(b: Builder, places: ir.Value, extents: np.ndarray, align: int) -> ir.Value:
    """Convert pixels to the -1..1 of GridSample, whose ends are corner centres or edges."""
    if align:
        span = np.maximum(extents - 1, 1)
        scale, offset = 2 / span, np.full_like(extents, -1)
    else:
        scale, offset = 2 / extents, 1 / extents - 1
    scaled = b.op("Mul", [places, b.constant(scale.astype(np.float32))])
    return b.op("Add", [scaled, b.constant(offset.astype(np.float32))])


def remap(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Remap: inputs x and the input pixel (x, y) of every output pixel."""
    params = op.params("Remap")
    last = _channels_last(b, params)
    value, dtype = _pixels(b, xs[0]), xs[0].dtype
    value = b.transpose(value, _TO_FIRST) if last else value
    border, fill = params.word("border_type"), params.real("scalar")
    b.ranked(xs[1].value, 4)
    value = _sample(b, value, xs[1].value, params.word("imode"), border, fill)
    return [restore(b, b.transpose(value, _TO_LAST) if last else value, dtype)]


def keep_boxes(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate NMSKeepMGB: boxes (1, N, 4) sorted by score to kept indices and their count."""
    params = op.params("NMSKeep")
    boxes, most = xs[0].value, params.integer("max_output")
    batch, count, _ = b.ranked(boxes, 3)
    if batch != 1 or not 0 < most < 1 << 20 or count > 1 << 20:
        raise b.unsupported("suppression of boxes is covered for one image at a time")
    scores = b.constant(np.arange(count, 0, -1).astype(np.float32).reshape(1, 1, count))
    limits = [b.integers([most]), b.constant(np.array([params.real("iou_thresh")], np.float32))]
    kept = b.op("NonMaxSuppression", [boxes, scores, *limits])
    indices = b.op("Gather", [kept, b.constant(np.array(2, np.int64))], {"axis": 1})
    padded = b.op("Concat", [indices, b.constant(np.zeros(most, np.int64))], {"axis": 0})
    bounds = [b.integers([0]), b.integers([most])]
    row = b.op("Unsqueeze", [b.op("Slice", [padded, *bounds]), b.integers([0])])
    number = b.op("Shape", [indices])
    return [
        Var(b.cast(row, ir.DataType.INT32), INT32),
        Var(b.cast(number, ir.DataType.INT32), INT32),
    ]


# Rows give the output channels of (R, G, B) or (B, G, R); BT.601 weights.
_GRAY = np.array([[0.299], [0.587], [0.114]], np.float32)
_COLORS = {
    "RGB2GRAY": _GRAY,
    "BGR2GRAY": _GRAY[::-1],
    "RGB2BGR": np.eye(3, dtype=np.float32)[::-1],
    "BGR2RGB": np.eye(3, dtype=np.float32)[::-1],
    "GRAY2RGB": np.ones((1, 3), np.float32),
}


def convert_color(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate CvtColor of (N, H, W, C) between RGB, BGR and gray."""
    mode = op.params("CvtColor").word("mode")
    if mode not in _COLORS:
        raise b.unsupported(f"colour conversion {mode} is not covered")
    value, dtype = _pixels(b, xs[0]), xs[0].dtype
    table = b.constant(np.ascontiguousarray(_COLORS[mode]))
    weights = b.cast(table, value.dtype or ir.DataType.FLOAT)
    return [restore(b, b.op("MatMul", [value, weights]), dtype)]


RULES: Mapping[str, Rule] = {
    "CvtColor": Rule(convert_color, 1),
    "NMSKeepMGB": Rule(keep_boxes, 1),
    "Remap": Rule(remap, 2),
    "Resize": Rule(resize, 2),
    "Resize3D": Rule(resize_3d, 2),
    "WarpAffine": Rule(warp_affine, 3),
    "WarpPerspective": Rule(warp_perspective, 3, 4),
}
