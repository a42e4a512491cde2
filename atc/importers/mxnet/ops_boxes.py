"""Detection with boxes: priors, decoding, overlap, suppression."""

from __future__ import annotations

import numpy as np

from atc.importers.mxnet import nms
from atc.importers.mxnet.builder import MAX_CONSTANT
from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.params import Array
from atc.importers.mxnet.tensor import Tensor

LOWEST = float(np.finfo(np.float32).min)


@translates("_contrib_MultiBoxPrior", "MultiBoxPrior", "_npx_multibox_prior")
def multibox_prior(s: NodeContext) -> Tensor:
    """Anchors (1, H·W·(sizes + ratios - 1), 4) of a feature map: a constant."""
    s.rank(4)
    height, width = s.x.shape[2:]
    sizes, ratios = s.numbers("sizes", (1.0,)), s.numbers("ratios", (1.0,))
    steps, offsets = s.numbers("steps", (-1.0, -1.0)), s.numbers("offsets", (0.5, 0.5))
    s.require(len(steps) == len(offsets) == 2 and bool(sizes) and bool(ratios), "sizes or steps")
    s.require(min(ratios) > 0, "a ratio is not positive")
    count = len(sizes) + len(ratios) - 1
    s.require(height * width * count * 4 <= MAX_CONSTANT, "there are too many anchors")
    step = [given if given > 0 else 1 / n for given, n in zip(steps, (height, width), strict=True)]
    rows = (np.arange(height) + offsets[0]) * step[0]
    columns = (np.arange(width) + offsets[1]) * step[1]
    boxes = _anchors(rows, columns, _half_sizes(sizes, ratios, height / width))
    if s.truth("clip", False):
        boxes = np.clip(boxes, 0, 1)
    return s.b.constant(boxes.reshape(1, -1, 4).astype(s.x.dtype))


def _half_sizes(sizes: tuple[float, ...], ratios: tuple[float, ...], aspect: float) -> Array:
    """Return half of (width, height): every size with the first ratio, then the other ratios."""
    pairs = [(size, ratios[0]) for size in sizes] + [(sizes[0], ratio) for ratio in ratios[1:]]
    half = [(s * aspect * np.sqrt(r) / 2, s / np.sqrt(r) / 2) for s, r in pairs]
    return np.asarray(half, np.float64)


def _anchors(rows: Array, columns: Array, half: Array) -> Array:
    y, x = np.meshgrid(rows, columns, indexing="ij")
    center = np.stack([x, y], axis=-1)[:, :, None, :]
    return np.concatenate([center - half, center + half], axis=-1)


@translates("_contrib_MultiBoxDetection", "MultiBoxDetection", "_npx_multibox_detection")
def multibox_detection(s: NodeContext) -> Tensor:
    """Rows (class, score, box) in the order of the scores; a removed row's class is -1.

    With `nms_topk`, rows behind it are -1 all over (MXNet leaves other boxes' numbers there).
    """
    s.rank(3)
    batch, classes, anchors = s.x.shape
    s.require(s.input(1).shape == (batch, anchors * 4), "loc_pred doesn't fit cls_prob")
    s.require(s.input(2).size == anchors * 4 and classes > 1, "the anchors don't fit cls_prob")
    score, number = _best_class(s)
    boxes = _decode_multibox(s, anchors)
    rows = s.b.concat([s.b.unsqueeze(number, 2), s.b.unsqueeze(score, 2), boxes], 2)
    valid = s.b.op("Not", s.b.op("Less", score, s.number("threshold", 0.01)))
    threshold = s.number("nms_threshold", 0.5)
    if not 0 < threshold <= 1:
        return nms.compact(s.b, rows, valid)
    limit = s.integer("nms_topk", -1)
    count = min(limit, anchors) if limit > 0 else anchors
    return _padded(s, _detected(s, rows, valid, count, threshold), anchors)


def _best_class(s: NodeContext) -> tuple[Tensor, Tensor]:
    """Return the score and the number (0 is the first after the background) of the best class."""
    if s.integer("background_id", 0) != 0:
        raise s.unsupported("background_id", "class 0 is the background in MXNet 1")
    foreground = s.b.slice(s.x, 1, 1, s.x.shape[1])
    score = s.b.op("ReduceMax", foreground, [1], keepdims=0)
    number = s.b.op("ArgMax", foreground, axis=1, keepdims=0)
    return score, s.b.cast(number, s.x.dtype)


