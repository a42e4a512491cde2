"""Operators that move, search or make data, and images."""

from __future__ import annotations

import numpy as np
from make_megengine_dumps import Case


def reductions(g):
    """Reductions, searches, sorting."""
    F, x = g.F, g.normal(3, 4, 5)
    for mode in ("SUM", "SUM_SQR", "PRODUCT", "MIN", "MAX", "MEAN"):
        for axis in (0, 1, -1):
            yield Case(f"{mode}_{axis}", g.op("Reduce", mode=mode, axis=axis), x)
        shape = g.mge.tensor(np.array([3, 1, 1], np.int32))
        op = g.op("Reduce", mode=mode)
        yield Case(mode + "_to", lambda x, f=op, s=shape: f(x, s), x)
    for dtype in (np.int32, np.int8, np.uint8, np.int16):
        for mode in ("SUM", "MAX", "MEAN"):
            n = g.integers(0, 20, 3, 5, dtype=dtype)
            name = f"{mode}_{np.dtype(dtype).name}"
            yield Case(name, g.op("Reduce", mode=mode, axis=1), n)
    for name in ("argmax", "argmin"):
        yield Case(name, lambda x, n=name: getattr(F, n)(x, axis=1), x)
        yield Case(name + "_keep", lambda x, n=name: getattr(F, n)(x, axis=-1, keepdims=True), x)
        yield Case(name + "_all", lambda x, n=name: getattr(F, n)(x), x)
    m = g.normal(6, 9)
    yield Case("argsort", lambda x: F.argsort(x), m)
    yield Case("argsort_descending", lambda x: F.argsort(x, descending=True), m)
    yield Case("sort", lambda x: F.sort(x), m)
    yield Case("topk", lambda x: F.topk(x, 3), m)
    yield Case("topk_descending", lambda x: F.topk(x, 4, descending=True), m)
    yield Case("topk_kth", lambda x: F.topk(x, 3, kth_only=True)[0], m)
    yield Case("topk_unsorted", lambda x: F.sum(F.topk(x, 3, no_sort=True)[0], axis=1), m)
    yield Case("cumsum", lambda x: F.cumsum(x, 1), x)
    for exclusive in (False, True):
        for reverse in (False, True):
            f = g.op("Cumsum", axis=1, exclusive=exclusive, reverse=reverse)
            yield Case(f"cumsum_{exclusive:d}{reverse:d}", f, x)
    yield Case("cumsum_int", g.op("Cumsum", axis=0, exclusive=False), g.integers(-9, 9, 4, 3))


