"""Operators whose results' shapes depend on values, at several shapes of their inputs too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from whole.test_dynamic import FLOAT, INT64, compiled, ints, node, value

from atc.dims import Range
from atc.ir.graph import Array
from atc.runtime.network import Network

BOOL = onnx.TensorProto.BOOL

Inputs = dict[str, tuple[int, Sequence[int | str]]]
X: Inputs = {"x": (FLOAT, ["n", 5])}


def chosen(comparison: str, name: str) -> list[onnx.NodeProto]:
    """Return nodes that choose the elements of `all` that a comparison with zero finds."""
    return [node(comparison, ["all", "zero"], f"{name}_mask"),
            node("Compress", ["all", f"{name}_mask"], name, axis=0)]  # fmt: skip


def resized(mode: str) -> list[onnx.NodeProto]:
    """Return nodes that resize `x` to the sizes that an input names, between 1 and 9."""
    return [
        value("most", np.float32(9)), value("least", np.float32(1)), ints("same", 1, 1),
        node("Min", ["size", "most"], "no_more"), node("Max", ["no_more", "least"], "sizes"),
        node("Cast", ["sizes"], "whole", to=INT64), ints("front", 0, 1),
        node("Unsqueeze", ["x", "front"], "image"),
        node("Concat", ["same", "whole"], "all", axis=0),
        node("Resize", ["image", "", "", "all"], "y", mode=mode),
    ]  # fmt: skip


CASES: dict[str, tuple[list[onnx.NodeProto], Inputs, dict[str, int]]] = {
    "non_zero": ([node("NonZero", ["x"], "y")], X, {"y": INT64}),
    "compress": (
        [node("Compress", ["x", "c"], "y", axis=1)], {**X, "c": (BOOL, [5])}, {"y": FLOAT}
    ),
    "compress_all": (
        [node("Greater", ["x", "z"], "g"), ints("flat", -1), node("Reshape", ["g", "flat"], "c"),
         node("Compress", ["x", "c"], "y")], {**X, "z": (FLOAT, [1])}, {"y": FLOAT},
    ),
    "top_k": (
        [helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=1)],
        {**X, "k": (INT64, [1])}, {"y": FLOAT, "i": INT64},
    ),
    "slice": (
        [ints("a", 0, 1), ints("d", 1, -1), node("Slice", ["x", "s", "e", "a", "d"], "y")],
        {**X, "s": (INT64, [2]), "e": (INT64, [2])}, {"y": FLOAT},
    ),
    "slice_by_2": (
        [ints("a", -1), ints("d", 2), ints("e", 5), node("Slice", ["x", "s", "e", "a", "d"], "y")],
        {**X, "s": (INT64, [1])}, {"y": FLOAT},
    ),
    "unique": (
        [helper.make_node("Unique", ["x"], ["y", "i", "v", "c"])], X,
        {"y": FLOAT, "i": INT64, "v": INT64, "c": INT64},
    ),
    "unique_unsorted": (
        [helper.make_node("Unique", ["x"], ["y", "i", "v", "c"], sorted=0)], X,
        {"y": FLOAT, "i": INT64, "v": INT64, "c": INT64},
    ),
    "unique_rows": (
        [helper.make_node("Unique", ["x"], ["y", "", "v"], axis=0)],
        {"x": (FLOAT, ["n", 2])}, {"y": FLOAT, "v": INT64},
    ),
    "chain": (
        [node("NonZero", ["x"], "nz"), node("Transpose", ["nz"], "places", perm=[1, 0]),
         node("GatherND", ["x", "places"], "found"), value("two", np.float32(2)),
         node("Mul", ["found", "two"], "y"), node("ReduceSum", ["y"], "s", keepdims=0),
         node("Shape", ["places"], "n")], X, {"y": FLOAT, "s": FLOAT, "n": INT64},
    ),
    "only_the_count": (
        [node("NonZero", ["x"], "nz"), node("Shape", ["nz"], "shape"), ints("one", 1),
         node("Gather", ["shape", "one"], "y")], X, {"y": INT64},
    ),
    "joined_before_the_first_is_counted": (
        [ints("flat", -1), node("Reshape", ["x", "flat"], "all"), value("zero", np.float32(0)),
         *chosen("Greater", "a"), node("Exp", ["a"], "e"), *chosen("Less", "b"),
         node("Neg", ["b"], "m"), node("Concat", ["m", "e"], "y", axis=0)], X, {"y": FLOAT},
    ),
    "beginning_of_what_is_joined": (
        [ints("flat", -1), node("Reshape", ["x", "flat"], "all"), value("zero", np.float32(0)),
         *chosen("Greater", "a"), *chosen("Less", "b"), node("Exp", ["a"], "e"),
         node("Neg", ["b"], "m"), node("Concat", ["m", "e"], "joined", axis=0), ints("s", 0),
         ints("t", 4), node("Slice", ["joined", "s", "t"], "part"), node("Exp", ["part"], "y")],
        X, {"y": FLOAT},
    ),
    "rows_read_where_they_lie": (
        [node("Softmax", ["x"], "all"), ints("a", 0), node("Slice", ["all", "s", "e", "a"], "part"),
         node("Softmax", ["part"], "y")],
        {"x": (FLOAT, ["n", 16]), "s": (INT64, [1]), "e": (INT64, [1])}, {"y": FLOAT},
    ),
    "resized": (resized("linear"), {**X, "size": (FLOAT, [2])}, {"y": FLOAT}),
    "resized_by_cubics": (resized("cubic"), {**X, "size": (FLOAT, [2])}, {"y": FLOAT}),
    "suppression": (
        [node("NonMaxSuppression", ["x", "scores", "most", "iou", "least"], "y")],
        {"x": (FLOAT, [2, "n", 4]), "scores": (FLOAT, [2, 3, "n"]), "most": (INT64, [1]),
         "iou": (FLOAT, [1]), "least": (FLOAT, [1])}, {"y": INT64},
    ),
    "suppression_of_centres": (
        [ints("most", 2), value("iou", np.array([0.3], np.float32)), node(
            "NonMaxSuppression", ["x", "scores", "most", "iou"], "y", center_point_box=1)],
        {"x": (FLOAT, [1, "n", 4]), "scores": (FLOAT, [1, 2, "n"])}, {"y": INT64},
    ),
}  # fmt: skip


def feeds_of(inputs: Inputs, n: int, seed: int) -> dict[str, Array]:
    """Return inputs with few different values, so that there are zeros and equals."""
    random = np.random.default_rng(seed)
    found = {}
    for name, (kind, axes) in inputs.items():
        shape = [n if axis == "n" else int(axis) for axis in axes]
        if kind == FLOAT:
            found[name] = np.round(random.uniform(-2, 2, shape)).astype(np.float32)
        elif kind == BOOL:
            found[name] = random.integers(0, 2, shape).astype(bool)
        else:
            found[name] = random.integers(0 if name in ("k", "most") else -7, 6, shape)
    for name in ("scores", "iou", "least"):
        if name in found:
            found[name] = np.abs(found[name]) / 3
    return found


def model_of(case: str) -> onnx.ModelProto:
    nodes, inputs, outputs = CASES[case]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, *t) for n, t in inputs.items()],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def built(case: str, folder: Path, extent: object) -> Network:
    ranges = {
        name: tuple(extent if axis == "n" else axis for axis in axes)
        for name, (_, axes) in CASES[case][1].items()
    }
    return compiled(model_of(case), ranges, folder)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_results_have_the_shape_that_the_values_give(case: str, tmp_path: Path) -> None:
    network = built(case, tmp_path, Range(1, 6))
    session = onnxruntime.InferenceSession(model_of(case).SerializeToString())
    for seed in range(8):
        feeds = feeds_of(CASES[case][1], 1 + seed % 6, seed)
        expected = session.run(None, feeds)
        found = network.run(feeds)
        for name, want in zip(CASES[case][2], expected, strict=True):
            assert found[name].shape == want.shape, (name, feeds)
            np.testing.assert_allclose(found[name], want, rtol=1e-6, err_msg=str(feeds))


def test_many_boxes_are_suppressed(tmp_path: Path) -> None:
    network = built("suppression", tmp_path, Range(1, 90))
    session = onnxruntime.InferenceSession(model_of("suppression").SerializeToString())
    random = np.random.default_rng(0)
    for n, side, most in ((90, 2, 90), (90, 9, 90), (64, 4, 20), (33, 4, 33), (17, 30, 17)):
        corner = random.uniform(0, 20, (2, n, 2))
        boxes = np.concatenate([corner, corner + random.uniform(-side, side, (2, n, 2))], -1)
        scores = random.uniform(0, 1, (2, 3, n)).round(2)  # some are equal
        feeds = {
            "x": boxes.astype(np.float32), "scores": scores.astype(np.float32),
            "most": np.array([most]), "iou": np.array([0.2], np.float32),
            "least": np.array([0.1], np.float32),
        }  # fmt: skip
        (expected,) = session.run(None, feeds)
        np.testing.assert_array_equal(network.run(feeds)["y"], expected)


def test_fixed_inputs_need_no_shapes_to_be_set(tmp_path: Path) -> None:
    network = built("non_zero", tmp_path, 3)
    x = np.array([[0, 1, 0, 0, 2], [0] * 5, [3, 0, 0, 0, 0]], np.float32)
    for each in (x, 0 * x, x[::-1].copy(), 0 * x + 1):
        np.testing.assert_array_equal(network(each), np.nonzero(each))


@pytest.mark.few(1)
@pytest.mark.parametrize("k", [-1, 6, 1 << 40])
def test_an_extent_out_of_bounds_is_a_status(k: int, tmp_path: Path) -> None:
    network = built("top_k", tmp_path, Range(1, 3))
    x = np.zeros((2, 5), np.float32)
    with pytest.raises(RuntimeError, match="out of its range"):
        network(x, np.array([k]))
    values, _ = network(x, np.array([5]))
    assert values.shape == (2, 5)