def _decode_multibox(s: NodeContext, anchors: int) -> Tensor:
    b = s.b
    variances = s.numbers("variances", (0.1, 0.1, 0.2, 0.2))
    s.require(len(variances) == 4, "variances are not four")
    location = b.reshape(s.input(1), [s.x.shape[0], anchors, 4])
    prior = b.reshape(s.input(2), [1, anchors, 4])
    low, high = b.split(prior, 2, [2, 2])
    size, center = b.op("Sub", high, low), b.op("Mul", b.op("Add", low, high), 0.5)
    scaled = b.op("Mul", location, b.constant(np.asarray(variances).astype(location.dtype)))
    shift, growth = b.split(scaled, 2, [2, 2])
    middle = b.op("Add", b.op("Mul", shift, size), center)
    half = b.op("Mul", b.op("Mul", b.op("Exp", growth), size), 0.5)
    boxes = b.concat([b.op("Sub", middle, half), b.op("Add", middle, half)], 2)
    if not s.truth("clip", True):
        return boxes
    return b.op("Clip", boxes, b.scalar(0, boxes.dtype), b.scalar(1, boxes.dtype))


def _detected(s: NodeContext, rows: Tensor, valid: Tensor, count: int, threshold: float) -> Tensor:
    """Sort the valid rows, take `count` of them, mark those that others suppress."""
    b = s.b
    rows, alive = _sorted(s, rows, valid, 1, count)
    coordinates = b.slice(rows, 2, 2, 6)
    left, top, right, bottom = nms.corners(b, coordinates, center=False)
    space = b.op("Mul", b.op("Sub", right, left), b.op("Sub", bottom, top))
    number = b.squeeze(b.slice(rows, 2, 0, 1), 2)
    classes = None if s.truth("force_suppress", False) else number
    boxes = nms.Boxes(left, top, right, bottom, space, classes)
    kept = nms.suppress(b, boxes, alive, threshold, inclusive=True)
    minus = b.scalar(-1, rows.dtype)
    marked = b.unsqueeze(b.op("Where", kept, number, minus), 2)
    whole = b.concat([marked, b.slice(rows, 2, 1, 6)], 2)
    return b.op("Where", b.unsqueeze(alive, 2), whole, minus)


def _sorted(
    s: NodeContext, rows: Tensor, valid: Tensor, score_index: int, count: int
) -> tuple[Tensor, Tensor]:
    """Return the `count` best valid rows (batch, count, width), and which of them are valid."""
    b = s.b
    score = b.squeeze(b.slice(rows, 2, score_index, score_index + 1), 2)
    keys = b.op("Where", valid, score, b.scalar(LOWEST, score.dtype))
    values, order = b.emit("TopK", [keys, [count]], {"axis": 1}, 2)
    return nms.take_rows(b, rows, order), b.op("Greater", values, LOWEST)


def _padded(s: NodeContext, rows: Tensor, count: int) -> Tensor:
    """Append rows of -1."""
    missing = count - rows.shape[1]
    if missing == 0:
        return rows
    shape = [rows.shape[0], missing, rows.shape[2]]
    filler = s.b.expand(s.b.constant(np.full((1, 1, 1), -1, rows.dtype)), shape)
    return s.b.concat([rows, filler], 1)


# ---- box_nms -----------------------------------------------------------------------------------


@translates("_contrib_box_nms", "_contrib_box_non_maximum_suppression")
def box_nms(s: NodeContext) -> tuple[Tensor, Tensor]:
    """Return the boxes that stay, by score; the other rows are -1. There is no second output."""
    s.require(s.x.rank >= 2, "the data is not (..., boxes, columns)")
    *batch, count, width = s.x.shape
    start, score = s.integer("coord_start", 2), s.integer("score_index", 1)
    s.require(0 <= start <= width - 4 and 0 <= score < width, "coord_start or score_index")
    s.require(s.integer("id_index", -1) < width, "id_index")
    rows = s.b.reshape(s.x, [int(np.prod(batch, dtype=object)), count, width])
    limit = s.integer("topk", -1)
    top = count if limit < 0 else min(limit, count)
    if top == 0:
        return s.b.op("Identity", s.x), s.x
    rows, alive = _sorted(s, rows, _valid_boxes(s, rows), score, top)
    kept = _suppressed(s, rows, alive, start)
    result = _padded(s, nms.compact(s.b, rows, kept), count)
    return s.b.reshape(_converted(s, result, start), s.x.shape), s.x


def _valid_boxes(s: NodeContext, rows: Tensor) -> Tensor:
    score = s.integer("score_index", 1)
    column = s.b.squeeze(s.b.slice(rows, 2, score, score + 1), 2)
    valid = s.b.op("Greater", column, s.number("valid_thresh", 0.0))
    number = s.integer("id_index", -1)
    if number < 0:
        return valid
    classes = s.b.squeeze(s.b.slice(rows, 2, number, number + 1), 2)
    background = s.b.op("Equal", classes, float(s.integer("background_id", -1)))
    return s.b.op("And", valid, s.b.op("Not", background))


