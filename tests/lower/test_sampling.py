"""Grids, regions, unpooling and unfolding against onnxruntime."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from atc.errors import ModelError
from atc.ir.graph import Array, DType, TensorType
from support import NUMBERS, Batch, assert_close, node_model, random_array, run_model

# ---- GridSample ---------------------------------------------------------------------------------

GRIDS = [
    (mode, padding, align, rank)
    for mode, padding, align, rank in product(
        ("nearest", "linear", "cubic"), ("zeros", "border", "reflection"), (0, 1), (1, 2, 3)
    )
    if rank == 2 or mode != "cubic" or padding == "zeros"
]
SPATIAL = {1: (5,), 2: (4, 5), 3: (3, 2, 4)}
POINTS = {1: (6,), 2: (7, 10), 3: (2, 3, 2)}
"""Those of rank 2 are two blocks of points and a part of one."""


def grid_inputs(rank: int) -> list[Array]:
    rng = np.random.default_rng(rank)
    grid = rng.uniform(-1.9, 1.9, (2, *POINTS[rank], rank)).astype(np.float32)
    return [random_array(DType.FLOAT, (2, 3, *SPATIAL[rank])), grid]


@pytest.fixture(scope="module")
def grids() -> Batch:
    return Batch({
        f"{mode} {padding} {align} {rank}": node_model(
            "GridSample", grid_inputs(rank), [TensorType(DType.FLOAT, (2, 3, *POINTS[rank]))],
            opset=22, mode=mode, padding_mode=padding, align_corners=align,
        )
        for mode, padding, align, rank in GRIDS
    })  # fmt: skip


@pytest.mark.few(8)
@pytest.mark.parametrize(("mode", "padding", "align", "rank"), GRIDS)
def test_grid_sample(mode: str, padding: str, align: int, rank: int, grids: Batch) -> None:
    name = f"{mode} {padding} {align} {rank}"
    inputs = grid_inputs(rank)
    feeds = {f"x{k}": x for k, x in enumerate(inputs)}
    model = grids.models[name]
    if (mode, padding) == ("cubic", "border"):  # the reference moves the place, not the neighbours
        model, feeds = framed(model, *inputs, align)
    expected = np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])
    assert_close(grids[name](inputs), [expected], rtol=1e-4, atol=1e-5)


def framed(
    model: ModelProto, x: Array, grid: Array, align: int, frame: int = 8
) -> tuple[ModelProto, dict[str, Array]]:
    """Return the model with zeros outside, of an image framed by its border."""
    sides = np.array(x.shape[:1:-1], np.float64)
    places = (grid + 1) / 2 * (sides - 1) if align else ((grid + 1) * sides - 1) / 2
    places, sides = places + frame, sides + 2 * frame
    grid = places / (sides - 1) * 2 - 1 if align else (2 * places + 1) / sides - 1
    model = ModelProto.FromString(model.SerializeToString())
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "padding_mode":
            attribute.s = b"zeros"
    around = [(0, 0), (0, 0), *[(frame, frame)] * (x.ndim - 2)]
    return model, {"x0": np.pad(x, around, "edge"), "x1": grid.astype(np.float32)}


@pytest.mark.parametrize(("mode", "padding", "align", "rank"), GRIDS)
def test_wild_grids_stay_inside(
    mode: str, padding: str, align: int, rank: int, grids: Batch
) -> None:
    x, grid = grid_inputs(rank)
    wild = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9, -77, 12.5], np.float32)
    grid.ravel()[:] = np.resize(wild, grid.size)
    (got,) = grids[f"{mode} {padding} {align} {rank}"]([x, grid])
    assert np.isfinite(got).all()


@pytest.mark.parametrize("padding", ["border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_of_single_elements(padding: str, align: int) -> None:
    x = np.full((1, 1, 1, 1), 3, np.float32)
    grid = np.random.default_rng(0).uniform(-3, 3, (1, 4, 4, 2)).astype(np.float32)
    model = node_model("GridSample", [x, grid], padding_mode=padding, align_corners=align)
    assert_close(run_model(model, [x, grid]), [np.full((1, 1, 4, 4), 3, np.float32)], rtol=1e-6)


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda d: d.label)
def test_nearest_of_every_type(dtype: DType) -> None:
    x = random_array(dtype, (1, 2, 3, 4))
    places = np.linspace(-1, 1, 4), np.linspace(-1, 1, 3)
    grid = np.stack(np.meshgrid(*places), -1)[None].astype(np.float32)
    model = node_model("GridSample", [x, grid], mode="nearest", align_corners=1)
    assert run_model(model, [x, grid])[0].tobytes() == x.tobytes()


@pytest.mark.parametrize("dtype", [DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16])
def test_linear_of_other_floats(dtype: DType) -> None:
    x, grid = random_array(dtype, (1, 2, 4, 5)), grid_inputs(2)[1][:1].astype(dtype.numpy)
    wide = [x.astype(np.float64), grid.astype(np.float64)]
    model = node_model("GridSample", wide, [TensorType(DType.DOUBLE, (1, 2, 3, 4))])
    exact = np.asarray(ReferenceEvaluator(model).run(None, {"x0": wide[0], "x1": wide[1]})[0])
    (got,) = run_model(node_model("GridSample", [x, grid]), [x, grid])
    close = 0.02 if dtype.is_half else 1e-5  # the reference computes places in float32
    np.testing.assert_allclose(got.astype(float), exact, rtol=close, atol=close)


@pytest.mark.parametrize(
    ("shape", "grid", "attributes"),
    [
        ((1, 1, 4, 4), (1, 2, 2, 3), {}),
        ((2, 1, 4, 4), (1, 2, 2, 2), {}),
        ((1, 1), (1, 0), {}),
        ((1, 1, 4, 4), (1, 2, 2, 2), {"mode": "sinc"}),
        ((1, 1, 4, 4), (1, 2, 2, 2), {"padding_mode": "ones"}),
        ((1, 1, 0, 4), (1, 2, 2, 2), {}),
    ],
)
def test_grid_sample_refuses_nonsense(
    shape: tuple[int, ...], grid: tuple[int, ...], attributes: dict[str, str]
) -> None:
    inputs = [np.zeros(shape, np.float32), np.zeros(grid, np.float32)]
    with pytest.raises(ModelError, match="GridSample"):
        run_model(node_model("GridSample", inputs, **attributes), inputs)


# ---- AffineGrid ---------------------------------------------------------------------------------


@pytest.mark.parametrize("spatial", [(3, 4), (2, 3, 4), (1, 5)])
@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid(spatial: tuple[int, ...], align: int) -> None:
    rank = len(spatial)
    theta = random_array(DType.FLOAT, (2, rank, rank + 1))
    model = node_model("AffineGrid", [theta, np.array([2, 1, *spatial])], align_corners=align)
    axes = [np.linspace(-1, 1, n) if align else (2 * np.arange(n) + 1) / n - 1 for n in spatial]
    grids = np.meshgrid(*axes, indexing="ij")
    base = np.stack([*grids[::-1], np.ones(spatial)], -1)
    expected = np.einsum("...k,njk->n...j", base, theta.astype(float)).astype(np.float32)
    assert_close(run_model(model, [theta]), [expected], rtol=1e-5, atol=1e-6)


# ---- regions ------------------------------------------------------------------------------------


def runtime_result(
    op: str, inputs: list[Array], shape: tuple[int, ...], **attributes: Any
) -> Array:
    """Compute a node by onnxruntime; inputs are x0, x1, ..."""
    runtime = pytest.importorskip("onnxruntime")
    types = [TensorType(DType.FLOAT, shape)]
    model = node_model(op, inputs, types, opset=16, constant=[], **attributes)
    model.ir_version = 8
    session = runtime.InferenceSession(model.SerializeToString())
    feeds = {f"x{k}": x for k, x in enumerate(inputs)}
    return np.asarray(session.run(None, feeds)[0])


REGIONS = np.array(
    [[0, 0, 7, 7], [1.2, 2.3, 5.7, 4.1], [-3, -2, 4, 20], [5, 5, 5.1, 5.2], [9, 9, 3, 3]],
    np.float32,
)
BATCHES = np.array([0, 1, 0, 1, 1])


@pytest.mark.few(3)
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_roi_align_is_onnxruntime_s(mode: str, ratio: int, coordinates: str) -> None:
    inputs = [random_array(DType.FLOAT, (2, 3, 8, 9)), REGIONS, BATCHES]
    attributes = {
        "mode": mode, "sampling_ratio": ratio, "spatial_scale": 0.75, "output_height": 3,
        "output_width": 2, "coordinate_transformation_mode": coordinates,
    }  # fmt: skip
    expected = runtime_result("RoiAlign", inputs, (5, 3, 3, 2), **attributes)
    got = run_model(node_model("RoiAlign", inputs, opset=16, **attributes), inputs)
    assert_close(got, [expected], rtol=1e-4, atol=1e-5)


def test_max_roi_pool_is_onnxruntime_s() -> None:
    regions = np.array([[0, 0, 0, 7, 7], [1, 1, 2, 6, 4], [0, 6, 6, 20, 20], [1, 5, 5, 5, 5]])
    inputs = [random_array(DType.FLOAT, (2, 3, 8, 9)), regions.astype(np.float32)]
    attributes = {"pooled_shape": [3, 2], "spatial_scale": 1.0}
    expected = runtime_result("MaxRoiPool", inputs, (4, 3, 3, 2), **attributes)
    got = run_model(node_model("MaxRoiPool", inputs, opset=16, **attributes), inputs)
    assert_close(got, [expected], rtol=0, atol=0)


WILD = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e9, -1e9, 3], np.float32)


@pytest.mark.parametrize("op", ["RoiAlign", "MaxRoiPool"])
def test_wild_regions_stay_inside(op: str) -> None:
    x = random_array(DType.FLOAT, (2, 2, 4, 4))
    if op == "RoiAlign":
        inputs = [x, np.resize(WILD, (7, 4)), np.array([2**62, -(2**62), 0, 1, 2, -1, 9])]
        model = node_model(op, inputs, output_height=2, output_width=2, sampling_ratio=2)
    else:
        inputs = [x, np.resize(WILD, (7, 5))]
        model = node_model(op, inputs, pooled_shape=[2, 2])
    (got,) = run_model(model, inputs)
    assert np.isfinite(got).all()


# ---- unpooling, unfolding -----------------------------------------------------------------------


def test_max_unpool_undoes_max_pool() -> None:
    x = random_array(DType.FLOAT, (1, 2, 4, 6))
    blocks = x.reshape(1, 2, 2, 2, 3, 2).transpose(0, 1, 2, 4, 3, 5).reshape(1, 2, 2, 3, 4)
    best = blocks.argmax(-1)
    where = np.arange(x.size).reshape(x.shape).reshape(1, 2, 2, 2, 3, 2)
    flat = where.transpose(0, 1, 2, 4, 3, 5).reshape(1, 2, 2, 3, 4)
    indices = np.take_along_axis(flat, best[..., None], -1)[..., 0]
    pooled = blocks.max(-1)
    expected = np.zeros_like(x)
    expected.ravel()[indices.ravel()] = pooled.ravel()
    model = node_model("MaxUnpool", [pooled, indices], kernel_shape=[2, 2], strides=[2, 2])
    assert_close(run_model(model, [pooled, indices]), [expected], rtol=0, atol=0)


def test_max_unpool_by_wild_indices_stays_inside() -> None:
    x, indices = np.ones((1, 1, 2), np.float32), np.array([[[2**62, -(2**62)]]])
    model = node_model("MaxUnpool", [x, indices], kernel_shape=[2], strides=[2])
    assert_close(run_model(model, [x, indices]), [np.array([[[1, 0, 0, 1]]], np.float32)])


def unfolded(image: Array, block: tuple[int, int], stride: int, dilation: int, pad: int) -> Array:
    """im2col of [n, c, h, w], the transpose of what Col2Im does."""
    framed = np.pad(image, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    n, c, h, w = framed.shape
    reach = [dilation * (k - 1) + 1 for k in block]
    rows = range(0, h - reach[0] + 1, stride)
    columns = range(0, w - reach[1] + 1, stride)
    parts = [
        framed[:, :, i : i + reach[0] : dilation, j : j + reach[1] : dilation].reshape(n, -1)
        for i in rows
        for j in columns
    ]
    return np.stack(parts, -1)


@pytest.mark.parametrize(("stride", "dilation", "pad"), [(1, 1, 0), (2, 1, 1), (1, 2, 2)])
def test_col2im_is_the_transpose_of_im2col(stride: int, dilation: int, pad: int) -> None:
    """<im2col(a), b> = <a, col2im(b)> for all a and b."""
    a = random_array(DType.DOUBLE, (2, 3, 5, 6))
    shape = unfolded(a, (2, 3), stride, dilation, pad).shape
    b = random_array(DType.DOUBLE, shape, 1)
    model = node_model(
        "Col2Im", [b, np.array([5, 6]), np.array([2, 3])], strides=[stride] * 2,
        dilations=[dilation] * 2, pads=[pad] * 4,
    )  # fmt: skip
    (image,) = run_model(model, [b])
    left = (unfolded(a, (2, 3), stride, dilation, pad) * b).sum()
    np.testing.assert_allclose((a * image).sum(), left, rtol=1e-12)


@pytest.mark.parametrize("dtype", [DType.INT32, DType.FLOAT16], ids=lambda d: d.label)
def test_col2im_of_other_types(dtype: DType) -> None:
    x = np.ones((1, 4, 9), dtype.numpy)
    model = node_model("Col2Im", [x, np.array([4, 4]), np.array([2, 2])])
    counts = np.outer([1, 2, 2, 1], [1, 2, 2, 1]).astype(dtype.numpy)
    assert_close(run_model(model, [x]), [counts[None, None]])


@pytest.mark.parametrize(("block", "length"), [((2, 2), 8), ((3, 2), 9), ((9, 9), 9)])
def test_col2im_refuses_what_does_not_fit(block: tuple[int, int], length: int) -> None:
    x = np.zeros((1, 4, length), np.float32)
    with pytest.raises(ModelError, match="Col2Im"):
        run_model(node_model("Col2Im", [x, np.array([4, 4]), np.array(block)]), [x])


@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.INT8], ids=lambda d: d.label)
def test_center_crop_pad(dtype: DType) -> None:
    x = random_array(dtype, (5, 4, 3))
    model = node_model("CenterCropPad", [x, np.array([2, 7])], axes=[0, -1], opset=18)
    expected = np.pad(x[1:3], [(0, 0), (0, 0), (2, 2)])
    assert_close(run_model(model, [x]), [expected])
