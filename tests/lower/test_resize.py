"""Resize and Upsample against the standard's reference and onnxruntime."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import atc
from atc.errors import ModelError, UnsupportedError
from atc.ir.graph import Array, DType, TensorType
from atc.ir.ops import Map, Reshape
from support import (
    NUMBERS,
    Batch,
    assert_close,
    compile_graph,
    node_model,
    random_array,
    run_model,
)

INTERPOLATED = [d for d in NUMBERS if d is not DType.BOOL]


# ---- all modes against the reference ------------------------------------------------------------

COORDINATES = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners",
               "asymmetric", "tf_crop_and_resize")  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SHAPE = (2, 3, 4, 8)
SIZES: dict[str, list[int]] = {
    "up": [2, 3, 8, 13],
    "down": [2, 3, 2, 5],
    "mixed": [2, 3, 7, 4],
    "one": [2, 3, 1, 2],
    "channels": [2, 6, 4, 8],
    "batch": [1, 3, 9, 8],
}
ROI = np.array([0, 0, 0.125, -0.25, 1, 1, 0.75, 1.125], np.float32)
"""The reference computes in double, so all coordinates that are ties or borders are exact."""


def resize_model(sizes: list[int], **attributes: object) -> onnx.ModelProto:
    x = np.zeros(SHAPE, np.float32)
    given = [x, ROI, None, np.array(sizes)]
    return node_model("Resize", given, [TensorType(DType.FLOAT, tuple(sizes))], **attributes)


def modes() -> dict[str, tuple[str, dict[str, object]]]:
    """Every mode with every coordinate mode, and every size where that makes a difference."""
    found: dict[str, tuple[str, dict[str, object]]] = {}
    for size, coordinates in product(SIZES, COORDINATES):
        common = {"coordinate_transformation_mode": coordinates, "extrapolation_value": 9.0}
        for k, rounding in enumerate(ROUNDINGS):
            if k == len(found) % 4 or size in ("up", "mixed"):
                name = f"nearest {rounding} {coordinates} {size}"
                found[name] = (size, {**common, "mode": "nearest", "nearest_mode": rounding})
        for mode, outside, anti in product(("linear", "cubic"), (0, 1), (0, 1)):
            if size in ("channels", "batch") and (outside or anti):
                continue
            if outside and coordinates == "tf_crop_and_resize":
                continue  # weights outside a crop are of no interest
            wide = mode == "cubic" or anti
            if wide and coordinates == "pytorch_half_pixel" and 1 in SIZES[size]:
                continue  # the reference reads -0.5 where the standard says 0
            name = f"{mode} {coordinates} {size}{' excluding' * outside}{' antialias' * anti}"
            options = {"mode": mode, "exclude_outside": outside, "antialias": anti}
            found[name] = (size, {**common, **options})
    return found


MODES = modes()


@pytest.fixture(scope="module")
def resized() -> Batch:
    models = {n: resize_model(SIZES[size], **attributes) for n, (size, attributes) in MODES.items()}
    return Batch(models, chunk=64)


@pytest.mark.few(16)
@pytest.mark.parametrize("name", MODES)
def test_resize_is_the_reference(name: str, resized: Batch) -> None:
    x = random_array(DType.FLOAT, SHAPE)
    expected = ReferenceEvaluator(resized.models[name]).run(None, {"x0": x})
    assert_close(resized[name]([x]), [np.asarray(e) for e in expected], rtol=1e-4, atol=2e-5)


def test_one_element_of_pytorch_half_pixel_is_at_0() -> None:
    x = random_array(DType.FLOAT, (1, 1, 1, 4))
    given = [x, None, None, np.array([1, 1, 1, 1])]
    options = {"coordinate_transformation_mode": "pytorch_half_pixel", "mode": "cubic"}
    assert_close(run_model(node_model("Resize", given, **options), [x]), [x[..., :1]])


SCALES = [(2.0, 2.0), (0.5, 0.6), (1.3, 2.6), (1 / 3, 4 / 3), (1.0, 3.0), (2.7, 1.0)]


@pytest.mark.few(2)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", SCALES, ids=str)
def test_scales_are_onnxruntime_s(scales: tuple[float, float], mode: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    x = random_array(DType.FLOAT, (1, 2, 6, 9))
    factors = np.array([1, 1, *scales], np.float32)
    out = [int(np.float32(s) * np.float32(n)) for s, n in zip(factors, x.shape, strict=True)]
    for coordinates in ("half_pixel", "asymmetric", "pytorch_half_pixel"):
        model = node_model(
            "Resize", [x, None, factors], [TensorType(DType.FLOAT, tuple(out))], opset=18,
            mode=mode, coordinate_transformation_mode=coordinates,
        )  # fmt: skip
        model.ir_version = 9
        session = runtime.InferenceSession(model.SerializeToString())
        assert_close(run_model(model, [x]), session.run(None, {"x0": x}), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", ["", "x0:1,1,2~4"], ids=["fixed", "range"])
def test_an_infinite_border_stays_infinite(sizes: str, tmp_path: Path) -> None:
    """Elements outside the axis repeat its edge: their weights must not make NaN of it."""
    x = np.array([[[np.inf, 1, 2, -np.inf]]], np.float32)
    scales = np.array([1, 1, 2], np.float32)
    model = node_model("Resize", [x, None, scales], mode="linear")
    if sizes:
        model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "n"
    onnx.save(model, tmp_path / "m.onnx")
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", target="c99", input_shape=sizes)
    (got,) = atc.load(tmp_path / "net")(x)
    expected = [np.inf, np.inf, np.inf, 1.25, 1.75, -np.inf, -np.inf, -np.inf]
    np.testing.assert_array_equal(got.reshape(-1), expected)


# ---- how it is done -----------------------------------------------------------------------------


def only_views(sizes: list[int], **attributes: object) -> bool:
    graph = compile_graph(resize_model(sizes, **attributes))
    return all(isinstance(n.op, Map | Reshape) for n in graph.nodes)


def test_even_repetition_is_a_view() -> None:
    asymmetric = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    assert only_views([2, 3, 8, 24], mode="nearest", **asymmetric)
    assert only_views([2, 3, 8, 16], mode="nearest")  # half_pixel
    assert not only_views([2, 3, 7, 16], mode="nearest")


def test_picking_elements_linearly_is_a_view() -> None:
    aligned = {"coordinate_transformation_mode": "align_corners"}
    assert only_views([2, 3, 2, 8], mode="linear", **aligned)
    assert not only_views([2, 3, 3, 8], mode="linear", **aligned)


# ---- types, policies, old opsets ----------------------------------------------------------------


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda d: d.label)
def test_nearest_of_every_type(dtype: DType) -> None:
    x = random_array(dtype, (1, 1, 2, 3))
    model = node_model("Resize", [x, None, None, np.array([1, 1, 4, 4])], mode="nearest")
    columns = [0, 1, 1, 2]
    assert run_model(model, [x])[0].tobytes() == x[:, :, [0, 0, 1, 1]][..., columns].tobytes()


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", INTERPOLATED, ids=lambda d: d.label)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolation_of_every_type(dtype: DType, mode: str) -> None:
    x = random_array(dtype, (1, 1, 4, 4))
    model = node_model("Resize", [x, None, None, np.array([1, 1, 8, 6])], mode=mode)
    double = node_model(
        "Resize", [x.astype(np.float64), None, None, np.array([1, 1, 8, 6])], mode=mode
    )
    found = ReferenceEvaluator(double).run(None, {"x0": x.astype(np.float64)})
    exact = np.asarray(*found)
    (got,) = run_model(model, [x])
    if dtype.is_float:
        close = 0.02 if dtype.is_half else 1e-5
        np.testing.assert_allclose(got.astype(float), exact, rtol=close, atol=close)
        return
    info = np.iinfo(str(dtype.numpy))  # towards zero; a float's rounding may fall to either side
    low, high = (np.trunc(exact + e).clip(info.min, info.max) for e in (-1e-4, 1e-4))
    assert ((got >= low) & (got <= high)).all()


@pytest.mark.parametrize(
    ("policy", "sizes", "expected"),
    [
        ("not_larger", [7, 8], (7, 7)),
        ("not_smaller", [7, 8], (8, 8)),
        ("not_larger", [1, 4], (1, 1)),
        ("stretch", [7, 8], (7, 8)),
    ],
)
def test_aspect_ratio(policy: str, sizes: list[int], expected: tuple[int, int]) -> None:
    x = random_array(DType.FLOAT, (4, 4))
    model = node_model(
        "Resize", [x, None, None, np.array(sizes)], keep_aspect_ratio_policy=policy, mode="linear"
    )
    assert run_model(model, [x])[0].shape == expected


def test_some_axes() -> None:
    x = random_array(DType.FLOAT, (2, 3, 4))
    model = node_model("Resize", [x, None, np.array([2, 3], np.float32)], axes=[-1, 0])
    assert_close(run_model(model, [x]), [x.repeat(3, 0).repeat(2, 2)])


@pytest.mark.parametrize("opset", [7, 9])
def test_upsample(opset: int) -> None:
    x, scales = random_array(DType.FLOAT, (1, 1, 2, 3)), [1.0, 1.0, 2.0, 3.0]
    if opset == 7:
        model = node_model("Upsample", [x], opset=7, scales=scales)
    else:
        model = node_model("Upsample", [x, np.array(scales, np.float32)], opset=9)
    assert_close(run_model(model, [x]), [x.repeat(2, 2).repeat(3, 3)])


def test_upsample_1_scales_height_and_width() -> None:
    x = random_array(DType.FLOAT, (1, 1, 2, 3))
    model = node_model("Upsample", [x], opset=1, height_scale=2.0, width_scale=3.0)
    assert_close(run_model(model, [x]), [x.repeat(2, 2).repeat(3, 3)])


@pytest.mark.few(2)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scale", [2.0, 0.6])
def test_resize_10_is_onnxruntime_s(mode: str, scale: float) -> None:
    runtime = pytest.importorskip("onnxruntime")
    x = random_array(DType.FLOAT, (1, 1, 5, 10))
    scales = np.array([1, 1, 1, scale], np.float32)
    types = [TensorType(DType.FLOAT, (1, 1, 5, int(10 * scale)))]
    model = node_model("Resize", [x, scales], types, opset=10, constant=[1], mode=mode)
    model.ir_version = 5
    session = runtime.InferenceSession(model.SerializeToString())
    assert_close(run_model(model, [x]), session.run(None, {"x0": x}), rtol=1e-5, atol=1e-6)


def test_empty_inputs_are_absent() -> None:
    """Resize-11 had no optional inputs: an empty tensor stood for an absent one."""
    x, nothing = random_array(DType.FLOAT, (1, 1, 2, 2)), np.zeros(0, np.float32)
    given = [x, nothing, nothing, np.array([1, 1, 4, 4])]
    assert_close(
        run_model(node_model("Resize", given, opset=11), [x]), [x.repeat(2, 2).repeat(2, 3)]
    )


def test_to_nothing() -> None:
    x = np.zeros((1, 1, 2, 2), np.float32)
    model = node_model("Resize", [x, None, None, np.array([1, 1, 0, 4])])
    assert run_model(model, [x])[0].shape == (1, 1, 0, 4)


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        ([None, None, None], {}),
        ([None, np.ones(4, np.float32), np.ones(4, np.int64)], {}),
        ([None, np.ones(3, np.float32)], {}),
        ([None, np.array([1, 1, -1, 1], np.float32)], {}),
        ([None, np.array([1, 1, np.inf, 1], np.float32)], {}),
        ([None, None, np.array([1, 1, -4, 4])], {}),
        ([None, np.ones(4, np.float32)], {"mode": "quintic"}),
        ([None, np.ones(4, np.float32)], {"coordinate_transformation_mode": "polar"}),
        ([None, np.ones(4, np.float32)], {"nearest_mode": "far"}),
        ([None, np.ones(4, np.float32)], {"coordinate_transformation_mode": "tf_crop_and_resize"}),
    ],
)
def test_nonsense_is_refused(inputs: list[Array | None], attributes: dict[str, str]) -> None:
    x = np.zeros((1, 1, 2, 2), np.float32)
    with pytest.raises(ModelError, match="Resize"):
        run_model(node_model("Resize", [x, *inputs], **attributes), [x])


def test_scales_of_run_time_are_refused() -> None:
    x, scales = np.zeros((1, 1, 2, 2), np.float32), np.ones(4, np.float32)
    with pytest.raises(UnsupportedError, match="run time"):
        run_model(node_model("Resize", [x, None, scales], constant=[]), [x, scales])


@pytest.mark.parametrize(
    ("scale", "coordinates", "rounding", "views"),
    [
        (2.0, "half_pixel", "round_prefer_floor", True),
        (3.0, "asymmetric", "floor", True),
        (2.0, "asymmetric", "ceil", False),
        (2.0, "align_corners", "floor", False),
        (1.5, "half_pixel", "round_prefer_floor", False),
    ],
)
def test_so_it_is_over_a_range(
    scale: float, coordinates: str, rounding: str, views: bool, tmp_path: Path
) -> None:
    x = random_array(DType.FLOAT, (1, 2, 6, 9))
    model = node_model(
        "Resize", [x, None, np.array([1, 1, scale, scale], np.float32)], opset=18, mode="nearest",
        coordinate_transformation_mode=coordinates, nearest_mode=rounding,
    )  # fmt: skip
    for axis, name in ((2, "h"), (3, "w")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    onnx.save(model, tmp_path / "m.onnx")
    atc.compile(
        tmp_path / "m.onnx", tmp_path / "net", target="c99", input_shape="x0:1,2,2~9,2~9",
        dump=tmp_path / "dump",
    )  # fmt: skip
    assert ("Gather" not in (tmp_path / "dump" / "00-lowering.txt").read_text()) == views
    net = atc.load(tmp_path / "net")
    for h, w in ((6, 9), (2, 3), (9, 7)):
        given = random_array(DType.FLOAT, (1, 2, h, w))
        want = ReferenceEvaluator(model).run(None, {"x0": given})
        np.testing.assert_array_equal(net(given), want[0])


@pytest.mark.parametrize("scale", [0.5, 0.75, 1.5])
def test_corners_are_aligned_over_a_range_as_for_one_size(scale: float, tmp_path: Path) -> None:
    """The standard's extent is the scale's, before it is cut off to an integer."""
    scales = np.array([1, 1, scale], np.float32)
    model = node_model(
        "Resize", [random_array(DType.FLOAT, (1, 1, 5)), None, scales], opset=18, mode="linear",
        coordinate_transformation_mode="align_corners",
    )  # fmt: skip
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "w"
    onnx.save(model, tmp_path / "m.onnx")
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", target="c99", input_shape="x0:1,1,2~9")
    with atc.load(tmp_path / "net") as net:
        for width in (2, 4, 5, 9):
            given = random_array(DType.FLOAT, (1, 1, width))
            want = ReferenceEvaluator(model).run(None, {"x0": given})[0]
            np.testing.assert_allclose(net(given), want, rtol=0, atol=1e-5)