def _suppressed(s: NodeContext, rows: Tensor, alive: Tensor, start: int) -> Tensor:
    b, number = s.b, s.integer("id_index", -1)
    center = s.word("in_format", "corner", ("corner", "center")) == "center"
    coordinates = b.slice(rows, 2, start, start + 4)
    left, top, right, bottom = nms.corners(b, coordinates, center)
    if center:
        width, height = (
            b.squeeze(b.slice(coordinates, 2, i, i + 1), 2) for i in (2, 3)
        )
    else:
        width, height = b.op("Sub", right, left), b.op("Sub", bottom, top)
    classes = None
    if number >= 0 and not s.truth("force_suppress", False):
        classes = b.squeeze(b.slice(rows, 2, number, number + 1), 2)
    boxes = nms.Boxes(left, top, right, bottom, nms.area(b, width, height), classes)
    return nms.suppress(b, boxes, alive, s.number("overlap_thresh", 0.5), inclusive=False)


def _converted(s: NodeContext, rows: Tensor, start: int) -> Tensor:
    """Convert the coordinates to `out_format`; MXNet leaves boxes with a negative first alone."""
    source, target = s.word("in_format", "corner"), s.word("out_format", "corner")
    if source == target:
        return rows
    b, width = s.b, rows.shape[2]
    before, box, after = b.slice(rows, 2, 0, start), b.slice(rows, 2, start, start + 4), \
        b.slice(rows, 2, start + 4, width)
    first, second = b.split(box, 2, [2, 2])
    if target == "center":
        middle = b.op("Mul", b.op("Add", first, second), 0.5)
        changed = b.concat([middle, b.op("Sub", second, first)], 2)
    else:
        half = b.op("Mul", second, 0.5)
        changed = b.concat([b.op("Sub", first, half), b.op("Add", first, half)], 2)
    negative = b.op("Less", b.slice(box, 2, 0, 1), 0)
    box = b.op("Where", negative, box, changed)
    parts = [before] * (start > 0) + [box] + [after] * (start + 4 < width)
    return b.concat(parts, 2)


# ---- overlap and decoding ----------------------------------------------------------------------


@translates("_contrib_box_iou")
def box_iou(s: NodeContext) -> Tensor:
    """Intersection over union of every left with every right box; 0 where they don't meet."""
    b, (x, y) = s.b, (s.x, s.input(1))
    s.require(x.rank > 0 and y.rank > 0 and x.shape[-1] == y.shape[-1] == 4, "the boxes")
    center = s.word("format", "corner", ("corner", "center")) == "center"
    left = _sides(s, b.reshape(x, [1, x.size // 4, 4]), center, [x.size // 4, 1])
    right = _sides(s, b.reshape(y, [1, y.size // 4, 4]), center, [1, y.size // 4])
    width = b.op("Sub", b.op("Min", left[2], right[2]), b.op("Max", left[0], right[0]))
    height = b.op("Sub", b.op("Min", left[3], right[3]), b.op("Max", left[1], right[1]))
    inside = b.op("Mul", b.op("Relu", width), b.op("Relu", height))
    areas = [
        nms.area(b, b.op("Sub", side[2], side[0]), b.op("Sub", side[3], side[1]))
        for side in (left, right)
    ]
    union = b.op("Sub", b.op("Add", *areas), inside)
    disjoint = b.op("LessOrEqual", inside, 0)
    zero, one = b.scalar(0, x.dtype), b.scalar(1, x.dtype)
    overlap = b.op("Div", inside, b.op("Where", disjoint, one, union))
    result = b.op("Where", disjoint, zero, overlap)
    return b.reshape(result, [*x.shape[:-1], *y.shape[:-1]])


def _sides(s: NodeContext, boxes: Tensor, center: bool, shape: list[int]) -> list[Tensor]:
    return [s.b.reshape(t, shape) for t in nms.corners(s.b, boxes, center)]


@translates("_contrib_box_decode")
def box_decode(s: NodeContext) -> Tensor:
    """Boxes from offsets to anchors, as corners."""
    b = s.b
    s.rank(3)
    anchors = s.input(1)
    s.require(s.x.shape[2] == 4 and anchors.rank == 3 and anchors.shape[2] == 4, "the boxes")
    first, second = b.split(anchors, 2, [2, 2])
    if s.word("format", "center", ("center", "corner")) == "corner":
        size = b.op("Sub", second, first)
        center = b.op("Add", first, b.op("Mul", size, 0.5))
    else:
        center, size = first, second
    deviations = np.asarray([s.number(f"std{i}", 1.0) for i in range(4)]).astype(s.x.dtype)
    shift, growth = b.split(b.op("Mul", s.x, b.constant(deviations)), 2, [2, 2])
    limit = s.number("clip", -1.0)
    if limit > 0:
        growth = b.op("Min", growth, limit)
    middle = b.op("Add", b.op("Mul", shift, size), center)
    half = b.op("Mul", b.op("Mul", b.op("Exp", growth), size), 0.5)
    return b.concat([b.op("Sub", middle, half), b.op("Add", middle, half)], 2)