def shapes(g):
    """Operators that only move data."""
    F, x = g.F, g.normal(2, 3, 4, 5)
    yield Case("reshape", lambda x: F.reshape(x, (6, -1)), x)
    yield Case("reshape_plain", lambda x: F.reshape(x, (4, 30)), x)
    yield Case("flatten", lambda x: F.flatten(x, 1, 2), x)
    yield Case("transpose", lambda x: F.transpose(x, (0, 3, 1, 2)), x)
    yield Case("dimshuffle_new", lambda x: F.transpose(x, ("x", 1, 0, "x", 2, 3)), x)
    drop = g.op("Dimshuffle", [2, 0])
    yield Case("dimshuffle_drop", drop, g.normal(3, 1, 4))
    yield Case("expand_dims", lambda x: F.expand_dims(x, (0, 3)), x)
    yield Case("squeeze", lambda x: F.squeeze(x, 1), g.normal(3, 1, 4))
    yield Case("squeeze_scalar", lambda x: F.squeeze(x, 0), g.normal(1))
    yield Case("broadcast_to", lambda x: F.broadcast_to(x, (4, 3, 5)), g.normal(3, 1))
    yield Case("concat", lambda x, y: F.concat([x, y, x], axis=-2), x, g.normal(2, 3, 2, 5))
    yield Case("stack", lambda x, y: F.stack([x, y], axis=1), x, x + 1)
    yield Case("split", lambda x: F.split(x, 2, axis=2), x)
    yield Case("split_at", lambda x: F.split(x, [1, 3], axis=3), x)
    yield Case("repeat", lambda x: F.repeat(x, 3, axis=1), x)
    yield Case("tile", lambda x: F.tile(x, (2, 1, 3, 1)), x)
    yield Case("roll", lambda x: F.roll(x, 2, axis=3), x)
    yield Case("swapaxes", lambda x: F.swapaxes(x, 1, 3), x)
    yield Case("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), g.normal(2, 8, 3, 4))
    yield Case(
        "pixel_shuffle_raw",
        lambda x: F.pixel_shuffle(x, 2),
        g.normal(2, 8, 3, 4),
        no_change_graph=True,
    )
    for mode in ("constant", "reflect", "replicate"):
        pads = ((0, 0), (0, 0), (1, 2), (3, 0))
        yield Case(
            "pad_" + mode, lambda x, m=mode, p=pads: F.nn.pad(x, p, m, constant_value=1.5), x
        )
    yield Case("identity", g.randomized(g.M.Identity()), x)
    yield Case("shape", lambda x: x.shape, x)
    yield Case("shape_axis", lambda x: x.shape[2] * x, x)
    yield Case("sliding_window", lambda x: F.sliding_window(x, (2, 3), 1, 2, 1), x)
    yield Case("meshgrid", lambda x, y: F.meshgrid(x, y), g.normal(3), g.normal(4))
    yield Case("copy", lambda x: F.copy(x) + 1, x)


def indexing(g):
    """Slices, gathers and writes."""
    F, x = g.F, g.normal(5, 6, 7)
    yield Case("range", lambda x: x[1:4, :, 2:], x)
    yield Case("steps", lambda x: x[::2, ::-1, 5:1:-2], x)
    yield Case("negative", lambda x: x[-2:, :-1, -3], x)
    yield Case("index", lambda x: x[2, -1], x)
    yield Case("element", lambda x: x[1, 2, 3], x)
    yield Case("vector_element", lambda x: x[3], g.normal(6))
    yield Case("ellipsis", lambda x: x[..., 1], x)
    rows = g.integers(0, 5, 4)
    columns = g.integers(0, 6, 4)
    yield Case("vector", lambda x, i: x[i], x, rows)
    yield Case("vector_axis1", lambda x, i: x[:, i], x, columns)
    yield Case("vectors", lambda x, i, j: x[i, j], x, rows, columns)
    yield Case("vectors_12", lambda x, i, j: x[:, i, j], x, rows, columns)
    yield Case("vectors_apart", lambda x, i, j: x[i, :, j], x, rows, columns)
    yield Case("vector_matrix", lambda x, i: x[i.reshape(2, 2)], x, rows)
    yield Case("vector_range", lambda x, i: x[i, 1:5, ::2], x, rows)
    yield Case("vector_const", lambda x: x[[0, 2, 2]], x)
    yield Case("mask", lambda x, m: x[m], g.normal(20), g.bools(20))
    yield Case("cond_take", lambda x, m: F.cond_take(m, x), g.normal(20), g.bools(20))

    def assign(x, v):
        y = x + 0
        y[1:3, ::2] = v
        return y

    yield Case("assign", assign, x, g.normal(2, 3, 7))
    yield Case("assign_broadcast", assign, x, g.normal(7))

    def assign_index(x, v):
        y = x + 0
        y[2] = v
        y[:, -1] = 3.0
        return y

    yield Case("assign_index", assign_index, x, g.normal(6, 7))

    def assign_vector(x, i, v):
        y = x + 0
        y[i] = v
        return y

    yield Case("assign_vector", assign_vector, x, np.array([3, 0], np.int32), g.normal(2, 6, 7))

    def assign_vectors(x, i, j, v):
        y = x + 0
        y[:, i, j] = v
        return y

    pairs = [np.array([3, 0], np.int32), np.array([1, 5], np.int32)]
    yield Case("assign_vectors", assign_vectors, x, *pairs, g.normal(5, 2))
    add = g.op("IncrSubtensor", items=[(0, True, True, False, False)])
    bounds = [g.mge.tensor(np.array([n], np.int32)) for n in (1, 3)]
    yield Case("increase", lambda x, v: add(x, v, *bounds), x, g.normal(2, 6, 7))
    add = g.op("IndexingIncrMultiAxisVec", items=[(0, False, False, False, True)])
    yield Case("increase_vector", add, x, g.normal(3, 6, 7), np.array([1, 4, 1], np.int32))
    yield Case(
        "mesh",
        g.op(
            "MeshIndexing", items=[(0, False, False, False, True), (1, False, False, False, True)]
        ),
        x,
        rows,
        columns,
    )
    yield Case("one_hot", lambda i: F.one_hot(i, 6).astype("float32"), columns)
    picked = g.integers(0, 6, 5, 7)
    yield Case("indexing_one_hot", lambda x, i: F.indexing_one_hot(x, i, 1), x, picked)
    yield Case("gather", lambda x, i: F.gather(x, 1, i), x, g.integers(0, 6, 5, 2, 7))
    row = np.array([[2, 1, 0, 3, 4, 0]], np.int32)
    yield Case(
        "scatter", lambda x, i, v: F.scatter(x + 0, 0, i, v), g.normal(5, 6), row, g.normal(1, 6)
    )
    embedding = g.randomized(g.M.Embedding(11, 5))
    yield Case("embedding", embedding, g.integers(0, 11, 3, 4))


def creation(g):
    """Tensors made from numbers."""
    F, x = g.F, g.normal(3, 4)
    yield Case("linspace", lambda x: x + F.linspace(0, 1, 4), x)
    yield Case("arange", lambda x: x * F.arange(4), x)
    yield Case("arange_shape", lambda x: x * F.arange(x.shape[1]), x)
    yield Case("arange_step", lambda x: x * F.arange(2, 10, 2), x)
    half_open = g.op("Linspace", endpoint=False, comp_node="xpux")
    ends = [np.array([n], t) for n, t in ((0.5, np.float32), (2.5, np.float32), (4, np.int32))]
    yield Case("linspace_open", lambda x: x + half_open(*(g.mge.tensor(e) for e in ends)), x)
    yield Case("eye", lambda x: x + F.eye(3, 4), x)
    shifted = g.op("Eye", k=1, dtype=np.float32, comp_node="xpux")
    shape = np.array([3, 4], np.int32)
    yield Case("eye_k", lambda x: x + shifted(g.mge.tensor(shape)), x)
    yield Case("zeros", lambda x: x + F.zeros((3, 4)) + F.ones((4,)), x)
    yield Case("full", lambda x: x + F.full((3, 1), 2.5), x)
    yield Case("full_like", lambda x: x + F.full_like(x, 2.5), x)
    yield Case("full_like_raw", lambda x: x + F.full_like(x, 2.5), x, no_change_graph=True)
    fill = g.op("Fill", value=1.25, dtype=np.float32, comp_node="xpux")
    yield Case("fill_raw", lambda x: x + fill(x.shape), x, no_change_graph=True)
    for k in (-1, 0, 2):
        yield Case(f"diag_vector_{k}", lambda x, k=k: F.diag(x, k), g.normal(4))
        yield Case(f"diag_matrix_{k}", lambda x, k=k: F.diag(x, k), x)


def images(g):
    """Resampling of images and suppression of boxes."""
    F, image = g.F, g.normal(2, 3, 6, 8)
    for mode in ("bilinear", "nearest", "bicubic"):
        for size in ((12, 16), (9, 5), (3, 4), (6, 8), (14, 20)):
            args = {"align_corners": False} if mode == "bilinear" else {}
            yield Case(
                f"{mode}_{size[0]}x{size[1]}",
                lambda x, m=mode, s=size, a=args: F.vision.interpolate(x, s, mode=m, **a),
                image,
            )
    yield Case(
        "aligned",
        lambda x: F.vision.interpolate(x, (11, 13), mode="bilinear", align_corners=True),
        image,
    )
    yield Case("scaled", lambda x: F.vision.interpolate(x, scale_factor=2, mode="bilinear"), image)
    yield Case(
        "scaled_nearest", lambda x: F.vision.interpolate(x, scale_factor=1.5, mode="nearest"), image
    )
    yield Case(
        "linear_1d",
        lambda x: F.vision.interpolate(x, 12, mode="linear", align_corners=False),
        g.normal(2, 3, 7),
    )
    size = g.mge.tensor(np.array([9, 11], np.int32))
    last = np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    yield Case("nhwc", lambda x: g.op("Resize", format="NHWC")(x, size), last)
    matrix = np.array([[[0.9, 0.1, 0.3], [-0.1, 1.1, -0.6], [0.01, 0.02, 1]]], np.float32)
    matrix = np.concatenate([matrix, matrix * [[[1.2, 1, 1]]]]).astype(np.float32)
    for border in ("replicate", "constant", "reflect", "reflect_101"):
        options = {"border_mode": border, "border_val": 1.5}

        def perspective(x, m, options=options):
            return F.vision.warp_perspective(x, m, (5, 7), **options)

        def affine(x, m, options=options):
            return F.vision.warp_affine(x, m, (5, 7), format="NCHW", **options)

        yield Case("perspective_" + border, perspective, image, matrix)
        yield Case("affine_" + border, affine, image, matrix[:, :2])
    yield Case(
        "perspective_index",
        lambda x, m: F.vision.warp_perspective(x, m, (5, 7), mat_idx=[1, 0, 1]),
        image,
        np.concatenate([matrix, matrix[:1]]),
    )
    places = g.uniform(-1, 7, 2, 4, 5, 2)
    for border in ("replicate", "constant", "reflect", "reflect_101"):
        yield Case(
            "remap_" + border,
            lambda x, m, b=border: F.vision.remap(x, m, border_mode=b, scalar=1.5),
            image,
            places,
        )
    yield Case(
        "remap_nearest", lambda x, m: F.vision.remap(x, m, interp_mode="nearest"), image, places
    )
    yield Case(
        "gray", lambda x: F.vision.cvt_color(x, mode="RGB2GRAY"), g.uniform(0, 1, 1, 4, 5, 3)
    )
    boxes = np.abs(g.normal(12, 2)) * 5
    boxes = np.concatenate([boxes, boxes + np.abs(g.normal(12, 2)) * 6 + 1], 1).astype(np.float32)
    yield Case("nms", lambda b, s: F.vision.nms(b, s, 0.3, 8), boxes, g.uniform(0, 1, 12))
    keep = g.op("NMSKeep", iou_thresh=0.3, max_output=12)
    yield Case("nms_count", lambda b: keep(b)[1], boxes[None])
    size3d, op = g.mge.tensor(np.array([6, 7, 4], np.int32)), g.op("Resize3D", format="NCDHW")
    yield Case("resize3d", lambda x: op(x, size3d), g.normal(1, 2, 3, 4, 5))
